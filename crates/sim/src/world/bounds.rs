//! Checks of a shard while it runs, and that it is empty at the end.

use std::collections::BTreeSet;

use throng_engine::{Audit, Backpressure, MAILBOX_MARK, SlowPolicy};

use super::World;
use crate::ask::Take;
use crate::plan::{SECOND, SimPlan};

/// Connections that a shard may have above the limit.
const RESERVE: usize = 32;

/// More than the plans' peers publish in one turn.
const ONE_TURN: usize = 64 << 10;

/// Maximum bytes of the chunks in which pending output leaves.
const CHUNK: usize = 64 << 10;

/// Connections of a shard that have gone, counted by the second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Departures {
    second: u64,
    /// The number of all departures until now, until the beginning of this second, and until the
    /// beginning of the previous second.
    all: u64,
    before: u64,
    long_before: u64,
}

impl Departures {
    /// Records the number of departures until this second.
    fn note(&mut self, second: u64, all: u64) {
        if second > self.second {
            self.long_before = if second == self.second + 1 { self.before } else { self.all };
            (self.second, self.before) = (second, self.all);
        }
        self.all = all;
    }

    /// Returns how many have gone in this second and the one before.
    fn recent(self) -> usize {
        (self.all - self.long_before) as usize
    }
}

impl World {
    /// Checks that publishers are delayed: a crowded mailbox gets at most one more publication from
    /// each connection.
    fn check_mailboxes(&mut self) {
        let mark = self.plan.mailbox_mark.unwrap_or(MAILBOX_MARK);
        let connections: usize = self.audits().iter().map(|audit| audit.connections).sum();
        let record = self.record.borrow();
        let mut fault = None;
        for shard in 0..self.shards.len() {
            let waits = record.publications_for(shard);
            if waits > mark + 1 + connections {
                fault = Some(format!("{waits} publications wait for shard {shard}, over {mark}"));
            }
        }
        drop(record);
        if let Some(fault) = fault {
            self.violation(fault);
        }
    }

    /// Counts the connections of a shard that have gone.
    pub(super) fn note_departures(&mut self, index: usize) {
        let now = self.now();
        let driver = self.shards[index].driver().inner();
        let gone = driver.calls.entered - driver.connections() as u64;
        self.departures[index].note(now / SECOND, gone);
    }

    pub(super) fn check_bounds(&mut self, index: usize) {
        self.check_mailboxes();
        let audit = self.shards[index].audit();
        let limits = &self.plan.limits;
        // One message may always be queued when the queue is empty. Control frames do not count.
        let frame = limits.ws.max_message_size.max(3000) + 300;
        // A member with a short queue gets everything that one turn publishes, because the kernel
        // is asked only afterwards.
        let asks = || self.plan.parts.iter().flat_map(|part| &part.asks);
        let answer = asks().map(|ask| ask.largest_write() + 300).max().unwrap_or(0);
        let backlog = largest_backlog(&self.plan, frame.max(answer));
        let mut faults = Vec::new();
        if audit.largest_backlog > backlog {
            faults.push(format!("a backlog of {} over {backlog}", audit.largest_backlog));
        }
        let excess = largest_excess(&self.plan, frame);
        if audit.largest_excess > excess {
            faults.push(format!("a class {} over its cap", audit.largest_excess));
        }
        let gathered = asks().filter(|ask| ask.take == Take::Whole).map(|ask| ask.upload).max();
        let partial = limits.ws.max_message_size.max(limits.http.max_header_bytes) + 200;
        let partial = partial.max(gathered.unwrap_or(0));
        if audit.largest_partial > partial {
            faults.push(format!("a decoder holds {} over {partial}", audit.largest_partial));
        }
        // Each connection is listed once, and ended connections are removed once per second.
        let gone = self.departures[index].recent();
        if audit.longest_list > audit.connections + gone {
            let (list, connections) = (audit.longest_list, audit.connections);
            faults.push(format!("a list of {list} for {connections} connections, {gone} gone"));
        }
        if audit.uncounted > 0 || audit.reserved > RESERVE {
            let Audit { uncounted, reserved, .. } = audit;
            faults
                .push(format!("{uncounted} connections are counted nowhere, {reserved} reserved"));
        }
        if audit.cold > audit.connections {
            faults.push(format!("{} cold records for {}", audit.cold, audit.connections));
        }
        let record = self.record.borrow();
        let known = record.members.iter().filter(|((at, _), _)| *at == index);
        let known: usize = known.map(|(_, members)| members.len()).sum();
        if audit.memberships != known {
            faults.push(format!("{} memberships instead of {known}", audit.memberships));
        }
        let mut names: BTreeSet<&String> = BTreeSet::new();
        for ((_, name), members) in &record.members {
            if !members.is_empty() {
                names.insert(name);
            }
        }
        for name in &names {
            let (counted, known) = (self.totals.count(name), record.subscribers(name));
            if counted != known {
                faults.push(format!("{counted} subscribers of {name:?} instead of {known}"));
            }
        }
        let (channels, listed) = (self.totals.channels(), self.totals.list().len());
        if (channels, listed) != (names.len(), names.len()) {
            faults.push(format!("{channels} channels, {listed} listed, instead of {names:?}"));
        }
        drop(record);
        for fault in faults {
            self.violation(format!("shard {index} at {} ms: {fault}", self.now() / 1_000_000));
        }
    }

    /// In another server, the count never returned to 0.
    pub(super) fn check_empty(&mut self) {
        for (index, audit) in self.audits().into_iter().enumerate() {
            let Audit { longest_list, spare, .. } = audit;
            let empty = Audit { longest_list, spare, ..Audit::default() };
            if audit != empty {
                self.violation(format!("shard {index} is not empty: {audit:?}"));
            }
            let driver = self.shards[index].driver().inner();
            if driver.connections() != 0 {
                self.violation(format!("the driver of shard {index} is not empty"));
            }
            let conns = self.shards[index].service().conns();
            if conns != 0 {
                self.violation(format!("shard {index} still knows {conns} that have gone"));
            }
            let stats = self.shards[index].core().stats();
            let gauges = [stats.connections, stats.sessions, stats.streams, stats.backlogged];
            if gauges != [0; 4] {
                self.violation(format!("gauges at the end: {stats:?}"));
            }
        }
    }
}

/// Returns the maximum bytes that may wait for one connection.
fn largest_backlog(plan: &SimPlan, frame: usize) -> usize {
    let limit = plan.limits.max_backlog;
    let rules = (0..plan.rules.count()).map(|class| plan.rules.of(class));
    let cap = |rules: Backpressure| rules.max_backlog.unwrap_or(limit);
    let (mut kept, mut apart, mut drops) = (limit, 0, false);
    for rules in rules {
        kept = kept.max(cap(rules));
        if rules.policy != SlowPolicy::Close {
            // A message of any size may wait if it is the only one of its class.
            apart += cap(rules).max(frame);
            drops = true;
        }
    }
    // Messages that may be dropped follow in chunks. The chunk at the driver can no longer be
    // dropped.
    let chunk = if drops { CHUNK + frame } else { 0 };
    let whole = kept + frame + ONE_TURN + apart + chunk;
    if !sends_fragments(plan, frame) {
        return whole;
    }
    // Before the Close frame of a session, everything that waits is queued in fragments with a
    // header each (RFC 6455 section 5.2). Every message may end with a shorter fragment. A message
    // whose first fragments have left does not count.
    let size = plan.limits.fragment_size;
    let header = if size < 126 { 2 } else { 4 };
    let threshold = plan.limits.fragment_threshold.unwrap_or(usize::MAX);
    let all = whole + frame;
    all + header * (all / size + all / threshold + 1)
}

/// Returns the maximum bytes by which a class may exceed its cap.
fn largest_excess(plan: &SimPlan, frame: usize) -> usize {
    let closes = |class| plan.rules.of(class).policy == SlowPolicy::Close;
    match (0..plan.rules.count()).any(closes) {
        // Fragmented messages wait even for a quick receiver: as much as one turn sends.
        _ if sends_fragments(plan, frame) => plan.limits.max_backlog + frame + ONE_TURN,
        // A queue that is not full takes one message of any size.
        true => frame,
        false => 0,
    }
}

fn sends_fragments(plan: &SimPlan, frame: usize) -> bool {
    plan.limits.fragment_threshold.is_some_and(|threshold| threshold < frame)
}
