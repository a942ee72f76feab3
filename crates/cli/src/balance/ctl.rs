//! `throng balance ctl`: the admin API for people.

mod tables;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};
use throng_balance::DEFAULT_POOL;
use throng_io::PeerAddress;

use super::reload::json_in_words;
use super::sentences::{added_in_words, removed_in_words};
use crate::failure::Failure;
use crate::http_client::{Client, JsonBody as _};
use crate::register::read_token;
use crate::terminal;

const TIMEOUT: Duration = Duration::from_secs(10);

/// The variable that sets where the balancer has its admin API.
const ADMIN: &str = "THRONG_ADMIN_LISTEN";

#[derive(clap::Args)]
pub(super) struct Args {
    /// Address of the balancer's admin API [default: THRONG_ADMIN_LISTEN, or 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS:PORT")]
    admin: Option<String>,
    /// File with the admin API's token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Print the API's JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Subcommand)]
enum CtlCommand {
    /// List the backends.
    List {
        /// Only the backends of this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
    },
    /// List the pools.
    Pools,
    /// List the sites.
    Sites,
    /// List the limits of rates.
    Limits,
    /// Refuse new requests of clients in a network for a time. Open tunnels stay.
    Block {
        /// The network or address, for example 203.0.113.0/24
        network: String,
        /// The time, for example 1h
        #[arg(long = "for", value_name = "TIME")]
        time: String,
        /// Name of the operator or program, for the list [default: the user's name]
        #[arg(long, value_name = "NAME")]
        by: Option<String>,
    },
    /// End the block of a network.
    Unblock {
        /// The network or address, as the list has it
        network: String,
    },
    /// List the blocked networks.
    Blocks,
    /// Add a backend. It is kept on reloads, until the balancer restarts.
    Add {
        #[arg(value_parser = backend)]
        address: PeerAddress,
        /// Share of the load, 1 to 1000
        #[arg(long, default_value_t = 1)]
        weight: u32,
        /// Send it the client's address in a PROXY v2 header
        #[arg(long)]
        send_proxy: bool,
        /// Pass the TLS of clients that ask for this name (SNI) through to it; may be repeated
        ///
        /// A name, *. and a domain for names of one label more, or * for all other names. The
        /// balancer needs TLS of clients since its start, or a backend that connections are passed
        /// through to.
        #[arg(long, value_name = "NAME")]
        passthrough: Vec<String>,
        /// Add it to this pool [default: default]
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
    },
    /// Change a backend's weight.
    Weight {
        #[arg(value_parser = backend)]
        address: PeerAddress,
        weight: u32,
    },
    /// Stop sending clients to a backend, and close its tunnels.
    Drain {
        #[arg(value_parser = backend)]
        address: PeerAddress,
        /// Spread the closes over this time, for example 30s [default: close_rate per second]
        #[arg(long)]
        window: Option<String>,
    },
    /// Drain all backends of a pool, so that its clients come back by the present routes.
    DrainPool {
        /// Name of the pool
        pool: String,
        /// Spread the closes over this time, for example 10m [default: close_rate per second]
        #[arg(long)]
        window: Option<String>,
    },
    /// Switch the maintenance of a site: its requests get 503, and open tunnels stay.
    ///
    /// It stays over reloads, as long as the file has the same for this site.
    Maintenance {
        /// Name of the site
        site: String,
        #[arg(value_enum)]
        state: MaintenanceState,
    },
    /// Change the weights of pools in a split; others keep theirs.
    ///
    /// They stay over reloads, as long as the file has the same split. Open tunnels stay.
    Split {
        /// Name of the site
        site: String,
        /// Name of the route, or - for the split of the site itself
        #[arg(allow_hyphen_values = true)]
        route: String,
        /// Pools with their weights, for example green=20
        #[arg(required = true, value_name = "POOL=WEIGHT", value_parser = weight)]
        weights: Vec<(String, u32)>,
    },
    /// End a drain: the backend gets clients again.
    Undrain {
        #[arg(value_parser = backend)]
        address: PeerAddress,
    },
    /// Send a backend no more clients, and remove it with its last tunnel.
    Remove {
        #[arg(value_parser = backend)]
        address: PeerAddress,
        /// Close its tunnels, as drain does [default: as `removed` in the configuration says]
        #[arg(long)]
        drain: bool,
    },
    /// Close the surplus of crowded backends, so that their clients come back to the others.
    Rebalance {
        /// Only say what would be closed
        #[arg(long)]
        dry_run: bool,
        /// Tunnels a second, over all backends
        #[arg(long)]
        rate: Option<u32>,
        /// Only the backends of this pool
        #[arg(long, value_name = "NAME")]
        pool: Option<String>,
    },
    /// Read the configuration file again.
    Reload,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum MaintenanceState {
    On,
    Off,
    /// As the file has it
    File,
}

impl MaintenanceState {
    fn switch(self) -> Option<bool> {
        match self {
            Self::On => Some(true),
            Self::Off => Some(false),
            Self::File => None,
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client = admin(args.admin.as_deref(), args.token_file.as_ref())?;
    let (method, path, body) = request(&args.command);
    let mut value = ask(&client, method, &path, body.as_ref())?;
    // All pages of a list are one.
    while let Some(next) = value["next"].as_str().map(str::to_owned) {
        append(&mut value, ask(&client, "GET", &next, None)?);
    }
    match args.command {
        _ if args.json => terminal::report_line(&value)?,
        CtlCommand::List { .. } => terminal::report(table(&value))?,
        CtlCommand::Pools => terminal::report(tables::pools(&value))?,
        CtlCommand::Sites => terminal::report(tables::sites(&value))?,
        CtlCommand::Limits => terminal::report(tables::limits(&value))?,
        CtlCommand::Blocks => terminal::report(tables::blocks(&value))?,
        _ => terminal::report_line(in_words(&args.command, &value))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Adds the lists of a page to the lists of the pages before.
fn append(all: &mut Value, page: Value) {
    let Value::Object(page) = page else { return };
    for (name, value) in page {
        match (all[&name].as_array_mut(), value) {
            (Some(list), Value::Array(more)) => list.extend(more),
            (_, value) => all[name] = value,
        }
    }
}

/// Sends a request, and returns the JSON of its answer.
pub(super) fn ask(
    client: &Client,
    method: &'static str,
    path: &str,
    body: Option<&Value>,
) -> Result<Value, Failure> {
    let answer = client
        .request(method, path, body, TIMEOUT)
        .map_err(|why| Failure::runtime(format!("the admin API at {client}: {why}")))?;
    if !answer.is_success() {
        return Err(Failure::runtime(answer.reason()));
    }
    Ok(answer.json())
}

/// Returns the admin API at the address of the flag, or else of the balancer's own variable.
pub(super) fn admin(flag: Option<&str>, token: Option<&PathBuf>) -> Result<Client, Failure> {
    let token = token.map(|file| read_token(file, "--token-file")).transpose()?;
    Ok(at(flag)?.with_token(token))
}

fn at(flag: Option<&str>) -> Result<Client, Failure> {
    let variable = std::env::var(ADMIN).ok().filter(|address| !address.is_empty());
    let (from, address) = match (flag, variable.as_deref()) {
        (Some(address), _) => ("--admin", address),
        (None, Some(address)) => (ADMIN, address),
        (None, None) => ("--admin", "127.0.0.1:8081"),
    };
    Client::parse(address).map_err(|why| Failure::usage(format!("{from}: {why}")))
}

/// A backend's name.
fn backend(text: &str) -> Result<PeerAddress, String> {
    text.parse()
        .map_err(|_| "write its address as the list has it, for example 127.0.0.1:9001".to_owned())
}

/// A pool's weight.
fn weight(text: &str) -> Result<(String, u32), String> {
    let parsed = text.split_once('=').and_then(|(pool, weight)| {
        Some((pool.to_owned(), weight.parse().ok()?)).filter(|(pool, _)| !pool.is_empty())
    });
    parsed.ok_or_else(|| "write a pool and its weight, for example green=20".to_owned())
}

/// Returns a name as a segment of a path (RFC 3986 section 3.3).
fn segment(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' | b'~' => out.push(byte.into()),
            b':' => out.push(':'),
            // A segment of dots alone would be another path.
            b'.' if name.trim_matches('.').is_empty() => out.push_str("%2E"),
            b'.' => out.push('.'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Method, path and body.
fn request(command: &CtlCommand) -> (&'static str, String, Option<Value>) {
    let of = |address: &PeerAddress, what: &str| {
        let address = segment(&address.to_string());
        format!("/backends/{address}{what}")
    };
    let in_pool = |pool: &str, what: &str| format!("/v1/pools/{}{what}", segment(pool));
    match command {
        CtlCommand::List { pool: None } => ("GET", "/backends".to_owned(), None),
        CtlCommand::List { pool: Some(pool) } => ("GET", in_pool(pool, "/backends"), None),
        CtlCommand::Pools => ("GET", "/v1/pools".to_owned(), None),
        CtlCommand::Sites => ("GET", "/v1/sites".to_owned(), None),
        CtlCommand::Limits => ("GET", "/v1/limits".to_owned(), None),
        CtlCommand::Blocks => ("GET", "/v1/blocks".to_owned(), None),
        CtlCommand::Block { network, time, by } => {
            let user = || std::env::var("USER").ok().filter(|user| !user.is_empty());
            let body = json!({ "network": network, "for": time, "by": by.clone().or_else(user) });
            ("POST", "/v1/blocks".to_owned(), Some(body))
        }
        CtlCommand::Unblock { network } => {
            ("DELETE", format!("/v1/blocks?network={}", segment(network)), None)
        }
        CtlCommand::DrainPool { pool, window } => {
            ("POST", in_pool(pool, "/drain"), Some(json!({ "window": window })))
        }
        CtlCommand::Split { site, route, weights } => {
            let weights: serde_json::Map<String, Value> =
                weights.iter().map(|(pool, weight)| (pool.clone(), json!(weight))).collect();
            let path = format!("/v1/sites/{}/routes/{}/split", segment(site), segment(route));
            ("PATCH", path, Some(json!({ "weights": weights })))
        }
        CtlCommand::Maintenance { site, state } => {
            let path = format!("/v1/sites/{}/maintenance", segment(site));
            ("PUT", path, Some(json!({ "on": state.switch() })))
        }
        CtlCommand::Add { address, weight, send_proxy, passthrough, pool } => {
            let mut body =
                json!({ "address": address, "weight": weight, "send_proxy": send_proxy });
            // A balancer of an earlier version refuses the key.
            if !passthrough.is_empty() {
                body["passthrough"] = json!(passthrough);
            }
            let path = pool.as_ref().map(|pool| in_pool(pool, "/backends"));
            ("POST", path.unwrap_or_else(|| "/backends".to_owned()), Some(body))
        }
        CtlCommand::Weight { address, weight } => {
            ("PATCH", of(address, ""), Some(json!({ "weight": weight })))
        }
        CtlCommand::Drain { address, window } => {
            ("POST", of(address, "/drain"), Some(json!({ "window": window })))
        }
        CtlCommand::Undrain { address } => ("POST", of(address, "/undrain"), Some(json!({}))),
        CtlCommand::Remove { address, drain } => {
            ("DELETE", of(address, ""), drain.then(|| json!({ "drain": true })))
        }
        CtlCommand::Rebalance { dry_run, rate, pool } => {
            let body = json!({ "dry_run": dry_run, "rate": rate });
            let path = pool.as_ref().map(|pool| in_pool(pool, "/rebalance"));
            ("POST", path.unwrap_or_else(|| "/rebalance".to_owned()), Some(body))
        }
        CtlCommand::Reload => ("POST", "/reload".to_owned(), Some(json!({}))),
    }
}

fn in_words(command: &CtlCommand, value: &Value) -> String {
    let number = |name: &str| value[name].as_u64().and_then(|number| u32::try_from(number).ok());
    let tunnels = || {
        let last = if value["last"] == true { "; it was the last one that was up" } else { "" };
        removed_in_words(number("tunnels").unwrap_or_default(), number("rate")) + last
    };
    match command {
        CtlCommand::Add { address, weight, passthrough, .. } => {
            added_in_words(*address, *weight, passthrough)
        }
        CtlCommand::Weight { address, weight } => {
            format!("the weight of {address} is {weight}, and was {}", value["before"])
        }
        CtlCommand::Drain { address, .. } => format!("draining {address}: {}", tunnels()),
        CtlCommand::Undrain { address } => format!("{address} is taken in again"),
        CtlCommand::Remove { address, .. } => format!("removing {address}: {}", tunnels()),
        CtlCommand::DrainPool { pool, .. } => format!(
            "draining {} backends of {pool}: {} tunnels, at most {} a second",
            value["backends"], value["tunnels"], value["rate"]
        ),
        CtlCommand::Block { time, .. } => {
            let network = value["block"]["network"].as_str().unwrap_or_default();
            format!("{network} is blocked for {time}")
        }
        CtlCommand::Unblock { network } => format!("the block of {network} was ended"),
        CtlCommand::Split { .. } => tables::split(&value["split"]),
        CtlCommand::Maintenance { site, .. } => match value["maintenance"] == true {
            true => format!("{site} is under maintenance"),
            false => format!("{site} is not under maintenance"),
        },
        CtlCommand::Rebalance { dry_run, .. } => rebalance(*dry_run, value),
        CtlCommand::Reload => format!("configuration read again: {}", json_in_words(value)),
        // They have tables.
        CtlCommand::List { .. }
        | CtlCommand::Pools
        | CtlCommand::Sites
        | CtlCommand::Limits
        | CtlCommand::Blocks => value.to_string(),
    }
}

fn rebalance(dry_run: bool, value: &Value) -> String {
    let per_cent = |name: &str| value[name].as_f64().unwrap_or_default() * 100.0;
    let mut text = format!(
        "{} {} tunnels, {} a second, in {} s; furthest from its part: {:.0} % now, {:.0} % then",
        if dry_run { "would close" } else { "closing" },
        value["total"],
        value["rate"],
        value["seconds"],
        per_cent("spread_before"),
        per_cent("spread_after")
    );
    for surplus in value["moves"].as_array().into_iter().flatten() {
        let address = surplus["address"].as_str().unwrap_or_default();
        text.push_str(&format!("\n  {address}: {} of {}", surplus["close"], surplus["tunnels"]));
    }
    text
}

/// The backends in rows.
fn table(backends: &Value) -> String {
    let head =
        ["backend", "state", "weight", "tunnels", "requests", "handshakes", "failures", "p99"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    // Of all pools, or a page of one.
    let backends = backends.as_array().or_else(|| backends["backends"].as_array());
    for row in backends.into_iter().flatten() {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let state = match row["drain"].is_null() {
            true => text(&row["state"]),
            false => format!("{}, {} s", text(&row["state"]), row["drain"]["seconds_left"]),
        };
        let address = match row["pool"].as_str() {
            None | Some(DEFAULT_POOL) => text(&row["address"]),
            Some(pool) => format!("{} ({pool})", text(&row["address"])),
        };
        rows.push(vec![
            address,
            state,
            text(&row["weight"]),
            text(&row["tunnels"]),
            text(&row["requests"]),
            text(&row["handshakes"]),
            text(&row["totals"]["failures"]),
            format!("{:.1} ms", row["handshake_p99_ms"].as_f64().unwrap_or_default()),
        ]);
    }
    tables::layout(&rows, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sent_only_if_there_are_any() {
        let body = |names: &[&str]| {
            let passthrough = names.iter().map(ToString::to_string).collect();
            let address = PeerAddress::from(([127, 0, 0, 1], 1));
            let (weight, send_proxy, pool) = (1, false, None);
            let add = CtlCommand::Add { address, weight, send_proxy, passthrough, pool };
            request(&add).2.unwrap()
        };
        let plain = json!({ "address": "127.0.0.1:1", "weight": 1, "send_proxy": false });
        assert_eq!(body(&[]), plain);
        assert_eq!(body(&["*"])["passthrough"], json!(["*"]));
    }
}
