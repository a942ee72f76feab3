//! Requests that wait for a permit at a backend.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use throng_io::ConnId;

use crate::backend::{Backend, State};
use crate::shard::rules::BalanceRules;

/// Clients whose request has no permit yet, the first to come first.
#[derive(Debug, Default)]
pub(in crate::shard) struct Waiting {
    /// Clients that any backend with a free permit can serve, if it serves their route,
    /// [`RequestFacts::route`](super::records::RequestFacts::route).
    any: BTreeMap<Option<Box<str>>, VecDeque<ConnId>>,
    /// Clients that are bound to one backend, by its key. They are not examined while it is full.
    bound: BTreeMap<u64, Bound>,
    /// Total clients examined.
    looked_at: u64,
    /// The budget of the last turn was used up, with progress.
    has_more: bool,
}

#[derive(Debug)]
struct Bound {
    backend: Arc<Backend>,
    clients: VecDeque<ConnId>,
}

impl Bound {
    /// Returns whether it has a free permit, or its clients must go elsewhere.
    fn is_due(&self, cap: u32) -> bool {
        self.backend.state() != State::Up || cap == 0 || self.backend.handshakes() < cap
    }
}

impl Waiting {
    /// Adds a client, with the one backend that it waits for, or its route.
    pub(super) fn push(&mut self, id: ConnId, backend: Option<Arc<Backend>>, route: Option<&str>) {
        match backend {
            None => self.any.entry(route.map(Box::from)).or_default().push_back(id),
            Some(backend) => {
                let new = || Bound { backend: Arc::clone(&backend), clients: VecDeque::new() };
                self.bound.entry(backend.key()).or_insert_with(new).clients.push_back(id);
            }
        }
    }

    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.any.is_empty() && self.bound.is_empty()
    }

    pub(in crate::shard) fn len(&self) -> usize {
        self.unbound() + self.bound.values().map(|bound| bound.clients.len()).sum::<usize>()
    }

    /// Returns the number of clients that are not bound to a backend.
    pub(in crate::shard) fn unbound(&self) -> usize {
        self.any.values().map(VecDeque::len).sum()
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
        self.any.retain(|_, clients| {
            clients.retain(|&id| waits(id));
            !clients.is_empty()
        });
        self.bound.retain(|_, bound| {
            bound.clients.retain(|&id| waits(id));
            !bound.clients.is_empty()
        });
    }

    /// Unbinds all clients: with another list of backends, each may be bound to another one.
    pub(super) fn unbind(&mut self, route: impl Fn(ConnId) -> Option<Box<str>>) {
        for bound in std::mem::take(&mut self.bound).into_values() {
            for id in bound.clients {
                self.any.entry(route(id)).or_default().push_back(id);
            }
        }
    }

    /// Returns the routes with a backend that is not full, each with the number of its clients.
    pub(in crate::shard) fn open_routes(
        &self,
        rules: &BalanceRules,
    ) -> Vec<(Option<Box<str>>, usize)> {
        let open = |(route, _): &(&Option<Box<str>>, _)| !rules.is_full(route.as_deref());
        let routes = self.any.iter().filter(open);
        routes.map(|(route, clients)| (route.clone(), clients.len())).collect()
    }

    /// Counts a client that is examined.
    pub(in crate::shard) fn count_look(&mut self) {
        self.looked_at += 1;
    }

    /// Records whether the next turn is due at once.
    pub(in crate::shard) fn set_more(&mut self, has_more: bool) {
        self.has_more = has_more;
    }

    /// Takes the next client of a route.
    pub(in crate::shard) fn pop_any(&mut self, route: &Option<Box<str>>) -> Option<ConnId> {
        let clients = self.any.get_mut(route)?;
        let id = clients.pop_front();
        if clients.is_empty() {
            self.any.remove(route);
        }
        id
    }

    /// Takes the next client of a backend with a free permit.
    pub(in crate::shard) fn pop_bound(&mut self, cap: u32) -> Option<ConnId> {
        let (&key, bound) = self.bound.iter_mut().find(|(_, bound)| bound.is_due(cap))?;
        let id = bound.clients.pop_front();
        if bound.clients.is_empty() {
            self.bound.remove(&key);
        }
        id
    }
}
