//! Listeners with rules of their own.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_balance::{Balancer, CarriedState, Config, ListenerRow, Passage};
use throng_io::HeldListeners;
use throng_testkit::eventually;

use crate::support::{NoLog, Peer, Scripted, TIMEOUT, upgrade};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";

fn config(backend: SocketAddr, listeners: &str) -> Config {
    let text = format!("shards = 1\nkeep_alive = 0\nbackends = [\"{backend}\"]\n{listeners}");
    Config::parse(&text, "b.toml").unwrap()
}

fn end(balancer: &Balancer) {
    balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
}

fn connect(address: SocketAddr) -> Peer {
    Peer::new(TcpStream::connect(address).unwrap())
}

fn row(balancer: &Balancer, name: &str) -> ListenerRow {
    balancer.status().listeners.into_iter().find(|row| row.name == name).unwrap()
}

/// Sends a request to `address` after `before`; returns the client that its backend is given.
fn client_of(address: SocketAddr, before: &[u8], backend: &Scripted) -> String {
    let mut client = connect(address);
    client.send(before);
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: 203.0.113.7\r\n\r\n");
    let mut server = backend.accept();
    let head = server.head();
    server.send(OK);
    assert_eq!(client.answer().1, "up");
    let line = head.lines().find_map(|line| line.strip_prefix("X-Forwarded-For: "));
    line.unwrap().to_owned()
}

#[test]
fn each_listener_has_its_own_proxies() {
    let backend = Scripted::bind();
    let listeners = "listeners = [\n\
                     { name = \"alb\", address = \"127.0.0.1:0\", trusted_proxies = \
                     \"127.0.0.1\" },\n\
                     { name = \"nlb\", address = \"127.0.0.1:0\", trusted_proxies = \"127.0.0.1\", \
                     accept_proxy = true },\n\
                     { name = \"open\", address = \"127.0.0.1:0\", share_port = true },\n]\n";
    let balancer = Balancer::start(config(backend.address, listeners)).unwrap();
    let &[alb, nlb, open] = balancer.addresses() else { panic!("three listeners, and no other") };
    assert_eq!(balancer.listener_names(), ["alb", "nlb", "open"].map(Arc::from));
    let mut header = Vec::new();
    let source = "203.0.113.9:5".parse().unwrap();
    throng_proto::proxy_protocol::encode(source, nlb, &mut header);
    for _ in 0..2 {
        assert_eq!(client_of(alb, b"", &backend), "203.0.113.7, 127.0.0.1");
        assert_eq!(client_of(nlb, &header, &backend), "203.0.113.9");
        assert_eq!(client_of(open, b"", &backend), "127.0.0.1");
    }
    // They stay as they are until a restart, which a reload says.
    let changes = balancer.apply(config(backend.address, "listen = \"127.0.0.1:0\"")).unwrap();
    assert_eq!(changes.needs_restart, ["listen", "listeners"]);
    assert_eq!(client_of(alb, b"", &backend), "203.0.113.7, 127.0.0.1");
    if cfg!(target_os = "linux") {
        let shared = format!(
            "listen = \"{open}\"\nshare_port = true\nshards = 2\nbackends = []\n[register]\n\
                     token = \"0123456789abcdef\""
        );
        let other = Balancer::start(Config::parse(&shared, "b.toml").unwrap()).unwrap();
        assert_eq!(other.addresses(), [open]);
        end(&other);
    }
    end(&balancer);
}

#[test]
fn a_host_may_have_a_site_for_each_listener() {
    let backend = Scripted::bind();
    let text = "listen = \"127.0.0.1:0\"\n\
                listeners = [{ name = \"in\", address = \"127.0.0.1:0\" }]\n\
                sites = [\n\
                { hosts = [\"a\"], respond.text = \"public\", listeners = [\"listen\"] },\n\
                { hosts = [\"a\"], respond.text = \"internal\", listeners = [\"in\"] },\n\
                { hosts = [\"b\"], respond.text = \"both\" },\n]\n";
    let balancer = Balancer::start(config(backend.address, text)).unwrap();
    let ask = |listener: usize, host: &str| {
        let mut client = connect(balancer.addresses()[listener]);
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        client.answer().1
    };
    assert_eq!([ask(0, "a"), ask(1, "a")], ["public", "internal"]);
    assert_eq!([ask(0, "b"), ask(1, "b")], ["both", "both"]);
    // A reload may give the sites other listeners.
    let text = "listen = \"127.0.0.1:0\"\n\
                listeners = [{ name = \"in\", address = \"127.0.0.1:0\" }]\n\
                [[site]]\nhosts = [\"a\"]\nrespond.text = \"internal\"\n";
    balancer.apply(config(backend.address, text)).unwrap();
    eventually("the event loop has the sites", || ask(0, "a") == "internal");
    assert_eq!(ask(1, "a"), "internal");
    end(&balancer);
}

#[test]
fn a_listener_has_its_own_most_clients() {
    let backend = Scripted::bind();
    let text = "listeners = [\n\
                { name = \"small\", address = \"127.0.0.1:0\", max_connections = 2 },\n\
                { name = \"open\", address = \"127.0.0.1:0\" },\n]\n";
    let balancer = Balancer::start(config(backend.address, text)).unwrap();
    let &[small, open] = balancer.addresses() else { panic!("two listeners") };
    let mut tunnels: Vec<_> = (0..2)
        .map(|_| {
            let mut client = connect(small);
            client.send(&upgrade("/"));
            let server = backend.open();
            assert!(client.head().starts_with("HTTP/1.1 101 "));
            (client, server)
        })
        .collect();
    let mut beyond = connect(small);
    beyond.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    let (head, text) = beyond.answer();
    assert!(head.starts_with("HTTP/1.1 503 "), "{head}");
    assert!(text.contains("too many connections"), "{text}");
    let ListenerRow { connections, max_connections, accepted, refused, .. } =
        row(&balancer, "small");
    assert_eq!((connections, max_connections, accepted, refused), (2, 2, 2, 1));
    assert_eq!(client_of(open, b"", &backend), "127.0.0.1");
    tunnels.pop();
    eventually("its place is free", || row(&balancer, "small").connections == 1);
    assert_eq!(client_of(small, b"", &backend), "127.0.0.1");
    drop(tunnels);
    eventually("all have left", || row(&balancer, "small").connections == 0);
    eventually("all have left", || row(&balancer, "open").connections == 0);
    end(&balancer);
}

/// A tunnel that moves to a successor counts at the listener of the same name, also if the
/// successor has others before it.
#[cfg(target_os = "linux")]
#[test]
fn tunnels_count_at_their_listener_in_a_successor() {
    let backend = Scripted::bind();
    let edge = "{ name = \"edge\", address = \"127.0.0.1:0\", max_connections = 1 }";
    let start = |listeners: String, passages: Vec<Passage>| {
        let config = config(backend.address, &format!("listeners = [{listeners}]\n"));
        let (held, log, state) =
            (HeldListeners::default(), Arc::new(NoLog), CarriedState::default());
        let on_bound = move |_| Ok(passages);
        Balancer::start_on(config, log, held, (state, Default::default()), on_bound).unwrap()
    };
    let first = start(edge.to_owned(), Vec::new());
    let mut client = connect(first.addresses()[0]);
    client.send(&upgrade("/"));
    let mut server = backend.open();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    let passages = first.begin_moves().unwrap();
    let other = "{ name = \"other\", address = \"127.0.0.1:0\" }, ";
    let next = start(format!("{other}{edge}"), passages);
    let moved = first.move_tunnels(Instant::now() + TIMEOUT, &mut || true).unwrap();
    assert_eq!(moved.tunnels, 1);
    first.abandon_moves();
    assert_eq!((row(&next, "edge").connections, row(&next, "other").connections), (1, 0));
    eventually("it counts there alone", || row(&first, "edge").connections == 0);
    let mut beyond = connect(next.addresses()[1]);
    beyond.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(beyond.answer().0.starts_with("HTTP/1.1 503 "));
    client.send_text("moved");
    assert_eq!(server.text(), "moved");
    drop((client, server));
    eventually("its place is free", || row(&next, "edge").connections == 0);
    end(&first);
    end(&next);
}

#[test]
fn mistakes_in_listeners_have_their_place() {
    for (text, expected) in [
        ("listeners = [{ name = \"a\" }]", "listeners[0]"),
        (
            "listeners = [{ address = \"127.0.0.1:1\", tls = true }]",
            "listeners[0].tls is true: there is no certificate: add a table [tls]",
        ),
        (
            "listeners = [{ address = \"127.0.0.1:1\", plain = \"serve\" }]",
            "listeners[0].plain is set: it is for listeners with TLS",
        ),
        (
            "listeners = [{ address = \"127.0.0.1:1\", accept_proxy = true }]",
            "listeners[0].accept_proxy is true: any client could claim any address",
        ),
        (
            "listeners = [{ address = \"127.0.0.1:1\", trusted_proxies = \"unix:\" }]",
            "listeners[0].trusted_proxies[0] is \"unix:\": the listener is no Unix socket",
        ),
        (
            "listen = \"127.0.0.1:1\"\nlisteners = [{ address = \"127.0.0.1:1\" }]",
            "listeners[0].address is \"127.0.0.1:1\": it is there already",
        ),
        (
            "listeners = [{ name = \"a\", address = \"127.0.0.1:1\" }, { name = \"a\", address = \
             \"127.0.0.1:2\" }]",
            "listeners[1].name is \"a\": another listener has it",
        ),
        (
            "listeners = [{ name = \"listen\", address = \"127.0.0.1:1\" }]",
            "listeners[0].name is \"listen\": the addresses of that setting have it",
        ),
        (
            "listeners = [{ name = \"a b\", address = \"127.0.0.1:1\" }]",
            "listeners[0].name is \"a b\": write 1 to 64 letters",
        ),
        ("listeners = [{ address = \"systemd\" }]", "write the address of ListenStream= in the"),
        (
            "listeners = [{ address = \"127.0.0.1:1\", unix_mode = \"9\" }]",
            "listeners[0].unix_mode is \"9\": write permissions in octal",
        ),
    ] {
        let text = format!("backends = [\"127.0.0.1:9\"]\n{text}\n");
        let error = Config::parse(&text, "b.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}
