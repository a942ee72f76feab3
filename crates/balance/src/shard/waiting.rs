//! Requests that wait for a permit at a backend.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use throng_io::{ConnId, Driver};

use super::BalanceParts;
use super::records::Phase;
use crate::backend::Backend;
use crate::settings::Configuration;

/// The number of clients looked at in a turn, at most, however many wait.
const BUDGET: usize = 64;

/// Clients whose request has no permit yet, the first to come first.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Clients that any backend with a free permit can serve, if it serves their route: that of
    /// [`Exchange::route`](super::records::Exchange::route).
    any: BTreeMap<Option<Box<str>>, VecDeque<ConnId>>,
    /// Clients that are bound to one backend, by its key. They are not looked at while it is full.
    bound: BTreeMap<u64, Bound>,
    /// Clients looked at, ever.
    looked_at: u64,
    /// The budget of the last turn was spent, and with progress.
    has_more: bool,
}

#[derive(Debug)]
struct Bound {
    backend: Arc<Backend>,
    clients: VecDeque<ConnId>,
}

impl Bound {
    /// Returns whether it has a free permit, or its clients have to go elsewhere.
    fn is_due(&self, cap: u32) -> bool {
        self.backend.state() != crate::State::Up || cap == 0 || self.backend.handshakes() < cap
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

    pub(super) fn is_empty(&self) -> bool {
        self.any.is_empty() && self.bound.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.unbound() + self.bound.values().map(|bound| bound.clients.len()).sum::<usize>()
    }

    /// Returns the number of clients that are not bound to a backend.
    fn unbound(&self) -> usize {
        self.any.values().map(VecDeque::len).sum()
    }

    /// Returns the clients looked at, ever: for tests, which count the cost of a turn.
    pub(super) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Returns whether the next turn is due at once.
    pub(super) fn has_more(&self) -> bool {
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

    /// Takes the next client of a route.
    fn pop_any(&mut self, route: &Option<Box<str>>) -> Option<ConnId> {
        let clients = self.any.get_mut(route)?;
        let id = clients.pop_front();
        if clients.is_empty() {
            self.any.remove(route);
        }
        id
    }

    /// Takes the next client of a backend with a free permit.
    fn pop_bound(&mut self, cap: u32) -> Option<ConnId> {
        let (&key, bound) = self.bound.iter_mut().find(|(_, bound)| bound.is_due(cap))?;
        let id = bound.clients.pop_front();
        if bound.clients.is_empty() {
            self.bound.remove(&key);
        }
        id
    }
}

impl BalanceParts {
    /// Finds backends for waiting requests, as far as there are permits.
    pub(super) fn serve_waiting<D: Driver>(&mut self, driver: &mut D) {
        self.waiting.has_more = false;
        if self.waiting.is_empty() {
            return;
        }
        let cap = self.configuration.settings.max_handshakes;
        let before = (self.waiting.len(), self.waiting.unbound());
        let mut budget = BUDGET;
        while budget > 0
            && let Some(id) = self.waiting.pop_bound(cap)
        {
            budget -= 1;
            self.serve(driver, id);
        }
        // Each route has its part, so that no crowd of one holds up the others.
        let open = |(route, _): &(&Option<Box<str>>, _)| !self.is_full(route.as_deref());
        let queues = self.waiting.any.iter().filter(open);
        let queues: Vec<_> =
            queues.map(|(route, clients)| (route.clone(), clients.len())).collect();
        let part = (budget / queues.len().max(1)).max(1);
        let mut is_spent = budget == 0;
        for (route, len) in queues {
            // Once around at most: a client that has tried all backends with a permit goes to the
            // end.
            let mut rest = len.min(part).min(budget);
            let is_crowd = rest < len;
            while rest > 0
                && !self.is_full(route.as_deref())
                && let Some(id) = self.waiting.pop_any(&route)
            {
                (rest, budget) = (rest - 1, budget - 1);
                self.serve(driver, id);
            }
            is_spent |= is_crowd && rest == 0;
        }
        let has_progressed = self.waiting.len() < before.0 || self.waiting.unbound() < before.1;
        self.waiting.has_more = is_spent && has_progressed;
    }

    fn serve<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        self.waiting.looked_at += 1;
        if self.records.client(id).is_some_and(|client| client.phase == Phase::Queued) {
            self.dispatch(driver, id);
            self.perform(driver);
        }
    }

    /// Returns whether there is a backend for this route that is up, and all of them are full.
    fn is_full(&self, route: Option<&str>) -> bool {
        let Configuration { settings, backends, .. } = &*self.configuration;
        let cap = settings.max_handshakes;
        let mut up = backends
            .iter()
            .filter(|target| target.serves(route))
            .map(|target| &target.backend)
            .filter(|backend| backend.state() == crate::State::Up)
            .peekable();
        cap > 0 && up.peek().is_some() && up.all(|backend| backend.handshakes() >= cap)
    }
}
