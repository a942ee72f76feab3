//! Plan of a comparison of I/O models.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;
use throng_engine::workers::{suggested_size, usable_cpus};

use crate::servers::handler::Handler;
use throng_load::{Error, MAX_SHARDS};

/// A server model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum IoModel {
    /// One thread for each connection.
    Threads,
    /// One shard for each CPU, over epoll.
    Epoll,
    /// Shards over mio.
    Portable,
}

impl IoModel {
    /// All that this system has.
    pub(crate) const ALL: &[Self] = if cfg!(target_os = "linux") {
        &[Self::Threads, Self::Epoll, Self::Portable]
    } else if cfg!(unix) {
        &[Self::Threads, Self::Portable]
    } else {
        &[Self::Portable]
    };

    /// The word for it: what the setting `io` has.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Epoll => "epoll",
            Self::Portable => "portable",
        }
    }

    /// Many connections on each thread.
    #[must_use]
    pub(crate) fn is_event_driven(self) -> bool {
        self != Self::Threads
    }
}

impl fmt::Display for IoModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for IoModel {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|model| model.name() == word).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|model| model.name()).collect();
            format!("{word:?} is no model of this system; it can be {}", names.join(", "))
        })
    }
}

/// One of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Table {
    /// Connections that do nothing: CPU and memory.
    Idle,
    /// The time until so many are connected, and each has had an echo.
    Connect,
    /// A handler that blocks: on the shards, on workers, on threads.
    Workers,
}

impl Table {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Idle, Self::Connect, Self::Workers];
}

/// The server that a cell needs, with the WebSocket endpoints `/echo`, `/block` (it runs the
/// [`Handler`] where it is called, then echoes) and `/work` (the same on a worker).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    /// Its model.
    pub model: IoModel,
    /// Event loops, of an event-driven model.
    pub shards: usize,
    /// Workers.
    pub workers: usize,
    /// The blocking handler.
    pub handler: Handler,
}

/// A whole comparison.
#[derive(Clone, Debug)]
pub(crate) struct IoModelsPlan {
    /// The models, in this order. Default: all that this system has.
    pub models: Vec<IoModel>,
    /// The tables. Default: all.
    pub tables: Vec<Table>,
    /// Idle connections, the published sizes. Default 100, 500, 1,000, 1,500, 2,000, 3,500 and
    /// 10,000.
    pub idle: Vec<usize>,
    /// Connections to be made. Default 1,000, 3,000 and 10,000.
    pub connect: Vec<usize>,
    /// Time for which CPU use is measured in each cell of the idle table. Default: 10 s.
    pub window: Duration,
    /// The blocking handler.
    pub handler: Handler,
    /// Connections that keep the handler busy, with one message under way on each. Default 100.
    pub clients: usize,
    /// Time measured of each row with the handler. Default 3 s.
    pub duration: Duration,
    /// Event loops of event-driven servers; 0, the default, for one of each usable CPU.
    pub shards: usize,
    /// Longest time without progress while connections are set up. Default 10 s.
    pub setup_timeout: Duration,
}

impl Default for IoModelsPlan {
    fn default() -> Self {
        Self {
            models: IoModel::ALL.to_vec(),
            tables: Table::ALL.to_vec(),
            idle: vec![100, 500, 1_000, 1_500, 2_000, 2_500, 3_000, 3_500, 10_000],
            connect: vec![1_000, 3_000, 10_000],
            window: Duration::from_secs(10),
            handler: Handler::default(),
            clients: 100,
            duration: Duration::from_secs(3),
            shards: 0,
            setup_timeout: Duration::from_secs(10),
        }
    }
}

/// Maximum connections of a cell: what one process of clients can have.
const MOST: usize = 1_000_000;

impl IoModelsPlan {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag, the value and what to write instead.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let refuse = |text: String| Err(Error::Usage(text));
        if self.models.is_empty() || self.tables.is_empty() {
            return refuse("--models and --only need at least one value each".to_owned());
        }
        let sizes = || self.idle.iter().chain(&self.connect).chain([&self.clients]);
        if let Some(size) = sizes().find(|size| !(1..=MOST).contains(*size)) {
            return refuse(format!(
                "{size} connections are none, or too many; --connections and --clients go from 1 \
                 to {MOST}"
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
        for (flag, value) in [("--window", self.window), ("--duration", self.duration)] {
            if value < Duration::from_millis(10) || value > hour {
                return refuse(format!("{flag} must be between 10ms and 1h, not {value:?}"));
            }
        }
        let second = Duration::from_secs(1);
        for (flag, value) in [("--blocking", self.handler.blocking), ("--cpu", self.handler.cpu)] {
            if value > second {
                return refuse(format!("{flag} must be at most 1s, not {value:?}"));
            }
        }
        if self.handler.cpu < Duration::from_micros(1) {
            return refuse(
                "--cpu is 0; the rule for the number of workers divides by it: at least 1us"
                    .to_owned(),
            );
        }
        if self.tables.contains(&Table::Workers)
            && self.event_driven().is_none()
            && self.models.len() == 1
        {
            return refuse(
                "--models threads leaves nothing to compare a blocking handler with; add epoll, or \
                 leave workers out of --only"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// The event-driven model on which the handler blocks: the first.
    pub(super) fn event_driven(&self) -> Option<IoModel> {
        self.models.iter().copied().find(|model| model.is_event_driven())
    }

    /// Event loops of an event-driven server.
    pub(super) fn event_loops(&self) -> usize {
        if self.shards == 0 { usable_cpus() } else { self.shards }
    }

    /// Workers by the rule `CPUs + (blocking / cpu) * CPUs`.
    #[must_use]
    pub(crate) fn workers(&self) -> usize {
        suggested_size(usable_cpus(), self.handler.blocking, self.handler.cpu)
    }

    /// The server for a cell.
    pub(super) fn server(&self, model: IoModel, workers: usize) -> ServerPlan {
        ServerPlan { model, shards: self.event_loops(), workers, handler: self.handler }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_names() {
        for model in IoModel::ALL {
            assert_eq!(model.name().parse(), Ok(*model));
        }
        assert!("fibres".parse::<IoModel>().unwrap_err().contains("portable"));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let fine = IoModelsPlan::default;
        fine().check().unwrap();
        let handler = |blocking, cpu| Handler {
            blocking: Duration::from_millis(blocking),
            cpu: Duration::from_nanos(cpu),
        };
        for (plan, words) in [
            (IoModelsPlan { models: Vec::new(), ..fine() }, "--models"),
            (IoModelsPlan { idle: vec![5, 0], ..fine() }, "--connections"),
            (IoModelsPlan { clients: 2_000_000, ..fine() }, "--clients"),
            (IoModelsPlan { shards: 999_999, ..fine() }, "--shards is 999999; at most 256"),
            (IoModelsPlan { window: Duration::ZERO, ..fine() }, "--window"),
            (IoModelsPlan { duration: Duration::MAX, ..fine() }, "--duration"),
            (IoModelsPlan { handler: handler(5_000, 5_000), ..fine() }, "--blocking"),
            (IoModelsPlan { handler: handler(5, 0), ..fine() }, "--cpu"),
            (IoModelsPlan { models: vec![IoModel::Threads], ..fine() }, "add epoll"),
        ] {
            let error = plan.check().unwrap_err();
            assert!(
                error.to_string().contains(words) && error.exit_code() == 2,
                "{words}: {error}"
            );
        }
        let only = vec![Table::Idle];
        IoModelsPlan { models: vec![IoModel::Threads], tables: only, ..fine() }.check().unwrap();
    }
}
