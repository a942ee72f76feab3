//! `throng balance ctl`: the admin API for people.

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
    List,
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
    },
    /// Read the configuration file again.
    Reload,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client = admin(args.admin.as_deref())?;
    let token = args.token_file.as_ref().map(|file| read_token(file, "--token-file"));
    let client = client.with_token(token.transpose()?);
    let (method, path, body) = request(&args.command);
    let answer = client
        .request(method, &path, body.as_ref(), TIMEOUT)
        .map_err(|why| Failure::runtime(format!("the admin API at {client}: {why}")))?;
    if !answer.is_success() {
        return Err(Failure::runtime(answer.reason()));
    }
    let value = answer.json();
    match args.command {
        _ if args.json => terminal::report_line(&value)?,
        CtlCommand::List => terminal::report(table(&value))?,
        _ => terminal::report_line(in_words(&args.command, &value))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the admin API at the address of the flag, or else of the balancer's own variable.
fn admin(flag: Option<&str>) -> Result<Client, Failure> {
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

/// Encodes an address as one segment of a path (RFC 3986 section 3.3).
fn in_path(address: &str) -> String {
    let encode = |byte: u8| match byte {
        _ if byte.is_ascii_alphanumeric() || b".:-_".contains(&byte) => char::from(byte).into(),
        _ => format!("%{byte:02X}"),
    };
    address.bytes().map(encode).collect()
}

/// Method, path and body.
fn request(command: &CtlCommand) -> (&'static str, String, Option<Value>) {
    let of = |address: &PeerAddress, what: &str| {
        let address = in_path(&address.to_string());
        format!("/backends/{address}{what}")
    };
    match command {
        CtlCommand::List => ("GET", "/backends".to_owned(), None),
        CtlCommand::Add { address, weight, send_proxy, passthrough } => {
            let mut body =
                json!({ "address": address, "weight": weight, "send_proxy": send_proxy });
            // A balancer of an earlier version refuses the key.
            if !passthrough.is_empty() {
                body["passthrough"] = json!(passthrough);
            }
            ("POST", "/backends".to_owned(), Some(body))
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
        CtlCommand::Rebalance { dry_run, rate } => {
            let body = json!({ "dry_run": dry_run, "rate": rate });
            ("POST", "/rebalance".to_owned(), Some(body))
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
        CtlCommand::Rebalance { dry_run, .. } => rebalance(*dry_run, value),
        CtlCommand::Reload => format!("configuration read again: {}", json_in_words(value)),
        // It has a table.
        CtlCommand::List => value.to_string(),
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
    let mut rows = vec![head.map(str::to_owned)];
    for row in backends.as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let state = match row["drain"].is_null() {
            true => text(&row["state"]),
            false => format!("{}, {} s", text(&row["state"]), row["drain"]["seconds_left"]),
        };
        let address = match row["pool"].as_str() {
            None | Some(DEFAULT_POOL) => text(&row["address"]),
            Some(pool) => format!("{} ({pool})", text(&row["address"])),
        };
        rows.push([
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
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 | 1 => line.push_str(&format!("{cell:<width$}  ")),
                _ => line.push_str(&format!("{cell:>width$}  ")),
            }
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sent_only_if_there_are_any() {
        let body = |names: &[&str]| {
            let passthrough = names.iter().map(ToString::to_string).collect();
            let address = PeerAddress::from(([127, 0, 0, 1], 1));
            request(&CtlCommand::Add { address, weight: 1, send_proxy: false, passthrough })
                .2
                .unwrap()
        };
        let plain = json!({ "address": "127.0.0.1:1", "weight": 1, "send_proxy": false });
        assert_eq!(body(&[]), plain);
        assert_eq!(body(&["*"])["passthrough"], json!(["*"]));
    }
}
