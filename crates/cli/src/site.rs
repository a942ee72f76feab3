//! What `throng serve` and `throng demo` serve: an echo, channels, a page.

use throng::prelude::*;
use throng::{Bound, Status};

use crate::settings::Checked;

const PAGE: &str = include_str!("page.html");

/// A member of `/ws/{channel}`.
struct Member {
    channel: Box<str>,
    /// `?echo=1`: its own messages come back, too.
    echo: bool,
}

/// The longest channel name: long enough for any path a person writes, short enough not to matter in memory.
const MAX_CHANNEL_NAME: usize = 256;

/// Binds the server that `settings` describe.
pub(crate) fn bind(settings: &Checked) -> throng::Result<Bound> {
    let channels = Ws::upgrade(|request| {
        let channel = request.param("channel").unwrap_or_default();
        if channel.is_empty() || channel.len() > MAX_CHANNEL_NAME {
            return Err(Reject::bad_request("a channel name has 1 to 256 bytes"));
        }
        Ok(Member { channel: channel.into(), echo: request.query("echo") == Some("1") })
    })
    .open(|ws| {
        let channel = ws.data().channel.clone();
        ws.subscribe(&channel);
    })
    .message(|ws, message| {
        let (channel, echo) = (ws.data().channel.clone(), ws.data().echo);
        let frame = Frame::from(message);
        ws.publish(&channel, &frame);
        if echo {
            let _ = ws.send(&frame);
        }
    });
    Server::new()
        .limits(settings.limits.clone())
        .origins(settings.origins.clone())
        .shards(settings.shards)
        .io(settings.io)
        .backlog(settings.backlog)
        .share_port(settings.share_port)
        .ws("/echo", Ws::on_message(|ws, message| ws.send(message)))
        .ws("/ws/{channel}", channels)
        .get("/", |_| Response::html(PAGE))
        .get("/favicon.ico", |_| Response::new(Status::NO_CONTENT))
        .health()
        .metrics("/metrics")
        .stats("/stats.json")
        .bind(settings.listen.as_str())
}
