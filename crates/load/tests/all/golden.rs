//! The shape of all reports, on which programs and people rely: keys of the JSON, names of the CSV
//! columns, and the lines of the text without their figures, for one plan of each kind.
//!
//! `UPDATE_DOCUMENTS=1` writes the file again after an intended change.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use throng_load::compare::{Options as CompareOptions, Runs, compare};
use throng_load::find_max::{Event, Load, Options, find_max};
use throng_load::report::Render;
use throng_load::{Common, Content, Deflate, Mode, Pace, Plan, Script, Slo, Target, Tokens, http};

use crate::http_server::{self, Behaviour as HttpBehaviour};
use crate::server::{Behaviour, start};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/reports.txt");
const SHORT: Duration = Duration::from_millis(100);
/// Longer than any run, because a number of messages ends it.
const LONG: Duration = Duration::from_secs(600);
const PATIENT: Duration = Duration::from_secs(60);

fn ws(behaviour: Behaviour, connections: usize, mode: Mode) -> Plan {
    let target = Target::parse(&format!("ws://{}/any", start(behaviour))).unwrap();
    Plan::new(Common { connections, setup_timeout: PATIENT, ..target.into() }, mode)
}

fn closed(pipeline: usize) -> Mode {
    Mode::Echo { pace: Pace::Closed { pipeline }, duration: LONG, warmup: Duration::ZERO }
}

fn open(rate_per_s: f64) -> Mode {
    Mode::Echo { pace: Pace::Open { rate_per_s }, duration: 3 * SHORT, warmup: SHORT }
}

fn numbered(mut plan: Plan) -> Plan {
    plan.common.number = Some(400);
    plan
}

fn run(plan: &Plan) -> impl Render {
    throng_load::run(plan, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn http_plan() -> http::HttpPlan {
    let server = http_server::start(HttpBehaviour::Right);
    let target = Target::parse_http(&format!("http://127.0.0.1:{}/x?y=1", server.port)).unwrap();
    let common = Common { connections: 4, setup_timeout: PATIENT, ..target.into() };
    http::HttpPlan { duration: 3 * SHORT, warmup: SHORT, ..http::HttpPlan::new(common) }
}

fn http_run(plan: &http::HttpPlan) -> impl Render {
    http::run(plan, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn search(mut load: Load) -> impl Render {
    load.common_mut().slos = vec![Slo::parse("max<1us").unwrap()];
    let options = Options { start_per_s: 40.0, precision: 1.0 };
    let stop = AtomicBool::new(false);
    let report = find_max(&load, options, &stop, &mut |event| {
        if let Event::Begins { step: 2, .. } = event {
            stop.store(true, Ordering::Relaxed);
        }
    });
    report.unwrap()
}

/// Adds the paths of a value; one element of an array stands for all of them.
fn keys(value: &Value, place: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            out.extend(fields.is_empty().then(|| place.to_owned()));
            for (key, value) in fields {
                keys(value, &format!("{place}/{key}"), out);
            }
        }
        Value::Array(_) if place.ends_with("buckets_ns") => drop(out.insert(place.to_owned())),
        Value::Array(values) => match values.first() {
            Some(first) => keys(first, &format!("{place}/*"), out),
            None => drop(out.insert(place.to_owned())),
        },
        _ => drop(out.insert(place.to_owned())),
    }
}

/// Returns the lines of a text without figures and widths; for remarks only the labels.
fn lines(text: &str) -> Vec<String> {
    let mut blocks = text.split("\n\n");
    let conditions = blocks.next().unwrap_or_default().lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let line = words.join(" ");
        match line.split_once("127.0.0.1:") {
            Some((before, rest)) => {
                format!("{before}HOST{}", rest.trim_start_matches(|c: char| c.is_ascii_digit()))
            }
            None => line,
        }
    });
    let mut lines: Vec<String> = conditions.collect();
    for line in blocks.flat_map(str::lines) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let line = match line.starts_with(' ') {
            true => {
                let line = words.join(" ");
                let end = line.find(|c: char| c.is_ascii_digit() && !line.starts_with("time"));
                line[..end.unwrap_or(line.len())].trim_end_matches(['-', ' ', '(']).to_owned()
            }
            false => words.first().copied().unwrap_or_default().to_owned(),
        };
        // The CPU clock may not advance during such a short run.
        let is_measured = !line.starts_with("server CPU");
        if !line.is_empty() && is_measured && lines.last() != Some(&line) {
            lines.push(line);
        }
    }
    lines
}

fn shape(name: &str, report: &impl Render) -> String {
    let json: Value = serde_json::from_str(&report.to_json()).unwrap();
    let mut places = BTreeSet::new();
    keys(&json, "", &mut places);
    let csv = report.to_csv();
    let mut out = format!("== {name}\n{}\n", csv.lines().next().unwrap_or_default());
    places.iter().for_each(|place| writeln!(out, "{place}").unwrap());
    lines(&report.to_text()).iter().for_each(|line| writeln!(out, "| {line}").unwrap());
    out
}

fn websocket_shapes() -> String {
    let echo = ws(Behaviour::Echo, 8, closed(4));
    let mut out = shape("echo, closed loop", &run(&numbered(Plan { text: true, ..echo })));
    let mut staged = ws(Behaviour::Echo, 8, open(100.0));
    (staged.common.threads, staged.common.sources) = (2, Some(3));
    staged.common.slos = vec![Slo::parse("p99<1h").unwrap()];
    out += &shape("echo, open loop", &run(&staged));
    let content = Content::Json { seed: 1 };
    let deflate = Deflate::default().enabled(true);
    let echo = ws(Behaviour::Echo, 8, closed(1));
    let echo = Plan { deflate, content, size: 300, ..echo };
    out += &shape("echo, compressed", &run(&numbered(echo)));
    let mut echo = ws(Behaviour::Guarded, 8, closed(1));
    echo.common.headers = vec![("Authorization".to_owned(), "Bearer {token}".to_owned())];
    echo.common.tokens = Tokens::parse("tokens", "t0\nt1").unwrap();
    echo.subprotocols = vec!["v1".to_owned()];
    out += &shape("echo, with tokens", &run(&numbered(echo)));
    let connect =
        |rate_per_s| Mode::Connect { rate_per_s, duration: 3 * SHORT, warmup: Duration::ZERO };
    let closed_connects = ws(Behaviour::Echo, 4, connect(None));
    out += &shape("connect, closed loop", &run(&numbered(closed_connects)));
    out += &shape("connect, open loop", &run(&ws(Behaviour::Echo, 50, connect(Some(100.0)))));
    let idle = Plan {
        echo_after_idle: true,
        await_close: Some(SHORT / 10),
        ..ws(Behaviour::Echo, 8, Mode::Idle { hold: SHORT })
    };
    out += &shape("idle", &run(&idle));
    let mode = Mode::Broadcast { publishes: 5, timeout: PATIENT };
    out += &shape("broadcast", &run(&ws(Behaviour::Channel, 8, mode)));
    let mode = Mode::Fanout {
        channels: 1,
        subscribers: 4,
        rate_per_s: 100.0,
        duration: 3 * SHORT,
        warmup: Duration::ZERO,
    };
    out += &shape("fanout", &run(&ws(Behaviour::Channel, 5, mode)));
    let mode = Mode::Script { duration: LONG, warmup: Duration::ZERO, timeout: LONG };
    let text = "loop\nsend {client}\nexpect {client}\nrepeat 5";
    let script = Some(Arc::new(Script::parse("chat.txt", text).unwrap()));
    out += &shape("script", &run(&Plan { script, ..ws(Behaviour::Echo, 4, mode) }));
    out
}

fn http_shapes() -> String {
    let mut plan = http_plan();
    plan.common.number = Some(400);
    plan.warmup = Duration::ZERO;
    plan.pipeline = 4;
    let mut out = shape("http, closed loop", &http_run(&plan));
    let pace = http::Pace::Open { rate_per_s: 200.0 };
    out += &shape("http, open loop", &http_run(&http::HttpPlan { pace, ..http_plan() }));
    let mut plan = http_plan();
    (plan.method, plan.body, plan.chunked) = ("PUT".to_owned(), b"hello".to_vec(), true);
    (plan.keep_alive, plan.common.number) = (false, Some(400));
    plan.warmup = Duration::ZERO;
    out += &shape("http, a connection each", &http_run(&plan));
    plan = http_plan();
    (plan.expect, plan.common.threads) = (http::Expect::parse("404").unwrap(), 2);
    (plan.common.number, plan.warmup) = (Some(40), Duration::ZERO);
    out += &shape("http, another status", &http_run(&plan));
    out
}

fn other_shapes() -> String {
    let short = |mut plan: Plan| {
        plan.mode = Mode::Echo {
            pace: Pace::Closed { pipeline: 1 },
            duration: SHORT / 2,
            warmup: Duration::ZERO,
        };
        plan
    };
    let plan = short(ws(Behaviour::Echo, 4, closed(1)));
    let mut out = shape("find-max, echo", &search(Load::WebSocket(Box::new(plan))));
    let plan = http::HttpPlan { duration: SHORT / 2, warmup: Duration::ZERO, ..http_plan() };
    out += &shape("find-max, http", &search(Load::Http(Box::new(plan))));
    let plan = numbered(ws(Behaviour::Echo, 8, closed(1)));
    let report = || {
        let mut report: Value = serde_json::from_str(&run(&plan).to_json()).unwrap();
        // The limit of such a short run depends on the machine, and some limits add a caveat.
        report["verdict"]["limit"] = "neither".into();
        report.to_string()
    };
    let runs = || Runs::parse("runs", &(report() + &report())).unwrap();
    let options = CompareOptions { force: true, ..CompareOptions::default() };
    out + &shape("compare", &compare(&runs(), &runs(), options).unwrap())
}

#[test]
fn reports_keep_their_keys_columns_and_lines() {
    let shapes = [websocket_shapes(), http_shapes(), other_shapes()].join("");
    if std::env::var_os("UPDATE_DOCUMENTS").is_some() {
        return std::fs::write(GOLDEN, shapes).unwrap();
    }
    let golden = std::fs::read_to_string(GOLDEN).unwrap();
    for (is, was) in shapes.lines().zip(golden.lines()) {
        assert_eq!(is, was, "in\n{shapes}");
    }
    assert_eq!(shapes.lines().count(), golden.lines().count(), "{shapes}");
}
