//! Choice of a backend for a request, with a permit of it.

use std::sync::Arc;

use super::Dispatch;
use crate::backend::{Backend, State};
use crate::forward::Bound;
use crate::guards::Permits;
use crate::pick::{has_candidate, pick_bound, pick_by_key};
use crate::pool::Pool;
use crate::settings::Pick;
use crate::shard::mail::BalanceMail;
use crate::shard::records::Exchange;
use crate::shard::rules::BalanceRules;

/// The result of a search.
pub(in crate::shard) enum Choice {
    /// The index in the pool's list, with permits; the pool, if it is not the request's own.
    Backend(usize, Permits, Option<Arc<Pool>>),
    /// All permits are taken: of all backends, or of the client's bound backend; the pool, if it
    /// is not the request's own.
    Full(Option<Arc<Backend>>, Option<Arc<Pool>>),
    /// No untried backend is left, up or down.
    None,
}

/// A request without a backend.
#[derive(Clone, Copy)]
struct Asking<'e> {
    exchange: &'e Exchange,
    /// It has just come: those that wait go before it.
    is_new: bool,
}

impl Asking<'_> {
    fn has_not_tried(&self, backend: &Backend) -> bool {
        !self.exchange.has_tried(backend.key())
    }

    fn take(&self, pool: &Pool, backend: &Arc<Backend>) -> Option<Permits> {
        Permits::take(backend, pool.settings.max_handshakes, self.exchange.facts().wanted())
    }
}

impl Dispatch {
    /// Picks a backend and takes permits: of the pool, of its backups, of its fallback, if they are
    /// up in this order; then a backend that is down. `is_new`: the request has just
    /// come, and those that wait go before it.
    pub(in crate::shard) fn choose(
        &mut self,
        (exchange, is_new): (&Exchange, bool),
        pool: &Pool,
        rules: &BalanceRules,
        mail: &BalanceMail,
    ) -> Choice {
        let asking = Asking { exchange, is_new };
        let retries = exchange.times().retries.unwrap_or(rules.settings().retries);
        if exchange.tries() > usize::from(retries) {
            return Choice::None;
        }
        if let Some(choice) = self.choose_up(asking, pool, None) {
            return choice;
        }
        // The removal of a backend is visible at once; a new backend comes in a command, possibly
        // an unread one. Commands are read before waiting requests are served.
        if mail.has_commands() {
            return Choice::Full(None, None);
        }
        let fallback = pool.settings.fallback.as_deref();
        let fallback = fallback.and_then(|name| rules.configuration().pools.named(name));
        if let Some(fallback) = fallback
            && let Some(choice) = self.choose_up(asking, fallback, Some(fallback))
        {
            return choice;
        }
        // A verdict of down may be wrong or outdated: a failed try is better than a refusal without
        // one.
        let backend = |index: usize| &pool.targets[index].backend;
        let untried = |index: usize| asking.has_not_tried(backend(index));
        let primary =
            self.picker.pick_down(pool, |index| untried(index) && !backend(index).is_backup());
        match primary.or_else(|| self.picker.pick_down(pool, untried)) {
            Some(index) => match asking.take(pool, backend(index)) {
                Some(permits) => Choice::Backend(index, permits, None),
                None => Choice::Full(None, None),
            },
            None => self.choose_removed(asking, pool, rules),
        }
    }

    /// Picks a backend that is up: a backup only without another one. `other`: the pool itself, if
    /// it is not the request's own. `None`: all have been tried, or are down.
    fn choose_up(
        &mut self,
        asking: Asking<'_>,
        pool: &Pool,
        other: Option<&Arc<Pool>>,
    ) -> Option<Choice> {
        let facts = asking.exchange.facts();
        let backend = |index: usize| &pool.targets[index].backend;
        let untried = |index: usize| asking.has_not_tried(backend(index));
        let is_left = |backups: bool| {
            has_candidate(pool, |at| untried(at) && backend(at).is_backup() == backups)
        };
        let is_backup = match (is_left(false), pool.has_backups()) {
            (true, _) => false,
            (false, true) if is_left(true) => true,
            _ => return None,
        };
        let usable = |index: usize| untried(index) && backend(index).is_backup() == is_backup;
        let is_awaited = |index: usize| asking.is_new && backend(index).line().has_some();
        let has_room = |index: usize| pool.has_permits(backend(index)) && !is_awaited(index);
        let (tag, key) = match facts.bound() {
            Some(Bound::Backend(tag)) => (Some(tag), None),
            Some(Bound::Hash(key)) => (None, Some(key)),
            None => (None, None),
        };
        let bound = tag.and_then(|tag| pick_bound(pool, tag)).filter(|&index| usable(index));
        // A client that is bound to one backend waits for it; others go to any with a free permit.
        let belongs = bound.is_some()
            || key.is_some()
            || matches!(pool.settings.pick, Pick::Rendezvous | Pick::IpHash);
        let mut pick = |usable: &dyn Fn(usize) -> bool| match key {
            Some(key) => pick_by_key(pool, key, usable),
            None => self.picker.pick(pool, facts.wanted(), None, facts.client(), usable),
        };
        let picked = bound.or_else(|| {
            if belongs {
                pick(&usable)
            } else if asking.is_new && pool.load().any().has_some() {
                None
            } else {
                pick(&|index| usable(index) && has_room(index))
            }
        });
        let taken = picked.filter(|&index| !is_awaited(index));
        let taken = taken.and_then(|index| Some((index, asking.take(pool, backend(index))?)));
        Some(match taken {
            Some((index, permits)) => Choice::Backend(index, permits, other.cloned()),
            None => {
                let awaited = picked.filter(|_| belongs).map(|index| Arc::clone(backend(index)));
                Choice::Full(awaited, other.cloned())
            }
        })
    }

    /// Picks a removed backend for a request whose pool a reload has removed since: it goes
    /// where it would have gone before. Later requests do not come here.
    fn choose_removed(&mut self, asking: Asking<'_>, pool: &Pool, rules: &BalanceRules) -> Choice {
        if rules.configuration().pools.named(pool.name()).is_some() {
            return Choice::None;
        }
        let backend = |index: usize| &pool.targets[index].backend;
        let untried = |index: usize| asking.has_not_tried(backend(index));
        let Some(index) = self.picker.pick_in(State::Removed, pool, untried) else {
            return Choice::None;
        };
        match asking.take(pool, backend(index)) {
            Some(permits) => Choice::Backend(index, permits, None),
            // It has come before the reload, and waits as it would have then.
            None => Choice::Full(None, None),
        }
    }
}
