//! The app of `throng serve` and `throng demo`: an echo, channels and a web page.

use throng::channel::{Position, Receipt, Recovery};
use throng::http::{EventStream, RequestIds, Topic};
use throng::metrics::{self, openmetrics::Writer};
use throng::prelude::*;
use throng::server::{EndReason, Observe};
use throng_config::Listen;
use throng_io::{HeldListeners, Purpose};

use super::settings::Members;
use super::{Rule, Settings};
use crate::build_labels::BUILD_LABELS;
use crate::log::Log;
use crate::sockets;

/// The answer in place of metrics.
const NO_METRICS: &str = "metrics are not for every client: start the server with \
                          --admin 127.0.0.1:9101 and ask there, or with --set public_metrics=true";

const PAGE: &str = include_str!("../page.html");

/// A member of `/ws/{channel}`. Sixteen bytes: only the subscription has the channel's name.
enum Member {
    /// Between the upgrade and the session.
    Joining(Box<Joining>),
    /// Its messages go to the others.
    Talks,
    /// With `?echo=1` they also come back.
    Echoes,
    /// With `?since=` they come back with their positions.
    Continues,
    /// Subscribed to a pattern: there is no one channel to publish to.
    ListensOnly,
}

/// A request for a session of `/ws/{channel}`, until the session is open.
struct Joining {
    channel: String,
    echo: bool,
    /// With `?since=`: the client wants the positions of messages, and the messages after this
    /// position.
    since: Option<Option<Position>>,
    /// Information about the client for other members, where the channel has presence.
    info: String,
}

/// The longest channel name: long enough for any path a person writes, short enough not to matter
/// in memory.
const MAX_CHANNEL_NAME: usize = 256;

/// Maximum bytes of a client's information about itself.
const MAX_INFO: usize = 256;

/// Returns the server that `settings` describe, with the metrics of its log.
pub(crate) fn server(settings: &Settings, log: Option<&Log>) -> Server {
    configured(app(settings, log), settings)
}

/// Binds the server that `settings` describe.
pub(crate) fn bind(settings: &Settings) -> throng::Result<Bound> {
    listen(server(settings, None), settings)
}

/// Checks the settings, whether or not this machine can start a server with them.
pub(crate) fn check(settings: &Settings) -> throng::Result<()> {
    server(settings, None).check()
}

/// Does everything that [`bind`] does except listen and connect.
pub(crate) fn check_start(settings: &Settings) -> throng::Result<()> {
    let all = settings.listen.iter().map(|text| Listen::parse(text));
    let others = all.filter(|listen| listen.is_address()).skip(1);
    let server = others.fold(server(settings, None), |server, listen| match listen {
        Listen::Address(address) => server.bind_also(address),
        _ => server,
    });
    server.check_start()
}

/// A server for `app`, configured by `settings`.
pub fn configured(app: App, settings: &Settings) -> Server {
    let server = Server::new(app)
        .limits(settings.limits.clone())
        .backpressure(settings.backpressure)
        .compression(settings.deflate)
        .origins(settings.origins.clone())
        .proxies(settings.proxies.clone())
        .shards(settings.shards.clone())
        .descriptor_tables(settings.descriptors)
        .observe(observe(settings))
        .sockets(settings.sockets.clone());
    #[cfg(feature = "tls")]
    let server = match &settings.tls {
        Some(tls) => server.tls(tls.clone()),
        None => server,
    };
    #[cfg(feature = "redis")]
    let server = match &settings.cluster {
        Some(cluster) => server.cluster(cluster.clone()),
        None => server,
    };
    server.channels(rules(settings))
}

/// Returns the reports of a server besides events and requests.
pub(super) fn observe(settings: &Settings) -> Observe {
    Observe::new().stall_warning(settings.stall_warning).build_info(BUILD_LABELS)
}

/// Returns the rules of channels.
fn rules(settings: &Settings) -> Channels {
    let rules = settings.channels.iter();
    rules.fold(Channels::new(), |channels, Rule { pattern, rules, history, presence, .. }| {
        let presence = presence.map(|Members { join_leave, max_announced }| {
            Presence::new().join_leave(join_leave).max_announced(max_announced)
        });
        let channels = channels.presence(pattern, presence);
        match history {
            Some(history) => channels.history(pattern, *history),
            // Later rules do not apply to its channels.
            None => channels.backpressure(pattern, *rules).history(pattern, None),
        }
    })
}

/// Binds `server` to all addresses of `settings`.
pub fn listen(server: Server, settings: &Settings) -> throng::Result<Bound> {
    listen_on(server, settings, None)
}

/// Does the same with the process's list of listening sockets.
pub(super) fn listen_held(
    server: Server,
    settings: &Settings,
    held: &HeldListeners,
) -> throng::Result<Bound> {
    let server = server.held_listeners(held.clone(), Purpose::Clients);
    listen_on(server, settings, Some(held))
}

fn listen_on(
    server: Server,
    settings: &Settings,
    held: Option<&HeldListeners>,
) -> throng::Result<Bound> {
    let all: Vec<_> = settings.listen.iter().map(|text| Listen::parse(text)).collect();
    let mut addresses = settings.listen.iter().filter(|text| Listen::parse(text).is_address());
    let also = |server: Server, address: &String| server.bind_also(address.as_str());
    if !all.iter().all(|listen| listen.is_address()) {
        let mut listeners = sockets::take(&all, held)?;
        listeners.extend(sockets::open(&all, settings.unix_mode.0, held)?);
        return addresses.fold(server, also).listen_on(listeners);
    }
    let first = addresses.next().map_or("", String::as_str);
    addresses.fold(server, also).bind(first)
}

pub(crate) fn app(settings: &Settings, log: Option<&Log>) -> App {
    let wildcards = settings.wildcards;
    let channels = channels(wildcards);
    let channels = match settings.cluster {
        // Without a cluster, the fate of a message concerns only its receivers.
        None => channels.on_message(|ws, member, message| drop(publish(ws, member, message))),
        Some(_) => channels.on_message(|ws, member, message| {
            if publish(ws, member, message).is_some_and(|receipt| receipt.is_refused()) {
                ws.close_for(EndReason::Publication);
            }
        }),
    };
    let upload = Ws::from_request(|_| Ok(0u64))
        .max_message_size(settings.max_upload_size)
        .on_chunk(|ws, length, piece| {
            *length += piece.bytes.len() as u64;
            if piece.last {
                ws.send(std::mem::take(length).to_string());
            }
        });
    let names = || settings.subprotocols.iter().map(String::as_str);
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let app = App::new()
        .ws("/echo", echo.subprotocols(names()))
        .ws("/ws/{channel}", channels.subprotocols(names()))
        .ws("/upload", upload.subprotocols(names()))
        .sse("/sse/{channel}", move |request| {
            let channel = channel(request)?.to_owned();
            let topic = if wildcards { Topic::Pattern(channel) } else { Topic::Channel(channel) };
            Ok(EventStream::new(topic).info(info(request)?))
        })
        .get("/favicon.ico", |_| Response::new(Status::NO_CONTENT))
        .health();
    let log = log.cloned();
    let own_metrics = move |writer: &mut Writer| {
        if let Some(log) = &log {
            log.write_metrics(writer);
        }
    };
    let app = match settings.public_metrics {
        true => app
            .route("/metrics", metrics::route(own_metrics))
            .route("/stats.json", metrics::stats()),
        false => ["/metrics", "/stats.json"].into_iter().fold(app, |app, path| {
            app.get(path, |_| Response::error(Status::NOT_FOUND, NO_METRICS))
        }),
    };
    let app = match &settings.files {
        Some(files) => app.dir("/", files.clone()),
        None => app.get("/", |_| Response::html(PAGE)),
    };
    let app = match settings.request_ids {
        true => app.layer(RequestIds::new()),
        false => app,
    };
    let hosts = settings.hosts.clone();
    app.layer(move |request: &mut Request<'_>| hosts.check(request))
}

/// Sessions of members of channels, without a callback for messages.
fn channels(wildcards: bool) -> Ws<Member> {
    Ws::from_request(move |request| {
        let (echo, since) = (request.query("echo") == Some("1"), since(request)?);
        let (channel, info) = (channel(request)?.to_owned(), info(request)?.to_owned());
        Ok(Member::Joining(Box::new(Joining { channel, echo, since, info })))
    })
    .on_open(move |ws, member| {
        let Member::Joining(joining) = std::mem::replace(member, Member::Talks) else {
            return;
        };
        let Joining { channel, echo, since, info } = *joining;
        if let Some(since) = since {
            if wildcards && is_pattern(&channel) {
                return ws.close_for_with(
                    EndReason::Channel,
                    "a pattern has no position: leave ?since= out",
                );
            }
            *member = Member::Continues;
            return join_since(ws, &channel, since, &info);
        }
        if wildcards && is_pattern(&channel) {
            *member = Member::ListensOnly;
        } else if echo {
            *member = Member::Echoes;
        }
        let joined = match wildcards {
            true => ws.subscribe_pattern(&channel).unwrap_or(false),
            false => ws.subscribe_as(&channel, &info, None).joined,
        };
        if !joined {
            // Here and not as a status, which a page could not read.
            let reason = "no pattern: a token between dots is empty, > is not at the end, or more \
                          than 16 tokens";
            ws.close_for_with(EndReason::Channel, reason);
        }
    })
    .on_recovered(|ws, member, _, recovery| {
        if matches!(member, Member::Continues) {
            begin(ws, &recovery);
        }
    })
}

/// Publishes what a member has sent, if it is in a channel.
#[inline]
fn publish(ws: &mut Socket<'_, Member>, member: &Member, message: Message<'_>) -> Option<Receipt> {
    if matches!(member, Member::ListensOnly) {
        ws.close_for_with(
            EndReason::Channel,
            "a pattern cannot be published to; send to a channel without * and >",
        );
        return None;
    }
    let channel = ws.subscriptions().next().map(str::to_owned)?;
    Some(match member {
        Member::Echoes | Member::Continues => ws.publish(&channel, message),
        _ => ws.publish_to_others(&channel, message),
    })
}

fn channel<'r>(request: &'r Request<'_>) -> Result<&'r str, Reject> {
    match request.param("channel") {
        Some(channel) if (1..=MAX_CHANNEL_NAME).contains(&channel.len()) => Ok(channel),
        _ => Err(Reject::bad_request("a channel name has 1 to 256 bytes")),
    }
}

/// Reads `?info=`, the client's information about itself.
fn info<'r>(request: &'r Request<'_>) -> Result<&'r str, Reject> {
    match request.query("info").unwrap_or_default() {
        info if info.len() <= MAX_INFO => Ok(info),
        _ => Err(Reject::bad_request("info has at most 256 bytes")),
    }
}

/// Reads `?since=EPOCH:OFFSET:TAG`; without a value, the client only wants positions.
fn since(request: &Request<'_>) -> Result<Option<Option<Position>>, Reject> {
    match request.query("since") {
        None => Ok(None),
        Some("") => Ok(Some(None)),
        Some(text) => match text.parse() {
            Ok(position) => Ok(Some(Some(position))),
            Err(error) => Err(Reject::bad_request(format!(
                "since is not the position of a message: {error}; leave its value out to begin \
                 with what comes next"
            ))),
        },
    }
}

/// Joins a channel with history: each message comes with its offset.
fn join_since(ws: &mut Socket<'_, Member>, channel: &str, since: Option<Position>, info: &str) {
    ws.send_offsets(true);
    let recovery = ws.subscribe_as(channel, info, since);
    // Otherwise it begins when the cluster has answered.
    if !recovery.pending {
        begin(ws, &recovery);
    }
}

/// Sends a client its position, and the messages that it has missed.
fn begin(ws: &mut Socket<'_, Member>, recovery: &Recovery) {
    let Some(Position { epoch, offset, tag }) = recovery.position else {
        // Here and not as a status, which a page could not read.
        return ws.close_for_with(
            EndReason::Channel,
            "this channel has no history, so ?since= has no meaning",
        );
    };
    let (tag, recovered) = (tag.unwrap_or_default(), recovery.recovered);
    ws.send(format!(
        "{{\"epoch\":\"{epoch:016x}\",\"offset\":{offset},\"tag\":\"{tag:010x}\",\
         \"recovered\":{recovered}}}"
    ));
    ws.send_missed(recovery);
}

fn is_pattern(channel: &str) -> bool {
    channel.split('.').any(|token| matches!(token, "*" | ">"))
}
