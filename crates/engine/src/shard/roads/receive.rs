//! Received data: from bytes to events to callbacks.

use throng_io::ConnId;
use throng_proto::Input;
use throng_proto::ws::Close;

use crate::conn::held::HeldInput;
use crate::conn::record::ServiceFields;
use crate::conn::stage::{AfterFlush, Stage};
use crate::message::EndReason;
use crate::outbox::borrowed::LARGE;
use crate::service::Service;
use crate::shard::EngineParts;
use crate::ws::inbound::Inbound;
use crate::ws::messages::{self, End, Messages, StopReason};

impl<S: Service> EngineParts<S> {
    /// Handles received bytes. Returns true if part of them was held back; then the connection must
    /// not be read.
    #[inline]
    pub(crate) fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) -> bool {
        self.core.conns.count(|stats| stats.bytes_in += bytes.len() as u64);
        if bytes.len() >= LARGE {
            return self.on_large_read(id, bytes);
        }
        let rest = self.decode(id, bytes);
        rest > 0 && self.hold_rest(id, bytes, rest)
    }

    /// Handles a read whose messages may be sent on without a copy.
    #[inline(never)]
    fn on_large_read(&mut self, id: ConnId, bytes: &mut [u8]) -> bool {
        self.core.conns.borrowed().lend(id, bytes);
        let rest = self.decode(id, bytes);
        self.core.conns.borrowed().give_back();
        rest > 0 && self.hold_rest(id, bytes, rest)
    }

    #[cold]
    fn hold_rest(&mut self, id: ConnId, bytes: &[u8], rest: usize) -> bool {
        self.intake.hold(&mut self.core.conns, id, HeldInput::new(&bytes[bytes.len() - rest..]))
    }

    /// Resumes with input that was held back. Returns true if part of it still is.
    pub(crate) fn on_held(&mut self, id: ConnId, mut held: HeldInput) -> bool {
        let rest = self.decode(id, held.as_mut_slice());
        held.consume(held.len() - rest);
        rest > 0 && self.intake.hold(&mut self.core.conns, id, held)
    }

    /// Decodes input, and returns how many bytes at its end were left.
    fn decode(&mut self, id: ConnId, bytes: &mut [u8]) -> usize {
        if self.core.conns.has_rates() {
            return self.decode_and_count(id, bytes);
        }
        self.decode_uncounted(id, bytes)
    }

    /// Decodes input where messages and bytes are limited by time.
    #[inline(never)]
    fn decode_and_count(&mut self, id: ConnId, bytes: &mut [u8]) -> usize {
        let (before, len) = (self.core.conns.stats().messages_in, bytes.len());
        let rest = self.decode_uncounted(id, bytes);
        self.record_said(id, before, (len - rest) as u64);
        rest
    }

    #[inline(always)]
    fn decode_uncounted(&mut self, id: ConnId, bytes: &mut [u8]) -> usize {
        self.core.conns.compression().begin_work();
        let mut input = Input::new(bytes);
        self.guarded(id, |parts| {
            if !parts.pump_ws(id, &mut input) {
                parts.pump_upgrading(id, &mut input);
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

    /// Counts the messages and bytes of a connection, where those are limited. `before`: messages
    /// of all connections before these.
    #[cold]
    fn record_said(&mut self, id: ConnId, before: u64, bytes: u64) {
        let connections = &mut self.core.conns;
        let messages = connections.stats().messages_in - before;
        if !connections.admit_input(id, messages, bytes) && connections.stage(id) == Stage::Open {
            connections.fail_for(id, EndReason::Rate);
            self.end_session(id, Close::new(EndReason::Rate.code(), ""), false);
        }
    }

    /// The hot path: lends a session's bytes to the service, which decodes the messages in them.
    /// Returns false if there is no session yet.
    #[inline(always)]
    fn pump_ws(&mut self, id: ConnId, input: &mut Input<'_>) -> bool {
        let Self { core, service, intake, .. } = self;
        let Some((decoder, assembly)) = intake.session(id) else { return false };
        let Some(service_fields) = core.conns.receiving(id) else {
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
        let Self { core, intake, .. } = self;
        let Some((decoder, assembly)) = intake.session(id) else { return };
        let Some(ServiceFields { route, .. }) = core.conns.receiving_late(id) else {
            return;
        };
        let reason = messages::skip_to_close(decoder, input, assembly, core, id, route);
        self.finish_input(id, reason, false);
    }

    /// Handles the end of input. `completed`: an incomplete message now is not the message that was
    /// incomplete before.
    #[inline(never)]
    fn finish_input(&mut self, id: ConnId, reason: StopReason, completed: bool) {
        // Only reads that come here had a message in a form that can be relayed.
        self.core.conns.compression().end_relay();
        match reason {
            StopReason::Taken => {
                let Inbound::Ws(decoder) = self.intake.inbound(id) else { return };
                self.core.conns.end_input(id, decoder.is_between_messages(), completed);
            }
            StopReason::Closed => {
                let (code, reason) = self.intake.take_close();
                self.on_peer_close(id, code, &reason);
            }
            StopReason::Failed(error) => {
                self.core.conns.refuse_input(id, error);
                self.end_session(id, Close::new(error.close_code().into(), ""), false);
            }
        }
    }

    /// RFC 6455 section 5.5.1: answer a Close with its own code, unless it answers our Close; then
    /// the server closes the TCP connection first (section 7.1.1), and the client waits for that.
    #[cold]
    fn on_peer_close(&mut self, id: ConnId, code: u16, reason: &str) {
        let code = self.core.conns.answer_close(id, code);
        self.end_session(id, Close::new(code, reason), true);
        self.core.conns.finish(id, AfterFlush::Close);
    }
}
