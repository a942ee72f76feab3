//! `throng cluster status`: the connections of servers to the broker of their cluster.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Subcommand;
use serde_json::{Map, Value};
use throng_config::units::parse_duration;
use throng_load::units::{grouped, show_bytes, show_ns};
use throng_proto::escape::Escaped;

use crate::failure::Failure;
use crate::http_client::{Client, JsonBody as _};
use crate::register::read_token;
use crate::terminal;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    /// Show whether each server's cluster delivers to it, and its figures.
    Status(Status),
}

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
struct Status {
    /// Addresses of the servers, or of their admin servers
    #[arg(default_value = "127.0.0.1:9001", value_name = "HOST:PORT")]
    nodes: Vec<String>,
    /// Print JSON: a list with an object for each server
    #[arg(long)]
    json: bool,
    /// File with the token of the admin servers
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Time for all answers, for example 2s
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "2s")]
    timeout: Duration,
}

const EXAMPLES: &str = "Columns:
  channels         that the server follows
  published        messages that the broker has taken
  refused          messages that it has not, or that waited for too long
  unknown          messages that were sent and not answered: they may have arrived
  received         messages that the broker has delivered
  lost             times that a channel's members missed messages, and learned so
  pending          memory of messages that the broker has not acknowledged
  lag              age of the last message that came, by the publisher's clock
  reconnects       attempts to connect again
  failed probes    times that delivery was tested and nothing came back
Below it are the rules for channels that not all of these servers have, and
servers of the cluster that have others.
Figures are since the start of the server. They are those of its /stats.json,
which it has on loopback addresses, at --admin, or with public_metrics.

The state is up; down (a part delivers nothing); behind (it takes no messages,
as a Redis without memory); or unlinked (never there since the start).

Exit codes: 0 all are up, 1 one is not, 2 a flag is invalid.

Examples:
  throng cluster status                              a server on its usual port
  throng cluster status 10.0.0.1:9101 10.0.0.2:9101 --token-file token.txt
  throng cluster status --json 10.0.0.1:9101 | jq '.[] | select(.up | not).why'";

pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let ClusterCommand::Status(args) = &args.command;
    let token = args.token_file.as_ref().map(|file| read_token(file, "--token-file"));
    let token = token.transpose()?;
    let clients = args.nodes.iter().map(|node| Ok(Client::parse(node)?.with_token(token.clone())));
    let clients: Vec<Client> = clients.collect::<Result<_, String>>().map_err(Failure::usage)?;
    // A server that does not answer must not delay the others.
    let nodes: Vec<Value> = thread::scope(|scope| {
        let asked: Vec<_> =
            clients.iter().map(|client| scope.spawn(|| status(client, args.timeout))).collect();
        let answered =
            asked.into_iter().map(|node| node.join().unwrap_or_else(|_| Err(PANICKED.to_owned())));
        answered.zip(&clients).map(|(node, client)| named(node, client)).collect()
    });
    let all_up = nodes.iter().all(is_up);
    if args.json {
        let text = serde_json::to_string_pretty(&nodes).map_err(Failure::runtime)?;
        terminal::report_line(text)?;
    } else {
        terminal::report(table(&nodes) + &differences(&nodes))?;
    }
    Ok(if all_up { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

const PANICKED: &str = "asking it failed; please report this";

fn is_up(node: &Value) -> bool {
    // A release without states has none.
    node["up"] == true && node["state"].as_str().is_none_or(|state| state == "up")
}

/// Returns the figures of a server, or why there are none.
fn status(client: &Client, timeout: Duration) -> Result<Map<String, Value>, String> {
    let answer = client.request("GET", "/stats.json", None, timeout)?;
    let reason = answer.reason();
    match answer.status {
        200 => {}
        401 => return Err("it wants the token of its admin server: --token-file".to_owned()),
        // This program's own texts begin with it.
        status if reason.starts_with(&status.to_string()) => {
            return Err(format!("it answers {reason}"));
        }
        status => return Err(format!("it answers {status}: {reason}")),
    }
    let mut stats = answer.json();
    match stats["cluster"].take() {
        Value::Object(cluster) => Ok(cluster),
        _ if stats["connections"].is_u64() => {
            Err("it has no cluster; start it with --cluster".to_owned())
        }
        _ => Err("it is no Throng server".to_owned()),
    }
}

/// Returns the figures with the server's address, or the error in their place.
fn named(figures: Result<Map<String, Value>, String>, client: &Client) -> Value {
    let mut node = figures.unwrap_or_else(|why| {
        [("up".to_owned(), false.into()), ("why".to_owned(), why.into())].into_iter().collect()
    });
    node.insert("node".to_owned(), client.to_string().into());
    Value::Object(node)
}

/// Columns between the server's address and its state.
type Column = (&'static str, &'static str, fn(u64) -> String);

const COLUMNS: [Column; 10] = [
    ("channels", "channels", grouped),
    ("published", "published", grouped),
    ("refused", "refused", grouped),
    ("unknown", "unknown", grouped),
    ("received", "received", grouped),
    ("lost", "lost", grouped),
    ("pending", "pending_bytes", |bytes| show_bytes(i64::try_from(bytes).unwrap_or(i64::MAX))),
    ("lag", "lag_microseconds", |micros| show_ns(micros.saturating_mul(1_000))),
    ("reconnects", "reconnects", grouped),
    ("failed probes", "probe_failures", grouped),
];

/// Returns a row for each server.
fn table(nodes: &[Value]) -> String {
    let mut rows = vec![vec!["node".to_owned()]];
    rows[0].extend(COLUMNS.iter().map(|(title, ..)| (*title).to_owned()));
    rows[0].push("state".to_owned());
    for node in nodes {
        let address = node["node"].as_str().unwrap_or_default();
        let mut row = vec![address.strip_prefix("http://").unwrap_or(address).to_owned()];
        row.extend(
            COLUMNS
                .iter()
                .map(|(_, name, show)| node[*name].as_u64().map_or_else(|| "-".to_owned(), show)),
        );
        row.push(state(node));
        rows.push(row);
    }
    let last = COLUMNS.len() + 1;
    let widths: Vec<usize> = (0..last)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            match column {
                0 => text += &format!("{cell:<width$}"),
                _ => text += &format!("  {cell:>width$}"),
            }
        }
        text += &format!("  {}\n", row[last]);
    }
    text
}

/// Returns a line for each rule that not all servers have, and for each server outside the list
/// that has other rules.
fn differences(nodes: &[Value]) -> String {
    let texts = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        all.map(|text| Escaped(text).to_string()).collect()
    };
    let known: Vec<_> = nodes.iter().filter(|node| node["rules"].is_array()).collect();
    let address = |node: &Value| {
        let address = node["node"].as_str().unwrap_or_default();
        address.strip_prefix("http://").unwrap_or(address).to_owned()
    };
    let all: BTreeSet<_> = known.iter().flat_map(|node| texts(&node["rules"])).collect();
    let mut lines = String::new();
    for rule in all {
        let has = |node: &&&Value| texts(&node["rules"]).contains(&rule);
        let (with, without): (Vec<_>, Vec<_>) = known.iter().partition(has);
        if !without.is_empty() {
            let list = |nodes: Vec<&&Value>| {
                nodes.into_iter().map(|node| address(node)).collect::<Vec<_>>().join(", ")
            };
            lines += &format!("rules differ: {rule} at {}, not at {}\n", list(with), list(without));
        }
    }
    let is_other = |node: &&Value| node["rules"] != known[0]["rules"];
    if lines.is_empty() && known.iter().any(is_other) {
        lines += "rules differ: they are in another order\n";
    }
    let here: BTreeSet<_> = known.iter().filter_map(|node| node["server"].as_str()).collect();
    let others: BTreeSet<_> = known.iter().flat_map(|node| texts(&node["differing"])).collect();
    for other in others.iter().filter(|other| !here.contains(&***other)) {
        lines += &format!("rules differ: server {other} has others, and was not asked\n");
    }
    lines
}

/// Returns `up`, or how long the server is not up, and why, on one line.
fn state(node: &Value) -> String {
    if is_up(node) {
        return "up".to_owned();
    }
    let time = node["down_seconds"].as_u64().map(|seconds| format!(" for {seconds} s"));
    let why = node["why"].as_str().unwrap_or("it does not say why");
    let state = node["state"].as_str().filter(|state| *state != "up").unwrap_or("down");
    // A table has one line for each server.
    format!("{}{}: {}", Escaped(state), time.unwrap_or_default(), Escaped(why.trim()))
}
