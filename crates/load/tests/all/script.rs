//! Clients that follow a script, against servers that answer as expected and servers that do not.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use throng_load::report::{Measured, Render as _, ScriptReport};
use throng_load::{Common, Limit, Mode, Plan, Report, Script, Slo, Target, Tokens};

use crate::server::{Behaviour, start};

/// Far longer than any of these scripts, because the script ends each run.
const LONG: Duration = Duration::from_secs(600);

fn run(behaviour: Behaviour, script: &str, change: impl FnOnce(&mut Plan)) -> Report {
    let target = Target::parse(&format!("ws://{}/any", start(behaviour))).unwrap();
    let mode = Mode::Script { duration: LONG, warmup: Duration::ZERO, timeout: LONG };
    let common = Common { connections: 4, setup_timeout: LONG, ..target.into() };
    let mut plan = Plan::new(common, mode);
    plan.script = Some(Arc::new(Script::parse("chat.txt", script).unwrap()));
    change(&mut plan);
    throng_load::run(&plan, &AtomicBool::new(false), &mut |_| {}).unwrap()
}

fn script(report: &Report) -> &ScriptReport {
    match &report.result {
        Measured::Script(script) => script,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_client_goes_through_all_steps_and_the_run_is_over() {
    let text = "send {\"login\":\"{client}\"}\nexpect \"{client}\"\nloop\nsend {sequence} {uuid}\n\
                pause 1ms\nexpect {sequence} {uuid}\nrepeat 5\nsend-binary bye\nexpect bye";
    for threads in [1, 2] {
        let report = run(Behaviour::Echo, text, |plan| plan.common.threads = threads);
        assert_eq!((report.errors.total(), report.exit_code()), (0, 0), "{report}");
        let script = script(&report);
        // Four clients: a login, five turns, a last message; each with an answer.
        assert_eq!((script.sent, script.answers, script.clients_finished), (28, 28, 4));
        assert_eq!(script.rounds, 4 * 5 + 4, "{report}");
        let done: Vec<(usize, u64)> =
            script.steps.iter().map(|step| (step.line, step.done)).collect();
        let all = [(1, 4), (2, 4), (4, 20), (5, 20), (6, 20), (7, 20), (8, 4), (9, 4)];
        assert_eq!(done, all, "{report}");
        assert_eq!(script.latency.unwrap().count, 28);
        assert_eq!(script.steps[4].latency.unwrap().count, 20);
        assert!(script.steps[0].latency.is_none());
        assert_eq!(report.to_csv().lines().count(), 9, "{}", report.to_csv());
        assert!(report.to_string().contains("expect {sequence} {uuid}"), "{report}");
    }
}

#[test]
fn a_script_without_end_ends_with_its_time() {
    let report = run(Behaviour::Echo, "send a\nexpect a\nrepeat", |plan| {
        let duration = Duration::from_millis(200);
        plan.mode = Mode::Script { duration, warmup: Duration::ZERO, timeout: LONG };
    });
    assert_eq!(report.errors.total(), 0, "{report}");
    let script = script(&report);
    assert!(script.answers > 0 && script.clients_finished == 0, "{report}");
    assert!(script.clients_waiting > 0, "{report}");
}

#[test]
fn greetings_are_kept_and_await_skips_what_expect_does_not() {
    let text = "expect welcome\nsend a{client}\nawait a{client}\nsend b\nexpect noise\nexpect b";
    let report = run(Behaviour::Noisy, text, |_| ());
    assert_eq!((report.errors.total(), script(&report).answers), (0, 16), "{report}");
    let report =
        run(Behaviour::Noisy, "await welcome\nsend hello\nexpect hello\nexpect hello", |_| ());
    let wrong = script(&report);
    assert_eq!(
        (report.errors.wrong_answers, report.verdict.limit),
        (4, Limit::Invalid),
        "{report}"
    );
    assert_eq!((wrong.steps[2].mismatches, wrong.steps[3].done), (4, 4), "the next line goes on");
    let first = &wrong.mismatches[0];
    assert!(first.starts_with("chat.txt:3: connection "), "{first}");
    assert!(first.ends_with(r#"expected "hello", and "noise" came"#), "{first}");
    assert_eq!(report.exit_code(), 1);
}

#[test]
fn a_mismatch_shows_no_token() {
    let text = "send {token} {client}\nexpect {token},{client}\nsend my {token}\nexpect other";
    let report = run(Behaviour::Echo, text, |plan| {
        (plan.common.connections, plan.common.tokens) =
            (1, Tokens::parse("t.txt", "c2VjcmV0").unwrap());
    });
    assert_eq!(report.errors.wrong_answers, 2, "{report}");
    let [of_token, of_text] = &script(&report).mismatches[..] else { panic!("{report}") };
    let end = r#"expected "{token},0", and a message of 10 bytes came"#;
    assert!(of_token.ends_with(end), "{of_token}");
    assert!(of_text.ends_with(r#"expected "other", and "my {token}" came"#), "{of_text}");
    for shown in [report.to_string(), report.to_json(), report.to_csv()] {
        assert!(!shown.contains("c2VjcmV0"), "{shown}");
    }
}

#[test]
fn a_server_that_is_silent_or_leaves_is_counted() {
    let report = run(Behaviour::Mute, "send a\nexpect a\nsend b", |plan| {
        let timeout = Duration::from_millis(50);
        plan.mode = Mode::Script { duration: LONG, warmup: Duration::ZERO, timeout };
        plan.common.slos = vec![Slo::parse("errors<1%").unwrap()];
    });
    assert_eq!((report.errors.missing_answers, report.exit_code()), (4, 99), "{report}");
    assert_eq!(script(&report).steps[1].missing, 4);
    let first = report.errors.first.clone().unwrap();
    assert!(first.contains("waited 0.05 s for `expect a`, and nothing came"), "{first}");
    let report = run(Behaviour::Cut, "loop\nsend a\nexpect a\nrepeat 10", |_| ());
    assert_eq!((report.errors.connections_lost, script(&report).answers), (4, 24), "{report}");
    let report = run(Behaviour::Forge, "loop\nsend abc\nexpect abc\nrepeat 8", |_| ());
    assert_eq!((report.errors.wrong_answers, script(&report).answers), (4, 28), "{report}");
}
