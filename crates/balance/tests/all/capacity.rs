//! Limits of the requests and tunnels of a backend, and the queue before them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_balance::{Access, AccessDetail, AccessLog, Balancer, Config, Status};
use throng_testkit::eventually;

use crate::support::{Peer, Scripted, upgrade};

/// The wait of a request: the length of the queue when it came, and the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queued {
    length: u32,
    time: Duration,
}

/// A request in the log: its path, status, wait and reason.
type Logged = (String, u16, Option<Queued>, String);

#[derive(Debug, Default)]
struct Waits(Mutex<Vec<Logged>>);

impl AccessLog for Waits {
    fn detail(&self) -> AccessDetail {
        AccessDetail::All
    }

    fn record(&self, access: &Access<'_>) {
        let path = access.path.unwrap_or("-").to_owned();
        let time = access.queued.unwrap_or_default();
        let queued = access.queue_length.map(|length| Queued { length, time });
        let entry = (path, access.status.unwrap_or_default(), queued, access.reason.to_owned());
        self.0.lock().unwrap().push(entry);
    }
}

/// A balancer, which ends with it.
pub(crate) struct Running {
    pub(crate) balancer: Balancer,
    waits: Arc<Waits>,
}

fn config(text: &str) -> Config {
    Config::parse(&format!("listen = \"127.0.0.1:0\"\n{text}"), "b.toml").unwrap()
}

impl Running {
    pub(crate) fn start(text: &str) -> Self {
        let waits = Arc::<Waits>::default();
        let log: Arc<dyn AccessLog> = waits.clone();
        let balancer = Balancer::start_with_access_log(config(text), log).unwrap();
        Self { balancer, waits }
    }

    pub(crate) fn connect(&self) -> Peer {
        Peer::new(std::net::TcpStream::connect(self.balancer.addresses()[0]).unwrap())
    }

    /// Sends a handshake.
    pub(crate) fn come(&self, path: &str) -> Peer {
        let mut client = self.connect();
        client.send(&upgrade(path));
        client
    }

    pub(crate) fn until(&self, what: &str, condition: impl Fn(&Status) -> bool) {
        eventually(what, || condition(&self.balancer.status()));
    }

    fn until_queued(&self, count: u64) {
        self.until("so many wait", |status| status.metrics.queued == count);
    }

    fn until_nothing_is_open(&self) {
        self.until("all permits are given back", |status| {
            let open = |row: &throng_balance::Row| row.tunnels + row.requests + row.handshakes;
            status.backends.iter().map(open).sum::<u32>() == 0 && status.metrics.queued == 0
        });
    }

    /// Returns the entry of the log for this path, once there is one.
    fn logged(&self, path: &str) -> (u16, Option<Queued>, String) {
        let find = || self.waits.0.lock().unwrap().iter().find(|entry| entry.0 == path).cloned();
        eventually("the request is logged", || find().is_some());
        let (_, status, queued, reason) = find().unwrap();
        (status, queued, reason)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = self.balancer.shut_down(Duration::ZERO, Duration::ZERO);
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

fn pool(backends: &[SocketAddr], more: &str) -> String {
    let backends: Vec<_> = backends.iter().map(|backend| format!("\"{backend}\"")).collect();
    format!(
        "[[pool]]\nname = \"p\"\nbackends = [{}]\n{more}\n\
         [[site]]\nhosts = [\"*\"]\npool = \"p\"\n",
        backends.join(", ")
    )
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

/// Reads the head of the next handshake, and agrees to it. Returns its path.
fn agree(backend: &Scripted) -> (Peer, String) {
    let mut server = backend.accept();
    let head = server.head();
    server.send(&crate::support::accepted());
    (server, head.split(' ').nth(1).unwrap().to_owned())
}

#[test]
fn tunnels_and_requests_wait_in_order_for_a_backend_with_all_it_may_have() {
    let backend = Scripted::bind();
    let running =
        Running::start(&format!("shards = 1\n{}", pool(&[backend.address], "max_connections = 2")));
    assert_eq!(running.balancer.status().backends[0].max_connections, 2);
    let mut open = Vec::new();
    for path in ["/1", "/2"] {
        let client = running.come(path);
        open.push((client, agree(&backend)));
    }
    let mut waiting = Vec::new();
    for (at, path) in ["/3", "/4", "/5"].into_iter().enumerate() {
        let mut client = running.connect();
        match path {
            "/4" => client.send(b"GET /4 HTTP/1.1\r\nHost: a\r\n\r\n"),
            path => client.send(&upgrade(path)),
        }
        waiting.push(client);
        running.until_queued(at as u64 + 1);
    }
    // A client that has left does not hold up the others, and a tunnel's end makes way.
    waiting.remove(0);
    running.until_queued(2);
    open.remove(0);
    let mut server = backend.accept();
    assert!(server.head().starts_with("GET /4 "));
    running.until_queued(1);
    assert!(backend.try_accept().is_none());
    server.send(OK);
    assert!(waiting.remove(0).head().starts_with("HTTP/1.1 200 "));
    let (tunnel, path) = agree(&backend);
    assert_eq!(path, "/5");
    assert!(waiting[0].head().starts_with("HTTP/1.1 101 "));
    let (status, queued, _) = running.logged("/4");
    assert_eq!((status, queued.unwrap().length), (200, 1));
    assert!(queued.unwrap().time > Duration::ZERO);
    assert_eq!(running.logged("/3").0, 0);
    drop((open, waiting, tunnel));
    running.until_nothing_is_open();
    assert_eq!(running.logged("/1").1, None);
    assert_eq!(running.logged("/5").1.unwrap().length, 2);
}

#[test]
fn a_request_beyond_max_queue_gets_503_and_the_others_wait_for_their_time() {
    let backend = Scripted::bind();
    let more = "max_connections = 1\nmax_queue = 1\ntimeouts.queue = \"1s\"";
    let running = Running::start(&pool(&[backend.address], more));
    let tunnel = (running.come("/1"), agree(&backend));
    let mut late = running.come("/late");
    running.until("one waits", |status| status.metrics.queued == 1);
    let mut beyond = running.come("/beyond");
    let (head, body) = beyond.answer();
    assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nRetry-After: "), "{head}");
    assert!(body.starts_with("too many other requests wait"), "{body}");
    let (status, queued, reason) = running.logged("/beyond");
    assert_eq!((status, queued), (503, Some(Queued { time: Duration::ZERO, length: 1 })));
    assert!(reason.ends_with("; max_queue"), "{reason}");
    assert!(late.head().starts_with("HTTP/1.1 503 "));
    let (status, queued, reason) = running.logged("/late");
    assert_eq!((status, queued.unwrap().length), (503, 0));
    assert!(queued.unwrap().time >= Duration::from_secs(1), "{queued:?}");
    assert!(reason.contains("max_connections of backends, timeouts.queue"), "{reason}");
    running.until("both are counted", |status| {
        (status.metrics.queue_full, status.metrics.queue_late) == (1, 1)
    });
    drop((tunnel, late, beyond));
    running.until_nothing_is_open();
}

#[test]
fn a_backend_has_its_own_limit_and_a_try_that_failed_gives_its_permit_back() {
    let [one, two] = [Scripted::bind(), Scripted::bind()];
    let text = format!(
        "shards = 1\nbackends = [{{ address = \"{}\", max_connections = 1 }}, \
         {{ address = \"{}\", max_connections = 2 }}]\n",
        one.address, two.address
    );
    let running = Running::start(&text);
    let most = |status: &Status| status.backends.iter().map(|row| row.max_connections).collect();
    assert_eq!(Vec::from_iter::<Vec<u32>>(most(&running.balancer.status())), [1, 2]);
    let accept = || {
        throng_testkit::poll("one is asked", || {
            let first = one.try_accept().map(|peer| (0, peer));
            first.or_else(|| two.try_accept().map(|peer| (1, peer)))
        })
    };
    let mut clients: Vec<_> = (0..3).map(|_| running.come("/")).collect();
    let mut servers: Vec<_> = (0..3).map(|_| accept()).collect();
    assert_eq!(servers.iter().map(|(at, _)| at).sum::<usize>(), 2, "one and two of them");
    clients.push(running.come("/4"));
    running.until_queued(1);
    // A connection that ends without an answer: another try would be at the other one, which is
    // full.
    let at = servers.iter().position(|(at, _)| *at == 0).unwrap();
    drop(servers.remove(at));
    running.until("it has failed", |status| status.metrics.backend_errors == 1);
    let (at, mut server) = accept();
    assert!(server.head().starts_with("GET /4 "), "the permit is free");
    assert_eq!(at, 0);
    drop((clients, servers, server));
    running.until_nothing_is_open();
}

/// Over all event loops, at every moment.
#[test]
fn two_event_loops_together_never_exceed_a_limit() {
    let backend = Scripted::bind();
    let text = pool(&[backend.address], "max_connections = 3\ntimeouts.queue = \"60s\"");
    let running = Running::start(&format!("shards = 2\n{text}"));
    let mut clients: Vec<_> = (0..24).map(|at| Some(running.come(&format!("/{at}")))).collect();
    let mut servers = Vec::new();
    for served in 0..clients.len() {
        while servers.len() < 3.min(clients.len() - served) {
            servers.push(agree(&backend));
        }
        running.until("it has as many as it may", |status| {
            let row = &status.backends[0];
            assert!(row.tunnels + row.requests <= 3, "{row:?}");
            row.tunnels as usize == servers.len()
        });
        assert!(backend.try_accept().is_none(), "beyond the limit");
        let (server, path) = servers.remove(0);
        let client = clients[path[1..].parse::<usize>().unwrap()].take();
        assert!(client.unwrap().head().starts_with("HTTP/1.1 101 "));
        drop(server);
    }
    running.until_nothing_is_open();
}

#[test]
fn a_reload_raises_and_lowers_the_limit() {
    let backend = Scripted::bind();
    let text = |most: u32| pool(&[backend.address], &format!("max_connections = {most}"));
    let running = Running::start(&text(1));
    let mut open = vec![(running.come("/1"), backend.open())];
    let second = running.come("/2");
    running.until_queued(1);
    running.balancer.apply(config(&text(2))).unwrap();
    open.push((second, backend.open()));
    let third = running.come("/3");
    running.until_queued(1);
    running.balancer.apply(config(&text(1))).unwrap();
    running.until("it is lower", |status| status.backends[0].max_connections == 1);
    running.until("tunnels stay", |status| status.backends[0].tunnels == 2);
    open.remove(0);
    running.until("one has ended", |status| status.backends[0].tunnels == 1);
    assert!(backend.try_accept().is_none());
    open.remove(0);
    open.push((third, backend.open()));
    open.clear();
    running.until_nothing_is_open();
}
