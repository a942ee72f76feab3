//! The rules about a running server on written readings.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use throng_doctor::{
    Finding, LIVE_RULES, Status, diagnose_live, find_live, live_json, live_report,
};

/// The statistics of a server with 1,000 sessions on two event loops.
fn server() -> Value {
    json!({
        "accepted": 5000, "connections": 1000, "max_connections": 9000, "sessions": 1000,
        "deflate_input_bytes": 9_000_000, "deflate_output_bytes": 3_000_000,
        "deflate_kept_bytes": 1000,
        "slow_consumers": 3, "messages_dropped": 3, "messages_out": 500_000, "repeated_sends": 0,
        "stalls": [
            {"route": "/ws", "stalls": 1, "longest_seconds": 0.06},
            {"route": "(none)", "stalls": 9, "longest_seconds": 0.4},
        ],
        "workers": {"threads": 4, "queue_depth": 0},
        "classes": [
            {"name": "", "policy": "close", "slow_consumers": 3, "dropped_newest": 0,
             "dropped_oldest": 0, "expired": 0},
            {"name": "prices.*", "policy": "latest", "slow_consumers": 0, "dropped_newest": 0,
             "dropped_oldest": 900, "expired": 0},
        ],
        "sessions_closed": {"1000": 900, "1001": 70, "1006": 20, "1011": 0, "4000-4999": 10},
        "sessions_lost": {"0": 9, "1": 4, "2-3": 3, "32-63": 2},
        "connections_ended": {"heartbeat": 3, "rate": 0},
        "shard_connections": [510, 490],
        "loop_lag": [[0.016, 90_000], [0.033, 90_010], [0.067, 90_012], [0.134, 90_013]],
        "loop_lag_count": 90_013,
        "system": {
            "listen_overflows": 4, "tcp_segments_sent": 800_000,
            "tcp_segments_retransmitted": 90,
            "descriptors": [{"open": 1020, "max": 20_000}],
            "threads": [
                {"name": "throng-shard-0", "threads": 1, "cpu_seconds": 30.0,
                 "run_delay_seconds": 2.0},
                {"name": "throng-shard-1", "threads": 1, "cpu_seconds": 29.0,
                 "run_delay_seconds": 2.0},
                {"name": "throng-worker", "threads": 4, "cpu_seconds": 8.0,
                 "run_delay_seconds": 0.5},
            ],
        },
    })
}

fn balancer() -> Value {
    let threads = |at: usize| {
        json!({"name": format!("balance-{at}"), "threads": 1, "cpu_seconds": 5.0,
               "run_delay_seconds": 0.1})
    };
    json!({
        "uptime_seconds": 100.0,
        "metrics": {"accepted": 100, "connections": 90, "tunnels": 80, "lost": 2},
        "system": {
            "listen_overflows": 0, "tcp_segments_sent": 1000, "tcp_segments_retransmitted": 0,
            "descriptors": [{"open": 190, "max": 1024}],
            "threads": [threads(0), threads(1)],
        },
    })
}

/// Returns the ids of what warns or fails when the second reading differs by `changes`, each a
/// pointer into the JSON and the growth of the number there, in ten seconds.
fn fired(of: fn() -> Value, changes: &[(&str, f64)]) -> Vec<&'static str> {
    let findings = findings(of, changes);
    let bad = findings.iter().filter(|it| matches!(it.status, Status::Fail | Status::Warn));
    bad.map(|finding| finding.id).collect()
}

fn findings(of: fn() -> Value, changes: &[(&str, f64)]) -> Vec<Finding> {
    let mut after = of();
    for (pointer, growth) in changes {
        let place = after.pointer_mut(pointer).unwrap_or_else(|| panic!("no {pointer}"));
        let sum = place.as_f64().unwrap() + growth;
        *place = if place.is_u64() { json!(sum as u64) } else { json!(sum) };
    }
    diagnose_live(&of(), &after, 10.0)
}

const CPU_0: &str = "/system/threads/0/cpu_seconds";
const DELAY_0: &str = "/system/threads/0/run_delay_seconds";
const CPU_1: &str = "/system/threads/1/cpu_seconds";
const WORKER: &str = "/system/threads/2/cpu_seconds";
const WAITING: &str = "/workers/queue_depth";

/// A case: the rule, growths with which it finds something, and growths with which none does.
type Case<'a> = (&'a str, &'a [(&'a str, f64)], &'a [(&'a str, f64)]);

const CASES: &[Case<'_>] = &[
    (
        "live-deflate",
        &[("/deflate_kept_bytes", 90_000.0), ("/deflate_output_bytes", 10.0)],
        &[("/deflate_input_bytes", 90_000.0), ("/deflate_output_bytes", 80_000.0)],
    ),
    ("live-deflate", &[("/deflate_kept_bytes", 70_000.0)], &[("/deflate_kept_bytes", 60_000.0)]),
    ("live-stalls", &[("/stalls/0/stalls", 2.0)], &[("/stalls/0/stalls", 1.0)]),
    // The machine did not run the thread.
    ("live-stalls", &[("/stalls/0/stalls", 5.0)], &[("/stalls/1/stalls", 500.0)]),
    (
        "live-sends",
        &[("/repeated_sends", 100.0)],
        &[("/repeated_sends", 99.0), ("/messages_out", 9e6)],
    ),
    ("live-shards", &[(CPU_0, 9.0), (CPU_1, 0.3)], &[(CPU_0, 9.0), (CPU_1, 3.0)]),
    // A busy machine: the loop wants a CPU, and has a part of one; or has as good as nothing to do.
    ("live-shards", &[(CPU_0, 2.0), (DELAY_0, 6.0)], &[(CPU_0, 0.2), (DELAY_0, 8.0)]),
    ("live-lag", &[("/loop_lag_count", 4.0)], &[("/loop_lag_count", 2.0)]),
    ("live-lag", &[("/loop_lag_count", 9.0)], &[("/loop_lag_count", 9.0), (DELAY_0, 1.0)]),
    ("live-slow", &[("/slow_consumers", 3.0)], &[("/slow_consumers", 1.0)]),
    (
        "live-slow",
        &[("/messages_dropped", 50.0), ("/messages_out", 400.0)],
        &[("/messages_dropped", 50.0), ("/messages_out", 40_000.0)],
    ),
    ("live-slow", &[("/classes/0/expired", 50.0)], &[("/classes/1/dropped_oldest", 9e5)]),
    ("live-heartbeat", &[("/sessions_lost/32-63", 10.0)], &[("/sessions_lost/32-63", 9.0)]),
    (
        "live-heartbeat",
        &[("/sessions_lost/1", 6.0), ("/sessions_lost/2-3", 6.0), ("/sessions_lost/0", 3.0)],
        &[("/sessions_lost/1", 6.0), ("/sessions_lost/2-3", 6.0), ("/sessions_lost/0", 4.0)],
    ),
    // Two ranges that do not adjoin; clients that were active.
    (
        "live-heartbeat",
        &[("/sessions_lost/2-3", 20.0), ("/sessions_lost/32-63", 5.0)],
        &[("/sessions_lost/2-3", 10.0), ("/sessions_lost/32-63", 10.0)],
    ),
    ("live-heartbeat", &[("/sessions_lost/1", 90.0)], &[("/sessions_lost/0", 90.0)]),
    (
        "live-closes",
        &[("/sessions_closed/1006", 150.0), ("/connections_ended/rate", 7.0)],
        &[("/sessions_closed/1006", 90.0), ("/sessions_closed/1000", 900.0)],
    ),
    (
        "live-closes",
        &[("/sessions_closed/1011", 400.0)],
        &[("/sessions_closed/4000-4999", 900.0), ("/sessions_closed/1001", 900.0)],
    ),
    ("live-overflows", &[("/system/listen_overflows", 1.0)], &[]),
    (
        "live-retransmits",
        &[("/system/tcp_segments_retransmitted", 90.0), ("/system/tcp_segments_sent", 3000.0)],
        &[("/system/tcp_segments_retransmitted", 90.0), ("/system/tcp_segments_sent", 5000.0)],
    ),
    (
        "live-retransmits",
        &[("/system/tcp_segments_retransmitted", 50.0)],
        &[("/system/tcp_segments_retransmitted", 49.0)],
    ),
    (
        "live-descriptors",
        &[("/system/descriptors/0/open", 17_000.0)],
        &[("/system/descriptors/0/open", 16_900.0)],
    ),
    ("live-descriptors", &[("/connections", 7200.0)], &[("/connections", 7000.0)]),
];

#[test]
fn each_rule_finds_its_case_and_nothing_else_does() {
    assert_eq!(fired(server, &[]), [""; 0]);
    let mut rules = BTreeSet::new();
    for (id, cause, harmless) in CASES {
        assert_eq!(fired(server, cause), [*id], "{cause:?}");
        assert_eq!(fired(server, harmless), [""; 0], "{harmless:?}");
        rules.insert(*id);
    }
    // It is about both readings.
    rules.insert("live-workers");
    let all = LIVE_RULES.iter().flat_map(|of| *of).map(|rule| rule.id);
    assert_eq!(rules, all.collect());
}

#[test]
fn jobs_that_wait_at_both_readings_for_workers_that_block_are_found() {
    fn waiting() -> Value {
        let mut stats = server();
        *stats.pointer_mut(WAITING).unwrap() = json!(30);
        stats
    }
    assert_eq!(fired(waiting, &[]), ["live-workers"]);
    assert_eq!(fired(server, &[(WAITING, 30.0)]), [""; 0]);
    // Four workers that compute, and four that wait for a CPU to do so.
    assert_eq!(fired(waiting, &[(WORKER, 21.0)]), [""; 0]);
    let delay = "/system/threads/2/run_delay_seconds";
    assert_eq!(fired(waiting, &[(WORKER, 2.0), (delay, 19.0)]), [""; 0]);
}

#[test]
fn a_balancer_has_the_rules_that_its_figures_allow() {
    let healthy = findings(balancer, &[]);
    let skipped = healthy.iter().filter(|it| it.status == Status::Skip).count();
    assert_eq!(healthy.iter().filter(|it| it.status == Status::Pass).count() + skipped, 12);
    assert_eq!(skipped, 7, "{healthy:?}");
    assert_eq!(fired(balancer, &[("/metrics/lost", 30.0)]), ["live-closes"]);
    assert_eq!(fired(balancer, &[("/metrics/lost", 15.0)]), [""; 0]);
    assert_eq!(fired(balancer, &[(CPU_0, 9.0)]), ["live-shards"]);
    assert_eq!(fired(balancer, &[("/system/listen_overflows", 7.0)]), ["live-overflows"]);
    let full = ("/system/descriptors/0/open", 830.0);
    let findings = findings(balancer, &[full]);
    let full = findings.iter().find(|finding| finding.id == "live-descriptors").unwrap();
    assert_eq!((full.status, full.found.as_str()), (Status::Fail, "1,020 of 1,024 descriptors"));
}

#[test]
fn the_findings_say_what_to_change() {
    let text = |changes: &[(&str, f64)]| live_report(&findings(server, changes), false);
    for (changes, words) in [
        (&[("/sessions_lost/32-63", 12.0)][..], "heartbeat.interval=24s"),
        (&[("/stalls/0/stalls", 4.0)], "/ws 4 times, at most 60 ms"),
        (&[("/sessions_closed/1006", 300.0)], "300 of 1,300 sessions ended badly: code 1006 300"),
        (&[("/repeated_sends", 5000.0)], "Hub::publish"),
        (&[(CPU_0, 9.5)], "throng-shard-0 wants 95 % of a CPU, the others use 0 %, with 510 of"),
        (&[("/slow_consumers", 40.0)], "40 sessions closed"),
    ] {
        assert!(text(changes).contains(words), "{words}: {}", text(changes));
    }
    let healthy = text(&[]);
    assert!(healthy.starts_with("PASS  "), "{healthy}");
    assert!(healthy.ends_with("\n0 failed, 0 warnings.\n"), "{healthy}");
    let json = live_json(&findings(server, &[]), 10.0);
    assert_eq!(json["findings"].as_array().unwrap().len(), 12);
}

#[test]
fn other_servers_and_restarted_ones_have_no_finding() {
    for odd in [
        json!({}),
        json!({"system": null, "stalls": {}, "classes": 7, "sessions_lost": {"a": 9, "9": "x"}}),
        json!({"loop_lag": [[1, "x"], []], "loop_lag_count": 4, "system": {"threads": [{}, 3]}}),
        json!([]),
    ] {
        let findings = diagnose_live(&odd, &odd, 0.0);
        assert!(findings.iter().all(|it| it.status >= Status::Pass), "{odd}: {findings:?}");
    }
    let mut later = server();
    later["accepted"] = json!(10);
    later["repeated_sends"] = json!(900_000);
    let findings = diagnose_live(&server(), &later, 10.0);
    assert!(findings.iter().all(|it| it.status == Status::Skip), "{findings:?}");
    assert!(find_live("live-lag").is_some() && find_live("lag").is_none());
}
