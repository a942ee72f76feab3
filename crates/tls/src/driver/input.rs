//! Input of secured connections: the ClientHello, the handshake, then records.

use std::mem;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use throng_io::{ConnId, Driver, PassedThrough, SessionFailure, TlsFailure};
use throng_proto::calendar::imf_fixdate;

use super::queue::Address;
use super::table::{Endpoint, SecureStage, flag};
use super::{Lending, Queued, Tls};
use crate::alert::Alert;
use crate::challenges::ACME_TLS_1;
use crate::handshake::{Failed, MAX_INPUT, Progress, plain_alert, whole_record};
use crate::hello::{Arrival, client_random};
use crate::record::{HEADER_LEN, MAX_PLAINTEXT};
use crate::server::TlsServer;
use crate::session::{End, Opened};
use crate::stats::answered_with;

/// The first byte of a handshake record.
const HANDSHAKE_RECORD: u8 = 22;

/// Returns the answer to a client that speaks HTTP without TLS, with the Date that RFC 9110 section
/// 6.6.1 demands.
fn not_tls() -> Vec<u8> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    [
        b"HTTP/1.1 400 Bad Request\r\nDate: ",
        &imf_fixdate(now.as_secs())[..],
        b"\r\nContent-Type: text/plain\r\nContent-Length: 57\r\nConnection: close\r\n\r\n",
        b"This port expects TLS: the URL begins with https or wss.\n",
    ]
    .concat()
}

/// Input of a handshake.
enum Input {
    /// The lent bytes from this offset on.
    Lent(usize),
    /// Bytes that were kept for the connection.
    Kept,
}

impl<D: Driver> Tls<D> {
    /// Handles the lent bytes of a connection from `at` on. Returns whether there is something to
    /// report; `lending` then locates it.
    pub(super) fn read(&mut self, id: ConnId, at: usize) -> bool {
        const HINDERED: u8 = flag::NO_INPUT_MASK | flag::PAUSED | flag::BUSY;
        let Some(conn) = self.table.conn(id) else { return false };
        let SecureStage::Established(session) = &mut conn.stage else {
            return self.read_other(id, at);
        };
        if conn.flags & HINDERED != 0 {
            return self.read_other(id, at);
        }
        debug_assert!(self.messages.is_empty(), "messages of another connection");
        let lent = &mut self.inner.lent()[at..];
        let opened = session.open(lent, self.warm.keys(id), &mut self.messages);
        if !opened.is_data_only(lent.len()) || !self.messages.is_empty() {
            return self.follow_up(id, at, &opened);
        }
        if opened.data.is_empty() {
            return false;
        }
        self.lending = Lending::Part(opened.data.start + at..opened.data.end + at);
        true
    }

    /// Handles the effects of opened records on a connection that was not busy.
    #[inline(never)]
    fn follow_up(&mut self, id: ConnId, at: usize, opened: &Opened) -> bool {
        let messages = mem::take(&mut self.messages);
        if !messages.is_empty()
            && let Some((_, busy)) = self.table.make_busy(id)
        {
            busy.messages = messages;
        }
        let data = opened.data.start + at..opened.data.end + at;
        self.keep_rest(id, at + opened.consumed);
        self.deliver(id, opened, Lending::Part(data))
    }

    /// Handles the lent bytes of a connection that is not established, is busy, or takes no input.
    #[inline(never)]
    fn read_other(&mut self, id: ConnId, at: usize) -> bool {
        let Some(conn) = self.table.conn(id) else { return false };
        if conn.flags & flag::NO_INPUT_MASK != 0 {
            return false;
        }
        if conn.has(flag::PAUSED) {
            self.keep_rest(id, at);
            return false;
        }
        match &conn.stage {
            SecureStage::Begin(_) => self.read_hello(id, at),
            SecureStage::Handshake(..) => {
                self.read_handshake(id, at);
                false
            }
            SecureStage::Established(_) => self.read_cut(id, at),
            SecureStage::Ended(_) => false,
        }
    }

    /// Handles lent bytes of a connection that may have the start of a record in its state:
    /// completes the record in the driver's own memory; the rest is the next event.
    fn read_cut(&mut self, id: ConnId, at: usize) -> bool {
        let Some((conn, busy)) = self.table.make_busy(id) else { return false };
        let SecureStage::Established(session) = &mut conn.stage else { return false };
        if busy.input.is_empty() {
            let lent = &mut self.inner.lent()[at..];
            let opened = session.open(lent, self.warm.keys(id), &mut busy.messages);
            let data = opened.data.start + at..opened.data.end + at;
            self.keep_rest(id, at + opened.consumed);
            return self.deliver(id, &opened, Lending::Part(data));
        }
        let lent = &self.inner.lent()[at..];
        // First the header, which gives the length of the rest.
        let missing = HEADER_LEN.saturating_sub(busy.input.len()).min(lent.len());
        busy.input.extend_from_slice(&lent[..missing]);
        let len = match session.record_len(&busy.input) {
            Ok(None) => return false,
            Ok(Some(len)) => len,
            Err(alert) => {
                self.end_session(id, End::Fatal(alert), false);
                return false;
            }
        };
        let more = len.saturating_sub(busy.input.len()).min(lent.len() - missing);
        busy.input.extend_from_slice(&lent[missing..missing + more]);
        self.growth += missing + more;
        if missing + more < lent.len() {
            self.rest = Some((id, at + missing + more));
        }
        busy.input.len() >= len && self.read_kept(id)
    }

    /// Handles kept input of a connection. Returns the same as [`Self::read`].
    pub(super) fn read_kept(&mut self, id: ConnId) -> bool {
        let Some((conn, busy)) = self.table.make_busy(id) else { return false };
        if conn.flags & (flag::NO_INPUT_MASK | flag::PAUSED) != 0 {
            self.table.settle(id);
            return false;
        }
        match &mut conn.stage {
            SecureStage::Begin(_) => return self.read_kept_hello(id),
            SecureStage::Handshake(..) => self.continue_handshake(id, Input::Kept),
            SecureStage::Established(session) => {
                self.scratch = mem::take(&mut busy.input);
                let keys = self.warm.keys(id);
                let opened = session.open(&mut self.scratch, keys, &mut busy.messages);
                busy.input.extend_from_slice(&self.scratch[opened.consumed..]);
                let data = opened.data.clone();
                return self.deliver(id, &opened, Lending::Scratch(data));
            }
            SecureStage::Ended(_) => {}
        }
        false
    }

    /// Keeps the lent bytes from `at` on: the start of a record, or more than the connection takes
    /// in this turn.
    pub(super) fn keep_rest(&mut self, id: ConnId, at: usize) {
        let rest = &self.inner.lent()[at..];
        if rest.is_empty() {
            return;
        }
        let Some((conn, busy)) = self.table.make_busy(id) else { return };
        if conn.flags & flag::NO_INPUT_MASK != 0 {
            return self.table.settle(id);
        }
        busy.input.extend_from_slice(rest);
        self.growth += rest.len();
        if whole_record(&busy.input).is_some() && !conn.has(flag::PAUSED) {
            self.ready.push_back(id);
        }
    }

    /// Acts on opened records. Returns whether they have data, which is then lent.
    fn deliver(&mut self, id: ConnId, opened: &Opened, lending: Lending) -> bool {
        if let Some((_, Some(busy))) = self.table.conn_and_busy(id)
            && busy.resumption.is_some()
        {
            self.keep_tickets(id, !opened.data.is_empty());
        }
        // We may still send after the peer has ended its stream.
        if opened.has_reply && matches!(opened.end, None | Some(End::CloseNotify)) {
            self.send_reply(id);
        }
        if let Some(end) = opened.end {
            self.end_session(id, end, !opened.data.is_empty());
        }
        self.table.settle(id);
        if opened.data.is_empty() {
            return false;
        }
        self.lending = lending;
        true
    }

    /// Keeps the tickets sent to a client. Servers send them before any data.
    #[cold]
    fn keep_tickets(&mut self, id: ConnId, has_data: bool) {
        let Some((_, Some(busy))) = self.table.conn_and_busy(id) else { return };
        let tickets = busy.messages.take_tickets();
        let mut resumption = busy.resumption.take();
        busy.messages.want_tickets(!has_data);
        if let Some(resumption) = &mut resumption
            && tickets.iter().any(|ticket| resumption.add(ticket).is_err())
        {
            return self.end_session(id, End::Fatal(Alert::DECODE_ERROR), has_data);
        }
        if !has_data {
            busy.resumption = resumption;
        }
    }

    /// Ends the input of a session. `has_data`: the data that came before are delivered first.
    fn end_session(&mut self, id: ConnId, end: End, has_data: bool) {
        match end {
            End::CloseNotify => self.finish_input(id, 0),
            End::PeerAlert(alert) => {
                let why = SessionFailure::PeerAlert(alert.0);
                self.count_session_failure(id, why);
                // In TLS 1.3, a server that does not accept our certificate reports it after our
                // handshake, and sends no data before. A close would drop unhandled data.
                if !has_data && self.is_client(id) {
                    return self.refuse(id, TlsFailure::Alert(alert.0));
                }
                self.finish_input(id, flag::TRUNCATED);
                self.end_stage_with(id, Some(why));
            }
            End::Fatal(alert) => {
                let why = answered_with(alert);
                self.count_session_failure(id, why);
                self.finish_input(id, flag::TRUNCATED);
                self.send_alert(id, alert);
                self.end_stage_with(id, Some(why));
            }
        }
    }

    /// Returns whether we started this connection and it is established.
    fn is_client(&self, id: ConnId) -> bool {
        self.table.conn_ref(id).is_some_and(|conn| match &conn.stage {
            SecureStage::Established(session) => session.is_client(),
            _ => false,
        })
    }

    /// Counts a session that failed, if the peer is a client.
    #[cold]
    pub(super) fn count_session_failure(&self, id: ConnId, why: SessionFailure) {
        if let Some(server) = self.table.server(id) {
            server.counters.count_session_failure(why);
        }
    }

    /// Reports the end of the peer's stream with the next event, and drops all later input.
    pub(super) fn finish_input(&mut self, id: ConnId, truncated: u8) {
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return };
        if conn.flags & flag::NO_INPUT_MASK != 0 {
            return;
        }
        conn.flags |= flag::FINISHED | truncated;
        if let Some(busy) = busy {
            busy.input = Vec::new();
        }
        self.rest.take_if(|(of, _)| *of == id);
        self.queued.push_back(Queued::Finished(id));
    }

    /// Drops the keys: nothing more is opened or sealed.
    pub(super) fn end_stage(&mut self, id: ConnId) {
        self.end_stage_with(id, None);
    }

    /// Drops the keys of a session, which may have failed.
    pub(super) fn end_stage_with(&mut self, id: ConnId, why: Option<SessionFailure>) {
        if let Some(conn) = self.table.conn(id) {
            conn.flags |= flag::CLOSE_SENT;
            self.table.set_stage(id, SecureStage::Ended(why));
            self.warm.forget(id);
        }
    }

    fn read_hello(&mut self, id: ConnId, at: usize) -> bool {
        let lent = &self.inner.lent()[at..];
        let (first, end) = (lent[0], at + lent.len());
        let is_first = self.table.busy_ref(id).is_none_or(|busy| busy.input.is_empty());
        if is_first && self.is_served_without_tls(id, first) {
            self.table.remove(id);
            self.lending = Lending::Part(at..end);
            return true;
        }
        let lent = &self.inner.lent()[at..];
        let Some((_, busy)) = self.table.make_busy(id) else { return false };
        busy.input.extend_from_slice(lent);
        self.growth += lent.len();
        self.check_hello(id);
        false
    }

    /// Handles input that was kept from before a handshake.
    fn read_kept_hello(&mut self, id: ConnId) -> bool {
        let first = self.table.busy_ref(id).and_then(|busy| busy.input.first().copied());
        let Some(first) = first else { return false };
        if self.is_served_without_tls(id, first) {
            let Some((_, busy)) = self.table.make_busy(id) else { return false };
            self.scratch = mem::take(&mut busy.input);
            self.table.remove(id);
            self.lending = Lending::Scratch(0..self.scratch.len());
            return true;
        }
        self.check_hello(id);
        false
    }

    /// Returns whether a client that begins with these bytes is served without TLS.
    fn is_served_without_tls(&self, id: ConnId, first: u8) -> bool {
        let is_accepted = |endpoint: &Endpoint| match endpoint {
            Endpoint::Server(server) => server.accepts_plain(),
            Endpoint::Client(_) => false,
        };
        first != HANDSHAKE_RECORD && self.table.endpoint(id).is_some_and(is_accepted)
    }

    /// Checks a client's kept input, and queues its handshake once the ClientHello is complete.
    /// Early data may follow: no answer has refused it yet.
    fn check_hello(&mut self, id: ConnId) {
        let server = match self.table.endpoint(id) {
            Some(Endpoint::Server(server)) => Arc::clone(server),
            _ => return,
        };
        self.table.count_later(id);
        let Some((conn, busy)) = self.table.make_busy(id) else { return };
        // RFC 8446 section 5: a record of an unexpected type.
        if busy.input[0] != HANDSHAKE_RECORD {
            return self.refuse_hello(id, Alert::UNEXPECTED_MESSAGE);
        }
        let is_short = busy.input.len() <= MAX_INPUT;
        let is_queued = conn.has(flag::QUEUED);
        let arrival = if is_queued { Arrival::Whole } else { busy.hello.advance(&busy.input) };
        match arrival {
            Arrival::Whole if !is_queued && self.pass_through(id, &server) => {}
            Arrival::Whole if is_short => self.queue_hello(id),
            Arrival::Whole => self.refuse_hello(id, Alert::UNEXPECTED_MESSAGE),
            Arrival::Partial if is_short => {}
            Arrival::Partial => self.refuse_hello(id, Alert::ILLEGAL_PARAMETER),
            Arrival::TooLong(alert) => self.refuse_hello(id, alert),
        }
    }

    /// Ends the connection of a client that has not sent a ClientHello.
    fn refuse_hello(&mut self, id: ConnId, alert: Alert) {
        let is_http =
            self.table.busy_ref(id).is_some_and(|busy| busy.input[0].is_ascii_uppercase());
        self.count_failure(id, TlsFailure::NotTls);
        self.finish_input(id, flag::TRUNCATED);
        if is_http {
            self.send_control(id, &not_tls());
        } else {
            let mut record = Vec::new();
            plain_alert(alert, &mut record);
            self.send_control(id, &record);
        }
        self.end_stage(id);
    }

    /// Passes a connection through if its server name requires it. Returns false if its TLS is
    /// ended here.
    fn pass_through(&mut self, id: ConnId, server: &TlsServer) -> bool {
        let Some((_, Some(busy))) = self.table.conn_and_busy(id) else { return false };
        let Some((route, server_name)) = server.route(&busy.input) else { return false };
        let Some(random) = client_random(&busy.input) else { return false };
        let received = mem::take(&mut busy.input);
        self.table.remove(id);
        let passed = Box::new(PassedThrough { server_name, route, random, received });
        self.queued.push_back(Queued::PassedThrough(id, passed));
        true
    }

    /// Queues the handshake of a client.
    fn queue_hello(&mut self, id: ConnId) {
        let Some(conn) = self.table.conn(id) else { return };
        let Some(address) = conn.stage.handshake_peer().map(|peer| peer.address) else { return };
        if !conn.has(flag::QUEUED) {
            conn.flags |= flag::QUEUED;
            for id in self.handshakes.push_hello(address, id) {
                self.give_up(id);
            }
        }
    }

    /// Queues the handshake of a connection that we started.
    pub(super) fn queue_client(&mut self, id: ConnId) {
        let now = self.inner.now();
        if let Some((conn, busy)) = self.table.make_busy(id) {
            conn.flags |= flag::QUEUED;
            busy.connected = Some(now);
            self.handshakes.push_step(Address::OWN, id);
        }
    }

    /// Keeps lent input of a handshake under way. Once a record is complete the handshake is
    /// queued, and reading stops until its turn.
    fn read_handshake(&mut self, id: ConnId, at: usize) {
        let Some((_, handshake)) = self.table.handshake(id) else { return };
        let lent = &self.inner.lent()[at..];
        // So much input can follow only the last message, and cannot all be kept.
        if lent.len() > handshake.room() {
            return self.continue_handshake(id, Input::Lent(at));
        }
        if let Err(failed) = handshake.receive(lent) {
            return self.fail(id, &[], &failed);
        }
        self.growth += lent.len();
        let has_record = handshake.has_record();
        let Some(conn) = self.table.conn(id) else { return };
        if has_record
            && !conn.has(flag::QUEUED)
            && let Some(peer) = conn.stage.handshake_peer()
        {
            self.handshakes.push_step(peer.address, id);
            conn.flags |= flag::QUEUED;
            self.inner.pause(id);
        }
    }

    /// Continues the handshake after the server has closed the connection: an alert may give the
    /// reason.
    pub(super) fn hear_last_words(&mut self, id: ConnId) {
        let Some(conn) = self.table.conn(id) else { return };
        let is_waiting = conn.has(flag::QUEUED) && matches!(conn.stage, SecureStage::Handshake(..));
        if is_waiting && conn.has(flag::CONNECTING) {
            conn.flags &= !flag::QUEUED;
            self.continue_handshake(id, Input::Kept);
        }
    }

    /// Ends the connection of a client whose handshake would exceed a limit.
    fn give_up(&mut self, id: ConnId) {
        self.count_failure(id, TlsFailure::GivenUp);
        self.finish_input(id, flag::TRUNCATED);
        self.end_stage(id);
        self.table.settle(id);
    }

    /// Counts a failed handshake, once for each connection.
    pub(super) fn count_failure(&mut self, id: ConnId, why: TlsFailure) {
        if let Some((server, client)) = self.table.count(id) {
            server.report_failure(client.shown(), why);
        }
    }

    /// Does a step of the next queued handshake, if there is time. Returns whether there may be
    /// more to do in this turn.
    pub(super) fn do_handshake_step(&mut self) -> bool {
        let Self { inner, table, handshakes, .. } = self;
        let clock = inner.clock();
        let next = handshakes.pop(|id| table.is_waiting(id), || clock.read());
        let Some(id) = next else { return false };
        let Some(conn) = self.table.conn(id) else { return true };
        conn.flags &= !flag::QUEUED;
        let may_proceed = !conn.has(flag::NO_HANDSHAKE_MASK);
        match (&conn.stage, conn.has(flag::CONNECTING)) {
            (SecureStage::Begin(_), true) if may_proceed => self.begin_client(id),
            (SecureStage::Begin(_), false) if may_proceed => self.begin_server(id),
            (SecureStage::Handshake(..), _) if may_proceed => {
                self.continue_handshake(id, Input::Kept)
            }
            _ => {}
        }
        // Nothing was read while a handshake under way waited.
        if self.table.conn(id).is_some_and(|conn| !conn.has(flag::PAUSED | flag::CLOSING)) {
            self.inner.resume(id);
        }
        true
    }

    /// Begins the handshake of a client.
    fn begin_server(&mut self, id: ConnId) {
        match self.table.conn_and_busy(id) {
            Some((_, Some(busy))) if !busy.input.is_empty() => self.begin(id),
            _ => return,
        }
        let table = &self.table;
        let is_under_way = |id| {
            table.conn_ref(id).is_some_and(|conn| matches!(conn.stage, SecureStage::Handshake(..)))
        };
        if let Some(oldest) = self.handshakes.begin(id, table.handshakes(), is_under_way) {
            self.give_up(oldest);
        }
    }

    /// Begins the handshake of a connection that we started.
    fn begin_client(&mut self, id: ConnId) {
        let Some((_, busy)) = self.table.conn_and_busy(id) else { return };
        let preface = busy.map(|busy| mem::take(&mut busy.control)).unwrap_or_default();
        self.send_control(id, &preface);
        self.begin(id);
    }

    /// Begins a handshake with the kept input, which is empty if we are the client.
    fn begin(&mut self, id: ConnId) {
        let begun = match self.table.endpoint(id) {
            Some(Endpoint::Server(server)) => {
                let server = Arc::clone(server);
                let busy = self.table.conn_and_busy(id).and_then(|(_, busy)| busy);
                server.handshake_for(busy.map_or(&[][..], |busy| &busy.input))
            }
            Some(Endpoint::Client(client)) => client.handshake(),
            None => return,
        };
        match begun {
            Ok(handshake) => {
                self.growth += handshake.memory();
                self.table.begin_handshake(id, handshake);
                self.continue_handshake(id, Input::Kept);
            }
            Err(failed) => self.fail(id, &[], &failed),
        }
    }

    /// Continues a handshake with more input, as much as it may keep. The rest can only follow a
    /// handshake that completes with this input.
    fn continue_handshake(&mut self, id: ConnId, input: Input) {
        let Some((_, handshake)) = self.table.handshake(id) else { return };
        let room = handshake.room();
        let (received, is_beyond) = match input {
            Input::Lent(at) => {
                let lent = &self.inner.lent()[at..];
                let given = lent.len().min(room);
                if given < lent.len() {
                    self.rest = Some((id, at + given));
                }
                (handshake.receive(&lent[..given]), given < lent.len())
            }
            Input::Kept => {
                let kept = self.table.take_input(id, room);
                let is_beyond = self.table.busy_ref(id).is_some_and(|busy| !busy.input.is_empty());
                let Some((_, handshake)) = self.table.handshake(id) else { return };
                (handshake.receive(&kept), is_beyond)
            }
        };
        let Some((secrets, handshake)) = self.table.handshake(id) else { return };
        let mut out = Vec::new();
        match received.and_then(|()| handshake.advance(secrets, &mut out)) {
            Ok(Progress::NeedsInput) if is_beyond => self.fail(id, &out, &Failed::too_long()),
            Ok(progress) => {
                self.send_control(id, &out);
                if progress == Progress::Complete {
                    self.complete_handshake(id);
                }
            }
            Err(failed) => self.fail(id, &out, &failed),
        }
        self.table.settle(id);
    }

    fn complete_handshake(&mut self, id: ConnId) {
        let Some((secrets, handshake)) = self.table.handshake(id) else { return };
        let (session, mut info, rest) = match handshake.take_session(secrets) {
            Ok(established) => established,
            Err(failed) => return self.fail(id, &[], &failed),
        };
        let resumption = handshake.take_resumption();
        if let Some((server, _)) = self.table.count(id) {
            server.counters.count_success(info.is_resumed);
        }
        let Some((conn, busy)) = self.table.conn_and_busy(id) else { return };
        let is_connecting = conn.has(flag::CONNECTING);
        if let Some(busy) = busy {
            info.connected = busy.connected.take();
        }
        if resumption.is_some()
            && let Some((_, busy)) = self.table.make_busy(id)
        {
            busy.resumption = resumption;
            busy.messages.want_tickets(true);
        }
        if info.alpn.as_deref() == Some(ACME_TLS_1) {
            // RFC 8737 section 3: no data follows the handshake of a validation.
            self.table.set_stage(id, SecureStage::Established(session));
            self.send_alert(id, Alert::CLOSE_NOTIFY);
            self.finish_input(id, flag::TRUNCATED);
            return self.end_stage(id);
        }
        self.table.set_stage(id, SecureStage::Established(session));
        self.queued.push_back(Queued::Secured(id, Box::new(info)));
        if is_connecting {
            self.queued.push_back(Queued::Connected(id));
        }
        // If our last message is still in flight, its end starts the batch.
        if let Some((_, Some(busy))) = self.table.conn_and_busy(id)
            && !busy.in_flight
            && let Some(batch) = busy.batch.take()
            && let Some(batch) = self.seal_and_send_rest(id, batch, MAX_PLAINTEXT)
        {
            self.queued.push_back(Queued::Sent(id, batch));
        }
        if !rest.is_empty()
            && let Some((_, busy)) = self.table.make_busy(id)
        {
            busy.input.splice(..0, rest);
        }
        if self.table.busy_ref(id).is_some_and(|busy| !busy.input.is_empty()) {
            self.ready.push_back(id);
        }
    }

    /// Ends a connection whose handshake failed; `alert` gives the reason, if it can be sent.
    fn fail(&mut self, id: ConnId, alert: &[u8], failed: &Failed) {
        self.count_failure(id, failed.kind());
        let Some(conn) = self.table.conn(id) else { return };
        if conn.has(flag::CONNECTING) {
            self.send_control(id, alert);
            return self.refuse(id, failed.kind());
        }
        self.finish_input(id, flag::TRUNCATED);
        self.send_control(id, alert);
        self.end_stage(id);
        self.table.settle(id);
    }
}

#[cfg(test)]
mod tests {
    use throng_io::{Options, Portable};

    use super::*;

    #[test]
    fn the_end_of_one_connection_leaves_the_input_of_another() {
        let mut driver = Tls::new(Portable::new(Options::default()).unwrap());
        let (one, other) = (ConnId::new(0, 0, 1), ConnId::new(0, 1, 1));
        for id in [one, other] {
            let endpoint = Endpoint::Server(crate::server::tests::any());
            driver.table.insert(id, endpoint, Address::OWN, 0);
        }
        driver.rest = Some((one, 7));
        driver.finish_input(other, 0);
        assert_eq!(driver.rest, Some((one, 7)));
        driver.finish_input(one, 0);
        assert_eq!(driver.rest, None);
    }
}
