//! New clients, and their admission at the limits.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use throng_engine::{AddressKey, HeldInput};
use throng_io::{ConnId, Driver, ListenerId};
use throng_proto::http1;

use super::BalanceParts;
use super::admission::Full;
use super::records::{ClientRecord, BalanceRecord, HttpSide, Phase};
use crate::access::{EndReason, Subject};

impl BalanceParts {
    /// Takes a client that has connected; one beyond a limit for one request, to refuse that.
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
        let (counted, beyond) = match self.admit(driver, address, is_proxy) {
            Ok(counted) => (counted, None),
            Err(full) => (None, Some(full)),
        };
        if let Some(full) = beyond {
            self.count_refused(full);
        }
        let phase = if settings.accept_proxy { Phase::Proxy } else { Phase::Head };
        let deadline = self.time.after(settings.timeouts.head);
        let Ok(id) = driver.adopt(socket) else {
            if beyond.is_none() {
                self.admission.leave(counted);
                self.metrics.refused += 1;
            }
            return;
        };
        match beyond {
            None => {
                self.counted.insert(id.slot(), counted);
                self.places.enter(id, counted, driver.now());
                self.metrics.accepted += 1;
            }
            Some(full) => {
                if let Some(oldest) = self.enter_reserve(id, full) {
                    self.close_for_another(driver, oldest);
                }
            }
        }
        let mut tls = self.tls.get(usize::from(listener.0)).cloned().flatten();
        let is_due_tls = tls.is_some();
        if phase != Phase::Proxy
            && let Some(tls) = tls.take()
        {
            driver.secure_accepted(id, &tls, Some(address), &[]);
        }
        self.metrics.connections += 1;
        let client = ClientRecord {
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
            idle_since: self.time.tick(),
            is_listed: false,
            held: HeldInput::default(),
            dropped: None,
        };
        self.records.insert(id, BalanceRecord::Client(Box::new(client)));
        self.records.set_deadline(id, deadline);
    }

    /// Counts one more client. At a limit another one makes room: of all, or of its address.
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
        self.enter_or_make_room(driver, address.ip(), enter)
    }

    /// Returns the limit of connections from an address that is no proxy's, if it has one.
    pub(super) fn most_of_address(&self, address: IpAddr) -> Option<usize> {
        match self.configuration.settings.max_connections_per_address {
            Some(0) => None,
            Some(most) => Some(most),
            // Clients of this machine, such as a proxy in front, are trusted.
            None if address.to_canonical().is_loopback() => None,
            None => Some((self.most_connections / 4).max(1)),
        }
    }

    /// Counts a client that was refused at a limit, or ended so that another one could connect.
    pub(super) fn count_refused(&mut self, full: Full) {
        self.metrics.refused += 1;
        match full {
            Full::All => self.metrics.refused_full += 1,
            Full::Address => self.metrics.refused_full_address += 1,
        }
    }

    /// Uncounts the client connection `id`, which has ended.
    pub(super) fn release_admission(&mut self, id: ConnId) {
        self.metrics.connections -= 1;
        if self.places.leave_reserve(id) {
            return;
        }
        let counted = self.counted.take(id.slot());
        self.admission.leave(counted);
    }
}
