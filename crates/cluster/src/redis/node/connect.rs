//! The connections of a part: opening, losing and replacing them.

use std::sync::atomic::Ordering;

use redis::RedisError;

use super::super::calls;
use super::super::link::Link;
use super::super::signals::Signals;
use super::{Node, NodeEvent, StartError, first_link};
use crate::outbox::WhileDown;

impl Node {
    pub(super) fn is_up(&self) -> bool {
        self.own.status.is_part_up(self.own.part)
    }

    /// Returns whether the part is not connected, but not yet considered down.
    pub(super) fn is_about_to_connect(&self) -> bool {
        !self.link.is_open() && self.is_up()
    }

    /// Records that the broker does not deliver. Members of this node get the waiting local
    /// publications at once, so that later ones do not overtake them.
    pub(super) fn set_down(&mut self, why: &str) {
        self.own.status.set_down(self.own.part, why);
        let local =
            self.sender.outbox.take_waiting(|one| one.outgoing.while_down == WhileDown::Local);
        local.into_iter().for_each(|pending| self.publish_here(pending.item));
        self.handle_early();
    }

    /// Handles events that arrived while the part was about to connect.
    fn handle_early(&mut self) {
        std::mem::take(&mut self.link.before).into_iter().for_each(|event| self.handle(event));
    }

    /// Removes the early questions that have timed out.
    pub(super) fn expire_early(&mut self, now: u64) {
        let mut early = std::mem::take(&mut self.link.before);
        early.retain(|event| event.due().is_none_or(|due| self.clock.at(due) > now));
        self.link.before = early;
    }

    /// Records that the broker delivers, once it does so and has all subscriptions.
    pub(super) fn settle(&mut self) {
        if self.link.probe.is_none() && self.sender.outbox.is_connected() {
            self.link.delivers();
            self.own.status.set_up(self.own.part);
        }
    }

    pub(super) fn linked(&mut self, link: Result<Link, StartError>) {
        self.link.is_linking = false;
        match link {
            Ok(link) => {
                self.link.connected(link, self.clock.now());
                self.send_probe();
                self.handle_early();
            }
            Err(error) => self.broken(&error.to_string()),
        }
    }

    /// Closes both connections after an error of one.
    pub(in crate::redis) fn broken_by(&mut self, error: &RedisError) {
        if let Some(link) = self.link.open.clone().filter(|_| calls::is_moved(error)) {
            self.target.moved(error, &link);
            return self.moved(&error.to_string());
        }
        self.broken(&error.to_string());
    }

    /// Leaves the connections, which other partitions still use, to connect to another master.
    pub(super) fn moved(&mut self, why: &str) {
        // The part connects at once the first time, and publications wait for that.
        if self.link.has_failed() {
            self.set_down(why);
        }
        self.disconnect();
    }

    /// Closes both connections.
    pub(in crate::redis) fn broken(&mut self, why: &str) {
        if let Some(link) = self.link.open.take() {
            link.close();
        }
        self.disconnect();
        self.set_down(why);
    }

    /// Resets to the state without connections. The members' places stay known.
    fn disconnect(&mut self) {
        self.link.disconnect(&mut self.clock);
        self.follows.disconnect();
        self.requests.disconnect();
        for (name, channel) in &mut self.channels {
            match &mut channel.sequence {
                Some((_, sequence)) => sequence.broken(),
                None => channel.is_cut |= self.interest.is_subscribed(name),
            }
        }
        self.interest.broken();
        self.presence.broken(self.follows.asked);
        let unknown = self.sender.disconnect(self.clock.now());
        self.settle_unknown(unknown);
    }

    pub(super) fn relink(&mut self) {
        self.link.is_linking = true;
        if self.link.last.is_some() {
            self.own.counters().reconnects.fetch_add(1, Ordering::Relaxed);
        }
        let (target, generation) = (self.target.clone(), self.link.generation);
        let (last, signals) = (self.link.last.clone(), self.signals());
        let (is_first, rules) = (self.link.checks_rights, self.members.borrow().rules());
        self.start(async move {
            let link = match is_first {
                true => first_link(target, rules, signals).await,
                false => target.link(last, signals).await,
            };
            NodeEvent::Linked(generation, link)
        });
    }

    /// Returns the sender of signals for connections of the current generation.
    pub(super) fn signals(&self) -> Signals {
        let (events, generation) = (self.own.events.clone(), self.link.generation);
        Signals::new(generation, move |signal| {
            let _ = events.send(NodeEvent::Signal(generation, signal));
        })
    }
}
