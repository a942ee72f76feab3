//! A chat whose members see each other: each gets a list when it joins, and then joins and leaves.
//!
//! `cargo run -p throng --example presence`, then connect with any WebSocket client to
//! `ws://127.0.0.1:9001/chat?name=ann`.

use throng::prelude::*;
use throng::{Presence, PresenceChange};

const CHANNEL: &str = "chat.lobby";

/// Members that a newcomer gets a list of.
const LISTED: usize = 1000;

pub(crate) fn server() -> Server {
    let chat = Ws::on_upgrade(|request| match request.query("name") {
        Some(name) if (1..=32).contains(&name.len()) => Ok(name.to_owned()),
        _ => Err(Reject::bad_request("a name has 1 to 32 bytes: connect to /chat?name=ann")),
    })
    .on_open(|ws| {
        let (name, mut session) = ws.split();
        let _ = session.subscribe_as(CHANNEL, name, None);
        let members = session.hub().presence(CHANNEL, LISTED).unwrap_or_default();
        let names: Vec<&str> = members.iter().map(|member| &*member.info).collect();
        let _ = session.send(format!("* here: {}", names.join(", ")));
    })
    .on_message(|ws, message| {
        let Message::Text(text) = message else { return ws.close(1003, "text only") };
        let line = format!("{}: {text}", ws.data());
        drop(ws.publish(CHANNEL, line));
    });
    let presence = Presence::new().join_leave_with(|event| {
        let change = match event.change {
            PresenceChange::Join => "joined",
            PresenceChange::Leave => "left",
        };
        Some(Frame::text(format!("* {} {change}", event.info)))
    });
    Server::new(App::new().ws("/chat", chat)).channel_presence("chat.*", presence)
}

#[allow(dead_code, reason = "a test uses the server alone")]
fn main() -> throng::Result<()> {
    server().bind("127.0.0.1:9001")?.run()
}
