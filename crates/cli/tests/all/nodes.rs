//! `throng demo --nodes`: accounts for all messages, and leaves no process or file behind at any
//! end.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(all(feature = "redis", unix))]

use std::fs::Metadata;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use throng_testkit::{Redis, eventually, poll};

fn demo(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(["demo", "--nodes", "2", "--clients", "8"]).args(words).stdin(Stdio::null());
    command
}

/// A running demonstration.
struct Running {
    process: Child,
    lines: BufReader<ChildStdout>,
    socket: PathBuf,
    nodes: Vec<SocketAddr>,
}

impl Running {
    fn start(words: &[&str]) -> Self {
        let mut process = demo(words).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let mut running = Self { process, lines, socket: PathBuf::new(), nodes: Vec::new() };
        // The first line of the view.
        loop {
            let mut line = String::new();
            assert!(running.lines.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some(url) = line.split([' ', ',']).find(|word| word.starts_with("redis+unix")) {
                running.socket = url.strip_prefix("redis+unix://").unwrap().into();
            }
            let word = line.trim().split(' ').find_map(|word| word.strip_prefix("http://"));
            running.nodes.extend(word.map(|word| word.parse::<SocketAddr>().unwrap()));
            if line.contains(" delivered/s") {
                break;
            }
        }
        assert_eq!(running.nodes.len(), 2);
        assert!(!words.is_empty() || UnixStream::connect(&running.socket).is_ok());
        running
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }

    /// Returns its exit code, and the rest of its output.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        (poll("it ends", || self.process.try_wait().unwrap()).code(), rest)
    }

    fn folder(&self) -> &Path {
        self.socket.parent().unwrap()
    }

    fn nothing_listens(&self) {
        eventually("Redis and the servers have ended", || {
            UnixStream::connect(&self.socket).is_err()
                && self.nodes.iter().all(|node| TcpStream::connect(node).is_err())
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn every_message_reaches_every_client_though_a_server_is_killed() {
    let Some(redis) = Redis::start("demo", &[]) else { return };
    let url = redis.url("");
    for words in [&[][..], &["--cluster", &url]] {
        let output = demo(&["--for", "3s", "--rate", "20"]).args(words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*errors), (Some(0), ""), "{text}");
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?}: {text}"));
        assert!(at("node 2 is killed") < at("node 2 is started again"), "{text}");
        assert!(at("node 2 is started again") < at("verdict: every message"), "{text}");
        let line = text.lines().find_map(|line| line.strip_prefix("delivered ")).unwrap();
        let (delivered, rest) = line.split_once(" of ").unwrap();
        let expected = format!("{delivered}: 0 lost, 0 doubled; connections that moved: ");
        let moved: u32 = rest.strip_prefix(&*expected).unwrap().parse().unwrap();
        // The four clients of the killed server have at least moved to the other one.
        assert!(delivered != "0" && moved >= 4, "{text}");
    }
}

#[test]
fn messages_that_redis_loses_are_in_the_account() {
    let Some(redis) = Redis::start("demo-forgets", &[]) else { return };
    let mut running = Running::start(&["--cluster", &redis.url(""), "--rate", "20"]);
    redis.ask("FLUSHALL");
    let node = running.nodes[0].to_string();
    eventually("the loss is noticed", || {
        let mut status = Command::new(env!("CARGO_BIN_EXE_throng"));
        let output = status.args(["cluster", "status", "--json", &node]).output().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        value[0]["lost"].as_u64().unwrap() > 0
    });
    running.signal("-INT");
    let (code, rest) = running.end();
    assert_eq!(code, Some(1), "{rest}");
    assert!(rest.contains("verdict: not every message"), "{rest}");
}

#[test]
fn the_demonstration_ends_everything_it_has_started() {
    if Redis::start("demo-ends", &[]).is_none() {
        return;
    }
    for signal in ["-INT", "-TERM"] {
        let mut running = Running::start(&[]);
        running.signal(signal);
        let (code, rest) = running.end();
        assert_eq!(code, Some(0), "{rest}");
        assert!(rest.contains("verdict: every message"), "{rest}");
        running.nothing_listens();
        assert!(!running.folder().exists());
    }
}

#[test]
#[cfg(target_os = "linux")]
fn redis_and_the_servers_end_with_a_demonstration_that_is_killed() {
    if Redis::start("demo-killed", &[]).is_none() {
        return;
    }
    let mut running = Running::start(&[]);
    running.signal("-KILL");
    assert_eq!(running.end().0, None);
    running.nothing_listens();
    let is_private = |folder: Metadata| {
        use std::os::unix::fs::MetadataExt;
        folder.mode() & 0o777 == 0o700
    };
    assert!(is_private(running.folder().metadata().unwrap()));
    std::fs::remove_dir_all(running.folder()).unwrap();
}

#[test]
fn without_redis_the_error_says_how_to_get_one() {
    let output = demo(&["--for", "1s"]).env("PATH", "/nonexistent").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2));
    assert!(errors.contains("apt install redis-server"), "{errors}");
    assert!(errors.contains("valkey-server") && errors.contains("--cluster"), "{errors}");
}

#[test]
fn wrong_words_are_named() {
    for (words, part) in [
        (&["--cluster", "redis://127.0.0.1:1"][..], "127.0.0.1:1"),
        (&["--rate", "1000"], "at most 5000"),
        (&["--tls"], "--tls"),
    ] {
        let output = demo(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(part), "{errors}");
    }
    for (words, part) in [
        (&["--nodes", "1"][..], "2..=8"),
        (&["--nodes", "3", "--clients", "2"], "expected 3 to 500"),
        (&["--cluster", "redis://127.0.0.1"], "--nodes"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        let output = command.arg("demo").args(words).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(part), "{errors}");
    }
}
