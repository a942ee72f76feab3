//! Heartbeats, which failed in other servers: a connection accepted after the last ping round was
//! closed early; one failure stopped the sweep; interval 0 caused a flood.

use std::time::Duration;

use throng_engine::Limits;
use throng_sim::{Do, End, Expect, Pace, SECOND, SimPlan, World, WorldOutcome};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A calm world with this heartbeat.
fn plan(interval: u64, timeout: u64) -> SimPlan {
    let limits = Limits::default();
    let mut plan = SimPlan::calm(1);
    plan.limits = limits;
    plan.limits.heartbeat_interval = (interval > 0).then(|| secs(interval));
    plan.limits.heartbeat_timeout = secs(timeout);
    plan
}

/// Runs until all peers have left, and checks the general rules.
fn run(plan: SimPlan) -> (Vec<PeerEnd>, WorldOutcome) {
    let mut world = World::new(plan);
    while world.step() {}
    let ends = (0..world.plan.parts.len())
        .map(|number| {
            let peer = world.peer(number);
            let (end, at) = peer.end.expect("everybody has gone");
            PeerEnd { pings: peer.reader.pings.clone(), end, after: at - peer.began }
        })
        .collect();
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    (ends, outcome)
}

struct PeerEnd {
    pings: Vec<u64>,
    end: End,
    after: u64,
}

fn polite_for(seconds: u64) -> Vec<Do> {
    vec![Do::UntilOpen, Do::Pause(seconds * SECOND), Do::Close(1000)]
}

/// Returns the script of a peer that reads, and never sends anything again.
fn silent() -> Vec<Do> {
    vec![Do::UntilOpen, Do::Pause(1000 * SECOND), Do::Reset]
}

#[test]
fn a_silent_peer_is_pinged_every_interval_and_stays() {
    let mut plan = plan(8, 3);
    plan.add("polite", Expect::Clean, polite_for(100));
    let (ends, _) = run(plan);
    let pings = ends[0].pings.len();
    // Pings are up to a quarter of the interval and a second early, so that they do not all leave
    // at once.
    assert!((11..=20).contains(&pings), "{pings} pings in 100 s with an interval of 8 s");
    let gaps = ends[0].pings.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(gaps.min().is_some_and(|gap| gap >= 4 * SECOND), "pings in a row: {:?}", ends[0].pings);
}

#[test]
fn pings_come_only_after_silence() {
    let mut plan = plan(8, 3);
    let mut script = vec![Do::UntilOpen];
    for _ in 0..30 {
        script.push(Do::Pause(4 * SECOND));
        script.push(Do::Ping(b"I live".to_vec()));
    }
    script.push(Do::Close(1000));
    plan.add("talkative", Expect::Clean, script.clone());
    let (ends, _) = run(plan.clone());
    assert_eq!(ends[0].pings, [0_u64; 0]);
    plan.limits.heartbeat_always = true;
    let (ends, _) = run(plan);
    assert!(ends[0].pings.len() > 10, "always means always: {:?}", ends[0].pings);
}

#[test]
fn a_timeout_shorter_than_the_interval() {
    let mut plan = plan(20, 2);
    let number = plan.add("silent", Expect::Anything, silent());
    plan.parts[number].polite = false;
    let (ends, outcome) = run(plan);
    assert_eq!((ends[0].end, ends[0].pings.len()), (End::Reset, 1));
    assert!((15 * SECOND..=24 * SECOND).contains(&ends[0].after), "after {}", ends[0].after);
    assert_eq!((outcome.stats.timeouts, outcome.stats.closed_abnormally), (1, 1));
}

#[test]
fn a_timeout_longer_than_the_interval() {
    let mut plan = plan(4, 30);
    let number = plan.add("silent", Expect::Anything, silent());
    plan.parts[number].polite = false;
    let (ends, _) = run(plan);
    // One ping is enough: it is not repeated while it is unanswered.
    assert_eq!((ends[0].end, ends[0].pings.len()), (End::Reset, 1));
    assert!((32 * SECOND..=36 * SECOND).contains(&ends[0].after), "after {}", ends[0].after);
}

#[test]
fn accepted_just_after_or_just_before_a_sweep_is_not_closed_early() {
    for offset in [1_000, 500_000_000, 999_990_000] {
        let mut plan = plan(4, 2);
        // Another connection keeps the sweep going.
        plan.add("polite", Expect::Clean, polite_for(30));
        let number = plan.add("silent", Expect::Anything, silent());
        plan.parts[number].polite = false;
        plan.parts[number].at = 7 * SECOND + offset;
        let (ends, _) = run(plan);
        assert!(ends[1].after >= 4 * SECOND, "closed after {} at offset {offset}", ends[1].after);
        assert!(ends[1].after <= 9 * SECOND, "closed after {} at offset {offset}", ends[1].after);
    }
}

#[test]
fn without_an_interval_there_are_no_pings_and_no_spin() {
    let mut plan = plan(0, 2);
    for _ in 0..20 {
        plan.add("polite", Expect::Clean, polite_for(300));
    }
    let (ends, outcome) = run(plan);
    assert!(ends.iter().all(|end| end.pings.is_empty() && end.after >= 300 * SECOND));
    assert_eq!(outcome.stats.pings, 0);
    // One sweep per second, and a few turns for each connect and disconnect.
    assert!(outcome.stats.turns < 300 + 20 * 12 + 20, "{} turns", outcome.stats.turns);
}

#[test]
fn one_that_fails_does_not_stop_the_round() {
    let mut plan = plan(4, 3);
    for number in 0..30 {
        match number % 3 {
            0 => plan.add("polite", Expect::Clean, polite_for(60)),
            1 => plan.add("gone", Expect::Anything, vec![Do::UntilOpen, Do::Vanish]),
            _ => {
                let script = vec![Do::UntilOpen, Do::Read(Pace::Never)];
                plan.add("unresponsive", Expect::Anything, script)
            }
        };
    }
    let mut world = World::new(plan);
    // All that do not answer are ended; all that do stay.
    assert!(world.run_until(|world| world.now() > 20 * SECOND));
    assert_eq!(world.audits()[0].sessions, 10);
    while world.step() {}
    let outcome = world.finish();
    assert_eq!(outcome.violations, [""; 0]);
}
