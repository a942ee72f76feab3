//! `throng bench broadcast`: one message to all members of a channel, on a server that it starts or
//! on an external one.

use std::time::Duration;

use throng_config::units::{parse_count, parse_duration};
use throng_load::{Error, Mode, Plan, Target};

use super::flags::Common;
use super::measurement::Measurement;
use super::own::{PLACEHOLDER, own_shards};
use super::payload::PayloadArgs;

pub(super) const EXAMPLES: &str = "Examples:
  throng bench broadcast
  throng bench broadcast --subscribers 15000 --shards 2
  throng bench broadcast --payload '{\"id\":{sequence},\"text\":\"hello\"}'
  throng bench broadcast --against ws://127.0.0.1:9001/ws/news --subscribers 15000 --rounds 50";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Subscribers; one more connection publishes
    #[arg(long, short = 'n', value_name = "N", default_value_t = 1000, value_parser = parse_count)]
    subscribers: usize,
    /// Publishes to measure
    #[arg(long, short, value_name = "K", default_value_t = 20)]
    rounds: usize,
    #[command(flatten)]
    payload: PayloadArgs,
    /// Longest wait for one publish to reach all subscribers
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Event loops of our own server
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "against")]
    shards: usize,
    /// Measure this server instead, as ws://host:port/path; without a path, at /ws/bench
    #[arg(long, alias = "url", value_name = "URL")]
    against: Option<String>,
    #[command(flatten)]
    common: Common,
}

impl Args {
    pub(super) fn measurement(self) -> Result<Measurement, Error> {
        if self.rounds == 0 {
            return Err(Error::Usage("--rounds is 0; it must be at least 1".to_owned()));
        }
        let pids = &self.common.connecting.server_pid;
        let own_shards = own_shards(self.against.is_some(), self.shards, pids)?;
        let target = Target::parse(self.against.as_deref().unwrap_or(PLACEHOLDER))?;
        let mode = Mode::Broadcast { publishes: self.rounds, timeout: self.timeout };
        let mut plan = Plan::new(target, mode);
        plan.common.connections = self.subscribers;
        self.payload.apply(&mut plan)?;
        Ok(Measurement { own_shards, ..self.common.measurement(plan)? })
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::websocket;
    use super::*;

    fn plan(line: &str) -> Result<(Plan, Option<usize>), String> {
        websocket(&format!("broadcast {line}")).map(|(plan, own_shards, _)| (plan, own_shards))
    }

    #[test]
    fn flags_become_a_plan() {
        let (usual, shards) = plan("").unwrap();
        let given = plan("--payload n{sequence}").unwrap();
        assert_eq!((usual.common.connections, usual.size, shards), (1_000, 100, Some(1)));
        let line = "--against ws://h:1/ws/x -n 7 --rounds 4 --size 1KiB --text -t 2 --server-pid 1";
        let (plan, shards) = plan(line).unwrap();
        assert!(matches!(plan.mode, Mode::Broadcast { publishes: 4, .. }));
        assert_eq!(
            (plan.common.connections, plan.size, plan.text, plan.common.threads),
            (7, 1024, true, 2)
        );
        assert_eq!((plan.common.server_pids, shards), (vec![1], None));
        let (given, _) = given;
        assert!(matches!(given.content, throng_load::Content::Template(_)));
        assert_eq!((given.size, given.text), (2, true));
    }

    #[test]
    fn mistakes_teach() {
        for (line, words) in [
            ("--rounds 0", "--rounds is 0"),
            ("--shards 0", "--shards is 0"),
            ("--subscribers 0", "--connections"),
            ("--server-pid 7", "--server-pid"),
            ("--against http://h", "did you mean ws://h?"),
            ("--against ws://h --shards 2", "cannot be used with"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(words), "{line}: {error}");
        }
    }
}
