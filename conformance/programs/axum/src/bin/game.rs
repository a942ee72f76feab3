//! Rooms that move on 30 times a second, as crates/server/examples/game.rs: game PORT

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::any;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, oneshot};

const TICK: Duration = Duration::from_nanos(1_000_000_000 / 30);
const KEPT: u64 = 90;

struct Player {
    at: i64,
    step: i64,
    /// Its number, and what ends it.
    device: Option<(u64, oneshot::Sender<()>)>,
    seen: u64,
}

struct Room {
    players: BTreeMap<String, Player>,
    states: broadcast::Sender<Utf8Bytes>,
}

#[derive(Default)]
struct All {
    tick: u64,
    devices: u64,
    rooms: HashMap<String, Room>,
}

type Game = Arc<Mutex<All>>;

fn tick(game: &Game) {
    let mut all = game.lock().unwrap();
    all.tick += 1;
    let tick = all.tick;
    all.rooms.retain(|_, room| {
        room.players.retain(|_, player| {
            player.at += player.step;
            player.seen = if player.device.is_some() { tick } else { player.seen };
            tick - player.seen < KEPT
        });
        let places = room.players.iter().map(|(name, player)| format!(" {name}:{}", player.at));
        let _ = room.states.send(format!("{tick}{}", places.collect::<String>()).into());
        !room.players.is_empty()
    });
}

async fn upgrade(
    State(game): State<Game>,
    Path(room): Path<String>,
    Query(mut query): Query<HashMap<String, String>>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, StatusCode> {
    let name = query.remove("name").ok_or(StatusCode::BAD_REQUEST)?;
    let upgrade = upgrade.max_message_size(64);
    Ok(upgrade.on_upgrade(move |socket| play(socket, game, room, name)))
}

async fn play(socket: WebSocket, game: Game, room: String, name: String) {
    let (end, mut ended) = oneshot::channel();
    let (me, mut states) = {
        let mut all = game.lock().unwrap();
        all.devices += 1;
        let me = all.devices;
        // Who reads slowly misses states.
        let new = || Room { players: BTreeMap::new(), states: broadcast::channel(4).0 };
        let room = all.rooms.entry(room.clone()).or_insert_with(new);
        let new = || Player { at: 0, step: 0, device: None, seen: 0 };
        let player = room.players.entry(name.clone()).or_insert_with(new);
        if let Some((_, old)) = player.device.replace((me, end)) {
            let _ = old.send(());
        }
        (me, room.states.subscribe())
    };
    let change = |change: &dyn Fn(&mut Player)| {
        let mut all = game.lock().unwrap();
        let player = all.rooms.get_mut(&room).and_then(|room| room.players.get_mut(&name));
        let is_mine =
            |player: &&mut Player| player.device.as_ref().is_some_and(|(id, _)| *id == me);
        if let Some(player) = player.filter(is_mine) {
            change(player);
        }
    };
    let (mut sink, mut stream) = socket.split();
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    let step = match text.as_str() {
                        "left" => -1,
                        "right" => 1,
                        _ => 0,
                    };
                    change(&|player| player.step = step);
                }
                Some(Ok(Message::Binary(_))) => change(&|player| player.step = 0),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => break,
            },
            state = states.recv() => match state {
                Ok(state) => if sink.send(Message::Text(state)).await.is_err() { break },
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            },
            _ = &mut ended => {
                let reason = "you play on another device".into();
                let close = CloseFrame { code: 4001, reason };
                let _ = sink.send(Message::Close(Some(close))).await;
                break;
            }
        }
    }
    change(&|player| player.device = None);
}

#[tokio::main]
async fn main() {
    let port = std::env::args().nth(1).expect("a port");
    let game = Game::default();
    let app = Router::new().route("/rooms/{room}", any(upgrade)).with_state(Arc::clone(&game));
    tokio::spawn(async move {
        let mut clock = tokio::time::interval(TICK);
        loop {
            clock.tick().await;
            tick(&game);
        }
    });
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
