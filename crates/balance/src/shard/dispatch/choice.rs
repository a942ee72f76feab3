//! Choice of a backend for a request, with a permit of it.

use std::sync::Arc;

use super::Dispatch;
use crate::backend::{Backend, State};
use crate::forward::Bound;
use crate::guards::HandshakePermit;
use crate::pick::{has_candidate, pick_bound, pick_by_key};
use crate::pool::Pool;
use crate::settings::Pick;
use crate::shard::mail::BalanceMail;
use crate::shard::records::Exchange;
use crate::shard::rules::BalanceRules;

/// The result of a search.
pub(in crate::shard) enum Choice {
    /// The index in the pool's list, with a permit.
    Backend(usize, HandshakePermit),
    /// All permits are taken: of all backends, or of the client's bound backend.
    Full(Option<Arc<Backend>>),
    /// No untried backend is left, up or down.
    None,
}

impl Dispatch {
    /// Picks a backend of the pool and takes a permit.
    pub(in crate::shard) fn choose(
        &mut self,
        exchange: &Exchange,
        pool: &Pool,
        rules: &BalanceRules,
        mail: &BalanceMail,
    ) -> Choice {
        let facts = exchange.facts();
        let cap = pool.settings.max_handshakes;
        if exchange.tries() > usize::from(rules.settings().retries) {
            return Choice::None;
        }
        let backend = |index: usize| &pool.targets[index].backend;
        let untried = |index: usize| !exchange.has_tried(backend(index).key());
        let has_room = |index: usize| cap == 0 || backend(index).handshakes() < cap;
        let (tag, key) = match facts.bound() {
            Some(Bound::Backend(tag)) => (Some(tag), None),
            Some(Bound::Hash(key)) => (None, Some(key)),
            None => (None, None),
        };
        let bound = tag.and_then(|tag| pick_bound(pool, tag)).filter(|&index| untried(index));
        // A client that is bound to one backend waits for it; others go to any with a free permit.
        let belongs = bound.is_some()
            || key.is_some()
            || matches!(pool.settings.pick, Pick::Rendezvous | Pick::IpHash);
        let mut pick = |usable: &dyn Fn(usize) -> bool| match key {
            Some(key) => pick_by_key(pool, key, usable),
            None => self.picker.pick(pool, facts.wanted(), None, facts.client(), usable),
        };
        let picked = bound.or_else(|| {
            if belongs { pick(&untried) } else { pick(&|index| untried(index) && has_room(index)) }
        });
        if let Some(index) = picked {
            let backend = backend(index);
            return match HandshakePermit::take(backend, cap) {
                Some(permit) => Choice::Backend(index, permit),
                None => Choice::Full(belongs.then(|| Arc::clone(backend))),
            };
        }
        if has_candidate(pool, untried) {
            return Choice::Full(None);
        }
        // The removal of a backend is visible at once; a new backend comes in a command, possibly
        // an unread one. Commands are read before waiting requests are served.
        if mail.has_commands() {
            return Choice::Full(None);
        }
        // A verdict of down may be wrong or outdated: a failed try is better than a refusal without
        // one.
        match self.picker.pick_down(pool, untried) {
            Some(index) => match HandshakePermit::take(backend(index), cap) {
                Some(permit) => Choice::Backend(index, permit),
                None => Choice::Full(None),
            },
            None => self.choose_removed(exchange, pool, rules),
        }
    }

    /// Picks a removed backend for a request whose pool a reload has removed since: it goes
    /// where it would have gone before. Later requests do not come here.
    fn choose_removed(&mut self, exchange: &Exchange, pool: &Pool, rules: &BalanceRules) -> Choice {
        if rules.configuration().pools.named(pool.name()).is_some() {
            return Choice::None;
        }
        let backend = |index: usize| &pool.targets[index].backend;
        let untried = |index: usize| !exchange.has_tried(backend(index).key());
        let Some(index) = self.picker.pick_in(State::Removed, pool, untried) else {
            return Choice::None;
        };
        match HandshakePermit::take(backend(index), pool.settings.max_handshakes) {
            Some(permit) => Choice::Backend(index, permit),
            None => Choice::None,
        }
    }
}
