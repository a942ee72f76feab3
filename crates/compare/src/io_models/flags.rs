//! The flags of a comparison of I/O models.

use std::time::Duration;

use clap::ValueEnum as _;
use throng_config::units::parse_duration;
use throng_engine::workers::{suggested_size, usable_cpus};
use throng_load::{Error, MAX_SHARDS};

use crate::io_model::{IoModel, IoTable};
use crate::parts::Handler;

/// The examples and the meaning of the tables, for help.
pub const EXAMPLES: &str = "Examples:
  lab io-models --html models.html                all tables at their usual sizes, in some minutes
  lab io-models --quick
  lab io-models --only idle --models threads,epoll --connections 1000,5000 --window 30s
  lab io-models --only workers --blocking 20ms --cpu 1ms --clients 500

The tables:
  idle       idle connections: CPU of the server, its memory and kernel stacks by connection
  connect    time until all are connected, and until each has had an echo
  workers    a handler that blocks: on the shards, on a pool of workers, on a thread each connection

What a model cannot do on this machine is reported in its cell. Figures of \"published\" rows are
those of other servers on other machines, for scale.";

/// A comparison of I/O models.
#[derive(Clone, Debug, clap::Args)]
pub struct IoModels {
    /// Which to compare [default: all that this system has]
    #[arg(long, value_name = "FAMILY", value_delimiter = ',')]
    pub models: Vec<IoModel>,
    /// Sizes of the tables idle and connect [default: 100,500,1000,1500,2000,2500,3000,3500,10000
    /// and 1000,3000,10000]
    #[arg(long, short, value_name = "N", value_delimiter = ',')]
    pub connections: Vec<usize>,
    /// Time for which CPU use is measured in each cell of the table idle [default: 10s, with
    /// --quick 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub window: Option<Duration>,
    /// Small sizes and short times, for a first look
    #[arg(long)]
    pub quick: bool,
    /// Only these tables
    #[arg(long, value_name = "TABLE", value_delimiter = ',')]
    pub only: Vec<IoTable>,
    /// Time for which the handler of the table workers blocks for each message
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_duration)]
    pub blocking: Duration,
    /// Time for which it computes for each message; the number of workers follows from both
    #[arg(long, value_name = "TIME", default_value = "100us", value_parser = parse_duration)]
    pub cpu: Duration,
    /// Connections that keep it busy
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub clients: usize,
    /// Time measured of each row of the table workers [default: 3s, with --quick 1s]
    #[arg(long, short, value_name = "TIME", value_parser = parse_duration)]
    pub duration: Option<Duration>,
    /// Event loops of the event-driven models; 0 = one for each usable CPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub shards: usize,
    /// Give up a cell when its set-up makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub setup_timeout: Duration,
}

/// Maximum connections of a cell, the limit of one client process.
const MAX: usize = 1_000_000;

impl IoModels {
    /// Returns the sizes of the table idle; by default the published sizes.
    pub(super) fn idle_sizes(&self) -> Vec<usize> {
        self.sizes(&[100, 500], &[100, 500, 1_000, 1_500, 2_000, 2_500, 3_000, 3_500, 10_000])
    }

    /// Returns the sizes of the table connect.
    pub(super) fn connect_sizes(&self) -> Vec<usize> {
        self.sizes(&[500], &[1_000, 3_000, 10_000])
    }

    fn sizes(&self, quick: &[usize], usual: &[usize]) -> Vec<usize> {
        match (&self.connections[..], self.quick) {
            ([], true) => quick.to_vec(),
            ([], false) => usual.to_vec(),
            (asked, _) => asked.to_vec(),
        }
    }

    pub(super) fn window(&self) -> Duration {
        self.window.unwrap_or(Duration::from_secs(if self.quick { 1 } else { 10 }))
    }

    pub(super) fn duration(&self) -> Duration {
        self.duration.unwrap_or(Duration::from_secs(if self.quick { 1 } else { 3 }))
    }

    pub(super) fn handler(&self) -> Handler {
        Handler { blocking: self.blocking, cpu: self.cpu }
    }

    /// Returns the tables in their order.
    pub(super) fn tables(&self) -> Vec<IoTable> {
        let all = IoTable::value_variants().iter().copied();
        all.filter(|table| self.only.is_empty() || self.only.contains(table)).collect()
    }

    /// Returns the first event-driven model, which runs the blocking handler.
    pub(super) fn event_driven(&self) -> Option<IoModel> {
        self.models.iter().copied().find(|model| model.is_event_driven())
    }

    /// Returns the event loops of an event-driven server.
    pub(super) fn event_loops(&self) -> usize {
        if self.shards == 0 { usable_cpus() } else { self.shards }
    }

    /// Returns the number of workers by the rule `CPUs + (blocking / cpu) * CPUs`.
    pub(super) fn workers(&self) -> usize {
        suggested_size(usable_cpus(), self.blocking, self.cpu)
    }

    /// Selects all models if no model is named, and refuses invalid flags.
    pub(super) fn complete(&mut self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        if self.models.is_empty() {
            self.models.extend(IoModel::HERE);
        }
        if let Some(model) = self.models.iter().find(|model| !IoModel::HERE.contains(model)) {
            let here: Vec<&str> = IoModel::HERE.iter().map(|model| model.name()).collect();
            let here = here.join(", ");
            return refuse(format!("--models {model} is not of this system, which has {here}"));
        }
        let sizes = self.connections.iter().chain([&self.clients]);
        if let Some(size) = sizes.into_iter().find(|size| !(1..=MAX).contains(*size)) {
            return refuse(format!(
                "{size} connections are none, or too many; --connections and --clients go from 1 \
                 to {MAX}"
            ));
        }
        if self.shards > MAX_SHARDS {
            return refuse(format!(
                "--shards is {}; at most {MAX_SHARDS} are possible, and 0 means one for each \
                 usable CPU",
                self.shards
            ));
        }
        let hour = Duration::from_secs(3600);
        for (flag, value) in [("--window", self.window()), ("--duration", self.duration())] {
            if value < Duration::from_millis(10) || value > hour {
                return refuse(format!("{flag} must be between 10ms and 1h, not {value:?}"));
            }
        }
        let second = Duration::from_secs(1);
        for (flag, value) in [("--blocking", self.blocking), ("--cpu", self.cpu)] {
            if value > second {
                return refuse(format!("{flag} must be at most 1s, not {value:?}"));
            }
        }
        if self.cpu < Duration::from_micros(1) {
            return refuse(
                "--cpu is 0; the rule for the number of workers divides by it: at least 1us"
                    .to_owned(),
            );
        }
        let is_alone = self.event_driven().is_none() && self.models.len() == 1;
        if is_alone && self.tables().contains(&IoTable::Workers) {
            return refuse(
                "--models threads leaves nothing to compare a blocking handler with; add epoll, or \
                 leave workers out of --only"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
