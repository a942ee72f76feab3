//! Rebalancing: closing the surplus tunnels of backends.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{ControlCommand, ControlCore, SERVICE_RESTART};
use crate::backend::State;
use crate::control::error::Error;
use crate::pool::PoolSettings;
use crate::rebalance::{Occupancy, RebalancePlan};
use crate::registry::{Entry, PoolRules};
use crate::settings::{CloseOrder, Closing, Sticky};
use crate::status::{Rebalance, Surplus};

impl ControlCore {
    /// Plans a rebalance and runs it unless `dry_run`.
    pub(crate) fn rebalance(
        &mut self,
        dry_run: bool,
        rate: Option<u32>,
    ) -> Result<Rebalance, Error> {
        self.rebalance_of(None, dry_run, rate)
    }

    /// Does the same for the backends of a pool alone.
    pub(crate) fn rebalance_of(
        &mut self,
        pool: Option<&str>,
        dry_run: bool,
        rate: Option<u32>,
    ) -> Result<Rebalance, Error> {
        self.must_live()?;
        if let Some(pool) = pool {
            self.pool_at(pool)?;
        }
        let is_meant = |entry: &&Entry| pool.is_none_or(|pool| entry.is_in(pool));
        let meant = self.entries.iter().filter(is_meant);
        let names: BTreeSet<_> = meant.map(|entry| &entry.pool.name).collect();
        let rules = |name: &Arc<str>| {
            self.entries.iter().find(|it| it.pool.name == *name).map(|it| &it.pool)
        };
        let pools: Vec<_> = names.into_iter().filter_map(rules).cloned().collect();
        let (able, unable): (Vec<_>, Vec<_>) =
            pools.iter().partition(|pool| must_pick_by_load(&pool.settings).is_ok());
        if let ([], [pool, ..]) = (able.as_slice(), unable.as_slice()) {
            must_pick_by_load(&pool.settings)?;
        }
        let rate = rate.unwrap_or(self.settings.close_rate);
        if rate == 0 {
            return Err(Error::Rate);
        }
        let plans: Vec<_> = able.into_iter().map(|pool| self.plan(pool)).collect();
        let total = plans.iter().map(|(_, plan)| plan.total).sum();
        let mut moves = Vec::new();
        for (places, plan) in &plans {
            for (&at, &close) in places.iter().zip(&plan.close).filter(|(_, close)| **close > 0) {
                let backend = &self.entries[at].backend;
                moves.push(Surplus {
                    address: backend.address(),
                    tunnels: backend.tunnels(),
                    close,
                });
                if dry_run {
                    continue;
                }
                // Each backend's part of the rate, so that all end together.
                let part = u64::from(rate) * u64::from(close) / total;
                let closing = Closing {
                    code: SERVICE_RESTART,
                    rate: u32::try_from(part).unwrap_or(u32::MAX).max(1),
                    order: CloseOrder::IdleAndOldest,
                    deadline: None,
                    later: false,
                };
                let close = ControlCommand::Close(Arc::clone(backend), closing, Some(close));
                self.commands.push(close);
            }
        }
        let spread = |of: fn(&RebalancePlan) -> f64| {
            plans.iter().map(|(_, plan)| of(plan)).fold(0.0, f64::max)
        };
        Ok(Rebalance {
            moves,
            total,
            rate,
            seconds: total.div_ceil(rate.into()),
            spread_before: spread(|plan| plan.spread_before),
            spread_after: spread(|plan| plan.spread_after),
            dry_run,
        })
    }

    /// Returns the plan for a pool, and the places of its backends.
    fn plan(&self, pool: &PoolRules) -> (Vec<usize>, RebalancePlan) {
        let mut places: Vec<usize> = (0..self.entries.len()).collect();
        places.retain(|&at| self.entries[at].is_in(&pool.name));
        let occupancy = |&at: &usize| {
            let entry = &self.entries[at];
            Occupancy {
                tunnels: entry.backend.tunnels(),
                weight: entry.backend.weight(),
                // A backend with its own TLS cannot serve clients of WebSocket tunnels, and nothing
                // asks clients of its tunnels to reconnect; a backup gets none while others are up.
                is_up: entry.backend.state() == State::Up
                    && entry.passthrough.is_empty()
                    && !entry.backup,
            }
        };
        let occupied: Vec<_> = places.iter().map(occupancy).collect();
        (places, RebalancePlan::new(&occupied))
    }
}

/// Checks that clients whose tunnels are closed reconnect to the backends with the fewest.
fn must_pick_by_load(settings: &PoolSettings) -> Result<(), Error> {
    if !settings.pick.looks_at_load() {
        return Err(Error::PickIgnoresLoad { pick: settings.pick });
    }
    match &settings.sticky {
        Sticky::None => Ok(()),
        sticky => Err(Error::StickyIgnoresLoad { sticky: sticky.clone() }),
    }
}
