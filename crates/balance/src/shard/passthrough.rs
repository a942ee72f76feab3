//! Connections that are passed through by the server name in their ClientHello: their TLS is their
//! backend's.
//!
//! Until a backend is connected, such a connection is like a request whose text is the ClientHello:
//! it waits for a permit, and is tried on another backend if one does not accept. Then it is a
//! tunnel of bytes that are not frames.

use throng_io::{ConnId, PassedThrough};

use super::BalanceParts;
use super::actions::ConnAction;
use super::records::{ClientRecord, Phase, EighthTick, Exchange};
use crate::pick::client_key;
use crate::settings::Sticky;

impl BalanceParts {
    /// Handles a client whose TLS is not ended here.
    pub(super) fn on_passed_through(&mut self, id: ConnId, passed: PassedThrough) {
        let PassedThrough { server_name, route, received } = passed;
        let Some(client) = self.records.client(id) else { return };
        let (address, subject) = (client.address.ip(), client.subject());
        if self.places.beyond(id).is_some() {
            // There is no answer that it would understand.
            return self.actions.push_back(ConnAction::Close(id));
        }
        let mut exchange = Exchange::passed_through(route, received, address, self.time.now());
        let settings = &self.configuration.settings;
        if settings.sticky == Sticky::Ip {
            exchange.sticky_key = Some(client_key(&settings.cookie_key, address));
        }
        exchange.access = self.new_passthrough_entry(server_name, subject);
        self.metrics.passed_through += 1;
        let Some(client) = self.records.client(id) else { return };
        client.exchange = Some(Box::new(exchange));
        client.has_asked = true;
        client.phase = Phase::Exchange;
        self.records.set_deadline(id, EighthTick::NEVER);
        self.actions.push_back(ConnAction::Dispatch(id));
    }

    /// Closes a client that no backend is left for. There is no answer that it would understand:
    /// TLS has not begun.
    pub(super) fn refuse_passthrough(&mut self, id: ConnId, client: &mut ClientRecord, reason: &str) {
        self.metrics.backend_errors += 1;
        self.record_unconnected(client, reason);
        self.drop_exchange(client);
        client.phase = Phase::Leaving;
        let body = self.configuration.settings.timeouts.body;
        self.records.set_deadline(id, self.time.after(body));
        self.actions.push_back(ConnAction::Close(id));
    }
}
