//! A log on a full disk: a file system in memory, in the server's own mount namespace; and a limit
//! on the size of files, which fails in the same way and needs no privileges.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use serde_json::Value;
use throng_testkit::{TempFolder, eventually, poll};

use crate::support::{dial, exchange, may_unshare, throng};

const REQUEST: &str = "GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const METRICS: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

#[test]
fn lines_beyond_the_size_of_a_file_are_counted_and_reported_and_none_is_left_half() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 16 && exec \"$0\" \"$@\""]);
    check(command);
}

#[test]
fn lines_of_a_full_disk_are_counted_and_reported_and_none_is_left_half() {
    if !may_unshare(&["--mount"]) {
        return;
    }
    let mount = "mount -t tmpfs -o size=16k tmpfs \"$FOLDER\" && exec \"$0\" \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", mount]);
    check(command);
}

/// Fills the log of a server that `command` starts in a folder.
fn check(mut command: Command) {
    let folder = TempFolder::new("full");
    let log = folder.join("log");
    let mut process = command
        .env("FOLDER", &*folder)
        .arg(throng().get_program())
        .args(["serve", "--listen", "127.0.0.1:0", "--log-access", "all", "--log-file"])
        .arg(&log)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // In its own mount namespace it has another file there.
    let seen = format!("/proc/{}/root{}", process.id(), log.display());
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
    let listens = lines.find(|line| line.contains("listens on http://")).unwrap();
    let address = listens.split("http://").nth(1).unwrap().split([' ', '/']).next().unwrap();
    let address: SocketAddr = address.parse().unwrap();
    let ask = |request: &str| exchange(&mut dial(address), request).text().to_owned();
    eventually("lines are lost", || {
        ask(REQUEST);
        let metrics = ask(METRICS);
        let lost = "throng_log_lines_dropped_total{reason=\"write\"} ";
        metrics.lines().any(|line| line.strip_prefix(lost).is_some_and(|count| count != "0"))
    });
    let whole = || -> Option<Vec<Value>> {
        let text = fs::read_to_string(&seen).unwrap();
        let is_whole = text.ends_with('\n');
        let lines = text.lines().map(|line| serde_json::from_str(line).ok());
        lines.collect::<Option<_>>().filter(|_| is_whole)
    };
    assert!(!poll("the last line is whole", whole).is_empty());
    // There is room again.
    fs::File::options().write(true).open(&seen).unwrap().set_len(0).unwrap();
    let dropped = poll("the loss is in the log", || {
        ask(REQUEST);
        whole()?.into_iter().find(|line| line["event"] == "log.dropped")
    });
    assert!(dropped["lines"].as_u64().unwrap() > 0, "{dropped}");
    assert!(dropped["reason"].as_str().unwrap().contains("could not be written"), "{dropped}");
    process.kill().unwrap();
    process.wait().unwrap();
    let mut reported = String::new();
    process.stderr.take().unwrap().read_to_string(&mut reported).unwrap();
    assert_eq!(reported.matches("lines of the log are lost").count(), 1, "{reported}");
}
