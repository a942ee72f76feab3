//! Figures of a node, for metrics and readiness.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::pool::Pool;
use crate::Budget;

/// Most reasons that are given at a time.
const REASONS: usize = 3;

/// Figures of a node, written by its thread.
#[derive(Debug)]
pub struct Status {
    parts: Box<[Part]>,
    /// The name of parts: servers, or partitions.
    kind: &'static str,
    pool: Arc<Pool>,
    held: Budget,
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
    pub(super) lag_micros: AtomicU64,
}

/// A server, or a partition of a Redis Cluster, as a node sees it.
#[derive(Debug)]
struct Part {
    /// The name of a server; a partition has none.
    name: Option<String>,
    up: AtomicBool,
    /// Since when nothing is delivered, and why.
    down: Mutex<Option<(Instant, String)>>,
    channels: AtomicU64,
    /// Nodes whose rules for channels are others.
    differing: Mutex<Vec<String>>,
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
    /// Publications that were refused, or waited for too long.
    pub refused: u64,
    /// Publications without history that were on their way when the connection was lost.
    pub unknown: u64,
    /// Times that the broker has refused a publication for now: it is sent again.
    pub postponed: u64,
    /// Publications that the broker has delivered.
    pub received: u64,
    /// Messages that were in no form that this release knows, and were dropped.
    pub malformed: u64,
    /// Publications that the broker has delivered from nodes whose rule for the channel is another
    /// one: members get them, with a place if the channel has a history here.
    pub other_rules: u64,
    /// Nodes that live and have other rules for channels; of many, some.
    pub differing: u64,
    /// Questions about a channel that the broker could not answer; they are asked again.
    pub failed_reads: u64,
    /// Commands about presence that the broker has refused; they are sent again.
    pub failed_presence: u64,
    /// Times that publications which were missed came from the broker's history.
    pub filled: u64,
    /// Times that a sequence had a hole, of which its members learned.
    pub lost: u64,
    /// Channels that the node follows.
    pub channels: u64,
    /// Memory of publications that the broker has not acknowledged.
    pub pending_bytes: u64,
    /// Memory of publications that wait until the broker has answered a question about their
    /// channel.
    pub held_bytes: u64,
    /// Publications for which there was no such memory, and which the broker was asked for.
    pub overfull: u64,
    /// Time from the publication to this node of the last one that came.
    pub lag: Duration,
}

impl Status {
    /// Creates those of a node whose parts are servers of such names, or partitions.
    pub(super) fn new(names: Vec<Option<String>>, pool: Arc<Pool>, held: Budget) -> Self {
        let kind = if names.iter().any(Option::is_some) { "servers" } else { "partitions" };
        let part = |name| Part {
            name,
            up: AtomicBool::new(false),
            down: Mutex::new(None),
            channels: AtomicU64::new(0),
            differing: Mutex::default(),
        };
        let parts = names.into_iter().map(part).collect();
        Self { parts, kind, pool, held, counters: Counters::default() }
    }

    /// Returns whether the broker delivers to this node: all that it consists of.
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
        let down: Vec<_> = self.parts.iter().filter_map(Part::down).collect();
        let since = down.iter().map(|(since, _)| *since).min()?;
        Some((since.elapsed(), self.explain(down.into_iter().map(|(_, why)| why).collect())))
    }

    /// Returns why these parts deliver nothing, each reason once.
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
        *part.lock() = None;
        part.up.store(true, Ordering::Relaxed);
    }

    /// Keeps the time at which it began.
    pub(super) fn set_down(&self, part: u16, why: &str) {
        let part = &self.parts[usize::from(part)];
        part.up.store(false, Ordering::Relaxed);
        let mut down = part.lock();
        let since = down.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *down = Some((since, why.to_owned()));
    }

    pub(super) fn set_all_down(&self, why: &str) {
        (0..self.parts.len()).for_each(|part| self.set_down(part as u16, why));
    }

    /// Notes the nodes whose rules for channels are others.
    pub(super) fn set_differing(&self, part: u16, nodes: Vec<String>) {
        let differing = &self.parts[usize::from(part)].differing;
        *differing.lock().unwrap_or_else(PoisonError::into_inner) = nodes;
    }

    /// Returns the nodes that live and whose [rules](super::Members::rules) for channels are
    /// others, in order, as 16 hexadecimal digits; of many, some.
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

    fn lock(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.down.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns since when it has delivered nothing, and why, with its name.
    fn down(&self) -> Option<(Instant, String)> {
        let down = self.lock();
        let (since, why) = down.as_ref()?;
        let why = match &self.name {
            Some(name) => format!("{name}: {why}"),
            None => why.clone(),
        };
        Some((*since, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(names: &[Option<&str>]) -> Status {
        let names = names.iter().map(|name| name.map(str::to_owned)).collect();
        let status = Status::new(names, Arc::new(Pool::new(1)), Budget::new(1));
        (0..status.parts.len()).for_each(|part| status.set_up(part as u16));
        status
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
