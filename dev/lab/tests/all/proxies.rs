//! `lab proxies` as people run it: the real binary, against a plain pass-through and, where it is
//! installed, against nginx.
#![cfg(unix)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::thread;

use serde_json::Value;

use crate::support::Served;

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lab")).arg("proxies").args(words).output().unwrap()
}

fn bench_json(words: &[&str]) -> Value {
    let output = bench(&[words, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words:?}: {errors}{text}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Starts a proxy on threads of this process. It passes bytes on, and applies `change` to bytes for
/// the client.
fn pass_through(backend: SocketAddr, change: fn(&mut [u8])) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect(backend) else { continue };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
                continue;
            };
            thread::spawn(move || pass(from_client, to_server, |_| {}));
            thread::spawn(move || pass(server, client, change));
        }
    });
    address
}

fn pass(mut from: TcpStream, mut to: TcpStream, change: fn(&mut [u8])) {
    let mut piece = [0; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut piece) {
        change(&mut piece[..n]);
        if to.write_all(&piece[..n]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}

/// A tiny version of everything.
const TINY: [&str; 14] = [
    "--idle",
    "40",
    "--connections",
    "4",
    "--burst-connections",
    "5",
    "--burst-messages",
    "7",
    "--burst-sizes",
    "1,300",
    "--sizes",
    "100,4KiB",
    "--warmup",
    "20ms",
];

fn rows<'a>(report: &'a Value, test: &str, peer: &str) -> Vec<&'a Value> {
    let all = report["rows"].as_array().unwrap().iter();
    all.filter(|row| row["test"] == test && row["peer"] == peer).collect()
}

fn figure(row: &Value, name: &str) -> f64 {
    let figures = &row["rounds"][0]["figures"];
    figures[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"))
}

#[test]
fn every_table_of_a_proxy_that_runs() {
    let backend = Served::start(&["--listen", "127.0.0.1:0"]);
    let proxy = pass_through(backend.addresses[0], |_| {});
    let folder = throng_testkit::TempFolder::new("proxy");
    let page = folder.join("page.html");
    let (url, direct) = (format!("ws://{proxy}/echo"), format!("ws://{}", backend.addresses[0]));
    let own = ["--direct", &direct, "--mostly-idle", "1s", "--html", page.to_str().unwrap()];
    let words = [&[url.as_str()], &own[..], &TINY[..]].concat();
    // A short time, or on a machine that gets nothing done meanwhile, a longer one.
    let is_enough = |report: &Value| {
        let mut all = report["rows"].as_array().unwrap().iter();
        all.all(|row| row["rounds"][0]["figures"]["per_s"].as_f64().is_none_or(|per_s| per_s > 0.0))
    };
    let mut reports = ["100ms", "2s", "20s"]
        .iter()
        .map(|duration| bench_json(&[&words[..], &["--duration", duration]].concat()));
    let report = reports.find(is_enough).expect("something done within 20 s");
    for peer in ["direct", "proxy"] {
        assert_eq!(rows(&report, "echo", peer).len(), 2);
        for row in [rows(&report, "echo", peer), rows(&report, "connect", peer)].concat() {
            assert!(figure(row, "per_s") > 0.0 && figure(row, "per_cpu_s") > 0.0, "{row}");
        }
        // 40 connections by 5.05 s, within 1 s, from a fixed seed.
        let mostly_idle = rows(&report, "mostly-idle", peer)[0];
        assert!(figure(mostly_idle, "per_s") > 0.0 && figure(mostly_idle, "unanswered") == 0.0);
        let bursts = rows(&report, "burst", peer);
        assert_eq!((&bursts[0]["size_bytes"], &bursts[1]["size_bytes"]), (&1.into(), &300.into()));
        for row in bursts {
            assert!(figure(row, "seconds") >= figure(row, "connected_s"));
            assert_eq!(row["rounds"][0]["figures"]["latency"]["count"], 5 * 7, "every message");
        }
        assert!(figure(rows(&report, "idle", peer)[0], "process_bytes") > 0.0);
        assert!(rows(&report, "latency", peer)[0]["headline"]["median"].as_f64().unwrap() > 0.0);
    }
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("added p99") && html.contains("<svg") && !html.contains("src="));
}

#[test]
fn a_proxy_that_changes_bytes_is_found_out() {
    let backend = Served::start(&["--listen", "127.0.0.1:0"]);
    // In the middle of a message, long after the upgrade's answer.
    let proxy = pass_through(backend.addresses[0], |piece| {
        if piece.len() > 2000 {
            piece[1000] ^= 1;
        }
    });
    let url = format!("ws://{proxy}/echo");
    let words = [url.as_str(), "--only", "burst", "--burst-sizes", "3000", "--burst-messages", "2"];
    // The wrong answers end the run. The time limit is for connections on a busy machine, so the
    // test does not wait for it.
    let output =
        bench(&[&words[..], &["--burst-connections", "3", "--setup-timeout", "60s"]].concat());
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("failed") && text.contains("bytes that do not answer message"), "{text}");
}

#[test]
fn a_missing_peer_is_reported_with_the_package_to_install() {
    let installed = ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy", "/sbin/haproxy"];
    let is_installed = installed.iter().any(|path| std::path::Path::new(path).exists());
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["proxies", "--peers", "direct,haproxy", "--only", "connect", "--quick"])
        .env("PATH", "/nowhere")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    match is_installed {
        true => assert!(output.status.success(), "{errors}"),
        false => {
            assert_eq!(output.status.code(), Some(1), "{errors}");
            assert!(errors.contains("apt-get install haproxy"), "{errors}");
        }
    }
}

#[test]
fn peers_are_started_measured_and_ended() {
    // A folder of its own, to see that it is empty in the end.
    let folder = throng_testkit::TempFolder::new("bench-proxy");
    let output = Command::new(env!("CARGO_BIN_EXE_lab"))
        .args(["proxies", "--peers", "direct,nginx,haproxy", "--rounds", "1", "--json"])
        .args(["--mostly-idle", "1s"])
        .args(TINY)
        .args(["--duration", "500ms"])
        .env("TMPDIR", &*folder)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // Not removed with what is in it: then this would fail.
    std::fs::remove_dir(&folder).unwrap();
    if errors.contains("no proxy to measure") {
        let wanted = std::env::var_os("TEST_PEERS").is_some();
        assert!(!wanted, "neither nginx nor haproxy is installed here: {errors}");
        eprintln!("neither nginx nor haproxy is installed here: nothing was compared");
        return;
    }
    assert!(output.status.success(), "{errors}{}", String::from_utf8_lossy(&output.stdout));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let names = report["peers"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|peer| peer["peer"].as_str().unwrap()).collect();
    assert_eq!(names.len() + report["skipped"].as_array().unwrap().len(), 3);
    for peer in names {
        for row in [rows(&report, "echo", peer), rows(&report, "connect", peer)].concat() {
            assert!(figure(row, "per_cpu_s") > 0.0, "its own processes were watched: {row}");
        }
        for row in rows(&report, "burst", peer) {
            assert_eq!(row["rounds"][0]["figures"]["latency"]["count"], 5 * 7, "every message");
        }
    }
}
