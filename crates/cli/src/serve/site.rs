//! The app of `throng serve` and `throng demo`: an echo, channels and a web page.

use std::time::{Duration, SystemTime};

use throng::centrifuge::{Centrifuge, RESERVED_PREFIX};
use throng::channel::{Position, Receipt, Recovery};
use throng::http::{EventStream, RequestIds, Topic};
use throng::metrics::{self, openmetrics::Writer};
use throng::prelude::*;
use throng::server::{EndReason, Observe};
use throng_config::Listen;
use throng_io::{HeldListeners, Purpose};

use super::api::{self, Api};
use super::rights::{self, CHOSEN, Granted, LiveRights, Refused};
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
    /// Like [`Member::Continues`], without the right to publish.
    Follows,
    /// Without the right to publish.
    Listens,
    /// Subscribed to a pattern: there is no one channel to publish to.
    ListensToPattern,
    /// The session is being closed.
    Refused,
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
    /// The client's rights there.
    granted: Result<Granted, Refused>,
}

/// The longest channel name: long enough for any path a person writes, short enough not to matter
/// in memory.
const MAX_CHANNEL_NAME: usize = 256;

/// Maximum bytes of a client's information about itself.
const MAX_INFO: usize = 256;

/// Returns the server that `settings` describe, with the metrics of its log.
pub(crate) fn server(settings: &Settings, log: Option<&Log>) -> Server {
    let app = app(settings, log);
    let Some(keys) = settings.api_keys.clone() else { return configured(app, settings) };
    let hub = Hub::new();
    let app = Api::new(&hub).routes(app, api::by_key(keys));
    configured(app, settings).with_hub(&hub)
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
    let (wildcards, rights) = (settings.wildcards, settings.rights.clone());
    let channels = channels(wildcards, rights.clone());
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
    let with_tokens = names().chain([CHOSEN]);
    let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
    let centrifuge = Centrifuge::new(rights.clone()).route_with_token(rights::token);
    let app = App::new()
        .ws("/echo", echo.subprotocols(names()))
        .ws("/ws/{channel}", channels.subprotocols(with_tokens))
        .ws("/upload", upload.subprotocols(names()))
        .ws("/connection/websocket", centrifuge)
        .sse("/sse/{channel}", move |request| {
            let channel = channel(request)?.to_owned();
            let is_pattern = wildcards && is_pattern(&channel);
            let granted = rights.get().admit(request, &channel, is_pattern);
            let granted = granted.map_err(Refused::reject)?;
            let topic = if wildcards { Topic::Pattern(channel) } else { Topic::Channel(channel) };
            let info = granted.info.map_or_else(|| info(request).map(str::to_owned), Ok)?;
            let lifetime = granted.until.map(left);
            let stream = EventStream::new(topic).info(info);
            Ok(stream.recovers(granted.reads_history).token_expires_in(lifetime))
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
fn channels(wildcards: bool, rights: LiveRights) -> Ws<Member> {
    Ws::from_request(move |request| {
        let (echo, since) = (request.query("echo") == Some("1"), since(request)?);
        let (channel, info) = (channel(request)?.to_owned(), info(request)?.to_owned());
        // A page could not read a status.
        let granted = rights.get().admit(request, &channel, wildcards && is_pattern(&channel));
        Ok(Member::Joining(Box::new(Joining { channel, echo, since, info, granted })))
    })
    .on_open(move |ws, member| {
        let Member::Joining(joining) = std::mem::replace(member, Member::Talks) else {
            return;
        };
        let Joining { channel, echo, since, info, granted } = *joining;
        let granted = match granted {
            Ok(granted) => granted,
            Err(refused) => {
                *member = Member::Refused;
                return ws.close_for_with(refused.end(), &refused.text());
            }
        };
        if let Some(until) = granted.until {
            end_at(ws, until);
        }
        let info = granted.info.unwrap_or(info);
        if let Some(since) = since {
            if wildcards && is_pattern(&channel) {
                return ws.close_for_with(
                    EndReason::Channel,
                    "a pattern has no position: leave ?since= out",
                );
            }
            // It has missed messages, and learns that it does not get them.
            let since = since.map(|since| if granted.reads_history { since } else { UNKNOWN });
            *member = if granted.publishes { Member::Continues } else { Member::Follows };
            return join_since(ws, &channel, since, &info);
        }
        if wildcards && is_pattern(&channel) {
            *member = Member::ListensToPattern;
        } else if !granted.publishes {
            *member = Member::Listens;
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
        if matches!(member, Member::Continues | Member::Follows) {
            begin(ws, &recovery);
        }
    })
}

/// Publishes what a member has sent, if it is in a channel.
#[inline]
fn publish(ws: &mut Socket<'_, Member>, member: &Member, message: Message<'_>) -> Option<Receipt> {
    let echoes = match member {
        Member::Talks => false,
        Member::Echoes | Member::Continues => true,
        Member::ListensToPattern => {
            let reason = "a pattern cannot be published to; send to a channel without * and >";
            ws.close_for_with(EndReason::Channel, reason);
            return None;
        }
        Member::Follows | Member::Listens => {
            let reason = "this client may not publish to this channel";
            ws.close_for_with(EndReason::Right, reason);
            return None;
        }
        Member::Joining(_) | Member::Refused => return None,
    };
    let channel = ws.subscriptions().next().map(str::to_owned)?;
    Some(match echoes {
        true => ws.publish(&channel, message),
        false => ws.publish_to_others(&channel, message),
    })
}

/// Closes the session when its token expires.
fn end_at(ws: &mut Socket<'_, Member>, until: SystemTime) {
    ws.after(left(until), |ws, _| {
        ws.close_for_with(EndReason::Token, "the token has expired");
    });
}

/// Returns the time until then. A token may be valid for longer than a clock of the process counts.
fn left(until: SystemTime) -> Duration {
    until.duration_since(SystemTime::now()).unwrap_or_default().min(LONGEST)
}

/// A position that no channel has.
const UNKNOWN: Position = Position { epoch: 0, offset: 0, tag: None };

/// The longest validity of a token that has an end.
const LONGEST: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Returns whether a channel can have this name.
pub(super) fn is_channel_name(name: &str) -> bool {
    (1..=MAX_CHANNEL_NAME).contains(&name.len())
}

fn channel<'r>(request: &'r Request<'_>) -> Result<&'r str, Reject> {
    match request.param("channel") {
        Some(channel) if is_channel_name(channel) => Ok(channel),
        _ => Err(Reject::bad_request("a channel name has 1 to 256 bytes")),
    }
}

/// Reads `?info=`, the client's information about itself.
fn info<'r>(request: &'r Request<'_>) -> Result<&'r str, Reject> {
    match request.query("info").unwrap_or_default() {
        // It would pass for any user among clients of the Centrifuge protocol.
        info if info.starts_with(RESERVED_PREFIX) => {
            Err(Reject::bad_request(format!("info may not begin with {RESERVED_PREFIX}")))
        }
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
