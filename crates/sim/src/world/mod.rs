//! A run: real shards on simulated drivers, the peers of a plan, one clock, one thread.
//!
//! The world picks at random among all parts that have something to do now. If there are none, the
//! clock jumps to the next time at which a part has something to do.

mod balancer;
mod bounds;
mod checks;
mod outside;
mod transcript;

use std::net::SocketAddr;
use std::sync::Arc;

use throng_engine::{Audit, Built, ClassCounters, Remote, Shard, Snapshot, Stats, Totals, build};
use throng_tls::Tls;

use self::balancer::Balancer;
use self::bounds::Departures;
pub use self::outside::OUTSIDER;
use crate::driver::{SimDriver, Waiting};
use crate::net::{Net, SharedNet, Side};
use crate::peer::Peer;
use crate::plan::{Outside, SECOND, SimPlan};
use crate::record::{Attempts, Record, SharedRecord};
use crate::rng::Rng;
use crate::secured::{Configurations, Hops, is_ready};
use crate::service::Probe;

/// Maximum steps of a run. A longer run counts as endless.
const MAX_STEPS: u64 = 10_000_000;

/// The result of a run.
#[derive(Debug)]
pub struct WorldOutcome {
    /// All broken rules; empty if no rule was broken.
    pub violations: Vec<String>,
    /// The hash of all that happened.
    pub trace: u64,
    /// The shards' figures, added up.
    pub stats: Stats,
    /// Steps taken.
    pub steps: u64,
    /// Virtual nanoseconds.
    pub elapsed: u64,
    /// Connections that a drain had to force, by shard; `None` for those that did not drain.
    pub forced: Vec<Option<usize>>,
}

/// A run of a plan.
pub struct World {
    /// The plan.
    pub plan: SimPlan,
    /// The network.
    pub net: SharedNet,
    /// The record of the service's callbacks.
    pub record: SharedRecord,
    /// The peers that have come, by number.
    pub peers: Vec<Option<Peer>>,
    /// The shards; empty after the process has ended.
    pub shards: Vec<Shard<Tls<SimDriver>, Probe>>,
    /// The handle that other threads use to reach the shards.
    pub remote: Remote,
    /// The shards' figures, at most a second old.
    pub snapshots: Arc<[Arc<Snapshot>]>,
    /// Subscribers over all shards.
    pub totals: Arc<Totals>,
    /// Pending events, sorted with the latest first.
    outside: Vec<(u64, Outside)>,
    listeners: Vec<usize>,
    balancer: Option<Balancer>,
    departures: Vec<Departures>,
    forced: Vec<Option<usize>>,
    arrivals: Vec<usize>,
    rng: Rng,
    /// The TLS configurations of the peers, if the run uses TLS, and the random numbers for them.
    tls: Option<(Configurations, Rng)>,
    steps: u64,
    drained: bool,
    last_activity: u64,
    gave_up: bool,
}

impl World {
    /// Creates a world at the beginning of its run.
    ///
    /// # Panics
    /// If the plan's limits contradict each other.
    #[must_use]
    pub fn new(plan: SimPlan) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x0077_6f72_6c64);
        let (net, record) = (Net::shared(), SharedRecord::default());
        let log = std::env::var_os("THRONG_SIM_LOG").is_some();
        (net.borrow_mut().log, record.borrow_mut().log) = (log, log);
        let tls = plan.secured.any().then(Configurations::new);
        net.borrow_mut().is_secured = tls.is_some();
        let Hops { front, back } = plan.secured;
        let is_server_secured = if plan.balancer.is_some() { back } else { front };
        let mut listeners = Vec::new();
        let drivers = (0..plan.shards as u16)
            .map(|shard| {
                let mut driver =
                    SimDriver::new(&net, shard, plan.faults.clone(), rng.fork(), Waiting::Never);
                let listener = net.borrow_mut().listen(server_address(shard));
                listeners.push(listener);
                let listener = driver.add_listener(listener);
                let mut driver = Tls::new(driver);
                if let Some(tls) = tls.as_ref().filter(|_| is_server_secured) {
                    driver.secure(listener, Arc::clone(&tls.listeners));
                }
                driver
            })
            .collect();
        let servers = (0..plan.shards as u16).map(server_address);
        let servers: Vec<_> = servers.collect();
        let balancer = plan.balancer.is_some().then(|| {
            let tls = tls.as_ref();
            Balancer::new(&plan, &net, &servers, tls, &mut rng)
        });
        let shards = plan.shards;
        let service = |shard: usize, admission: &Arc<_>, _: &_| {
            let admission = Arc::clone(admission);
            Probe::new(SharedRecord::clone(&record), admission, shard, shards)
        };
        {
            let mut record = record.borrow_mut();
            record.net = Some(SharedNet::clone(&net));
            record.rules = plan.rules.clone();
            record.wildcards = plan.wildcards;
            record.max_backlog = plan.limits.max_backlog;
            record.attempts = vec![Attempts::default(); plan.rules.count()];
        }
        let Built { shards, remote, snapshots, totals, .. } =
            build(drivers, &plan.options(), service).expect("the plan's limits are valid");
        let mut arrivals: Vec<usize> = (0..plan.parts.len()).collect();
        arrivals.sort_by_key(|index| std::cmp::Reverse(plan.parts[*index].at));
        let plan_outside = plan.outside.clone();
        let plan_seed = plan.seed;
        Self {
            peers: plan.parts.iter().map(|_| None).collect(),
            departures: vec![Departures::default(); shards.len()],
            forced: shards.iter().map(|_| None).collect(),
            plan,
            net,
            record,
            shards,
            remote,
            snapshots,
            totals,
            outside: {
                let mut outside = plan_outside;
                outside.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
                outside
            },
            listeners,
            balancer,
            arrivals,
            tls: tls.map(|tls| (tls, Rng::new(plan_seed ^ 0x0074_6c73))),
            rng,
            steps: 0,
            drained: false,
            last_activity: 0,
            gave_up: false,
        }
    }

    /// Runs to the end, checks, and returns the result.
    #[must_use]
    pub fn run(mut self) -> WorldOutcome {
        while self.step() {}
        self.finish()
    }

    /// Runs until `holds` returns true, or to the end. Returns whether it returned true.
    pub fn run_until(&mut self, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            if holds(self) {
                return true;
            }
            if !self.step() {
                return false;
            }
        }
    }

    /// Virtual nanoseconds since the beginning.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.net.borrow().now()
    }

    /// The peer with this number, which must have come.
    ///
    /// # Panics
    /// If it has not come yet.
    #[must_use]
    pub fn peer(&self, number: usize) -> &Peer {
        self.peers[number].as_ref().expect("this peer has come")
    }

    /// The figures of all shards, added up.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for shard in &self.shards {
            sum.add(shard.core().stats());
        }
        sum
    }

    /// Returns the counts of each class's messages, on all shards, as the snapshots report them.
    #[must_use]
    pub fn figures(&self) -> Vec<ClassCounters> {
        let mut sums = vec![ClassCounters::default(); self.plan.rules.count()];
        for snapshot in self.snapshots.iter() {
            for (sum, (_, _, figures)) in sums.iter_mut().zip(snapshot.classes()) {
                sum.add(&figures);
            }
        }
        sums
    }

    /// Returns the audit of each shard.
    #[must_use]
    pub fn audits(&self) -> Vec<Audit> {
        self.shards.iter().map(Shard::audit).collect()
    }

    /// Performs one step. Returns false if no more events will follow.
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        if self.steps > MAX_STEPS {
            self.violation("the run does not end".to_owned());
            return false;
        }
        self.net.borrow_mut().advance_to(0);
        for shard in &mut self.shards {
            shard.driver().inner().progress();
        }
        let now = self.now();
        let mut ready = Vec::new();
        let mut next: Option<u64> = None;
        let mut note = |who: Next, at: u64, ready: &mut Vec<Next>| match at <= now {
            true => ready.push(who),
            false => next = Some(next.map_or(at, |known: u64| known.min(at))),
        };
        for (index, shard) in self.shards.iter_mut().enumerate() {
            if self.forced[index].is_some() {
                continue;
            }
            if is_ready(shard.driver()) {
                note(Next::Shard(index), now, &mut ready);
                continue;
            }
            let deadline = shard.next_deadline().map(|deadline| deadline.0);
            let event = shard.driver().inner().next_event_at();
            if let Some(at) = [deadline, event].into_iter().flatten().min() {
                note(Next::Shard(index), at, &mut ready);
            }
        }
        for (index, at) in self.balancer.iter_mut().flat_map(Balancer::due) {
            note(Next::Balancer(index), at, &mut ready);
        }
        let mut net = self.net.borrow_mut();
        for (index, peer) in self.peers.iter().enumerate() {
            if let Some(at) = peer.as_ref().and_then(|peer| peer.due(&mut net)) {
                note(Next::Peer(index), at, &mut ready);
            }
        }
        drop(net);
        if let Some(index) = self.arrivals.last() {
            note(Next::Arrival, self.plan.parts[*index].at, &mut ready);
        }
        if let Some((at, _)) = self.outside.last() {
            note(Next::Outside, *at, &mut ready);
        }
        if let Some(((at, _), _)) = self.record.borrow().deliveries.first_key_value() {
            note(Next::Delivery, *at, &mut ready);
        }
        if let Some(drain) = self.plan.drain.filter(|_| !self.drained) {
            note(Next::Drain, drain.at, &mut ready);
        }
        if ready.is_empty() {
            return self.jump(next);
        }
        match ready[self.rng.below(ready.len())] {
            Next::Shard(index) => self.turn(index),
            Next::Balancer(index) => self.turn_balancer(index),
            Next::Peer(index) => {
                self.last_activity = now;
                if let Some(peer) = &mut self.peers[index] {
                    peer.run(&mut self.net.borrow_mut());
                }
            }
            Next::Arrival => self.arrive(),
            Next::Outside => {
                if let Some((_, outside)) = self.outside.pop() {
                    self.act(outside);
                }
            }
            Next::Delivery => self.deliver(),
            Next::Drain => self.drain(),
        }
        true
    }

    /// Advances time, because no part of the run has anything to do now.
    fn jump(&mut self, next: Option<u64>) -> bool {
        let over = self.arrivals.is_empty()
            && self.outside.is_empty()
            && (self.plan.drain.is_none() || self.drained)
            && self.shards.iter_mut().all(|shard| shard.driver().inner().connections() == 0)
            && self.balancer.as_ref().is_none_or(|balancer| balancer.connections() == 0)
            && self.peers.iter().flatten().all(|peer| peer.end.is_some());
        if over && (next.is_none() || self.all_stopped()) {
            return false;
        }
        if self.all_stopped() && !self.shards.is_empty() {
            self.exit();
            return true;
        }
        let Some(next) = next else {
            // Every part waits for another, and only the network can end this.
            return self.give_up("nothing more will happen, and not all are gone");
        };
        let time_limit = self.last_activity + self.plan.time_limit();
        let planned = !self.record.borrow().deliveries.is_empty()
            || self.peers.iter().flatten().any(|peer| peer.end.is_none() && peer.has_plans());
        if self.now() > time_limit && !self.gave_up && !planned {
            return self.give_up("a peer outstays every timeout");
        }
        self.net.borrow_mut().advance_to(next);
        true
    }

    /// Resets the remaining peers. Their existence is a fault of the engine, unless heartbeats are
    /// off and the peers only stay connected.
    fn give_up(&mut self, why: &str) -> bool {
        if std::mem::replace(&mut self.gave_up, true) {
            self.violation(format!("{why}, even after resets"));
            return false;
        }
        // Clock leaps affect the peers' clock, but not their time limits.
        let sessions: usize = self.audits().iter().map(|audit| audit.sessions).sum();
        let connections: usize = self.audits().iter().map(|audit| audit.connections).sum();
        let unresponsive =
            self.peers.iter().flatten().all(|peer| peer.end.is_some() || peer.is_unresponsive());
        let excused = self.plan.limits.heartbeat_interval.is_none() && sessions == connections
            || connections == 0 && unresponsive;
        if !excused && self.plan.faults.clock_leaps == 0 {
            let who: Vec<&str> = self
                .peers
                .iter()
                .flatten()
                .filter(|peer| peer.end.is_none())
                .map(|peer| self.plan.parts[peer.number as usize].name)
                .collect();
            self.violation(format!("{why}: {connections} connections, peers {who:?}"));
        }
        for peer in self.peers.iter().flatten() {
            self.net.borrow_mut().give_up(peer.link);
        }
        self.last_activity = self.now();
        true
    }

    fn all_stopped(&self) -> bool {
        self.forced.iter().all(Option::is_some)
    }

    /// Ends the process, which closes everything that it still holds.
    fn exit(&mut self) {
        self.check_empty();
        self.shards.clear();
        let mut net = self.net.borrow_mut();
        for listener in &self.listeners {
            net.stop_listening(*listener);
        }
        net.advance_to(0);
    }

    fn arrive(&mut self) {
        let Some(index) = self.arrivals.pop() else { return };
        let part = &self.plan.parts[index];
        let listeners = match &self.balancer {
            Some(balancer) => &balancer.listeners,
            None => &self.listeners,
        };
        let listener = listeners[self.rng.below(listeners.len())];
        let from = SocketAddr::from(([127, 0, 0, part.address], 10_000 + index as u16));
        let mut net = self.net.borrow_mut();
        let Some(link) = net.dial(listener, from, part.link) else { return };
        net.say(|| format!("peer {index} comes ({})", part.name));
        if let Some((tls, rng)) = self.tls.as_mut().filter(|_| self.plan.secured.front) {
            net.secure(link, Side::Dialer, tls.client(rng));
        }
        let peer = Peer::new(index as u32, link, part, net.now(), self.rng.fork());
        drop(net);
        self.peers[index] = Some(peer);
    }

    /// Posts an event of another thread to a connection.
    fn deliver(&mut self) {
        self.last_activity = self.now();
        let Some((_, note)) = self.record.borrow_mut().deliveries.pop_first() else { return };
        self.net.borrow().say(|| format!("delivers {note:?}"));
        self.remote.post(note.to, Box::new(note));
    }

    fn drain(&mut self) {
        self.drained = true;
        if let Some(drain) = self.plan.drain
            && self.remote.drain(drain.plan).is_err()
        {
            self.violation("the mailboxes are full".to_owned());
        }
    }

    fn turn(&mut self, index: usize) {
        let turned = self.shards[index].turn();
        // The simulated duration of a turn.
        let now = self.now();
        self.net.borrow_mut().advance_to(now + 1_000);
        match turned {
            Ok(stopped) => self.forced[index] = stopped,
            Err(error) => self.violation(format!("a turn failed: {error}")),
        }
        let spins = self.shards[index].driver().inner().calls.idle_turns_in_a_row;
        if spins > 20 {
            self.violation(format!("shard {index} spins: {spins} turns for nothing"));
        }
        self.record.borrow_mut().note_ended_streams();
        self.note_departures(index);
        if self.steps.is_multiple_of(4) {
            self.check_bounds(index);
        }
    }

    fn turn_balancer(&mut self, index: usize) {
        let faults = self.balancer.as_mut().map_or(Vec::new(), |balancer| balancer.turn(index));
        let now = self.now();
        let mut net = self.net.borrow_mut();
        net.advance_to(now + 1_000);
        // The record has only connections of the server.
        net.ended.retain(|id| !balancer::is_own(*id));
        drop(net);
        faults.into_iter().for_each(|fault| self.violation(fault));
    }

    /// Returns the tunnels that the balancer has opened.
    #[must_use]
    pub fn tunnels_opened(&self) -> u64 {
        self.balancer.as_ref().map_or(0, Balancer::tunnels_opened)
    }

    pub(crate) fn violation(&self, what: String) {
        self.record.borrow_mut().violation(what);
    }

    /// Checks the conditions that only hold at the end.
    #[must_use]
    pub fn finish(mut self) -> WorldOutcome {
        let stats = self.stats();
        if !self.shards.is_empty() {
            self.check_empty();
            for (index, shard) in self.shards.iter().enumerate() {
                if self.forced[index].is_none() && shard.next_deadline().is_some() {
                    let idle = format!("shard {index} is idle and does not sleep");
                    self.record.borrow_mut().violation(idle);
                }
            }
        }
        {
            let mut record = self.record.borrow_mut();
            record.note_ended_streams();
            for fault in record.lifecycle.faults() {
                record.violation(fault);
            }
        }
        for failure in self.net.borrow().failures() {
            self.violation(failure.clone());
        }
        for fault in self.balancer.iter().flat_map(Balancer::at_the_end) {
            self.violation(fault);
        }
        checks::at_the_end(&self, &stats);
        let record: &Record = &self.record.borrow();
        let mut trace = self.net.borrow().trace.clone();
        trace.mix(record.trace.value());
        let elapsed = self.now();
        trace.mix(elapsed);
        WorldOutcome {
            violations: record.violations.clone(),
            trace: trace.value(),
            stats,
            steps: self.steps,
            elapsed,
            forced: self.forced.clone(),
        }
    }

    /// Returns whether the drain was requested.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.drained
    }
}

/// Returns the address of the server's shard of that number.
fn server_address(shard: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1234 + shard))
}

/// A part of the run that may act next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Shard(usize),
    Balancer(usize),
    Peer(usize),
    Arrival,
    Outside,
    Delivery,
    Drain,
}

/// Runs one seed and returns the broken rules, with the command that repeats it.
///
/// # Errors
/// The text to print.
pub fn run_seed(seed: u64) -> Result<WorldOutcome, String> {
    run_plan(SimPlan::of(seed), "seeds")
}

/// Runs one seed with a balancer between the peers and the server.
///
/// # Errors
/// The text to print.
pub fn run_chained_seed(seed: u64) -> Result<WorldOutcome, String> {
    run_plan(SimPlan::chained(seed), "chain")
}

/// Runs one seed with TLS, and with a balancer if it is an odd one.
///
/// # Errors
/// The text to print.
pub fn run_secured_seed(seed: u64) -> Result<WorldOutcome, String> {
    run_plan(SimPlan::secured(seed), "secured")
}

/// Runs a plan of `test`.
fn run_plan(plan: SimPlan, test: &str) -> Result<WorldOutcome, String> {
    let seed = plan.seed;
    let outcome = World::new(plan).run();
    if outcome.violations.is_empty() {
        return Ok(outcome);
    }
    let list = outcome.violations.join("\n  ");
    Err(format!(
        "seed {seed}, after {} ms:\n  {list}\n\
         repeat: THRONG_SIM_SEED={seed} cargo test -p throng-sim --test all {test}::",
        outcome.elapsed / (SECOND / 1000)
    ))
}
