//! Parts of a node that its events change: the connection, subscriptions, questions and
//! publications on their way, and the clock.
//!
//! Times are milliseconds of [`NodeClock::now`].

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use super::super::calls::{NumberedPublication, Question};
use super::super::link::Link;
use super::super::open::Connection;
use super::{MAX_WAIT, NodeEvent};
use crate::envelope::TAG_BITS;
use crate::outbox::PublishQueue;
use crate::outcome::Losses;

/// Maximum wait before another attempt to connect. Publications wait for five seconds, so a
/// restarted server must be found well before that.
const LONGEST_RETRY: u64 = 1_000;

/// Milliseconds since the node started, on a monotonic clock, and random numbers. Wall-clock time
/// differs between machines and can jump; only a metric uses it. Heartbeats and histories expire by
/// the server's clock.
pub(super) struct NodeClock {
    began: Instant,
    random: RandomState,
    drawn: u64,
}

impl NodeClock {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), random: RandomState::new(), drawn: 0 }
    }

    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Returns a time by this clock.
    pub(super) fn at(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.began).as_millis() as u64
    }

    pub(super) fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.random.hash_one(self.drawn)
    }

    /// Returns a random tag, but never 0, which is the tag of a sequence's beginning.
    pub(super) fn draw_tag(&mut self) -> u64 {
        (self.draw() >> (u64::BITS - TAG_BITS)).max(1)
    }
}

/// The connection of a node, and the attempts to get one.
pub(super) struct LinkState {
    /// Number of the connections in use.
    pub(super) generation: u64,
    pub(super) open: Option<Link>,
    pub(super) is_linking: bool,
    /// The last connection for commands.
    pub(super) last: Option<Connection>,
    /// Whether the next connection is the first one, which checks the rights.
    pub(super) checks_rights: bool,
    pub(super) disconnected_at: u64,
    /// When to connect again.
    pub(super) retry_at: u64,
    failures: u32,
    pub(super) last_heard_at: u64,
    /// When the probe was sent that has not come back.
    pub(super) probe: Option<u64>,
    pub(super) last_probe_at: u64,
    pub(super) last_check_at: u64,
    /// Commands and questions that arrived while the node was about to connect. The limit on all
    /// questions bounds their number.
    pub(super) before: Vec<NodeEvent>,
}

impl LinkState {
    pub(super) fn new() -> Self {
        Self {
            generation: 1,
            open: None,
            is_linking: false,
            last: None,
            checks_rights: true,
            disconnected_at: 0,
            retry_at: 0,
            failures: 0,
            last_heard_at: 0,
            probe: None,
            last_probe_at: 0,
            last_check_at: 0,
            before: Vec::new(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Returns whether an attempt has failed since the broker last delivered.
    pub(super) fn has_failed(&self) -> bool {
        self.failures > 0
    }

    /// Records a connection.
    pub(super) fn connected(&mut self, link: Link, now: u64) {
        self.last = Some(link.connection.clone());
        self.checks_rights = false;
        self.open = Some(link);
        self.last_heard_at = now;
    }

    /// Records that the broker delivers.
    pub(super) fn delivers(&mut self) {
        self.failures = 0;
    }

    /// Resets to the state without a connection, and plans the next attempt: the first one at once,
    /// others after a random time, so that the nodes do not all come at the same time.
    pub(super) fn disconnect(&mut self, clock: &mut NodeClock) {
        let now = clock.now();
        self.generation += 1;
        (self.open, self.is_linking, self.probe) = (None, false, None);
        self.disconnected_at = now;
        let wait = match self.failures {
            0 => 0,
            failures => clock.draw() % (250 << (failures - 1).min(5)).min(LONGEST_RETRY),
        };
        self.retry_at = now + wait;
        self.failures += 1;
    }

    /// Records that a probe is sent.
    pub(super) fn probe_sent(&mut self, now: u64) {
        self.last_probe_at = now;
        self.probe = Some(now);
    }
}

/// The subscriptions of a node, counted by the events that changed the followed channels.
#[derive(Default)]
pub(super) struct Follows {
    pub(super) asked: u64,
    pub(super) sent: u64,
    /// The number that the broker has acknowledged.
    pub(super) taken: u64,
    pub(super) is_subscribing: bool,
    /// Channels to check again at the broker, and when.
    pub(super) checks: VecDeque<(u64, Arc<str>)>,
}

impl Follows {
    pub(super) fn disconnect(&mut self) {
        (self.taken, self.is_subscribing) = (0, false);
    }
}

/// The questions and commands of a node.
#[derive(Default)]
pub(super) struct NodeRequests {
    pub(super) questions: VecDeque<Question>,
    /// Questions that the broker could not answer, with the time to ask again.
    pub(super) unanswered: VecDeque<(u64, Question)>,
    pub(super) is_asking: bool,
    /// Commands for other nodes that are being sent to the broker.
    pub(super) controls: usize,
}

impl NodeRequests {
    pub(super) fn disconnect(&mut self) {
        *self = Self::default();
    }

    /// Takes a question whose time to be asked again has come.
    pub(super) fn take_due(&mut self, now: u64) -> Option<Question> {
        self.unanswered.pop_front_if(|(due, _)| *due <= now).map(|(_, question)| question)
    }
}

/// The publications of a node.
pub(super) struct PublishSender {
    pub(super) outbox: PublishQueue<NumberedPublication>,
    /// Losses not yet reported to publishers.
    pub(super) losses: Losses,
    pub(super) is_publishing: bool,
    /// When to publish again after the broker has refused publications.
    pub(super) next_publish_at: u64,
    /// Since when publications find that the partition is migrating to another master.
    pub(super) moving_since: Option<u64>,
    /// Publications so far.
    pub(super) number: u64,
    /// When this node last set the expiry of each channel's history.
    pub(super) refreshed: HashMap<Arc<str>, u64>,
}

impl PublishSender {
    pub(super) fn new() -> Self {
        Self {
            outbox: PublishQueue::new(MAX_WAIT),
            losses: Losses::default(),
            is_publishing: false,
            next_publish_at: 0,
            moving_since: None,
            number: 0,
            refreshed: HashMap::new(),
        }
    }

    /// Returns the publications whose outcome is unknown now.
    pub(super) fn disconnect(
        &mut self,
        now: u64,
    ) -> Vec<crate::outbox::Pending<NumberedPublication>> {
        self.is_publishing = false;
        self.refreshed.clear();
        self.outbox.broken(now)
    }
}
