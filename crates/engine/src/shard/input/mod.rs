//! Input of connections: their decoders, and what was received and not passed on yet.

pub(crate) mod request_events;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use throng_io::ConnId;
use throng_proto::{http1, ws};

use crate::conn::held::HeldInput;
use crate::conn::map::ConnMap;
use crate::conn::stage::Stage;
use crate::connections::Connections;
use crate::http1::body::RequestBodies;
use crate::ws::inbound::Inbound;
use crate::ws::messages::Assembly;

/// Maximum bytes of message buffers that an idle shard keeps; a shard with more sweeps to free
/// them.
const SPARE_AT_REST: usize = 64 << 10;

/// The decoders of a shard's connections, and their input that was not passed on yet.
pub(crate) struct Intake {
    /// By slot.
    inbound: Vec<Inbound>,
    /// Input that was not decoded yet; its connections are paused.
    held: ConnMap<HeldInput>,
    assembly: Assembly,
    bodies: RequestBodies,
}

impl Intake {
    /// Creates the input of no connection; `buffered`: the bytes of request bodies are counted
    /// together with other shards.
    pub(crate) fn new(capacity: usize, buffered: Option<Arc<AtomicUsize>>) -> Self {
        Self {
            inbound: Vec::with_capacity(capacity),
            held: ConnMap::default(),
            assembly: Assembly::new(),
            bodies: buffered.map_or_else(RequestBodies::default, RequestBodies::sharing),
        }
    }

    /// Enters a connection that the driver has just reported.
    pub(crate) fn enter(&mut self, id: ConnId, inbound: Inbound) {
        while self.inbound.len() <= id.slot() {
            self.inbound.push(Inbound::Nothing);
        }
        self.set(id, inbound);
    }

    /// Returns the decoder of a connection.
    #[inline]
    pub(crate) fn inbound(&self, id: ConnId) -> &Inbound {
        &self.inbound[id.slot()]
    }

    pub(crate) fn set(&mut self, id: ConnId, inbound: Inbound) {
        self.inbound[id.slot()] = inbound;
    }

    /// Returns whether the connection's input is requests.
    pub(crate) fn is_http(&self, id: ConnId) -> bool {
        matches!(self.inbound(id), Inbound::Http(_))
    }

    /// Returns whether the connection's input is the messages of a session.
    pub(crate) fn is_ws(&self, id: ConnId) -> bool {
        matches!(self.inbound(id), Inbound::Ws(_))
    }

    /// Returns the decoder of a session, and the memory for its messages.
    #[inline(always)]
    pub(crate) fn session(&mut self, id: ConnId) -> Option<(&mut ws::Decoder, &mut Assembly)> {
        match &mut self.inbound[id.slot()] {
            Inbound::Ws(decoder) => Some((decoder, &mut self.assembly)),
            _ => None,
        }
    }

    /// Returns the decoder of requests, and their bodies.
    pub(crate) fn requests(
        &mut self,
        id: ConnId,
    ) -> Option<(&mut http1::Decoder, &mut RequestBodies)> {
        match &mut self.inbound[id.slot()] {
            Inbound::Http(decoder) => Some((decoder, &mut self.bodies)),
            _ => None,
        }
    }

    /// Returns the decoder of the answer to our request.
    pub(crate) fn response(&mut self, id: ConnId) -> Option<&mut http1::ResponseDecoder> {
        match &mut self.inbound[id.slot()] {
            Inbound::Response(decoder) => Some(decoder),
            _ => None,
        }
    }

    /// Returns the bytes of a PROXY header that have come.
    pub(crate) fn proxy_header(&mut self, id: ConnId) -> Option<&mut Vec<u8>> {
        match &mut self.inbound[id.slot()] {
            Inbound::ProxyHeader(start) => Some(start),
            _ => None,
        }
    }

    /// Returns the code and reason of the Close frame that was decoded last.
    pub(crate) fn take_close(&mut self) -> (u16, String) {
        mem::take(&mut self.assembly.close)
    }

    /// Keeps undecoded input until the connection's answers have been sent, or until other
    /// connections have had their turn. Input that is no longer needed is dropped. Returns true if
    /// input was kept.
    #[cold]
    pub(crate) fn hold(&mut self, conns: &mut Connections, id: ConnId, rest: HeldInput) -> bool {
        if conns.stage(id) == Stage::Lingering {
            conns.linger_on(id, rest.len());
            return false;
        }
        let conn = conns.conn(id);
        let wanted =
            conn.is_some_and(|conn| conn.stage() <= Stage::Closing && !conn.is_finishing());
        if wanted {
            conns.memory().add(rest.len());
            self.held.insert(id, rest);
        }
        wanted
    }

    /// Keeps input that came with a connection from another shard.
    pub(crate) fn keep(&mut self, id: ConnId, input: HeldInput) {
        self.held.insert(id, input);
    }

    /// Returns whether input of a connection is held.
    pub(crate) fn is_holding(&self, id: ConnId) -> bool {
        self.held.contains_key(&id)
    }

    /// Returns input that was held, to be decoded now.
    pub(crate) fn take_held(&mut self, id: ConnId) -> Option<HeldInput> {
        self.held.remove(&id)
    }

    /// Returns whether the rest of a request's body is dropped: the request is answered.
    pub(crate) fn is_body_dropped(&self, id: ConnId) -> bool {
        self.bodies.is_dropped(id)
    }

    /// Drops the body of a request.
    pub(crate) fn end_body(&mut self, id: ConnId) {
        self.bodies.end(id);
    }

    /// Drops input of a connection that has ended; its decoder is still to be taken.
    pub(crate) fn end(&mut self, id: ConnId) {
        self.held.remove(&id);
        self.bodies.end(id);
    }

    /// Returns the decoder of a connection whose slot becomes free.
    pub(crate) fn take(&mut self, id: ConnId) -> Inbound {
        mem::replace(&mut self.inbound[id.slot()], Inbound::Nothing)
    }

    /// Drops the buffered part of incomplete input, which will not be decoded.
    pub(crate) fn forget_buffered(&mut self, id: ConnId, role: ws::Role) {
        let inbound = &mut self.inbound[id.slot()];
        match inbound {
            Inbound::Http(_) => *inbound = Inbound::http(),
            Inbound::Ws(_) => *inbound = Inbound::Ws(ws::Decoder::new(role)),
            _ => {}
        }
    }

    /// Frees the memory of earlier messages that no message needs now.
    pub(crate) fn release_unused(&mut self) {
        self.assembly.spare.release_unused();
    }

    /// Frees all memory that only large or compressed messages needed.
    pub(crate) fn shed_memory(&mut self) {
        self.assembly = Assembly::new();
    }

    /// Returns whether memory of earlier messages is still to be freed.
    pub(crate) fn has_spare(&self) -> bool {
        self.spare() > SPARE_AT_REST
    }

    /// Returns the bytes of memory kept for the next large messages.
    pub(crate) fn spare(&self) -> usize {
        self.assembly.spare.capacity()
    }

    /// Returns the connections that hold input or a body.
    pub(crate) fn holders(&self) -> impl Iterator<Item = ConnId> {
        self.held.keys().copied().chain(self.bodies.ids())
    }

    /// Returns the memory of a connection's input.
    pub(crate) fn memory(&self, id: ConnId) -> usize {
        let decoder = match self.inbound(id) {
            Inbound::Http(decoder) => decoder.buffered(),
            Inbound::Ws(decoder) => decoder.memory(),
            Inbound::ProxyHeader(start) => start.capacity(),
            _ => 0,
        };
        decoder + self.held.get(&id).map_or(0, HeldInput::memory) + self.bodies.memory(id)
    }

    /// Returns the bytes of an incomplete message or request; for audits.
    pub(crate) fn buffered(&self, id: ConnId) -> usize {
        match self.inbound(id) {
            Inbound::Http(decoder) => decoder.buffered() + self.bodies.buffered(id),
            Inbound::Ws(decoder) => decoder.buffered(),
            _ => 0,
        }
    }

    /// Returns the connections with held input, and with an incomplete body; for audits.
    pub(crate) fn lens(&self) -> (usize, usize) {
        (self.held.len(), self.bodies.len())
    }
}
