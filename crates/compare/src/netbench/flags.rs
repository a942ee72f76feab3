//! The flags of the benchmark's matrix, and the load for each case.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use throng_config::units::parse_duration;
use throng_load::http::{self, Expect};
use throng_load::{Common, Error, Target};

use super::document;
use super::server_command::ServerCommand;
use crate::blank_work::Mode;
use crate::word::words;

/// The examples and the meaning of the columns, for help.
pub const EXAMPLES: &str = "Examples:
  lab netbench                                     our own server on a free port
  lab netbench --against 'lab serve-netbench'
  lab netbench --against 'node Node.HTTP.js' --reuse close
  lab netbench --against ./Golang.HTTP --name Go --json > go.json
  lab netbench --against 'nginx -p . -c {mode}.conf' --port 8080 --connections 1,100
  lab netbench --against \"sh -c 'ulimit -n 20000; exec ./server {mode}'\"

The command is started afresh for each case, without a shell, and ended afterwards with everything
it started. {mode} in it becomes 0 (blank) or 1 (work), {port} the port; without {mode} the mode is
its last argument. It has to stay in the foreground, and to listen within --start-timeout.

What a server has to do: at any path, with status 200
  blank          Content-Type text/plain, the body OK
  work           Content-Type application/json, the answer to the JSON document in the request
Before and after the load its answers are read in full; in work mode also the one to a document made
up for that moment. Under load, complete answers with status 200 count.

What the table says:
  requests       sent within the time; responses: answered within it
  per CPU-s      answers by the second of CPU time of the server and the processes it started
  p50, p99       from sending to the last byte of the answer; with --reuse close from connecting
  limit          the party that limited the case; the reason is below the table

Exit codes: 0 done, 1 a case failed (the others still run), 2 a mistake in the command.";

/// The suite's port.
const PORT: u16 = 1234;
/// Source addresses without keep-alive. A port whose connection we closed first stays unusable for
/// a second.
const SOURCES: usize = 8;

words! {
    /// The use of connections.
    enum Reuse {
        /// A connection for many requests
        KeepAlive = "keep-alive",
        /// A connection for each request, as the published figures
        Close = "close",
    }
}

/// The matrix of the blank/work benchmark on a server.
#[derive(Clone, Debug, clap::Args)]
pub struct NetBench {
    /// Command that starts the server, in one word: 'node server.js'; without it, our own
    #[arg(long, value_name = "COMMAND")]
    pub against: Option<String>,
    /// The server's name in the table [default: the program's]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// A connection for many requests, or, as the published figures, for each request one
    #[arg(
        long,
        value_name = "keep-alive|close",
        default_value = "keep-alive",
        hide_possible_values = true
    )]
    pub reuse: Reuse,
    /// Connections of the cases, with commas
    #[arg(long, short, value_name = "N,...", value_delimiter = ',', default_value = "1,100,10000")]
    pub connections: Vec<usize>,
    /// Modes of the cases, with commas
    #[arg(long, value_name = "MODE,...", value_delimiter = ',', default_value = "blank,work")]
    pub modes: Vec<Mode>,
    /// Where the server listens [default: 1234; a free one for our own]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Address that the server listens on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    pub address: IpAddr,
    /// Time measured, such as 10s, 1.5s or 2m
    #[arg(long, short, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Warm-up time, which is not measured
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Longest wait for an answer or a connection; then it counts as an error
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Longest wait until a started server listens
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub start_timeout: Duration,
    /// Threads of this generator, at most as many as connections
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Source addresses 127.0.0.1, .2, ... [default: 8 with --reuse close, else one for each 25,000
    /// connections]
    #[arg(long, alias = "source", value_name = "N", help_heading = "Connecting")]
    pub sources: Option<usize>,
    /// The words that start the program's own server, before its address.
    #[arg(skip)]
    pub own: Vec<String>,
    #[arg(skip)]
    pub(super) server: Option<ServerCommand>,
}

impl NetBench {
    /// Finds the server's command and port, and refuses invalid flags.
    pub(super) fn complete(&mut self) -> Result<(), Error> {
        let port = match (self.port, &self.against) {
            (Some(port), _) => port,
            (None, Some(_)) => PORT,
            (None, None) => free_port(self.address)?,
        };
        self.port = Some(port);
        let server = match &self.against {
            Some(line) => ServerCommand::parse(line)?,
            None if self.own.is_empty() => ServerCommand::of(Vec::new())?,
            None => {
                let address = self.listens_on().to_string();
                ServerCommand::of(self.own.iter().cloned().chain([address]).collect())?
            }
        };
        self.name.get_or_insert_with(|| server.name());
        self.server = Some(server);
        if self.connections.is_empty() || self.modes.is_empty() {
            return Err(Error::Usage(
                "--connections and --modes need at least one value each".to_owned(),
            ));
        }
        if self.threads == 0 {
            return Err(Error::Usage("--threads is 0; it must be at least 1".to_owned()));
        }
        let cases = self.connections.iter().flat_map(|n| self.modes.iter().map(move |m| (n, m)));
        cases
            .into_iter()
            .try_for_each(|(&connections, &mode)| self.load(connections, mode)?.check())
    }

    /// Returns the address on which the server listens.
    pub(super) fn listens_on(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port.unwrap_or(PORT))
    }

    /// Returns the load of one case.
    pub(super) fn load(&self, connections: usize, mode: Mode) -> Result<http::HttpPlan, Error> {
        let is_work = mode == Mode::Work;
        let keep_alive = self.reuse == Reuse::KeepAlive;
        let address = self.listens_on();
        let loopback = address.is_ipv4() && address.ip().is_loopback();
        let taking_turns = (!keep_alive && loopback).then_some(SOURCES);
        let content_type = ("Content-Type".to_owned(), "application/json".to_owned());
        let common = Common {
            headers: is_work.then_some(content_type).into_iter().collect(),
            connections,
            threads: self.threads.min(connections.max(1)),
            sources: self.sources.or(taking_turns),
            ..Target::parse_http(&format!("http://{address}/"))?.into()
        };
        Ok(http::HttpPlan {
            body: if is_work { document::Document::of_the_suite().request } else { Vec::new() },
            duration: self.duration,
            warmup: self.warmup,
            keep_alive,
            // The contract allows only this status.
            expect: Expect::parse("200").map_err(Error::Usage)?,
            timeout: self.timeout,
            ..http::HttpPlan::new(common)
        })
    }
}

/// Returns a free port. The port probably stays free until the server starts; otherwise the
/// server's failure is reported.
fn free_port(address: IpAddr) -> Result<u16, Error> {
    TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr()).map_or_else(
        |error| Err(Error::Usage(format!("--address {address} cannot be listened on: {error}"))),
        |free| Ok(free.port()),
    )
}
