//! Figures of a node, for metrics and readiness.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::pool::SendBudget;
use crate::held::Budget;

/// Maximum reasons in one message.
const REASONS: usize = 3;

/// Figures of a node, written by its thread.
#[derive(Debug)]
pub struct Status {
    parts: Box<[Part]>,
    /// The word for parts: servers, or partitions.
    kind: &'static str,
    pool: Arc<SendBudget>,
    held: Budget,
    /// The broker's error for the last publications that it has not accepted; `None` if these were
    /// lost without an answer.
    refusal: Mutex<Option<String>>,
    /// Whether there is one. The flag answers without the lock in the usual case.
    has_refusal: AtomicBool,
    pub(super) counters: Counters,
}

/// Counts of all parts of a node.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) reconnects: AtomicU64,
    pub(super) probe_failures: AtomicU64,
    pub(super) published: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) unknown: AtomicU64,
    pub(super) postponed: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) other_rules: AtomicU64,
    pub(super) failed_reads: AtomicU64,
    pub(super) failed_presence: AtomicU64,
    pub(super) filled: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) gaps: AtomicU64,
    pub(super) lag_micros: AtomicU64,
}

/// A server, or a partition of a Redis Cluster, as a node sees it.
#[derive(Debug)]
struct Part {
    /// The name of a server; a partition has none.
    name: Option<String>,
    up: AtomicBool,
    /// Whether the part has ever delivered.
    was_up: AtomicBool,
    /// Whether a partition was ever used. An unused partition has the state of its cluster.
    is_used: AtomicBool,
    /// Whether any part is behind. The flag answers without the lock in the usual case.
    is_behind: AtomicBool,
    problems: Mutex<Problems>,
    channels: AtomicU64,
    /// Nodes with different rules for channels.
    differing: Mutex<Vec<String>>,
}

/// The start and the cause of a problem.
type Trouble = Option<(Instant, String)>;

/// The problems of a part.
#[derive(Debug, Default)]
struct Problems {
    /// It delivers nothing.
    down: Trouble,
    /// The part delivers, but accepts no publications.
    behind: Trouble,
}

/// The state of the broker, as a node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The broker delivers and accepts publications.
    Up,
    /// A part of the broker has delivered nothing, or accepted no publications, for this time and
    /// for this reason, after it was reachable. Channels of other parts are not affected.
    Degraded(Duration, String),
    /// No part of the broker has delivered since the start, which was this long ago, for this
    /// reason.
    Unlinked(Duration, String),
}

/// The figures of a node at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatusSnapshot {
    /// Whether the broker delivers to this node.
    pub is_up: bool,
    /// Connections that replaced others.
    pub reconnects: u64,
    /// Probes of delivery that did not come back.
    pub probe_failures: u64,
    /// Publications that the broker has acknowledged.
    pub published: u64,
    /// Publications that the broker has not accepted: it refused them, or they waited for too long.
    pub refused: u64,
    /// Publications that were sent without an answer, so that the broker may have them.
    pub unknown: u64,
    /// Times that the broker has refused a publication for now: it is sent again.
    pub postponed: u64,
    /// Publications that the broker has delivered.
    pub received: u64,
    /// Messages in an unknown format, which were dropped.
    pub malformed: u64,
    /// Publications from nodes with another rule for the channel: members receive them, with a
    /// place if the channel has a history on this node.
    pub other_rules: u64,
    /// Live nodes with different rules for channels. The list may be incomplete if there are many.
    pub differing: u64,
    /// Questions about a channel that the broker could not answer; they are asked again.
    pub failed_reads: u64,
    /// Commands about presence that the broker has refused; they are sent again.
    pub failed_presence: u64,
    /// Number of times that the broker's history supplied missed publications.
    pub filled: u64,
    /// Number of gaps in sequences. The members were notified of each.
    pub lost: u64,
    /// Number of times that members of a channel without history may have missed publications.
    pub gaps: u64,
    /// Channels that the node follows.
    pub channels: u64,
    /// Memory of publications that the broker has not acknowledged.
    pub pending_bytes: u64,
    /// Memory of publications that wait until the broker has answered a question about their
    /// channel.
    pub held_bytes: u64,
    /// Publications that found this memory full, and were requested from the broker again.
    pub overfull: u64,
    /// The time that the last publication took from its node to this one.
    pub lag: Duration,
}

impl Status {
    /// Creates the status of a node whose parts are the servers with these names, or partitions.
    pub(super) fn new(names: Vec<Option<String>>, pool: Arc<SendBudget>, held: Budget) -> Self {
        let kind = if names.iter().any(Option::is_some) { "servers" } else { "partitions" };
        let part = |name| Part {
            name,
            up: AtomicBool::new(false),
            was_up: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            is_behind: AtomicBool::new(false),
            problems: Mutex::default(),
            channels: AtomicU64::new(0),
            differing: Mutex::default(),
        };
        let parts = names.into_iter().map(part).collect();
        let (refusal, has_refusal) = (Mutex::default(), AtomicBool::new(false));
        Self { parts, kind, pool, held, refusal, has_refusal, counters: Counters::default() }
    }

    /// Returns whether all parts of the broker deliver to this node.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.parts.iter().all(Part::is_up)
    }

    pub(super) fn is_part_up(&self, part: u16) -> bool {
        self.parts[usize::from(part)].is_up()
    }

    /// Returns for how long a part of the broker has delivered nothing, and why.
    #[must_use]
    pub fn down(&self) -> Option<(Duration, String)> {
        self.longest(|problems| problems.down.as_ref())
    }

    /// Returns the state of the broker. All observers use this one result.
    #[must_use]
    pub fn health(&self) -> Health {
        let problems = self.longest(|problems| problems.down.as_ref().or(problems.behind.as_ref()));
        match problems {
            None => Health::Up,
            Some((time, why)) if self.was_linked() => Health::Degraded(time, why),
            Some((time, why)) => Health::Unlinked(time, why),
        }
    }

    /// Returns whether any part has delivered since the start.
    #[must_use]
    pub fn was_linked(&self) -> bool {
        self.parts.iter().any(|part| part.was_up.load(Ordering::Relaxed))
    }

    pub(super) fn was_part_up(&self, part: u16) -> bool {
        self.parts[usize::from(part)].was_up.load(Ordering::Relaxed)
    }

    /// Returns how long parts have had this problem, and its causes.
    fn longest(
        &self,
        problem: fn(&Problems) -> Option<&(Instant, String)>,
    ) -> Option<(Duration, String)> {
        let all = self.parts.iter().filter_map(|part| part.problem(problem));
        let all: Vec<_> = all.collect();
        let since = all.iter().map(|(since, _)| *since).min()?;
        Some((since.elapsed(), self.explain(all.into_iter().map(|(_, why)| why).collect())))
    }

    /// Returns why these parts deliver nothing; names each cause once.
    fn explain(&self, mut reasons: Vec<String>) -> String {
        let (count, all) = (reasons.len(), self.parts.len());
        reasons.sort_unstable();
        reasons.dedup();
        let more = reasons.len().saturating_sub(REASONS);
        reasons.truncate(REASONS);
        let mut why = reasons.join("; ");
        if more > 0 {
            why += &format!("; and {more} more");
        }
        match all {
            1 => why,
            _ => format!("{count} of {all} {}: {why}", self.kind),
        }
    }

    /// Returns how many parts the broker has, and how many of them deliver nothing.
    #[must_use]
    pub fn parts(&self) -> (usize, usize) {
        (self.parts.len(), self.parts.iter().filter(|part| !part.is_up()).count())
    }

    /// Returns the first part to which the broker delivers, or the first one.
    pub(super) fn first_up(&self) -> u16 {
        self.parts.iter().position(Part::is_up).unwrap_or(0) as u16
    }

    pub(super) fn set_up(&self, part: u16) {
        let part = &self.parts[usize::from(part)];
        part.lock().down = None;
        part.was_up.store(true, Ordering::Relaxed);
        part.up.store(true, Ordering::Relaxed);
    }

    /// Keeps the time at which it began.
    pub(super) fn set_down(&self, part: u16, why: &str) {
        let part = &self.parts[usize::from(part)];
        part.up.store(false, Ordering::Relaxed);
        note(&mut part.lock().down, why);
    }

    /// Records that a part accepts no publications, and why; `None`: the part accepts publications.
    pub(super) fn set_behind(&self, part: u16, why: Option<&str>) {
        let part = &self.parts[usize::from(part)];
        if why.is_none() && !part.is_behind.load(Ordering::Relaxed) {
            return;
        }
        part.is_behind.store(why.is_some(), Ordering::Relaxed);
        let behind = &mut part.lock().behind;
        match why {
            Some(why) => note(behind, why),
            None => *behind = None,
        }
    }

    /// Counts a publication that was refused without asking the broker.
    pub(super) fn count_refused(&self) {
        self.set_refusal(None);
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_refusal(&self, refusal: Option<String>) {
        if refusal.is_none() && !self.has_refusal.load(Ordering::Relaxed) {
            return;
        }
        self.has_refusal.store(refusal.is_some(), Ordering::Relaxed);
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
    }

    /// Returns the broker's error for the last publications that it has refused, or that failed
    /// while it executed them, with the names of their keys; `None` if it has refused none, or
    /// if the last ones were lost without an answer.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_used(&self, part: u16) {
        self.parts[usize::from(part)].is_used.store(true, Ordering::Relaxed);
    }

    /// Records that unused partitions are reachable, or why they are not.
    pub(super) fn set_unused(&self, can: Result<(), &str>) {
        for (number, part) in self.parts.iter().enumerate() {
            if !part.is_used.load(Ordering::Relaxed) {
                match can {
                    Ok(()) => self.set_up(number as u16),
                    Err(why) => self.set_down(number as u16, why),
                }
            }
        }
    }

    pub(super) fn set_all_down(&self, why: &str) {
        (0..self.parts.len()).for_each(|part| self.set_down(part as u16, why));
    }

    /// Records the nodes with different rules for channels.
    pub(super) fn set_differing(&self, part: u16, nodes: Vec<String>) {
        let differing = &self.parts[usize::from(part)].differing;
        *differing.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// Returns the live nodes with different [rules](super::Members::rules) for channels, in order,
    /// as 16 hexadecimal digits; the list may be incomplete if there are many.
    #[must_use]
    pub fn differing(&self) -> Vec<String> {
        let of = |part: &Part| part.differing.lock().map(|nodes| nodes.clone()).unwrap_or_default();
        let mut all: Vec<_> = self.parts.iter().flat_map(of).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    pub(super) fn set_channels(&self, part: u16, channels: usize) {
        self.parts[usize::from(part)].channels.store(channels as u64, Ordering::Relaxed);
    }

    /// Returns the figures.
    #[must_use]
    pub fn snapshot(&self) -> StatusSnapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        StatusSnapshot {
            is_up: self.is_up(),
            reconnects: get(&counters.reconnects),
            probe_failures: get(&counters.probe_failures),
            published: get(&counters.published),
            refused: get(&counters.refused),
            unknown: get(&counters.unknown),
            postponed: get(&counters.postponed),
            received: get(&counters.received),
            malformed: get(&counters.malformed),
            other_rules: get(&counters.other_rules),
            differing: self.differing().len() as u64,
            failed_reads: get(&counters.failed_reads),
            failed_presence: get(&counters.failed_presence),
            filled: get(&counters.filled),
            lost: get(&counters.lost),
            gaps: get(&counters.gaps),
            channels: self.parts.iter().map(|part| get(&part.channels)).sum(),
            pending_bytes: self.pool.bytes() as u64,
            held_bytes: self.held.bytes() as u64,
            overfull: self.held.refused(),
            lag: Duration::from_micros(get(&counters.lag_micros)),
        }
    }
}

impl Part {
    fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Problems> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when this problem of the part began, and its cause with the part's name.
    fn problem(
        &self,
        problem: fn(&Problems) -> Option<&(Instant, String)>,
    ) -> Option<(Instant, String)> {
        let problems = self.lock();
        let (since, why) = problem(&problems)?;
        let why = match &self.name {
            Some(name) => format!("{name}: {why}"),
            None => why.clone(),
        };
        Some((*since, why))
    }
}

/// Records the cause of a problem, and keeps the time at which it began.
fn note(problem: &mut Trouble, why: &str) {
    let since = problem.as_ref().map_or_else(Instant::now, |(since, _)| *since);
    *problem = Some((since, why.to_owned()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(names: &[Option<&str>]) -> Status {
        let names = names.iter().map(|name| name.map(str::to_owned)).collect();
        let status = Status::new(names, Arc::new(SendBudget::new(1)), Budget::new(1));
        (0..status.parts.len()).for_each(|part| status.set_up(part as u16));
        status
    }

    #[test]
    fn a_node_is_degraded_only_when_a_part_was_there_and_that_is_away_or_behind() {
        let names = vec![Some("a:1".to_owned()), Some("b:2".to_owned())];
        let status = Status::new(names, Arc::new(SendBudget::new(1)), Budget::new(1));
        status.set_all_down("refused");
        let health = || match status.health() {
            Health::Up => ("up", String::new()),
            Health::Degraded(_, why) => ("degraded", why),
            Health::Unlinked(_, why) => ("unlinked", why),
        };
        assert_eq!(health(), ("unlinked", "2 of 2 servers: a:1: refused; b:2: refused".to_owned()));
        status.set_up(1);
        assert_eq!(health(), ("degraded", "1 of 2 servers: a:1: refused".to_owned()));
        status.set_up(0);
        assert_eq!(health(), ("up", String::new()));
        status.set_behind(0, Some("OOM"));
        assert!(status.is_up() && status.down().is_none());
        assert_eq!(health(), ("degraded", "1 of 2 servers: a:1: OOM".to_owned()));
        status.set_down(0, "closed");
        assert_eq!(health().1, "1 of 2 servers: a:1: closed");
        status.set_up(0);
        assert_eq!(health().1, "1 of 2 servers: a:1: OOM", "it may be full still");
        status.set_behind(0, None);
        assert_eq!(health().0, "up");
        status.set_all_down("away");
        assert_eq!(health().0, "degraded");
    }

    #[test]
    fn a_node_is_up_when_all_of_its_parts_are_and_says_which_are_not() {
        let one = status(&[None]);
        assert!(one.is_up() && one.down().is_none());
        one.set_down(0, "closed");
        assert_eq!(one.down().unwrap().1, "closed");

        let servers = status(&[Some("a:1"), Some("b:2"), Some("c:3")]);
        servers.set_down(1, "closed");
        assert!(!servers.is_up() && servers.is_part_up(0) && !servers.is_part_up(1));
        assert_eq!(servers.down().unwrap().1, "1 of 3 servers: b:2: closed");
        assert_eq!(servers.parts(), (3, 1));
        servers.set_up(1);
        assert!(servers.is_up() && servers.down().is_none());

        let partitions = status(&[None; 8]);
        (1..6)
            .for_each(|part| partitions.set_down(part, ["closed", "away"][usize::from(part % 2)]));
        assert_eq!(partitions.down().unwrap().1, "5 of 8 partitions: away; closed");
        (0..6).for_each(|part| partitions.set_down(part, &part.to_string()));
        assert_eq!(partitions.down().unwrap().1, "6 of 8 partitions: 0; 1; 2; and 3 more");
    }
}
