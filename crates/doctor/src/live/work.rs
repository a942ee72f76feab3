//! Rules about work that is done in vain, or in the wrong place.

use serde_json::Value;

use super::{LiveRule, Readings, absent, percent, warn_unless};
use crate::finding::{Remedy, Verdict};
use crate::numbers::{count, plural, size};

/// Less than this compressed between two readings has no meaning.
const MIN_DEFLATED: u64 = 64 << 10;

/// Messages that repeat the one before, from which on a loop sends them.
const MIN_REPEATED: u64 = 100;

pub(super) const RULES: &[LiveRule] = &[
    LiveRule {
        id: "live-deflate",
        title: "compression that saves nothing",
        reads: "deflate_input_bytes, deflate_output_bytes, deflate_kept_bytes",
        formula: "what is compressed shrinks to at most 95 %, or is less than 64 KiB",
        about: "Pictures, archives and encrypted data do not shrink: compressing them costs CPU \
                time for nothing.",
        check: deflate,
    },
    LiveRule {
        id: "live-stalls",
        title: "handlers that block their event loop",
        reads: "stalls, by route",
        formula: "the handlers of each route hold their event loop for stall_warning (50 ms) at \
                  most once",
        about: "All connections of an event loop wait while a handler computes, or waits for a \
                database, a file or a lock. Time for which the system did not run the thread is \
                not counted.",
        check: stalls,
    },
    LiveRule {
        id: "live-workers",
        title: "a pool of workers that is full while they block",
        reads: "workers, and the CPU time of their threads",
        formula: "jobs do not wait at both readings, or the workers use half of their time on a \
                  CPU",
        about: "Jobs wait for a worker, and the workers wait for something else: more of them \
                could wait at the same time. CPU time includes the time for which a worker was \
                ready to run, so a busy machine does not look idle.",
        check: workers,
    },
    LiveRule {
        id: "live-sends",
        title: "sends in a loop in place of a publication",
        reads: "repeated_sends",
        formula: "fewer than 100 messages to single clients equal the message before, to another \
                  client",
        about: "A loop over clients encodes, compresses and queues a message once for each; a \
                publication does so once for all. Not seen with a thread for each connection, \
                or if other messages come in between.",
        check: sends,
    },
];

fn deflate(it: &Readings<'_>) -> Verdict {
    let of = |name| it.growth(name);
    let (Some(input), Some(output), Some(kept)) =
        (of("deflate_input_bytes"), of("deflate_output_bytes"), of("deflate_kept_bytes"))
    else {
        return absent("deflate_input_bytes");
    };
    let (before, after) = (input + kept, output + kept);
    if before < MIN_DEFLATED {
        return Verdict::skip("little was compressed");
    }
    let share = after as f64 / before as f64;
    warn_unless(share <= 0.95, format!("{} shrink to {}", size(before), percent(share)))
        .wanted("at most 95 %")
        .because("compressing costs CPU time and saves nothing")
        .remedy(Remedy::Setting("deflate.enabled=false".to_owned()))
        .remedy(Remedy::Code("Frame::incompressible for what is compressed already".to_owned()))
}

fn stalls(it: &Readings<'_>) -> Verdict {
    let Some(routes) = it.after["stalls"].as_array() else { return absent("stalls") };
    let earlier = |route: &str| {
        let mut all = it.before["stalls"].as_array().into_iter().flatten();
        all.find(|row| row["route"] == route).and_then(|row| row["stalls"].as_u64()).unwrap_or(0)
    };
    let grown = |row: &Value| {
        // Parentheses stand for several routes, or for none.
        let route = row["route"].as_str().filter(|route| !route.starts_with('('))?;
        let stalls = row["stalls"].as_u64()?.saturating_sub(earlier(route));
        let longest = row["longest_seconds"].as_f64().unwrap_or(0.0) * 1e3;
        let times = plural(stalls, "time");
        (stalls > 1).then(|| format!("{route} {times}, at most {longest:.0} ms"))
    };
    let found: Vec<String> = routes.iter().filter_map(grown).collect();
    let is_fine = found.is_empty();
    warn_unless(is_fine, if is_fine { "none".to_owned() } else { found.join("; ") })
        .wanted("none")
        .because("all connections of the event loop wait in the meantime")
        .remedy(Remedy::Code("offload, blocking or async handlers on these routes".to_owned()))
}

fn workers(it: &Readings<'_>) -> Verdict {
    let waiting = |reading: &Value| reading["workers"]["queue_depth"].as_u64();
    let (Some(before), Some(after)) = (waiting(it.before), waiting(it.after)) else {
        return absent("workers");
    };
    let threads = it.threads(|name| name == "throng-worker");
    let (Some(of_workers), Some(pool)) = (threads.first(), it.after["workers"]["threads"].as_u64())
    else {
        return Verdict::skip("there are no workers");
    };
    let share = of_workers.wanted() / (of_workers.threads.max(1) as f64 * it.seconds);
    let waiting = before.min(after);
    let more = (pool as f64 / share.clamp(0.05, 1.0)).ceil() as u64;
    let found = format!(
        "{} waiting, {} at {} of a CPU each",
        plural(waiting, "job"),
        plural(pool, "worker"),
        percent(share)
    );
    warn_unless(waiting == 0 || share >= 0.5, found)
        .wanted("none waiting")
        .because("the workers block: more of them can do so at the same time")
        .remedy(Remedy::Code(format!("a pool_size of about {} for the workers", count(more))))
}

fn sends(it: &Readings<'_>) -> Verdict {
    let Some(repeated) = it.growth("repeated_sends") else { return absent("repeated_sends") };
    let found = format!("{} sent again", plural(repeated, "message"));
    warn_unless(repeated < MIN_REPEATED, found)
        .wanted(format!("fewer than {MIN_REPEATED}"))
        .because("each is encoded and queued once for each client")
        .remedy(Remedy::Code("Hub::publish to a channel, or Hub::broadcast".to_owned()))
}
