//! Pools: routes lead to them, and reloads rename, split and remove them under open connections.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use throng_balance::{Balancer, Config};
use throng_testkit::{eventually, poll};

use crate::support::{Peer, Scripted, upgrade};

/// A balancer, which ends with it.
struct Running(Balancer);

fn config(text: &str) -> Config {
    Config::parse(&format!("listen = \"127.0.0.1:0\"\nshards = 1\n{text}"), "b.toml").unwrap()
}

impl Running {
    fn start(text: &str) -> Self {
        Self(Balancer::start(config(text)).unwrap())
    }

    fn connect(&self) -> Peer {
        Peer::new(TcpStream::connect(self.0.addresses()[0]).unwrap())
    }

    /// Opens a WebSocket at this path to the backend. Returns both ends.
    fn open(&self, path: &str, backend: &Scripted) -> [Peer; 2] {
        let mut client = self.connect();
        client.send(&upgrade(path));
        let server = backend.open();
        assert!(client.head().starts_with("HTTP/1.1 101 "));
        [client, server]
    }

    /// Waits until the backends have these pools, states and tunnels.
    fn until(&self, expected: &[(&str, &str, u32)]) {
        eventually("the backends are as expected", || {
            let rows = self.0.status().backends;
            let rows = rows.iter().map(|row| (&*row.pool, row.state, row.tunnels));
            let mut rows: Vec<_> = rows.collect();
            rows.sort_unstable();
            rows == expected
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = self.0.shut_down(Duration::ZERO, Duration::ZERO);
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

fn pool(name: &str, backends: &[SocketAddr], more: &str) -> String {
    let backends: Vec<_> = backends.iter().map(|backend| format!("\"{backend}\"")).collect();
    format!("[[pool]]\nname = \"{name}\"\nbackends = [{}]\n{more}\n", backends.join(", "))
}

fn site(routes: &[(&str, &str)]) -> String {
    let route = |(prefix, pool): &(&str, &str)| {
        format!("[[site.route]]\nprefix = \"{prefix}\"\npool = \"{pool}\"\n")
    };
    format!("[[site]]\nhosts = [\"*\"]\n{}", routes.iter().map(route).collect::<String>())
}

/// Sends bytes through a tunnel both ways.
pub(crate) fn assert_open([client, server]: &mut [Peer; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let ends = [&mut *client, &mut *server];
        // An empty binary frame, masked by a client.
        let frame: &[u8] = if from == 0 { &[0x82, 0x80, 0, 0, 0, 0] } else { &[0x82, 0] };
        ends[from].send(frame);
        assert_eq!(ends[to].exactly(frame.len()), frame);
    }
}

#[test]
fn requests_and_tunnels_go_to_the_pool_of_their_route() {
    let [chat, api] = [Scripted::bind(), Scripted::bind()];
    let text = pool("chat", &[chat.address], "sticky = { cookie = \"lb\" }")
        + &pool("api", &[api.address], "keep_alive = 0")
        + &site(&[("/ws", "chat"), ("/api", "api")]);
    let running = Running::start(&text);
    let mut tunnel = running.open("/ws", &chat);
    let mut client = running.connect();
    for _ in 0..2 {
        client.send(b"GET /api/x HTTP/1.1\r\nHost: a\r\n\r\n");
        // It keeps no idle connections.
        let mut server = api.accept();
        assert!(server.head().starts_with("GET /api/x HTTP/1.1\r\n"));
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
        let (head, body) = client.answer();
        assert!(body == "ok" && !head.contains("Set-Cookie"), "{head}");
    }
    client.send(b"GET /ws HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut server = chat.accept();
    server.head();
    server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nws");
    let (head, _) = client.answer();
    assert!(head.contains("Set-Cookie: lb="), "{head}");
    assert_open(&mut tunnel);
    running.until(&[("api", "up", 0), ("chat", "up", 1)]);
}

#[test]
fn no_tunnel_ends_when_pools_are_renamed_split_merged_and_removed() {
    let [one, two] = [Scripted::bind(), Scripted::bind()];
    let both = [one.address, two.address];
    let text = |pools: &str, to: &str| format!("{pools}{}", site(&[("/", to)]));
    let running = Running::start(&text(&pool("blue", &both[..1], ""), "blue"));
    let mut tunnels = [running.open("/", &one)];
    let mut reload = |running: &Running, pools: &str, to: &str| {
        running.0.apply(config(&text(pools, to))).unwrap();
        tunnels.iter_mut().for_each(assert_open);
    };
    reload(&running, &pool("green", &both[..1], ""), "green");
    running.until(&[("green", "up", 1)]);
    let split = pool("a", &both[..1], "") + &pool("b", &both, "");
    reload(&running, &split, "b");
    running.until(&[("a", "up", 1), ("b", "up", 0), ("b", "up", 0)]);
    reload(&running, &pool("c", &both, "removed = \"drain\""), "c");
    running.until(&[("c", "up", 0), ("c", "up", 1)]);
    // Only a drain that the pool asks for ends one.
    running.0.apply(config(&text(&pool("d", &both[1..], ""), "d"))).unwrap();
    let [client, _] = &mut tunnels[0];
    let (opcode, payload) = client.frame();
    assert_eq!((opcode, &payload[..2]), (8, &1012_u16.to_be_bytes()[..]));
}

#[test]
fn a_removed_pool_keeps_its_tunnels() {
    let [one, two] = [Scripted::bind(), Scripted::bind()];
    let rest = pool("rest", &[two.address], "");
    let text = pool("gone", &[one.address], "") + &rest + &site(&[("/", "gone")]);
    let running = Running::start(&text);
    let mut tunnel = running.open("/", &one);
    let changes = running.0.apply(config(&(rest + &site(&[("/", "rest")])))).unwrap();
    let removed = changes.removed[0];
    assert_eq!((removed.address, removed.tunnels, removed.rate), (one.address.into(), 1, None));
    running.until(&[("gone", "removed", 1), ("rest", "up", 0)]);
    assert_open(&mut tunnel);
    drop(tunnel);
    running.until(&[("rest", "up", 0)]);
}

/// A request that waits for a backend goes on in its own pool after a reload.
#[test]
fn a_waiting_request_stays_in_its_pool_over_a_reload() {
    let [slow, other] = [Scripted::bind(), Scripted::bind()];
    let text = |more: &str| {
        pool("slow", &[slow.address], &format!("max_handshakes = 1\n{more}"))
            + &pool("other", &[other.address], "")
            + &site(&[("/slow", "slow"), ("/", "other")])
    };
    let running = Running::start(&text(""));
    let mut first = running.connect();
    first.send(&upgrade("/slow"));
    let mut held = slow.accept();
    held.head();
    let mut waiting = running.connect();
    waiting.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it waits", || running.0.status().metrics.queued == 1);
    // Requests of the other pool go on.
    let mut tunnel = running.open("/x", &other);
    running.0.apply(config(&text("keep_alive = 7"))).unwrap();
    held.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    assert!(first.head().starts_with("HTTP/1.1 403 "));
    let mut server = slow.accept();
    assert!(server.head().starts_with("GET /slow "));
    server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(waiting.head().starts_with("HTTP/1.1 200 "));
    assert_open(&mut tunnel);
}

/// Its backends are removed, but the request came before.
#[test]
fn a_request_under_way_goes_on_in_its_pool_when_a_reload_removes_that() {
    let [one, two, other] = [Scripted::bind(), Scripted::bind(), Scripted::bind()];
    let after = pool("new", &[other.address], "") + &site(&[("/", "new")]);
    let running =
        Running::start(&(pool("old", &[one.address, two.address], "") + &site(&[("/", "old")])));
    let mut client = running.connect();
    client.send(b"GET /old HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut server = poll("it is asked", || one.try_accept().or_else(|| two.try_accept()));
    server.head();
    running.0.apply(config(&after)).unwrap();
    // An event loop may have the former configuration for a moment.
    let _later = poll("a request goes to the new pool", || {
        let mut later = running.connect();
        later.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        let old = || one.try_accept().or_else(|| two.try_accept()).map(|server| (server, false));
        let new = || other.try_accept().map(|server| (server, true));
        let (mut server, is_new) = poll("a backend is asked", || new().or_else(old));
        server.head();
        server.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        assert!(later.head().starts_with("HTTP/1.1 200 "));
        is_new.then_some(later)
    });
    // The end of a connection without an answer is a reason to try another backend.
    drop(server);
    let mut server = poll("another is asked", || one.try_accept().or_else(|| two.try_accept()));
    assert!(server.head().starts_with("GET /old "));
    server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(client.head().starts_with("HTTP/1.1 200 "));
}

/// Its backend is removed while it waits.
#[test]
fn a_waiting_request_is_answered_when_a_reload_removes_its_pool() {
    let [slow, other] = [Scripted::bind(), Scripted::bind()];
    let old = pool("old", &[slow.address], "max_handshakes = 1") + &site(&[("/", "old")]);
    let running = Running::start(&old);
    let mut first = running.connect();
    first.send(&upgrade("/1"));
    let mut held = slow.accept();
    held.head();
    let mut waiting = running.connect();
    waiting.send(b"GET /2 HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it waits", || running.0.status().metrics.queued == 1);
    let new = pool("new", &[other.address], "") + &site(&[("/", "new")]);
    running.0.apply(config(&new)).unwrap();
    running.until(&[("new", "up", 0), ("old", "removed", 0)]);
    held.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    assert!(first.head().starts_with("HTTP/1.1 403 "));
    let mut server = slow.accept();
    assert!(server.head().starts_with("GET /2 "));
    server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert!(waiting.head().starts_with("HTTP/1.1 200 "));
}

#[test]
fn each_pool_has_its_own_sources() {
    let backends = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [top, one, two] = backends.each_ref().map(|backend| backend.local_addr().unwrap());
    let text = format!(
        "listen = \"127.0.0.1:0\"\nshards = 1\nsources = \"127.0.0.2\"\nbackends = [\"{top}\"]\n\
         pools = [{{ name = \"one\", backends = [\"{one}\"], sources = [\"127.0.0.3\"] }}, \
         {{ name = \"two\", backends = [\"{two}\"] }}]\n\
         sites = [{{ hosts = \"one\", pool = \"one\" }}, {{ hosts = \"two\", pool = \"two\" }}]\n"
    );
    let balancer = Balancer::start(Config::parse(&text, "b.toml").unwrap()).unwrap();
    for (host, backend, expected) in [
        ("top", &backends[0], "127.0.0.2"),
        ("one", &backends[1], "127.0.0.3"),
        ("two", &backends[2], "127.0.0.2"),
    ] {
        let mut client = Peer::new(TcpStream::connect(balancer.addresses()[0]).unwrap());
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        let (_server, from) = backend.accept().unwrap();
        assert_eq!(from.ip().to_string(), expected, "{host}");
    }
    balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
    let wrong = text.replace("[\"127.0.0.3\"]", "[\"::1\"]");
    let error = Config::parse(&wrong, "b.toml").unwrap_err().to_string();
    assert!(error.contains("pools[0].sources is [\"::1\"]: from none of these"), "{error}");
}
