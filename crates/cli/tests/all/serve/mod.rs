//! `throng serve`, `demo` and `config show` as people and supervisors run them: the real binary,
//! its output, signals and exit codes.

#[cfg(feature = "tokens")]
mod api;
#[cfg(feature = "tokens")]
mod centrifuge;
mod channels;
mod demo;
mod ends;
mod output;
mod refusals;
#[cfg(all(feature = "tls", target_os = "linux"))]
mod reload;
#[cfg(feature = "tokens")]
mod rights;
#[cfg(target_os = "linux")]
mod sandbox;
mod sockets;
#[cfg(feature = "tls")]
mod tls;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use throng_proto::ws::Opcode;
use throng_testkit::{Client, Got, poll};

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn throng(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
    command.args(words).stdin(Stdio::null());
    command
}

/// A process that ends with the test.
struct Running(Child);

impl Running {
    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    fn exit(&mut self) -> ExitStatus {
        poll("the process ends", || self.0.try_wait().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `throng serve` on a free port.
struct Served {
    process: Running,
    address: SocketAddr,
    lines: BufReader<ChildStdout>,
}

impl Served {
    fn start(words: &[&str]) -> Self {
        let command = throng(&["serve", "--listen", "127.0.0.1:0", "--shards", "1"]);
        Self::run(command, words)
    }

    fn run(mut command: Command, words: &[&str]) -> Self {
        let mut child =
            command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let process = Running(child);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let address = line
            .strip_prefix("throng listens on http")
            .and_then(|rest| rest.trim_start_matches('s').strip_prefix("://"))
            .and_then(|rest| rest.split(' ').next()?.parse().ok())
            .unwrap_or_else(|| panic!("no address in {line:?}"));
        Self { process, address, lines }
    }

    /// The exit code, the rest of standard output, and the log.
    fn end(mut self) -> (Option<i32>, String, String) {
        let status = self.process.exit();
        let (mut out, mut errors) = (String::new(), String::new());
        self.lines.read_to_string(&mut out).unwrap();
        self.process.0.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (status.code(), out, errors)
    }
}

/// The events of a log.
fn logged_events(log: &str) -> impl Iterator<Item = serde_json::Value> {
    log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}")))
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The whole answer to a request.
fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = dial(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Opens a stream of events, and reads it up to the end of its first comment.
fn events(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = dial(address);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n:\n\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
    stream
}

/// Returns the exit code and the single line on standard error.
fn refused(output: &Output) -> (Option<i32>, String) {
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(output.stdout.is_empty() && errors.starts_with("throng: "), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    (output.status.code(), errors)
}

/// For the browser, a page whose own name resolves to 127.0.0.1 has the server's origin.
#[test]
fn a_server_on_loopback_refuses_pages_that_reach_it_by_a_name_of_their_own() {
    let upgrade = |served: &Served, host: &str| {
        let mut stream = dial(served.address);
        write!(
            stream,
            "GET /ws/news HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\
             Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        .unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        String::from_utf8(answer.to_vec()).unwrap()
    };
    let served = Served::start(&[]);
    let port = served.address.port();
    for host in [format!("127.0.0.1:{port}"), format!("localhost:{port}"), format!("[::1]:{port}")]
    {
        assert_eq!(upgrade(&served, &host), "HTTP/1.1 101");
    }
    assert_eq!(upgrade(&served, &format!("evil.example:{port}")), "HTTP/1.1 421");
    let mut stream = dial(served.address);
    let request = "GET /stats.json HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 421 ") && answer.contains("allowed_hosts"), "{answer}");
    for (set, status) in [
        ("allowed_hosts=good.example", "HTTP/1.1 421"),
        ("allowed_hosts=good.example, Evil.example", "HTTP/1.1 101"),
        ("allowed_hosts=*", "HTTP/1.1 101"),
        ("listen=0.0.0.0:0", "HTTP/1.1 101"),
    ] {
        let words = ["serve", "--shards", "1", "--set", "listen=127.0.0.1:0", "--set", set];
        let served = Served::run(throng(&words), &[]);
        let address = SocketAddr::from(([127, 0, 0, 1], served.address.port()));
        let served = Served { address, ..served };
        assert_eq!(upgrade(&served, "evil.example"), status, "{set}");
    }
}

#[test]
fn it_says_its_address_and_answers_at_every_path() {
    let served = Served::start(&[]);
    for (path, part) in [
        ("/livez", ""),
        ("/readyz", ""),
        ("/metrics", "# TYPE "),
        ("/stats.json", "{"),
        ("/", "<html"),
    ] {
        let answer = get(served.address, path);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(body.contains(part), "{path}: {body}");
    }
    assert!(get(served.address, "/nowhere").starts_with("HTTP/1.1 404 "));
    let mut client = Client::connect(served.address, "/echo");
    client.send(Opcode::Text, "h\u{e9}llo".as_bytes());
    assert_eq!(client.next(), Got::Text("h\u{e9}llo".to_owned()));
    let (mut a, mut b) =
        (Client::connect(served.address, "/ws/x?echo=1"), Client::connect(served.address, "/ws/x"));
    a.send(Opcode::Text, b"to all");
    assert_eq!((a.next(), b.next()), (Got::Text("to all".into()), Got::Text("to all".into())));
}

#[test]
#[cfg(target_os = "linux")]
fn pinned_event_loops_are_logged_with_their_cpus() {
    let served = Served::start(&["--set", "pin=cores"]);
    served.process.signal("TERM");
    let (code, _, log) = served.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("each event loop has a CPU of its own: shard 0 CPU "), "{log}");
    assert!(log.contains("NUMA node"), "{log}");
    let output =
        throng(&["serve", "--listen", "127.0.0.1:0", "--shards", "999", "--set", "pin=cores"]);
    let (code, line) = refused(&{ output }.output().unwrap());
    assert_eq!(code, Some(2), "{line}");
    assert!(line.contains("shards is 999") && line.contains("set pin to none"), "{line}");
}
