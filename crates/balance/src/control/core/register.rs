//! Backends that register themselves.

use std::sync::Arc;
use std::time::Duration;

use throng_io::{Instant, PeerAddress};

use super::{ControlCore, check_weight};
use crate::config::BackendConfig;
use crate::control::error::Error;
use crate::pool::DEFAULT_POOL;
use crate::registry::{DesiredState, RegistrationTtl};

impl ControlCore {
    /// Registers a backend. Returns how long it may stay without a heartbeat.
    pub(crate) fn register(
        &mut self,
        address: PeerAddress,
        weight: u32,
        time_to_live: Option<Duration>,
        now: Instant,
    ) -> Result<Duration, Error> {
        self.register_in(DEFAULT_POOL, address, (weight, time_to_live), now)
    }

    /// Does the same for a backend of this pool.
    pub(crate) fn register_in(
        &mut self,
        pool: &str,
        address: impl Into<PeerAddress>,
        (weight, time_to_live): (u32, Option<Duration>),
        now: Instant,
    ) -> Result<Duration, Error> {
        let address = address.into();
        self.must_live()?;
        let register = self.register.as_ref().ok_or(Error::RegistrationIsOff)?;
        let time = time_to_live.unwrap_or(register.time_to_live);
        // The file's value was checked there, and may be any.
        let sensible = Duration::from_secs(1)..=Duration::from_secs(3600);
        if time_to_live.is_some_and(|time| !sensible.contains(&time)) {
            return Err(Error::TimeToLive { time });
        }
        check_weight(weight)?;
        if !address.socket_addr().is_some_and(|address| register.admits(address.ip())) {
            let remedy =
                "no backend may register itself there: name its network in register.networks";
            return Err(Error::Address { address, remedy: remedy.to_owned() });
        }
        // Also for a known backend: the machine may have got its address since.
        self.check_address(address)?;
        let ttl = RegistrationTtl { time_to_live: time, expires: now.after(time) };
        let of_pool = self.pool_at(pool)?;
        let position = self.position(pool, address);
        let position = position.filter(|&at| !self.entries[at].is_being_removed());
        let Some(at) = position else {
            self.check_room(pool, address)?;
            let desired = DesiredState { ttl: Some(ttl), ..DesiredState::default() };
            // After a removal by an operator it comes back with the file's settings, including its
            // TLS and the connections passed through to it; after mere silence, unchanged.
            let known = self.known(of_pool, address).or_else(|| self.silent(pool, address));
            let known = known.unwrap_or_else(|| BackendConfig::new(address));
            let pool = Arc::clone(&self.pools[of_pool].rules);
            self.enlist(&pool, BackendConfig { weight, ..known }, desired, now);
            return Ok(time);
        };
        let entry = &mut self.entries[at];
        entry.desired.ttl = Some(ttl);
        // A backend that registers is a process that has just begun, independent of its past.
        entry.tracker = crate::health::HealthTracker::new();
        if entry.desired.source() == "registered" && entry.backend.weight() != weight {
            self.weigh(at, weight, now);
        }
        self.settle(at, now);
        Ok(time)
    }

    /// Records a backend's heartbeat.
    pub(crate) fn heartbeat(
        &mut self,
        address: impl Into<PeerAddress>,
        now: Instant,
    ) -> Result<(), Error> {
        self.must_live()?;
        if self.register.is_none() {
            return Err(Error::RegistrationIsOff);
        }
        for at in self.registrations(address.into())? {
            if let Some(ttl) = &mut self.entries[at].desired.ttl {
                ttl.expires = now.after(ttl.time_to_live);
            }
        }
        Ok(())
    }

    /// Ends a backend's registration.
    pub(crate) fn deregister(&mut self, address: impl Into<PeerAddress>) -> Result<(), Error> {
        self.must_live()?;
        for at in self.registrations(address.into())? {
            let entry = &mut self.entries[at];
            entry.desired.ttl = None;
            self.names_changed = true;
            if entry.is_being_removed() && entry.drain.is_none() {
                self.start_drain(at, None);
            }
        }
        Ok(())
    }

    /// Returns the settings of the backend with that address if it is still offered, although
    /// nothing wants it in the list.
    fn silent(&self, pool: &str, address: PeerAddress) -> Option<BackendConfig> {
        let entry = self.position(pool, address).map(|at| &self.entries[at])?;
        entry.is_offered().then(|| BackendConfig {
            send_proxy: entry.send_proxy,
            tls: entry.tls,
            tls_name: entry.tls_name.clone(),
            passthrough: Arc::clone(&entry.passthrough),
            max_connections: entry.max_connections,
            backup: entry.backup,
            ..BackendConfig::new(address)
        })
    }

    /// Returns the backends that the process at an address has registered, in all pools.
    fn registrations(&self, address: PeerAddress) -> Result<Vec<usize>, Error> {
        let is_it = |at: &usize| {
            let entry = &self.entries[*at];
            entry.backend.address() == address && entry.desired.ttl.is_some()
        };
        let all: Vec<usize> = (0..self.entries.len()).filter(is_it).collect();
        if all.is_empty() { Err(Error::NotRegistered { address }) } else { Ok(all) }
    }
}
