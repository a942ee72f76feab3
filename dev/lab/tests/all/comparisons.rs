//! `lab broadcast` and `lab compression` as people run them: the real binary, which starts its own
//! servers and subscribers. No figure is asserted that time decides; only what was counted and
//! said.

use std::process::{Command, Output};

use serde_json::Value;

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).args(words).output().unwrap()
}

fn fine(words: &[&str]) -> String {
    let output = bench(words);
    let (out, errors) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    let errors = String::from_utf8_lossy(&errors);
    assert!(output.status.success(), "{words:?}: {errors}{out}");
    // A server says so when a busy machine stalls it.
    let mut other = errors.lines().filter(|line| !line.contains(" held shard "));
    assert_eq!(other.next(), None, "no progress off a terminal: {errors}");
    out
}

fn page(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn broadcast_compares_the_three_ways_on_its_own_servers() {
    let html = page("broadcast.html");
    let plan =
        ["broadcast", "-n", "20,50", "--shards", "1,2", "--rounds", "3", "--warmup-rounds", "1"];
    let show = ["--json", "--html", html.to_str().unwrap()];
    let report: Value = serde_json::from_str(&fine(&[&plan[..], &show].concat())).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 12, "2 shards x 2 numbers x 3 variants");
    for row in rows {
        assert_eq!(row["time_us"]["count"], 3, "{row}");
        let (first, last) = (&row["first_us"]["median"], &row["time_us"]["median"]);
        assert!(first.as_f64().unwrap() <= last.as_f64().unwrap(), "{row}");
        assert_ne!(row["verdict"]["limit"], "invalid", "{row}");
    }
    let settings: Vec<String> = rows
        .iter()
        .map(|row| {
            format!("{} {} {}", row["shards"], row["subscribers"], row["variant"].as_str().unwrap())
        })
        .collect();
    assert_eq!(settings[..4], ["1 20 naive", "1 20 encoded", "1 20 publish", "1 50 naive"]);
    assert_eq!(report["errors"]["wrong_answers"], 0);
    let html = std::fs::read_to_string(html).unwrap();
    for words in ["naive, 1 shard", "encoded, 2 shards", "publish, 1 shard", "subscribers", "<svg"]
    {
        assert!(html.contains(words), "{words:?}");
    }
}

#[test]
fn broadcast_spreads_over_processes() {
    let csv = fine(&[
        "broadcast",
        "-n",
        "51",
        "--processes",
        "2",
        "--clients",
        "2",
        "--rounds",
        "3",
        "--variants",
        "publish,naive",
        "--size",
        "2KiB",
        "--csv",
    ]);
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3, "{csv}");
    assert!(
        lines[0].starts_with("variant,shards,processes,subscribers,size_bytes,rounds,"),
        "{csv}"
    );
    assert!(lines[1].starts_with("naive,1,2,51,2048,3,"), "{csv}");
    assert!(lines[2].starts_with("publish,1,2,51,2048,3,"), "{csv}");
    let table = fine(&["broadcast", "-n", "5", "--rounds", "1"]);
    assert!(table.lines().last().unwrap().starts_with("verdict "), "{table}");
}

#[test]
fn compression_is_compared_setting_by_setting() {
    let words = [
        "compression",
        "--settings",
        "off,no-context,window:9",
        "-c",
        "8",
        "-d",
        "100ms",
        "-w",
        "100ms",
    ];
    let report: Value = serde_json::from_str(&fine(&[&words[..], &["--json"]].concat())).unwrap();
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{report}");
    assert!(rows[0]["ratio"].is_null() && rows[1]["relayed_cpu_us_per_message"].is_number());
    assert!(rows[2]["ratio"].as_f64().unwrap() < rows[1]["ratio"].as_f64().unwrap(), "{report}");
    assert!(rows.iter().all(|row| row["errors"] == 0), "{report}");
}

#[test]
fn mistakes_are_reported_in_one_line_before_anything_starts() {
    for (words, hint) in [
        (&["broadcast", "--rounds", "0"][..], "--rounds is 0"),
        (&["broadcast", "-n", "2", "--processes", "3"], "--subscribers 2"),
        (&["broadcast", "-n", "5", "--html", "/no/such/directory/x.html"], "does not exist"),
    ] {
        let output = bench(words);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(hint) && text.lines().count() == 1, "{words:?}: {text}");
    }
}

/// A server that outlived its benchmark would keep the port and the CPU.
#[test]
#[cfg(target_os = "linux")]
fn children_end_when_their_input_does() {
    use std::process::Stdio;

    use throng_compare::parts::{Part, ServerPart};

    let part = Part::Server(ServerPart::default()).text();
    let mut server = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["part", &part])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
}
