//! A messenger:
//! `ws://127.0.0.1:9001/rooms/lobby?token=hello.cOiuAgsqhCiHer7-LO4afZ_6XDqbEfCMnflZv0XoZII`.
//!
//! Users have signed tokens (with the argument `ada` the program prints the token of `ada`), in a
//! header, a cookie or the query, and any number of devices. A room keeps its last 50 messages and
//! a list of its members; a line goes to the room, `@bob hi` to all devices of bob, and `...` shows
//! the others that the user is typing. A user may send twenty messages in ten seconds; more are
//! refused, and the session stays open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use aws_lc_rs::hmac::{self, HMAC_SHA256, Key};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use throng::channel::{PresenceChange, Since, is_token};
use throng::prelude::*;

const SECRET: &[u8] = b"a real program reads it from a file";
const SHARE: (u32, Duration) = (20, Duration::from_secs(10));

/// Returns a user's token: the name and its signature.
pub(crate) fn token(name: &str) -> String {
    let tag = hmac::sign(&Key::new(HMAC_SHA256, SECRET), name.as_bytes());
    format!("{name}.{}", BASE64.encode(tag))
}

/// Returns the user of a token. A name is a channel's, so it has no dot.
fn user_of(token: &str) -> Option<&str> {
    let (name, tag) = token.split_once('.')?;
    let tag = BASE64.decode(tag).ok()?;
    hmac::verify(&Key::new(HMAC_SHA256, SECRET), name.as_bytes(), &tag).ok()?;
    is_token(name).then_some(name)
}

/// Lines that each user has sent in the present ten seconds, on all devices.
#[derive(Clone, Default)]
struct Shares(Arc<Mutex<HashMap<String, (Instant, u32)>>>);

impl Shares {
    fn take(&self, name: &str) -> bool {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Forget users who have been silent.
        users.retain(|_, (since, _)| now.duration_since(*since) < SHARE.1);
        let (_, sent) = users.entry(name.to_owned()).or_insert((now, 0));
        *sent += 1;
        *sent <= SHARE.0
    }
}

struct User {
    name: String,
    room: String,
}

fn on_message(ws: &mut Socket<'_, User>, user: &User, message: Message<'_>, shares: &Shares) {
    let Message::Text(text) = message else {
        return ws.close(CloseCode::UNSUPPORTED_DATA, "text only");
    };
    let name = &user.name;
    if text == "..." {
        ws.publish_to_others(&user.room, format!("* {name} is typing"));
    } else if !shares.take(name) {
        ws.send("* slow down");
    } else if let Some((to, text)) = text.strip_prefix('@').and_then(|rest| rest.split_once(' ')) {
        // The name is literal: `*` addresses no user.
        ws.publish(&format!("user.{to}"), format!("{name} to {to}: {text}"));
    } else {
        ws.publish(&user.room, format!("{name}: {text}"));
    }
}

pub(crate) fn server() -> Server {
    let shares = Shares::default();
    let chat = Ws::from_request(|request| {
        let token = request.bearer().or_else(|| request.cookie("token"));
        let token = token.or_else(|| request.query("token")).ok_or(Reject::unauthorized())?;
        let name = user_of(token).ok_or(Reject::unauthorized())?.to_owned();
        let room = request.param("room").filter(|room| is_token(room));
        let room = room.ok_or(Reject::bad_request("a room has no . * or >"))?;
        Ok(User { name, room: format!("room.{room}") })
    })
    .max_message_size(4 << 10)
    .on_open(|ws, user| {
        let hub = ws.hub();
        ws.subscribe(&format!("user.{}", user.name));
        let recovery = ws.subscribe_as(&user.room, &user.name, Since::Last(50));
        ws.send_missed(&recovery);
        let here = hub.presence(&user.room, 1_000).unwrap_or_default();
        let mut names: Vec<&str> = here.iter().map(|member| &*member.info).collect();
        names.sort_unstable();
        names.dedup();
        ws.send(format!("* here: {}", names.join(", ")));
    })
    .on_message(move |ws, user, message| on_message(ws, user, message, &shares));
    let presence = Presence::new().join_leave_with(|event| {
        let change = match event.change {
            PresenceChange::Join => "joined",
            PresenceChange::Leave => "left",
        };
        Some(Frame::text(format!("* {} {change}", event.info)))
    });
    Server::new(App::new().ws("/rooms/{room}", chat)).channels(
        Channels::new()
            .presence("room.*", presence)
            .history("room.*", History::new(100, Duration::from_secs(3600))),
    )
}

#[allow(dead_code, reason = "a test uses the server alone")]
fn main() -> throng::Result<()> {
    if let Some(name) = std::env::args().nth(1) {
        println!("{}", token(&name));
        return Ok(());
    }
    server().bind("127.0.0.1:9001")?.run_until_signal(DrainPlan::default())?;
    Ok(())
}
