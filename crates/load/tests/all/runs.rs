//! Whole runs over real sockets, against a server that is not built on our engine. Tests assert
//! counts, verified contents and texts, but no times.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use throng_load::demo::{ClientPlan, spawn_clients};
use throng_load::report::Measured;
use throng_load::report::Render as _;
use throng_load::{
    Common, Content, Deflate, Error, Limit, Mode, Pace, Plan, Report, RunStage, Slo, Target,
};

use crate::server::{Behaviour, start};

const SHORT: Duration = Duration::from_millis(100);
/// No server listens there: the kernel never assigns this port.
const UNUSED: &str = "ws://127.0.0.1:1";

fn echo(pipeline: usize) -> Mode {
    Mode::Echo { pace: Pace::Closed { pipeline }, duration: SHORT, warmup: SHORT / 5 }
}

fn connect(rate_per_s: Option<f64>) -> Mode {
    Mode::Connect { rate_per_s, duration: SHORT, warmup: SHORT / 5 }
}

fn plan(behaviour: Behaviour, mode: Mode) -> Plan {
    let target = Target::parse(&format!("ws://{}/any", start(behaviour))).unwrap();
    let setup_timeout = Duration::from_secs(60);
    Plan::new(Common { connections: 8, setup_timeout, ..target.into() }, mode)
}

fn with(mut plan: Plan, change: impl FnOnce(&mut Common)) -> Plan {
    change(&mut plan.common);
    plan
}

fn run(plan: &Plan) -> Result<Report, Error> {
    throng_load::run(plan, &AtomicBool::new(false), &mut |_| {})
}

fn fine(plan: &Plan) -> Report {
    let report = run(plan).unwrap();
    assert_eq!(report.errors.total(), 0, "{report}");
    assert_eq!(report.exit_code(), 0);
    report
}

#[test]
fn a_server_that_declines_compression_is_named_in_one_line() {
    let deflate = Deflate::default().enabled(true);
    let content = Content::Json { seed: 1 };
    let plan = Plan { deflate, content, size: 300, ..plan(Behaviour::Echo, echo(4)) };
    let report = fine(&plan);
    let Measured::Echo(echo) = &report.result else { panic!("{report}") };
    let compressed = echo.deflate.unwrap();
    assert_eq!((compressed.connections_agreed, compressed.ratio_received), (0, Some(1.0)));
    let lines = report.to_string().lines().filter(|line| line.contains("declined")).count();
    assert_eq!(lines, 1, "{report}");
    assert!(report.to_string().contains("300 B JSON, deflate no-context"), "{report}");
    assert_eq!(report.to_csv().lines().count(), 2);
    assert!(report.to_html().contains("connections compressed"));
}

#[test]
fn a_closed_loop_counts_what_comes_back() {
    for (pipeline, size, text, threads) in [
        (1, 100, false, 1),
        (16, 100, true, 1),
        (2, 0, false, 1),
        (1, 70_000, true, 2),
        (3, 5, false, 3),
    ] {
        let plan = Plan {
            size,
            text,
            ..with(plan(Behaviour::Echo, echo(pipeline)), |it| it.threads = threads)
        };
        let report = fine(&plan);
        let Measured::Echo(echo) = &report.result else { panic!("{report}") };
        assert!(echo.messages > 0 && echo.latency.unwrap().count == echo.messages);
        assert_eq!(report.setup.connections, 8);
        assert_eq!(report.setup.upgrade.unwrap().count, 8);
        // The server is a thread of this process, so its CPU use is unknown; the generator
        // recognises its own limit from 92 % of a core on.
        assert!(report.server.as_ref().unwrap().same_process);
        let is_busy = report.generator.cpu.busiest_thread_cores >= 0.92;
        let limit = if is_busy { Limit::Generator } else { Limit::Unknown };
        assert_eq!(report.verdict.limit, limit, "{report}");
    }
}

#[test]
fn an_open_loop_sends_exactly_what_was_planned() {
    let pace = Pace::Open { rate_per_s: 100.0 };
    let mode = Mode::Echo { pace, duration: Duration::from_millis(300), warmup: SHORT };
    let report = fine(&with(plan(Behaviour::Echo, mode), |it| it.threads = 2));
    let Measured::Echo(echo) = &report.result else { panic!("{report}") };
    let open = echo.open_loop.unwrap();
    // 8 connections x 100 per second x 0.3 s. The edges of the phases add or remove one message on
    // each connection.
    assert!((232..=248).contains(&open.planned), "{open:?}");
    assert_eq!(open.unanswered, 0);
    assert!(echo.messages > 0, "answers within the measured time");
    assert_eq!(echo.latency.unwrap().count, open.planned);
}

#[test]
fn a_rate_that_rises_is_not_measured_before_it_has_risen() {
    let pace = Pace::Open { rate_per_s: 100.0 };
    let mode = Mode::Echo { pace, duration: 3 * SHORT, warmup: SHORT };
    let report =
        fine(&with(plan(Behaviour::Echo, mode), |it| (it.rate_ramp, it.threads) = (4 * SHORT, 2)));
    let Measured::Echo(echo) = &report.result else { panic!("{report}") };
    let open = echo.open_loop.unwrap();
    // The same number as without a ramp.
    assert!((232..=248).contains(&open.planned) && open.unanswered == 0, "{open:?}");
    assert!(report.to_string().contains("rising over 400ms"), "{report}");
}

#[test]
fn messages_without_an_answer_count_with_their_age() {
    let pace = Pace::Open { rate_per_s: 50.0 };
    let mode = Mode::Echo { pace, duration: SHORT, warmup: Duration::ZERO };
    let report = run(&with(plan(Behaviour::Mute, mode), |it| it.connections = 2)).unwrap();
    let Measured::Echo(echo) = &report.result else { panic!("{report}") };
    let open = echo.open_loop.unwrap();
    assert!(open.planned > 0 && open.unanswered == open.planned, "{report}");
    assert_eq!(echo.latency.unwrap().count, open.unanswered, "none is left out");
    assert_eq!((report.verdict.limit, report.exit_code()), (Limit::Invalid, 1));
}

#[test]
fn a_number_of_messages_ends_the_run() {
    let long = Duration::from_secs(600);
    let pace = |pipeline| Pace::Closed { pipeline };
    for (number, pipeline, threads) in [(1, 1, 1), (5, 3, 2), (1000, 1, 1), (1001, 16, 3)] {
        let mode = Mode::Echo { pace: pace(pipeline), duration: long, warmup: Duration::ZERO };
        let report = fine(&with(plan(Behaviour::Echo, mode), |it| {
            (it.number, it.threads) = (Some(number), threads)
        }));
        let Measured::Echo(echo) = &report.result else { panic!("{report}") };
        assert_eq!((echo.messages, echo.latency.unwrap().count), (number, number));
        assert!(echo.measured_s < 600.0 && report.plan.duration_s.is_none());
    }
    // Each of eight connections ends at its seventh message: the rest is missing, and the run does
    // not hang.
    let mode = Mode::Echo { pace: pace(1), duration: long, warmup: Duration::ZERO };
    let report = run(&with(plan(Behaviour::Cut, mode), |it| it.number = Some(100))).unwrap();
    assert_eq!(
        (report.errors.connections_lost, report.errors.missing_answers),
        (8, 52),
        "{report}"
    );
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn thresholds_decide_over_the_exit_code() {
    let slos = |texts: &[&str]| texts.iter().map(|text| Slo::parse(text).unwrap()).collect();
    let long = Duration::from_secs(600);
    let mode =
        Mode::Echo { pace: Pace::Closed { pipeline: 1 }, duration: long, warmup: Duration::ZERO };
    let judged = |behaviour, texts: &[&str]| {
        let number = Some(4000);
        run(&with(plan(behaviour, mode), |it| (it.slos, it.number) = (slos(texts), number)))
            .unwrap()
    };
    let report = judged(Behaviour::Echo, &["p99<1h", "rate>1", "errors<0.1%"]);
    assert_eq!(report.exit_code(), 0, "{report}");
    assert!(report.to_string().contains("errors<0.1% kept: 0.000 %"), "{report}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["histogram"]["of"], "latency");
    assert_eq!(json["histogram"]["count"], json["result"]["messages"]);
    assert!(json["histogram"]["buckets_ns"][0][1].as_u64().unwrap() > 0);
    let report = judged(Behaviour::Echo, &["p50<1us"]);
    assert_eq!(report.exit_code(), 99, "{report}");
    assert!(report.to_string().contains("p50<1us NOT KEPT"), "{report}");
    // Every connection gets one wrong answer: first allowed by the threshold, then too many, then
    // without a threshold, which makes the run invalid.
    let report = judged(Behaviour::Forge, &["errors<100%"]);
    assert_eq!((report.errors.wrong_answers, report.exit_code()), (8, 0), "{report}");
    assert!(report.verdict.line.contains("8 failures"), "{report}");
    let slos_of = slos(&["errors<10%"]);
    let confused =
        Plan { text: true, ..with(plan(Behaviour::Confuse, echo(1)), |it| it.slos = slos_of) };
    assert_eq!(run(&confused).unwrap().exit_code(), 99);
    assert_eq!(judged(Behaviour::Forge, &["p99<1h"]).exit_code(), 1);
    // In an open loop a message without an answer counts as failed.
    let pace = Pace::Open { rate_per_s: 50.0 };
    let mode = Mode::Echo { pace, duration: SHORT, warmup: Duration::ZERO };
    let mute = with(plan(Behaviour::Mute, mode), |it| {
        (it.connections, it.slos) = (2, slos(&["errors<50%"]))
    });
    let report = run(&mute).unwrap();
    assert_eq!((report.slo[0].measured, report.exit_code()), (Some(1.0), 99), "{report}");
}

#[test]
fn idle_reports_the_servers_memory() {
    let mode = Mode::Idle { hold: SHORT };
    let report = fine(&with(plan(Behaviour::Echo, mode), |it| it.connections = 20));
    let Measured::Idle(idle) = &report.result else { panic!("{report}") };
    assert_eq!(idle.connections, 20);
    assert!(idle.rss_bytes_per_connection.is_some() && idle.server_cores_while_idle.is_some());
}

#[test]
fn connect_times_each_step() {
    let plan = plan(Behaviour::Echo, connect(None));
    let report = fine(&with(plan, |it| (it.connections, it.sources) = (4, Some(3))));
    let Measured::Connect(connect) = &report.result else { panic!("{report}") };
    assert!(connect.connections > 0);
    for step in [connect.tcp, connect.upgrade, connect.echo, connect.total] {
        assert_eq!(step.unwrap().count, connect.connections);
    }
    assert_eq!(report.plan.source_addresses, 3);
}

#[test]
fn all_places_of_a_closed_loop_connect_at_a_time_whatever_the_window() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = Target::parse(&format!("ws://{}/", listener.local_addr().unwrap())).unwrap();
    let mode = Mode::Connect { rate_per_s: None, duration: 600 * SHORT, warmup: Duration::ZERO };
    let plan = Plan::new(Common { connections: 4, window: 1, ..target.into() }, mode);
    let stop = AtomicBool::new(false);
    let address = listener.local_addr().unwrap();
    let stopped = std::thread::scope(|scope| {
        // The server answers no upgrade, so no connection ends in favour of another.
        scope.spawn(|| {
            let _accepted: Vec<_> = (0..4).map(|_| listener.accept().unwrap().0).collect();
            stop.store(true, Ordering::Relaxed);
        });
        let _ = throng_load::run(&plan, &stop, &mut |_| {});
        let stopped = stop.load(Ordering::Relaxed);
        // The run does not wait for connections that other programs made.
        let _others: Vec<_> = (0..4).map(|_| std::net::TcpStream::connect(address)).collect();
        stopped
    });
    assert!(stopped, "the run ended before all four had connected");
}

#[test]
fn connections_by_a_schedule_are_all_made_and_timed() {
    let mode = Mode::Connect { rate_per_s: Some(200.0), duration: 3 * SHORT, warmup: SHORT };
    let report =
        fine(&with(plan(Behaviour::Echo, mode), |it| (it.connections, it.threads) = (100, 2)));
    let Measured::Connect(connect) = &report.result else { panic!("{report}") };
    let open = connect.open_loop.unwrap();
    // The edges of the phases of two threads add or remove one message each.
    assert!((58..=62).contains(&open.planned) && open.unanswered == 0, "{open:?}");
    for step in [connect.tcp, connect.upgrade, connect.echo, connect.total, open.lateness] {
        assert_eq!(step.unwrap().count, open.planned);
    }
    assert!(connect.waited_for_place.is_some());
    assert!(report.to_string().contains("at most 100 at a time, 100 B binary, 200 connections/s"));
    assert!(report.to_string().contains("latency counts from the planned time"), "{report}");
}

#[test]
fn connections_that_find_all_places_taken_count_from_their_planned_time() {
    // No client is answered: the first two keep both places.
    let mode = Mode::Connect { rate_per_s: Some(50.0), duration: SHORT, warmup: Duration::ZERO };
    let report = run(&with(plan(Behaviour::Mute, mode), |it| it.connections = 2)).unwrap();
    let Measured::Connect(connect) = &report.result else { panic!("{report}") };
    let open = connect.open_loop.unwrap();
    assert!(open.planned > 2 && open.unanswered == open.planned, "{report}");
    assert_eq!(connect.total.unwrap().count, open.planned, "none is left out");
    assert_eq!(connect.waited_for_place, Some(open.planned - 2));
    assert!(report.verdict.line.contains("connections waited for one of 2 places"), "{report}");
    assert_eq!((report.verdict.limit, report.exit_code()), (Limit::Invalid, 1));
}

#[test]
fn broadcast_waits_for_the_last() {
    for threads in [1, 3] {
        let mode = Mode::Broadcast { publishes: 5, timeout: Duration::from_secs(10) };
        let plan = Plan {
            text: true,
            ..with(plan(Behaviour::Channel, mode), |it| {
                (it.connections, it.threads) = (30, threads)
            })
        };
        let report = fine(&plan);
        let Measured::Broadcast(broadcast) = &report.result else { panic!("{report}") };
        assert_eq!((broadcast.publishes, broadcast.subscribers), (5, 30));
        assert_eq!(broadcast.delivery.unwrap().count, 150);
        assert!(broadcast.last.unwrap().max_us >= broadcast.first.unwrap().min_us);
    }
}

fn fanout(behaviour: Behaviour, subscribers: usize) -> Plan {
    let duration = Duration::from_millis(300);
    let mode = Mode::Fanout {
        channels: 1,
        subscribers,
        rate_per_s: 100.0,
        duration,
        warmup: Duration::ZERO,
    };
    with(plan(behaviour, mode), |it| it.connections = subscribers + 1)
}

#[test]
fn fanout_delivers_all_of_it_once_and_in_order() {
    let report =
        fine(&Plan { text: true, ..with(fanout(Behaviour::Channel, 4), |it| it.threads = 2) });
    let Measured::Fanout(fanout) = &report.result else { panic!("{report}") };
    assert_eq!(
        (fanout.published, fanout.expected, fanout.received, fanout.lost),
        (30, 120, 120, 0)
    );
    assert_eq!(fanout.latency.unwrap().count, 120);
    let slices: u64 = fanout.slices.iter().filter_map(|slice| Some(slice.latency?.count)).sum();
    assert!(slices > 0 && slices <= 120, "what came after the last slice is in none");
}

#[test]
fn fanout_counts_every_loss() {
    let report = fine(&fanout(Behaviour::Lossy, 3));
    let Measured::Fanout(fanout) = &report.result else { panic!("{report}") };
    // The server loses every fifth of 30 messages, including the last.
    assert_eq!((fanout.lost, fanout.received, fanout.expected), (18, 72, 90));
    assert_eq!((fanout.subscribers_with_loss, fanout.most_lost_by_one_subscriber), (3, 6));
    assert!(
        report.verdict.line.ends_with("18 of 90 deliveries never came"),
        "{}",
        report.verdict.line
    );
    let text = report.to_string();
    let line = text.lines().find(|line| line.contains("never came") && !line.contains("verdict"));
    assert!(line.is_some_and(|line| line.ends_with(" 18")), "{text}");
}

#[test]
fn fanout_counts_every_repetition_and_calls_it_a_fault() {
    let report = run(&fanout(Behaviour::Repeat, 3)).unwrap();
    let Measured::Fanout(fanout) = &report.result else { panic!("{report}") };
    assert_eq!((fanout.duplicates, fanout.received, fanout.lost), (18, 90, 0));
    assert_eq!((report.errors.wrong_answers, report.exit_code()), (18, 1));
    assert!(report.errors.first.as_ref().unwrap().contains("came twice"), "{report}");
}

#[test]
fn a_publish_without_receivers_is_explained() {
    let mode = Mode::Broadcast { publishes: 1, timeout: Duration::from_millis(50) };
    let stop = AtomicBool::new(false);
    let plan = plan(Behaviour::Echo, mode);
    // An echo server sends the publish back only to the publisher. The time limit of the warm-up is
    // several seconds, so the test does not wait for it.
    let outcome = throng_load::run(&plan, &stop, &mut |progress| {
        if matches!(progress.stage, RunStage::Publishing { .. }) {
            stop.store(true, Ordering::Relaxed);
        }
    });
    assert!(matches!(outcome, Err(Error::Interrupted)), "{outcome:?}");
}

#[test]
fn wrong_answers_make_the_run_invalid() {
    for (behaviour, text, hint) in
        [(Behaviour::Forge, false, "other content"), (Behaviour::Confuse, true, "binary message")]
    {
        let report = run(&Plan { text, ..plan(behaviour, echo(1)) }).unwrap();
        assert!(report.errors.wrong_answers > 0, "{report}");
        assert!(report.errors.first.as_ref().unwrap().contains(hint), "{report}");
        assert_eq!((report.verdict.limit, report.exit_code()), (Limit::Invalid, 1));
    }
}

#[test]
fn lost_connections_make_the_run_invalid() {
    let report = run(&plan(Behaviour::Cut, echo(1))).unwrap();
    assert_eq!(report.errors.connections_lost, 8, "{report}");
    assert_eq!(report.exit_code(), 1);
    fine(&plan(Behaviour::Cut, connect(None)));
}

#[test]
fn a_server_that_does_not_upgrade_is_named() {
    for mode in [echo(1), connect(None), connect(Some(50.0))] {
        for (behaviour, hint) in [
            (Behaviour::NotFound, "404"),
            (Behaviour::WrongKey, "Sec-WebSocket-Accept"),
            (Behaviour::HangUp, "instead of answering the upgrade"),
        ] {
            let error = run(&plan(behaviour, mode)).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(hint) && text.contains("\"/any\""), "{behaviour:?}: {text}");
        }
    }
}

#[test]
fn a_server_that_does_not_answer_is_not_waited_for() {
    let mut plan = plan(Behaviour::Silent, echo(1));
    plan.common.setup_timeout = Duration::from_secs(1);
    let text = run(&plan).unwrap_err().to_string();
    assert!(text.contains("upgrade request") || text.contains("only 0 of 8"), "{text}");
}

#[test]
fn an_absent_server_is_reported_with_the_remedy() {
    for mode in [echo(1), connect(None), connect(Some(50.0))] {
        let plan = Plan::new(Target::parse(UNUSED).unwrap(), mode);
        let error = run(&plan).unwrap_err();
        assert!(error.to_string().contains("Is the server running"), "{error}");
        assert_eq!(error.exit_code(), 1);
    }
}

#[test]
fn stopping_early_reports_what_was_measured() {
    let mode = Mode::Echo {
        pace: Pace::Closed { pipeline: 1 },
        duration: Duration::from_secs(3600),
        warmup: Duration::ZERO,
    };
    let stop = AtomicBool::new(false);
    let report = throng_load::run(&plan(Behaviour::Echo, mode), &stop, &mut |progress| {
        if matches!(progress.stage, RunStage::Measuring { .. }) && progress.done > 0 {
            stop.store(true, Ordering::Relaxed);
        }
    })
    .unwrap();
    let Measured::Echo(echo) = &report.result else { panic!("{report}") };
    assert!(echo.messages > 0 && echo.measured_s < 3600.0);
}

#[test]
fn a_server_process_that_is_not_there_is_a_mistake() {
    let plan = with(plan(Behaviour::Echo, echo(1)), |it| it.server_pids = vec![u32::MAX]);
    let error = run(&plan).unwrap_err();
    assert!(error.to_string().contains("--server-pid") && error.exit_code() == 2);
}

#[test]
fn demo_clients_chat_and_leave() {
    let target = Target::parse(&format!("ws://{}", start(Behaviour::Channel))).unwrap();
    let mut plan = ClientPlan::new(target);
    (plan.clients, plan.rate_per_s) = (12, 20.0);
    plan.channels.truncate(1);
    let handle = spawn_clients(plan).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let (mut timed, mut last) = (0, handle.snapshot());
    while timed < 50 || last.connections < 12 {
        assert!(Instant::now() < deadline, "{last:?}");
        std::thread::yield_now();
        last = handle.snapshot();
        timed += last.latency.map_or(0, |latency| latency.count);
    }
    let stats = handle.stop();
    assert_eq!((stats.connections, stats.failures, stats.first_error), (0, 0, None));
    assert!(stats.messages_in > stats.messages_out && stats.messages_out > 0);
}

#[test]
fn clients_without_a_server_report_it() {
    let target = Target::parse(UNUSED).unwrap();
    let plan = ClientPlan { clients: 3, ..ClientPlan::new(target) };
    let handle = spawn_clients(plan).unwrap();
    throng_testkit::eventually("all fail", || handle.snapshot().failures >= 3);
    assert!(handle.stop().first_error.unwrap().contains("Is the server running"));
}
