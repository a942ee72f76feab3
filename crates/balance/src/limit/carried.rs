//! The state of limits that a successor of the process takes over: the secrets of their keys,
//! and the times that keys owe.

use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::table::RateTable;
use super::{LimitConfig, LimitState, RateLimit, RateLimits};

/// The most keys that move, of all limits together.
const MAX_KEYS: usize = 100_000;

/// A limit for a successor.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct CarriedLimit {
    limit: String,
    /// The meaning of its keys: with the same, the secret goes on, and tunnels are counted by it.
    meaning: String,
    /// Its whole configuration: with the same, rates also go on.
    configuration: String,
    secret: (u64, u64),
    /// Keys with the time at which they have paid, in microseconds of the clock of both processes.
    keys: Vec<(u64, u64)>,
}

fn meaning(config: &LimitConfig) -> String {
    format!("{:?} {:?}", config.on, config.key)
}

impl RateLimits {
    /// Returns what moves of all limits, at `now` in microseconds.
    pub(crate) fn carried(&self, now: u64) -> Vec<CarriedLimit> {
        let mut left = MAX_KEYS;
        let of_one = |limit: &Arc<RateLimit>| {
            let keys = limit.state.table.get().map(|table| table.unpaid(now, left));
            let keys = keys.unwrap_or_default();
            left -= keys.len();
            CarriedLimit {
                limit: limit.config.name.clone(),
                meaning: meaning(&limit.config),
                configuration: format!("{:?}", limit.config),
                secret: limit.state.secret,
                keys,
            }
        };
        self.0.iter().map(of_one).collect()
    }

    /// Returns the limits with what a predecessor has counted, before anything is counted here.
    pub(crate) fn take_over(&self, carried: &[CarriedLimit]) -> Self {
        let of_one = |limit: &Arc<RateLimit>| {
            let config = &limit.config;
            let is_it =
                |it: &&CarriedLimit| it.limit == config.name && it.meaning == meaning(config);
            let Some(before) = carried.iter().find(is_it) else { return Arc::clone(limit) };
            let table = OnceLock::new();
            if before.configuration == format!("{config:?}") && !before.keys.is_empty() {
                let filled = RateTable::new(config.memory);
                before.keys.iter().for_each(|(key, due)| filled.put(*key, *due));
                let _ = table.set(filled);
            }
            let state = LimitState { table, secret: before.secret, ..LimitState::new() };
            let (config, pace) = (config.clone(), limit.pace);
            Arc::new(RateLimit { config, pace, state: Arc::new(state) })
        };
        Self(self.0.iter().map(of_one).collect())
    }
}
