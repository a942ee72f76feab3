//! Which backends get a request while others are down: backups, the fallback of a pool, and how
//! many requests are tried again.

use throng_balance::Config;

use crate::capacity::Running;
use crate::support::{Peer, Scripted, unused_address};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
/// A failed connection takes a backend down for good.
const STRICT: &str = "health.failures = 1\nhealth.down_for = \"1h\"\n";

fn ask(running: &Running, path: &str) -> Peer {
    let mut client = running.connect();
    client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
    client
}

/// Sends a request, which this backend answers.
fn is_served_by(running: &Running, backend: &Scripted, path: &str) {
    let mut client = ask(running, path);
    let mut server = backend.accept();
    assert!(server.head().starts_with(&format!("GET {path} ")));
    server.send(OK);
    assert!(client.head().starts_with("HTTP/1.1 200 "));
}

#[test]
fn backups_and_then_the_fallback_serve_while_all_before_them_are_down() {
    let [one, two, three] = [Scripted::bind(), Scripted::bind(), Scripted::bind()];
    let running = Running::start(&format!(
        "{STRICT}[[pool]]\nname = \"p\"\nfallback = \"f\"\nbackends = [\"{}\", {{ \
         address = \"{}\", backup = true }}]\n[[pool]]\nname = \"f\"\nsticky.cookie = \"lb\"\n\
         backends = [\"{}\"]\n\
         [[site]]\nhosts = [\"*\"]\npool = \"p\"\n",
        one.address, two.address, three.address
    ));
    for _ in 0..5 {
        is_served_by(&running, &one, "/one");
    }
    let backups: Vec<_> = running.balancer.status().backends.iter().map(|it| it.backup).collect();
    assert_eq!(backups, [false, true, false]);
    drop(one);
    // The request that finds it dead is tried again there.
    is_served_by(&running, &two, "/two");
    running.until("it is down", |status| status.backends[0].state == "down");
    is_served_by(&running, &two, "/two");
    drop(two);
    let mut client = ask(&running, "/three");
    let mut server = three.accept();
    server.head();
    server.send(OK);
    let head = client.head();
    // The cookie is the fallback's.
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("Set-Cookie: lb="), "{head}");
    drop(three);
    let mut client = ask(&running, "/none");
    assert!(client.head().starts_with("HTTP/1.1 502 "), "all are tried, and none answers");
    running.until("all are down", |status| status.backends.iter().all(|it| it.state == "down"));
}

#[test]
fn a_full_backend_is_waited_for_although_there_is_a_backup() {
    let [one, two] = [Scripted::bind(), Scripted::bind()];
    let running = Running::start(&format!(
        "backends = [{{ address = \"{}\", max_connections = 1 }}, {{ address = \"{}\", backup = \
         true }}]\n",
        one.address, two.address
    ));
    let first = (running.come("/1"), one.open());
    let mut second = running.come("/2");
    running.until("it waits", |status| status.metrics.queued == 1);
    assert!(two.try_accept().is_none());
    drop(first);
    let _tunnel = one.open();
    assert!(second.head().starts_with("HTTP/1.1 101 "));
}

#[test]
fn a_fallback_is_another_pool_of_the_file() {
    let message = |fallback: &str| {
        let text = format!(
            "[[pool]]\nname = \"a\"\nbackends = [\"127.0.0.1:9001\"]\nfallback = \"{fallback}\"\n\
             [[pool]]\nname = \"b\"\nbackends = [\"127.0.0.1:9002\"]\n\
             [[site]]\nhosts = [\"*\"]\npool = \"a\"\n"
        );
        Config::parse(&text, "b.toml").map_err(|errors| errors.to_string())
    };
    assert!(message("b").is_ok());
    for fallback in ["a", "c", "default"] {
        let message = message(fallback).unwrap_err();
        let expected =
            format!("pools[0].fallback is \"{fallback}\": write the name of another pool: b");
        assert!(message.contains(&expected), "{message}");
    }
}

/// The pool has few requests, and three of them may be tried again at a time.
#[test]
fn no_more_than_a_part_of_the_requests_is_tried_again() {
    let backend = Scripted::bind();
    let running = Running::start(&format!(
        "shards = 1\npick = \"round_robin\"\nhealth.failures = 0\nbackends = [\"{}\", \"{}\"]\n",
        unused_address(),
        backend.address
    ));
    let mut open = Vec::new();
    let refused = (0..16).find_map(|_| {
        let mut client = ask(&running, "/");
        running.until("it is refused, or at the backend", |status| {
            status.metrics.retries_refused == 1
                || u64::from(status.backends[1].requests) == open.len() as u64 + 1
        });
        if running.balancer.status().metrics.retries_refused == 1 {
            return Some(client.head());
        }
        open.push((client, backend.accept()));
        None
    });
    assert!(refused.unwrap().starts_with("HTTP/1.1 502 "));
    assert_eq!(running.balancer.status().metrics.retries, 3);
    for (client, server) in &mut open {
        server.head();
        server.send(OK);
        assert!(client.head().starts_with("HTTP/1.1 200 "));
    }
    // All permits are free again.
    running.until("others are tried again", |status| {
        let mut client = ask(&running, "/");
        let mut server = backend.accept();
        server.head();
        server.send(OK);
        assert!(client.head().starts_with("HTTP/1.1 200 "));
        status.metrics.retries > 3
    });
}
