//! Memory of presence returns to the system when its clients have gone. In a separate file, because
//! it measures the process.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

mod support;

use support::served::{self, start, stop};
use support::{Client, eventually};
use throng::prelude::*;

const MIB: usize = 1 << 20;
const CLIENTS: usize = 150;
const CHANNELS: usize = 500;

fn resident() -> usize {
    usize::try_from(throng::metrics::process::resident_bytes()).unwrap()
}

/// A client that stays joins a channel now and then, so that its memory lies between other clients'
/// memory.
#[test]
fn memory_of_presence_is_given_back_when_its_clients_have_gone() {
    let chat = Ws::new().on_message(|ws, (), message| {
        let Message::Text(text) = message else { return };
        let (name, count) = text.split_once(' ').unwrap();
        let info = "i".repeat(200);
        for number in 0..count.parse().unwrap() {
            let joined = ws.subscribe_as(&format!("chat.{name}.{number}"), &info, None).joined;
            assert!(joined);
        }
        ws.send("joined");
    });
    let limits = Limits::default().max_presence_memory(256 * MIB).max_memory(2048 * MIB);
    let server = Server::new(served::app().ws("/ws", chat)).limits(limits).shards(1);
    let (address, running) =
        start(server.channels(Channels::new().presence("chat.>", Presence::new())));
    let ask = |client: &mut Client, text: String| {
        client.send_text(&text);
        client.next();
    };
    let mut keeper = Client::connect(address, "/ws");
    ask(&mut keeper, "first 1".to_owned());
    let before = resident();
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let mut client = Client::connect(address, "/ws");
        for part in 0..10 {
            ask(&mut client, format!("{number}-{part} {}", CHANNELS / 10));
            ask(&mut keeper, format!("kept-{number}-{part} 1"));
        }
        clients.push(client);
    }
    let most = before + before / 5 + 32 * MIB;
    assert!(resident() > most + 8 * MIB, "{} bytes are no storm", resident());
    drop(clients);
    eventually("all but one have gone", || running.stats().sessions == 1);
    eventually("their memory is given back", || resident() <= most);
    stop(running);
}
