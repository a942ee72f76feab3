//! Unix sockets of backends and of clients.

use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use throng_testkit::{TempFolder, eventually, poll};

use crate::sites::{Running, get};
use crate::support::{Peer, Scripted, accepted, upgrade};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";

/// A backend on a Unix socket that does what the test says.
struct UnixBackend {
    listener: UnixListener,
    path: PathBuf,
}

impl UnixBackend {
    fn bind(folder: &TempFolder, name: &str) -> Self {
        let path = folder.join(name);
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { listener, path }
    }

    fn address(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    fn accept(&self) -> Peer {
        poll("a connection to the backend", || {
            let (stream, _) = self.listener.accept().ok()?;
            stream.set_nonblocking(false).unwrap();
            Some(Peer::new(OwnedFd::from(stream).into()))
        })
    }
}

fn states(running: &Running) -> Vec<(String, &'static str)> {
    let rows = running.0.status().backends;
    rows.into_iter().map(|row| (row.address.to_string(), row.state)).collect()
}

#[test]
fn requests_and_tunnels_reach_a_unix_socket() {
    let folder = TempFolder::new("unix-backend");
    let backend = UnixBackend::bind(&folder, "app.sock");
    let address = backend.address();
    let running = Running::start(&format!("backends = [\"{address}\"]\n"));
    assert_eq!(states(&running), [(address.clone(), "up")]);

    let mut client = running.connect();
    client.send(&get("a.example", "/x"));
    let mut server = backend.accept();
    let head = server.head();
    assert!(head.starts_with("GET /x HTTP/1.1\r\nHost: a.example\r\n"), "{head}");
    assert!(head.contains("X-Forwarded-For: 127.0.0.1\r\n"), "{head}");
    server.send(OK);
    assert_eq!(client.answer().1, "up");
    // The connection is used again.
    client.send(&get("a.example", "/y"));
    assert!(server.head().starts_with("GET /y "));
    server.send(OK);
    assert_eq!(client.answer().1, "up");

    let mut tunnel = running.connect();
    tunnel.send(&upgrade("/chat"));
    let mut server = backend.accept();
    assert!(server.head().contains("Upgrade: websocket"));
    server.send(&accepted());
    assert!(tunnel.head().starts_with("HTTP/1.1 101 "));
    tunnel.send_text("hello");
    assert_eq!(server.text(), "hello");
    server.send_text_unmasked("hi");
    assert_eq!(tunnel.text(), "hi");
    drop(tunnel);
    assert!(server.is_at_end());
}

/// A client without a Host, whose request could not be forwarded without one.
#[test]
fn a_request_without_host_has_a_common_one() {
    let folder = TempFolder::new("unix-host");
    let backend = UnixBackend::bind(&folder, "app.sock");
    let running = Running::start(&format!("backends = [\"{}\"]\n", backend.address()));
    let mut client = running.connect();
    client.send(b"GET / HTTP/1.0\r\n\r\n");
    let mut server = backend.accept();
    assert!(server.head().contains("\r\nHost: localhost\r\n"));
    server.send(OK);
    assert_eq!(client.answer().1, "up");
}

/// A socket without a listener, and a missing one, refuse as a closed port does.
#[test]
fn a_dead_socket_leads_to_another_backend() {
    let folder = TempFolder::new("unix-dead");
    let dead = UnixBackend::bind(&folder, "dead.sock").address();
    let missing = format!("unix:{}", folder.join("missing.sock").display());
    let other = Scripted::bind();
    for dead in [dead, missing] {
        let text = format!(
            "pick = \"round_robin\"\nbackends = [\"{dead}\", \"{}\"]\nkeep_alive = 0\n\
             health.failures = 2\n",
            other.address
        );
        let running = Running::start(&text);
        for _ in 0..6 {
            let mut client = running.connect();
            client.send(&get("a.example", "/"));
            let mut server = other.accept();
            server.head();
            server.send(OK);
            assert_eq!(client.answer().1, "up");
        }
        eventually("the dead one is down", || states(&running)[0] == (dead.clone(), "down"));
        let row = &running.0.status().backends[0];
        let failure = row.last_failure.as_ref().unwrap();
        assert!(failure.text.contains("refused"), "{failure:?}");
    }
}

#[test]
fn a_check_and_a_cookie_know_a_unix_socket() {
    let folder = TempFolder::new("unix-check");
    let backend = UnixBackend::bind(&folder, "app.sock");
    let other = UnixBackend::bind(&folder, "other.sock");
    let text = format!(
        "sticky.cookie = \"lb\"\nbackends = [\"{}\", \"{}\"]\nhealth.check = {{ kind = \"http\", \
         path = \"/up\", interval = \"20ms\", timeout = \"20ms\", fall = 1 }}\n",
        backend.address(),
        other.address()
    );
    let running = Running::start(&text);
    let mut checked = backend.accept();
    let head = checked.head();
    assert!(head.starts_with("GET /up HTTP/1.1\r\nHost: localhost\r\n"), "{head}");
    // The other does not answer.
    eventually("it is down", || states(&running)[1].1 == "down");
    drop(checked);
    let address = backend.address();
    assert!(running.0.drain(address.parse::<throng_balance::PeerAddress>().unwrap(), None).is_ok());
    assert_eq!(states(&running)[0], (address, "draining"));
}

fn connect(path: &Path) -> Peer {
    Peer::new(OwnedFd::from(UnixStream::connect(path).unwrap()).into())
}

/// The headers that say where a request comes from.
fn origin(head: &str) -> Vec<&str> {
    head.lines()
        .filter(|line| line.starts_with("X-Forwarded-For") || line.starts_with("Forw"))
        .collect()
}

#[test]
fn clients_come_by_a_unix_socket() {
    let folder = TempFolder::new("unix-listen");
    let path = folder.join("lb.sock");
    let backend = Scripted::bind();
    let listen = format!("[\"unix:{}\", \"127.0.0.1:0\"]", path.display());
    let text =
        format!("unix_mode = \"640\"\nkeep_alive = 0\nbackends = [\"{}\"]\n", backend.address);
    for (trusted, sent, expected) in [
        (
            "",
            "203.0.113.7",
            ["X-Forwarded-For: unknown", "Forwarded: for=unknown;proto=http;host=a"],
        ),
        (
            "trusted_proxies = [\"unix:\"]\n",
            "203.0.113.7",
            ["X-Forwarded-For: 203.0.113.7", "Forwarded: for=203.0.113.7"],
        ),
        (
            "trusted_proxies = [\"unix:\"]\n",
            "",
            ["X-Forwarded-For: unknown", "Forwarded: for=unknown;proto=http;host=a"],
        ),
    ] {
        let running = Running::start_at(&listen, &format!("{trusted}{text}"));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        let places: Vec<_> = running.0.listening().map(|(it, _)| it.to_string()).collect();
        assert_eq!(places[0], format!("unix:{}", path.display()));
        assert_eq!(places[1], running.0.addresses()[0].to_string());
        let mut client = connect(&path);
        let sent =
            if sent.is_empty() { String::new() } else { format!("X-Forwarded-For: {sent}\r\n") };
        client.send(format!("GET / HTTP/1.1\r\nHost: a\r\n{sent}\r\n").as_bytes());
        let mut server = backend.accept();
        assert_eq!(origin(&server.head()), expected, "{trusted}{sent}");
        server.send(OK);
        assert_eq!(client.answer().1, "up");
        // A tunnel, and a client of TCP beside it.
        let mut tunnel = connect(&path);
        tunnel.send(&upgrade("/"));
        let mut server = backend.open();
        assert!(tunnel.head().starts_with("HTTP/1.1 101 "));
        tunnel.send_text("hello");
        assert_eq!(server.text(), "hello");
        let mut other = running.connect();
        other.send(&get("a", "/"));
        let mut server = backend.accept();
        assert!(origin(&server.head())[0].ends_with(": 127.0.0.1"));
        server.send(OK);
        assert_eq!(other.answer().1, "up");
        drop(running);
        assert!(!path.exists(), "its file goes with it");
    }
}

#[test]
fn a_file_of_another_program_stays() {
    let folder = TempFolder::new("unix-taken");
    let path = folder.join("lb.sock");
    let taken = UnixListener::bind(&path).unwrap();
    let text = format!("listen = \"unix:{}\"\nbackends = [\"127.0.0.1:1\"]\n", path.display());
    let start =
        || throng_balance::Balancer::start(throng_balance::Config::parse(&text, "b.toml").unwrap());
    let error = start().unwrap_err().to_string();
    assert!(error.contains("another program listens there"), "{error}");
    // Nothing answers: the file was left behind.
    drop(taken);
    let balancer = start().unwrap();
    assert!(UnixStream::connect(&path).is_ok());
    balancer.shut_down(std::time::Duration::ZERO, std::time::Duration::ZERO).unwrap();
    std::fs::write(&path, "text").unwrap();
    let error = start().unwrap_err().to_string();
    assert!(error.contains("is not a socket"), "{error}");
}

/// Connections to one address need a port each: about 28,000 from an address of this machine. A
/// Unix socket needs none. To stay within the descriptors of a process, this runs in a network of
/// its own with 100 ports, if the system lets the test make one.
#[cfg(target_os = "linux")]
#[test]
fn a_unix_socket_takes_more_tunnels_than_an_address_has_ports() {
    let script = "ip link set lo up && \
                  echo '40000 40099' > /proc/sys/net/ipv4/ip_local_port_range && \
                  exec \"$0\" --ignored --exact --nocapture unix::in_a_network_of_100_ports";
    let program = std::env::current_exe().unwrap();
    let ran = std::process::Command::new("unshare")
        .args(["--net", "sh", "-c", script])
        .arg(program)
        .output();
    let skipped = |why: &str| {
        let is_ci = std::env::var("CI").is_ok_and(|it| !matches!(it.as_str(), "" | "0" | "false"));
        assert!(!is_ci, "on CI nothing is skipped: {why}");
        eprintln!("skipped: {why}");
    };
    let Ok(output) = ran else { return skipped("there is no program unshare") };
    let [out, error] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    if error.starts_with("unshare:") || error.starts_with("sh:") {
        return skipped(&error);
    }
    assert!(output.status.success() && out.contains("all 1000 are open"), "{out}\n{error}");
}

#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs a network with 100 ports"]
fn in_a_network_of_100_ports() {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    if range.split_whitespace().collect::<Vec<_>>() != ["40000", "40099"] {
        return;
    }
    // Clients have ports of several addresses.
    let come = |running: &Running, number: usize| {
        let kind = socket2::Type::STREAM;
        let socket = socket2::Socket::new(socket2::Domain::IPV4, kind, None).unwrap();
        let from = [127, 0, 1, (number / 40) as u8 + 1];
        socket.bind(&std::net::SocketAddr::from((from, 0)).into()).unwrap();
        socket.connect(&running.0.addresses()[0].into()).unwrap();
        let mut client = Peer::new(socket.into());
        client.send(&upgrade("/"));
        client
    };
    let settings = "health.failures = 0\nretries = 0\nmax_connections_per_address = 0\n";
    let backend = Scripted::bind();
    let running = Running::start(&format!("backends = [\"{}\"]\n{settings}", backend.address));
    let (mut open, mut clients) = (Vec::new(), Vec::new());
    let refused = (0..=100).find_map(|number| {
        let mut client = come(&running, number);
        let answered = poll("an answer or a connection", || {
            if let Some(mut server) = backend.try_accept() {
                server.head();
                server.send(&accepted());
                open.push(server);
                return Some(true);
            }
            client.stream.set_nonblocking(true).unwrap();
            let is_there = client.stream.peek(&mut [0]).is_ok();
            client.stream.set_nonblocking(false).unwrap();
            is_there.then_some(false)
        });
        let head = client.head();
        assert_eq!(answered, head.starts_with("HTTP/1.1 101 "), "{head}");
        clients.push(client);
        (!answered).then_some(head)
    });
    assert!(refused.is_some_and(|head| head.starts_with("HTTP/1.1 50")), "{} are open", open.len());
    drop((open, clients, running));

    let folder = TempFolder::new("unix-ports");
    let backend = UnixBackend::bind(&folder, "app.sock");
    let running = Running::start(&format!("backends = [\"{}\"]\n{settings}", backend.address()));
    let mut tunnels = Vec::new();
    for number in 0..1_000 {
        let mut client = come(&running, number);
        let mut server = backend.accept();
        server.head();
        server.send(&accepted());
        assert!(client.head().starts_with("HTTP/1.1 101 "), "{number}");
        tunnels.push((client, server));
    }
    assert_eq!(running.0.status().backends[0].tunnels, 1_000);
    for (client, server) in &mut tunnels {
        client.send_text("hello");
        assert_eq!(server.text(), "hello");
    }
    println!("all 1000 are open");
}
