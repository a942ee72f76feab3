//! Limits of open tunnels: exact over all event loops, for the whole life of a tunnel, also in a
//! successor of the process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_balance::{Balancer, CarriedState, Config, LimitRow};
use throng_io::HeldListeners;
use throng_testkit::eventually;

use crate::capacity::Running;
use crate::support::{NoLog, Peer, Scripted, TIMEOUT, upgrade};

fn text(backend: &Scripted, limit: &str) -> String {
    format!(
        "backends = [\"{}\"]\n[[site]]\nhosts = [\"*\"]\nlimits = [\"l\"]\n\
         [[limit]]\nname = \"l\"\n{limit}\n",
        backend.address
    )
}

fn row(balancer: &Balancer) -> LimitRow {
    balancer.status().limits.pop().unwrap()
}

#[test]
fn a_key_has_at_most_so_many_tunnels_and_the_end_of_one_makes_way() {
    let backend = Scripted::bind();
    let running =
        Running::start(&text(&backend, "on = \"tunnels\"\nmax = 2\nkey = \"header:X-User\""));
    let come = |user: &str| {
        let handshake = String::from_utf8(upgrade("/")).unwrap();
        let mut client = running.connect();
        client
            .send(handshake.replace("\r\n\r\n", &format!("\r\nX-User: {user}\r\n\r\n")).as_bytes());
        client
    };
    let mut open: Vec<_> = ["a", "a", "b"].map(|user| (come(user), backend.open())).into();
    let head = come("a").head();
    assert!(head.starts_with("HTTP/1.1 429 ") && head.contains("\r\nRetry-After: "), "{head}");
    assert!(backend.try_accept().is_none());
    let LimitRow { tunnels, passed, refused, .. } = row(&running.balancer);
    assert_eq!((tunnels, passed, refused), (3, 3, 1));
    // Other requests do not count.
    let mut page = running.connect();
    page.send(b"GET / HTTP/1.1\r\nHost: a\r\nX-User: a\r\n\r\n");
    let mut server = backend.accept();
    server.head();
    server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    assert!(page.head().starts_with("HTTP/1.1 200 "));
    open.remove(0);
    eventually("its place is free", || row(&running.balancer).tunnels == 2);
    // A handshake has a place until its backend refuses it.
    let mut refused = come("a");
    let mut server = backend.accept();
    server.head();
    assert_eq!(row(&running.balancer).tunnels, 3);
    server.send(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n");
    assert!(refused.head().starts_with("HTTP/1.1 403 "));
    eventually("its place is free", || row(&running.balancer).tunnels == 2);
    // So has one whose client leaves before the answer.
    let leaving = come("a");
    let mut server = backend.accept();
    server.head();
    drop(leaving);
    eventually("its place is free", || row(&running.balancer).tunnels == 2);
    drop(open);
    eventually("all places are free", || row(&running.balancer).tunnels == 0);
}

#[test]
fn two_event_loops_together_open_exactly_as_many_tunnels() {
    let backend = Scripted::bind();
    let limit = "on = \"tunnels\"\nmax = 7\nkey = \"site\"\nrefuse = \"close\"";
    let running = Running::start(&format!("shards = 2\n{}", text(&backend, limit)));
    let mut clients: Vec<Peer> = (0..20).map(|_| running.come("/")).collect();
    let mut servers: Vec<Peer> = (0..7).map(|_| backend.open()).collect();
    let mut closed = 0;
    eventually("the others are refused", || row(&running.balancer).refused == 13);
    servers.iter_mut().for_each(|server| server.send_text_unmasked("open"));
    for client in &mut clients {
        assert!(client.head().starts_with("HTTP/1.1 101 "));
        match client.frame() {
            (1, text) => assert_eq!(text, b"open"),
            (8, reason) => {
                assert_eq!(reason[..2], 1013_u16.to_be_bytes());
                closed += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(closed, 13);
    assert!(backend.try_accept().is_none());
    drop((clients, servers));
    eventually("all places are free", || row(&running.balancer).tunnels == 0);
}

/// The successor counts the tunnels that come to it, and knows which keys have used their rate.
#[test]
fn limits_go_on_in_a_successor() {
    let backend = Scripted::bind();
    let config = |more: &str| {
        let limits = "limits = [{ name = \"l\", on = \"tunnels\", max = 2 }, \
                      { name = \"r\", rate = \"1/h\", burst = 0, key = \"route\" }]\n";
        let text = format!(
            "listen = \"127.0.0.1:0\"\nshards = 1\nbackends = [\"{}\"]\n{limits}[[site]]\nhosts = \
             \"*\"\nlimits = \"l\"\nroutes = [{{ path = \"/once\", limits = \"r\", respond.text = \
             \"\" }}]\n{more}",
            backend.address
        );
        Config::parse(&text, "b.toml").unwrap()
    };
    let start = |carried, passages| {
        let on_bound = move |_| Ok(passages);
        let (held, log) = (HeldListeners::default(), Arc::new(NoLog));
        Balancer::start_on(config(""), log, held, (carried, Default::default()), on_bound).unwrap()
    };
    let connect = |balancer: &Balancer| {
        Peer::new(std::net::TcpStream::connect(balancer.addresses()[0]).unwrap())
    };
    let come = |balancer: &Balancer| {
        let mut client = connect(balancer);
        client.send(&upgrade("/"));
        client
    };
    let once = |balancer: &Balancer| {
        let mut client = connect(balancer);
        client.send(b"GET /once HTTP/1.1\r\nHost: a\r\n\r\n");
        client.head()[9..12].to_owned()
    };
    let tunnels = |balancer: &Balancer| balancer.status().limits[0].tunnels;
    let old = start(CarriedState::default(), Vec::new());
    let mut open = [(); 2].map(|()| (come(&old), backend.open()));
    open.iter_mut().for_each(|(client, _)| assert!(client.head().starts_with("HTTP/1.1 101 ")));
    assert_eq!([once(&old), once(&old)], ["200", "429"]);
    let passages = old.begin_moves().unwrap();
    let new = start(old.carried(), passages);
    let moved = old.move_tunnels(Instant::now() + TIMEOUT, &mut || true).unwrap();
    assert_eq!(moved.tunnels, 2);
    old.abandon_moves();
    eventually("they count there alone", || (tunnels(&old), tunnels(&new)) == (0, 2));
    assert!(come(&new).head().starts_with("HTTP/1.1 429 "), "of the same key");
    assert_eq!(once(&new), "429", "its rate is used up");
    let [first, second] = open;
    drop(first);
    eventually("its place is free", || tunnels(&new) == 1);
    let mut third = (come(&new), backend.open());
    assert!(third.0.head().starts_with("HTTP/1.1 101 "));
    drop((second, third));
    eventually("all places are free", || tunnels(&new) == 0);
    for balancer in [old, new] {
        balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
    }
}
