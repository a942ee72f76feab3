//! Requests that wait for a permit at a backend.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use throng_io::{ConnId, Driver};

use super::State;
use super::conn::Phase;
use crate::{Backend, Configuration};

/// The number of clients looked at in a turn, at most, however many wait.
const BUDGET: usize = 64;

/// Clients whose request has no permit yet, the first to come first.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Clients that any backend with a free permit can serve.
    any: VecDeque<ConnId>,
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
    pub(super) fn push(&mut self, id: ConnId, backend: Option<Arc<Backend>>) {
        match backend {
            None => self.any.push_back(id),
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
        self.any.len() + self.bound.values().map(|bound| bound.clients.len()).sum::<usize>()
    }

    /// Returns the clients looked at, ever: for tests, which count the cost of a turn.
    pub(super) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Returns whether the next turn is due at once.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Removes clients that do not wait any more.
    pub(super) fn retain(&mut self, mut waits: impl FnMut(ConnId) -> bool) {
        self.any.retain(|&id| waits(id));
        self.bound.retain(|_, bound| {
            bound.clients.retain(|&id| waits(id));
            !bound.clients.is_empty()
        });
    }

    /// Unbinds all clients: with another list of backends, each may be bound to another one.
    pub(super) fn unbind(&mut self) {
        for bound in std::mem::take(&mut self.bound).into_values() {
            self.any.extend(bound.clients);
        }
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

impl State {
    /// Finds backends for waiting requests, as far as there are permits.
    pub(super) fn serve_waiting<D: Driver>(&mut self, driver: &mut D) {
        self.waiting.has_more = false;
        if self.waiting.is_empty() {
            return;
        }
        let cap = self.configuration.settings.max_handshakes;
        let before = (self.waiting.len(), self.waiting.any.len());
        let mut budget = BUDGET;
        while budget > 0
            && let Some(id) = self.waiting.pop_bound(cap)
        {
            budget -= 1;
            self.serve(driver, id);
        }
        // Once around at most: a client that has tried all backends with a permit goes to the end.
        let mut rest = self.waiting.any.len().min(budget);
        while rest > 0
            && !self.is_full()
            && let Some(id) = self.waiting.any.pop_front()
        {
            (rest, budget) = (rest - 1, budget - 1);
            self.serve(driver, id);
        }
        let has_progressed = self.waiting.len() < before.0 || self.waiting.any.len() < before.1;
        self.waiting.has_more = budget == 0 && has_progressed;
    }

    fn serve<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        self.waiting.looked_at += 1;
        if self.conns.client(id).is_some_and(|client| client.phase == Phase::Queued) {
            self.dispatch(driver, id);
            self.perform(driver);
        }
    }

    /// Returns whether there is a backend that is up, and all of them are full.
    fn is_full(&self) -> bool {
        let Configuration { settings, backends, .. } = &*self.configuration;
        let cap = settings.max_handshakes;
        let mut up = backends
            .iter()
            .map(|target| &target.backend)
            .filter(|backend| backend.state() == crate::State::Up)
            .peekable();
        cap > 0 && up.peek().is_some() && up.all(|backend| backend.handshakes() >= cap)
    }
}
