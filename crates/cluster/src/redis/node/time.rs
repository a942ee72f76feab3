//! Steps of a part at certain times.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::super::open::LIMIT;
use super::{Channel, Node, NodeEvent};

/// Time without a publication after which delivery is probed, and time after which it is probed in
/// any case: the delivering server may be another than the server published to.
const PROBE_AFTER: u64 = 5_000;
const PROBE_EVERY: u64 = 8_000;

/// Maximum silence of a channel before the node checks its place at the broker.
const CHECK_AFTER: u64 = 40_000;

/// The time for which an answer about the end of a channel is valid.
const ANSWER_LASTS: u64 = 1_000;

/// The time for which a partition that must connect to another master still counts as up.
const MAX_UNLINKED: u64 = 1_000;

impl Node {
    /// Returns the time until the next step: at most a second, the interval of probes and checks.
    pub(super) fn rest(&self) -> Duration {
        let now = self.clock.now();
        let retry = (!self.link.is_open() && !self.link.is_linking).then_some(self.link.retry_at);
        let down =
            self.is_about_to_connect().then_some(self.link.disconnected_at + MAX_UNLINKED + 1);
        let early =
            self.link.before.iter().filter_map(NodeEvent::due).min().map(|due| self.clock.at(due));
        let stop = self.stop.as_ref().map(|(at, _)| *at);
        let publish = Some(self.sender.next_publish_at).filter(|at| *at > now);
        let heartbeat = self.link.open.as_ref().and_then(|_| self.presence.next_heartbeat());
        let due = [
            retry,
            down,
            early,
            stop,
            heartbeat,
            publish,
            self.presence.next_list().filter(|at| *at > now),
            self.survey.next_due(),
            self.interest.next_expiry(),
            self.follows.checks.front().map(|(due, _)| *due),
            Some(now + 1_000),
        ];
        let next = due.into_iter().flatten().min().unwrap_or(now);
        Duration::from_millis(next.saturating_sub(now).min(1_000))
    }

    /// Asks for the end of a channel, for a client that may be ahead of this node. It asks at most
    /// once a second, because a client that invents positions is always ahead.
    pub(super) fn check(&mut self, name: Arc<str>) {
        let now = self.clock.now();
        let Some(channel) = self.channels.get_mut(&name) else { return };
        match channel.answered.map(|at| at + ANSWER_LASTS).filter(|due| now < *due) {
            None => self.with_sequence(&name, |sequence, actions| sequence.check(actions)),
            Some(due) if !std::mem::replace(&mut channel.is_check_due, true) => {
                self.follows.checks.push_back((due, name));
            }
            Some(_) => {}
        }
    }

    fn check_those_due(&mut self, now: u64) {
        while let Some((_, name)) = self.follows.checks.pop_front_if(|(due, _)| *due <= now) {
            if let Some(channel) = self.channels.get_mut(&name) {
                channel.is_check_due = false;
            }
            self.with_sequence(&name, |sequence, actions| sequence.check(actions));
        }
    }

    pub(super) fn on_time(&mut self) {
        let now = self.clock.now();
        self.check_those_due(now);
        for name in self.interest.expire(now) {
            if self.members.borrow_mut().end(&name) {
                self.channels.remove(&name);
                self.presence.unfollowed(&name);
            } else {
                self.interest.enter(&name);
            }
        }
        let expired = self.sender.outbox.expire(now);
        self.settle_expired(expired);
        while let Some(question) = self.requests.take_due(now) {
            // The channel may have been dropped before the retry.
            if self.awaits(&question) {
                self.requests.questions.push_back(question);
            }
        }
        self.on_presence_time(now);
        self.survey.expire(now);
        self.expire_early(now);
        if !self.link.is_open() {
            if self.is_up() && now > self.link.disconnected_at + MAX_UNLINKED {
                self.set_down("the partition is not connected to its master yet");
            }
            if !self.link.is_linking && now >= self.link.retry_at {
                self.relink();
            }
            return;
        }
        match self.link.probe {
            Some(sent) if now > sent + LIMIT.as_millis() as u64 => {
                self.own.counters().probe_failures.fetch_add(1, Ordering::Relaxed);
                self.broken("publications do not come back from the server");
            }
            None if now
                > (self.link.last_heard_at + PROBE_AFTER)
                    .min(self.link.last_probe_at + PROBE_EVERY) =>
            {
                self.send_probe();
            }
            _ => {}
        }
        if now > self.link.last_check_at + CHECK_AFTER / 8 {
            self.link.last_check_at = now;
            let is_silent = |channel: &Channel| now > channel.heard + CHECK_AFTER;
            let silent = self.channels.iter().filter(|(_, channel)| is_silent(channel));
            let silent: Vec<_> = silent.map(|(name, _)| Arc::clone(name)).collect();
            for name in silent {
                self.with_sequence(&name, |sequence, actions| sequence.check(actions));
            }
        }
    }
}
