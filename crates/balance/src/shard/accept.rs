//! New clients: admission at the caps, and room for the next at the limit.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use throng_engine::{AddressKey, HeldInput};
use throng_io::{ConnId, Driver, ListenerId};
use throng_proto::http1;

use super::admission::Full;
use super::conn::{Client, Conn, HttpSide, Phase};
use super::{Action, State};
use crate::access::{EndReason, Subject};

impl State {
    /// Takes a client that has connected, or refuses it at a cap.
    pub(super) fn accept<D: Driver>(
        &mut self,
        driver: &mut D,
        socket: D::Socket,
        address: SocketAddr,
        listener: ListenerId,
    ) {
        let configuration = Arc::clone(&self.configuration);
        let settings = &configuration.settings;
        let is_proxy =
            settings.trusted_proxies.iter().any(|network| network.contains(address.ip()));
        if settings.accept_proxy && !is_proxy {
            self.metrics.refused += 1;
            self.metrics.proxy_errors += 1;
            let client = Some(address.ip().to_canonical());
            let subject = Subject { session: None, peer: Some(address), client };
            return self.report_end(&subject, None, EndReason::UntrustedProxy);
        }
        let counted = match self.admit(driver, address, is_proxy) {
            Ok(counted) => counted,
            Err(full) => return self.count_refused(full),
        };
        let phase = if settings.accept_proxy { Phase::Proxy } else { Phase::Head };
        let deadline = self.tick.after(settings.timeouts.head);
        let Ok(id) = driver.adopt(socket) else {
            self.admission.leave(counted);
            self.metrics.refused += 1;
            return;
        };
        self.counted.insert(id.slot(), counted);
        let mut tls = self.tls.get(usize::from(listener.0)).cloned().flatten();
        let is_due_tls = tls.is_some();
        if phase != Phase::Proxy
            && let Some(tls) = tls.take()
        {
            driver.secure_accepted(id, &tls, Some(address), &[]);
        }
        self.new_clients.push(id);
        self.new_clients_of_address.push(counted, id, driver.now());
        self.metrics.accepted += 1;
        self.metrics.connections += 1;
        let client = Client {
            id,
            peer: address,
            http: HttpSide::default(),
            decoder: http1::Decoder::new(),
            address,
            phase,
            exchange: None,
            is_secure: false,
            is_due_tls,
            tls,
            certificate: None,
            server_name: None,
            has_asked: false,
            has_sent_last: false,
            held: HeldInput::default(),
            dropped: None,
        };
        self.conns.insert(id, Conn::Client(Box::new(client)));
        self.conns.set_deadline(id, deadline);
    }

    /// Counts one more client. At a limit, the oldest client that has not sent a whole request is
    /// closed: of all, or of its address.
    fn admit<D: Driver>(
        &mut self,
        driver: &mut D,
        address: SocketAddr,
        is_proxy: bool,
    ) -> Result<Option<AddressKey>, Full> {
        let most = self.most_connections;
        let of_address = if is_proxy { None } else { self.most_of_address(address.ip()) };
        let admission = Arc::clone(&self.admission);
        let enter = || admission.enter(most, address.ip(), of_address);
        match enter() {
            Err(full) if self.make_room(driver, full, admission.key(address.ip())) => enter(),
            outcome => outcome,
        }
    }

    /// Returns the limit of connections from an address that is no proxy's, if it has one.
    fn most_of_address(&self, address: IpAddr) -> Option<usize> {
        match self.configuration.settings.max_connections_per_address {
            Some(0) => None,
            Some(most) => Some(most),
            // Clients of this machine, such as a proxy in front, are trusted.
            None if address.to_canonical().is_loopback() => None,
            None => Some((self.most_connections / 4).max(1)),
        }
    }

    /// Counts a client for the address that its PROXY header names. At the limit of that address,
    /// its oldest client that has not sent a whole request makes room. Returns false if there is
    /// none: the new one is to be closed.
    pub(super) fn count_behind_proxy(&mut self, id: ConnId, address: IpAddr) -> bool {
        if self.trusts(address) {
            return true;
        }
        let Some(most) = self.most_of_address(address) else { return true };
        let key = match self.admission.enter_address(address, most) {
            Ok(key) => key,
            Err(full) => {
                self.count_refused(full);
                let key = self.admission.key(address);
                let conns = &self.conns;
                let is_new = |id| conns.is_new_client(id);
                let oldest = self.new_clients_of_address.pop_oldest(key, self.now, is_new);
                let Some(oldest) = oldest else { return false };
                self.actions.push_back(Action::Close(oldest));
                // The new one takes its place in the count.
                self.counted.take(oldest.slot())
            }
        };
        self.counted.insert(id.slot(), key);
        self.new_clients_of_address.push(key, id, self.now);
        true
    }

    /// Closes the oldest client that has not sent a whole request: of all, or of the address with
    /// this key, of those that have had time to. Returns false if there is none.
    fn make_room<D: Driver>(
        &mut self,
        driver: &mut D,
        full: Full,
        key: Option<AddressKey>,
    ) -> bool {
        let conns = &self.conns;
        let is_new = |id| conns.is_new_client(id);
        let oldest = match full {
            Full::All => self.new_clients.pop_oldest(is_new),
            Full::Address => self.new_clients_of_address.pop_oldest(key, driver.now(), is_new),
        };
        let Some(id) = oldest else { return false };
        self.count_refused(full);
        self.close_for_another(driver, id);
        true
    }

    /// Counts a client that was refused at a limit, or ended so that another one could connect.
    fn count_refused(&mut self, full: Full) {
        self.metrics.refused += 1;
        match full {
            Full::All => self.metrics.refused_full += 1,
            Full::Address => self.metrics.refused_full_address += 1,
        }
    }

    /// Uncounts the client connection `id`, which has ended.
    pub(super) fn release_admission(&mut self, id: ConnId) {
        self.metrics.connections -= 1;
        let counted = self.counted.take(id.slot());
        self.admission.leave(counted);
    }
}
