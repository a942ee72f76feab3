//! New clients: admission at the caps, and room for the next at the limit.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_engine::{AddressKey, HeldInput};
use throng_io::{ConnId, Driver, ListenerId};
use throng_proto::http1;

use super::State;
use super::admission::Full;
use super::conn::{Client, Conn, HttpSide, Phase};

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
            return;
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
            hangs_up: false,
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
        let of_address = match self.configuration.settings.max_connections_per_address {
            _ if is_proxy => None,
            Some(0) => None,
            Some(most) => Some(most),
            // Clients of this machine, such as a proxy in front, are trusted.
            None if address.ip().to_canonical().is_loopback() => None,
            None => Some((most / 4).max(1)),
        };
        let admission = Arc::clone(&self.admission);
        let enter = || admission.enter(most, address.ip(), of_address);
        match enter() {
            Err(full) if self.make_room(driver, full, admission.key(address.ip())) => enter(),
            outcome => outcome,
        }
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
        self.close(driver, id);
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
    pub(super) fn give_room_back(&mut self, id: ConnId) {
        self.metrics.connections -= 1;
        let counted = self.counted.take(id.slot());
        self.admission.leave(counted);
    }
}
