//! Sites: requests go by their host and path to the backends, or are answered.

use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_balance::{Access, AccessDetail, AccessLog, Balancer, Config};
use throng_testkit::{eventually, poll};

use crate::support::{Peer, Scripted, upgrade};

/// The records of requests: status, path, site, route, pool and reason.
#[derive(Debug, Default)]
pub(crate) struct Log(Mutex<Vec<String>>);

impl AccessLog for Log {
    fn detail(&self) -> AccessDetail {
        AccessDetail::All
    }

    fn record(&self, access: &Access<'_>) {
        let Access { status, path, site, route, pool, reason, .. } = access;
        let names = [path, site, route, pool].map(|name| name.unwrap_or("-"));
        let status = status.unwrap_or_default();
        let text = format!("{status} {} {reason}", names.join(" "));
        self.0.lock().unwrap().push(text.trim_end().to_owned());
    }
}

/// A balancer, which ends with it.
pub(crate) struct Running(pub(crate) Balancer, Arc<Log>);

impl Running {
    pub(crate) fn start(text: &str) -> Self {
        Self::start_at("\"127.0.0.1:0\"", text)
    }

    pub(crate) fn start_at(listen: &str, text: &str) -> Self {
        let text = format!("listen = {listen}\nshards = 1\n{text}");
        let log = Arc::<Log>::default();
        let access: Arc<dyn AccessLog> = log.clone();
        let config = Config::parse(&text, "b.toml").unwrap();
        Self(Balancer::start_with_access_log(config, access).unwrap(), log)
    }

    pub(crate) fn connect(&self) -> Peer {
        Peer::new(TcpStream::connect(self.0.addresses()[0]).unwrap())
    }

    pub(crate) fn until_logged(&self, text: &str) {
        eventually("the log has the request", || {
            self.1.0.lock().unwrap().iter().any(|line| line == text)
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

pub(crate) fn get(host: &str, path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes()
}

fn sites(backend: SocketAddr) -> String {
    format!(
        "backends = [\"{backend}\"]\n\
         [[site]]\nhosts = [\"a.example\"]\nname = \"shop\"\n\
         [[site.route]]\npath = \"/healthz\"\nrespond.text = \"ok\"\n\
         [[site.route]]\nprefix = \"/old\"\nredirect.to = \"https://${{host}}/new${{uri}}\"\n\
         [[site.route]]\npath = \"/chat\"\nwebsocket = true\nname = \"ws\"\n\
         [[site.route]]\nprefix = \"/closed\"\nrespond.status = 403\n\
         [[site]]\nhosts = [\"b.example\"]\nredirect.to = \"https://a.example${{uri}}\"\n"
    )
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup";

/// Each request on a connection is for the host that it names.
#[test]
fn requests_on_one_connection_are_routed_one_by_one() {
    let backend = Scripted::bind();
    let running = Running::start(&sites(backend.address));
    let mut client = running.connect();
    let mut server = None;
    for (host, path, status, text) in [
        ("a.example", "/healthz", "200 OK", "ok"),
        ("a.example", "/x", "200 OK", "up"),
        ("B.Example:8080", "/y?z", "308 Permanent Redirect", ""),
        ("a.example.", "/old/x?y", "308 Permanent Redirect", ""),
        ("other.example", "/healthz", "200 OK", "up"),
        ("a.example", "/closed", "403 Forbidden", ""),
        ("a.example", "/x//closed", "200 OK", "up"),
        (
            "a.example",
            "//closed",
            "400 Bad Request",
            "400 Bad Request: two readings of this path lead to different routes\n",
        ),
        ("a.example", "/healthz", "200 OK", "ok"),
    ] {
        client.send(&get(host, path));
        if text == "up" {
            let server = server.get_or_insert_with(|| backend.accept());
            let head = server.head();
            assert!(
                head.starts_with(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n")),
                "{head}"
            );
            server.send(OK);
        }
        let (head, body) = client.answer();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{host}{path}: {head}");
        assert_eq!(body, text, "{host}{path}: {head}");
        assert!(!head.contains("Connection: close"), "{head}");
        let location = match path {
            "/y?z" => "Location: https://a.example/y?z\r\n",
            "/old/x?y" => "Location: https://a.example./new/old/x?y\r\n",
            _ => continue,
        };
        assert!(head.contains(location), "{head}");
    }
    for line in [
        "200 /healthz shop /healthz - the route responds",
        "200 /x shop - default",
        "308 /y b.example - - the route redirects",
        "200 /healthz * - default",
        "403 /closed shop /closed - the route responds",
        "400 //closed shop - - two readings of this path lead to different routes",
    ] {
        running.until_logged(line);
    }
}

#[test]
fn a_handshake_takes_its_route_and_a_page_at_its_path_another() {
    let backend = Scripted::bind();
    let running = Running::start(&sites(backend.address));
    let handshake = String::from_utf8(upgrade("/chat")).unwrap();
    let handshake = handshake.replace("example.com", "a.example");
    let mut client = running.connect();
    client.send(handshake.as_bytes());
    let mut server = backend.open();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    client.send_text("hello");
    assert_eq!(server.text(), "hello");
    drop((client, server));
    running.until_logged("101 /chat shop ws default");
    // A handshake for a route that redirects gets its answer.
    let mut other = running.connect();
    other.send(handshake.replace("a.example", "b.example").as_bytes());
    assert!(other.head().starts_with("HTTP/1.1 308 "));
}

/// RFC 9110 section 15.5.22.
#[test]
fn a_426_names_the_protocol() {
    let running = Running::start("[[site]]\nhosts = [\"*\"]\nrespond.status = 426\n");
    let mut client = running.connect();
    client.send(&get("a", "/"));
    let (head, _) = client.answer();
    assert!(head.starts_with("HTTP/1.1 426 Upgrade Required\r\n"), "{head}");
    assert!(head.contains("Upgrade: websocket\r\n"), "{head}");
}

#[test]
fn pipelined_requests_are_answered_in_order_by_the_balancer_and_backends() {
    let backend = Scripted::bind();
    let running = Running::start(&sites(backend.address));
    let mut client = running.connect();
    let paths = ["/healthz", "/x", "/closed", "/healthz", "/x"];
    let all: Vec<u8> = paths.iter().flat_map(|path| get("a.example", path)).collect();
    client.send(&all);
    let mut server = None;
    for path in paths {
        if path == "/x" {
            let server = server.get_or_insert_with(|| backend.accept());
            server.head();
            server.send(OK);
        }
        let (head, body) = client.answer();
        let expected = match path {
            "/healthz" => ("200", "ok"),
            "/x" => ("200", "up"),
            _ => ("403", ""),
        };
        assert_eq!((&head[9..12], body.as_str()), expected, "{path}: {head}");
    }
}

/// A client that pipelines and reads nothing makes the balancer hold its own answers up to a limit.
#[test]
fn own_answers_wait_until_earlier_ones_are_read() {
    let running = Running::start(&format!(
        "[[site]]\nhosts = [\"*\"]\nrespond.text = \"{}\"\n",
        "x".repeat(32 << 10)
    ));
    let mut client = running.connect();
    let requests = get("a.example", "/").repeat(1000);
    client.send(&requests);
    for _ in 0..1000 {
        let (_, body) = client.answer();
        assert_eq!(body.len(), 32 << 10);
    }
    // The next one is the client's last.
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let (head, _) = client.answer();
    assert!(head.contains("Connection: close\r\n"), "{head}");
    assert!(client.is_at_end());
}

#[test]
fn a_request_whose_body_is_not_read_ends_its_connection_with_the_answer() {
    let running = Running::start("[[site]]\nhosts = [\"*\"]\nrespond.text = \"no\"\n");
    for request in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\nsome",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
        "GET / HTTP/1.0\r\n\r\n",
    ] {
        let mut client = running.connect();
        client.send(request.as_bytes());
        let answer = String::from_utf8(client.rest()).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(
            answer.contains("Connection: close\r\n") && answer.ends_with("\r\n\r\nno"),
            "{answer}"
        );
    }
    let mut client = running.connect();
    client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n");
    let head = client.head();
    assert!(head.contains("Content-Length: 2\r\n"), "{head}");
    client.send(&get("a", "/"));
    assert_eq!(client.answer().1, "no");
}

#[test]
fn hosts_without_a_site_are_not_found_without_top_level_backends() {
    let running = Running::start("[[site]]\nhosts = [\"a.example\"]\nrespond.text = \"a\"\n");
    let mut client = running.connect();
    for (host, status) in [("a.example", "200"), ("b.example", "404"), ("a.example", "200")] {
        client.send(&get(host, "/"));
        let (head, body) = client.answer();
        assert_eq!(&head[9..12], status, "{host}: {head}{body}");
    }
    let mut old = running.connect();
    old.send(b"GET / HTTP/1.0\r\n\r\n");
    assert!(old.head().starts_with("HTTP/1.1 404 "));
    // Two hosts, or none, are refused before.
    for hosts in ["Host: a.example\r\nHost: a.example\r\n", "", "Host: a.example, b.example\r\n"] {
        let mut client = running.connect();
        client.send(format!("GET / HTTP/1.1\r\n{hosts}\r\n").as_bytes());
        assert!(client.head().starts_with("HTTP/1.1 400 "), "{hosts}");
    }
}

/// A site of pools, and a site whose routes have the pool of their own backends.
fn pools(chat: SocketAddr, api: SocketAddr, rest: SocketAddr) -> String {
    format!(
        "backends = [\"{rest}\"]\n\
         pools = [{{ name = \"chat\", backends = [\"{chat}\"] }}, \
                  {{ name = \"api\", backends = [\"{api}\"] }}]\n\
         [[site]]\nhosts = [\"a.example\"]\npool = \"api\"\n\
         [[site.route]]\npath = \"/chat\"\nwebsocket = true\npool = \"chat\"\n\
         [[site.route]]\nprefix = \"/pages\"\npool = \"default\"\n"
    )
}

#[test]
fn each_route_has_the_backends_of_its_pool() {
    let [chat, api, rest] = [(); 3].map(|()| Scripted::bind());
    let running = Running::start(&pools(chat.address, api.address, rest.address));
    // Requests on one connection go to different pools and back, each with its own connection.
    let mut client = running.connect();
    let mut kept = [None, None];
    for (host, path, pool) in [
        ("a.example", "/x", 0),
        ("a.example", "/pages/1", 1),
        ("a.example", "/chat", 0),
        ("b.example", "/x", 1),
        ("a.example", "/pages", 1),
        ("a.example", "/x", 0),
    ] {
        client.send(&get(host, path));
        let server = kept[pool].get_or_insert_with(|| [&api, &rest][pool].accept());
        let head = server.head();
        assert!(head.starts_with(&format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n")), "{head}");
        server.send(OK);
        assert_eq!(client.answer().1, "up", "{host}{path}");
    }
    let handshake = String::from_utf8(upgrade("/chat")).unwrap();
    let mut tunnel = running.connect();
    tunnel.send(handshake.replace("example.com", "a.example").as_bytes());
    let mut server = chat.open();
    assert!(tunnel.head().starts_with("HTTP/1.1 101 "));
    for line in
        ["200 /x a.example - api", "200 /pages/1 a.example /pages default", "200 /x * - default"]
    {
        running.until_logged(line);
    }
    // A file without the route closes no tunnel, and the next handshake has another pool.
    let text = format!(
        "listen = \"127.0.0.1:0\"\nshards = 1\n{}",
        pools(chat.address, api.address, rest.address).replace("path = \"/chat\"", "path = \"/c\"")
    );
    running.0.apply(Config::parse(&text, "b.toml").unwrap()).unwrap();
    tunnel.send_text("still open");
    assert_eq!(server.text(), "still open");
    let mut next = running.connect();
    next.send(handshake.replace("example.com", "a.example").as_bytes());
    let mut other =
        poll("a handshake at the other pool", || chat.try_accept().or_else(|| api.try_accept()));
    assert!(other.head().contains("Upgrade: websocket"));
    assert_eq!(other.stream.local_addr().unwrap(), api.address);
    drop((tunnel, server));
    running.until_logged("101 /chat a.example /chat chat");
}

/// Refused clients and pages get 403 before limits count them, with the reason in the log.
#[test]
fn clients_and_pages_that_may_not_use_a_route_get_403() {
    let running = Running::start(
        "trusted_proxies = [\"127.0.0.1/32\"]\n\
         [[limit]]\nname = \"l\"\nrate = \"1/h\"\nburst = 0\nkey = \"route\"\n\
         [[site]]\nhosts = [\"*\"]\nrespond.text = \"ok\"\ndeny = [\"192.0.2.0/24\"]\n\
         [[site.route]]\nprefix = \"/staff\"\nallow = [\"10.0.0.0/8\", \"192.0.2.7\"]\n\
         deny = [\"10.0.0.9\"]\n\
         [[site.route]]\nprefix = \"/own\"\nallowed_origins = \"same-host\"\n\
         [[site.route]]\npath = \"/ws\"\nallowed_origins = [\"https://b.example\", \"same-host\"]\n\
         [[site.route]]\npath = \"/once\"\nlimits = \"l\"\nallow = \"10.0.0.0/8\"\n\
         [[site]]\nhosts = \"b\"\nrespond.text = \"b\"\nallow = [\"10.0.0.0/8\"]\n\
         allowed_origins = [\"https://b.example\"]\n\
         [[site.route]]\npath = \"/more\"\nallow = [\"192.0.2.0/24\"]\n\
         allowed_origins = \"null\"\n",
    );
    let mut client = running.connect();
    let far = "X-Forwarded-For: 203.0.113.5\r\n";
    let near = "X-Forwarded-For: 10.0.0.5\r\n";
    let denied = "X-Forwarded-For: 192.0.2.7\r\n";
    for (host, path, headers, expected) in [
        ("a", "/", far, "200"),
        ("a", "/", denied, "403"),
        ("a", "/", "X-Forwarded-For: 10.0.0.5, 192.0.2.7\r\n", "403"),
        ("a", "/staff", denied, "403"),
        ("a", "/staff/x", near, "200"),
        ("a", "/staff/x", far, "403"),
        ("a", "/staff", "X-Forwarded-For: ::ffff:10.0.0.9\r\n", "403"),
        ("a", "/own", "", "200"),
        ("a", "/own", "Origin: http://a\r\n", "200"),
        ("a", "/own", "Origin: https://evil.example\r\n", "403"),
        ("a", "/own", "Origin: null\r\n", "403"),
        ("a", "/own", "Origin: http://a\r\nOrigin: http://a\r\n", "403"),
        ("a", "/ws", "Origin: https://b.example\r\n", "200"),
        ("a", "/ws", "Origin: https://a\r\n", "200"),
        ("a", "/ws", "Origin: https://b.example.evil\r\n", "403"),
        ("a", "/once", far, "403"),
        ("a", "/once", near, "200"),
        ("a", "/once", near, "429"),
        ("a", "/once", far, "403"),
        ("b", "/", near, "200"),
        ("b", "/", denied, "403"),
        ("b", "/more", denied, "200"),
        ("b", "/more", near, "200"),
        ("b", "/more", far, "403"),
        ("b", "/", "X-Forwarded-For: 10.0.0.5\r\nOrigin: null\r\n", "403"),
        ("b", "/more", "X-Forwarded-For: 10.0.0.5\r\nOrigin: null\r\n", "200"),
        ("b", "/more", "X-Forwarded-For: 10.0.0.5\r\nOrigin: https://b.example\r\n", "200"),
    ] {
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n").as_bytes());
        let (head, _) = client.answer();
        assert_eq!(&head[9..12], expected, "{host}{path} {headers}: {head}");
    }
    let handshake = String::from_utf8(upgrade("/ws")).unwrap();
    client.send(handshake.replace("\r\n\r\n", "\r\nOrigin: https://evil\r\n\r\n").as_bytes());
    assert!(client.head().starts_with("HTTP/1.1 403 "));
    for line in [
        "403 / * - - deny lists the client's network",
        "403 /staff/x * /staff - allow does not list the client's network",
        "403 /ws * /ws - allowed_origins does not list the page's origin",
    ] {
        running.until_logged(line);
    }
}

/// A cookie brings a client back to its part; the pool's sticky cookie stands beside it.
#[test]
fn a_split_may_keep_the_point_in_a_cookie() {
    let pools = [(); 2].map(|()| Scripted::bind());
    let [one, other] = pools.each_ref().map(|pool| pool.address);
    let text = |weights: [u32; 2]| {
        format!(
            "sticky.cookie = \"lb\"\n\
             pools = [{{ name = \"one\", backends = [\"{one}\"] }}, \
             {{ name = \"other\", backends = [\"{other}\"] }}]\n\
             [[site]]\nhosts = \"*\"\nsplit_by = \"sticky:track\"\n\
             split = [{{ pool = \"one\", weight = {} }}, {{ pool = \"other\", weight = {} }}]\n",
            weights[0], weights[1]
        )
    };
    let running = Running::start(&text([1, 1]));
    // Returns the cookies that a client with these gets, and the place of its pool.
    let ask = |request: &str, cookies: &str, answer: &[u8]| {
        let mut client = running.connect();
        client.send(request.replacen("\r\n\r\n", &format!("\r\n{cookies}\r\n"), 1).as_bytes());
        let accepted = || (0..2).find_map(|at| Some((pools[at].try_accept()?, at)));
        let (mut server, at) = poll("a request at a pool", accepted);
        server.head();
        server.send(answer);
        let head = client.head();
        let set = head.lines().filter_map(|line| line.strip_prefix("Set-Cookie: "));
        (set.map(str::to_owned).collect::<Vec<_>>(), at)
    };
    let page = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let mut reached = [0; 2];
    for _ in 0..40 {
        let (set, at) = ask(page, "", answer);
        reached[at] += 1;
        let [lb, track] = &*set else { panic!("{set:?}") };
        assert!(lb.starts_with("lb="), "{set:?}");
        assert!(track.starts_with("track=000000000000"), "{set:?}");
        assert!(track.ends_with("; Path=/; HttpOnly; SameSite=Lax"), "{set:?}");
        let values = [lb, track].map(|it| it.split(';').next().unwrap());
        let both = format!("Cookie: {}\r\n", values.join("; "));
        assert_eq!(ask(page, &both, answer), (Vec::new(), at), "{both}");
    }
    assert!(reached.iter().all(|count| *count > 2), "{reached:?}");
    // The highest point has the last pool until its weight is 0, and the answer to a handshake also
    // has the cookie.
    let highest = "Cookie: track=000000000000ffff\r\n";
    assert_eq!(ask(page, highest, answer).1, 1);
    let text = format!("listen = \"127.0.0.1:0\"\nshards = 1\n{}", text([1, 0]));
    running.0.apply(Config::parse(&text, "b.toml").unwrap()).unwrap();
    eventually("all clients have the first pool", || ask(page, highest, answer).1 == 0);
    let mut client = running.connect();
    client.send(&upgrade("/ws"));
    let _server = pools[0].open();
    assert!(client.head().contains("Set-Cookie: track="));
}

/// A client stays in its part of a split, and a reload with other weights moves it.
#[test]
fn a_split_sends_clients_to_pools_by_their_points() {
    let pools = [(); 2].map(|()| Scripted::bind());
    let text = |weights: [u32; 2]| {
        let [one, other] = pools.each_ref().map(|pool| pool.address);
        format!(
            "pools = [{{ name = \"one\", backends = [\"{one}\"] }}, \
             {{ name = \"other\", backends = [\"{other}\"] }}]\n\
             [[site]]\nhosts = \"*\"\nsplit_by = \"header:X-User\"\n\
             split = [{{ pool = \"one\", weight = {} }}, {{ pool = \"other\", weight = {} }}]\n\
             [[site.route]]\npath = \"/fixed\"\npool = \"other\"\n",
            weights[0], weights[1]
        )
    };
    let running = Running::start(&text([1, 1]));
    // Returns whether the pool `other` has it.
    let ask = |user: usize, path: &str| {
        let mut client = running.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\nX-User: {user}\r\n\r\n").as_bytes());
        let accepted = || {
            let one = pools[0].try_accept().map(|peer| (peer, false));
            one.or_else(|| pools[1].try_accept().map(|peer| (peer, true)))
        };
        let (mut server, is_other) = poll("a request at a pool", accepted);
        server.head();
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        client.answer();
        is_other
    };
    let at = || (0..40).map(|user| ask(user, "/")).collect::<Vec<_>>();
    let half = at();
    let count = |of: &[bool]| of.iter().filter(|is_other| **is_other).count();
    assert!((5..35).contains(&count(&half)), "{half:?}");
    assert_eq!(at(), half);
    assert!(ask(0, "/fixed"));
    running.until_logged("200 / * - one");
    running.until_logged("200 / * - other");
    let apply = |weights| {
        let text = format!("listen = \"127.0.0.1:0\"\nshards = 1\n{}", text(weights));
        assert!(running.0.apply(Config::parse(&text, "b.toml").unwrap()).unwrap().settings);
    };
    apply([3, 1]);
    let is_part = |at: &[bool]| at.iter().zip(&half).all(|(now, before)| *before || !now);
    eventually("only clients of the other pool move", || {
        let quarter = at();
        assert!(is_part(&quarter), "{quarter:?} {half:?}");
        count(&quarter) < count(&half)
    });
    apply([1, 0]);
    eventually("no client is in a pool of weight 0", || count(&at()) == 0);
    apply([1, 1]);
    eventually("all are back", || at() == half);
}

/// Each form of a host reaches its own site, and a text that is not a host reaches none.
#[test]
fn hosts_in_odd_forms_reach_no_other_site() {
    let running = Running::start(
        "[[site]]\nhosts = [\"a.example\"]\nrespond.text = \"own\"\n\
         [[site]]\nhosts = [\"*\"]\nrespond.text = \"other\"\n",
    );
    let long = "a".repeat(300);
    for (target, host, expected) in [
        ("/", "A.Example.:65535", "200 own"),
        ("http://a.example", "b.example", "200 own"),
        ("wss://a.example:443/", "b.example", "200 own"),
        ("http://b.example/", "a.example", "200 other"),
        ("/", "a.example.evil", "200 other"),
        ("/", "a%2eexample", "200 other"),
        ("/", "xn--a.example", "200 other"),
        ("/", &long, "200 other"),
        ("/", "user@a.example", "400"),
        ("/", "a.example b.example", "400"),
        ("/", "a.example/x", "400"),
        ("/", "\u{e4}.example", "400"),
        ("/", "a.example:99999999", "400"),
        ("/", ":80", "400"),
        ("http://user@a.example/", "a.example", "400"),
        ("http:///", "a.example", "400"),
    ] {
        let mut client = running.connect();
        client.send(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        let (head, body) = client.answer();
        let text = if head.contains(" 200 ") { format!(" {body}") } else { String::new() };
        assert_eq!(head[9..12].to_owned() + &text, expected, "{target} {host}: {head}");
    }
}

#[test]
fn a_reload_changes_the_routes_of_open_connections() {
    let running = Running::start("[[site]]\nhosts = [\"*\"]\nrespond.text = \"one\"\n");
    let mut client = running.connect();
    client.send(&get("a", "/"));
    assert_eq!(client.answer().1, "one");
    let text = "listen = \"127.0.0.1:0\"\nshards = 1\n\
                [[site]]\nhosts = [\"*\"]\nrespond.text = \"two\"\n";
    let changes = running.0.apply(Config::parse(text, "b.toml").unwrap()).unwrap();
    assert!(changes.settings, "{changes:?}");
    eventually("the connection has the new route", || {
        client.send(&get("a", "/"));
        client.answer().1 == "two"
    });
    let again = running.0.apply(Config::parse(text, "b.toml").unwrap()).unwrap();
    assert!(!again.settings, "{again:?}");
}
