//! Rebalancing: closing the surplus tunnels of backends.

use std::sync::Arc;

use super::{ControlCommand, ControlCore, SERVICE_RESTART};
use crate::backend::State;
use crate::control::error::Error;
use crate::rebalance::{Occupancy, RebalancePlan};
use crate::registry::Entry;
use crate::settings::{CloseOrder, Closing, Settings, Sticky};
use crate::status::{Rebalance, Surplus};

impl ControlCore {
    /// Plans a rebalance and runs it unless `dry_run`.
    pub(crate) fn rebalance(
        &mut self,
        dry_run: bool,
        rate: Option<u32>,
    ) -> Result<Rebalance, Error> {
        self.must_live()?;
        self.must_pick_by_load()?;
        let rate = rate.unwrap_or(self.settings.close_rate);
        if rate == 0 {
            return Err(Error::Rate);
        }
        let occupancy = |entry: &Entry| Occupancy {
            tunnels: entry.backend.tunnels(),
            weight: entry.backend.weight(),
            // A backend with its own TLS cannot serve clients of WebSocket tunnels, and nothing
            // asks clients of its tunnels to reconnect.
            is_up: entry.backend.state() == State::Up && entry.passthrough.is_empty(),
        };
        let occupied: Vec<_> = self.entries.iter().map(occupancy).collect();
        let plan = RebalancePlan::new(&occupied);
        let mut moves = Vec::new();
        for ((entry, occupied), &close) in self.entries.iter().zip(&occupied).zip(&plan.close) {
            if close == 0 {
                continue;
            }
            let backend = &entry.backend;
            moves.push(Surplus { address: backend.address(), tunnels: occupied.tunnels, close });
            if !dry_run {
                // Each backend's part of the rate, so that all end together.
                let part = u64::from(rate) * u64::from(close) / plan.total;
                let closing = Closing {
                    code: SERVICE_RESTART,
                    rate: u32::try_from(part).unwrap_or(u32::MAX).max(1),
                    order: CloseOrder::IdleAndOldest,
                    deadline: None,
                    later: false,
                };
                self.commands.push(ControlCommand::Close(
                    Arc::clone(backend),
                    closing,
                    Some(close),
                ));
            }
        }
        Ok(Rebalance {
            moves,
            total: plan.total,
            rate,
            seconds: plan.seconds(rate),
            spread_before: plan.spread_before,
            spread_after: plan.spread_after,
            dry_run,
        })
    }

    /// Checks that clients whose tunnels are closed reconnect to the backends with the fewest.
    fn must_pick_by_load(&self) -> Result<(), Error> {
        let Settings { pick, sticky, .. } = &self.settings;
        if !pick.looks_at_load() {
            return Err(Error::PickIgnoresLoad { pick: *pick });
        }
        match sticky {
            Sticky::None => Ok(()),
            sticky => Err(Error::StickyIgnoresLoad { sticky: sticky.clone() }),
        }
    }
}
