//! Memory of the real binary: what a storm took is given back when it is over.

mod support;

use std::time::{Duration, Instant};

use support::{Client, Served, TIMEOUT};
use throng_proto::ws::Opcode;

const MIB: usize = 1 << 20;

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !holds() {
        assert!(Instant::now() < until, "still not: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Echoes of 4 MiB to clients that do not read them.
fn storm(served: &Served) -> Vec<Client> {
    let message = vec![7; 4 * MIB];
    let clients = (0..60).map(|_| {
        let mut client = Client::connect(served.addresses[0], "/echo");
        client.send(Opcode::Binary, &message);
        client
    });
    clients.collect()
}

#[test]
fn what_slow_readers_took_is_given_back_when_they_are_gone() {
    let served = Served::start(&["--listen", "127.0.0.1:0"]);
    drop(Client::connect(served.addresses[0], "/echo"));
    let before = served.resident();
    for round in 0..3 {
        let clients = storm(&served);
        eventually("the echoes are in memory", || served.resident() > before + 60 * MIB);
        drop(clients);
        let most = before + before / 5 + 32 * MIB;
        let what = format!("round {round}: less than {} MiB are resident", most / MIB);
        eventually(&what, || served.resident() <= most);
    }
}
