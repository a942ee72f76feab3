//! `throng bench fanout`: many channels at a fixed rate, on a server that it starts or on an
//! external one.

use std::time::Duration;

use throng_config::units::{parse_count, parse_duration};
use throng_load::{Error, Mode, Plan, Target};

use super::find_max::FindMaxArgs;
use super::flags::{Common, parse_rate};
use super::measurement::Measurement;
use super::own::{PLACEHOLDER, own_shards};
use super::payload::PayloadArgs;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench fanout
  throng bench fanout --channels 1000 --subscribers 15 --rate 1000/s --duration 30s \
--html fanout.html
  throng bench fanout --channels 1 --subscribers 5000 --rate 20/s --size 1KiB --shards 2
  throng bench fanout --channels 100 --find-max --slo 'p99<20ms' --duration 5s
  throng bench fanout --against ws://127.0.0.1:9001/ws/{channel} --rate 500/s --server-pid 4711

Connections: a publisher for each channel, and its subscribers: 1000 channels
of 15 are 16,000. --csv and --html show latency, CPU and memory over time;
--json has both.";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Channels, each with a publisher of its own
    #[arg(long, short, value_name = "C", default_value_t = 1000, value_parser = parse_count)]
    channels: usize,
    /// Subscribers of each channel
    #[arg(long, short = 'n', value_name = "M", default_value_t = 15, value_parser = parse_count)]
    subscribers: usize,
    /// Messages a second to all channels together, which take turns
    #[arg(long, short, value_name = "PER_SECOND", default_value = "1000/s",
          value_parser = parse_rate)]
    rate: f64,
    #[command(flatten)]
    find_max: FindMaxArgs,
    #[command(flatten)]
    payload: PayloadArgs,
    /// Time measured, such as 10s, 1.5s or 2m
    #[arg(long, short, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// Time run before and not counted
    #[arg(long, short, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    warmup: Duration,
    /// Event loops of our own server
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "against")]
    shards: usize,
    /// Measure this server instead, as ws://host:port/path with {channel} where a channel's name
    /// goes
    #[arg(long, alias = "url", value_name = "URL")]
    against: Option<String>,
    #[command(flatten)]
    common: Common,
}

impl Args {
    pub(super) fn measurement(self) -> Result<Measurement, Error> {
        let Self { channels, subscribers, rate: rate_per_s, duration, warmup, .. } = self;
        let pids = &self.common.connecting.server_pid;
        let own_shards = own_shards(self.against.is_some(), self.shards, pids)?;
        let target = Target::parse(self.against.as_deref().unwrap_or(PLACEHOLDER))?;
        let mode = Mode::Fanout { channels, subscribers, rate_per_s, duration, warmup };
        let mut plan = Plan::new(target, mode);
        plan.common.connections = Plan::fanout_connections(channels, subscribers);
        self.payload.apply_stamped(&mut plan)?;
        let search = self.find_max.options(rate_per_s);
        Ok(Measurement { search, own_shards, ..self.common.measurement(plan)? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::websocket;
    use super::*;

    fn plan(line: &str) -> Result<(Plan, Option<usize>), String> {
        websocket(&format!("fanout {line}")).map(|(plan, own_shards, _)| (plan, own_shards))
    }

    #[test]
    fn flags_become_a_plan() {
        let (usual, shards) = plan("").unwrap();
        let given = plan(r#"--payload {"text":"{stamp}"}"#).unwrap();
        assert_eq!((usual.common.connections, usual.size, shards), (16_000, 100, Some(1)));
        let line =
            "-c 20 -n 5 --rate 50/s -d 1s -w 0s --text --url ws://h:1/x/{channel}/y --server-pid 7";
        let (plan, shards) = plan(line).unwrap();
        assert_eq!(
            (plan.common.connections, shards, plan.resource()),
            (120, None, "/x/{channel}/y")
        );
        let Mode::Fanout { channels, subscribers, rate_per_s, .. } = plan.mode else {
            panic!("{:?}", plan.mode)
        };
        assert_eq!((channels, subscribers, rate_per_s), (20, 5, 50.0));
        assert_eq!(plan.common.server_pids, [7]);
        let (given, _) = given;
        assert_eq!((given.size, given.text), (40 + r#"{"text":""}"#.len(), true));
    }

    #[test]
    fn mistakes_teach() {
        for (line, words) in [
            ("--rate 5/min", "1000/s"),
            ("--rate 0", "--rate is 0"),
            ("--size 10", "--size is 10"),
            ("--payload hello", "{stamp}"),
            ("--payload {stamp}{stamp}", "{stamp} once"),
            ("--payload {stamp} --size 50", "--size 50 is for"),
            ("--payload json", "--payload json is for"),
            ("--against ws://h/news", "write {channel}"),
            ("--server-pid 7", "--server-pid"),
            ("--shards 0", "--shards is 0"),
            ("--shards 999999", "--shards is 999999; a server has 1 to 256"),
            ("--against ws://h/{channel} --shards 2", "cannot be used with"),
            ("--json --csv", "cannot be used with"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
