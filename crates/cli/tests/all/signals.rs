//! Sends every signal at every command with a thousand sessions: none is lost.
#![cfg(target_os = "linux")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

use throng_proto::ws::Opcode;
use throng_testkit::poll;

use crate::started::{Started, events, signal};
use crate::support::{Answer, Client, Got, throng};

const SESSIONS: usize = 1000;

/// Signals that would end a process, and have no function in this program.
const WITHOUT_EFFECT: [&str; 10] =
    ["ALRM", "VTALRM", "PROF", "IO", "XCPU", "PWR", "16", "XFSZ", "RTMIN", "RTMAX"];

/// A thousand open sessions at an echo.
struct Clients(Vec<Client>);

impl Clients {
    fn connect(address: SocketAddr) -> Self {
        // Both ends of a session are descriptors, but only this process's count here.
        throng_io::limits::raise_descriptors().unwrap();
        Self((0..SESSIONS).map(|_| Client::connect(address, "/echo")).collect())
    }

    /// Each sends `text` and gets it back.
    fn echo(&mut self, text: &str) {
        self.0.iter_mut().for_each(|client| client.send(Opcode::Text, text.as_bytes()));
        for client in &mut self.0 {
            assert_eq!(client.next(), Got::Text(text.to_owned()));
        }
    }

    /// Each is closed with 1001, answers that, and is at its end.
    fn leave(mut self) {
        for client in &mut self.0 {
            assert_eq!(client.next().close_code(), Some(1001));
            client.send(Opcode::Close, &1001u16.to_be_bytes());
        }
        for client in &mut self.0 {
            assert_eq!(client.next(), Got::End);
        }
    }
}

/// Sends every signal that ends no session, and waits for its effect.
fn outlive_signals(started: &Started, clients: &mut Clients) {
    for name in WITHOUT_EFFECT {
        started.signal(name);
    }

    let rotated = started.log.with_extension("1");
    std::fs::rename(&started.log, &rotated).unwrap();
    started.signal("USR1");
    started.logged("status", 0);
    clients.echo("USR1");
}

#[test]
fn no_signal_that_does_not_end_a_server_ends_a_session() {
    let settings = "listen = \"127.0.0.1:0\"\ndrain.window = \"0s\"\nmax_message_size = 100\n";
    let mut server = Started::start("serve", settings);
    let mut clients = Clients::connect(server.address("listens on http://"));
    // The counts are at most a second old.
    poll("the status", || {
        server.signal("USR1");
        let last = events(&server.log, "status").pop()?;
        (last["connections"] == SESSIONS).then_some(())
    });
    outlive_signals(&server, &mut clients);

    let reloaded = |skip: usize| {
        server.signal("HUP");
        server.logged("reloaded", skip)["message"].as_str().unwrap().to_owned()
    };
    let restart = "backlog changed, which takes effect with the next start";
    server.configure(&format!("{settings}backlog = 99\ndrain.grace = \"7s\"\n"));
    assert_eq!(reloaded(0), format!("changed drain.grace; {restart}"));
    clients.echo("HUP");
    server.configure(&format!("{settings}backlog = 99\nretries = 1\n"));
    server.signal("HUP");
    let failed = server.logged("reload.failed", 0);
    assert!(failed["reason"].as_str().unwrap().contains("retries"), "{failed}");
    server.configure(&format!("{settings}backlog = 99\nlog.level = \"debug\"\n"));
    assert_eq!(reloaded(1), format!("changed drain.grace, log.level; {restart}"));
    clients.echo("once more");

    server.signal("QUIT");
    clients.leave();
    assert_eq!(server.exit(), Some(0));
    assert_eq!(server.logged("drain", 0)["connections"], SESSIONS);
}

#[cfg(feature = "balance")]
#[test]
fn no_signal_that_does_not_end_a_balancer_ends_a_tunnel() {
    let mut server = Started::start("serve", "listen = \"127.0.0.1:0\"\n");
    let backend = server.address("listens on http://");
    let settings =
        format!("listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nshutdown.window = \"0s\"\n");
    let mut balancer = Started::start("balance", &settings);
    let mut clients = Clients::connect(balancer.address("balances on http://"));
    clients.echo("before");
    outlive_signals(&balancer, &mut clients);
    for (at, weight) in [2, 3].into_iter().enumerate() {
        let backend = format!("backends = [{{ address = \"{backend}\", weight = {weight} }}]");
        let changed = settings.lines().map(|line| match line.starts_with("backends") {
            true => backend.as_str(),
            false => line,
        });
        balancer.configure(&changed.collect::<Vec<_>>().join("\n"));
        balancer.signal("HUP");
        balancer.logged("reloaded", at);
        clients.echo("HUP");
    }
    balancer.signal("TERM");
    clients.leave();
    assert_eq!(balancer.exit(), Some(0));
}

#[test]
fn an_interrupted_benchmark_leaves_no_session_open() {
    let mut server = Started::start("serve", "listen = \"127.0.0.1:0\"\n");
    let address = server.address("listens on http://");
    let stats = || -> serde_json::Value {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /stats.json HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
            .unwrap();
        serde_json::from_str(Answer::read(&mut stream).text()).unwrap()
    };
    for (round, name) in ["TERM", "INT"].into_iter().enumerate() {
        let mut bench = throng()
            .args(["bench", "echo", &format!("ws://{address}/echo")])
            .args(["--connections", &SESSIONS.to_string(), "--duration", "1h"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        poll("all sessions are open", || (stats()["sessions"] == SESSIONS).then_some(()));
        signal(&bench, name);
        let status = bench.wait().unwrap();
        assert!(status.code().is_some(), "{name}: {status}");
        poll("all sessions are closed", || {
            let stats = stats();
            (stats["sessions"] == 0 && stats["opened"] == (round + 1) * SESSIONS).then_some(())
        });
    }
}
