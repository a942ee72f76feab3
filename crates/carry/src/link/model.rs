//! Every run of a link with two batches: each message lost, each side ended at each point.
//!
//! The model has two processes, their queues, and what is in the kernel between them. It visits
//! every state that any order of moves and faults reaches, and checks in each that no connection
//! has two owners; and where nothing is left to happen, that a connection is lost only with the
//! process that owned it.

use std::collections::{HashSet, VecDeque};

use super::{Giver, GiverStep, LinkMessage, Taker, TakerStep};
use crate::secret::Secret;

/// Connections of the model, half of them in each batch.
const CONNECTIONS: usize = 4;
const BATCH: usize = 2;

/// The predecessor's process.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Old {
    giver: Giver<usize>,
    queue: VecDeque<LinkMessage>,
    next: usize,
    /// YOURS has left, and the event that reports it is not handled.
    is_report_due: bool,
    knows_end: bool,
    knows_death: bool,
}

/// The successor's process.
#[derive(Clone, PartialEq, Eq, Hash)]
struct New {
    taker: Taker<usize>,
    queue: VecDeque<LinkMessage>,
    knows_end: bool,
    knows_death: bool,
}

/// The truth about a connection, which neither process knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Conn {
    /// The predecessor reads and writes it.
    runs_old: bool,
    /// The successor reads and writes it, or did until its end: its state elsewhere is stale.
    has_run_new: bool,
    /// YOURS for it has left.
    is_given: bool,
    /// It must have an owner at the end: it was not lost with one.
    must_live: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    old: Option<Old>,
    new: Option<New>,
    to_new: VecDeque<LinkMessage>,
    to_old: VecDeque<LinkMessage>,
    is_cut: bool,
    conns: [Conn; CONNECTIONS],
}

/// A rule of the model that is broken on purpose: the checks must find each.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The predecessor trusts the events that it has handled, not the driver.
    DeathBeforeReport,
    /// The predecessor continues a batch as soon as REVOKE is queued.
    ReturnBeforeRevoked,
    /// The predecessor continues a batch at the end of the link.
    ReturnAtLinkEnd,
    /// The successor claims at the end of the link.
    ClaimAtLinkEnd,
    /// The successor does not claim.
    NoClaim,
    /// The predecessor surrenders when YOURS is queued.
    SurrenderBeforeLeft,
}

impl World {
    fn new() -> Self {
        let conn = Conn { runs_old: true, has_run_new: false, is_given: false, must_live: true };
        Self {
            old: Some(Old {
                giver: Giver::default(),
                queue: VecDeque::new(),
                next: 0,
                is_report_due: false,
                knows_end: false,
                knows_death: false,
            }),
            new: Some(New {
                taker: Taker::default(),
                queue: VecDeque::new(),
                knows_end: false,
                knows_death: false,
            }),
            to_new: VecDeque::new(),
            to_old: VecDeque::new(),
            is_cut: false,
            conns: [conn; CONNECTIONS],
        }
    }

    /// Whether the link is closed for new bytes.
    fn is_over(&self) -> bool {
        self.is_cut || self.old.is_none() || self.new.is_none()
    }

    /// Returns the states after each move that needs no fault.
    fn moves(&self, fault: Fault) -> Vec<Self> {
        let mut after = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self) -> bool| {
            let mut world = self.clone();
            if change(&mut world) {
                after.push(world);
            }
        };
        add(&Self::offer);
        add(&|world| world.leave_old(fault));
        add(&Self::leave_new);
        add(&Self::report_left);
        add(&|world| world.receive_old(fault));
        for refused in 0..=BATCH {
            add(&|world| world.receive_new(refused));
        }
        add(&|world| world.notice_end_old(fault));
        add(&|world| world.notice_end_new(fault));
        add(&|world| world.notice_death_old(fault));
        add(&|world| world.notice_death_new(fault));
        after
    }

    /// Returns the states after each fault, and after a stop or a timeout.
    fn faults(&self, fault: Fault) -> Vec<Self> {
        let mut after = Vec::new();
        let mut add = |change: &dyn Fn(&mut Self) -> bool| {
            let mut world = self.clone();
            if change(&mut world) {
                after.push(world);
            }
        };
        add(&|world| world.expire(fault));
        add(&|world| world.stop(fault));
        add(&Self::kill_old);
        add(&Self::kill_new);
        add(&|world| !world.is_over() && !std::mem::replace(&mut world.is_cut, true));
        // A stream loses its last bytes, or none: what follows a lost message is lost as well.
        add(&|world| world.is_cut && world.to_new.pop_back().is_some());
        add(&|world| world.is_cut && world.to_old.pop_back().is_some());
        after
    }

    fn offer(&mut self) -> bool {
        let Some(old) = &mut self.old else { return false };
        if !old.giver.is_ready() || old.next == CONNECTIONS {
            return false;
        }
        let records: Vec<_> = (old.next..old.next + BATCH).map(|at| (at as u64, at)).collect();
        old.next += BATCH;
        for (_, at) in &records {
            self.conns[*at].runs_old = false;
        }
        let message =
            old.giver.offer(records, |at| Secret::from(&[*at as u8][..]), 0).expect("it is ready");
        old.queue.push_back(message);
        true
    }

    fn leave_old(&mut self, fault: Fault) -> bool {
        if self.is_over() {
            return false;
        }
        let Some(old) = &mut self.old else { return false };
        let Some(message) = old.queue.pop_front() else { return false };
        if matches!(message, LinkMessage::Yours { .. }) {
            old.is_report_due = fault != Fault::SurrenderBeforeLeft;
            // The connections of the batch that wait: those that the successor holds.
            let held = self.new.as_ref().map(|new| &new.taker);
            for (at, conn) in self.conns.iter_mut().enumerate() {
                conn.is_given |= held.is_some_and(|taker| taker.holds(at as u64));
            }
        }
        self.to_new.push_back(message);
        true
    }

    fn leave_new(&mut self) -> bool {
        if self.is_over() {
            return false;
        }
        let Some(message) = self.new.as_mut().and_then(|new| new.queue.pop_front()) else {
            return false;
        };
        self.to_old.push_back(message);
        true
    }

    fn report_left(&mut self) -> bool {
        let Some(old) = &mut self.old else { return false };
        if !std::mem::take(&mut old.is_report_due) {
            return false;
        }
        let step = old.giver.handle_yours_left();
        self.run_old(step, Fault::None);
        true
    }

    fn receive_old(&mut self, fault: Fault) -> bool {
        let Some(old) = &mut self.old else { return false };
        if old.knows_death {
            return false;
        }
        let Some(message) = self.to_old.pop_front() else { return false };
        // With a planted fault the other side may break a rule.
        let steps = old.giver.handle_message(message, 0);
        let steps = match fault {
            Fault::None => steps.expect("the successor keeps the rules"),
            _ => steps.unwrap_or_default(),
        };
        self.run_old(steps, fault);
        true
    }

    /// Receives a message; of a batch, the first `refused` connections are refused.
    fn receive_new(&mut self, refused: usize) -> bool {
        let is_batch = matches!(self.to_new.front(), Some(LinkMessage::Batch { .. }));
        if refused > 0 && !is_batch {
            return false;
        }
        let Some(new) = &mut self.new else { return false };
        let Some(message) = self.to_new.pop_front() else { return false };
        let step = match message {
            LinkMessage::Batch { number, records } => {
                let ids: Vec<u64> = records.iter().map(|record| record.id).collect();
                let (left, entered) = ids.split_at(refused);
                if self.old.is_none() {
                    for id in left {
                        // Its owner has ended, and no other process can have it.
                        self.conns[*id as usize].must_live = false;
                    }
                }
                let entered = entered.iter().map(|id| (*id, *id as usize)).collect();
                new.taker.handle_batch(number, entered, left.to_vec()).ok()
            }
            LinkMessage::Yours { number } => new.taker.handle_yours(number).unwrap_or_default(),
            LinkMessage::Revoke { number } => new.taker.handle_revoke(number).unwrap_or_default(),
            _ => unreachable!("the predecessor sends nothing else here"),
        };
        self.run_new(step);
        true
    }

    fn notice_end_old(&mut self, fault: Fault) -> bool {
        let is_over = self.is_over() && self.to_old.is_empty();
        let Some(old) = &mut self.old else { return false };
        if !is_over || std::mem::replace(&mut old.knows_end, true) {
            return false;
        }
        old.queue.clear();
        let step = match fault {
            Fault::ReturnAtLinkEnd => old.giver.handle_death(old.is_report_due),
            _ => old.giver.handle_link_end(),
        };
        self.run_old(step, Fault::None);
        true
    }

    /// The successor's side does nothing at the end of the link, unless a fault is planted.
    fn notice_end_new(&mut self, fault: Fault) -> bool {
        let is_over = self.is_over() && self.to_new.is_empty();
        let Some(new) = &mut self.new else { return false };
        if fault != Fault::ClaimAtLinkEnd || !is_over || std::mem::replace(&mut new.knows_end, true)
        {
            return false;
        }
        let step = new.taker.handle_death();
        self.run_new(step);
        true
    }

    fn notice_death_old(&mut self, fault: Fault) -> bool {
        let is_dead = self.new.is_none();
        let Some(old) = &mut self.old else { return false };
        if !is_dead || std::mem::replace(&mut old.knows_death, true) {
            return false;
        }
        let has_left = old.is_report_due && fault != Fault::DeathBeforeReport;
        let step = old.giver.handle_death(has_left);
        old.is_report_due = false;
        self.run_old(step, Fault::None);
        true
    }

    fn notice_death_new(&mut self, fault: Fault) -> bool {
        let is_dead = self.old.is_none();
        let Some(new) = &mut self.new else { return false };
        if !is_dead || std::mem::replace(&mut new.knows_death, true) {
            return false;
        }
        if fault != Fault::NoClaim {
            let step = new.taker.handle_death();
            self.run_new(step);
        }
        true
    }

    fn expire(&mut self, fault: Fault) -> bool {
        let Some(old) = &mut self.old else { return false };
        let Some(due) = old.giver.deadline() else { return false };
        let step = old.giver.expire(due);
        let has_changed = step.is_some();
        self.run_old(step, fault);
        has_changed
    }

    fn stop(&mut self, fault: Fault) -> bool {
        let Some(old) = &mut self.old else { return false };
        let before = old.giver.clone();
        let step = old.giver.stop(0);
        let has_changed = old.giver != before;
        self.run_old(step, fault);
        has_changed
    }

    fn kill_old(&mut self) -> bool {
        let Some(old) = self.old.take() else { return false };
        let arriving = self.to_new.iter().any(|message| {
            matches!(message, LinkMessage::Batch { number, .. } if *number == old.giver.last())
        });
        let revoked = self.to_new.iter().any(|it| matches!(it, LinkMessage::Revoke { .. }));
        for (at, conn) in self.conns.iter_mut().enumerate() {
            let is_new_s = conn.has_run_new || conn.is_given;
            let is_held = self.new.as_ref().is_some_and(|new| new.taker.holds(at as u64));
            let is_coming = arriving && !conn.runs_old && at < old.next && at >= old.next - BATCH;
            // A cut link may still lose its messages, so nothing is promised for those.
            let is_left = (is_held && !revoked) || (is_coming && !revoked && !self.is_cut);
            conn.must_live &= self.new.is_some() && (is_new_s || is_left);
            conn.runs_old = false;
        }
        true
    }

    fn kill_new(&mut self) -> bool {
        if self.new.take().is_none() {
            return false;
        }
        for conn in &mut self.conns {
            conn.must_live &= self.old.is_some() && !conn.has_run_new && !conn.is_given;
        }
        true
    }

    fn run_old(&mut self, steps: impl IntoIterator<Item = GiverStep<usize>>, fault: Fault) {
        for step in steps {
            let Some(old) = &mut self.old else { return };
            match step {
                GiverStep::Send(message) => {
                    let is_revoke = matches!(message, LinkMessage::Revoke { .. });
                    let is_yours = matches!(message, LinkMessage::Yours { .. });
                    old.queue.push_back(message);
                    let planted = match fault {
                        Fault::ReturnBeforeRevoked if is_revoke => old.giver.handle_death(false),
                        Fault::SurrenderBeforeLeft if is_yours => old.giver.handle_yours_left(),
                        _ => None,
                    };
                    self.run_old(planted, Fault::None);
                }
                GiverStep::Return(records) => {
                    for (_, at) in records {
                        self.conns[at].runs_old = true;
                    }
                }
                GiverStep::Surrender(_) | GiverStep::Stalled => {}
            }
        }
    }

    fn run_new(&mut self, step: Option<TakerStep<usize>>) {
        let (Some(step), Some(new)) = (step, &mut self.new) else { return };
        match step {
            TakerStep::Send(message) | TakerStep::Forget(_, message) => {
                new.queue.push_back(message);
            }
            TakerStep::Continue(records) => {
                for (_, at) in records {
                    self.conns[at].has_run_new = true;
                }
            }
        }
    }

    /// Returns the rule that this state breaks.
    fn broken_rule(&self) -> Option<&'static str> {
        for (at, conn) in self.conns.iter().enumerate() {
            let is_held = self.new.as_ref().is_some_and(|new| new.taker.holds(at as u64));
            if conn.runs_old && conn.has_run_new {
                return Some("two owners");
            }
            if conn.runs_old && is_held {
                return Some("the successor has the record of a connection that goes on");
            }
        }
        None
    }

    /// Returns the rule that is broken if nothing but a fault can happen.
    fn broken_at_rest(&self) -> Option<&'static str> {
        // A process with a batch under way rests until the other has ended.
        let old_waits = self.new.is_some()
            && self.old.as_ref().is_some_and(|old| old.giver.is_busy() && self.is_cut);
        let new_waits = self.old.is_some()
            && self.new.as_ref().is_some_and(|new| new.taker.is_holding() && self.is_cut);
        for conn in &self.conns {
            let has_owner =
                conn.runs_old && self.old.is_some() || conn.has_run_new && self.new.is_some();
            if conn.must_live && !has_owner && !old_waits && !new_waits {
                return Some("a connection was lost without its owner");
            }
        }
        None
    }
}

/// Visits every state; returns their number, or the rule that one breaks.
fn explore(fault: Fault) -> Result<usize, &'static str> {
    let mut seen = HashSet::from([World::new()]);
    let mut open = vec![World::new()];
    while let Some(world) = open.pop() {
        if let Some(rule) = world.broken_rule() {
            return Err(rule);
        }
        let moves = world.moves(fault);
        if moves.is_empty()
            && let Some(rule) = world.broken_at_rest()
        {
            return Err(rule);
        }
        for next in moves.into_iter().chain(world.faults(fault)) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_connection_has_two_owners_and_none_is_lost_without_its_owner() {
    let states = explore(Fault::None).unwrap();
    assert!(states > 1_000, "only {states} states were visited");
}

#[test]
fn each_planted_fault_is_found() {
    for (fault, name) in [
        (Fault::DeathBeforeReport, "death before report"),
        (Fault::ReturnBeforeRevoked, "return before revoked"),
        (Fault::ReturnAtLinkEnd, "return at the end of the link"),
        (Fault::ClaimAtLinkEnd, "claim at the end of the link"),
        (Fault::NoClaim, "no claim"),
        (Fault::SurrenderBeforeLeft, "surrender before it has left"),
    ] {
        assert!(explore(fault).is_err(), "{name} was not found");
    }
}
