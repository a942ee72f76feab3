//! What `throng serve` and `throng demo` serve: an echo, channels to talk on and to listen to, a page.

use throng::prelude::*;
use throng::{Bound, Status};

use crate::settings::{Checked, Rule};

const PAGE: &str = include_str!("page.html");

/// A member of `/ws/{channel}`. Sixteen bytes: the channel's name is kept with the subscription alone.
enum Member {
    /// Between the upgrade and the session.
    Joining(Box<(String, bool)>),
    /// Its messages go to the others.
    Talks,
    /// With `?echo=1` they come back, too.
    Echoes,
    /// Subscribed to a pattern: there is no one channel to publish to.
    ListensOnly,
}

/// The longest channel name: long enough for any path a person writes, short enough not to matter in memory.
const MAX_CHANNEL_NAME: usize = 256;

/// Binds the server that `settings` describe.
pub(crate) fn bind(settings: &Checked) -> throng::Result<Bound> {
    match files(settings) {
        Some(files) => listen(server(settings, Some(&files)).dir("/", files), settings),
        None => listen(server(settings, None), settings),
    }
}

/// Says what [`bind`] would refuse, without listening.
pub(crate) fn check(settings: &Checked) -> throng::Result<()> {
    match files(settings) {
        Some(files) => server(settings, Some(&files)).dir("/", files).check(),
        None => server(settings, None).check(),
    }
}

/// The directory to serve, once: what is given to several routes shares its bound on open files.
fn files(settings: &Checked) -> Option<Files> {
    settings.dir.as_ref().map(Files::new)
}

/// A server without routes, as `settings` want it.
#[must_use]
pub fn configured(settings: &Checked) -> Server {
    let server = Server::new()
        .limits(settings.limits.clone())
        .backpressure(settings.backpressure)
        .wildcards(settings.wildcards)
        .compression(settings.deflate)
        .origins(settings.origins.clone())
        .shards(settings.shards)
        .io(settings.io)
        .thread_stack(settings.thread_stack)
        .pin(settings.pin)
        .stall_warning(settings.stall_warning)
        .backlog(settings.backlog)
        .share_port(settings.share_port);
    let rules = settings.channels.iter();
    rules.fold(server, |server, Rule { pattern, rules }| server.channels(pattern, *rules))
}

/// Binds `server` to all addresses of `settings`.
pub fn listen(server: Server<impl throng::Routes>, settings: &Checked) -> throng::Result<Bound> {
    let more = settings.listen_also.iter();
    let server = more.fold(server, |server, address| server.listen_also(address.as_str()));
    server.bind(settings.listen.as_str())
}

fn server(settings: &Checked, files: Option<&Files>) -> Server<impl throng::Routes + use<>> {
    let wildcards = settings.wildcards;
    let channels = Ws::upgrade(move |request| {
        let echo = request.query("echo") == Some("1");
        Ok(Member::Joining(Box::new((channel(request)?.to_owned(), echo))))
    })
    .open(move |ws| {
        let Member::Joining(joining) = std::mem::replace(ws.data_mut(), Member::Talks) else { return };
        let (channel, echo) = *joining;
        if wildcards && is_pattern(&channel) {
            *ws.data_mut() = Member::ListensOnly;
        } else if echo {
            *ws.data_mut() = Member::Echoes;
        }
        if !ws.subscribe(&channel) {
            // Here and not as a status, which a page would not get to see.
            ws.close(1008, "no pattern: a token between dots is empty, > is not at the end, or more than 16 tokens");
        }
    })
    .message(|ws, message| {
        if matches!(ws.data(), Member::ListensOnly) {
            return ws.close(1008, "a pattern cannot be published to; send to a channel without * and >");
        }
        let Some(channel) = ws.subscriptions().next().map(str::to_owned) else { return };
        let frame = Frame::from(message);
        ws.publish(&channel, &frame);
        if matches!(ws.data(), Member::Echoes) {
            let _ = ws.send(&frame);
        }
    });
    let upload = Ws::upgrade(|_| Ok(0u64)).max_message_size(settings.max_upload_size).pieces(
        |ws: &mut Socket<'_, u64>, piece| {
            *ws.data_mut() += piece.bytes.len() as u64;
            if piece.last {
                let length = std::mem::take(ws.data_mut());
                let _ = ws.send(length.to_string());
            }
        },
    );
    let files = files.cloned();
    configured(settings)
        // A message looks for its handler from the last to the first: the one with the largest messages looks longest.
        .ws("/upload", upload)
        .ws("/ws/{channel}", channels)
        .ws("/echo", Ws::on_message(|ws, message| ws.send(message)))
        .events("/sse/{channel}", |request| channel(request).map(str::to_owned))
        .get("/", move |request: &Request<'_>| match &files {
            Some(files) => files.respond(request),
            None => Response::html(PAGE),
        })
        .get("/favicon.ico", |_| Response::new(Status::NO_CONTENT))
        .health()
        .metrics("/metrics")
        .stats("/stats.json")
}

fn channel<'r>(request: &'r Request<'_>) -> Result<&'r str, Reject> {
    match request.param("channel") {
        Some(channel) if (1..=MAX_CHANNEL_NAME).contains(&channel.len()) => Ok(channel),
        _ => Err(Reject::bad_request("a channel name has 1 to 256 bytes")),
    }
}

fn is_pattern(channel: &str) -> bool {
    channel.split('.').any(|token| matches!(token, "*" | ">"))
}
