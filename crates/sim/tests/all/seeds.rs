//! A thousand seeds, and every seed that ever failed.
//!
//! `THRONG_SIM_SEED=7` runs only that seed, `THRONG_SIM_SEEDS=100000` that many, from
//! `THRONG_SIM_FROM` on.

use throng_sim::{Seeds, hush_planned_panics, run_seed};

/// Seeds that once found a fault. The meaning of a seed changes with the plans, so this list keeps
/// the seed and not the case; each case has its own test in accidents.rs, or one seed in a few
/// hundred finds it again.
const REGRESSIONS: &[u64] = &[
    28,   // an idle peer timed out while its pongs were not read
    58,   // answers refused while the last one was in flight
    137,  // a slow reader timed out for not answering a ping that we kept from it
    143,  // a closing connection cut off while its output still left
    1353, // a write to a side that is gone, in two pieces
    5277, // a message that came together with the Close ended it again as too slow
    16,   // a stream of events that was to end was sent what was published after
    6089, // all that waited grew too old, and its receiver was never read again
    6359, // the same, until the end of time
    415,  // a lingering connection cut off while the kernel still held its answer
    6119, // long messages a byte at a time: as many steps as ever
    8397, // a drain queued all that waited for one session, a header for each byte
];

const SEEDS: Seeds =
    Seeds { package: "throng-sim", test: "seeds", run: |seed| run_seed(seed).map(drop) };

#[test]
fn a_thousand_seeds_break_no_rule() {
    hush_planned_panics();
    SEEDS.check_many();
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    hush_planned_panics();
    SEEDS.check(REGRESSIONS.to_vec());
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    hush_planned_panics();
    for seed in 0..100 {
        let trace = || throng_sim::World::new(throng_sim::SimPlan::of(seed)).run().trace;
        assert_eq!(trace(), trace(), "seed {seed} is not deterministic");
    }
}
