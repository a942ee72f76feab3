//! Operations on a balancer with tunnels: they affect only the tunnels that are closed.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use throng_balance::{Balancer, Config, Row, Status};
use throng_testkit::eventually;

use crate::support::{Peer, TIMEOUT, accepted, upgrade};

/// A backend that sends every text back, for as long as the process lives.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut peer = Peer::new(stream.unwrap());
            thread::spawn(move || {
                peer.head();
                peer.send(&accepted());
                while !peer.is_at_end() {
                    match peer.frame() {
                        (1, text) => peer.send_text_unmasked(&String::from_utf8(text).unwrap()),
                        // The balancer may have gone already: it reacts to its client, not to this
                        // backend.
                        _ => return drop(peer.stream.write_all(&[0x88, 2, 3, 0xe8])),
                    }
                }
            });
        }
    });
    address
}

fn config(backends: &[SocketAddr], more: &str) -> Config {
    let list: Vec<_> = backends.iter().map(|address| format!("\"{address}\"")).collect();
    let text =
        format!("listen = \"127.0.0.1:0\"\nshards = 2\nbackends = [{}]\n{more}", list.join(", "));
    Config::parse(&text, "test.toml").unwrap()
}

fn open(balancer: &Balancer) -> Peer {
    let mut peer = Peer::new(TcpStream::connect(balancer.addresses()[0]).unwrap());
    peer.send(&upgrade("/"));
    let head = peer.head();
    assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
    peer
}

/// Waits for the balancer's Close frame, answers it, and checks that the stream ends.
fn expect_restart(mut peer: Peer) {
    assert_eq!(peer.close_code(), 1012);
    peer.send_close(1012);
    assert!(peer.is_at_end());
}

fn until(balancer: &Balancer, what: &str, holds: impl Fn(&Status) -> bool) {
    eventually(what, || holds(&balancer.status()));
}

fn row(status: &Status, address: SocketAddr) -> &Row {
    status.backends.iter().find(|row| row.address == address).expect("it is in the list")
}

fn end(balancer: &Balancer) {
    balancer.shut_down(Duration::ZERO, Duration::ZERO).unwrap();
}

#[test]
fn a_hundred_changes_touch_no_tunnel_and_no_message() {
    let backends = [echo(), echo(), echo()];
    let balancer = Balancer::start(config(&backends[..2], "")).unwrap();
    let mut clients: Vec<Peer> = (0..24).map(|_| open(&balancer)).collect();
    let picks = ["power_of_two", "least_connections", "round_robin", "rendezvous", "random"];
    for change in 0..100usize {
        // These requests are in flight while the configuration changes.
        for (number, client) in clients.iter_mut().enumerate() {
            client.send_text(&format!("{change} of {number}"));
        }
        match change % 4 {
            // Add the third backend with other settings; remove it again; change weights; run an
            // operation.
            0 => {
                drop(balancer.apply(config(&backends, "retries = 1\nslow_start = \"1s\"")).unwrap())
            }
            1 => {
                let more = format!(
                    "pick = \"{}\"\n[timeouts]\ntunnel = \"{}s\"",
                    picks[change % 5],
                    60 + change
                );
                let changes = balancer.apply(config(&backends[..2], &more)).unwrap();
                let removed: Vec<_> = changes.removed.iter().map(|it| it.address).collect();
                assert_eq!((removed, changes.settings), (vec![backends[2].into()], true));
            }
            2 => drop(balancer.set_weight(backends[0], 1 + change as u32).unwrap()),
            _ => {
                balancer.add(backends[2], 1, false).unwrap();
                balancer.remove(backends[2], None).unwrap();
            }
        }
        let mut bad = config(&backends[..1], "");
        bad.backends[0].weight = 0;
        assert!(balancer.apply(bad).is_err());
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(client.text(), format!("{change} of {number}"));
        }
    }
    let status = balancer.status();
    let sum: u32 = status.backends.iter().map(|row| row.tunnels).sum();
    assert_eq!((sum, status.backends.len()), (24, 2), "{status:?}");
    assert!(status.backends.iter().all(|row| (row.totals.lost, row.totals.closed) == (0, 0)));
    for mut client in clients {
        client.send_close(1000);
        assert_eq!(client.close_code(), 1000);
    }
    until(&balancer, "counts return to zero", |status| {
        status.backends.iter().all(|row| row.tunnels + row.requests + row.handshakes == 0)
    });
    end(&balancer);
}

#[test]
fn tunnels_outlive_the_address_of_their_backends_name() {
    let backends = [echo(), echo()];
    let found = Arc::new(Mutex::new(vec![backends[0]]));
    let resolver = Arc::clone(&found);
    let text = "listen = \"127.0.0.1:0\"\nshards = 2\nbackends = \"app.internal:80\"\n\
                lookup_interval = \"1s\"";
    let config = Config::parse(text, "test.toml").unwrap();
    let resolver = Arc::new(move |_: &str| Ok(resolver.lock().unwrap().clone()));
    let balancer = Balancer::start_with_resolver(config, resolver).unwrap();
    let mut old = open(&balancer);
    *found.lock().unwrap() = vec![backends[1]];
    until(&balancer, "it is removed", |status| status.backends[0].state == "removed");
    let mut new = open(&balancer);
    let status = balancer.status();
    assert_eq!([0, 1].map(|at| row(&status, backends[at]).tunnels), [1, 1]);
    for peer in [&mut old, &mut new] {
        peer.send_text("still here");
        assert_eq!(peer.text(), "still here");
    }
    old.send_close(1000);
    assert_eq!(old.close_code(), 1000);
    drop(old);
    until(&balancer, "it leaves", |status| status.backends.len() == 1);
    end(&balancer);
}

#[test]
fn a_drained_backends_clients_are_closed_and_it_goes_when_the_last_has_gone() {
    let backends = [echo(), echo()];
    let balancer = Balancer::start(config(&backends[..1], "")).unwrap();
    let moved: Vec<Peer> = (0..10).map(|_| open(&balancer)).collect();
    balancer.add(backends[1], 1, false).unwrap();
    let draining = balancer.drain(backends[0], Some(Duration::from_millis(100))).unwrap();
    assert_eq!((draining.tunnels, draining.rate, draining.last), (10, 100, false));
    let mut stayed = open(&balancer);
    moved.into_iter().for_each(expect_restart);
    until(&balancer, "all are gone", |status| row(status, backends[0]).tunnels == 0);
    let status = balancer.status();
    let drained = row(&status, backends[0]);
    assert_eq!((drained.state, drained.drain.unwrap().closed), ("draining", 10));
    assert_eq!(row(&status, backends[1]).tunnels, 1);
    // The backend gets new clients again, and is then removed while one of them is connected.
    balancer.undrain(backends[0]).unwrap();
    balancer.drain(backends[1], None).unwrap();
    expect_restart(stayed);
    stayed = open(&balancer);
    stayed.send_text("here");
    assert_eq!(stayed.text(), "here");
    balancer.undrain(backends[1]).unwrap();
    // Its tunnels outlive its removal until a rate is given.
    let removal = balancer.remove(backends[0], None).unwrap();
    assert_eq!((removal.tunnels, removal.rate), (1, None));
    stayed.send_text("still here");
    assert_eq!(stayed.text(), "still here");
    assert_eq!(balancer.remove(backends[0], Some(true)).unwrap().rate, Some(200));
    expect_restart(stayed);
    until(&balancer, "it is out of the list", |status| status.backends.len() == 1);
    end(&balancer);
}

#[test]
fn the_cap_of_connections_changes_while_they_live() {
    let backends = [echo()];
    let capped = |most: usize| {
        let mut config = config(&backends, &format!("max_connections = {most}"));
        config.shards = 1;
        config
    };
    let balancer = Balancer::start(capped(1)).unwrap();
    let is_refused = || {
        let mut peer = Peer::new(TcpStream::connect(balancer.addresses()[0]).unwrap());
        peer.send(&upgrade("/"));
        assert!(peer.head().starts_with("HTTP/1.1 503 "));
    };
    // A shard may accept one more connection before it reads the change.
    let open_soon = || {
        let begun = Instant::now();
        loop {
            assert!(begun.elapsed() < TIMEOUT, "waited too long: {:?}", balancer.status());
            let mut peer = Peer::new(TcpStream::connect(balancer.addresses()[0]).unwrap());
            peer.send(&upgrade("/"));
            if peer.head().starts_with("HTTP/1.1 101 ") {
                return peer;
            }
        }
    };
    let mut clients = vec![open(&balancer)];
    is_refused();
    let changes = balancer.apply(capped(2)).unwrap();
    assert!(changes.settings && changes.needs_restart.is_empty(), "{changes:?}");
    clients.push(open_soon());
    is_refused();
    // Existing connections stay, and 0 means no limit.
    balancer.apply(capped(1)).unwrap();
    is_refused();
    balancer.apply(capped(0)).unwrap();
    clients.push(open_soon());
    for client in &mut clients {
        client.send_text("here");
        assert_eq!(client.text(), "here");
    }
    end(&balancer);
}

#[test]
fn the_cap_of_connections_is_that_of_all_shards_together() {
    let mut config = config(&[echo()], "max_connections = 9");
    config.shards = 4;
    let balancer = Balancer::start(config).unwrap();
    let clients: Vec<Peer> = (0..9).map(|_| open(&balancer)).collect();
    let mut beyond = Peer::new(TcpStream::connect(balancer.addresses()[0]).unwrap());
    beyond.send(&upgrade("/"));
    assert!(beyond.head().starts_with("HTTP/1.1 503 "));
    drop(beyond);
    // Metrics may be a second old, and before these connections they were 0: first wait for 9, then
    // for 0.
    until(&balancer, "all are seen", |status| status.metrics.connections == 9);
    drop(clients);
    until(&balancer, "all are gone", |status| status.metrics.connections == 0);
    let clients: Vec<Peer> = (0..9).map(|_| open(&balancer)).collect();
    drop(clients);
    end(&balancer);
}

#[test]
fn a_rebalance_makes_new_backends_equal() {
    rebalance(1);
    rebalance(2);
}

fn rebalance(shards: usize) {
    let backends = [echo(), echo(), echo(), echo()];
    let least = "pick = \"least_connections\"";
    let config = |backends: &[SocketAddr]| {
        let mut config = config(backends, least);
        config.shards = shards;
        config
    };
    let balancer = Balancer::start(config(&backends[..2])).unwrap();
    let mut clients: Vec<Peer> = (0..40).map(|_| open(&balancer)).collect();
    balancer.apply(config(&backends)).unwrap();
    let plan = balancer.rebalance(true, Some(100)).unwrap();
    assert_eq!((plan.total, plan.moves.len()), (20, 2));
    clients[0].send_text("a dry run closes nothing");
    assert_eq!(clients[0].text(), "a dry run closes nothing");
    let done = balancer.rebalance(false, Some(100)).unwrap();
    assert_eq!(done.moves, plan.moves);
    until(&balancer, "the surplus is closed", |status| status.metrics.closed == 20);
    let mut gone = 0;
    let mut stay = Vec::new();
    for mut client in clients {
        client.send_text("?");
        match client.frame() {
            (8, _) => {
                client.send_close(1012);
                assert!(client.is_at_end());
                gone += 1;
            }
            (_, text) => {
                assert_eq!(text, b"?");
                stay.push(client);
            }
        }
    }
    assert_eq!((gone, stay.len()), (20, 20));
    until(&balancer, "they are gone", |status| {
        status.backends.iter().map(|row| row.tunnels).sum::<u32>() == 20
    });
    // The closed clients reconnect.
    stay.extend((0..20).map(|_| open(&balancer)));
    let status = balancer.status();
    assert!(status.backends.iter().all(|row| row.tunnels == 10), "{status:?}");
    assert_eq!(balancer.rebalance(false, None).unwrap().total, 0);
    end(&balancer);
}

/// Heartbeats come over another port than clients do, and others can fill that port. So missing
/// heartbeats are not held against the backend's tunnels.
#[test]
fn the_tunnels_of_a_backend_that_stays_silent_live_on() {
    let backends = [echo(), echo()];
    let register = "[register]\ntoken = \"0123456789abcdef\"\ntime_to_live = \"1ms\"";
    let balancer = Balancer::start(config(&backends[..1], register)).unwrap();
    balancer.drain(backends[0], None).unwrap();
    let long = Some(Duration::from_secs(3600));
    balancer.register(backends[1], 1, long).unwrap();
    let mut client = open(&balancer);
    balancer.undrain(backends[0]).unwrap();
    // The time to live is so short that the registration expires at once.
    balancer.register(backends[1], 1, None).unwrap();
    until(&balancer, "it gets no new clients", |status| row(status, backends[1]).state == "down");
    assert!(row(&balancer.status(), backends[1]).keeps_tunnels);
    client.send_text("still here");
    assert_eq!(client.text(), "still here");
    // If no other backend is up, clients get this one.
    balancer.drain(backends[0], None).unwrap();
    let mut other = open(&balancer);
    other.send_text("here, too");
    assert_eq!(other.text(), "here, too");
    balancer.undrain(backends[0]).unwrap();
    // Its heartbeats continue.
    balancer.register(backends[1], 1, long).unwrap();
    assert_eq!(row(&balancer.status(), backends[1]).state, "up");
    assert_eq!(balancer.status().metrics.closed, 0);
    end(&balancer);
}
