//! A chat whose clients lose no message when their connection breaks: the server keeps a history,
//! and the client says where it was when it connects again.
//!
//! `cargo run -p throng --example client_resume --features client -- serve`, and in other terminals
//! `... -- join ws://127.0.0.1:9001/chat`. Lines on standard input of the server are published.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng::channel::Position;
use throng::client::{Backoff, Client, ClientError, ReconnectingClient};
use throng::prelude::*;

const CHANNEL: &str = "chat.lobby";

/// The first message of a client is its position, or empty.
pub(crate) fn server() -> Server {
    let chat = Ws::new().on_message(|ws, (), message| {
        let Message::Text(since) = message else {
            return ws.close(CloseCode::UNSUPPORTED_DATA, "text only");
        };
        ws.send_offsets(true);
        let recovery = ws.subscribe_since(CHANNEL, since.parse::<Position>().ok());
        let Some(position) = recovery.position else { return };
        // The answer, then what was missed, then what is published from now on.
        ws.send(format!("{position} {}", recovery.recovered));
        ws.send_missed(&recovery);
    });
    Server::new(App::new().ws("/chat", chat))
        .channels(Channels::new().history("chat.*", History::new(100, Duration::from_secs(300))))
}

/// Messages that a client gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line of the chat.
    Message(String),
    /// Lines were lost between the last one and the next.
    Lost,
}

/// A client that connects again, and continues where it was.
pub(crate) struct Member {
    client: ReconnectingClient,
    /// The position after the last line, for the hook that runs when a connection is made.
    at: Arc<Mutex<Option<Position>>>,
}

impl Member {
    pub(crate) fn new(url: &str) -> Self {
        let at = Arc::new(Mutex::new(None::<Position>));
        let its = Arc::clone(&at);
        let since = move || its.lock().ok().and_then(|at| *at);
        let client = Client::builder(url)
            .reconnecting(Backoff::default().first(Duration::from_millis(100)))
            .on_connect(move |client| {
                client.send(since().map(|at| at.to_string()).unwrap_or_default().as_str())
            });
        Self { client, at }
    }

    /// Returns the next line; `None` if the server has closed the session for good.
    pub(crate) fn next(&mut self) -> Result<Option<Line>, ClientError> {
        loop {
            let Some(message) = self.client.recv()? else { return Ok(None) };
            let Message::Text(text) = message else { continue };
            let Some((first, rest)) = text.split_once(' ') else { continue };
            let Ok(mut at) = self.at.lock() else { return Ok(None) };
            if let Ok(position) = first.parse::<Position>() {
                // The answer to the first message. If the server could not continue, the next line
                // begins a new sequence.
                let is_lost = at.is_some() && rest == "false";
                if at.is_none() || is_lost {
                    *at = Some(position);
                }
                if is_lost {
                    return Ok(Some(Line::Lost));
                }
            } else if let Some(before) = *at
                && let Ok(position) = format!("{:016x}:{first}", before.epoch).parse()
            {
                *at = Some(position);
                return Ok(Some(Line::Message(rest.to_owned())));
            }
        }
    }
}

#[allow(dead_code, reason = "a test uses the parts alone")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    match words.next().as_deref() {
        Some("join") => {
            let url = words.next().unwrap_or_else(|| "ws://127.0.0.1:9001/chat".to_owned());
            let mut member = Member::new(&url);
            while let Some(line) = member.next()? {
                println!("{line:?}");
            }
        }
        _ => {
            let running = server().bind("127.0.0.1:9001")?.start()?;
            for line in std::io::stdin().lines() {
                let _ = running.hub().publish(CHANNEL, line?)?;
            }
        }
    }
    Ok(())
}
