//! `throng bench http` as users run it: the real binary against its own server, against `throng
//! serve`, and against a port where no program listens.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// `throng serve` on a free port, ended with the test.
struct Served {
    child: Child,
    url: String,
}

impl Served {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(["serve", "--listen", "127.0.0.1:0", "--shards", "1"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (_, after) =
            line.split_once("http://").unwrap_or_else(|| panic!("no address in {line:?}"));
        let address = after.split_whitespace().next().unwrap().trim_end_matches('/');
        Self { url: format!("http://{address}/"), child }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_throng")).args(["bench", "http"]).args(words).output().unwrap()
}

/// A run is usually short. A busy machine may have no answer by its end: a longer one follows.
fn bench_json(words: &[&str]) -> Value {
    let mut durations = ["150ms", "2s", "20s"].iter();
    loop {
        let duration = durations.next().unwrap_or_else(|| panic!("{words:?}: never an answer"));
        let short = ["--json", "-d", duration, "-w", "20ms", "-c", "20"];
        let output = bench(&[words, &short].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        let report: Option<Value> = serde_json::from_str(&text).ok();
        let answers = report.as_ref().and_then(|report| report["result"]["requests"].as_u64());
        let errors = String::from_utf8_lossy(&output.stderr);
        match report {
            Some(report) if answers > Some(0) && output.status.success() => return report,
            Some(report) if answers == Some(0) && report["errors"]["first"].is_null() => {}
            _ => panic!("{words:?}: {errors}{text}"),
        }
    }
}

fn requests(report: &Value) -> u64 {
    assert_eq!(report["errors"]["first"], Value::Null, "{report}");
    report["result"]["requests"].as_u64().unwrap()
}

#[test]
fn every_way_measures_a_server_of_our_own() {
    for words in [
        &[][..],
        &["--pipeline", "16"],
        &["--no-keep-alive"],
        &["--rate", "500/s", "--threads", "2"],
        &["--rate", "500/s", "--no-keep-alive"],
        &["-X", "POST", "--body", "{\"a\":1}", "-H", "Content-Type: application/json"],
        &["--body-size", "100KiB", "--chunked", "-p", "2"],
        &["-X", "HEAD", "-p", "4"],
        &["--shards", "2", "--source", "3", "--ramp", "50ms"],
    ] {
        let report = bench_json(words);
        assert!(requests(&report) > 0, "{words:?}: {report}");
        assert_eq!(report["result"]["statuses"]["200"].as_u64(), Some(requests(&report)));
        assert_eq!(report["server"]["same_process"], false);
        assert!(report["result"]["requests_per_server_cpu_s"].as_f64().unwrap() > 0.0, "{report}");
        assert!(report["server"]["memory"]["rss_bytes"].as_u64().unwrap() > 0, "{report}");
        assert!(report["generator"]["cpu"]["cpu_s"].is_number());
    }
}

#[test]
fn a_foreign_server_is_found_by_its_port() {
    let served = Served::start();
    let report = bench_json(&[&served.url]);
    assert!(requests(&report) > 0, "{report}");
    assert_eq!(report["server"]["pids"][0].as_u64(), Some(u64::from(served.child.id())));
    // The page is larger than its head.
    let bytes = report["result"]["received_bytes"].as_u64().unwrap();
    assert!(bytes > 1000 * requests(&report), "{report}");
    let gone = format!("{}nowhere", served.url);
    let report = bench_json(&[&gone, "--expect-status", "404"]);
    assert_eq!(report["result"]["statuses"]["404"].as_u64(), Some(requests(&report)));
    let pid = served.child.id().to_string();
    assert!(requests(&bench_json(&[&served.url, "--pid", &pid])) > 0);
}

#[test]
fn a_report_is_a_table_a_page_or_csv() {
    let folder = throng_testkit::TempFolder::new("http");
    let page = folder.join("page.html");
    let output = bench(&["-d", "50ms", "-w", "0s", "-c", "2", "--html", page.to_str().unwrap()]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "no progress off a terminal");
    assert!(table.lines().last().unwrap().starts_with("verdict "), "{table}");
    assert!(table.contains("requests per server CPU-second"), "{table}");
    let mut html = String::new();
    std::fs::File::open(&page).unwrap().read_to_string(&mut html).unwrap();
    assert!(html.contains("<svg"), "{html}");
    let csv = bench(&["-d", "50ms", "-w", "0s", "-c", "2", "--csv"]);
    assert!(String::from_utf8(csv.stdout).unwrap().starts_with("url,connections,"));
}

#[test]
fn failures_have_one_line_a_remedy_and_a_code() {
    // No program listens there.
    let url = "http://127.0.0.1:1".to_owned();
    for (words, code, hint) in [
        (vec![url.as_str()], 1, "Is the server running"),
        (vec![&url, "--no-keep-alive"], 1, "Is the server running"),
        (vec!["127.0.0.1:1"], 2, "did you mean http://127.0.0.1:1?"),
        (vec![&url, "--pipeline", "0"], 2, "--pipeline is 0"),
        (vec![&url, "-p", "2", "--no-keep-alive"], 2, "leave out --no-keep-alive"),
        (vec![&url, "--body-file", "/nowhere/at/all"], 2, "--body-file /nowhere/at/all"),
        (vec![&url, "-c", "20000000"], 1, "hard limit"),
        (vec![&url, "--server-pid", "4294967295"], 2, "no such process"),
    ] {
        let output = bench(&words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(hint) && text.lines().count() == 1, "{words:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn the_measured_values_determine_the_exit_code() {
    let short = ["-d", "1s", "-w", "0s", "-c", "2"];
    let unkept = bench(&[&short[..], &["--slo", "rate>1000000000"]].concat());
    let table = String::from_utf8(unkept.stdout).unwrap();
    assert_eq!(unkept.status.code(), Some(99), "{table}");
    assert!(table.contains("NOT KEPT"), "{table}");
    let unexpected = bench(&[&short[..], &["--expect-status", "204"]].concat());
    let table = String::from_utf8(unexpected.stdout).unwrap();
    assert_eq!(unexpected.status.code(), Some(1), "{table}");
    assert!(table.contains("unexpected statuses") && table.contains("not valid"), "{table}");
}
