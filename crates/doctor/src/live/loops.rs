//! Rules about event loops.

use serde_json::Value;

use super::{LiveRule, Readings, absent, percent, warn_unless};
use crate::finding::{Remedy, Verdict};
use crate::numbers::{count, plural};

/// The shortest turn that counts as long, in seconds.
const LONG_TURN: f64 = 0.05;

pub(super) const RULES: &[LiveRule] = &[
    LiveRule {
        id: "live-shards",
        title: "one event loop that is busy while the others idle",
        reads: "the CPU time of the event loops' threads, shard_connections",
        formula: "the busiest event loop wants less than 70 % of a CPU, or the others use more \
                  than a quarter of its CPU time on average",
        about: "One CPU is the limit of all: the connections, the publishers or one handler's \
                work are on one event loop. What it wants is its CPU time and the time for which \
                it was ready to run.",
        check: shards,
    },
    LiveRule {
        id: "live-lag",
        title: "turns of event loops that take long",
        reads: "loop_lag, and the time for which event loops were ready to run without a CPU",
        formula: "at most two turns took longer than 67 ms, or waiting for a CPU explains half of \
                  their time",
        about: "An event waits until the turn before has ended. Long turns are blocking handlers \
                (live-stalls has the route), publications to very many clients, or memory that is \
                swapped.",
        check: lag,
    },
];

fn shards(it: &Readings<'_>) -> Verdict {
    let loops = it.loops();
    let busiest = loops.iter().enumerate().max_by(|(_, a), (_, b)| a.cpu.total_cmp(&b.cpu));
    let (Some((at, busiest)), true) = (busiest, loops.len() > 1) else {
        return Verdict::skip("there is one event loop, or its CPU time is not known");
    };
    // From 100 on, numbers are cut off in names of threads.
    if loops.iter().any(|it| it.threads > 1) {
        return Verdict::skip("there are too many event loops to distinguish");
    }
    let all: f64 = loops.iter().map(|it| it.cpu).sum();
    let others = (all - busiest.cpu) / (loops.len() - 1) as f64;
    let wants = busiest.wanted() / it.seconds;
    let is_fine = wants < 0.7 || busiest.cpu < 0.05 * it.seconds || others > 0.25 * busiest.cpu;
    let connections: Option<Vec<u64>> = it.after["shard_connections"]
        .as_array()
        .and_then(|all| all.iter().map(Value::as_u64).collect());
    let with = match connections.as_deref() {
        Some(each) if each.len() == loops.len() => {
            let number = busiest.name.rsplit('-').next().and_then(|it| it.parse::<usize>().ok());
            let its = each[number.filter(|number| *number < each.len()).unwrap_or(at)];
            format!(", with {} of {} connections", count(its), count(each.iter().sum()))
        }
        _ => String::new(),
    };
    let found = format!(
        "{} wants {} of a CPU, the others use {}{with}",
        busiest.name,
        percent(wants),
        percent(others / it.seconds)
    );
    warn_unless(is_fine, found).wanted("even loads").because("one CPU is the limit of all").remedy(
        Remedy::Code(
            "spread clients and publishers over more connections, and offload work of handlers"
                .to_owned(),
        ),
    )
}

fn lag(it: &Readings<'_>) -> Verdict {
    let Some(buckets) = growths(it) else { return absent("loop_lag") };
    let loops = it.loops();
    if loops.is_empty() {
        return Verdict::skip("the time for which event loops waited for a CPU is not known");
    }
    let first = buckets.iter().position(|(shortest, _)| *shortest >= LONG_TURN);
    let long = first.map(|first| &buckets[first..]).unwrap_or_default();
    let turns: u64 = long.iter().map(|(_, turns)| turns).sum();
    let least: f64 = long.iter().map(|(shortest, turns)| shortest * *turns as f64).sum();
    let waited: f64 = loops.iter().map(|it| it.run_delay).sum();
    let found = match turns {
        0 => "none".to_owned(),
        _ => format!("{} longer than {:.0} ms", plural(turns, "turn"), long[0].0 * 1e3),
    };
    warn_unless(turns < 3 || least < 2.0 * waited, found)
        .wanted("none")
        .because("each event waits for the turn before, and the machine was not the cause")
        .remedy(Remedy::Code("offload the work, or publish in smaller parts".to_owned()))
}

/// Returns the turns in between by the duration that they exceeded.
fn growths(it: &Readings<'_>) -> Option<Vec<(f64, u64)>> {
    let up_to = |reading: &Value| -> Option<Vec<(f64, u64)>> {
        let bucket = |row: &Value| Some((row[0].as_f64()?, row[1].as_u64()?));
        reading["loop_lag"].as_array()?.iter().map(bucket).collect()
    };
    let (before, after) = (up_to(it.before)?, up_to(it.after)?);
    let all = it.growth("loop_lag_count")?;
    let mut grown = Vec::new();
    let mut below =
        after.iter().zip(&before).map(|(now, earlier)| (now.0, now.1.saturating_sub(earlier.1)));
    let mut last = below.next()?;
    for (bound, turns) in below {
        grown.push((last.0, turns.saturating_sub(last.1)));
        last = (bound, turns);
    }
    grown.push((last.0, all.saturating_sub(last.1)));
    Some(grown)
}
