//! The real binary on a free port, and a blocking client that does nothing on its own.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod operated;
pub(crate) mod speaker;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};

#[allow(unused_imports, reason = "each test file uses a part")]
pub(crate) use throng_testkit::{Client, Got, TIMEOUT, dial, read_head};

/// The binary under test; the tests of `lab`, which share this file, contain it in their own.
pub(crate) fn throng() -> Command {
    match (option_env!("CARGO_BIN_EXE_throng"), option_env!("CARGO_BIN_EXE_lab")) {
        (Some(throng), _) => Command::new(throng),
        (None, lab) => {
            let mut command = Command::new(lab.unwrap());
            command.arg("throng");
            command
        }
    }
}

/// Returns whether this process may create namespaces with `unshare`, which takes root. Otherwise a
/// test is skipped, but not on CI.
pub(crate) fn may_unshare(namespaces: &[&str]) -> bool {
    let mut unshare = Command::new("unshare");
    unshare.args(namespaces).args(["setpriv", "--version"]).stdout(Stdio::null());
    if unshare.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        return true;
    }
    let is_ci = std::env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "0" | "false"));
    assert!(!is_ci, "on CI `unshare {}` has to work, as root", namespaces.join(" "));
    println!("skipped: this user may not `unshare {}`, as root may", namespaces.join(" "));
    false
}

/// `throng serve`, which ends with the test.
pub(crate) struct Served {
    process: Child,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Served {
    pub(crate) fn start(words: &[&str]) -> Self {
        let mut command = throng();
        command.args(["serve", "--shards", "1"]).args(words);
        Self::spawn(&mut command)
    }

    /// Starts `throng serve` with a limit of this many descriptors.
    pub(crate) fn start_with_descriptors(count: u32, words: &[&str]) -> Self {
        let mut command = Command::new("sh");
        let script = format!("ulimit -n {count} && exec \"$0\" \"$@\"");
        command.args(["-c", &script]).arg(throng().get_program());
        command.args(throng().get_args()).args(["serve", "--shards", "1"]).args(words);
        Self::spawn(&mut command)
    }

    /// Starts a server with an address space of `bytes`, beyond which an allocation fails and ends
    /// the process.
    pub(crate) fn start_with_memory(bytes: usize, words: &[&str]) -> Self {
        let mut command = Command::new("sh");
        let script = format!("ulimit -v {} && exec \"$0\" \"$@\"", bytes / 1024);
        command.args(["-c", &script]).arg(throng().get_program());
        command.args(throng().get_args()).args(["serve", "--shards", "1"]).args(words);
        Self::spawn(&mut command)
    }

    /// Starts a server that prints its address as `throng serve` does.
    pub(crate) fn spawn(command: &mut Command) -> Self {
        let mut process = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let urls = line.trim_end().split(' ').filter_map(|word| word.split_once("://"));
        let of_http = urls.filter(|(scheme, _)| ["http", "https"].contains(scheme));
        let addresses: Vec<SocketAddr> =
            of_http.map(|(_, address)| address.parse().unwrap()).collect();
        assert!(!addresses.is_empty(), "no address in {line:?}");
        Self { process, addresses }
    }

    pub(crate) fn dial(&self) -> TcpStream {
        dial(self.addresses[0])
    }

    /// Returns the number of its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        self.signal("-TERM");
    }

    /// Sends a signal, such as `-STOP`.
    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill {name} {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// Waits until it has ended.
    pub(crate) fn exit(mut self) -> ExitStatus {
        self.process.wait().unwrap()
    }

    /// Waits until it has ended. Returns its exit code and its standard error, if that was piped.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut errors = String::new();
        if let Some(mut stderr) = self.process.stderr.take() {
            stderr.read_to_string(&mut errors).unwrap();
        }
        (self.process.wait().unwrap().code(), errors)
    }

    /// Resident memory in bytes.
    pub(crate) fn resident(&self) -> usize {
        let status = format!("/proc/{}/status", self.process.id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An answer to a request: its head, and a body of the announced length.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// The next on `stream`.
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut answer = Self { head: read_head(stream), body: Vec::new() };
        let length = answer.header("content-length").map_or(0, |value| value.parse().unwrap());
        answer.body.resize(length, 0);
        stream.read_exact(&mut answer.body).unwrap();
        answer
    }

    pub(crate) fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub(crate) fn header(&self, wanted: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).unwrap()
    }
}

/// One request and its answer.
pub(crate) fn exchange(stream: &mut TcpStream, request: impl AsRef<[u8]>) -> Answer {
    stream.write_all(request.as_ref()).unwrap();
    Answer::read(stream)
}

/// The other side has closed gracefully.
pub(crate) fn is_at_end(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0]).unwrap() == 0
}

/// The head of a request, as a backend of a test reads it: its first line, then its fields.
pub(crate) struct RequestHead(Vec<String>);

impl RequestHead {
    /// Reads a head; `None` at the end of the connection.
    pub(crate) fn read(reader: &mut impl BufRead) -> Option<Self> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end() {
                "" => return Some(Self(lines)),
                line => lines.push(line.to_owned()),
            }
        }
    }

    /// The method and the path.
    pub(crate) fn request(&self) -> &str {
        self.0[0].rsplit_once(' ').unwrap().0
    }

    pub(crate) fn field(&self, wanted: &str) -> Option<&str> {
        let mut fields = self.0.iter().filter_map(|line| line.split_once(": "));
        fields.find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
    }
}
