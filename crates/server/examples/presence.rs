//! A chat whose members see each other: each gets a list when it joins, and then joins and leaves.
//!
//! `cargo run -p throng --example presence`, then connect with any WebSocket client to
//! `ws://127.0.0.1:9001/chat?name=ann`.

use throng::channel::PresenceChange;
use throng::prelude::*;

const CHANNEL: &str = "chat.lobby";

/// Maximum members in the list that a new member gets.
const LISTED: usize = 1000;

pub(crate) fn server() -> Server {
    let chat = Ws::from_request(|request| match request.query("name") {
        Some(name) if (1..=32).contains(&name.len()) => Ok(name.to_owned()),
        _ => Err(Reject::bad_request("a name has 1 to 32 bytes: connect to /chat?name=ann")),
    })
    .on_open(|ws, name| {
        let _ = ws.subscribe_as(CHANNEL, name, None);
        let members = ws.hub().presence(CHANNEL, LISTED).unwrap_or_default();
        let names: Vec<&str> = members.iter().map(|member| &*member.info).collect();
        ws.send(format!("* here: {}", names.join(", ")));
    })
    .on_message(|ws, name, message| {
        let Message::Text(text) = message else {
            return ws.close(CloseCode::UNSUPPORTED_DATA, "text only");
        };
        let line = format!("{name}: {text}");
        ws.publish(CHANNEL, line);
    });
    let presence = Presence::new().join_leave_with(|event| {
        let change = match event.change {
            PresenceChange::Join => "joined",
            PresenceChange::Leave => "left",
        };
        Some(Frame::text(format!("* {} {change}", event.info)))
    });
    Server::new(App::new().ws("/chat", chat)).channels(Channels::new().presence("chat.*", presence))
}

#[allow(dead_code, reason = "a test uses the server alone")]
fn main() -> throng::Result<()> {
    server().bind("127.0.0.1:9001")?.run()
}
