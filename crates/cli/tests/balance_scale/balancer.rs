//! `throng balance` in a separate process, and the status that it and the kernel report.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};

use serde_json::Value;
use throng_testkit::TempFolder;

use super::support::{TIMEOUT, dial, exchange};

pub(crate) struct Balancer {
    process: Child,
    /// The process that serves: the first one, or its successor.
    serving: u32,
    lines: Receiver<String>,
    file: PathBuf,
    _folder: TempFolder,
    pub(crate) address: SocketAddr,
    admin: SocketAddr,
}

/// User memory of a process, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) resident: i64,
    /// Private pages: heap and stacks.
    pub(crate) anonymous: i64,
}

impl Balancer {
    /// Starts it with a file of these `backends` and the lines `more`.
    pub(crate) fn start(backends: &[SocketAddr], more: &str) -> Self {
        let folder = TempFolder::new("balance-scale");
        let file = folder.write("balance.toml", text(backends, more));
        let shards = std::env::var("THRONG_BALANCE_SHARDS").unwrap_or_else(|_| "1".to_owned());
        let program = std::env::var_os("THRONG_BALANCE_PROGRAM");
        let mut process = Command::new(program.unwrap_or(env!("CARGO_BIN_EXE_throng").into()))
            .args(["balance", "--shards", &shards, "--listen", "127.0.0.1:0"])
            .args(["--admin", "127.0.0.1:0", "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(process.stdout.take().unwrap());
        let log = BufReader::new(process.stderr.take().unwrap());
        let (sender, lines) = mpsc::channel();
        let of_log = sender.clone();
        std::thread::spawn(move || {
            log.lines().map_while(Result::ok).try_for_each(|line| of_log.send(line))
        });
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let address = |before: &str| loop {
            let line: String = lines.recv_timeout(TIMEOUT).unwrap();
            if let Some(rest) = line.strip_prefix(before) {
                return rest.trim_end_matches('/').parse().unwrap();
            }
        };
        let (listening, admin) = (address("throng balances on http://"), address("admin: http://"));
        let serving = process.id();
        Self { process, serving, lines, file, _folder: folder, address: listening, admin }
    }

    /// Returns the process that serves.
    pub(crate) fn serving(&self) -> u32 {
        self.serving
    }

    /// Sets the process that serves.
    pub(crate) fn set_serving(&mut self, process: u32) {
        self.serving = process;
    }

    /// Sends a signal to the process that serves.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.serving, name);
    }

    /// Waits for the outcome of an upgrade: the event `upgrade` or `upgrade.failed`.
    pub(crate) fn outcome(&self) -> Value {
        loop {
            let line = self.lines.recv_timeout(TIMEOUT).unwrap();
            if line.contains(r#""event":"upgrade"#) {
                return serde_json::from_str(&line).unwrap();
            }
        }
    }

    /// Rewrites the file and makes the balancer read it again; returns the line that it logs.
    pub(crate) fn reload(&self, backends: &[SocketAddr], more: &str) -> String {
        std::fs::write(&self.file, text(backends, more)).unwrap();
        while self.lines.try_recv().is_ok() {}
        self.signal("HUP");
        loop {
            let line = self.lines.recv_timeout(TIMEOUT).unwrap();
            if line.contains(r#""event":"reloaded""#) {
                return line;
            }
        }
    }

    /// Returns the status and the value that the admin API answers.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (host, length) = (self.admin, body.len());
        let mut request = Vec::new();
        write!(request, "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n")
            .unwrap();
        write!(request, "Content-Type: application/json\r\n\r\n{body}").unwrap();
        let answer = exchange(&mut dial(self.admin), request);
        (answer.status(), serde_json::from_str(answer.text()).unwrap_or_default())
    }

    pub(crate) fn status(&self) -> Value {
        let (status, value) = self.ask("GET", "/status.json", "");
        assert_eq!(status, 200);
        value
    }

    /// The numbers of that name, for each backend.
    pub(crate) fn column(&self, key: &str) -> Vec<u64> {
        let status = self.status();
        let rows = status["backends"].as_array().unwrap();
        rows.iter().map(|row| row[key].as_u64().unwrap()).collect()
    }

    /// The sum of that total over all backends in the list.
    pub(crate) fn total(&self, key: &str) -> u64 {
        let status = self.status();
        let rows = status["backends"].as_array().unwrap();
        rows.iter().map(|row| row["totals"][key].as_u64().unwrap()).sum()
    }

    pub(crate) fn memory(&self) -> Memory {
        let rollup = format!("/proc/{}/smaps_rollup", self.serving);
        let rollup = std::fs::read_to_string(rollup).unwrap();
        let read = |name: &str| {
            let line = rollup.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<i64>().unwrap() * 1024
        };
        Memory { resident: read("Rss:"), anonymous: read("Anonymous:") }
    }

    /// Open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.serving)).unwrap().count()
    }

    pub(crate) fn threads(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/task", self.serving)).unwrap().count()
    }

    /// It is running, as the same process.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        if self.serving != self.process.id() {
            signal(self.serving, "KILL");
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a signal to a process, unless it has ended.
pub(crate) fn signal(process: u32, name: &str) {
    let kill = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).output();
    assert!(kill.is_ok());
}

fn text(backends: &[SocketAddr], more: &str) -> String {
    let list: Vec<_> = backends.iter().map(|address| format!("\"{address}\"")).collect();
    format!("backends = [{}]\n{more}\n", list.join(", "))
}
