//! `lab netbench`: the blank/work benchmark's whole matrix on any server command.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use crate::netbench::{CaseProgress, Mode, PORT, Plan, ServerCommand};
use clap::ValueEnum;
use throng_config::units::parse_duration;
use throng_load::units::grouped;
use throng_load::{Error, Progress, Stage};

use throng_cli::Failure;
use throng_cli::bench::flags::TimeArgs;
use throng_cli::bench::output;
use throng_cli::bench::progress::StatusLine;
use throng_cli::signals::Stop;

pub(crate) const EXAMPLES: &str = "Examples:
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

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Command that starts the server, in one word: 'node server.js'; without it, our own
    #[arg(long, value_name = "COMMAND")]
    against: Option<String>,
    /// The server's name in the table [default: the program's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// A connection for many requests, or, as the published figures, for each request one
    #[arg(
        long,
        value_enum,
        value_name = "keep-alive|close",
        default_value = "keep-alive",
        hide_possible_values = true
    )]
    reuse: Reuse,
    /// Connections of the cases, with commas
    #[arg(long, short, value_name = "N,...", value_delimiter = ',', default_value = "1,100,10000")]
    connections: Vec<usize>,
    /// Modes of the cases, with commas
    #[arg(
        long,
        value_enum,
        value_name = "MODE,...",
        value_delimiter = ',',
        default_value = "blank,work"
    )]
    modes: Vec<ModeArg>,
    /// Where the server listens [default: 1234; a free one for our own]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Address that the server listens on
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    #[command(flatten)]
    time: TimeArgs,
    /// Longest wait for an answer or a connection; then it counts as an error
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Longest wait until a started server listens
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    start_timeout: Duration,
    #[command(flatten)]
    output: output::OutputArgs,
    /// Threads of this generator, at most as many as connections
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    threads: usize,
    /// Source addresses 127.0.0.1, .2, ... [default: 8 with --reuse close, else one for each 25,000
    /// connections]
    #[arg(long, alias = "source", value_name = "N", help_heading = "Connecting")]
    sources: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reuse {
    KeepAlive,
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
    #[value(alias = "0")]
    Blank,
    #[value(alias = "1")]
    Work,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Blank => Self::Blank,
            ModeArg::Work => Self::Work,
        }
    }
}

/// Runs the matrix, and shows the report.
pub(crate) fn run(args: Args, stop: &Stop) -> Result<ExitCode, Failure> {
    args.output.check()?;
    let (plan, output) = args.plan()?;
    let mut line = StatusLine::new("netbench", output.quiet);
    let outcome = crate::netbench::run(&plan, stop.flag(), &mut |at| show(&mut line, at));
    drop(line);
    output.show(&outcome?)
}

fn show(line: &mut StatusLine, at: &CaseProgress<'_>) {
    let CaseProgress { case, cases, connections, mode, .. } = *at;
    line.rename(&format!(
        "netbench {case} of {cases}, {} conn {mode}",
        grouped(connections as u64)
    ));
    let starting = Stage::Connecting { ready: 0, wanted: connections as u64 };
    let starting = Progress { stage: starting, connections: 0, done: 0, per_s: 0.0 };
    line.show(at.load.unwrap_or(&starting));
}

impl Args {
    fn plan(self) -> Result<(Plan, output::OutputArgs), Error> {
        let port = match (self.port, &self.against) {
            (Some(port), _) => port,
            (None, Some(_)) => PORT,
            (None, None) => free_port(self.address)?,
        };
        let address = SocketAddr::new(self.address, port);
        let command = match &self.against {
            Some(line) => ServerCommand::parse(line)?,
            None => own(address)?,
        };
        let plan = Plan {
            name: self.name.unwrap_or_else(|| command.name()),
            address,
            connections: self.connections,
            modes: self.modes.into_iter().map(Mode::from).collect(),
            keep_alive: self.reuse == Reuse::KeepAlive,
            duration: self.time.duration,
            warmup: self.time.warmup,
            threads: self.threads,
            sources: self.sources,
            timeout: self.timeout,
            start_timeout: self.start_timeout,
            ..Plan::new(command)
        };
        plan.check()?;
        Ok((plan, self.output))
    }
}

/// This very binary as the benchmark's server.
fn own(address: SocketAddr) -> Result<ServerCommand, Error> {
    let program = std::env::current_exe().unwrap_or_else(|_| "lab".into());
    let program = program.to_string_lossy().into_owned();
    let words = ["serve-netbench", "{mode}", "--listen"].map(str::to_owned);
    let words = std::iter::once(program).chain(words).chain([address.to_string()]);
    ServerCommand::of(words.collect())
}

/// Returns a port that is free now. It probably stays free until the server starts, and if not, the
/// server's failure is reported.
fn free_port(address: IpAddr) -> Result<u16, Error> {
    TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr()).map_or_else(
        |error| Err(Error::Usage(format!("--address {address} cannot be listened on: {error}"))),
        |free| Ok(free.port()),
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Bench {
        #[command(flatten)]
        args: Args,
    }

    fn plan(words: &[&str]) -> Result<Plan, String> {
        let words = std::iter::once("netbench").chain(words.iter().copied());
        let bench = Bench::try_parse_from(words).map_err(|error| error.to_string())?;
        bench.args.plan().map(|(plan, _)| plan).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_become_a_plan() {
        let usual = plan(&["--against", "node x.js"]).unwrap();
        assert_eq!(usual.address.to_string(), "127.0.0.1:1234");
        assert_eq!((usual.name.as_str(), usual.keep_alive, usual.threads), ("x", true, 1));
        assert_eq!((usual.connections, usual.modes.len()), (vec![1, 100, 10_000], 2));
        let own = plan(&[]).unwrap();
        assert_ne!(own.address.port(), 0);
        assert!(own.command.words().contains(&own.address.to_string()));
        let line = "--against ./s --name S --reuse close -c 1,7 --modes work --port 80 --address \
             ::1 -d 1s -w 0s --timeout 2s --start-timeout 3s -t 2 --sources 1";
        let words: Vec<&str> = line.split_whitespace().collect();
        let plan = plan(&words).unwrap();
        assert_eq!((plan.name.as_str(), plan.keep_alive, plan.threads), ("S", false, 2));
        assert_eq!((plan.connections, plan.modes), (vec![1, 7], vec![Mode::Work]));
        assert_eq!((plan.address.to_string(), plan.sources), ("[::1]:80".to_owned(), Some(1)));
        assert_eq!(
            (plan.timeout, plan.start_timeout),
            (Duration::from_secs(2), Duration::from_secs(3))
        );
    }

    #[test]
    fn mistakes_teach() {
        for (words, hint) in [
            (&["--against", ""][..], "is empty"),
            (&["--against", "a | b"], "sh -c 'exec ...'"),
            (&["--against", "a", "--reuse", "no"], "keep-alive"),
            (&["--against", "a", "--modes", "idle"], "blank"),
            (&["--against", "a", "-c", "1,0"], "--connections is 0"),
            (&["--against", "a", "--port", "0"], "--port"),
            (&["--against", "a", "--duration", "5"], "write \"5s\" or \"5ms\""),
            (&["--address", "192.0.2.1"], "--address 192.0.2.1"),
            (&["--json", "--csv"], "cannot be used with"),
        ] {
            let error = plan(words).unwrap_err();
            assert!(error.contains(hint), "{words:?}: {error}");
        }
    }
}
