//! A game: rooms that move on 30 times a second, `ws://127.0.0.1:9001/rooms/1?name=hello`.
//!
//! A player moves with `left`, `right` and `stop`. A lost connection keeps the player's place for
//! three seconds; a second device closes the first.
//!
//! All players of a room come to one event loop, which has the room in its state: no lock, and a
//! join cannot meet a tick halfway.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use throng::prelude::*;
use throng::server::Shard;

pub(crate) const TICK: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// Ticks for which the place of a player who has gone is kept.
pub(crate) const KEPT: u32 = 90;

struct Login {
    room: String,
    name: String,
}

struct Player {
    at: i64,
    step: i64,
    device: Option<Handle>,
    seen: u32,
}

/// The rooms of one event loop.
#[derive(Default)]
struct Rooms {
    tick: u32,
    rooms: HashMap<String, BTreeMap<String, Player>>,
}

impl Rooms {
    /// Returns the device that played before.
    fn join(&mut self, login: &Login, device: Handle) -> Option<Handle> {
        let room = self.rooms.entry(login.room.clone()).or_default();
        let new = || Player { at: 0, step: 0, device: None, seen: 0 };
        room.entry(login.name.clone()).or_insert_with(new).device.replace(device)
    }

    /// Changes a player, if this is the player's device.
    fn change(&mut self, login: &Login, device: Handle, change: impl FnOnce(&mut Player)) {
        let player = self.rooms.get_mut(&login.room).and_then(|room| room.get_mut(&login.name));
        if let Some(player) = player.filter(|player| player.device == Some(device)) {
            change(player);
        }
    }

    /// Moves all players, removes those who have been gone for too long, and publishes the rooms.
    fn tick(&mut self, shard: &mut Shard<'_>) {
        self.tick += 1;
        let tick = self.tick;
        self.rooms.retain(|name, room| {
            room.retain(|_, player| {
                player.at += player.step;
                player.seen = if player.device.is_some() { tick } else { player.seen };
                tick - player.seen < KEPT
            });
            let places = room.iter().map(|(name, player)| format!(" {name}:{}", player.at));
            shard.publish(name, format!("{tick}{}", places.collect::<String>()));
            !room.is_empty()
        });
    }
}

pub(crate) fn server() -> Server {
    let player = Ws::from_request(|request| {
        let name = request.query("name").ok_or(Reject::bad_request("add ?name="))?.to_owned();
        let room = format!("room.{}", request.param("room").unwrap_or_default());
        Ok(Login { room, name })
    })
    .place_by(|login| &login.room)
    // A slow receiver gets the newest state of the room.
    .backpressure(SlowPolicy::Latest)
    .max_message_size(64)
    .on_open(|ws, login| {
        let device = ws.handle();
        ws.subscribe(&login.room);
        if let Some(old) = ws.shard_state::<Rooms>().join(login, device) {
            let _ = ws.hub().close(old, CloseCode::new(4001), "you play on another device");
        }
    })
    .on_message(|ws, login, message| {
        let step = match message {
            Message::Text("left") => -1,
            Message::Text("right") => 1,
            _ => 0,
        };
        let device = ws.handle();
        ws.shard_state::<Rooms>().change(login, device, |player| player.step = step);
    })
    .on_close(|ws, login, _| {
        let device = ws.handle();
        ws.shard_state::<Rooms>().change(login, device, |player| player.device = None);
    });
    Server::new(App::new().ws("/rooms/{room}", player)).every_on_shard(TICK, Rooms::tick)
}

#[allow(dead_code, reason = "tests use the server alone")]
fn main() -> throng::Result<()> {
    server().bind("127.0.0.1:9001")?.run()
}
