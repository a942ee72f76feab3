//! Memory of the real binary: the memory of a storm is released after it.

use throng_proto::ws::Opcode;
use throng_testkit::eventually;

use crate::support::{Client, Got, Served, exchange};

const MIB: usize = 1 << 20;

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
fn memory_of_slow_readers_is_freed_when_they_are_gone() {
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

/// Messages of 60 bytes to 900 members that do not read: each may have a mebibyte in its queue.
#[test]
fn a_process_of_one_gibibyte_outlives_members_that_do_not_read() {
    let served = Served::start_with_memory(1 << 30, &["--listen", "127.0.0.1:0"]);
    let members: Vec<_> =
        (0..900).map(|_| Client::connect(served.addresses[0], "/ws/news")).collect();
    let mut publisher = Client::connect(served.addresses[0], "/ws/news");
    let mut honest = Client::connect(served.addresses[0], "/echo");
    let message = [b'x'; 60];
    let mut ended = 0;
    while ended == 0 {
        for _ in 0..1000 {
            publisher.send(Opcode::Text, &message);
        }
        ended = figure(&served, "memory_ended") + figure(&served, "slow_consumers");
    }
    // The same again, after the limit was reached.
    for _ in 0..20_000 {
        publisher.send(Opcode::Text, &message);
    }
    honest.send(Opcode::Text, b"still here");
    assert_eq!(honest.next(), Got::Text("still here".to_owned()));
    drop(members);
}

fn figure(served: &Served, name: &str) -> u64 {
    let mut stream = served.dial();
    let answer = exchange(
        &mut stream,
        "GET /stats.json HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    );
    if answer.status() != 200 {
        return 0;
    }
    let stats: serde_json::Value = serde_json::from_str(answer.text()).unwrap();
    stats[name].as_u64().unwrap()
}
