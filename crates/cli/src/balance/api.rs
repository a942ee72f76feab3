//! The admin API: answers requests of operators, their scripts and backends with JSON.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use throng::http::{Method, Route, Status};
use throng::metrics::openmetrics::{Format, Writer};
use throng::metrics::process;
use throng::server::Bound;
use throng::{App, Request, Response};
use throng_balance::{Balancer, DEFAULT_POOL, Error};
use throng_config::units::parse_duration;
use throng_io::{HeldListeners, PeerAddress};

use super::metrics;
use super::reload::Reloader;
use super::sentences::{added_in_words, removed_in_words};
use crate::admin;
use crate::admin::body::{EmptyBody, body, optional_body};
use crate::admin::guard::{self, check_read, refuse, unauthorized};
use crate::log::{Log, events};
use crate::upgrade::{self, Upgrades};

const PAGE: &str = include_str!("page.html");

/// The state that all handlers share.
pub(super) struct Api {
    pub(super) balancer: Balancer,
    pub(super) reloader: Arc<Reloader>,
    /// The process is about to end.
    pub(super) is_ending: Arc<AtomicBool>,
    /// Changes, for the process's output.
    pub(super) log: Log,
    /// Warnings of the checks at the start.
    pub(super) warnings: Vec<String>,
    /// Upgrades of this process.
    pub(super) upgrades: Upgrades,
}

/// An answer, or a refusal.
pub(super) type AdminAnswer = Result<Response, Response>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Addition {
    pub(super) address: PeerAddress,
    #[serde(default = "one")]
    pub(super) weight: u32,
    #[serde(default)]
    pub(super) send_proxy: bool,
    #[serde(default, deserialize_with = "one_or_more")]
    pub(super) passthrough: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Weight {
    pub(super) weight: u32,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Drain {
    pub(super) window: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Removal {
    pub(super) drain: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Rebalance {
    pub(super) dry_run: bool,
    pub(super) rate: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Registration {
    address: SocketAddr,
    #[serde(default = "one")]
    weight: u32,
    time_to_live: Option<String>,
    /// `None`: the pool `default`.
    pool: Option<String>,
}

const fn one() -> u32 {
    1
}

/// Reads a list of texts, or one text, as in the file.
fn one_or_more<'d, D: Deserializer<'d>>(from: D) -> Result<Vec<String>, D::Error> {
    match Value::deserialize(from)? {
        Value::String(one) => Ok(vec![one]),
        more => Vec::deserialize(more).map_err(D::Error::custom),
    }
}

/// Binds the API to `address`.
pub(super) fn bind(
    api: Arc<Api>,
    address: SocketAddr,
    held: HeldListeners,
) -> throng::Result<Bound> {
    let route = |handler: fn(&Api, &Request<'_>) -> AdminAnswer| {
        let api = Arc::clone(&api);
        move |request: &Request<'_>| {
            let (Ok(response) | Err(response)) = handler(&api, request);
            match api.may_stay(request) {
                true => response,
                false => response.closing(),
            }
        }
    };
    // A reload reads files and waits, an upgrade waits for the new process: other requests go on.
    let slow = |handler| Route::on(Method::Post, handler).blocking();
    let log = api.log.clone();
    let app = App::new()
        // Without a token, which the user enters in the page: the page contains no secret.
        .get(
            "/",
            route(|api, request| match api.reloader.admin_token() {
                Some(_) => Ok(page()),
                None => check_read(request, None).map(|()| page()),
            }),
        )
        .livez()
        .get("/readyz", route(Api::readyz))
        .get("/status.json", route(Api::status))
        .get("/metrics", route(Api::metrics))
        .get("/v1/status", route(Api::status))
        .get("/v1/config", route(Api::config))
        .get("/v1/schema", route(Api::schema))
        .get("/v1/pools", route(Api::pools))
        .get("/v1/pools/{pool}", route(Api::pool))
        .post("/v1/pools/{pool}/drain", route(Api::drain_pool))
        .post("/v1/pools/{pool}/rebalance", route(Api::rebalance_pool))
        .get("/v1/pools/{pool}/backends", route(Api::pool_backends))
        .post("/v1/pools/{pool}/backends", route(Api::add_to_pool))
        .patch("/v1/pools/{pool}/backends/{address}", route(Api::weigh_in_pool))
        .delete("/v1/pools/{pool}/backends/{address}", route(Api::remove_from_pool))
        .post("/v1/pools/{pool}/backends/{address}/drain", route(Api::drain_in_pool))
        .post("/v1/pools/{pool}/backends/{address}/undrain", route(Api::undrain_in_pool))
        .get("/v1/sites", route(Api::sites))
        .get("/v1/sites/{site}", route(Api::site))
        .put("/v1/sites/{site}/maintenance", route(Api::maintenance))
        .patch("/v1/sites/{site}/routes/{route}/split", route(Api::split))
        .get("/v1/limits", route(Api::limits))
        .get("/v1/blocks", route(Api::blocks))
        .post("/v1/blocks", route(Api::block))
        .delete("/v1/blocks", route(Api::unblock))
        .post("/v1/route", route(Api::explain))
        .route("/v1/reload", slow(route(Api::reload)))
        .get("/backends", route(Api::list))
        .post("/backends", route(Api::add))
        .put("/backends/{address}", route(Api::set_weight))
        .patch("/backends/{address}", route(Api::set_weight))
        .delete("/backends/{address}", route(Api::remove))
        .post("/backends/{address}/drain", route(Api::drain))
        .post("/backends/{address}/undrain", route(Api::undrain))
        .post("/rebalance", route(Api::rebalance))
        .route("/reload", slow(route(Api::reload)))
        .route("/upgrade", slow(route(Api::upgrade)))
        .get("/upgrade", route(Api::upgrade_state))
        .post("/register", route(Api::register))
        .post("/register/{address}/heartbeat", route(Api::heartbeat))
        .delete("/register/{address}", route(Api::deregister));
    admin::bind(app, address, held, log)
}

/// Returns the status page, which may load and request only this server's resources, and which no
/// page may frame.
fn page() -> Response {
    let policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                  connect-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'";
    Response::html(PAGE)
        .header("Content-Security-Policy", policy)
        .unwrap_or_else(|_| Response::html(PAGE))
}

impl Api {
    /// Returns whether the connection is kept after this request. If there is a token, only its
    /// holders keep one of the few places; other clients get one request.
    fn may_stay(&self, request: &Request<'_>) -> bool {
        let Some(token) = self.reloader.admin_token() else { return true };
        let given = request.bearer().unwrap_or_default().as_bytes();
        token.matches(given) || self.balancer.check_token(given).is_ok()
    }

    fn upgrade(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_operator(request)?;
        Ok(upgrade::answer(&self.upgrades, request))
    }

    fn upgrade_state(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        Ok(upgrade::answer_state(&self.upgrades))
    }

    fn readyz(&self, _: &Request<'_>) -> AdminAnswer {
        let not = |why: &str| Err(Response::unavailable(1, why));
        if self.is_ending.load(Relaxed) {
            return not("shutting down");
        }
        match self.balancer.status().backends.iter().any(|row| row.state == "up") {
            true => Ok(Response::text("OK\n")),
            false => not("no backend is up"),
        }
    }

    fn status(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        let mut status = to_json(&self.balancer.status())?;
        status["resident_bytes"] = process::resident_bytes().into();
        status["system"] = serde_json::from_str(&process::system_json()).unwrap_or_default();
        status["warnings"] = self.warnings.clone().into();
        status["is_ending"] = self.is_ending.load(Relaxed).into();
        Ok(answer(&status))
    }

    fn metrics(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        let mut writer = Writer::new("throng_balance").format(Format::accepted(request));
        metrics::write(&self.balancer.status(), &mut writer);
        self.log.write_metrics(&mut writer);
        process::write_metrics(&mut writer);
        Ok(writer.into_response())
    }

    fn list(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        Ok(answer(&to_json(&self.balancer.status().backends)?))
    }

    fn add(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let example = json!({ "address": "127.0.0.1:9003", "weight": 2 });
        let Addition { address, weight, send_proxy, passthrough } = body(request, &example)?;
        // In the form in which they are compared and listed.
        let passthrough: Vec<_> =
            passthrough.iter().map(|name| name.to_ascii_lowercase()).collect();
        let names = passthrough.clone();
        self.balancer.add_passthrough(address, weight, send_proxy, names).map_err(refused)?;
        self.note(added_in_words(address, weight, &passthrough));
        let added = json!({
            "address": address,
            "weight": weight,
            "send_proxy": send_proxy,
            "passthrough": passthrough,
        });
        Ok(answer(&added).with_status(Status::CREATED))
    }

    fn set_weight(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let address = address(request)?;
        let Weight { weight } = body(request, &json!({ "weight": 2 }))?;
        let before = self.balancer.set_weight(address, weight).map_err(refused)?;
        self.note(format!("the weight of {address} changed from {before} to {weight}"));
        Ok(answer(&json!({ "address": address, "weight": weight, "before": before })))
    }

    fn drain(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let address = address(request)?;
        let Drain { window } = optional_body(request, &json!({ "window": "30s" }))?;
        let window = duration("window", window.as_deref())?;
        let draining = self.balancer.drain(address, window).map_err(refused)?;
        self.note(format!("draining {address}: {} tunnels", draining.tunnels));
        Ok(answer(&to_json(&draining)?))
    }

    fn undrain(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let address = address(request)?;
        let EmptyBody {} = optional_body(request, &json!({}))?;
        self.balancer.undrain(address).map_err(refused)?;
        self.note(format!("the drain of {address} was cancelled"));
        Ok(answer(&json!({ "address": address })))
    }

    fn remove(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let address = address(request)?;
        let Removal { drain } = optional_body(request, &json!({ "drain": true }))?;
        let removal = self.balancer.remove(address, drain).map_err(refused)?;
        let what = removed_in_words(removal.tunnels, removal.rate);
        self.note(format!("removing {address}: {what}"));
        Ok(answer(&to_json(&removal)?))
    }

    fn rebalance(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let example = json!({ "dry_run": true, "rate": 50 });
        let Rebalance { dry_run, rate } = optional_body(request, &example)?;
        let plan = self.balancer.rebalance(dry_run, rate).map_err(refused)?;
        if !dry_run {
            self.note(format!(
                "rebalancing: closing {} tunnels, {} a second",
                plan.total, plan.rate
            ));
        }
        Ok(answer(&to_json(&plan)?))
    }

    fn reload(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let EmptyBody {} = optional_body(request, &json!({}))?;
        match self.reloader.reload() {
            Ok(changes) => Ok(answer(&to_json(&changes)?)),
            Err(why) => Err(refuse_at(Status::new(422), &why.text, None, why.line)),
        }
    }

    fn register(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_registration(request)?;
        let example = json!({ "address": "127.0.0.1:9001", "weight": 1 });
        let Registration { address, weight, time_to_live, pool } = body(request, &example)?;
        let pool = pool.as_deref().unwrap_or(DEFAULT_POOL);
        let time_to_live = duration("time_to_live", time_to_live.as_deref())?;
        let holds =
            self.balancer.register_in(pool, address, weight, time_to_live).map_err(refused)?;
        let place = if pool == DEFAULT_POOL { String::new() } else { format!(" in {pool}") };
        self.note(format!("{address} registered itself{place}, weight {weight}"));
        Ok(answer(&json!({ "address": address, "ttl_seconds": holds.as_secs_f64() })))
    }

    fn heartbeat(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_registration(request)?;
        let address = address(request)?;
        self.balancer.heartbeat(address).map_err(refused)?;
        Ok(answer(&json!({ "address": address })))
    }

    fn deregister(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_registration(request)?;
        let address = address(request)?;
        self.balancer.deregister(address).map_err(refused)?;
        self.note(format!("{address} deregistered itself"));
        Ok(answer(&json!({ "address": address })))
    }

    pub(super) fn check_read(&self, request: &Request<'_>) -> Result<(), Response> {
        check_read(request, self.reloader.admin_token().as_ref())
    }

    pub(super) fn check_change(&self, request: &Request<'_>) -> Result<(), Response> {
        self.check_operator(request)?;
        match self.upgrades.is_under_way() {
            // The new process has the list of backends already.
            true => Err(refuse(Status::new(409), "an upgrade is under way; try again")),
            false => Ok(()),
        }
    }

    pub(super) fn check_operator(&self, request: &Request<'_>) -> Result<(), Response> {
        guard::check_change(request, self.reloader.admin_token().as_ref())
    }

    /// A backend sends the token, which no web page has under any name.
    fn check_registration(&self, request: &Request<'_>) -> Result<(), Response> {
        let token = request.bearer().unwrap_or_default();
        self.balancer.check_token(token.as_bytes()).map_err(refused)
    }

    pub(super) fn note(&self, text: String) {
        self.log.event(&events::OPERATOR, text, []);
    }
}

/// Returns the refusal for an operation's error.
pub(super) fn refused(error: Error) -> Response {
    let status = match &error {
        Error::Unknown { .. }
        | Error::UnknownPool { .. }
        | Error::UnknownSite { .. }
        | Error::UnknownSplit(_)
        | Error::NotRegistered { .. } => Status::NOT_FOUND,
        Error::InSeveralPools { .. }
        | Error::Exists { .. }
        | Error::TooMany { .. }
        | Error::NotDraining { .. }
        | Error::BeingRemoved { .. }
        | Error::PickIgnoresLoad { .. }
        | Error::StickyIgnoresLoad { .. }
        | Error::RegistersItself { .. } => Status::new(409),
        Error::Weight { .. }
        | Error::Split(_)
        | Error::Block(_)
        | Error::Address { .. }
        | Error::Passthrough { .. }
        | Error::Rate
        | Error::TimeToLive { .. }
        | Error::Config(_) => Status::BAD_REQUEST,
        Error::RegistrationIsOff => Status::FORBIDDEN,
        Error::Token => Status::UNAUTHORIZED,
        Error::ShuttingDown => Status::SERVICE_UNAVAILABLE,
        _ => Status::INTERNAL_SERVER_ERROR,
    };
    match status {
        Status::UNAUTHORIZED => unauthorized(&error.to_string()),
        _ => refuse_at(status, &error.to_string(), key_of(&error), None),
    }
}

/// Returns the key of the value that is wrong.
fn key_of(error: &Error) -> Option<&str> {
    Some(match error {
        Error::Weight { .. } => "weight",
        Error::Address { .. } => "address",
        Error::Passthrough { setting, .. } => setting,
        Error::Rate => "rate",
        Error::TimeToLive { .. } => "time_to_live",
        Error::Split(_) => "weights",
        Error::Block(_) => "network",
        _ => return None,
    })
}

/// Returns a refusal with the key of the value that is wrong, or its line in the file.
fn refuse_at(status: Status, why: &str, key: Option<&str>, line: Option<usize>) -> Response {
    let mut body = json!({ "error": why });
    if let Some(key) = key {
        body["key"] = key.into();
    }
    if let Some(line) = line {
        body["line"] = line.into();
    }
    Response::json(format!("{body}\n")).with_status(status)
}

pub(super) fn answer(value: &Value) -> Response {
    let response = Response::json(format!("{value}\n"));
    response.header("Cache-Control", "no-store").unwrap_or_else(|_| Response::json("{}"))
}

pub(super) fn to_json(value: &impl Serialize) -> Result<Value, Response> {
    serde_json::to_value(value)
        .map_err(|error| refuse(Status::INTERNAL_SERVER_ERROR, &error.to_string()))
}

pub(super) fn address(request: &Request<'_>) -> Result<PeerAddress, Response> {
    let text = request.param("address").unwrap_or_default();
    text.parse().map_err(|_| {
        let why = format!("{text:?} is not a backend's address: write one like 127.0.0.1:9001");
        refuse(Status::BAD_REQUEST, &why)
    })
}

pub(super) fn duration(name: &str, text: Option<&str>) -> Result<Option<Duration>, Response> {
    text.map(parse_duration)
        .transpose()
        .map_err(|why| refuse(Status::BAD_REQUEST, &format!("{name}: {why}")))
}
