//! A chat with rooms, as crates/server/examples/chat.rs: chat PORT

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::response::Response;
use axum::routing::any;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{self, Sender};

type Rooms = Arc<Mutex<HashMap<String, Sender<Utf8Bytes>>>>;

async fn upgrade(
    State(rooms): State<Rooms>,
    Path(room): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let name = query.get("name").cloned().unwrap_or_else(|| "anonymous".to_owned());
    let upgrade = upgrade.max_message_size(16 << 10);
    upgrade.on_upgrade(move |socket| chat(socket, rooms, room, name))
}

async fn chat(socket: WebSocket, rooms: Rooms, room: String, name: String) {
    let (sender, mut lines) = {
        let mut rooms = rooms.lock().unwrap();
        let sender = rooms.entry(room.clone()).or_insert_with(|| broadcast::channel(1024).0);
        (sender.clone(), sender.subscribe())
    };
    let (mut sink, mut stream) = socket.split();
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(Ok(Message::Text(text))) => {
                    let _ = sender.send(format!("{name}: {text}").into());
                }
                Some(Ok(Message::Binary(_))) => {
                    let close = CloseFrame { code: 1003, reason: "text only".into() };
                    let _ = sink.send(Message::Close(Some(close))).await;
                    break;
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => break,
            },
            line = lines.recv() => match line {
                Ok(line) => if sink.send(Message::Text(line)).await.is_err() { break },
                Err(RecvError::Lagged(_)) => {
                    let close = CloseFrame { code: 1008, reason: "slow consumer".into() };
                    let _ = sink.send(Message::Close(Some(close))).await;
                    break;
                }
                Err(RecvError::Closed) => break,
            },
        }
    }
    drop(lines);
    let mut rooms = rooms.lock().unwrap();
    if sender.receiver_count() == 0 {
        rooms.remove(&room);
    }
}

#[tokio::main]
async fn main() {
    let port = std::env::args().nth(1).expect("a port");
    let app = Router::new().route("/chat/{room}", any(upgrade)).with_state(Rooms::default());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await.unwrap();
    axum::serve(listener, app).await.unwrap();
}
