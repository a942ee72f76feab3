use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use throng::prelude::*;
use throng_load::Target;

use super::plan::{ComparisonPlan, SubscriberPlan};
use super::subscribers::subscribe;
use crate::servers::children::Role;
use crate::servers::message;
use crate::servers::wire::{ChildMessage, Variant};

/// Bytes of a greeting.
const GREETING: usize = 64;

#[test]
fn subscribers_tell_when_the_last_has_it_and_what_was_wrong() {
    // Sends broadcast 1 twice to each that comes, and then something else.
    let mut text = String::new();
    message::compose(&mut text, GREETING, 1, 0);
    let greet = Ws::new().on_open(move |ws, ()| {
        for text in [text.as_str(), text.as_str(), "hello"] {
            ws.send(text);
        }
    });
    let greeter = Server::new(App::new().ws("/", greet)).shards(1).bind("127.0.0.1:0").unwrap();
    let greeter = greeter.start().unwrap();
    let (sender, messages) = std::sync::mpsc::channel();
    let plan = SubscriberPlan {
        target: Target::parse(&format!("ws://{}/", greeter.local_addr())).unwrap(),
        subscribers: 3,
        of: 3,
        first: 0,
        size: GREETING,
        setup_timeout: Duration::from_secs(60),
    };
    // The greeting comes with the upgrade's answer or a moment later, so the counts are not known
    // at the start.
    let (counted, enough) = std::sync::mpsc::channel();
    let report = move |what: &ChildMessage| {
        if matches!(what, ChildMessage::Reached { .. }) {
            let _ = counted.send(());
        }
        let _ = sender.send(what.clone());
    };
    subscribe(&plan, report, || enough.recv_timeout(Duration::from_secs(20)).unwrap()).unwrap();
    let messages: Vec<ChildMessage> = messages.iter().collect();
    assert!(messages.contains(&ChildMessage::Subscribed { subscribers: 3 }), "{messages:?}");
    let reached = |message: &&ChildMessage| {
        matches!(message, ChildMessage::Reached { round: 1, first_ns: first, last_ns: last }
            if first <= last)
    };
    assert_eq!(messages.iter().filter(reached).count(), 1, "{messages:?}");
    let Some(ChildMessage::Left { wrong, lost: 0, received: 3, first: Some(_) }) = messages.last()
    else {
        panic!("{messages:?}")
    };
    // The last subscriber's may still be under way.
    assert!((4..=6).contains(wrong), "a repetition and a greeting each: {messages:?}");
}

/// Processes that misbehave; shells, because they write exactly what they are given.
#[cfg(unix)]
#[test]
fn a_comparison_says_which_process_failed_it() {
    let plan = ComparisonPlan {
        subscribers: vec![5],
        variants: vec![Variant::Publish],
        timeout: Duration::from_millis(200),
        ..ComparisonPlan::default()
    };
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    };
    let listening = r#"echo '{"listening":{"address":"127.0.0.1:1"}}'; cat > /dev/null"#;
    let silent = r#"echo '{"subscribed":{"subscribers":5}}'; cat > /dev/null
                    echo '{"left":{"wrong":0,"lost":0,"received":3,"first":null}}'"#;
    let failing = r#"echo '{"failed":{"reason":"no port left"}}'"#;
    for (server, subscribers, words) in [
        ("exit 1", silent, "ended (while waiting for a server to listen)"),
        ("echo nonsense", silent, "a process of the benchmark wrote: "),
        (listening, failing, "no port left (while waiting for subscribers to connect)"),
        (
            listening,
            silent,
            "waited 200ms for broadcast 1 (publish) to reach all subscribers: 3 of 5",
        ),
    ] {
        let launch = |role: &Role| match role {
            Role::Server { .. } => shell(server),
            Role::Subscribers { .. } => shell(subscribers),
        };
        let error = super::run(&plan, &launch, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
        assert!(error.to_string().contains(words) && error.exit_code() == 1, "{error}");
    }
    let absent = |_: &Role| Command::new("/no/such/program");
    let error = super::run(&plan, &absent, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("cannot start a process"), "{error}");
}
