//! `throng bench http`: requests and answers, on a server that it starts or on an external one.

use std::path::PathBuf;
use std::time::Duration;

use throng_config::units::{parse_count, parse_duration, parse_size};
use throng_io::file::read_once;
use throng_load::find_max::Load;
use throng_load::http::{Expect, HttpPlan, Pace};
use throng_load::{Common, Error, Target};

use super::MAX_FILE;
use super::flags::{Connecting, LoopArgs, SloArgs, TimeArgs, parse_rate};
use super::identity::IdentityArgs;
use super::measurement::Measurement;
use super::output::OutputArgs;
use super::own::own_shards;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench http                                         a server of our own that answers OK
  throng bench http http://127.0.0.1:9001/ --connections 1000 --duration 30s
  throng bench http http://127.0.0.1:9001/ --pipeline 16
  throng bench http http://127.0.0.1:9001/ --number 100000 --connections 50
  throng bench http http://127.0.0.1:9001/ --rate 20000/s --slo 'p99<10ms'
  throng bench http http://127.0.0.1:9001/ --find-max --slo 'p99<10ms' --duration 5s
  throng bench http http://127.0.0.1:9001/ --no-keep-alive --sources 8
  throng bench http http://127.0.0.1:9001/api -X POST -H 'Content-Type: application/json' \\
      --body '{\"a\":1}' --expect-status 201
  throng bench http 'http://127.0.0.1:9001/users/{client}' --tokens tokens.txt
  throng bench http http://127.0.0.1:9001/ --html http.html --json > http.json

What the table says:
  requests       complete answers with an expected status
  latency        from sending to the last byte of the answer; with --rate from the planned time
  connect        with --no-keep-alive: from the connect call to the TCP connection; together: both
  lateness       with --rate: how late this generator came to a request

Exit codes: 0 done, 1 the run failed or its figures do not count, 2 a mistake
in the command, 99 a threshold of --slo was not kept.";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The server, as http://host:port/path; without it one of our own is started
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Connections; with --no-keep-alive requests under way at a time
    #[arg(long, short, value_name = "N", default_value_t = 100, value_parser = parse_count)]
    connections: usize,
    /// Requests under way on each connection at most
    #[arg(long, short, value_name = "DEPTH", default_value_t = 1)]
    pipeline: usize,
    /// Requests a second of all connections together, such as 20000 or 20000/s (open loop)
    #[arg(long, short, value_name = "PER_SECOND", value_parser = parse_rate)]
    rate: Option<f64>,
    #[command(flatten)]
    loops: LoopArgs,
    /// A connection for each request: connect, ask with Connection: close, read the answer to its
    /// end
    #[arg(long)]
    no_keep_alive: bool,
    /// Event loops of our own server
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "url")]
    shards: usize,
    #[command(flatten)]
    request: RequestArgs,
    #[command(flatten)]
    time: TimeArgs,
    /// Longest wait for an answer or a connection; then it counts as an error
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    #[command(flatten)]
    thresholds: SloArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    connecting: Connecting,
}

/// The request, and the expected answers.
#[derive(Debug, clap::Args)]
struct RequestArgs {
    /// Request method
    #[arg(
        help_heading = "Request",
        long,
        short = 'X',
        value_name = "METHOD",
        default_value = "GET"
    )]
    method: String,
    #[command(flatten)]
    identity: IdentityArgs,
    /// Body of every request, with any method
    #[arg(help_heading = "Request", long, value_name = "TEXT",
          conflicts_with_all = ["body_file", "body_size"])]
    body: Option<String>,
    /// Send the content of this file as the request's body
    #[arg(help_heading = "Request", long, value_name = "PATH", conflicts_with = "body_size")]
    body_file: Option<PathBuf>,
    /// A body of so many letters, such as 100, 4KiB or 1MiB
    #[arg(help_heading = "Request", long, value_name = "SIZE", value_parser = parse_size)]
    body_size: Option<usize>,
    /// Fill in {client}, {sequence}, {random}, {uuid} and {token} in the body, too, for each
    /// request
    #[arg(help_heading = "Request", long)]
    template: bool,
    /// Send the body in chunks (of 4 KiB) instead of by its length
    #[arg(help_heading = "Request", long)]
    chunked: bool,
    /// Statuses that count, others are errors: 200, 2xx, or a list: 200,304
    #[arg(help_heading = "Request", long, value_name = "STATUS", default_value = "2xx",
          value_parser = Expect::parse)]
    expect_status: Expect,
}

impl Args {
    pub(super) fn measurement(self) -> Result<Measurement, Error> {
        let pids = &self.connecting.server_pid;
        let own_shards = own_shards(self.url.is_some(), self.shards, pids)?;
        // A started server has its address later.
        let target = Target::parse_http(self.url.as_deref().unwrap_or("http://127.0.0.1:1"))?;
        let (number, duration, warmup) = self.loops.times(&self.time, self.rate);
        let search = self.loops.find_max.options(self.rate.unwrap_or(1000.0));
        let rate = self.rate.or(self.loops.highest());
        let body = self.request.body()?;
        let body_text = str::from_utf8(&body).ok().filter(|_| self.request.template);
        let others = [target.resource("/")].into_iter().chain(body_text);
        let (headers, tokens) = self.request.identity.fields(others)?;
        let connections = self.connections;
        let slos = self.thresholds.slo;
        let mut common = Common { headers, tokens, connections, slos, ..target.into() };
        self.loops.apply(number, &mut common);
        self.connecting.apply(&mut common);
        let plan = HttpPlan {
            method: self.request.method,
            body,
            body_has_places: self.request.template,
            chunked: self.request.chunked,
            expect: self.request.expect_status,
            pipeline: self.pipeline,
            pace: rate.map_or(Pace::Closed, |rate_per_s| Pace::Open { rate_per_s }),
            keep_alive: !self.no_keep_alive,
            duration,
            warmup,
            timeout: self.timeout,
            ..HttpPlan::new(common)
        };
        plan.check()?;
        let load = Load::Http(Box::new(plan));
        Ok(Measurement { load, search, own_shards, output: self.output })
    }
}

impl RequestArgs {
    fn body(&self) -> Result<Vec<u8>, Error> {
        if let Some(path) = &self.body_file {
            return read_once(path, MAX_FILE)
                .map_err(|error| Error::Usage(format!("--body-file {} {error}", path.display())));
        }
        let size = self.body_size.unwrap_or(0);
        if size > 1 << 30 {
            return Err(Error::Usage(format!("--body-size is {size}; at most 1GiB is sent")));
        }
        Ok(match &self.body {
            Some(text) => text.clone().into_bytes(),
            None => (0..size).map(|at| b'a' + (at % 26) as u8).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::measurement;
    use super::*;

    fn plan(words: &[&str]) -> Result<(HttpPlan, Option<usize>), String> {
        match measurement(&[&["http"], words].concat())? {
            Measurement { load: Load::Http(plan), own_shards, .. } => Ok((*plan, own_shards)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_become_a_plan() {
        let (usual, shards) = plan(&[]).unwrap();
        assert_eq!((usual.common.connections, usual.pipeline, usual.common.threads), (100, 1, 1));
        assert_eq!((usual.pace, usual.keep_alive, shards), (Pace::Closed, true, Some(1)));
        assert_eq!(usual.timeout, Duration::from_secs(30));
        let line = "http://h:1/x?y -c 20 --rate 5000/s -d 1s -w 0s -t 2 --pid 7 -X PUT \
                    --no-keep-alive --body-size 1KiB --chunked --expect-status 201 \
                    --slo p99<10ms --slo rate>5 --source 3";
        let words: Vec<&str> = line.split_whitespace().collect();
        let header = ["-H", "Accept: a/b", "--header", "X:y:z"];
        let (plan, shards) = plan(&[&words[..], &header].concat()).unwrap();
        assert_eq!(
            (plan.common.target.resource("/"), plan.common.connections, plan.common.threads),
            ("/x?y", 20, 2)
        );
        assert_eq!((plan.pace, shards), (Pace::Open { rate_per_s: 5000.0 }, None));
        assert_eq!((plan.common.server_pids, plan.common.sources), (vec![7], Some(3)));
        assert_eq!((plan.method.as_str(), plan.body.len(), plan.chunked), ("PUT", 1024, true));
        assert!(!plan.keep_alive && plan.expect.accepts(201) && !plan.expect.accepts(200));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(plan.common.headers, [pair("Accept", "a/b"), pair("X", "y:z")]);
        assert_eq!(plan.common.slos.len(), 2);
    }

    #[test]
    fn mistakes_teach() {
        for (line, words) in [
            ("127.0.0.1:1", "did you mean http://127.0.0.1:1?"),
            ("ws://h/", "did you mean http://h/?"),
            ("--pipeline 0", "--pipeline is 0"),
            ("--pipeline 2 --no-keep-alive", "leave out --no-keep-alive"),
            ("--rate 0", "--rate is 0"),
            ("--rate fast", "1000/s"),
            ("--body a --body-size 5", "cannot be used with"),
            ("--body a --body-file b", "cannot be used with"),
            ("--body-file /nowhere/at/all", "--body-file /nowhere/at/all"),
            ("--body-size 2GiB", "--body-size is 2147483648"),
            ("--chunked", "--body-size"),
            ("--template", "--template needs a body"),
            ("http://h/{id}", "{id} is not a value of a client"),
            ("--body {token} --template", "--tokens FILE"),
            ("--header Accept", "'Name: value'"),
            ("--header Content-Length:5", "follows from the body"),
            ("--expect-status ok", "200,304"),
            ("--slo p99", "p99<10ms"),
            ("--timeout 5", "write \"5s\""),
            ("--connections 0", "--connections is 0"),
            ("--shards 0", "--shards is 0"),
            ("--shards 999999", "--shards is 999999; a server has 1 to 256"),
            ("--shards 2 http://h/", "cannot be used with"),
            ("--server-pid 7", "--server-pid"),
            ("--method CONNECT", "tunnel"),
        ] {
            let words_typed: Vec<&str> = line.split_whitespace().collect();
            let error = plan(&words_typed).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
        assert!(plan(&["--body", "with GET"]).is_ok());
    }
}
