//! The search for the highest rate, against servers that fail from a certain number of messages on.
//! Their limits are counts instead of times.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use throng_load::find_max::{Event, FindMaxReport, Load, Options, find_max};
use throng_load::report::Render as _;
use throng_load::{Common, Error, Mode, ModeName, Pace, Plan, Slo, Target, http};

const PATIENT: Duration = Duration::from_secs(60);

fn echo(behaviour: crate::server::Behaviour, slo: &str, duration: Duration) -> Plan {
    let target = Target::parse(&format!("ws://{}/any", crate::server::start(behaviour))).unwrap();
    let mode = Mode::Echo { pace: Pace::Closed { pipeline: 1 }, duration, warmup: Duration::ZERO };
    let slos = vec![Slo::parse(slo).unwrap()];
    let common = Common { connections: 8, slos, setup_timeout: PATIENT, ..target.into() };
    Plan { text: true, ..Plan::new(common, mode) }
}

fn search(load: Load, start_per_s: f64) -> Result<FindMaxReport, Error> {
    let options = Options { start_per_s, precision: 0.5 };
    find_max(&load, options, &AtomicBool::new(false), &mut |_| {})
}

#[test]
fn the_rate_from_which_a_server_fails_is_found() {
    // The server answers the seventh message of a connection wrongly: with eight connections and
    // one second, from 49 messages per second on.
    let plan = echo(crate::server::Behaviour::Forge, "max<600s", Duration::from_secs(1));
    let report = search(Load::WebSocket(Box::new(plan)), 20.0).unwrap();
    let (max, missed) = (report.max_rate_per_s.unwrap(), report.missed_rate_per_s.unwrap());
    assert!(max < 57.0 && missed / max <= 1.5, "{report}");
    for step in report.steps.iter().filter(|step| step.rate_per_s > 57.0) {
        let reason = step.reason.as_deref().unwrap_or_default();
        assert!(!step.kept && reason.contains("has other content"), "{report}");
    }
    assert_eq!((report.exit_code(), report.complete), (0, true));
    assert!(report.to_text().contains("a longer --duration"), "some 40 answers: {report}");
    let (text, json) = (report.to_text(), report.to_json());
    assert!(text.contains("a second keep max<600s; "), "{text}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["steps"].as_array().unwrap().len(), report.to_csv().lines().count() - 1);
    assert!(report.to_html().contains("Latency by rate"));
}

#[test]
fn the_rate_of_connections_is_searched() {
    let target = format!("ws://{}/any", crate::server::start(crate::server::Behaviour::Echo));
    let short = Duration::from_millis(200);
    let mode = Mode::Connect { rate_per_s: None, duration: short, warmup: Duration::ZERO };
    let slos = |text: &str| vec![Slo::parse(text).unwrap()];
    let common = Common {
        connections: 50,
        setup_timeout: PATIENT,
        slos: slos("max<600s"),
        ..Target::parse(&target).unwrap().into()
    };
    let mut plan = Plan::new(common, mode);
    let stop = AtomicBool::new(false);
    let options = Options { start_per_s: 25.0, precision: 0.5 };
    let load = Load::WebSocket(Box::new(plan.clone()));
    let report = find_max(&load, options, &stop, &mut |event| {
        if let Event::Begins { step: 2, .. } = event {
            stop.store(true, Ordering::Relaxed);
        }
    });
    let report = report.unwrap();
    assert_eq!((report.max_rate_per_s, report.of), (Some(25.0), ModeName::Connect), "{report}");
    assert_eq!(report.steps[0].latency.unwrap().count, 5);
    assert!(report.to_text().contains("connect with at most 50 connections"), "{report}");
    plan.common.slos = slos("max<1us");
    let report = search(Load::WebSocket(Box::new(plan)), 8.0).unwrap();
    assert_eq!((report.max_rate_per_s, report.exit_code()), (None, 99), "{report}");
}

#[test]
fn a_server_that_keeps_no_rate_is_no_success() {
    let server = crate::http_server::start(crate::http_server::Behaviour::Right);
    let url = format!("http://127.0.0.1:{}/x?y=1", server.port);
    let common = Common {
        connections: 4,
        setup_timeout: PATIENT,
        slos: vec![Slo::parse("errors<5%").unwrap()],
        ..Target::parse_http(&url).unwrap().into()
    };
    let plan = http::HttpPlan {
        expect: http::Expect::parse("404").unwrap(),
        duration: Duration::from_millis(50),
        warmup: Duration::ZERO,
        ..http::HttpPlan::new(common)
    };
    let report = search(Load::Http(Box::new(plan)), 1000.0).unwrap();
    assert_eq!((report.max_rate_per_s, report.exit_code()), (None, 99), "{report}");
    let reason = report.steps[0].reason.as_deref().unwrap();
    assert!(reason.contains("errors<5% NOT KEPT"), "{reason}");
    assert!(report.to_text().contains("no rate keeps errors<5%"), "{report}");
}

#[test]
fn a_search_needs_a_threshold_and_ends_when_it_is_stopped() {
    let short = Duration::from_millis(50);
    let plan = echo(crate::server::Behaviour::Echo, "max<600s", short);
    let mut without = plan.clone();
    without.common.slos.clear();
    let error = search(Load::WebSocket(Box::new(without)), 10.0).unwrap_err();
    assert!(error.exit_code() == 2 && error.to_string().contains("write --slo"), "{error}");
    let error = search(Load::WebSocket(Box::new(plan.clone())), 0.0).unwrap_err();
    assert!(error.to_string().contains("--rate"), "{error}");
    let (stop, mut seen) = (AtomicBool::new(false), 0);
    let options = Options { start_per_s: 200.0, precision: 0.5 };
    let load = Load::WebSocket(Box::new(plan));
    let report = find_max(&load, options, &stop, &mut |event| match event {
        Event::Ended(_) => seen += 1,
        Event::Begins { step: 2, .. } => stop.store(true, Ordering::Relaxed),
        _ => {}
    });
    let report = report.unwrap();
    assert_eq!((seen, report.steps.len(), report.complete), (1, 1, false));
    assert!(report.to_text().contains("stopped before the end"), "{report}");
}
