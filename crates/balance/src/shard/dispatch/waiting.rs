//! Requests that wait for a permit at a backend.

use std::collections::VecDeque;
use std::sync::Arc;

use throng_io::{ConnId, Instant};

use crate::backend::{Backend, State};
use crate::pool::Pool;
use crate::wait_line::{Announced, WaitLine};

/// Clients whose request has no permit yet.
#[derive(Debug, Default)]
pub(in crate::shard) struct Waiting {
    lines: Vec<Line>,
    /// Total clients examined.
    looked_at: u64,
    /// The budget of the last turn was used up, with progress.
    has_more: bool,
}

/// Clients that wait for the same, the first to come first.
#[derive(Debug)]
struct Line {
    pool: Arc<Pool>,
    /// The one backend that they wait for; `None`: any of the pool with a free permit.
    backend: Option<Arc<Backend>>,
    clients: VecDeque<(Instant, ConnId)>,
    announced: Announced,
    /// The number of them that may still be examined in this turn.
    due: usize,
}

impl Line {
    fn is_for(&self, pool: &Arc<Pool>, backend: Option<&Arc<Backend>>) -> bool {
        match (&self.backend, backend) {
            (None, None) => Arc::ptr_eq(&self.pool, pool),
            (Some(own), Some(other)) => Arc::ptr_eq(own, other),
            _ => false,
        }
    }

    /// Returns its part over all shards.
    fn shared(&self) -> &WaitLine {
        match &self.backend {
            None => self.pool.load().any(),
            Some(backend) => backend.line(),
        }
    }

    /// Returns whether there is a free permit, or its clients must go elsewhere.
    fn has_permits(&self) -> bool {
        match &self.backend {
            None => !self.pool.is_full(),
            Some(backend) => {
                backend.state() != State::Up
                    || backend.has_free_permits(self.pool.settings.max_handshakes)
            }
        }
    }

    /// Returns whether its first client may be served now.
    fn is_open(&mut self) -> bool {
        let Some(&(first, _)) = self.clients.front() else { return false };
        let Self { pool, backend, announced, .. } = self;
        let shared = match backend {
            None => pool.load().any(),
            Some(backend) => backend.line(),
        };
        announced.announce(shared, first) && self.has_permits()
    }
}

/// Another shard does not wait for a line that is gone.
impl Drop for Line {
    fn drop(&mut self) {
        let mut announced = std::mem::replace(&mut self.announced, Announced::nothing());
        announced.withdraw(self.shared());
    }
}

impl Waiting {
    /// Adds a client that waits `since` a time, with the one backend that it waits for, or its
    /// pool.
    pub(super) fn push(
        &mut self,
        id: ConnId,
        backend: Option<Arc<Backend>>,
        pool: &Arc<Pool>,
        since: Instant,
    ) {
        let known = self.lines.iter().position(|line| line.is_for(pool, backend.as_ref()));
        let at = known.unwrap_or_else(|| {
            let (pool, clients, announced) =
                (Arc::clone(pool), VecDeque::new(), Announced::nothing());
            self.lines.push(Line { pool, backend, clients, announced, due: 0 });
            self.lines.len() - 1
        });
        self.lines[at].clients.push_back((since, id));
    }

    pub(in crate::shard) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(in crate::shard) fn len(&self) -> usize {
        self.lines.iter().map(|line| line.clients.len()).sum()
    }

    /// Returns the number of clients that are not bound to a backend.
    pub(in crate::shard) fn unbound(&self) -> usize {
        let unbound = self.lines.iter().filter(|line| line.backend.is_none());
        unbound.map(|line| line.clients.len()).sum()
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
        self.lines.retain_mut(|line| {
            line.clients.retain(|&(_, id)| waits(id));
            !line.clients.is_empty()
        });
    }

    /// Takes all clients, the first to come first.
    pub(super) fn take_all(&mut self) -> Vec<(Instant, ConnId)> {
        let mut all = Vec::new();
        for mut line in std::mem::take(&mut self.lines) {
            all.extend(std::mem::take(&mut line.clients));
        }
        all.sort_by_key(|(since, _)| since.0);
        all
    }

    /// Begins a turn in which at most about `budget` clients are examined. Each line with a free
    /// permit has its part, so that no crowd of one holds up the others.
    pub(in crate::shard) fn begin_turn(&mut self, budget: usize) {
        let open: Vec<bool> = self.lines.iter_mut().map(Line::is_open).collect();
        let part = (budget / open.iter().filter(|is_open| **is_open).count().max(1)).max(1);
        for (line, is_open) in self.lines.iter_mut().zip(open) {
            // Once around at most: a client that has tried all backends with a permit goes to the
            // end.
            line.due = if is_open { line.clients.len().min(part) } else { 0 };
        }
    }

    /// Takes the next client to be examined in this turn: of the lines with a free permit, the
    /// first to come.
    pub(in crate::shard) fn next_due(&mut self) -> Option<ConnId> {
        loop {
            let due = self.lines.iter().enumerate().filter(|(_, line)| line.due > 0);
            let (at, _) =
                due.min_by_key(|(_, line)| line.clients.front().map(|first| first.0.0))?;
            let line = &mut self.lines[at];
            if !line.is_open() {
                line.due = 0;
                continue;
            }
            line.due -= 1;
            let first = line.clients.pop_front();
            if line.clients.is_empty() {
                self.lines.remove(at);
            }
            self.looked_at += 1;
            return first.map(|(_, id)| id);
        }
    }

    /// Ends a turn. `has_progressed`: some clients were served. If a part was used up, the next
    /// turn is due at once.
    pub(in crate::shard) fn end_turn(&mut self, has_progressed: bool) {
        let is_spent = self.lines.iter_mut().any(|line| line.is_open());
        self.has_more = is_spent && has_progressed;
    }
}
