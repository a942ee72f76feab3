//! `throng serve` does as `throng doctor` has reported.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::{Served, throng};

/// The binary after `limits`, a line of the shell.
fn limited(limits: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{limits}; exec \"$0\" \"$@\"")]).arg(throng().get_program());
    command.stdin(Stdio::null());
    command
}

fn doctor(limits: &str, words: &[&str]) -> Value {
    of(&limited(limits).args(["doctor", "--json"]).args(words).output().unwrap())
}

fn of(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text} {errors}"))
}

fn finding<'v>(report: &'v Value, id: &str) -> &'v Value {
    let all = report["findings"].as_array().unwrap();
    all.iter().find(|finding| finding["id"] == id).unwrap()
}

/// Opens a WebSocket, and returns it with the first line of the answer.
fn open(address: SocketAddr) -> (TcpStream, String) {
    let mut connection = TcpStream::connect(address).unwrap();
    let request = format!(
        "GET /echo HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    );
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let mut byte = [0];
    while !answer.ends_with(b"\r\n") && connection.read(&mut byte).unwrap() > 0 {
        answer.push(byte[0]);
    }
    (connection, String::from_utf8_lossy(&answer).trim_end().to_owned())
}

/// Connects as many clients as doctor says, within 1 %, and one more, which is refused.
fn holds_as_many(served: &Served, said: u64) {
    let address = served.addresses[0];
    let mut open_ones = Vec::new();
    let refusal = loop {
        let (connection, answer) = open(address);
        if !answer.contains(" 101 ") {
            break answer;
        }
        open_ones.push(connection);
        assert!(open_ones.len() as u64 <= said + said / 100, "more than {said}");
    };
    assert!(open_ones.len() as u64 >= said - said / 100, "{} of {said}", open_ones.len());
    assert!(refusal.contains(" 503 "), "{refusal}");
}

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

#[test]
fn a_server_holds_as_many_connections_as_doctor_says() {
    let said = doctor("ulimit -n 700", &["--set", "shards=1"]);
    assert_eq!(said["limits"][0]["id"], "nofile-hard", "{said}");
    let served = Served::start_with_descriptors(700, &LISTEN);
    holds_as_many(&served, said["connections"].as_u64().unwrap());
}

#[test]
fn a_server_with_a_thread_for_each_connection_holds_as_many_as_doctor_says() {
    let threads = ["--set", "io=threads"];
    let said = doctor("ulimit -n 500", &threads);
    assert_eq!(said["limits"][0]["id"], "nofile-hard", "{said}");
    let served = Served::start_with_descriptors(500, &[&LISTEN[..], &threads].concat());
    holds_as_many(&served, said["connections"].as_u64().unwrap());
}

/// Root is exempt from RLIMIT_NPROC, so this runs as a user without processes.
#[test]
fn a_limit_on_threads_is_the_first_limit_with_a_thread_for_each_connection() {
    const UNPRIVILEGED: u32 = 65_533;
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        eprintln!("skipped: only root may start a process of another user");
        return;
    }
    let threads = ["--set", "io=threads"];
    let limited = |words: &[&str]| {
        let mut command = limited("ulimit -u 104 2>&- || ulimit -p 104");
        command.args(words).args(threads).uid(UNPRIVILEGED).gid(UNPRIVILEGED);
        command
    };
    let said = of(&limited(&["doctor", "--json"]).output().unwrap());
    assert_eq!(said["limits"][0]["id"], "threads", "{said}");
    assert_eq!(said["connections"], 40, "{said}");
    let served = Served::spawn(&mut limited(&["serve", "--listen", "127.0.0.1:0"]));
    holds_as_many(&served, 40);
}

#[test]
fn a_number_for_which_a_table_is_too_small_takes_more_tables() {
    let said = doctor("ulimit -n 700", &["--for", "1500"]);
    let files = finding(&said, "nofile-hard");
    if !files["found"].as_str().unwrap().contains("tables") {
        eprintln!("skipped: this system refuses descriptor tables of threads");
        return;
    }
    assert_eq!(files["status"], "pass", "{files}");
    let note = said["note"].as_str().unwrap();
    assert!(note.contains("`throng serve --max-connections 1500`"), "{note}");
    let mut command = limited("ulimit -n 700");
    command.args(["serve", "--max-connections", "1500"]).args(LISTEN);
    let served = Served::spawn(&mut command);
    assert!(open(served.addresses[0]).1.contains(" 101 "));
}

#[test]
fn a_limit_on_the_address_space_is_the_memory_that_counts() {
    let memory = doctor("ulimit -v 1048576", &[]);
    let memory = finding(&memory, "memory");
    assert_eq!(memory["found"], "1 GiB for the process");
    // The kernel's part of a socket, and the process's own.
    assert_eq!(memory["connections"], (1u64 << 30) / 100 * 80 / (4096 + 103), "{memory}");
}

#[test]
fn the_exit_code_says_whether_something_fails() {
    let run = |words: &[&str]| {
        let output = throng().arg("doctor").args(words).stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), text, String::from_utf8(output.stderr).unwrap())
    };
    let report = doctor("true", &["--for", "1"]);
    let count = |status: &str| {
        let all = report["findings"].as_array().unwrap();
        all.iter().filter(|finding| finding["status"] == status).count()
    };
    let (code, text, _) = run(&["--for", "1"]);
    assert_eq!(code, i32::from(count("fail") > 0), "{text}");
    assert!(text.starts_with("`throng serve` holds "), "{text}");
    let (code, text, _) = run(&["--for", "900000000000"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(", too few for 900,000,000,000."), "{text}");
    let strict = ["--set", "heartbeat.interval=0s", "--strict"];
    assert_eq!(run(&strict).0, 1);
    for (words, expected) in [
        (&["--explain", "syn-baklog"][..], "did you mean syn-backlog?"),
        (&["--role", "bench", "--config", "a.toml"], "has no settings"),
        (&["--set", "shards=many"], "shards"),
        (&["--for", "many"], "many"),
    ] {
        let (code, _, errors) = run(words);
        assert_eq!(code, 2, "{words:?}: {errors}");
        assert!(errors.contains(expected), "{words:?}: {errors}");
    }
    let (code, text, _) = run(&["--explain", "syn-backlog"]);
    assert_eq!(code, 0);
    assert!(text.starts_with("### syn-backlog\n") && text.contains("* Undo: "), "{text}");
}

#[test]
fn scripts_are_only_written() {
    let folder = throng_testkit::TempFolder::new("doctor");
    let [fix, undo] = ["fix.sh", "undo.sh"].map(|name| folder.join(name));
    let mut command = throng();
    command.args(["doctor", "--for", "900000000000", "--fix-script"]).arg(&fix);
    let output = command.arg("--undo-script").arg(&undo).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    for script in [&fix, &undo] {
        let text = std::fs::read_to_string(script).unwrap();
        assert!(text.starts_with("#!/bin/sh\n# "), "{text}");
        assert!(text.contains("\nsysctl -w 'net.ipv4.tcp_mem="), "{text}");
        assert_eq!(std::fs::metadata(script).unwrap().permissions().mode() & 0o777, 0o755);
    }
}

#[test]
fn a_start_keeps_its_warnings_in_the_status_and_a_strict_start_refuses() {
    let off = ["--set", "heartbeat.interval=0s"];
    let served = Served::start(&[&LISTEN[..], &off].concat());
    let mut connection = TcpStream::connect(served.addresses[0]).unwrap();
    let request = "GET /stats.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    connection.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let stats: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let warnings: Vec<&str> =
        stats["warnings"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let expected = "heartbeat: off, want at most 30 s: proxies and NATs drop idle \
                    connections after a minute; heartbeat.interval=25s";
    assert!(warnings.contains(&expected), "{warnings:?}");
    drop(served);
    for program in [&["serve"][..], &["config", "check", "serve"]] {
        let mut command = throng();
        command.args(program).args(LISTEN).args(off).arg("--strict-start");
        let refused = command.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{errors}");
        assert!(errors.contains("strict_start is true, and heartbeat: "), "{errors}");
        assert_eq!(errors.contains(r#""event":"check""#), program == ["serve"], "{errors}");
    }
}

#[cfg(feature = "balance")]
#[test]
fn a_strict_start_of_a_balancer_refuses_an_admin_server_for_the_network() {
    for program in [&["balance"][..], &["config", "check", "balance"]] {
        let mut command = throng();
        command.args(program).args(["--backend", "127.0.0.1:9", "--strict-start=true"]);
        let settings = ["admin.listen=0.0.0.0:1", "admin.token=0123456789abcdef0123456789abcdef"];
        command.args(LISTEN).args(settings.iter().flat_map(|pair| ["--set", pair]));
        let refused = command.stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(2), "{errors}");
        assert!(errors.contains("exposure: admin server for the network"), "{errors}");
    }
}
