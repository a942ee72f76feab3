//! Upgrades: a process replaces itself by a successor with the same listening sockets.
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use throng_carry::Encoder;
use throng_proto::ws::Opcode;
use throng_testkit::{TempFolder, eventually, poll};

use crate::started::{Started, events};
use crate::support::{Client, Got, Served, TIMEOUT, dial, read_head, throng};

const UPGRADES: usize = 10;

/// A process and its successors; the last of them ends with the test.
pub(crate) struct Line {
    pub(crate) first: Started,
    /// The process that serves.
    pub(crate) process: u32,
    upgrades: usize,
    failures: usize,
}

impl Line {
    pub(crate) fn start(command: &str, settings: &str) -> Self {
        Self::of(Started::start(command, settings))
    }

    pub(crate) fn of(first: Started) -> Self {
        let process = first.id();
        Self { first, process, upgrades: 0, failures: 0 }
    }

    pub(crate) fn signal(&self, name: &str) {
        kill(self.process, name);
    }

    /// Asks for an upgrade, and waits until the successor accepts.
    pub(crate) fn upgrade(&mut self) {
        self.signal("USR2");
        self.upgraded();
    }

    /// Waits for the next upgrade.
    pub(crate) fn upgraded(&mut self) -> serde_json::Value {
        let event = poll("an upgrade", || {
            let failed = events(&self.first.log, "upgrade.failed");
            assert_eq!(failed.len(), self.failures, "{failed:?}");
            events(&self.first.log, "upgrade").into_iter().nth(self.upgrades)
        });
        self.upgrades += 1;
        self.process = u32::try_from(event["process"].as_u64().unwrap()).unwrap();
        event
    }

    /// Asks for an upgrade that fails, and returns the reason.
    pub(crate) fn fails(&mut self) -> String {
        self.signal("USR2");
        let event = self.first.logged("upgrade.failed", self.failures);
        self.failures += 1;
        event["reason"].as_str().unwrap().to_owned()
    }

    /// Ends the process that serves.
    pub(crate) fn end(&self) {
        self.signal("TERM");
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Also one whose upgrade the test did not wait for.
        for event in events(&self.first.log, "upgrade") {
            kill(u32::try_from(event["process"].as_u64().unwrap()).unwrap(), "KILL");
        }
    }
}

fn kill(process: u32, name: &str) {
    let script = format!("kill -{name} {process} 2>/dev/null");
    let _ = Command::new("sh").args(["-c", &script]).status();
}

/// Returns the answer to a request on a connection of its own.
fn ask(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Connects in a loop on several threads during `work`: each connection has its answer.
fn while_clients_connect(address: SocketAddr, work: impl FnOnce()) {
    /// Ends the loops, also when the work fails.
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let guard = Ends(&ends);
        let connect = || {
            let mut answered = 0;
            while !ends.load(Ordering::Relaxed) {
                let answer = ask(address, "/livez").map_err(|error| error.to_string())?;
                if !answer.starts_with("HTTP/1.1 200 ") {
                    return Err(format!("after {answered}: {answer:?}"));
                }
                answered += 1;
            }
            Ok(answered)
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(connect)).collect();
        work();
        drop(guard);
        for thread in threads {
            let answered: Result<u32, String> = thread.join().unwrap();
            assert!(answered.as_ref().is_ok_and(|count| *count > 0), "{answered:?}");
        }
    });
}

/// Clients are silent during an upgrade, for as long as that takes.
const SERVE: &str = "listen = \"127.0.0.1:0\"\nshards = 2\nhandshake_timeout = \"1h\"\n";

pub(crate) fn balance_before(backend: SocketAddr) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\nshards = 2\ntimeouts.head = \"1h\"\nbackends = \"{backend}\"\n"
    )
}

#[test]
fn ten_upgrades_of_a_server_refuse_and_reset_no_connect() {
    let mut server = Line::start("serve", SERVE);
    let address = server.first.address("listens on http://");
    while_clients_connect(address, || (0..UPGRADES).for_each(|_| server.upgrade()));
    assert_eq!(server.first.exit(), Some(0), "the first one has drained");
    server.end();
    eventually("the last one has closed the sockets", || TcpStream::connect(address).is_err());
}

#[test]
fn ten_upgrades_of_a_balancer_refuse_and_reset_no_connect() {
    let backend = Served::start(&["--listen", "127.0.0.1:0"]);
    let mut balancer = Line::start("balance", &balance_before(backend.addresses[0]));
    let address = balancer.first.address("balances on http://");
    while_clients_connect(address, || (0..UPGRADES).for_each(|_| balancer.upgrade()));
    assert_eq!(balancer.first.exit(), Some(0));
    balancer.end();
    eventually("the last one has closed the sockets", || TcpStream::connect(address).is_err());
}

#[test]
fn a_request_under_way_is_answered_and_a_session_is_closed_with_1001() {
    let mut server = Line::start("serve", SERVE);
    let address = server.first.address("listens on http://");
    let mut session = Client::connect(address, "/echo");
    let mut request = dial(address);
    request.write_all(b"GET /livez HTTP/1.1\r\nHost: local").unwrap();
    // Accepted, and silent until the upgrade is over.
    let mut silent = dial(address);
    session.send_text("before");
    assert_eq!(session.next(), Got::Text("before".to_owned()));
    server.upgrade();
    assert_eq!(session.next().close_code(), Some(1001));
    session.send(Opcode::Close, &1001u16.to_be_bytes());
    for (stream, rest) in [
        (&mut request, &b"host\r\nConnection: close\r\n\r\n"[..]),
        (&mut silent, b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"),
    ] {
        stream.write_all(rest).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(server.first.exit(), Some(0));
    let mut session = Client::connect(address, "/echo");
    session.send_text("after");
    assert_eq!(session.next(), Got::Text("after".to_owned()));
}

#[test]
fn a_balancer_finishes_its_requests_and_closes_tunnels_that_stay() {
    let slow = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut balancer = Line::start("balance", &balance_before(slow.local_addr().unwrap()));
    let address = balancer.first.address("balances on http://");
    let mut request = dial(address);
    request.write_all(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (mut backend, _) = slow.accept().unwrap();
    let mut head = [0; 16];
    backend.read_exact(&mut head).unwrap();
    let mut silent = dial(address);
    balancer.upgrade();
    backend.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate").unwrap();
    let mut answer = String::new();
    request.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("late"), "{answer}");
    // A client that had connected and said nothing could not know of the upgrade.
    silent.write_all(b"GET /new HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let (mut backend, _) = slow.accept().unwrap();
    backend.read_exact(&mut head).unwrap();
    backend.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnew").unwrap();
    let mut answer = String::new();
    silent.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("new"), "{answer}");
    assert_eq!(balancer.first.exit(), Some(0));

    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let mut balancer = Line::start("balance", &balance_before(served.addresses[0]));
    let address = balancer.first.address("balances on http://");
    // Another number of event loops: the tunnel does not move.
    let settings = balance_before(served.addresses[0]).replace("shards = 2", "shards = 1");
    balancer.first.configure(&settings);
    let mut tunnel = Client::connect(address, "/echo");
    tunnel.send_text("through");
    assert_eq!(tunnel.next(), Got::Text("through".to_owned()));
    balancer.upgrade();
    assert_eq!(tunnel.next().close_code(), Some(1001));
}

/// A server that was started by a link, which leads to other programs later.
struct Linked {
    line: Line,
    address: SocketAddr,
    link: PathBuf,
    folder: TempFolder,
}

impl Linked {
    fn start(settings: &str) -> Self {
        let folder = TempFolder::new("upgrade");
        let link = folder.join("throng");
        std::os::unix::fs::symlink(throng().get_program(), &link).unwrap();
        let mut line = Line::of(Started::start_at(&link, "serve", settings));
        let address = line.first.address("listens on http://");
        Self { line, address, link, folder }
    }

    /// Puts a script in the place of the program.
    fn put(&self, script: &str) {
        let file = self.folder.join("script");
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        self.lead_to(&file);
    }

    fn lead_to(&self, program: &Path) {
        std::fs::remove_file(&self.link).unwrap();
        std::os::unix::fs::symlink(program, &self.link).unwrap();
    }
}

#[test]
fn a_successor_that_fails_changes_nothing() {
    let mut server = Linked::start(SERVE);
    let mut session = Client::connect(server.address, "/echo");
    let hello = |wire: u64| {
        let message = Encoder::new(1).number(1, wire).number(3, wire).text(5, "another");
        let file = server.folder.join(format!("hello-{wire}"));
        std::fs::write(&file, message.finish()).unwrap();
        file.display().to_string()
    };
    let (known, unknown) = (hello(1), hello(1000));
    let check = |server: &mut Linked, session: &mut Client, script: String, expected: &str| {
        server.put(&script);
        let reason = server.line.fails();
        assert!(reason.contains(expected), "{script}: {reason}");
        session.send_text(&script);
        assert_eq!(session.next(), Got::Text(script));
        assert!(ask(server.address, "/livez").unwrap().starts_with("HTTP/1.1 200 "));
    };
    for (script, expected) in [
        ("exit 7".to_owned(), "ended (exit status: 7)"),
        ("printf 'HTTP/1.1 400 Bad Request' >&0; exec sleep 60".to_owned(), "longer than"),
        (format!("cat {unknown} >&0; exec sleep 60"), "forms 1000 to 1000"),
        (format!("cat {known} >&0; exit 0"), "ended (exit status: 0)"),
    ] {
        check(&mut server, &mut session, script, expected);
    }
    server.line.first.configure(&format!("{SERVE}upgrade.start = \"1s\"\n"));
    server.line.signal("HUP");
    server.line.first.logged("reloaded", 0);
    let silent = format!("cat {known} >&0; exec sleep 60");
    check(&mut server, &mut session, silent, "was not ready within upgrade.start");
    server.line.first.configure(SERVE);
    server.line.signal("HUP");
    server.line.first.logged("reloaded", 1);
    // No program at all.
    std::fs::remove_file(&server.link).unwrap();
    let reason = server.line.fails();
    assert!(reason.contains("cannot be started"), "{reason}");
    std::os::unix::fs::symlink(throng().get_program(), &server.link).unwrap();
    // A mistake in the configuration, and an address that another process has.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = other.local_addr().unwrap();
    let taken = format!("listen = [\"127.0.0.1:0\", \"{taken}\"]");
    for (mistake, expected) in
        [("max_headers = \"many\"", "max_headers"), (&taken, "another program has this port")]
    {
        server.line.first.configure(mistake);
        let reason = server.line.fails();
        assert!(reason.contains("refuses") && reason.contains(expected), "{reason}");
        session.send_text(mistake);
        assert_eq!(session.next(), Got::Text(mistake.to_owned()));
    }
    // All that was needed is still there.
    server.line.first.configure(SERVE);
    server.line.upgrade();
    assert_eq!(session.next().close_code(), Some(1001));
    assert!(ask(server.address, "/livez").unwrap().starts_with("HTTP/1.1 200 "));
}

#[test]
fn a_unix_socket_stays_and_the_last_process_removes_its_file() {
    let folder = TempFolder::new("upgrade");
    let path = folder.join("throng.sock");
    let settings =
        format!("listen = \"unix:{}\"\nshards = 2\nhandshake_timeout = \"1h\"", path.display());
    let mut server = Line::start("serve", &settings);
    server.first.logged("listening", 0);
    for _ in 0..2 {
        let mut waiting = UnixStream::connect(&path).unwrap();
        server.upgrade();
        waiting.write_all(b"GET /livez HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(server.first.exit(), Some(0));
    assert!(path.exists());
    assert!(UnixStream::connect(&path).is_ok());
    server.end();
    eventually("the file is removed", || !path.exists());
}

/// The shell moves the listener from standard input to descriptor 3, as a service manager would.
#[test]
fn a_socket_of_the_service_manager_is_passed_on_with_its_number() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let backend = format!("backends = \"{}\"", served.addresses[0]);
    for (command, more) in [("serve", "listen = \"fd:3\""), ("balance", backend.as_str())] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let listen = match command {
            "serve" => String::new(),
            _ => format!("listen = \"{address}\"\n"),
        };
        let mut shell = Command::new("sh");
        shell.args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\" 3<&0 </dev/null", "sh"]);
        shell.arg(throng().get_program()).args(throng().get_args());
        shell.stdin(Stdio::from(OwnedFd::from(listener)));
        let settings = format!("{listen}shards = 2\n{more}\n");
        let mut line = Line::of(Started::start_by(shell, command, &settings));
        line.first.logged("listening", 0);
        while_clients_connect(address, || (0..2).for_each(|_| line.upgrade()));
        assert_eq!(line.first.exit(), Some(0));
    }
}

#[test]
fn the_service_manager_learns_the_new_process_before_that_reports() {
    let folder = TempFolder::new("upgrade");
    let path = folder.join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(TIMEOUT)).unwrap();
    let next = || {
        let mut buffer = [0; 1000];
        let count = manager.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    };
    let mut program = throng();
    program.env("NOTIFY_SOCKET", &path).stdin(Stdio::null());
    let mut server = Line::of(Started::start_by(program, "serve", SERVE));
    assert_eq!(next(), "READY=1\n");
    server.upgrade();
    let main = format!("MAINPID={}\n", server.process);
    let messages: Vec<_> = std::iter::from_fn(|| Some(next()))
        .filter(|message| !message.starts_with("STATUS="))
        .take(3)
        .collect();
    assert!(messages[0].starts_with("RELOADING=1\nMONOTONIC_USEC="), "{messages:?}");
    assert_eq!(messages[1..], [main, "READY=1\n".to_owned()]);
    assert_eq!(server.first.exit(), Some(0));
    // The first one is no longer the service: its end says nothing.
    server.end();
    let last = std::iter::from_fn(|| Some(next())).find(|message| !message.starts_with("STATUS="));
    assert!(last.unwrap().starts_with("STOPPING=1"));
}

fn command(admin: SocketAddr, words: &[&str]) -> Output {
    let admin = admin.to_string();
    throng().args(["upgrade", "--admin", &admin]).args(words).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn an_operator_asks_for_an_upgrade_or_tries_it() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let settings = format!("{SERVE}admin.listen = \"127.0.0.1:0\"\n");
    let of_balance =
        format!("{}admin.listen = \"127.0.0.1:0\"\n", balance_before(served.addresses[0]));
    for (program, settings, listens, admin) in [
        ("serve", &settings, "listens on http://", "metrics: http://"),
        ("balance", &of_balance, "balances on http://", "admin: http://"),
    ] {
        let mut line = Line::start(program, settings);
        let address = line.first.address(listens);
        let admin = line.first.address(admin);
        let tried = command(admin, &["--dry-run"]);
        let output = text(&tried.stdout);
        assert_eq!(tried.status.code(), Some(0), "{}", text(&tried.stderr));
        assert!(output.starts_with("upgrade ") && output.contains("was ready"), "{output}");
        assert!(events(&line.first.log, "upgrade").is_empty());

        let mut session = Client::connect(address, "/echo");
        session.send_text("open");
        assert_eq!(session.next(), Got::Text("open".to_owned()));
        // The count is at most a second old.
        eventually("it counts", || text(&command(admin, &["--dry-run"]).stdout).contains("1 conn"));
        let replaced = command(admin, &[]);
        let output = text(&replaced.stdout);
        let upgraded = line.upgraded();
        if program == "serve" {
            assert_eq!(replaced.status.code(), Some(3), "{}", text(&replaced.stderr));
            assert!(output.contains("1 connection drains"), "{output}");
            assert_eq!((&upgraded["connections"], &upgraded["moved"]), (&1.into(), &0.into()));
            assert_eq!(session.next().close_code(), Some(1001));
        } else {
            assert_eq!(replaced.status.code(), Some(0), "{}", text(&replaced.stderr));
            assert!(output.contains("1 tunnel moved (pause p50 "), "{output}");
            assert!(output.ends_with("; 0 connections drain\n"), "{output}");
            assert_eq!((&upgraded["connections"], &upgraded["moved"]), (&0.into(), &1.into()));
            session.send_text("moved");
            assert_eq!(session.next(), Got::Text("moved".to_owned()));
        }

        // The admin server is the successor's.
        let state = state_of_upgrades(admin);
        assert_eq!(state["state"], "idle", "{state}");
        assert_eq!(state["last"]["replaced"]["process"], upgraded["process"], "{state}");
        line.first.configure("shards = \"many\"\n");
        eventually("it is refused", || {
            let refused = command(admin, &[]);
            refused.status.code() == Some(1) && text(&refused.stderr).contains("shards")
        });
        let state = state_of_upgrades(admin);
        let failed = &state["last"]["failed"];
        assert!(failed["reason"].as_str().unwrap().contains("shards"), "{state}");
        assert_eq!(failed["lost"], 0, "{state}");
        let mut page = dial(admin);
        let request = "POST /upgrade HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\
                       Connection: close\r\n\r\n{}";
        page.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        page.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 415 "), "a web page could send it: {answer}");
        assert!(ask(address, "/livez").unwrap().starts_with("HTTP/1.1 200 "));
    }
}

/// Returns the answer to `GET /upgrade`.
fn state_of_upgrades(admin: SocketAddr) -> serde_json::Value {
    let answer = ask(admin, "/upgrade").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

#[test]
fn a_report_counts_what_stays_by_its_reason() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let settings =
        format!("{}admin.listen = \"127.0.0.1:0\"\n", balance_before(served.addresses[0]));
    let mut balancer = Line::start("balance", &settings);
    let address = balancer.first.address("balances on http://");
    let admin = balancer.first.address("admin: http://");
    let report = || {
        let output = command(admin, &["--json"]);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
        serde_json::from_str::<serde_json::Value>(text(&output.stdout)).unwrap()
    };
    let _silent = dial(address);
    let mut tunnel = Client::connect(address, "/echo");
    let path = format!("/backends/{}", served.addresses[0]);
    let body = "{\"drain\": false}";
    let mut order = dial(admin);
    write!(
        order,
        "DELETE {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    assert!(read_head(&mut order).starts_with("HTTP/1.1 200 "));
    let drained = report();
    balancer.upgraded();
    assert_eq!(drained["drains"], serde_json::json!({"backend": 1, "idle": 1}), "{drained}");
    assert_eq!((&drained["moved"], &drained["connections"]), (&0.into(), &2.into()), "{drained}");
    assert_eq!(tunnel.next().close_code(), Some(1001));

    // The successor has another number of event loops.
    balancer.first.configure(&settings.replace("shards = 2", "shards = 1"));
    let _silent = dial(address);
    let count = || ask(admin, "/status.json").unwrap().contains("\"connections\":1");
    eventually("it is accepted", count);
    let unmoved = report();
    balancer.upgraded();
    assert_eq!(unmoved["unmoved"], "tunnels do not move from 2 event loops to 1", "{unmoved}");
}

/// Returns the counters of `/metrics` whose names begin with `prefix`, without the process's.
fn counters(admin: SocketAddr, prefix: &str) -> Vec<(String, f64)> {
    let page = ask(admin, "/metrics").unwrap();
    let lines = page.lines().filter(|line| line.starts_with(prefix));
    let samples = lines.filter_map(|line| line.rsplit_once(' '));
    let counts = |name: &str| {
        let name = name.split('{').next().unwrap();
        ["_total", "_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end))
            && !name.contains("_process_")
    };
    samples
        .filter(|(name, _)| counts(name))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// Returns the counters after an upgrade. Fails if one has fallen.
fn counters_after_upgrade(line: &mut Line, admin: SocketAddr, prefix: &str) -> Vec<(String, f64)> {
    let before = counters(admin, prefix);
    // It returns when the old process, whose later counts are its own, accepts no more.
    assert!(matches!(command(admin, &[]).status.code(), Some(0 | 3)));
    line.upgraded();
    let after = counters(admin, prefix);
    for (name, value) in &before {
        let found = after.iter().find(|(other, _)| other == name);
        assert!(found.is_some_and(|(_, now)| now >= value), "{name}: {value}, {found:?}");
    }
    after
}

/// Asserts that a counter whose name begins with `prefix` is at least `least`.
fn assert_counted(counters: &[(String, f64)], prefix: &str, least: u32) {
    let (name, value) = counters.iter().find(|(name, _)| name.starts_with(prefix)).unwrap();
    assert!(*value >= f64::from(least), "{name}: {value}, not {least}");
}

#[test]
fn counters_of_a_server_never_fall() {
    let settings = "listen = \"127.0.0.1:0\"\nadmin.listen = \"127.0.0.1:0\"\nshards = 2\n\
                    upgrade.window = \"100ms\"\n";
    let mut server = Line::start("serve", settings);
    let address = server.first.address("listens on http://");
    let admin = server.first.address("metrics: http://");
    for upgrades in 1..=3 {
        let mut client = Client::connect(address, "/echo");
        client.send_text("counted");
        assert_eq!(client.next(), Got::Text("counted".to_owned()));
        // Shards pass on their counts once a second.
        let sum = |name: &str| -> f64 {
            let all = counters(admin, name);
            all.iter().map(|(_, value)| value).sum()
        };
        eventually("the message counts", || {
            sum("throng_messages_received_total") >= f64::from(upgrades)
        });
        let after = counters_after_upgrade(&mut server, admin, "throng_");
        let sessions = after.iter().filter(|(name, _)| name.contains("sessions_opened_total"));
        assert!(sessions.map(|(_, value)| value).sum::<f64>() >= f64::from(upgrades), "{after:?}");
    }
}

#[test]
fn counters_of_a_balancer_never_fall() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let settings =
        format!("{}admin.listen = \"127.0.0.1:0\"\n", balance_before(served.addresses[0]));
    let mut balancer = Line::start("balance", &settings);
    let address = balancer.first.address("balances on http://");
    let admin = balancer.first.address("admin: http://");
    let mut tunnel = Client::connect(address, "/echo");
    for upgrades in 1..=3 {
        tunnel.send_text("counted");
        assert_eq!(tunnel.next(), Got::Text("counted".to_owned()));
        assert!(ask(address, "/livez").unwrap().starts_with("HTTP/1.1 200 "));
        let after = counters_after_upgrade(&mut balancer, admin, "throng_balance_");
        assert_counted(&after, "throng_balance_requests_total", upgrades);
        assert_counted(&after, "throng_balance_tunnels_taken_over_total", upgrades);
        assert_counted(&after, "throng_balance_backend_requests_answered_total{", upgrades);
    }
}

#[test]
fn a_reload_sets_the_window_and_a_successor_has_its_own_addresses() {
    let mut server = Line::start("serve", SERVE);
    let address = server.first.address("listens on http://");
    server.first.configure(&format!("{SERVE}upgrade.window = \"7s\"\n"));
    server.signal("HUP");
    server.first.logged("reloaded", 0);
    // The successor reads another address, and another number of event loops.
    let moved = "listen = [\"127.0.0.1:0\", \"127.0.0.2:0\"]\nshards = 1\n";
    server.first.configure(moved);
    while_clients_connect(address, || server.upgrade());
    assert_eq!(server.first.logged("drain", 0)["window"], 7.0);
    let second = SocketAddr::new("127.0.0.2".parse().unwrap(), address.port());
    assert!(ask(second, "/livez").unwrap().starts_with("HTTP/1.1 200 "));
    // An address that the configuration no longer has is closed.
    server.first.configure("listen = \"127.0.0.2:0\"\nshards = 3\n");
    while_clients_connect(second, || server.upgrade());
    eventually("the old address is closed", || TcpStream::connect(address).is_err());
}

#[test]
fn a_balancer_passes_on_what_operators_and_backends_have_set() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    let folder = TempFolder::new("upgrade");
    let token = folder.write("token", "0123456789abcdef0123456789abcdef");
    // Nothing listens at the listed backend.
    let settings = format!(
        "{}admin.listen = \"127.0.0.1:0\"\nregister.token_file = {token:?}\n\
         register.time_to_live = \"1h\"\n",
        balance_before("127.0.0.1:1".parse().unwrap())
    );
    let mut balancer = Line::start("balance", &settings);
    let address = balancer.first.address("balances on http://");
    let admin = balancer.first.address("admin: http://");
    let ctl = |words: &[&str]| {
        let admin = admin.to_string();
        let output =
            throng().args(["balance", "ctl", "--admin", &admin]).args(words).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    ctl(&["add", &served.addresses[0].to_string(), "--weight", "7"]);
    ctl(&["drain", "127.0.0.1:1"]);
    let body = "{\"address\":\"127.0.0.1:2\",\"weight\":3}";
    let mut registration = dial(admin);
    write!(
        registration,
        "POST /register HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Authorization: Bearer 0123456789abcdef0123456789abcdef\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    registration.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    ctl(&["drain", "127.0.0.1:2"]);
    let backends = || {
        let answer = ask(admin, "/backends").unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let rows: serde_json::Value = serde_json::from_str(body).unwrap();
        let of_row = |row: &serde_json::Value| {
            ["address", "weight", "source", "state"].map(|key| row[key].to_string()).join(" ")
        };
        let mut rows: Vec<_> = rows.as_array().unwrap().iter().map(of_row).collect();
        rows.sort();
        rows
    };
    let before = backends();
    assert_eq!(before.len(), 3, "{before:?}");
    while_clients_connect(address, || (0..2).for_each(|_| balancer.upgrade()));
    assert_eq!(balancer.first.exit(), Some(0));
    assert_eq!(backends(), before);
}
