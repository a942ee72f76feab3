//! The server of `throng serve` for operators, separate from the clients: metrics, reloads,
//! upgrades, members.

use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use throng::channel::{Present, Publication};
use throng::http::{Method, Route, Status};
use throng::metrics::Observer;
use throng::metrics::openmetrics::{Format, Writer};
use throng::server::Bound;
use throng::{App, Hub, Request, Response};
use throng_config::Token;
use throng_io::HeldListeners;

use super::api::Api;
use super::requests::{ReloadRequests, Reloaded};
use crate::admin;
use crate::admin::body::{EmptyBody, optional_body};
use crate::admin::guard::{check_change, check_read, refuse};
use crate::changes::Changes;
use crate::log::Log;
use crate::upgrade::{self, Upgrades};

/// The address of the server for operators, and the token that requests need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    pub(super) address: SocketAddr,
    pub(super) token: Option<Token>,
}

/// Binds the server that shows the metrics of `observer` and sends `requests`.
pub(super) fn bind(
    admin: &Admin,
    (observer, hub, requests): (Observer, Hub, ReloadRequests),
    (upgrades, held): (Upgrades, HeldListeners),
    log: Log,
) -> throng::Result<Bound> {
    let token = admin.token.clone();
    let of_state = (upgrades.clone(), token.clone());
    let on_upgrade = move |request: &Request<'_>| match check_change(request, token.as_ref()) {
        Ok(()) => upgrade::answer(&upgrades, request),
        Err(refusal) => refusal.closing(),
    };
    let upgrade_state = move |request: &Request<'_>| match check_read(request, of_state.1.as_ref())
    {
        Ok(()) => upgrade::answer_state(&of_state.0),
        Err(refusal) => refusal.closing(),
    };
    let token = admin.token.clone();
    let on_reload = move |request: &Request<'_>| match check_change(request, token.as_ref()) {
        Ok(()) => reload(&requests, request),
        Err(refusal) => refusal.closing(),
    };
    let shared = Arc::new((observer, admin.token.clone()));
    let of_channel = |answer: fn(&Hub, &Request<'_>) -> Response| {
        let (hub, token) = (hub.clone(), admin.token.clone());
        move |request: &Request<'_>| match check_read(request, token.as_ref()) {
            Ok(()) => answer(&hub, request),
            Err(refusal) => refusal.closing(),
        }
    };
    let route = |answer: fn(&Observer, &Request<'_>) -> Response| {
        let shared = Arc::clone(&shared);
        move |request: &Request<'_>| {
            let (observer, token) = &*shared;
            match check_read(request, token.as_ref()) {
                Ok(()) => answer(observer, request),
                // Only holders of the token keep one of the few places.
                Err(refusal) => refusal.closing(),
            }
        }
    };
    let (ready, of_metrics, its_log) = (Arc::clone(&shared), Arc::clone(&shared), log.clone());
    let app = App::new()
        .livez()
        .get("/readyz", move |_: &Request<'_>| ready.0.readiness())
        .get("/metrics", move |request: &Request<'_>| {
            let (observer, token) = &*of_metrics;
            match check_read(request, token.as_ref()) {
                Ok(()) => metrics(observer, &its_log, Format::accepted(request)).into_response(),
                Err(refusal) => refusal.closing(),
            }
        })
        .get("/stats.json", route(|observer, _| observer.stats()))
        .get("/history/{channel}", of_channel(history))
        // The thread of the signals executes it.
        .route("/reload", Route::on(Method::Post, on_reload).blocking())
        // It waits for the start of the new process.
        .route("/upgrade", Route::on(Method::Post, on_upgrade).blocking())
        .get("/upgrade", upgrade_state)
        // It may have to ask the cluster.
        .route("/presence/{channel}", Route::on(Method::Get, of_channel(presence)).blocking());
    let token = admin.token.clone();
    let app = Api::new(&hub).routes(app, Box::new(move |it| check_change(it, token.as_ref())));
    admin::bind(app, admin.address, held, log)
}

/// Writes the metrics of the server and of its log.
pub(super) fn metrics(observer: &Observer, log: &Log, format: Format) -> Writer {
    let mut writer = Writer::new("throng").format(format);
    observer.write(&mut writer);
    log.write_metrics(&mut writer);
    writer
}

/// Answers with the changes of a reload, or with the mistake that it met.
fn reload(requests: &ReloadRequests, request: &Request<'_>) -> Response {
    if let Err(refusal) = optional_body::<EmptyBody>(request, &json!({})) {
        return refusal;
    }
    match requests.ask() {
        Some(Ok(Reloaded { changes, certificates })) => {
            let Changes { changed, needs_restart } = changes;
            let answer = json!({
                "certificates": certificates,
                "changed": changed,
                "needs_restart": needs_restart,
            });
            Response::json(format!("{answer}\n"))
        }
        Some(Err(why)) => refuse(Status::new(422), &why),
        None => Response::unavailable(1, "shutting down"),
    }
}

/// Default and maximum of the publications or members in one answer.
const LISTED: usize = 100;
const MAX_LISTED: usize = 1000;

/// Reads `?limit=`.
fn limit(request: &Request<'_>) -> Result<usize, Response> {
    match request.query("limit").map(str::parse::<usize>) {
        None => Ok(LISTED),
        Some(Ok(most)) => Ok(most.min(MAX_LISTED)),
        Some(Err(_)) => {
            Err(Response::error(Status::BAD_REQUEST, "limit is a number, for example 100"))
        }
    }
}

/// Answers with up to `?limit=` members of a channel, on all servers if the channel is a cluster's.
fn presence(hub: &Hub, request: &Request<'_>) -> Response {
    let most = match limit(request) {
        Ok(most) => most,
        Err(refusal) => return refusal,
    };
    let channel = request.param("channel").unwrap_or_default();
    #[cfg(feature = "redis")]
    if let Some(asked) = hub.cluster().and_then(|cluster| cluster.presence(channel, most)) {
        return match asked.wait() {
            Ok(presence) => all_present(hub.subscribers(channel), &presence),
            Err(error) => Response::error(Status::SERVICE_UNAVAILABLE, &error.to_string()),
        };
    }
    let Some(members) = hub.presence(channel, most) else {
        let problem = "this channel has no presence: give it one, for example --channel \
                       'chat.>=close,presence=true'";
        return Response::error(Status::NOT_FOUND, problem);
    };
    let member =
        |present: &Present| json!({"client": present.handle.to_string(), "info": &*present.info});
    let clients: Vec<Value> = members.iter().map(member).collect();
    let answer = json!({"subscribers": hub.subscribers(channel), "clients": clients});
    Response::json(answer.to_string())
}

/// Answers with the members of a channel on all servers.
#[cfg(feature = "redis")]
fn all_present(subscribers: usize, presence: &throng::cluster::ClusterPresence) -> Response {
    let client = |present: &throng::cluster::ClusterPresent| {
        let handle = present.handle.to_string();
        json!({"client": handle, "info": &*present.info})
    };
    let clients: Vec<Value> = presence.clients.iter().map(client).collect();
    let answer = json!({"subscribers": subscribers, "members": presence.total, "clients": clients});
    Response::json(answer.to_string())
}

/// Answers with the last `?limit=` publications of a channel.
fn history(hub: &Hub, request: &Request<'_>) -> Response {
    let most = match limit(request) {
        Ok(most) => most,
        Err(refusal) => return refusal,
    };
    let channel = request.param("channel").unwrap_or_default();
    let Some(page) = hub.history(channel, most) else {
        if hub.has_history(channel) {
            let problem = "no client of this server follows the channel, so its history is with \
                           the cluster alone: ask a server that has members of it";
            return Response::error(Status::SERVICE_UNAVAILABLE, problem);
        }
        let problem = "this channel has no history: give it one, for example --channel \
                       'chat.>=close,history=100/5m'";
        return Response::error(Status::NOT_FOUND, problem);
    };
    let publications: Vec<Value> = page.publications.iter().map(publication).collect();
    let position = page.position;
    let epoch = format!("{:016x}", position.epoch);
    let tag = format!("{:010x}", position.tag.unwrap_or_default());
    let answer = json!({
        "epoch": epoch, "offset": position.offset, "tag": tag, "publications": publications
    });
    Response::json(answer.to_string())
}

/// Returns a publication as JSON; the bytes of a binary message are a list of numbers.
fn publication(publication: &Publication) -> Value {
    let payload = publication.frame().payload();
    let data = match std::str::from_utf8(payload) {
        Ok(text) => Value::from(text),
        Err(_) => Value::from(payload),
    };
    json!({"offset": publication.position().offset, "data": data})
}
