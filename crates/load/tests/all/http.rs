//! The HTTP load against a separate server, which has one thread per connection directly on sockets
//! and can also misbehave. No test asserts a time.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use throng_load::http::{Expect, HttpPlan, HttpReport, Pace, Slo, run};
use throng_load::report::Render as _;
use throng_load::{Common, Error, Limit, Target};

use crate::http_server::{Behaviour, Seen, start};

fn plan_for(port: u16) -> HttpPlan {
    let url = format!("http://127.0.0.1:{port}/x?y=1");
    let target = Target::parse_http(&url).unwrap();
    let setup_timeout = Duration::from_secs(60);
    HttpPlan {
        duration: Duration::from_millis(150),
        warmup: Duration::from_millis(20),
        ..HttpPlan::new(Common { connections: 4, setup_timeout, ..target.into() })
    }
}

/// Runs the plan that `change` makes against a correct server until answers have been counted,
/// because the necessary duration depends on the machine.
fn measured_until_answered(change: impl FnOnce(&mut HttpPlan)) -> (HttpReport, Seen) {
    let server = start(Behaviour::Right);
    let mut plan = plan_for(server.port);
    (plan.warmup, plan.duration) = (Duration::ZERO, Duration::from_secs(600));
    change(&mut plan);
    let stop = AtomicBool::new(false);
    let report = run(&plan, &stop, &mut |progress| {
        stop.fetch_or(progress.done > 0, Ordering::Relaxed);
    });
    let seen = server.seen();
    assert_eq!(seen.faults, 0, "requests were not what was asked for: {:?}", seen.first_fault);
    (report.unwrap(), seen)
}

/// Runs the plan that `change` makes against a server with this behaviour.
fn measured(behaviour: Behaviour, change: impl FnOnce(&mut HttpPlan)) -> (HttpReport, Seen) {
    let server = start(behaviour);
    let mut plan = plan_for(server.port);
    change(&mut plan);
    let report = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let seen = server.seen();
    assert_eq!(seen.faults, 0, "requests were not what was asked for: {:?}", seen.first_fault);
    (report, seen)
}

fn only(status: u16, report: &HttpReport) -> BTreeMap<u16, u64> {
    BTreeMap::from([(status, report.result.requests)])
}

#[test]
fn right_answers_are_counted_with_their_bytes() {
    let (report, seen) = measured(Behaviour::Right, |_| ());
    assert_eq!((report.errors.total(), report.exit_code()), (0, 0), "{report}");
    assert!(report.result.requests > 0 && seen.requests >= report.result.requests);
    assert_eq!(report.result.statuses, only(200, &report));
    let answer = crate::http_server::RIGHT.len() as u64;
    assert_eq!(report.result.received_bytes, report.result.requests * answer);
    assert_eq!(report.result.latency.unwrap().count, report.result.requests);
    assert_eq!((report.connections.unwrap().opened, seen.connections), (4, 4), "all of them kept");
    assert_eq!(report.setup.connections, 4);
    // The server runs in this process, so the two are indistinguishable; but a generator at 92 % of
    // a core recognises its own limit.
    let is_busy = report.generator.cpu.busiest_thread_cores >= 0.92;
    let limit = if is_busy { Limit::Generator } else { Limit::Unknown };
    assert_eq!(report.verdict.limit, limit, "{report}");
}

#[test]
fn any_framing_of_an_answer_is_understood() {
    for behaviour in [Behaviour::Chunked, Behaviour::Interim, Behaviour::Dribble] {
        let (report, _) = measured(behaviour, |plan| plan.pipeline = 3);
        assert_eq!(report.errors.total(), 0, "{behaviour:?}: {report}");
        assert!(report.result.requests > 0, "{behaviour:?}");
    }
    let (report, seen) = measured(Behaviour::UntilClose, |_| ());
    assert_eq!(report.errors.total(), 0, "{report}");
    assert!(report.result.requests > 0 && report.connections.unwrap().ended_by_server > 0);
    assert!(seen.connections > 4);
}

#[test]
fn an_answer_to_head_has_no_body() {
    let (report, _) = measured(Behaviour::HeadOnly, |plan| {
        plan.method = "HEAD".to_owned();
        plan.pipeline = 2;
    });
    assert_eq!(report.errors.total(), 0, "{report}");
    assert!(report.result.requests > 0);
}

#[test]
fn a_pipeline_is_as_deep_as_asked_for_and_never_deeper() {
    let (report, seen) = measured(Behaviour::Collect { requests: 8 }, |plan| plan.pipeline = 8);
    assert_eq!(report.errors.total(), 0, "{report}");
    assert!(report.result.requests > 0, "the server answers only when eight are there");
    assert!(seen.most_at_once <= 8, "{}", seen.most_at_once);
}

#[test]
fn bodies_arrive_as_they_are_in_either_framing() {
    for chunked in [false, true] {
        for (size, pipeline) in [(1, 1), (10_000, 4), (3 << 20, 2)] {
            let (report, seen) = measured_until_answered(|plan| {
                plan.method = "PUT".to_owned();
                plan.body = (0..size).map(|at| (at % 251) as u8).collect();
                (plan.chunked, plan.pipeline, plan.common.connections) = (chunked, pipeline, 2);
            });
            assert_eq!(report.errors.total(), 0, "{report}");
            assert!(report.result.requests > 0, "{size} bytes, chunked {chunked}");
            assert_eq!(seen.body_bytes, seen.requests * size as u64);
        }
    }
}

#[test]
fn one_request_a_connection() {
    let (report, seen) = measured(Behaviour::Right, |plan| plan.keep_alive = false);
    assert_eq!((report.errors.total(), report.exit_code()), (0, 0), "{report}");
    let result = &report.result;
    assert!(result.requests > 0 && seen.connections >= result.requests);
    assert_eq!(seen.requests, seen.asked_to_close, "every one of them says Connection: close");
    assert!(result.connect.is_some());
    assert_eq!(result.connect_and_answer.unwrap().count, result.requests);
    assert_eq!(report.connections.unwrap().ended_by_server, 0, "that is what was asked for");
    assert_eq!(report.setup.connections, 0);
    // The server ignores the request to close, and keeps the connection.
    let (report, seen) = measured(Behaviour::Clinging, |plan| plan.keep_alive = false);
    assert_eq!(report.errors.total(), 0, "{report}");
    assert!(seen.connections >= report.result.requests && report.result.requests > 0);
}

#[test]
fn the_schedule_is_kept_and_nothing_of_it_is_lost() {
    for keep_alive in [true, false] {
        let (report, seen) = measured(Behaviour::Right, |plan| {
            plan.pace = Pace::Open { rate_per_s: 1000.0 };
            (plan.keep_alive, plan.common.threads) = (keep_alive, 2);
        });
        let open = report.result.open_loop.unwrap();
        // 150 ms of a request every millisecond, on two threads.
        assert!((148..=152).contains(&open.planned), "{report}");
        assert_eq!((open.unanswered, report.errors.total()), (0, 0), "{report}");
        assert_eq!(report.result.latency.unwrap().count, open.planned);
        assert_eq!(open.lateness.unwrap().count, open.planned);
        assert!(seen.requests >= open.planned);
    }
}

#[test]
fn unanswered_requests_of_a_schedule_are_reported() {
    for (behaviour, keep_alive) in [(Behaviour::Mute, true), (Behaviour::Mute, false)] {
        let (report, _) = measured(behaviour, |plan| {
            plan.pace = Pace::Open { rate_per_s: 200.0 };
            (plan.keep_alive, plan.timeout) = (keep_alive, Duration::from_millis(40));
        });
        let open = report.result.open_loop.unwrap();
        assert_eq!((open.unanswered, report.result.requests), (open.planned, 0), "{report}");
        assert_eq!(report.result.latency.unwrap().count, open.planned, "with their age");
        assert!(report.errors.timeouts > 0 && report.exit_code() == 1, "{report}");
    }
}

#[test]
fn a_server_that_ends_connections_between_requests_is_counted_not_blamed() {
    for behaviour in [Behaviour::LastOfFive, Behaviour::LeavesAfterFive] {
        for pace in [Pace::Closed, Pace::Open { rate_per_s: 2000.0 }] {
            let (report, seen) = measured(behaviour, |plan| plan.pace = pace);
            assert_eq!(report.errors.total(), 0, "{behaviour:?}: {report}");
            assert!(report.connections.unwrap().ended_by_server > 0, "{behaviour:?}: {report}");
            assert!(seen.connections > 4 && report.result.requests > 0);
            let unanswered = report.result.open_loop.map_or(0, |open| open.unanswered);
            assert_eq!(unanswered, 0, "they were asked again: {report}");
        }
    }
    let (report, _) = measured(Behaviour::LastOfFive, |plan| plan.pipeline = 3);
    assert!(report.connections.unwrap().requests_resent > 0, "{report}");
    assert_eq!(report.errors.total(), 0, "{report}");
}

#[test]
fn faults_are_counted_by_kind_and_spoil_the_figures() {
    type Count = fn(&HttpReport) -> u64;
    for (behaviour, count, words) in [
        (Behaviour::Garbage, (|r| r.errors.malformed) as Count, "not HTTP"),
        (Behaviour::Twice, |r| r.errors.malformed, "not asked for"),
        (Behaviour::CutsShort, |r| r.errors.cut_short, "ended inside"),
        (Behaviour::HangsUp, |r| r.errors.unanswered, "without an answer"),
        (Behaviour::Resets, |r| r.errors.resets, "reset it"),
    ] {
        for keep_alive in [true, false] {
            let (report, _) = measured(behaviour, |plan| plan.keep_alive = keep_alive);
            assert!(count(&report) > 0, "{behaviour:?}: {report}");
            assert_eq!(report.errors.total(), count(&report), "nothing else: {report}");
            assert_eq!((report.verdict.limit, report.exit_code()), (Limit::Invalid, 1));
            let first = report.errors.first.as_deref().unwrap();
            assert!(first.contains(words), "{behaviour:?}: {first}");
        }
    }
    let silent = |plan: &mut HttpPlan| plan.timeout = Duration::from_millis(20);
    let (report, _) = measured(Behaviour::Mute, silent);
    assert!(report.errors.timeouts > 0 && report.result.requests == 0, "{report}");
}

#[test]
fn statuses_count_by_what_was_expected() {
    let (report, _) = measured(Behaviour::Busy, |_| ());
    let result = &report.result;
    assert!(result.statuses[&503] > 0 && result.statuses[&200] == result.requests, "{report}");
    assert_eq!(report.errors.unexpected_status, result.statuses[&503]);
    assert_eq!(result.latency.unwrap().count, result.requests, "quick refusals have no latency");
    assert_eq!(report.exit_code(), 1);
    assert!(report.to_string().contains("--expect-status"), "{report}");
    let (report, _) =
        measured(Behaviour::Busy, |plan| plan.expect = Expect::parse("2xx,503").unwrap());
    assert_eq!((report.errors.total(), report.exit_code()), (0, 0), "{report}");
}

#[test]
fn connections_come_from_the_addresses_asked_for() {
    for keep_alive in [true, false] {
        let (report, seen) = measured(Behaviour::Right, |plan| {
            (plan.keep_alive, plan.common.connections, plan.common.sources) =
                (keep_alive, 6, Some(3));
        });
        let from = |last| IpAddr::V4(Ipv4Addr::new(127, 0, 0, last));
        assert_eq!(seen.peers.into_iter().collect::<Vec<_>>(), [1, 2, 3].map(from));
        assert_eq!(report.errors.total(), 0, "{report}");
    }
}

#[test]
fn an_absent_server_ends_the_run_and_one_that_closes_is_an_error() {
    for keep_alive in [true, false] {
        // No server listens there: the kernel never assigns this port.
        let plan = HttpPlan { keep_alive, ..plan_for(1) };
        let error = run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        assert!(matches!(error, Error::Connect { .. }), "{error}");
        assert!(error.to_string().contains("Is the server running"), "{error}");
    }
    let (report, _) = measured(Behaviour::Leaves { connections: 20 }, |plan| {
        (plan.keep_alive, plan.warmup) = (false, Duration::ZERO);
    });
    assert!(report.errors.connects_failed > 0 && report.result.requests > 0, "{report}");
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn a_server_that_shuts_the_door_during_set_up_ends_the_run() {
    let server = start(Behaviour::Shuts);
    // On a busy machine the set-up may be over before the first close arrives: then the test runs
    // once more.
    let run = || run(&plan_for(server.port), &AtomicBool::new(false), &mut |_| {}).err();
    let error = std::iter::repeat_with(run).take(100).find_map(|error| error).unwrap();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[test]
fn thresholds_decide_over_the_exit_code() {
    let slos = |text: &str| vec![Slo::parse(text).unwrap()];
    let (report, _) = measured(Behaviour::Right, |plan| plan.common.slos = slos("rate>1"));
    assert_eq!((report.exit_code(), report.slo[0].kept), (0, true), "{report}");
    let (report, _) = measured(Behaviour::Right, |plan| plan.common.slos = slos("rate>1000000000"));
    assert_eq!((report.exit_code(), report.slo[0].kept), (99, false), "{report}");
    assert!(report.to_string().contains("NOT KEPT"), "{report}");
    let (report, _) =
        measured(Behaviour::Garbage, |plan| plan.common.slos = slos("rate>1000000000"));
    assert_eq!(report.exit_code(), 1, "figures that do not count break no threshold");
}

#[test]
fn a_run_can_be_stopped() {
    let server = start(Behaviour::Right);
    let stop = AtomicBool::new(false);
    let plan = HttpPlan { duration: Duration::from_secs(600), ..plan_for(server.port) };
    let report = run(&plan, &stop, &mut |progress| {
        if progress.done > 0 && matches!(progress.stage, throng_load::RunStage::Measuring { .. }) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let report = report.unwrap();
    assert!(report.result.requests > 0 && report.result.measured_s < 600.0, "{report}");
}

#[test]
fn a_report_has_every_form() {
    let (report, _) = measured(Behaviour::Right, |_| ());
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["result"]["requests"], report.result.requests);
    assert_eq!(json["plan"]["url"].as_str().unwrap().split_once("/x").unwrap().1, "?y=***");
    assert!(json["result"]["statuses"]["200"].is_u64() && json["errors"]["resets"] == 0);
    let csv = report.to_csv();
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, [16, 16], "{csv}");
    let html = report.to_html();
    assert!(html.contains("<svg") && html.contains("p99.9"), "{html}");
    let table = report.to_string();
    assert!(table.lines().last().unwrap().starts_with("verdict "), "{table}");
    assert!(table.lines().all(|line| line.len() <= 160), "{table}");
}

#[test]
fn a_number_of_requests_ends_the_run() {
    let counted = |behaviour, number, change: fn(&mut HttpPlan)| {
        let (report, seen) = measured(behaviour, |plan| {
            (plan.common.number, plan.duration) = (Some(number), Duration::from_secs(600));
            plan.warmup = Duration::ZERO;
            change(plan);
        });
        assert!(report.result.measured_s < 600.0, "{report}");
        assert!(report.to_string().contains(" requests"), "{report}");
        (report, seen.requests)
    };
    let changes: [fn(&mut HttpPlan); 4] = [
        |_| (),
        |plan| plan.pipeline = 8,
        |plan| plan.keep_alive = false,
        |plan| plan.common.threads = 3,
    ];
    for change in changes {
        for number in [1, 3, 401] {
            let (report, asked) = counted(Behaviour::Right, number, change);
            assert_eq!((report.result.requests, asked), (number, number), "{report}");
            assert_eq!(report.exit_code(), 0, "{report}");
        }
    }
    // Every third answer of a connection is a refusal, which also completes its request.
    let (report, asked) = counted(Behaviour::Busy, 24, |_| ());
    assert_eq!((report.result.requests, report.errors.unexpected_status, asked), (16, 8, 24));
    let (report, _) = counted(Behaviour::LeavesAfterFive, 41, |_| ());
    assert_eq!((report.result.requests, report.errors.total()), (41, 0), "{report}");
    // A request without an answer ends after its timeout.
    let (report, _) = counted(Behaviour::Mute, 4, |plan| plan.timeout = Duration::from_millis(100));
    assert_eq!((report.result.requests, report.errors.timeouts), (0, 4), "{report}");
    assert_eq!(report.exit_code(), 1);
}
