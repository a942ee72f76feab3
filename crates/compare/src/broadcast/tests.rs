use std::process::Command;
use std::sync::atomic::AtomicBool;

use super::Broadcast;
use crate::comparison::from_flags;
use crate::parts::Part;
use crate::run::run;

/// Processes that misbehave. They are shell commands, because a shell writes its text unchanged.
#[cfg(unix)]
#[test]
fn a_comparison_says_which_process_failed_it() {
    let flags = ["--subscribers", "5", "--variants", "publish", "--timeout", "200ms"];
    let broadcast: Broadcast = from_flags(&flags).unwrap();
    let shell = |script: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    };
    let failure = |launch: &dyn Fn(&Part) -> Command| {
        run(broadcast.clone(), launch, &AtomicBool::new(false), &mut |_| {}).unwrap_err()
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
        let launch = |part: &Part| match part {
            Part::Server(_) => shell(server),
            Part::Subscribers(_) => shell(subscribers),
        };
        let error = failure(&launch);
        assert!(error.to_string().contains(words) && error.exit_code() == 1, "{error}");
    }
    let absent = |_: &Part| Command::new("/no/such/program");
    let error = failure(&absent);
    assert!(error.to_string().contains("cannot start a process"), "{error}");
}
