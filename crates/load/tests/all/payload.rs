//! Given messages, against servers that echo them and servers that change them.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use throng_load::report::Measured;
use throng_load::{Common, Content, Limit, Mode, Pace, Plan, Report, Target, Template, Tokens};

use crate::server::{Behaviour, start};

const SHORT: Duration = Duration::from_millis(100);

fn closed() -> Mode {
    let (duration, warmup) = (Duration::from_secs(600), Duration::ZERO);
    Mode::Echo { pace: Pace::Closed { pipeline: 3 }, duration, warmup }
}

fn run(behaviour: Behaviour, mode: Mode, content: Content, text: bool) -> Report {
    let target = Target::parse(&format!("ws://{}/any", start(behaviour))).unwrap();
    let setup_timeout = Duration::from_secs(60);
    let common = Common { connections: 6, threads: 2, setup_timeout, ..target.into() };
    let mut plan = Plan::new(common, mode);
    (plan.content, plan.text) = (content, text);
    // Uses a fixed number instead of a time, because the duration depends on the machine.
    let is_closed = matches!(mode, Mode::Echo { pace: Pace::Closed { .. }, .. });
    plan.common.number = is_closed.then_some(600);
    plan.common.tokens = match &plan.content {
        Content::Template(template) if template.needs_token() => {
            Tokens::parse("tokens", "first\nthe second").unwrap()
        }
        _ => Tokens::default(),
    };
    plan.size = plan.given_size().unwrap();
    throng_load::run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn given(bytes: &[u8]) -> Content {
    Content::Given(bytes.into())
}

fn template(text: &str) -> Content {
    Content::of_template(Template::parse(text).unwrap())
}

#[test]
fn a_given_payload_is_sent_and_expected_back() {
    let open = Mode::Echo {
        pace: Pace::Open { rate_per_s: 50.0 },
        duration: SHORT,
        warmup: Duration::ZERO,
    };
    let connect = Mode::Connect { rate_per_s: None, duration: 3 * SHORT, warmup: Duration::ZERO };
    for mode in [closed(), open, connect] {
        for (content, text) in [
            (given(b"hello"), true),
            (given(b""), false),
            (given(b"\xff\x00"), false),
            (template(r#"{"id":"{uuid}","n":{sequence},"from":{client},"as":"{token}"}"#), true),
            (template("{random}"), false),
        ] {
            let report = run(Behaviour::Echo, mode, content.clone(), text);
            assert_eq!(report.errors.total(), 0, "{content:?}: {report}");
            match &report.result {
                Measured::Echo(echo) => assert!(echo.messages > 0, "{report}"),
                Measured::Connect(connect) => assert!(connect.connections > 0, "{report}"),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn another_answer_is_noticed() {
    for content in [given(b"hello"), template("{client} {sequence}")] {
        for (behaviour, words) in [
            (Behaviour::Forge, "has other content"),
            (Behaviour::Confuse, "a binary message of"),
            (Behaviour::Cut, "cut off"),
        ] {
            let report = run(behaviour, closed(), content.clone(), true);
            assert!(report.errors.total() > 0 && report.verdict.limit == Limit::Invalid);
            let first = report.errors.first.clone().unwrap();
            assert!(first.contains(words), "{behaviour:?}: {first}");
        }
    }
}
