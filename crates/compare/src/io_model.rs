//! The models, and the tables that compare them.

use crate::word::words;

words! {
    /// A server model.
    enum IoModel {
        /// A thread for each connection
        Threads = "threads",
        /// One shard for each CPU, over epoll
        Epoll = "epoll",
        /// One shard for each CPU, over completion ports
        Iocp = "iocp",
        /// Shards over mio
        Portable = "portable",
    }
}

impl IoModel {
    /// The models that this system supports.
    pub(crate) const HERE: &[Self] = if cfg!(target_os = "linux") {
        &[Self::Threads, Self::Epoll, Self::Portable]
    } else if cfg!(unix) {
        &[Self::Threads, Self::Portable]
    } else if cfg!(windows) {
        &[Self::Threads, Self::Iocp, Self::Portable]
    } else {
        &[Self::Portable]
    };

    /// Returns whether each thread serves many connections.
    pub(crate) fn is_event_driven(self) -> bool {
        self != Self::Threads
    }
}

words! {
    /// One of the tables.
    enum IoTable {
        /// Connections that do nothing: CPU and memory
        Idle = "idle",
        /// The time until so many are connected, and each has had an echo
        Connect = "connect",
        /// A handler that blocks: on the shards, on workers, on threads
        Workers = "workers",
    }
}

words! {
    /// Where a blocking handler runs.
    enum Variant {
        /// On the shard, which serves no other connection during it
        Inline = "inline",
        /// On workers, one for each CPU: what a pool has by default
        Workers = "workers",
        /// On as many workers as the rule says
        WorkersByRule = "workers_by_rule",
        /// On the connection's own thread
        Threads = "threads",
    }
}

impl Variant {
    /// Returns whether the variant needs a pool of workers.
    pub(crate) fn has_workers(self) -> bool {
        matches!(self, Self::Workers | Self::WorkersByRule)
    }

    /// Returns a readable name, such as `epoll, 102 workers (by the rule)`.
    pub(crate) fn words(self, model: IoModel, workers: Option<usize>) -> String {
        let workers = workers.unwrap_or_default();
        match self {
            Self::Inline => format!("{model}, inline on the shards"),
            Self::Workers => format!("{model}, {workers} workers (one for each CPU)"),
            Self::WorkersByRule => format!("{model}, {workers} workers (by the rule)"),
            Self::Threads => "threads, one for each connection".to_owned(),
        }
    }
}
