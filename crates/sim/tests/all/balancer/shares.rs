//! Shares of requests and tunnels, by weight.

use throng_balance::{Pick, Settings};
use throng_sim::balance::{PeerId, Script};

use super::{accepted, upgrade};

const PICKS: [Pick; 4] = [Pick::PowerOfTwo, Pick::LeastConnections, Pick::RoundRobin, Pick::Random];

fn script(pick: Pick) -> Script {
    let script = Script::new(2, Settings { pick, ..Settings::default() });
    script.backend(0).set_weight(19);
    script
}

/// Returns the backend that received a request of `client`, and its connection, which is one of
/// `servers` or a new one.
fn arrival(
    script: &mut Script,
    servers: &mut [Vec<PeerId>; 2],
    client: PeerId,
    request: &[u8],
) -> (usize, PeerId) {
    script.send(client, request);
    for (backend, servers) in servers.iter_mut().enumerate() {
        if let Some(server) = script.try_accept(backend) {
            servers.push(server);
        }
        for &server in servers.iter() {
            if !script.receive(server).is_empty() {
                return (backend, server);
            }
        }
    }
    panic!("the request has come to no backend");
}

/// One request after the other, beside idle tunnels.
#[test]
fn a_canary_gets_its_part_of_requests_one_after_the_other() {
    for pick in PICKS {
        let mut script = script(pick);
        let (mut counts, mut servers) = ([0; 2], [Vec::new(), Vec::new()]);
        (0..40).for_each(|_| script.backend(1).open_tunnel());
        let client = script.connect();
        let get = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        for _ in 0..800 {
            let (backend, server) = arrival(&mut script, &mut servers, client, get);
            counts[backend] += 1;
            script.send(server, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            assert!(script.receive_text(client).starts_with("HTTP/1.1 200 "));
        }
        let most = if pick == Pick::Random { 25 } else { 2 };
        assert!((40 - most..=40 + most).contains(&counts[1]), "{pick:?}: {counts:?}");
    }
}

/// Tunnels that stay open, with a request between each two.
#[test]
fn a_canary_gets_its_part_of_tunnels() {
    for pick in PICKS {
        let mut script = script(pick);
        let mut servers = [Vec::new(), Vec::new()];
        for _ in 0..200 {
            let client = script.connect();
            let mut own = [Vec::new(), Vec::new()];
            let (backend, server) = arrival(&mut script, &mut own, client, &upgrade());
            script.send(server, accepted().as_bytes());
            assert!(script.receive_text(client).starts_with("HTTP/1.1 101 "));
            servers[backend].push(client);
        }
        let counts = servers.map(|of| of.len());
        let most = if pick == Pick::Random { 9 } else { 2 };
        assert!((10 - most..=10 + most).contains(&counts[1]), "{pick:?}: {counts:?}");
    }
}
