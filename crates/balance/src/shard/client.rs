//! Clients that speak HTTP: what their bytes mean in each phase, refusals, and their end.

use std::sync::Arc;

use throng_engine::{HeldInput, LINGER_SILENCE, Linger};
use throng_io::{ConnId, Driver};
use throng_proto::proxy_protocol;

use super::records::{ClientRecord, BalanceRecord, Phase};
use super::output::HIGH_WATER;
use super::{ConnAction, BalanceParts};
use crate::access::EndReason;
use crate::forward;

/// Returns whether a client that has ended its stream waits for nothing.
fn has_left(client: &ClientRecord) -> bool {
    match (client.phase, &client.exchange) {
        (Phase::Leaving, _) => false,
        // Half a request, or a client that wants a tunnel and has left.
        (_, Some(exchange)) => !exchange.is_complete || exchange.key.is_some(),
        (_, None) => true,
    }
}

impl BalanceParts {
    /// Handles lent bytes of a client that speaks HTTP.
    pub(super) fn client_received(&mut self, id: ConnId, bytes: &mut [u8]) {
        let BalanceRecord::Client(mut client) = self.records.take(id) else { return };
        match client.phase {
            Phase::Proxy => {
                client.held.push(bytes);
                self.read_proxy_header(id, &mut client);
            }
            Phase::Head | Phase::Queued | Phase::Exchange => {
                let left = self.read_request(id, &mut client, bytes);
                if left > 0 && client.exchange.is_some() {
                    client.held.push(&bytes[bytes.len() - left..]);
                    self.pause_if_far_ahead(id, &client);
                }
            }
            Phase::Leaving => {}
            Phase::Lingering => {
                let dropped = client.dropped.get_or_insert(Linger::new(self.time.tick()));
                if dropped.drop_input(self.time.tick(), bytes.len()) {
                    self.records.set_deadline(id, self.time.after(LINGER_SILENCE));
                }
            }
        }
        self.records.insert(id, BalanceRecord::Client(client));
    }

    /// Decodes what was held back, up to the end of one request.
    pub(super) fn proceed<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let BalanceRecord::Client(mut client) = self.records.take(id) else { return };
        let mut held = std::mem::take(&mut client.held);
        let before = held.len();
        let left = self.read_request(id, &mut client, held.as_mut_slice());
        if !matches!(client.phase, Phase::Leaving | Phase::Lingering) {
            held.consume(before - left);
            client.held = held;
            self.pause_if_far_ahead(id, &client);
        }
        if client.http.finished && has_left(&client) {
            // Before its request is sent to a backend.
            self.actions.push_front(ConnAction::Close(id));
        }
        // The rest of a head longer than the high water mark: no exchange will resume the client.
        if client.phase == Phase::Head && client.http.paused && client.http.is_clear() {
            client.http.paused = false;
            driver.resume(id);
        }
        self.records.insert(id, BalanceRecord::Client(client));
    }

    /// Stops reading a client whose requests are far ahead of the answers.
    fn pause_if_far_ahead(&mut self, id: ConnId, client: &ClientRecord) {
        if client.held.len() > HIGH_WATER {
            self.actions.push_back(ConnAction::Pause(id));
        }
    }

    /// Reads the PROXY header of a trusted proxy, before all else.
    fn read_proxy_header(&mut self, id: ConnId, client: &mut ClientRecord) {
        match proxy_protocol::decode(client.held.as_slice()) {
            Ok(proxy_protocol::Decoded::Needs(_)) => {}
            Ok(proxy_protocol::Decoded::Header(header)) => {
                if let Some((source, _)) = header.addresses {
                    client.address = source;
                    self.count_behind_proxy(id, source.ip());
                }
                client.held.consume(header.len);
                client.phase = Phase::Head;
                if client.tls.is_some() {
                    self.actions.push_back(ConnAction::Secure(id));
                } else if !client.held.is_empty() {
                    self.actions.push_back(ConnAction::Proceed(id));
                }
            }
            Err(_) => {
                self.metrics.refused += 1;
                self.metrics.proxy_errors += 1;
                self.report_end(&client.subject(), None, EndReason::BadProxyHeader);
                self.actions.push_back(ConnAction::Close(id));
            }
        }
    }

    /// Begins TLS with a client whose PROXY header has come.
    pub(super) fn begin_tls<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        let Some(tls) = client.tls.take() else { return };
        let held = std::mem::take(&mut client.held);
        let address = client.address;
        if !driver.secure_accepted(id, &tls, Some(address), held.as_slice()) {
            self.close(driver, id);
        }
    }

    /// Sends a client the balancer's own answer and ends its connection.
    pub(super) fn answer_error(&mut self, id: ConnId, status: u16, reason: &str) {
        let BalanceRecord::Client(mut client) = self.records.take(id) else { return };
        self.refuse(id, &mut client, status, reason);
        self.records.insert(id, BalanceRecord::Client(client));
    }

    /// Refuses a client whose record was taken out.
    pub(super) fn refuse(&mut self, id: ConnId, client: &mut ClientRecord, status: u16, reason: &str) {
        if client.exchange.as_ref().is_some_and(|exchange| exchange.route.is_some()) {
            return self.refuse_passthrough(id, client, reason);
        }
        let hsts = self.hsts(client.is_secure);
        let date = self.time.date().to_owned();
        let to = forward::Client {
            is_head: client.exchange.as_ref().is_some_and(|exchange| exchange.is_head),
            hsts: hsts.as_deref(),
            ..forward::Client::unknown(&date)
        };
        self.end_with(id, client, status, reason, |out| {
            forward::write_error(out, status, reason, &to);
        });
    }

    /// Returns the value of Strict-Transport-Security for a client's answers.
    pub(super) fn hsts(&self, has_tls: bool) -> Option<Arc<str>> {
        self.configuration.https.hsts.as_ref().filter(|_| has_tls).cloned()
    }

    /// Answers a client instead of its backend, and ends its connection.
    pub(super) fn end_with(
        &mut self,
        id: ConnId,
        client: &mut ClientRecord,
        status: u16,
        reason: &str,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        match status {
            500.. => self.metrics.backend_errors += 1,
            400.. => self.metrics.client_errors += 1,
            _ => {}
        }
        self.record_refusal(client, status, reason);
        let is_answered = self.drop_exchange(client);
        client.held = HeldInput::default();
        client.phase = Phase::Leaving;
        let body = self.configuration.settings.timeouts.body;
        self.records.set_deadline(id, self.time.after(body));
        if is_answered {
            // Half an answer cannot be followed by another: a reset is the only sign that it is
            // incomplete.
            self.actions.push_back(ConnAction::Cut(id));
            return;
        }
        self.write(&mut client.http, write);
        self.actions.push_back(ConnAction::Flush(id));
    }

    /// Drops a client's exchange and closes its backend connection. Returns whether its answer had
    /// begun.
    pub(super) fn drop_exchange(&mut self, client: &mut ClientRecord) -> bool {
        let Some(exchange) = client.exchange.take() else { return false };
        if let Some(upstream) = exchange.upstream {
            self.actions.push_back(ConnAction::Close(upstream));
        }
        exchange.is_answered
    }

    /// Handles the end of a client's stream.
    pub(super) fn client_finished(&mut self, id: ConnId) {
        let Some(client) = self.records.client(id) else { return };
        client.http.finished = true;
        // Requests that it has sent before are decoded when the last response has left.
        let has_more = client.phase == Phase::Head && !client.held.is_empty();
        if !has_more && has_left(client) {
            return self.actions.push_back(ConnAction::Close(id));
        }
        self.note_gone(id);
    }

    /// Handles the end of a client, which still counts; its record was taken out.
    pub(super) fn client_closed(&mut self, id: ConnId, mut client: ClientRecord) {
        for idle in self.pool.take_of(id) {
            self.actions.push_back(ConnAction::Close(idle));
        }
        if let Some(exchange) = &client.exchange {
            self.record_leaving(exchange);
        }
        self.drop_exchange(&mut client);
    }
}
