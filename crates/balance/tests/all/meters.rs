//! Rates and lives of tunnels by route.

use std::sync::Arc;
use std::time::{Duration, Instant};

use throng_balance::{Balancer, CarriedState, Config, Passage};
use throng_io::HeldListeners;
use throng_testkit::eventually;

use crate::support::{NoLog, Peer, Scripted, TIMEOUT, upgrade};

fn text(backend: &Scripted, routes: &str) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\nshards = 1\nbackends = [\"{}\"]\n[[site]]\nhosts = [\"*\"]\n\
         routes = [{routes}]\n",
        backend.address
    )
}

fn start(text: &str) -> Balancer {
    Balancer::start(Config::parse(text, "b.toml").unwrap()).unwrap()
}

fn end(balancer: &Balancer) {
    balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
}

fn open(balancer: &Balancer, backend: &Scripted, path: &str) -> (Peer, Peer) {
    let stream = std::net::TcpStream::connect(balancer.addresses()[0]).unwrap();
    let mut client = Peer::new(stream);
    client.send(&upgrade(path));
    let server = backend.open();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    (client, server)
}

fn say((client, server): &mut (Peer, Peer), text: &str) {
    client.send_text(text);
    assert_eq!(server.text(), text);
}

#[test]
fn a_client_beyond_its_rate_waits_and_loses_nothing() {
    let backend = Scripted::bind();
    let routes = "{ path = \"/few\", tunnel = { messages_per_second = 20, messages_burst = 5 } }, \
                  { path = \"/small\", tunnel.bytes_per_second = \"4KiB\" }";
    let balancer = start(&text(&backend, routes));
    let mut free = open(&balancer, &backend, "/free");
    let mut few = open(&balancer, &backend, "/few");
    let began = Instant::now();
    // No later than their turn: five at once, and one in 50 ms.
    for at in 0..25_u32 {
        say(&mut few, &at.to_string());
        assert!(began.elapsed() >= Duration::from_millis(50) * at.saturating_sub(5), "{at}");
        say(&mut free, "free");
    }
    let mut small = open(&balancer, &backend, "/small");
    let began = Instant::now();
    let long = "x".repeat(1_000);
    for _ in 0..8 {
        say(&mut small, &long);
    }
    // 4,096 bytes at once, and the eighth message begins after seven.
    assert!(began.elapsed() >= Duration::from_millis(700), "{:?}", began.elapsed());
    assert!(balancer.status().metrics.throttled > 2);
    // The other direction is not metered.
    for _ in 0..50 {
        few.1.send_text_unmasked("answer");
        assert_eq!(few.0.text(), "answer");
    }
    // A reload changes the rates of open tunnels.
    let routes = routes.replace("messages_per_second = 20", "messages_per_second = 1000000");
    balancer.apply(Config::parse(&text(&backend, &routes), "b.toml").unwrap()).unwrap();
    let before = balancer.status().metrics.throttled;
    eventually("the event loop has the rates", || {
        let began = Instant::now();
        for _ in 0..10 {
            say(&mut few, "again");
        }
        began.elapsed() < Duration::from_millis(250)
    });
    say(&mut few, "again");
    assert!(balancer.status().metrics.throttled <= before + 3);
    drop((few, small, free));
    eventually("all have left", || balancer.status().metrics.tunnels == 0);
    end(&balancer);
}

#[test]
fn a_client_far_beyond_its_rate_is_closed_if_the_route_says_so() {
    let backend = Scripted::bind();
    let routes = "{ path = \"/few\", tunnel = { messages_per_second = 50, over = \"close\" } }";
    let balancer = start(&text(&backend, routes));
    let (mut client, mut server) = open(&balancer, &backend, "/few");
    for at in 0..100 {
        client.send_text(&at.to_string());
    }
    assert_eq!(client.close_code(), 1008);
    let metrics = balancer.status().metrics;
    assert_eq!((metrics.beyond_rate, metrics.closed), (1, 1));
    // Its messages arrive, in order, and then the end of its stream.
    client.send_close(1008);
    for at in 0..100 {
        assert_eq!(server.text(), at.to_string());
    }
    assert_eq!(server.close_code(), 1008);
    end(&balancer);
}

#[test]
fn a_tunnel_ends_after_its_longest_life() {
    let backend = Scripted::bind();
    let routes = "{ path = \"/short\", tunnel.max_lifetime = \"1s\" }";
    let balancer = start(&text(&backend, routes));
    let mut other = open(&balancer, &backend, "/other");
    let began = Instant::now();
    let (mut client, mut server) = open(&balancer, &backend, "/short");
    // It is not silent.
    eventually("it ends", || {
        client.send_text("hello");
        server.text();
        balancer.status().metrics.lifetime_ended == 1
    });
    assert_eq!(client.close_code(), 1001);
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?}", began.elapsed());
    say(&mut other, "still here");
    end(&balancer);
}

/// A client that is not read, since it is beyond its rate, moves, and is read in the successor; it
/// has not got its burst again there.
#[cfg(target_os = "linux")]
#[test]
fn a_meter_moves_with_its_tunnel() {
    let backend = Scripted::bind();
    let routes = "{ path = \"/few\", tunnel = { messages_per_second = 2, messages_burst = 4 } }";
    let start = |passages: Vec<Passage>| {
        let config = Config::parse(&text(&backend, routes), "b.toml").unwrap();
        let (held, log, state) =
            (HeldListeners::default(), Arc::new(NoLog), CarriedState::default());
        let on_bound = move |_| Ok(passages);
        Balancer::start_on(config, log, held, (state, Default::default()), on_bound).unwrap()
    };
    let first = start(Vec::new());
    let mut tunnel = open(&first, &backend, "/few");
    let began = Instant::now();
    // The last of them is beyond the burst: its client is not read for half a second.
    (0..5).for_each(|_| say(&mut tunnel, "before"));
    eventually("it is throttled", || first.status().metrics.throttled == 1);
    tunnel.0.send_text("moved");
    let passages = first.begin_moves().unwrap();
    let next = start(passages);
    assert_eq!(first.move_tunnels(Instant::now() + TIMEOUT, &mut || true).unwrap().tunnels, 1);
    first.abandon_moves();
    assert_eq!(tunnel.1.text(), "moved");
    (0..3).for_each(|_| say(&mut tunnel, "after"));
    // Eight messages before the last, four at once.
    assert!(began.elapsed() >= Duration::from_millis(1_400), "{:?}", began.elapsed());
    assert!(next.status().metrics.throttled > 0);
    end(&first);
    end(&next);
}

#[test]
fn mistakes_in_rates_have_their_place() {
    for (keys, expected) in [
        (
            "tunnel.messages_burst = 5",
            "sites[0].tunnel.messages_burst is 5: it is the burst of a rate",
        ),
        ("tunnel.bytes_burst = \"5KiB\"", "add tunnel.bytes_per_second"),
        ("tunnel.messages_per_second = 0", "sites[0].tunnel.messages_per_second is 0: "),
        ("tunnel.bytes_per_second = \"1B\"", "sites[0].tunnel.bytes_per_second is \"1B\": "),
        ("tunnel.over = \"drop\"", "sites[0].tunnel.over is \"drop\": "),
        ("tunnel.max_lifetime = \"0s\"", "sites[0].tunnel.max_lifetime is \"0s\": "),
    ] {
        let text = format!("backends = [\"127.0.0.1:9\"]\n[[site]]\nhosts = \"a\"\n{keys}\n");
        let error = Config::parse(&text, "b.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{keys}: {error}");
    }
}
