//! A client of the Centrifuge protocol that speaks JSON.

use std::net::SocketAddr;

use serde_json::{Value, json};
use throng_testkit::{Client, Got};

/// The path of the protocol.
pub(crate) const PATH: &str = "/connection/websocket";

/// A client that speaks JSON.
pub(crate) struct Speaker {
    pub(crate) ws: Client,
    /// The rest of a frame with several messages.
    waiting: Vec<String>,
    /// Its identifier.
    pub(crate) id: String,
}

impl Speaker {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::of(Client::connect(address, PATH))
    }

    pub(crate) fn of(ws: Client) -> Self {
        Self { ws, waiting: Vec::new(), id: String::new() }
    }

    /// Connects with this request.
    pub(crate) fn connect(address: SocketAddr, request: &Value) -> Self {
        let mut speaker = Self::open(address);
        let reply = speaker.ask(&json!({ "id": 1, "connect": request }));
        speaker.id =
            reply["connect"]["client"].as_str().unwrap_or_else(|| panic!("{reply}")).into();
        speaker
    }

    pub(crate) fn send(&mut self, command: &Value) {
        self.ws.send_text(&command.to_string());
    }

    pub(crate) fn next(&mut self) -> Value {
        if self.waiting.is_empty() {
            match self.ws.next() {
                Got::Text(text) => {
                    self.waiting = text.lines().rev().map(str::to_owned).collect();
                }
                other => panic!("no text: {other:?}"),
            }
        }
        serde_json::from_str(&self.waiting.pop().unwrap()).unwrap()
    }

    pub(crate) fn ask(&mut self, command: &Value) -> Value {
        self.send(command);
        self.next()
    }

    pub(crate) fn subscribe(&mut self, channel: &str) -> Value {
        let reply = self.ask(&json!({ "id": 2, "subscribe": { "channel": channel } }));
        assert!(reply["subscribe"].is_object(), "{reply}");
        reply["subscribe"].clone()
    }

    /// Sends a command, and returns the code of the error that it gets.
    pub(crate) fn fails(&mut self, command: &Value) -> u64 {
        let reply = self.ask(command);
        reply["error"]["code"].as_u64().unwrap_or_else(|| panic!("{reply}"))
    }
}

/// The request of a client without a token.
pub(crate) fn anyone() -> Value {
    json!({})
}
