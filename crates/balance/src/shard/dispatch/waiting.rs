//! Requests that wait for a permit at a backend.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use throng_io::ConnId;

use crate::backend::{Backend, State};
use crate::pool::Pool;

/// Clients whose request has no permit yet, the first to come first.
#[derive(Debug, Default)]
pub(in crate::shard) struct Waiting {
    /// Clients that any backend of their pool with a free permit can serve.
    any: Vec<(Arc<Pool>, VecDeque<ConnId>)>,
    /// Clients that are bound to one backend, by its id. They are not examined while it is full.
    bound: BTreeMap<u64, Bound>,
    /// Total clients examined.
    looked_at: u64,
    /// The budget of the last turn was used up, with progress.
    has_more: bool,
}

#[derive(Debug)]
struct Bound {
    pool: Arc<Pool>,
    backend: Arc<Backend>,
    clients: VecDeque<ConnId>,
}

impl Bound {
    /// Returns whether it has a free permit, or its clients must go elsewhere.
    fn is_due(&self) -> bool {
        let cap = self.pool.settings.max_handshakes;
        self.backend.state() != State::Up || cap == 0 || self.backend.handshakes() < cap
    }
}

impl Waiting {
    /// Adds a client, with the one backend that it waits for, or its pool.
    pub(super) fn push(&mut self, id: ConnId, backend: Option<Arc<Backend>>, pool: &Arc<Pool>) {
        match backend {
            None => self.any_of(pool).push_back(id),
            Some(backend) => {
                let new = || Bound {
                    pool: Arc::clone(pool),
                    backend: Arc::clone(&backend),
                    clients: VecDeque::new(),
                };
                self.bound.entry(backend.id()).or_insert_with(new).clients.push_back(id);
            }
        }
    }

    fn any_of(&mut self, pool: &Arc<Pool>) -> &mut VecDeque<ConnId> {
        let known = self.any.iter().position(|(other, _)| Arc::ptr_eq(other, pool));
        let at = known.unwrap_or_else(|| {
            self.any.push((Arc::clone(pool), VecDeque::new()));
            self.any.len() - 1
        });
        &mut self.any[at].1
    }

    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.any.is_empty() && self.bound.is_empty()
    }

    pub(in crate::shard) fn len(&self) -> usize {
        self.unbound() + self.bound.values().map(|bound| bound.clients.len()).sum::<usize>()
    }

    /// Returns the number of clients that are not bound to a backend.
    pub(in crate::shard) fn unbound(&self) -> usize {
        self.any.iter().map(|(_, clients)| clients.len()).sum()
    }

    /// Returns the total of clients examined: for tests, which count the cost of a turn.
    pub(in crate::shard) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Returns whether the next turn is due at once.
    pub(in crate::shard) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Removes clients that no longer wait.
    pub(super) fn retain(&mut self, mut waits: impl FnMut(ConnId) -> bool) {
        self.any.retain_mut(|(_, clients)| {
            clients.retain(|&id| waits(id));
            !clients.is_empty()
        });
        self.bound.retain(|_, bound| {
            bound.clients.retain(|&id| waits(id));
            !bound.clients.is_empty()
        });
    }

    /// Unbinds all clients: with another list of backends, each may be bound to another one.
    /// `current` returns the pool of the new list.
    pub(super) fn unbind(&mut self, current: impl Fn(&Arc<Pool>) -> Arc<Pool>) {
        let bound = std::mem::take(&mut self.bound).into_values();
        let bound = bound.map(|bound| (bound.pool, bound.clients));
        for (pool, clients) in std::mem::take(&mut self.any).into_iter().chain(bound) {
            self.any_of(&current(&pool)).extend(clients);
        }
    }

    /// Returns the pools with a backend that is not full, each with the number of its clients.
    pub(in crate::shard) fn open_pools(&self) -> Vec<(Arc<Pool>, usize)> {
        let open = self.any.iter().filter(|(pool, _)| !pool.is_full());
        open.map(|(pool, clients)| (Arc::clone(pool), clients.len())).collect()
    }

    /// Counts a client that is examined.
    pub(in crate::shard) fn count_look(&mut self) {
        self.looked_at += 1;
    }

    /// Records whether the next turn is due at once.
    pub(in crate::shard) fn set_more(&mut self, has_more: bool) {
        self.has_more = has_more;
    }

    /// Takes the next client of a pool.
    pub(in crate::shard) fn pop_any(&mut self, pool: &Arc<Pool>) -> Option<ConnId> {
        let at = self.any.iter().position(|(other, _)| Arc::ptr_eq(other, pool))?;
        let id = self.any[at].1.pop_front();
        if self.any[at].1.is_empty() {
            self.any.remove(at);
        }
        id
    }

    /// Takes the next client of a backend with a free permit.
    pub(in crate::shard) fn pop_bound(&mut self) -> Option<ConnId> {
        let (&key, bound) = self.bound.iter_mut().find(|(_, bound)| bound.is_due())?;
        let id = bound.clients.pop_front();
        if bound.clients.is_empty() {
            self.bound.remove(&key);
        }
        id
    }
}
