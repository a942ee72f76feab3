//! A game: rooms that move on 30 times a second, `ws://127.0.0.1:9001/rooms/1?name=hello`.
//!
//! A player moves with `left`, `right` and `stop`. A lost connection keeps the player's place for
//! three seconds; a second device closes the first.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use throng::prelude::*;

const TICK: Duration = Duration::from_nanos(1_000_000_000 / 30);
/// Ticks for which the place of a player who has gone is kept.
pub(crate) const KEPT: u64 = 90;

struct Login {
    room: String,
    name: String,
}

struct Player {
    at: i64,
    step: i64,
    device: Option<Handle>,
    seen: u64,
}

#[derive(Default)]
struct State {
    tick: u64,
    rooms: HashMap<String, BTreeMap<String, Player>>,
}

/// All rooms. Each call holds the lock for a moment, so joins and ticks cannot meet halfway.
#[derive(Clone, Default)]
pub(crate) struct Game(Arc<Mutex<State>>);

impl Game {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the device that played before.
    fn join(&self, login: &Login, device: Handle) -> Option<Handle> {
        let mut state = self.lock();
        let room = state.rooms.entry(login.room.clone()).or_default();
        let new = || Player { at: 0, step: 0, device: None, seen: 0 };
        room.entry(login.name.clone()).or_insert_with(new).device.replace(device)
    }

    /// Changes a player, if this is the player's device.
    fn change(&self, login: &Login, device: Handle, change: impl FnOnce(&mut Player)) {
        let mut state = self.lock();
        let player = state.rooms.get_mut(&login.room).and_then(|room| room.get_mut(&login.name));
        if let Some(player) = player.filter(|player| player.device == Some(device)) {
            change(player);
        }
    }

    /// Moves all players, forgets those who have been gone for too long, and publishes the rooms.
    pub(crate) fn tick(&self, hub: &Hub) {
        let mut state = self.lock();
        state.tick += 1;
        let tick = state.tick;
        state.rooms.retain(|name, room| {
            room.retain(|_, player| {
                player.at += player.step;
                player.seen = if player.device.is_some() { tick } else { player.seen };
                tick - player.seen < KEPT
            });
            let places = room.iter().map(|(name, player)| format!(" {name}:{}", player.at));
            // A shard that is too far behind for this state gets the next one.
            let _ = hub.publish(name, format!("{tick}{}", places.collect::<String>()));
            !room.is_empty()
        });
    }
}

pub(crate) fn server(game: &Game) -> Server {
    let (joins, moves, leaves) = (game.clone(), game.clone(), game.clone());
    let player = Ws::on_upgrade(|request| {
        let name = request.query("name").ok_or(Reject::bad_request("add ?name="))?.to_owned();
        let room = format!("room.{}", request.param("room").unwrap_or_default());
        Ok(Login { room, name })
    })
    .on_open(move |ws| {
        let device = ws.handle();
        let (login, mut session) = ws.split();
        session.subscribe(&login.room);
        if let Some(old) = joins.join(login, device) {
            let _ = session.hub().close(old, 4001, "you play on another device");
        }
    })
    .on_message(move |ws, message| {
        let step = match message {
            Message::Text("left") => -1,
            Message::Text("right") => 1,
            _ => 0,
        };
        moves.change(ws.data(), ws.handle(), |player| player.step = step);
    })
    .on_close(move |ws, _| {
        leaves.change(ws.data(), ws.handle(), |player| player.device = None);
    });
    // Who reads slowly gets the newest state of the room.
    let player = WsRoute::new(player).backpressure(SlowPolicy::Latest).max_message_size(64);
    Server::new(App::new().ws("/rooms/{room}", player))
}

/// Ticks for ever.
#[allow(dead_code, reason = "a test ticks by itself")]
pub(crate) fn run(game: &Game, hub: &Hub) {
    let mut next = Instant::now();
    loop {
        game.tick(hub);
        next += TICK;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

#[allow(dead_code, reason = "tests use the server alone")]
fn main() -> throng::Result<()> {
    let game = Game::default();
    let bound = server(&game).bind("127.0.0.1:9001")?;
    let hub = bound.hub();
    thread::spawn(move || run(&game, &hub));
    bound.run()
}
