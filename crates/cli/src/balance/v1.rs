//! Version 1 of the admin API: pools, sites and limits. No field is ever renamed in it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use throng::http::Status;
use throng::{Request, Response};
use throng_balance::{Balancer, PoolRow, Row, SiteRow, SiteSummary};

use super::api::{
    Addition, AdminAnswer, Api, Drain, Rebalance, Removal, Weight, address, answer, duration,
    refused, to_json,
};
use super::route;
use super::sentences::{added_in_words, removed_in_words};
use crate::admin::body::{EmptyBody, body, optional_body};
use crate::admin::guard::refuse;
use crate::settings_json::as_json;

/// The schema of all answers, by request.
const SCHEMA: &str = include_str!("api.schema.json");

/// The most items of a list in one answer.
const PAGE: usize = 100;

/// The name of a site's own action in paths.
const OWN: &str = "-";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Weights {
    weights: BTreeMap<String, u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MaintenanceSwitch {
    /// `None`: as the file has it.
    on: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewBlock {
    network: String,
    #[serde(rename = "for")]
    time: String,
    /// `None`: the address of the operator.
    by: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(default = "get")]
    method: String,
    url: String,
    #[serde(default)]
    headers: Vec<String>,
    #[serde(default = "loopback")]
    from: IpAddr,
    #[serde(default)]
    listener: Option<String>,
}

fn get() -> String {
    "GET".to_owned()
}

fn loopback() -> IpAddr {
    Ipv4Addr::LOCALHOST.into()
}

/// Returns one page of a list, which begins at `from` of the query.
fn page<T: Serialize>(request: &Request<'_>, name: &str, all: Vec<T>) -> AdminAnswer {
    let (from, total) = (begin(request)?, all.len());
    let items: Vec<T> = all.into_iter().skip(from).take(PAGE).collect();
    Ok(answer(&json!({ name: to_json(&items)?, "next": next(request, from, total) })))
}

fn begin(request: &Request<'_>) -> Result<usize, Response> {
    let text = request.query("from").unwrap_or("0");
    text.parse().map_err(|_| {
        let why = format!("from is {text:?}: follow `next` of the page before");
        refuse(Status::BAD_REQUEST, &why)
    })
}

/// Returns where the next page is, if there is one.
fn next(request: &Request<'_>, from: usize, total: usize) -> Value {
    let at = from.saturating_add(PAGE);
    if at < total { json!(format!("{}?from={at}", request.path())) } else { Value::Null }
}

fn param<'r>(request: &'r Request<'_>, name: &str) -> &'r str {
    request.param(name).unwrap_or_default()
}

/// Returns a pool with its backends.
fn pool(row: &PoolRow, backends: &[Row]) -> Result<Value, Response> {
    let own: Vec<&Row> = backends.iter().filter(|backend| backend.pool == row.name).collect();
    Ok(json!({
        "name": row.name,
        "pick": row.pick,
        "up": row.up,
        "open": row.tunnels + row.requests,
        "queued": row.queued,
        "fallback": row.fallback,
        "backends": to_json(&own)?,
    }))
}

/// Returns a site with its counters, and whether it is under maintenance.
fn site(balancer: &Balancer, site: &SiteSummary, counted: &[SiteRow]) -> Result<Value, Response> {
    let is_it = |row: &&SiteRow| row.site == site.name && row.route.is_none();
    let mut value = to_json(site)?;
    // Unless a reload has just removed it.
    value["maintenance"] = json!(balancer.is_in_maintenance(&site.name).unwrap_or(false));
    value["counts"] = match counted.iter().find(is_it) {
        None => Value::Null,
        Some(row) => json!({
            "statuses": row.statuses,
            "refused": row.refused,
            "first_bytes": { "count": row.first_bytes.count,
                             "sum_micros": row.first_bytes.sum_micros },
        }),
    };
    Ok(value)
}

impl Api {
    pub(super) fn schema(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        Ok(Response::json(SCHEMA))
    }

    /// Secrets are not in the answer.
    pub(super) fn config(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        Ok(answer(&as_json(&self.reloader.values())))
    }

    pub(super) fn pools(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        let status = self.balancer.status();
        let shown = status.pools.iter().skip(begin(request)?).take(PAGE);
        let pools: Result<Vec<_>, _> = shown.map(|row| pool(row, &status.backends)).collect();
        let next = next(request, begin(request)?, status.pools.len());
        Ok(answer(&json!({ "pools": pools?, "next": next })))
    }

    pub(super) fn pool(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        let (row, backends) = self.find_pool(param(request, "pool"))?;
        Ok(answer(&json!({ "pool": pool(&row, &backends)? })))
    }

    pub(super) fn pool_backends(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        let (row, mut backends) = self.find_pool(param(request, "pool"))?;
        backends.retain(|backend| backend.pool == row.name);
        page(request, "backends", backends)
    }

    fn find_pool(&self, name: &str) -> Result<(PoolRow, Vec<Row>), Response> {
        let status = self.balancer.status();
        let names = || status.pools.iter().take(20).map(|row| row.name.as_str());
        match status.pools.iter().find(|row| row.name == name) {
            Some(row) => Ok((row.clone(), status.backends)),
            None => {
                let known = names().collect::<Vec<_>>().join(", ");
                let why = format!("pool {name} is unknown: write one of {known}");
                Err(refuse(Status::NOT_FOUND, &why))
            }
        }
    }

    pub(super) fn add_to_pool(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let example = json!({ "address": "127.0.0.1:9003", "weight": 2 });
        let Addition { address, weight, send_proxy, mut passthrough } = body(request, &example)?;
        passthrough.iter_mut().for_each(|name| name.make_ascii_lowercase());
        let (pool, names) = (param(request, "pool"), passthrough.clone());
        let added = self.balancer.add_to(pool, address, (weight, send_proxy), names);
        added.map_err(refused)?;
        self.note(format!("{} to the pool {pool}", added_in_words(address, weight, &passthrough)));
        let added = json!({
            "pool": pool,
            "address": address,
            "weight": weight,
            "send_proxy": send_proxy,
            "passthrough": passthrough,
        });
        Ok(answer(&added).with_status(Status::CREATED))
    }

    pub(super) fn weigh_in_pool(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let (pool, address) = (param(request, "pool"), address(request)?);
        let Weight { weight } = body(request, &json!({ "weight": 2 }))?;
        let before = self.balancer.set_weight((pool, address), weight).map_err(refused)?;
        self.note(format!("the weight of {address} in {pool} changed from {before} to {weight}"));
        let changed =
            json!({ "pool": pool, "address": address, "weight": weight, "before": before });
        Ok(answer(&changed))
    }

    pub(super) fn remove_from_pool(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let (pool, address) = (param(request, "pool"), address(request)?);
        let Removal { drain } = optional_body(request, &json!({ "drain": true }))?;
        let removal = self.balancer.remove((pool, address), drain).map_err(refused)?;
        let what = removed_in_words(removal.tunnels, removal.rate);
        self.note(format!("removing {address} from the pool {pool}: {what}"));
        Ok(answer(&to_json(&removal)?))
    }

    pub(super) fn drain_in_pool(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let (pool, address) = (param(request, "pool"), address(request)?);
        let Drain { window } = optional_body(request, &json!({ "window": "30s" }))?;
        let window = duration("window", window.as_deref())?;
        let draining = self.balancer.drain((pool, address), window).map_err(refused)?;
        self.note(format!("draining {address} of the pool {pool}: {} tunnels", draining.tunnels));
        Ok(answer(&to_json(&draining)?))
    }

    pub(super) fn undrain_in_pool(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let (pool, address) = (param(request, "pool"), address(request)?);
        let EmptyBody {} = optional_body(request, &json!({}))?;
        self.balancer.undrain((pool, address)).map_err(refused)?;
        self.note(format!("the drain of {address} of the pool {pool} was cancelled"));
        Ok(answer(&json!({ "pool": pool, "address": address })))
    }

    pub(super) fn drain_pool(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let pool = param(request, "pool");
        let Drain { window } = optional_body(request, &json!({ "window": "10m" }))?;
        let window = duration("window", window.as_deref())?;
        let draining = self.balancer.drain_pool(pool, window).map_err(refused)?;
        self.note(format!("draining the pool {pool}: {} tunnels", draining.tunnels));
        Ok(answer(&to_json(&draining)?))
    }

    pub(super) fn rebalance_pool(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let example = json!({ "dry_run": true, "rate": 50 });
        let Rebalance { dry_run, rate } = optional_body(request, &example)?;
        let pool = param(request, "pool");
        let plan = self.balancer.rebalance_pool(pool, dry_run, rate).map_err(refused)?;
        if !dry_run {
            let (total, rate) = (plan.total, plan.rate);
            self.note(format!("rebalancing {pool}: closing {total} tunnels, {rate} a second"));
        }
        Ok(answer(&to_json(&plan)?))
    }

    pub(super) fn sites(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        let from = begin(request)?;
        let ((sites, total), counted) =
            (self.balancer.sites(from, PAGE), self.balancer.status().sites);
        let sites: Result<Vec<_>, _> =
            sites.iter().map(|it| site(&self.balancer, it, &counted)).collect();
        Ok(answer(&json!({ "sites": sites?, "next": next(request, from, total) })))
    }

    pub(super) fn site(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        let (name, counted) = (param(request, "site"), self.balancer.status().sites);
        let (sites, _) = self.balancer.sites(0, usize::MAX);
        match sites.iter().find(|it| it.name == name) {
            Some(found) => Ok(answer(&json!({ "site": site(&self.balancer, found, &counted)? }))),
            None => {
                let why = format!("site {name} is unknown: /v1/sites lists them");
                Err(refuse(Status::NOT_FOUND, &why))
            }
        }
    }

    pub(super) fn split(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let Weights { weights } = body(request, &json!({ "weights": { "green": 20 } }))?;
        let (site, route) = (param(request, "site"), param(request, "route"));
        let of = Some(route).filter(|route| *route != OWN);
        let split = self.balancer.set_split(site, of, &weights).map_err(refused)?;
        let shares: Vec<_> =
            split.iter().map(|share| format!("{} {}", share.pool, share.weight)).collect();
        self.note(format!("the split of {site} {route} is {}", shares.join(", ")));
        Ok(answer(&json!({ "split": to_json(&split)? })))
    }

    pub(super) fn maintenance(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let MaintenanceSwitch { on } = body(request, &json!({ "on": true }))?;
        let site = param(request, "site");
        let is_on = self.balancer.set_maintenance(site, on).map_err(refused)?;
        let whose = if on.is_none() { ", as the file has it" } else { "" };
        let state = if is_on { "under maintenance" } else { "not under maintenance" };
        self.note(format!("the site {site} is {state}{whose}"));
        Ok(answer(&json!({ "site": site, "maintenance": is_on })))
    }

    pub(super) fn limits(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        page(request, "limits", self.balancer.status().limits)
    }

    pub(super) fn blocks(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_read(request)?;
        page(request, "blocks", self.balancer.blocks())
    }

    pub(super) fn block(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let example = json!({ "network": "203.0.113.0/24", "for": "1h", "by": "fail2ban" });
        let NewBlock { network, time, by } = body(request, &example)?;
        let time = duration("for", Some(&time))?.unwrap_or_default();
        let peer = || request.peer().map_or_else(String::new, |peer| peer.ip().to_string());
        let block = self.balancer.block(&network, time, &by.unwrap_or_else(peer));
        let block = block.map_err(refused)?;
        self.note(format!("{} blocked {} for {time:?}", block.by, block.network));
        Ok(answer(&json!({ "block": to_json(&block)? })).with_status(Status::CREATED))
    }

    /// The network is in the query: it has a slash.
    pub(super) fn unblock(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_change(request)?;
        let network = request.query("network").unwrap_or_default();
        if !self.balancer.unblock(network).map_err(refused)? {
            let why = format!("{network:?} is not blocked: /v1/blocks lists the networks");
            return Err(refuse(Status::NOT_FOUND, &why));
        }
        self.note(format!("the block of {network} was ended"));
        Ok(answer(&json!({ "network": network })))
    }

    /// It is read, but sent as POST: its answer depends on a body.
    pub(super) fn explain(&self, request: &Request<'_>) -> AdminAnswer {
        self.check_operator(request)?;
        let example = json!({ "url": "wss://app.example/ws", "headers": ["X-Canary: always"] });
        let Asked { method, url, headers, from, listener } = body(request, &example)?;
        let explained = route::head(&method, &url, &headers).and_then(|(head, is_secure)| {
            route::explained(head, |asked| {
                let peer = (SocketAddr::new(from, 0), is_secure);
                self.balancer.explain(asked, peer, listener.as_deref())
            })
        });
        let explanation = explained.map_err(|why| refuse(Status::BAD_REQUEST, &why))?;
        Ok(answer(&to_json(&explanation)?))
    }
}
