//! `throng bench broadcast` and `throng bench fanout` as people run them: the real binary, which
//! starts its own server. No figure that depends on time is asserted, only counts and texts.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_throng")).arg("bench").args(words).output().unwrap()
}

fn fine(words: &[&str]) -> String {
    let output = bench(words);
    let (out, errors) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    let errors = String::from_utf8_lossy(&errors);
    assert!(output.status.success(), "{words:?}: {errors}{out}");
    assert!(errors.is_empty(), "no progress off a terminal: {errors}");
    out
}

fn page(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn a_broadcast_reaches_every_subscriber_of_its_own_server() {
    let words = ["broadcast", "-n", "40", "--rounds", "3", "--shards", "2", "--text", "--json"];
    let report: Value = serde_json::from_str(&fine(&words)).unwrap();
    assert_eq!(report["result"]["delivery"]["count"], 120, "{report}");
    assert_eq!(report["errors"]["wrong_answers"], 0);
    assert_eq!(report["server"]["same_process"], false);
    let table = fine(&["broadcast", "-n", "5", "--rounds", "1"]);
    assert!(table.lines().last().unwrap().starts_with("verdict "), "{table}");
}

#[test]
fn fanout_counts_every_delivery_of_its_own_server() {
    let html = page("fanout.html");
    let report: Value = serde_json::from_str(&fine(&[
        "fanout",
        "--channels",
        "10",
        "--subscribers",
        "5",
        "--rate",
        "200/s",
        "--duration",
        "500ms",
        "--warmup",
        "50ms",
        "--threads",
        "2",
        "--text",
        "--json",
        "--html",
        html.to_str().unwrap(),
    ]))
    .unwrap();
    let result = &report["result"];
    assert_eq!((&result["published"], &result["expected"]), (&100.into(), &500.into()), "{report}");
    assert_eq!((&result["received"], &result["lost"]), (&500.into(), &0.into()), "{report}");
    assert_eq!(result["latency"]["count"], 500);
    assert_eq!((&result["duplicates"], &result["reordered"]), (&0.into(), &0.into()));
    let slices = result["slices"].as_array().unwrap();
    assert!(!slices.is_empty() && slices.iter().all(|slice| slice["server_rss_bytes"].is_number()));
    let html = std::fs::read_to_string(html).unwrap();
    for words in ["p99.9", "latency in ms", "CPU in cores", "resident memory in MiB"] {
        assert!(html.contains(words), "{words:?}");
    }
}

#[test]
fn payloads_of_broadcasts_and_fanouts_may_be_given() {
    let words = ["broadcast", "-n", "20", "--rounds", "3", "--threads", "2", "--json"];
    let payload = ["--payload", r#"{"id":{sequence},"from":"{client}","nonce":"{random}"}"#];
    let report: Value = serde_json::from_str(&fine(&[&words[..], &payload].concat())).unwrap();
    assert_eq!(report["result"]["delivery"]["count"], 60, "{report}");
    assert_eq!(
        (&report["errors"]["wrong_answers"], &report["plan"]["payload"]),
        (&0.into(), &"template".into())
    );
    let file = page("payload.json");
    std::fs::write(&file, r#"{"type":"say","text":"{stamp}"}"#).unwrap();
    let words = ["fanout", "--channels", "4", "--subscribers", "3", "--rate", "100", "--json"];
    let times = ["-d", "300ms", "-w", "50ms", "--payload-file", file.to_str().unwrap(), "--text"];
    let report: Value = serde_json::from_str(&fine(&[&words[..], &times].concat())).unwrap();
    let result = &report["result"];
    assert_eq!((&result["received"], &result["lost"]), (&90.into(), &0.into()), "{report}");
    assert_eq!(report["plan"]["payload"], "given");
}

#[test]
fn the_highest_rate_of_a_fanout_is_found() {
    // No rate meets it: no delivery takes less than a microsecond.
    let words = ["fanout", "--channels", "4", "--subscribers", "3", "--rate", "50", "--find-max"];
    let more = ["--slo", "max<1us", "-d", "100ms", "-w", "0s", "--json", "--quiet"];
    let output = bench(&[&words[..], &more].concat());
    assert_eq!(output.status.code(), Some(99));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["max_rate_per_s"], &report["of"]), (&Value::Null, &"fanout".into()));
    let steps = report["steps"].as_array().unwrap();
    let is_missed = |step: &Value| step["kept"] == false && step["answered_per_s"].is_number();
    assert!(steps.iter().all(is_missed), "{report}");
}

#[test]
fn mistakes_are_reported_in_one_line_before_anything_starts() {
    for (words, code, hint) in [
        (&["broadcast", "--rounds", "0"][..], 2, "--rounds is 0"),
        (&["fanout", "--html", "/no/such/directory/x.html"], 2, "does not exist"),
        (&["broadcast", "--against", "ws://127.0.0.1:1", "-n", "5"], 1, "Is the server running"),
        (&["fanout", "--size", "8"], 2, "--size is 8"),
        (&["fanout", "--against", "ws://127.0.0.1:1/news"], 2, "{channel}"),
    ] {
        let output = bench(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(hint) && text.lines().count() == 1, "{words:?}: {text}");
    }
}

/// The children end with the process that started them: a server that outlives its benchmark would
/// keep the port and the CPU.
#[test]
#[cfg(target_os = "linux")]
fn children_end_when_their_input_does() {
    use std::process::Stdio;

    use throng_compare::parts::{Part, ServerPart};

    let part = Part::Server(ServerPart::with_shards(1)).text();
    let mut server = Command::new(env!("CARGO_BIN_EXE_throng"))
        .args(["bench", "part", &part])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}
