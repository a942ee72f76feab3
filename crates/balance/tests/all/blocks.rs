//! Networks of clients that operators block while the balancer runs.

use std::time::Duration;

use crate::pools::assert_open;
use crate::sites::Running;
use crate::support::{Peer, Scripted, upgrade};

const HOUR: Duration = Duration::from_secs(3600);

/// The status of a request that comes from this client, past a proxy.
fn status(running: &Running, backend: &Scripted, client: &str) -> String {
    let mut peer = running.connect();
    peer.send(format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {client}\r\n\r\n").as_bytes());
    if !running.0.blocks().iter().any(|block| block.network.starts_with("203.0.113."))
        || !client.starts_with("203.")
    {
        let mut server = backend.accept();
        server.head();
        server.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    peer.answer().0[9..12].to_owned()
}

fn start(backend: &Scripted) -> Running {
    Running::start(&format!(
        "trusted_proxies = [\"127.0.0.1\"]\nkeep_alive = 0\nbackends = [\"{}\"]\n",
        backend.address
    ))
}

#[test]
fn a_blocked_client_gets_403_and_its_tunnel_stays() {
    let backend = Scripted::bind();
    let running = start(&backend);
    let mut client: Peer = running.connect();
    let handshake = String::from_utf8(upgrade("/")).unwrap();
    let forwarded = "\r\nX-Forwarded-For: 203.0.113.5\r\n\r\n";
    client.send(handshake.replace("\r\n\r\n", forwarded).as_bytes());
    let server = backend.open();
    assert!(client.head().starts_with("HTTP/1.1 101 "));
    let mut tunnel = [client, server];
    assert_eq!(status(&running, &backend, "203.0.113.9"), "200");
    let block = running.0.block("203.0.113.0/24", HOUR, "ops").unwrap();
    assert_eq!((block.network.as_str(), block.by.as_str()), ("203.0.113.0/24", "ops"));
    assert_eq!(status(&running, &backend, "203.0.113.9"), "403");
    running.until_logged("403 / - - - an operator has blocked the client's network");
    assert_eq!(status(&running, &backend, "198.51.100.1"), "200");
    assert_open(&mut tunnel);
    assert!(running.0.unblock("203.0.113.0/24").unwrap());
    assert!(!running.0.unblock("203.0.113.0/24").unwrap());
    assert_eq!(status(&running, &backend, "203.0.113.9"), "200");
}
