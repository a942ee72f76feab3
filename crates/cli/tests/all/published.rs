//! `throng bench published` as people run it. No figure is asserted that time decides; only the
//! rows, and their sources.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

#[cfg(unix)]
use crate::started::signal;

fn published(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["bench", "published", "--quiet"]).args(words);
    command
}

fn file(name: &str) -> PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// The text and the JSON of a quick run. A machine that answers nothing in the short time is not a
/// failure of the command.
fn quick(tables: &str) -> (String, Value) {
    let json = file(&format!("published-{}.json", tables.replace(',', "-")));
    let words = ["--quick", "--only", tables, "--json", json.to_str().unwrap()];
    let Output { status, stdout, stderr } = published(&words).output().unwrap();
    let (text, errors) = (String::from_utf8(stdout).unwrap(), String::from_utf8_lossy(&stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
    let failures: Vec<&str> = sections(&report).filter_map(|it| it["failure"].as_str()).collect();
    let is_slow = |why: &&str| why.contains("not one request was answered");
    assert!(failures.iter().all(is_slow), "{failures:?}: {errors}{text}");
    assert_eq!(status.code(), Some(i32::from(!failures.is_empty())), "{errors}{text}");
    let names: Vec<&str> = sections(&report).map(|it| it["table"].as_str().unwrap()).collect();
    assert_eq!(names, tables.split(',').collect::<Vec<_>>());
    for section in sections(&report) {
        let articles = section["articles"].as_array().unwrap();
        assert!(!articles.is_empty() && !section["rows"].as_array().unwrap().is_empty());
        for article in articles {
            let title = article["title"].as_str().unwrap();
            assert!(text.contains(title), "{title} in {text}");
        }
    }
    assert!(text.contains("these are no figures"), "{text}");
    (text, report)
}

fn sections(report: &Value) -> impl Iterator<Item = &Value> {
    report["sections"].as_array().unwrap().iter()
}

/// All rows.
fn rows(report: &Value) -> Vec<&Value> {
    sections(report).flat_map(|section| section["rows"].as_array().unwrap()).collect()
}

/// The cases that were measured.
fn measured<'a>(report: &'a Value, figure: &str) -> Vec<&'a str> {
    let same = rows(report).into_iter().filter(|row| row["figure"] == figure);
    same.filter(|row| row["ours"].is_number()).map(|row| row["case"].as_str().unwrap()).collect()
}

#[test]
fn echo_and_the_program() {
    let (text, report) = quick("echo,size");
    assert_eq!(measured(&report, "memory (RSS)"), ["100 clients x 10/s"]);
    assert_eq!(measured(&report, "program file").len(), 3);
    assert_eq!(measured(&report, "start to first answer"), ["throng serve"]);
    assert!(text.contains("lateness p99") && text.contains("Components4Developers"), "{text}");
}

#[test]
fn broadcasts_with_and_without_compression() {
    let (_, report) = quick("broadcast");
    let ways = ["a loop of sends", "one encoded frame", "a publication"];
    let compressed = ways.map(|way| format!("{way}, compressed"));
    let all: Vec<&str> = ways.into_iter().chain(compressed.iter().map(String::as_str)).collect();
    assert_eq!(measured(&report, "last has it"), all);
}

#[test]
#[cfg(target_os = "linux")]
fn io_models_beside_published_servers() {
    let (text, report) = quick("io-models");
    for words in ["Idle connections", "portable", "published: epoll", "Ceilings", "1,000,000"] {
        assert!(text.contains(words), "{words} in {text}");
    }
    let memory = rows(&report).into_iter().find(|row| row["figure"] == "memory").unwrap();
    assert!(memory["published"].is_number() && memory["by"].is_string(), "{memory}");
}

#[test]
#[cfg(target_os = "linux")]
fn times_to_connect() {
    let (text, _) = quick_without_rows("connect");
    assert!(text.contains("and echoed") && text.contains("threads"), "{text}");
}

/// A size that was not published has no rows for programs.
fn quick_without_rows(table: &str) -> (String, Output) {
    let output = published(&["--quick", "--only", table]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    (text, output)
}

#[test]
#[cfg(all(target_os = "linux", feature = "balance"))]
fn proxies_with_many_tunnels_and_under_bursts() {
    let (_, report) = quick("tunnels,burst");
    let memory = measured(&report, "memory");
    for case in ["100 tunnels, throng", "1 B, throng", "4 KiB, throng"] {
        assert!(memory.contains(&case), "{case}: {memory:?}");
    }
    assert!(measured(&report, "memory's growth").contains(&"1 B to 4 KiB, throng"), "{report}");
}

#[test]
fn http_servers_of_the_suite_and_under_stress() {
    let (text, report) = quick("netbench,stress");
    let cases: std::collections::BTreeSet<&str> =
        rows(&report).into_iter().filter_map(|row| row["case"].as_str()).collect();
    for case in ["1, blank", "100, work", "1 connection, 1 I/O thread"] {
        assert!(cases.contains(case), "{case}: {cases:?}");
    }
    assert!(text.contains("kbmMW") && text.contains("Sparkle"), "{text}");
}

#[test]
#[cfg(unix)]
fn an_interrupt_keeps_the_tables_so_far() {
    let html = file("published-interrupted.html");
    let words = ["--only", "size,echo", "--html", html.to_str().unwrap()];
    let mut child = published(&words).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    // The first table is complete; the next takes minutes.
    while !text.contains("Published: ") {
        assert_ne!(output.read_line(&mut text).unwrap(), 0, "{text}");
    }
    signal(&child, "INT");
    output.read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1), "{text}");
    assert!(text.contains("Stopped before all tables were complete"), "{text}");
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.contains("program file") && page.contains("Components4Developers"), "{page}");
}

#[test]
fn mistakes_are_reported_before_anything_starts() {
    for (words, hint) in [
        (&["--only", "speed"][..], "io-models"),
        (
            &["--json", "/no/such/directory/x"],
            "--json /no/such/directory/x: the directory /no/such/directory does not exist",
        ),
    ] {
        let output = published(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains(hint) && output.stdout.is_empty(), "{errors}");
    }
}
