//! The part of the list of backends that a successor takes over, since its configuration does not
//! have it.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use throng_io::{Instant, PeerAddress};

use super::ControlCore;
use crate::blocks::Block;
use crate::config::{BackendConfig, server_names};
use crate::health::CarriedStage;
use crate::limit::CarriedLimit;
use crate::pool::DEFAULT_POOL;
use crate::registry::{DesiredState, Entry};
use crate::site::SetWeights;

/// A backend as operators and the backend itself have set it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct CarriedBackend {
    address: PeerAddress,
    /// The name of its pool. An earlier release does not send it.
    #[serde(default = "default_pool")]
    pool: String,
    weight: u32,
    send_proxy: bool,
    passthrough: Vec<String>,
    /// An operator added it.
    is_added: bool,
    /// It registered itself, and may be silent for this long.
    time_to_live: Option<Duration>,
    /// It gets no new clients: it drains, or was removed from the configuration's list.
    drains: bool,
    is_removed: bool,
    /// Its health. An earlier release does not send it.
    #[serde(default)]
    health: CarriedStage,
}

/// State from operators, backends and clients, which no file has.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
#[serde(from = "Form")]
pub struct CarriedState {
    backends: Vec<CarriedBackend>,
    /// The sites for which maintenance was switched.
    maintenance: BTreeMap<String, bool>,
    limits: Vec<CarriedLimit>,
    /// The weights of splits that operators have set.
    set_weights: SetWeights,
    blocks: Vec<Block>,
}

/// The forms of a [`CarriedState`] that were ever sent. The first releases sent a list of backends.
#[derive(Deserialize)]
#[serde(untagged)]
enum Form {
    Backends(Vec<CarriedBackend>),
    All {
        #[serde(default)]
        backends: Vec<CarriedBackend>,
        #[serde(default)]
        maintenance: BTreeMap<String, bool>,
        #[serde(default)]
        limits: Vec<CarriedLimit>,
        #[serde(default)]
        set_weights: SetWeights,
        #[serde(default)]
        blocks: Vec<Block>,
    },
}

impl From<Form> for CarriedState {
    fn from(form: Form) -> Self {
        match form {
            Form::Backends(backends) => Self { backends, ..Self::default() },
            Form::All { backends, maintenance, limits, set_weights, blocks } => {
                Self { backends, maintenance, limits, set_weights, blocks }
            }
        }
    }
}

impl ControlCore {
    /// Returns what a successor takes over, at `now`.
    pub(crate) fn carried(&self, now: Instant) -> CarriedState {
        CarriedState {
            backends: self.carried_backends(),
            maintenance: self.carried_maintenance(),
            limits: self.limits.1.carried(now.0 / 1_000),
            set_weights: self.set_weights.clone(),
            blocks: self.blocks.list(SystemTime::now()),
        }
    }

    fn carried_backends(&self) -> Vec<CarriedBackend> {
        let files = self.listed(&self.pools);
        let listed: HashSet<_> = files.iter().map(|of| (&*of.pool.name, of.file.address)).collect();
        let listed = |entry: &Entry| listed.contains(&(&*entry.pool.name, entry.backend.address()));
        let of_one = |entry: &Entry| CarriedBackend {
            address: entry.backend.address(),
            pool: entry.pool.name.to_string(),
            weight: entry.backend.weight(),
            send_proxy: entry.send_proxy,
            passthrough: entry.passthrough.iter().map(ToString::to_string).collect(),
            is_added: entry.desired.api,
            time_to_live: entry.desired.ttl.map(|ttl| ttl.time_to_live),
            drains: entry.drain.is_some(),
            is_removed: entry.is_being_removed(),
            health: entry.tracker.carried(),
        };
        // A removed backend that is not listed is not in the successor's list anyway.
        let matters = |entry: &&Entry| !entry.is_being_removed() || listed(entry);
        self.entries.iter().filter(matters).map(of_one).collect()
    }

    /// Takes over what was set in a predecessor. What this configuration does not allow is left
    /// out.
    pub(crate) fn take_over(&mut self, carried: CarriedState, now: Instant) {
        let CarriedState { backends, maintenance, limits, set_weights, blocks } = carried;
        self.blocks.take_over(&blocks, SystemTime::now());
        self.set_weights = set_weights;
        self.set_weights.apply_to(self.sites.1.as_deref());
        self.limits.1 = self.limits.1.take_over(&limits);
        self.is_changed = true;
        for (site, on) in maintenance {
            // A site may have another name here.
            let _ = self.set_maintenance(&site, Some(on));
        }
        for carried in backends {
            let CarriedBackend { address, weight, .. } = carried;
            if carried.is_added {
                let passthrough = server_names(carried.passthrough);
                let send_proxy = carried.send_proxy;
                let added = BackendConfig {
                    weight,
                    send_proxy,
                    passthrough,
                    ..BackendConfig::new(address)
                };
                let pool = self.pool_at(&carried.pool).map_or(DEFAULT_POOL, |_| &carried.pool);
                let _ = self.add_to(pool, added, now);
            }
            if let Some(time) = carried.time_to_live {
                // The file's value may be out of the range for backends.
                let pool = self.pool_at(&carried.pool).map_or(DEFAULT_POOL, |_| &carried.pool);
                let _ = self
                    .register_in(pool, address, (weight, Some(time)), now)
                    .or_else(|_| self.register_in(pool, address, (weight, None), now));
            }
            let Some(at) = self.place_of(&carried.pool, address) else { continue };
            if !carried.is_removed {
                self.weigh(at, weight, now);
            }
            match (carried.is_removed, carried.drains) {
                (true, drains) if self.entries[at].desired.ttl.is_none() => {
                    self.entries[at].desired = DesiredState::default();
                    self.leave(at, drains, now);
                }
                (false, true) => self.start_drain(at, None),
                _ => {}
            }
            self.take_over_health(at, carried.health, now);
        }
    }

    /// Returns the index of a predecessor's backend: in its pool, or, if that has another name
    /// here, in the only pool with its address.
    pub(super) fn place_of(&self, pool: &str, address: PeerAddress) -> Option<usize> {
        let is_it = |at: &usize| self.entries[*at].backend.address() == address;
        let mut all = (0..self.entries.len()).filter(is_it);
        let only = || Some(all.next()?).filter(|_| all.next().is_none());
        self.position(pool, address).or_else(only)
    }

    /// Goes on with a predecessor's verdict, so that clients do not try a backend that is down.
    fn take_over_health(&mut self, at: usize, stage: CarriedStage, now: Instant) {
        let entry = &mut self.entries[at];
        entry.tracker.take_over(stage, now);
        if stage == CarriedStage::HalfOpen {
            entry.begin_probation(now);
            entry.grow(now);
        }
        self.settle(at, now);
    }
}

fn default_pool() -> String {
    DEFAULT_POOL.to_owned()
}
