//! The command line of `throng bench`, and the plan that it makes.

use std::time::Duration;

use clap::Args as ClapArgs;
use clap::Subcommand;
use throng_config::units::{parse_count, parse_duration};
use throng_load::{Deflate, Error, Mode, Pace, Plan, Target, deflate};

use super::flags::{Common, LoopArgs, TargetArgs, TimeArgs};
use super::measurement::Measurement;
use super::payload::PayloadArgs;
use super::{broadcast, compare, connect, fanout, http, own, published, record, script};

/// Measure the throughput, latency and memory of a WebSocket or HTTP server under load.
///
/// Works against any server; `broadcast`, `fanout` and `http` start one of their own when none is
/// given. Every answer is checked. The last line says whether the server or the generator was the
/// limit; only a server-limited figure is the server's.
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:
  throng bench echo ws://127.0.0.1:9001/echo
  throng bench echo ws://127.0.0.1:9001/echo --connections 10000 --rate 10 --duration 30s
  throng bench idle ws://127.0.0.1:9001/echo --connections 15000
  throng bench connect ws://127.0.0.1:9001/echo
  throng bench broadcast --against ws://127.0.0.1:9001/ws/news --subscribers 15000
  throng bench fanout --channels 1000 --subscribers 15 --rate 1000/s
  throng bench script wss://example.org/chat chat.txt --tokens tokens.txt
  throng bench http http://127.0.0.1:9001/ --connections 1000
  throng bench echo wss://127.0.0.1:9001/echo --ca server.pem
  throng bench echo wss://example.org/ws --tokens tokens.txt --subprotocol chat.v1
  throng bench compare before.json after.json
  throng bench published --only echo,broadcast
  throng bench --record 127.0.0.1:9001 > scenario.toml

Exit codes: 0 success, 1 the run failed or its results are invalid, 2 an
invalid flag, 99 a threshold was exceeded.")]
pub struct Args {
    #[command(subcommand)]
    work: Work,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Echo messages: throughput and latency
    ///
    /// Closed loop by default: --pipeline messages are under way on each connection, and each
    /// answer triggers the next. With --rate an open loop: every connection sends at that rate
    /// whether or not answers come, and latency counts from the planned time, so a stall of the
    /// server cannot hide.
    #[command(after_help = "Examples:
  throng bench echo ws://127.0.0.1:9001/echo --connections 100 --size 1KiB --pipeline 16
  throng bench echo ws://127.0.0.1:9001/echo --connections 10000 --rate 10 --slo 'p99<5ms'
  throng bench echo ws://127.0.0.1:9001/echo --connections 1000 --find-max --slo 'p99<5ms'
  throng bench echo ws://127.0.0.1:9001/echo --connections 50 --number 1000000
  throng bench echo ws://127.0.0.1:9001/echo --connections 10000 --rate 10 --rate-ramp 30s
  throng bench echo ws://127.0.0.1:9001/echo --stages 10s:1k,30s:5k,30s:5k --slo 'p99<5ms'
  throng bench echo ws://127.0.0.1:9001/echo --text --size 16KiB --json > echo.json
  throng bench echo ws://127.0.0.1:9001/echo --deflate --size 1KiB
  throng bench echo ws://127.0.0.1:9001/echo --payload '{\"id\":{sequence},\"from\":\"{client}\"}'
  throng bench echo ws://127.0.0.1:9001/echo --deflate window:10 --size 136 --html echo.html
  throng bench echo 'ws://127.0.0.1:8080/ws?user={client}' -H 'Origin: http://127.0.0.1' \
--token abc")]
    Echo(Echo),
    /// Idle connections: memory per connection, and the server's CPU time
    ///
    /// Start the server afresh for it: memory that an earlier run left behind hides what these
    /// connections need.
    #[command(after_help = "Examples:
  throng bench idle ws://127.0.0.1:9001/echo --connections 15000 --hold 10s
  throng bench idle ws://127.0.0.1:9001/echo --hold 1s --await-close 60s    \
does a shutdown lose a Close frame?")]
    Idle(Idle),
    /// Connect, upgrade, one echo, reset: connections per second, and time by phase
    ///
    /// Closed loop by default: as each connection ends, the next begins in its place. With --rate
    /// an open loop: connections begin by a fixed schedule whatever becomes of those before them,
    /// and their time counts from the planned moment, so a stall of the server cannot hide.
    // Without a set-up there is nothing to spread, and all places may be taken at once.
    #[command(after_help = connect::EXAMPLES,
              mut_arg("ramp", |ramp| ramp.hide(true)),
              mut_arg("window", |window| window.hide(true)))]
    Connect(connect::Args),
    /// One message to all members of a channel: time until the last receives it, and server cost
    ///
    /// All connections join by the URL (our server: /ws/{channel}), and a message from one more
    /// goes to all of them. By itself it starts a server; --against takes any other that sends a
    /// message of one connection to the others.
    #[command(after_help = broadcast::EXAMPLES)]
    Broadcast(broadcast::Args),
    /// Many channels at a fixed rate: delivery latency, and lost, duplicate or reordered messages
    ///
    /// An open loop: every publish has its planned time, whatever became of those before it, and
    /// latency counts from there to each subscriber. Each message carries its channel and number,
    /// so that what is lost, comes twice or comes out of order is counted exactly. By itself it
    /// starts a server; --against takes any other that sends a message of one connection to the
    /// others of its channel.
    #[command(after_help = fanout::EXAMPLES)]
    Fanout(fanout::Args),
    /// Clients that follow a script: send, expect, pause; mismatches, and latency by step
    ///
    /// For servers that do not echo. A message is compared with what the script expects; what came
    /// instead is in the report.
    #[command(after_help = script::EXAMPLES)]
    Script(script::Args),
    /// HTTP/1.1 requests: throughput, latency, and the server's cost per request
    ///
    /// Closed loop by default: --pipeline requests are under way on each connection, and each
    /// answer triggers the next. With --rate an open loop: requests leave by a fixed schedule
    /// whether or not answers come, and latency counts from the planned time, so a stall of the
    /// server cannot hide.
    #[command(after_help = http::EXAMPLES)]
    Http(http::Args),
    /// Compare two sets of reports: improvements and regressions
    ///
    /// For every figure that both sides have: the change, its confidence interval when there are
    /// several runs of each side, and whether it is a regression.
    #[command(after_help = compare::EXAMPLES)]
    Compare(compare::Args),
    /// Run the tables of five published articles on this machine, their figures beside ours
    ///
    /// Every figure of the articles stands with its source beside the same measurement of Throng,
    /// with their ratio and the party that limited it: a row that the generator or another process
    /// limited has no ratio. Everything that is measured is started here and ended afterwards;
    /// nginx and HAProxy are measured where they are installed.
    #[command(after_help = published::EXAMPLES)]
    Published(published::Args),
    /// Write a scenario for `throng tune` from the statistics of a running server
    ///
    /// The server is asked twice. From the growth of its counters come the connections, the rate,
    /// the size of messages and how many clients each one reaches. It is a model: all connections
    /// are alike, and no content is recorded.
    #[command(long_flag = "record", after_help = record::EXAMPLES)]
    Record(record::Args),
    /// The server of the blank/work benchmark that `published` starts
    #[command(hide = true)]
    BlankWork(own::BlankWork),
    /// The servers and subscribers that other modes start
    #[command(hide = true)]
    Part {
        /// The part as JSON
        part: String,
    },
}

#[derive(Debug, ClapArgs)]
struct Echo {
    #[command(flatten)]
    target: TargetArgs,
    /// Connections
    #[arg(long, short, value_name = "N", default_value_t = 100, value_parser = parse_count)]
    connections: usize,
    #[command(flatten)]
    payload: PayloadArgs,
    /// Messages in flight on each connection (closed loop)
    #[arg(long, short, value_name = "N", default_value_t = 1,
          conflicts_with_all = ["rate", "find_max", "stages"])]
    pipeline: usize,
    /// Messages per second on each connection (open loop)
    #[arg(long, short, value_name = "PER_SECOND")]
    rate: Option<f64>,
    #[command(flatten)]
    loops: LoopArgs,
    /// Offer permessage-deflate: no-context (each message by itself), or window:BITS (9 to 15;
    /// those before it are the context). The report has the ratio of both directions, and says so
    /// if the server declines
    #[arg(long, value_name = "MODE", num_args = 0..=1, default_missing_value = "no-context",
          value_parser = deflate::parse)]
    deflate: Option<Deflate>,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    common: Common,
}

impl Echo {
    fn measurement(self) -> Result<Measurement, Error> {
        let of_all = |rate: f64| rate * self.connections as f64;
        let highest = self.loops.highest().map(|rate| rate / self.connections as f64);
        let pace = match self.rate.or(highest) {
            Some(rate_per_s) => Pace::Open { rate_per_s },
            None => Pace::Closed { pipeline: self.pipeline },
        };
        let (number, duration, warmup) = self.loops.times(&self.time, self.rate.map(of_all));
        let search = self.loops.find_max.options(of_all(self.rate.unwrap_or(10.0)));
        let mode = Mode::Echo { pace, duration, warmup };
        let mut plan = Plan::new(Target::parse(&self.target.url)?, mode);
        plan.common.connections = self.connections;
        self.loops.apply(number, &mut plan.common);
        plan.deflate = self.deflate.unwrap_or_default();
        self.payload.apply(&mut plan)?;
        Ok(Measurement { search, ..self.common.measurement(plan)? })
    }
}

#[derive(Debug, ClapArgs)]
struct Idle {
    #[command(flatten)]
    target: TargetArgs,
    /// Connections to hold
    #[arg(long, short, value_name = "N", default_value_t = 10_000, value_parser = parse_count)]
    connections: usize,
    /// Time to hold them
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    hold: Duration,
    /// Then send each connection a message, and fail unless each echoes it
    #[arg(long)]
    echo: bool,
    /// Then wait so long for the server to close every connection, and report the codes: stop or
    /// restart it when the progress line says so
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    await_close: Option<Duration>,
    #[command(flatten)]
    common: Common,
}

impl Idle {
    fn measurement(self) -> Result<Measurement, Error> {
        let mode = Mode::Idle { hold: self.hold };
        let mut plan = Plan::new(Target::parse(&self.target.url)?, mode);
        plan.common.connections = self.connections;
        plan.echo_after_idle = self.echo;
        plan.await_close = self.await_close;
        self.common.measurement(plan)
    }
}

/// The task of a command line.
#[derive(Debug)]
pub(super) enum Task {
    /// Load on a server.
    Measure(Measurement),
    /// Two sides of runs.
    Compare(compare::Args),
    /// The tables of articles.
    Published(published::Args),
    /// A scenario from a running server.
    Record(record::Args),
    /// The server of the blank/work benchmark.
    BlankWork(own::BlankWork),
    /// A process of a measurement.
    Part(String),
}

impl Args {
    /// Returns the task of the command line.
    pub(super) fn task(self) -> Result<Task, Error> {
        let measurement = match self.work {
            Work::Echo(echo) => echo.measurement(),
            Work::Idle(idle) => idle.measurement(),
            Work::Connect(connect) => connect.measurement(),
            Work::Broadcast(args) => args.measurement(),
            Work::Fanout(args) => args.measurement(),
            Work::Script(args) => args.measurement(),
            Work::Http(args) => args.measurement(),
            Work::Compare(args) => return Ok(Task::Compare(args)),
            Work::Published(args) => return Ok(Task::Published(args)),
            Work::Record(args) => return Ok(Task::Record(args)),
            Work::BlankWork(args) => return Ok(Task::BlankWork(args)),
            Work::Part { part } => return Ok(Task::Part(part)),
        };
        measurement.map(Task::Measure)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::{CommandFactory, Parser};
    use throng_load::find_max::Load;
    use throng_load::{Content, RateStage};

    use super::super::output::OutputArgs;
    use super::*;

    #[derive(Debug, Parser)]
    struct Bench {
        #[command(flatten)]
        args: Args,
    }

    /// Parses the arguments of `throng bench`.
    pub(in crate::bench) fn measurement(words: &[&str]) -> Result<Measurement, String> {
        let words = std::iter::once("bench").chain(words.iter().copied());
        let bench = Bench::try_parse_from(words).map_err(|error| error.to_string())?;
        match bench.args.task().map_err(|error| error.to_string())? {
            Task::Measure(measurement) => Ok(measurement),
            other => panic!("{other:?}"),
        }
    }

    /// The plan of WebSocket clients, event loops of a server of our own, and how it is shown.
    pub(in crate::bench) fn websocket(
        line: &str,
    ) -> Result<(Plan, Option<usize>, OutputArgs), String> {
        let words: Vec<_> = line.split_whitespace().collect();
        match measurement(&words)? {
            Measurement { load: Load::WebSocket(plan), own_shards, output, .. } => {
                Ok((*plan, own_shards, output))
            }
            other => panic!("{other:?}"),
        }
    }

    fn plan(line: &str) -> Result<(Plan, OutputArgs), String> {
        websocket(line).map(|(plan, _, output)| (plan, output))
    }

    const URL: &str = "ws://127.0.0.1:9001";

    #[test]
    fn the_flag_table_is_consistent() {
        Bench::command().debug_assert();
    }

    #[test]
    fn flags_of_the_set_up_are_listed_where_there_is_one() {
        let help = |work: &str| {
            Bench::try_parse_from(["bench", work, "--help"]).expect_err("it is help").to_string()
        };
        for flag in ["--ramp", "--window"] {
            let is_listed = |work| help(work).lines().any(|line| line.trim().starts_with(flag));
            for work in ["echo", "idle", "broadcast", "fanout", "script", "http"] {
                assert!(is_listed(work), "{work} {flag}");
            }
            assert!(!help("connect").contains(flag), "{flag}");
        }
        assert!(help("connect").contains("--setup-timeout"));
    }

    #[test]
    fn defaults() {
        let (plan, output) = plan(&format!("echo {URL}")).unwrap();
        assert_eq!(
            (plan.common.connections, plan.size, plan.text, plan.common.threads),
            (100, 100, false, 1)
        );
        assert_eq!(
            plan.mode,
            Mode::Echo {
                pace: Pace::Closed { pipeline: 1 },
                duration: Duration::from_secs(10),
                warmup: Duration::from_secs(1)
            }
        );
        assert_eq!(plan.resource(), "/echo");
        assert!(!output.json && !output.quiet);
    }

    #[test]
    fn each_mode_reads_its_flags() {
        let (echo, output) = plan(&format!(
            "echo {URL} -c 10000 -s 4KiB --text --rate 10 -d 1.5s --warmup 0s --json -q \
             --server-pid 1,2 -t 2"
        ))
        .unwrap();
        assert_eq!(
            (echo.common.connections, echo.size, echo.text, echo.common.threads),
            (10_000, 4096, true, 2)
        );
        let Mode::Echo { pace: Pace::Open { rate_per_s }, .. } = echo.mode else {
            panic!("{:?}", echo.mode)
        };
        assert_eq!(rate_per_s, 10.0);
        assert_eq!(echo.common.server_pids, [1, 2]);
        assert!(output.json && output.quiet);
        let (idle, _) = plan(&format!("idle {URL} --connections 15 --hold 2s --ramp 3s")).unwrap();
        assert_eq!(idle.mode, Mode::Idle { hold: Duration::from_secs(2) });
        assert_eq!((idle.common.connections, idle.common.ramp), (15, Duration::from_secs(3)));
        let (connect, _) = plan(&format!("connect {URL} --concurrency 7 --sources 3")).unwrap();
        assert_eq!((connect.common.connections, connect.common.sources), (7, Some(3)));
        let (connect, _) = plan(&format!("connect {URL} --rate 500/s -d 2s -w 0s")).unwrap();
        let (rate_per_s, duration, warmup) = (Some(500.0), Duration::from_secs(2), Duration::ZERO);
        assert_eq!(connect.mode, Mode::Connect { rate_per_s, duration, warmup });
        assert_eq!(connect.common.connections, 1000);
        let (connect, _) = plan(&format!("connect {URL} -c 7 --stages 1s:10,1s:20")).unwrap();
        let rate_per_s = Some(20.0);
        assert_eq!(connect.mode, Mode::Connect { rate_per_s, duration, warmup });
        assert_eq!((connect.common.connections, connect.common.stages.len()), (7, 2));
    }

    #[test]
    fn compression_is_offered_with_json_unless_letters_are_asked_for() {
        let content = |line: &str| {
            let (plan, _) = plan(&format!("echo {URL} {line}")).unwrap();
            (
                plan.content,
                throng_load::DeflateMode::Shared == plan.deflate.mode,
                plan.deflate.enabled,
            )
        };
        let json = |seed| Content::Json { seed };
        assert_eq!(content(""), (Content::Letters, true, false));
        assert_eq!(content("--payload json --seed 9"), (json(9), true, false));
        assert_eq!(content("--deflate"), (json(1), true, true));
        assert_eq!(content("--deflate no-context -s 1KiB"), (json(1), true, true));
        assert_eq!(content("--deflate window:12"), (json(1), false, true));
        assert_eq!(
            content("--deflate window:9 --payload letters"),
            (Content::Letters, false, true)
        );
    }

    #[test]
    fn a_number_of_messages_takes_the_place_of_a_time() {
        let closed = plan(&format!("echo {URL} -n 10k")).unwrap().0;
        assert_eq!(closed.common.number, Some(10_000));
        let open = plan(&format!("echo {URL} -n 10k -c 5 --rate 100")).unwrap().0;
        let (duration, warmup) = (Duration::from_secs(20), Duration::ZERO);
        let pace = Pace::Open { rate_per_s: 100.0 };
        assert_eq!((open.common.number, open.mode), (None, Mode::Echo { pace, duration, warmup }));
    }

    #[test]
    fn stages_take_the_place_of_a_rate_and_a_time() {
        let plan = plan(&format!("echo {URL} -c 100 --stages 10s:1k,0s:2.5k,1m:500/s")).unwrap().0;
        let stage =
            |secs, rate_per_s| RateStage { duration: Duration::from_secs(secs), rate_per_s };
        assert_eq!(plan.common.stages, [stage(10, 1000.0), stage(0, 2500.0), stage(60, 500.0)]);
        let (duration, warmup) = (Duration::from_secs(70), Duration::ZERO);
        let pace = Pace::Open { rate_per_s: 25.0 };
        assert_eq!(plan.mode, Mode::Echo { pace, duration, warmup });
    }

    #[test]
    fn a_number_of_connections_is_no_smaller_than_their_places() {
        let of = |line: &str| plan(&format!("connect {URL} {line}")).unwrap().0;
        assert_eq!(
            (of("-n 10k").common.number, of("-n 10k").common.connections),
            (Some(10_000), 64)
        );
        assert_eq!((of("-n 5").common.number, of("-n 5").common.connections), (Some(5), 5));
        // A schedule determines their duration.
        let (rate_per_s, duration, warmup) = (Some(100.0), Duration::from_secs(2), Duration::ZERO);
        let open = of("-n 200 --rate 100");
        assert_eq!((open.common.number, open.common.connections), (None, 1000));
        assert_eq!(open.mode, Mode::Connect { rate_per_s, duration, warmup });
        assert_eq!(of("").common.number, None);
    }

    #[test]
    fn a_payload_may_be_given() {
        let of = |line: &str| plan(&format!("echo {URL} {line}")).unwrap().0;
        let given = |text: &str| Content::Given(text.as_bytes().into());
        let hello = of("--payload hello");
        assert_eq!((hello.content, hello.size, hello.text), (given("hello"), 5, true));
        assert!(!of("--payload hello --binary").text);
        let template = of("--payload n{client}-{sequence}");
        assert!(matches!(template.content, Content::Template(_)));
        assert_eq!((template.size, template.text), (4, true));
        let folder = throng_testkit::TempFolder::new("payload");
        let path = folder.write("payload", b"{client}");
        let file = |more: &str| of(&format!("--payload-file {} {more}", path.display()));
        assert_eq!((file("").content, file("").text), (given("{client}"), false));
        assert_eq!((file("--text").content, file("--text").text), (given("{client}"), true));
        assert_eq!((file("--template").size, file("--template").text), (1, false));
        std::fs::write(&path, b"ok\xff").unwrap();
        assert_eq!(file("").size, 3);
        let error = plan(&format!("echo {URL} --text --payload-file {}", path.display()));
        assert!(error.unwrap_err().contains("not text in UTF-8 from byte 2 on"));
    }

    #[test]
    fn mistakes_teach() {
        for (line, hint) in [
            ("echo 127.0.0.1:9001", "did you mean ws://127.0.0.1:9001?"),
            ("echo ws://h --size 4K", "4KiB"),
            ("echo ws://h --duration 30", "write \"30s\""),
            ("echo ws://h --rate 10 --pipeline 2", "cannot be used with"),
            ("echo ws://h --rate 0", "--rate"),
            ("echo ws://h --deflate maybe", "window:BITS"),
            ("echo ws://h --deflate window:16", "9 to 15"),
            ("echo ws://h --payload json --size 20", "72 bytes"),
            ("echo ws://h --json --csv", "cannot be used with"),
            ("echo ws://h --connections 0", "--connections"),
            ("echo ws://h --conections 5", "--connections"),
            ("idle ws://h --slo p99<1s", "write errors<0.1%"),
            ("echo ws://h --precision 5", "--find-max"),
            ("echo ws://h -n 0", "--number is 0"),
            ("echo ws://h --rate-ramp 5s", "--rate"),
            ("echo ws://h -n 5 -d 1s", "cannot be used with"),
            ("echo ws://h -n 5 --find-max", "cannot be used with"),
            ("connect ws://h -n 0", "--number is 0"),
            ("connect ws://h -n 5 -d 1s", "cannot be used with"),
            ("connect ws://h -n 5 --find-max", "cannot be used with"),
            ("connect ws://h --rate 0", "--rate is connections a second"),
            ("connect ws://h --rate fast", "1000/s"),
            ("connect ws://h --rate-ramp 5s", "--rate"),
            ("connect ws://h --rate 5 -c 0", "--concurrency is 0"),
            ("echo ws://h --stages 10s", "such as 10s:1k"),
            ("echo ws://h --stages 10s:x", "such as 10s:1k"),
            ("echo ws://h --stages 1s:5 --rate 5", "cannot be used with"),
            ("echo ws://h --stages 1s:5 -n 5", "cannot be used with"),
            ("echo ws://h --stages 1s:0", "one rate at least"),
            ("echo ws://h --stages 0s:5", "between 10ms and a week"),
            ("echo ws://h --find-max --pipeline 2", "cannot be used with"),
            ("echo ws://h --slo p99", "errors<0.1%"),
            ("echo ws://h --payload hi --size 5", "--size 5 is for"),
            ("echo ws://h --payload json --binary", "--binary is for"),
            ("echo ws://h --payload {x}", "--payload: {x} is not a value"),
            ("echo ws://h --payload {token}", "--tokens FILE"),
            ("echo ws://h --payload-file /nowhere", "--payload-file /nowhere cannot be read"),
            ("echo ws://h --payload a --payload-file b", "cannot be used with"),
            ("connect ws://h --template", "--payload-file"),
            ("echo ws://h/{user}", "{user} is not a value of a client"),
            ("connect ws://h -H X", "'Name: value'"),
            ("idle ws://h --token {token}", "--tokens FILE"),
            ("eco ws://h", "echo"),
            ("echo", "URL"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(hint), "{line}: {error}");
        }
    }
}
