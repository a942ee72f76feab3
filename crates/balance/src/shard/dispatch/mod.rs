//! Dispatch: the choice of a backend for each request, and the requests that wait for one.

mod choice;
mod waiting;

use std::net::SocketAddr;
use std::sync::Arc;

use throng_engine::random::Random;
use throng_io::{ConnId, Instant, PeerAddress};

pub(super) use self::choice::Choice;
use self::waiting::Waiting;
use super::records::{BalanceRecord, BalanceRecords, Phase};
use super::rules::BalanceRules;
use crate::backend::Backend;
use crate::pick::Picker;
use crate::pool::Pool;
use crate::settings::next_source;

/// The picker of backends, and the clients whose requests wait for a permit.
pub(super) struct Dispatch {
    picker: Picker,
    waiting: Waiting,
    /// The index of the next source, which all pools share.
    source: usize,
}

impl Dispatch {
    pub(super) fn new(seed: u64) -> Self {
        Self { picker: Picker::new(seed), waiting: Waiting::default(), source: 0 }
    }

    /// Returns the address to connect from to `backend` of this pool, if one is configured.
    pub(super) fn next_source(&mut self, pool: &Pool, backend: PeerAddress) -> Option<SocketAddr> {
        next_source(&pool.settings.sources, &mut self.source, backend)
    }

    /// Returns its random numbers.
    pub(super) fn random(&mut self) -> &mut Random {
        self.picker.random()
    }

    /// Queues a request that waits `since` a time for permits: of `backend`, or of any in its pool.
    pub(super) fn enqueue(
        &mut self,
        id: ConnId,
        backend: Option<Arc<Backend>>,
        pool: &Arc<Pool>,
        since: Instant,
    ) {
        self.waiting.push(id, backend, pool, since);
    }

    /// Returns the clients that wait.
    pub(super) fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// Returns the clients that wait, to serve them.
    pub(super) fn waiting_mut(&mut self) -> &mut Waiting {
        &mut self.waiting
    }

    /// Unbinds the clients that wait: with another list of backends, each may be bound to another.
    pub(super) fn unbind(&mut self, records: &mut BalanceRecords, rules: &BalanceRules) {
        for (since, id) in self.waiting.take_all() {
            let exchange = records.client(id).and_then(|client| client.exchange.as_mut());
            // A client that has gone since is forgotten.
            let Some(exchange) = exchange else { continue };
            let pool = Arc::clone(rules.configuration().pools.current(exchange.facts().pool()));
            if exchange.enter_queue(&pool, None, since).is_ok() {
                self.waiting.push(id, None, &pool, since);
            }
        }
    }

    /// Removes clients that no longer wait.
    pub(super) fn forget_left(&mut self, records: &BalanceRecords) {
        self.waiting.retain(|id| match records.at(id.slot()) {
            Some((at, BalanceRecord::Client(client))) => at == id && client.phase == Phase::Queued,
            _ => false,
        });
    }
}
