//! `lab io-models` as people run it: the real binary, on servers that it starts itself.
#![cfg(unix)]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).arg("io-models").args(words).output().unwrap()
}

fn bench_json(words: &[&str]) -> Value {
    let output = bench(&[words, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words:?}: {errors}{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn rows<'a>(report: &'a Value, table: &str) -> &'a Vec<Value> {
    report[table].as_array().unwrap()
}

/// The figures of a row that has some.
fn figures(row: &Value) -> &Value {
    assert_eq!(row["missing"], Value::Null, "{row}");
    &row["figures"]
}

#[test]
fn idle_connections_of_every_model_are_weighed() {
    let report = bench_json(&["--only", "idle", "--connections", "40,20", "--window", "100ms"]);
    let models = report["plan"]["models"].as_array().unwrap().len();
    assert_eq!(rows(&report, "idle").len(), 2 * models);
    for row in rows(&report, "idle") {
        let figures = figures(row);
        let connections = row["connections"].as_u64().unwrap();
        let threads = figures["threads"].as_u64().unwrap();
        let stack = figures["kernel_stack_bytes_per_connection"].as_f64().unwrap();
        match row["model"] == "threads" {
            // The threads of connections that asked whether it listens may end only after threads
            // were counted for the first time.
            true => {
                let stacks = stack * connections as f64 / 16_384.0;
                let most = connections as f64;
                assert!(threads > connections && (most - 3.0..=most).contains(&stacks), "{row}");
            }
            false => assert!(
                threads < 20 + report["plan"]["cpus"].as_u64().unwrap() && stack == 0.0,
                "{row}"
            ),
        }
        assert!(figures["descriptors"].as_u64().unwrap() > connections, "all were there: {row}");
        assert!(figures["process_bytes"].as_u64().unwrap() > 0);
    }
    let advice = report["advice"][0].as_str().unwrap();
    assert!(advice.starts_with("With 40 idle connections"), "the larger size: {advice}");
}

#[test]
fn connections_come_and_are_answered() {
    let report = bench_json(&["--only", "connect", "--connections", "150"]);
    for row in rows(&report, "connect") {
        let figures = figures(row);
        let seconds = |name: &str| figures[name].as_f64().unwrap();
        assert!(
            seconds("connected_s") > 0.0 && seconds("answered_s") >= seconds("connected_s") / 2.0
        );
    }
    assert_eq!(rows(&report, "idle").len(), 0);
}

#[test]
fn a_handler_that_blocks_runs_every_way() {
    let words = ["--only", "workers", "--blocking", "1ms", "--cpu", "100us", "--clients", "8"];
    let report = bench_json(&[&words[..], &["-d", "100ms"]].concat());
    let cpus = report["plan"]["cpus"].as_u64().unwrap();
    // The rule: CPUs + (blocking / CPU time) x CPUs.
    assert_eq!(report["plan"]["workers_by_rule"], cpus + 10 * cpus);
    let variants: Vec<&str> =
        rows(&report, "blocking").iter().map(|row| row["variant"].as_str().unwrap()).collect();
    assert_eq!(variants, ["inline", "workers", "workers_by_rule", "threads"]);
    for row in rows(&report, "blocking") {
        let latency = &figures(row)["latency"];
        // Nothing is answered before the handler has returned.
        assert!(latency["min_us"].as_f64().unwrap() >= 1_000.0, "{row}");
        assert!(figures(row)["messages_per_s"].as_f64().unwrap() > 0.0);
    }
    assert_eq!(rows(&report, "blocking")[2]["workers"], cpus + 10 * cpus);
    let advice = report["advice"].as_array().unwrap().last().unwrap().as_str().unwrap();
    assert!(advice.starts_with("Which model you need: "), "{advice}");
}

#[test]
fn a_row_without_room_on_the_machine_is_reported_in_its_cell() {
    // More than any process may have descriptors for, since a million is Linux' ceiling unless it
    // was raised.
    let output = bench(&["--only", "connect", "--models", "threads", "--connections", "1000000"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    let reason = text.contains("descriptors, this machine gives")
        || text.contains("threads, this machine gives");
    assert!(reason && text.contains("1,000,000"), "{text}");
}

#[test]
fn tables_csv_and_a_page_say_the_same() {
    let folder = throng_testkit::TempFolder::new("io-models");
    let page = folder.join("page.html");
    let words = ["--models", "epoll,threads", "--only", "idle,connect", "--connections", "100"];
    let times = ["--window", "50ms", "--html", page.to_str().unwrap()];
    let output = bench(&[&words[..], &times].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}{text}", String::from_utf8_lossy(&output.stderr));
    let html = std::fs::read_to_string(&page).unwrap();
    for words in ["published: epoll", "1.4 MB", "3.9 MB", "Idle connections", "Time to connect"] {
        assert!(text.contains(words) && html.contains(words), "{words:?} in\n{text}");
    }
    assert!(html.contains("<svg") && !html.contains("src="));
    let csv = bench(&[&words[..], &["--window", "50ms", "--csv"]].concat());
    let csv = String::from_utf8_lossy(&csv.stdout).into_owned();
    let count = |begin: &str| csv.lines().filter(|line| line.starts_with(begin)).count();
    assert_eq!(count("idle,100,epoll,0"), 1, "{csv}");
    assert_eq!((count("idle,100,published: "), count("connect,100,")), (4, 2), "{csv}");
    assert_eq!(csv.lines().count(), 1 + 2 * 2 + 4, "{csv}");
}
