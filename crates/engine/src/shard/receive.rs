//! Received data: from bytes to events to callbacks.

use throng_io::ConnId;
use throng_proto::Input;
use throng_proto::ws::Close;

use crate::conn::held::HeldInput;
use crate::conn::record::ServiceFields;
use crate::conn::stage::{AfterFlush, Stage, flag};
use crate::message::{EndReason, Fault};
use crate::outbox::borrowed::LARGE;
use crate::service::Service;
use crate::shard::state::State;
use crate::ws::inbound::Inbound;
use crate::ws::messages::{self, End, Messages, StopReason};

impl<S: Service> State<S> {
    /// Handles received bytes. Returns true if part of them was held back; then the connection must
    /// not be read.
    #[inline]
    pub(crate) fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) -> bool {
        self.core.connections.stats.bytes_in += bytes.len() as u64;
        if bytes.len() >= LARGE {
            return self.on_large_read(id, bytes);
        }
        let rest = self.decode(id, bytes);
        rest > 0 && self.hold_rest(id, bytes, rest)
    }

    /// Handles a read whose messages may be sent on without a copy.
    #[inline(never)]
    fn on_large_read(&mut self, id: ConnId, bytes: &mut [u8]) -> bool {
        self.core.connections.outbox.borrowed().lend(id, bytes);
        let rest = self.decode(id, bytes);
        self.core.connections.outbox.borrowed().give_back();
        rest > 0 && self.hold_rest(id, bytes, rest)
    }

    #[cold]
    fn hold_rest(&mut self, id: ConnId, bytes: &[u8], rest: usize) -> bool {
        self.hold(id, HeldInput::new(&bytes[bytes.len() - rest..]))
    }

    /// Resumes with input that was held back. Returns true if part of it still is.
    pub(crate) fn on_held(&mut self, id: ConnId, mut held: HeldInput) -> bool {
        let rest = self.decode(id, held.as_mut_slice());
        held.consume(held.len() - rest);
        rest > 0 && self.hold(id, held)
    }

    /// Decodes input, and returns how many bytes at its end were left.
    fn decode(&mut self, id: ConnId, bytes: &mut [u8]) -> usize {
        if self.core.connections.reading.has_rates() {
            return self.decode_and_count(id, bytes);
        }
        self.decode_uncounted(id, bytes)
    }

    /// Decodes input where messages and bytes are limited by time.
    #[inline(never)]
    fn decode_and_count(&mut self, id: ConnId, bytes: &mut [u8]) -> usize {
        let (before, len) = (self.core.connections.stats.messages_in, bytes.len());
        let rest = self.decode_uncounted(id, bytes);
        let messages = self.core.connections.stats.messages_in - before;
        self.record_said(id, messages, (len - rest) as u64);
        rest
    }

    #[inline(always)]
    fn decode_uncounted(&mut self, id: ConnId, bytes: &mut [u8]) -> usize {
        self.core.connections.outbox.compression().begin_work();
        let mut input = Input::new(bytes);
        self.guarded(id, |state| {
            if !state.pump_ws(id, &mut input) {
                state.pump_upgrading(id, &mut input);
            }
        });
        // The loops leave input behind only if there is a reason to come back to it.
        input.len()
    }

    /// Handles input before there is a session, and the first messages after it.
    #[inline(never)]
    fn pump_upgrading(&mut self, id: ConnId, input: &mut Input<'_>) {
        while self.pump_handshake(id, input) && !self.pump_ws(id, input) {}
    }

    /// Counts the messages and bytes of a connection, where those are limited.
    #[cold]
    fn record_said(&mut self, id: ConnId, messages: u64, bytes: u64) {
        let connections = &mut self.core.connections;
        let now = connections.timers.tick();
        let limits = connections.route_limits_of(id).rates;
        if !connections.reading.admit(id.slot(), now, (messages, bytes), limits)
            && connections.table.stage(id) == Stage::Open
        {
            connections.fail_for(id, EndReason::Rate);
            self.end_session(id, Close::new(EndReason::Rate.code(), ""), false);
        }
    }

    /// Keeps undecoded input until the connection's answers have left, or other connections had
    /// their turn. Input that is no longer needed is dropped. Returns true if input was kept.
    #[cold]
    fn hold(&mut self, id: ConnId, rest: HeldInput) -> bool {
        if self.core.connections.table.stage(id) == Stage::Lingering {
            self.core.connections.linger_on(id, rest.len());
            return false;
        }
        let wanted = self
            .core
            .connections
            .table
            .conn(id)
            .is_some_and(|conn| conn.stage() <= Stage::Closing && !conn.is_finishing());
        if wanted {
            self.core.connections.memory.add(rest.len());
            self.held.insert(id, rest);
        }
        wanted
    }

    /// The hot path: lends a session's bytes to the service, which decodes the messages in them.
    /// Returns false if there is no session yet.
    #[inline(always)]
    fn pump_ws(&mut self, id: ConnId, input: &mut Input<'_>) -> bool {
        let Self { core, service, inbound, assembly, .. } = self;
        let Inbound::Ws(decoder) = &mut inbound[id.slot()] else { return false };
        let Some(service_fields) = core.connections.receiving(id) else {
            self.await_close(id, input);
            return true;
        };
        let mut messages = Messages::new(core, decoder, input, assembly, id, service_fields);
        service.on_read(&mut messages);
        match messages.into_end() {
            End::AtRest => {}
            End::Stopped { reason, completed } => self.finish_input(id, reason, completed),
            End::NotOpen => self.await_close(id, input),
        }
        true
    }

    /// Skips input after our Close up to the peer's.
    #[cold]
    fn await_close(&mut self, id: ConnId, input: &mut Input<'_>) {
        self.core.connections.outbox.compression().end_relay();
        let Self { core, inbound, assembly, .. } = self;
        let Inbound::Ws(decoder) = &mut inbound[id.slot()] else { return };
        let Some(ServiceFields { route, .. }) = core.connections.receiving_late(id) else {
            return;
        };
        let reason = messages::skip_to_close(decoder, input, assembly, core, id, route);
        self.finish_input(id, reason, false);
    }

    /// Handles the end of input. `completed`: if a message is incomplete now, it is not the message
    /// that was incomplete before.
    #[inline(never)]
    fn finish_input(&mut self, id: ConnId, reason: StopReason, completed: bool) {
        // Only reads that come here had a message in a form that can be relayed.
        self.core.connections.outbox.compression().end_relay();
        match reason {
            StopReason::Taken => {
                let Inbound::Ws(decoder) = &self.inbound[id.slot()] else { return };
                // Messages passed on in chunks hold next to no memory and have no deadline.
                let conn = self.core.connections.table.conn(id);
                let (route, assembling) = conn
                    .map_or((0, false), |conn| (conn.service.route, conn.has(flag::ASSEMBLING)));
                let streams = self.core.connections.limits.of_route(route).streams;
                let between = decoder.is_between_messages() || streams;
                if !between {
                    self.core.connections.count_incomplete();
                }
                if between == assembling || (completed && !between) {
                    self.record_assembling(id, between);
                }
            }
            StopReason::Closed => {
                let (code, reason) = std::mem::take(&mut self.assembly.close);
                self.on_peer_close(id, code, &reason);
            }
            StopReason::Failed(error) => {
                self.core.connections.stats.protocol_errors += 1;
                let code = error.close_code();
                // Answers from before the error leave first; Autobahn calls the rest NON-STRICT.
                let reason = error.to_string();
                self.core.connections.close_at_once(id, code, &reason);
                self.core.connections.finish(id, AfterFlush::Linger);
                self.core.connections.note_fault(id, Fault::Protocol(error));
                self.end_session(id, Close::new(code.into(), ""), false);
            }
        }
    }

    /// RFC 6455 section 5.5.1: answer a Close with its own code, unless it answers our Close; then
    /// the server closes the TCP connection first (section 7.1.1), and the client waits for that.
    #[cold]
    fn on_peer_close(&mut self, id: ConnId, code: u16, reason: &str) {
        let answer = if code == 1005 { 0 } else { code };
        self.core.connections.close_at_once(id, answer, "");
        let ours = self.core.connections.table.cold(id).map_or(0, |cold| cold.closed_with);
        let code = if ours == 0 { code } else { ours };
        self.end_session(id, Close::new(code.into(), reason), true);
        self.core.connections.finish(id, AfterFlush::Close);
    }

    /// Starts or ends the deadline of an incomplete message.
    fn record_assembling(&mut self, id: ConnId, between: bool) {
        let connections = &mut self.core.connections;
        let Some(conn) = connections.table.conn_mut(id) else { return };
        conn.set(flag::ASSEMBLING, !between);
        let tick = connections.timers.tick();
        if let Some(cold) = connections.table.cold_mut(id) {
            cold.assembling = (!between).then_some(tick);
        }
        match between {
            true => connections.table.shed_cold(id),
            false => connections.list_incomplete(id),
        }
    }
}
