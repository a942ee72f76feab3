//! The messages of one read of a session, decoded from the lent bytes by the service that receives
//! them.

use throng_io::ConnId;
use throng_proto::Input;
use throng_proto::ws::deflate::{Inflated, Inflater};
use throng_proto::ws::{self, Chunk, CloseCode, Deflated, Event, Message};

use crate::conn::record::ServiceFields;
use crate::conn::stage::Stage;
use crate::context::{Core, Cx};

/// Receives the messages of a session.
pub trait Receive {
    /// Called with each whole message.
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>);

    /// Called with each chunk of a message as it comes, on routes with
    /// [`RouteOptions::streams`](crate::RouteOptions::streams).
    fn on_chunk(&mut self, cx: &mut Cx<'_>, chunk: Chunk<'_>) {
        let _ = (cx, chunk);
    }
}

/// Memory of a shard for messages that are fragmented or compressed: their parts, and the inflater.
#[derive(Debug)]
pub(crate) struct Assembly {
    pub(crate) spare: ws::Spare,
    pub(crate) inflater: Inflater,
    /// The code and reason of the Close frame that was decoded last.
    pub(crate) close: (u16, String),
}

impl Assembly {
    pub(crate) fn new() -> Self {
        Self {
            spare: ws::Spare::new(),
            inflater: Inflater::new(),
            close: (CloseCode::NO_STATUS.get(), String::new()),
        }
    }
}

/// The messages of one read of an open session, still encoded.
///
/// The loop over them is in [`Messages::deliver`], which is compiled for each [`Receive`]: a
/// service that chooses among several receivers makes one indirect call for each read, and none for
/// each message.
#[derive(Debug)]
pub struct Messages<'a, 'b> {
    core: &'a mut Core,
    encoded: Encoded<'a, 'b>,
    id: ConnId,
    service: ServiceFields,
    end: End,
}

/// Reason why no further message was delivered. It is small, since it is checked after each read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// All bytes are decoded, and no message is incomplete.
    AtRest,
    /// The decoder stopped, and why. `completed`: at least one message ended in this read.
    Stopped { reason: StopReason, completed: bool },
    /// The session is no longer open.
    NotOpen,
}

/// Reason why the bytes at hand give no further message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// All bytes are decoded, or the rest has to wait.
    Taken,
    /// The peer closed, as [`Assembly::close`] says.
    Closed,
    /// The peer broke the protocol.
    Failed(ws::ProtocolError),
}

/// The next event of a session that is not a whole message in one frame.
enum Next<'a> {
    Message(Message<'a>),
    Chunk(Chunk<'a>),
    Control,
    Stop(StopReason),
}

impl<'a, 'b> Messages<'a, 'b> {
    #[inline(always)]
    pub(crate) fn new(
        core: &'a mut Core,
        decoder: &'a mut ws::Decoder,
        input: &'a mut Input<'b>,
        assembly: &'a mut Assembly,
        id: ConnId,
        service: ServiceFields,
    ) -> Self {
        let encoded = Encoded { decoder, input, assembly };
        Self { core, encoded, id, service, end: End::AtRest }
    }

    #[inline(always)]
    pub(crate) fn into_end(self) -> End {
        self.end
    }

    /// Returns the id of the connection.
    #[must_use]
    #[inline(always)]
    pub fn id(&self) -> ConnId {
        self.id
    }

    /// Returns the route of the session.
    #[must_use]
    #[inline(always)]
    pub fn route(&self) -> u16 {
        self.service.route
    }

    /// Returns the service's own value for the session, see [`Cx::data`].
    #[must_use]
    #[inline(always)]
    pub fn data(&self) -> u32 {
        self.service.data
    }

    /// Declares the route whose callbacks follow, see [`Cx::enter_route`].
    #[inline(always)]
    pub fn enter_route(&mut self, route: u32) {
        self.core.clocks.watch().enter(route);
    }

    /// Drops the bytes of this read.
    #[cold]
    pub fn discard(&mut self) {
        self.encoded.input.take(usize::MAX);
    }

    /// Decodes the messages and calls `receiver` with each, until all bytes are taken, the session
    /// is closed, or its output or the work it causes asks for a pause; the rest is delivered
    /// later.
    #[inline(always)]
    pub fn deliver<R: Receive>(&mut self, receiver: &mut R) {
        let Self { core, encoded, id, service, end } = self;
        // The fields of the service are read where they are needed: rarely.
        let id = *id;
        let mut completed = false;
        let reason = loop {
            let limit = service.inline_limit.into();
            let message = match encoded.decoder.whole_message(encoded.input, limit) {
                Some(Event::Binary(bytes)) => Message::Binary(bytes),
                Some(Event::Text(text)) => Message::Text(text),
                _ => {
                    // A message may have been incomplete before: the engine must check, even where
                    // nothing is left.
                    *end = End::Stopped { reason: StopReason::Taken, completed: true };
                    match encoded.step(core, id, service, receiver) {
                        Stepped::Message(message) => message,
                        Stepped::Done { completed: chunk } => {
                            completed |= chunk;
                            continue;
                        }
                        Stepped::Stop { reason, completed: chunk } => {
                            completed |= chunk;
                            break reason;
                        }
                        Stepped::NotOpen => {
                            *end = End::NotOpen;
                            return;
                        }
                    }
                }
            };
            core.conns.count(|stats| stats.messages_in += 1);
            receiver.on_message(&mut Cx::known(core, id, *service), message);
            if encoded.decoder.is_at_rest(encoded.input) {
                return;
            }
            completed = true;
            let is_late = core.clocks.is_up(id);
            if !is_late && core.conns.can_continue(id) {
                continue;
            }
            if core.conns.stage(id) != Stage::Open {
                *end = End::NotOpen;
                return;
            }
            if !encoded.input.is_empty() && (is_late || core.conns.must_yield(id)) {
                // Back-pressure means to stop decoding; the road that decodes holds the rest.
                break StopReason::Taken;
            }
        };
        *end = End::Stopped { reason, completed };
    }
}

/// The bytes of a read, and what decodes them.
#[derive(Debug)]
struct Encoded<'a, 'b> {
    decoder: &'a mut ws::Decoder,
    input: &'a mut Input<'b>,
    assembly: &'a mut Assembly,
}

/// The outcome of an event that is not a whole message in one frame.
enum Stepped<'a> {
    Message(Message<'a>),
    /// The next event. `completed`: the event ended a message.
    Done {
        completed: bool,
    },
    Stop {
        reason: StopReason,
        completed: bool,
    },
    NotOpen,
}

impl<'b> Encoded<'_, 'b> {
    /// Handles one event on the slow path. Not inlined: its values would take registers from the
    /// loop over whole messages, at a cost of 11 instructions per message.
    #[inline(never)]
    fn step<'s, R: Receive>(
        &'s mut self,
        core: &mut Core,
        id: ConnId,
        service: &ServiceFields,
        receiver: &mut R,
    ) -> Stepped<'s>
    where
        'b: 's,
    {
        let Self { decoder, input, assembly } = self;
        match next(decoder, input, assembly, core, id, service.route) {
            Next::Message(message) => Stepped::Message(message),
            Next::Chunk(chunk) => {
                let completed = chunk.last;
                core.conns.count(|stats| stats.messages_in += u64::from(completed));
                receiver.on_chunk(&mut Cx::known(core, id, *service), chunk);
                if core.conns.stage(id) != Stage::Open {
                    return Stepped::NotOpen;
                }
                let must_pause =
                    !input.is_empty() && (core.conns.must_yield(id) || core.clocks.is_up(id));
                match must_pause {
                    true => Stepped::Stop { reason: StopReason::Taken, completed },
                    false => Stepped::Done { completed },
                }
            }
            Next::Control if core.clocks.is_up(id) => {
                Stepped::Stop { reason: StopReason::Taken, completed: false }
            }
            Next::Control => Stepped::Done { completed: false },
            Next::Stop(reason) => Stepped::Stop { reason, completed: false },
        }
    }
}

/// Drops input before the peer's Close frame.
pub(crate) fn skip_to_close(
    decoder: &mut ws::Decoder,
    input: &mut Input<'_>,
    assembly: &mut Assembly,
    core: &mut Core,
    id: ConnId,
    route: u16,
) -> StopReason {
    loop {
        if let Next::Stop(reason) = next(decoder, input, assembly, core, id, route) {
            return reason;
        }
    }
}

/// Decodes the next event of a session, on the slow path. Out of line, and with access to nothing
/// borrowed but the decoder.
#[inline(never)]
fn next<'a, 'b: 'a>(
    decoder: &'a mut ws::Decoder,
    input: &mut Input<'b>,
    assembly: &'a mut Assembly,
    core: &mut Core,
    id: ConnId,
    route: u16,
) -> Next<'a> {
    let Assembly { spare, inflater, close } = assembly;
    let (limits, streams) = core.conns.limits().messages_of(route);
    core.conns.record_limits(id, &limits);
    core.conns.borrowed().set_joined(None);
    core.conns.compression().end_relay();
    if decoder.deflates() && core.conns.compression().is_phase_spent() {
        // The rest is held until the next turn.
        return Next::Stop(StopReason::Taken);
    }
    let event = match streams {
        true => decoder.next_chunk(input, &limits, spare),
        false => decoder.next_event_with(input, &limits, spare),
    };
    core.conns.borrowed().set_joined(spare.joined().map(|joined| joined as _));
    match event {
        Ok(Some(Event::Compressed(message))) => {
            // After our Close no callback gets it.
            if core.conns.stage(id) != Stage::Open {
                return Next::Control;
            }
            let inflated = inflate(inflater, message, core, id, limits.max_message_size);
            take(core, id, close, inflated.map(Some))
        }
        event => take(core, id, close, event),
    }
}

/// Converts an event; a ping is answered.
fn take<'a>(
    core: &mut Core,
    id: ConnId,
    close: &mut (u16, String),
    event: Result<Option<Event<'a>>, ws::ProtocolError>,
) -> Next<'a> {
    match event {
        Ok(None) => Next::Stop(StopReason::Taken),
        Ok(Some(Event::Binary(bytes))) => Next::Message(Message::Binary(bytes)),
        Ok(Some(Event::Text(text))) => Next::Message(Message::Text(text)),
        Ok(Some(Event::Chunk(chunk))) => Next::Chunk(chunk),
        Ok(Some(Event::Ping(payload))) => {
            core.conns.pong(id, payload);
            Next::Control
        }
        // Compressed messages have already been inflated.
        Ok(Some(Event::Pong(_) | Event::Compressed(_))) => Next::Control,
        Ok(Some(Event::Close(reason))) => {
            // The reason borrows the lent bytes or the decoder; a Close is rare enough to copy it.
            let code = reason.map_or(CloseCode::NO_STATUS.get(), |reason| reason.code);
            *close = (code, reason.map_or_else(String::new, |reason| reason.reason.to_owned()));
            Next::Stop(StopReason::Closed)
        }
        Err(error) => Next::Stop(StopReason::Failed(error)),
    }
}

/// Decompresses a message; the limit is enforced while inflating.
fn inflate<'i>(
    inflater: &'i mut Inflater,
    message: Deflated<'_>,
    core: &mut Core,
    id: ConnId,
    max: usize,
) -> Result<Event<'i>, ws::ProtocolError> {
    let connections = &mut core.conns;
    connections.count(|stats| stats.inflate_input_bytes += message.payload.len() as u64);
    let compression = connections.compression();
    let history = compression.peers_history(id.slot());
    let context = history.as_ref().map_or(0, |history| history.len());
    let Inflated { event, relayable } = inflater.inflate(message, history, max)?;
    let plaintext = match event {
        Event::Text(text) => text.as_bytes(),
        Event::Binary(bytes) => bytes,
        _ => &[],
    };
    compression.record_inflated(plaintext.len(), context);
    if relayable {
        compression.set_relay(plaintext, message.payload);
    }
    connections.count(|stats| stats.inflate_output_bytes += plaintext.len() as u64);
    Ok(event)
}
