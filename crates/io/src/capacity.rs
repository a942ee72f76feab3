//! The number of connections that limits of the system leave room for: the decisions of a start,
//! also under limits that this machine does not have.
//!
//! * Duty: sums of numbers that the caller has read.
//! * Start reading at: [`Needs::divide`].

use crate::id::ConnId;
use crate::table_plan::{TablePlan, TableSize, TooMany};
use crate::tables::DescriptorTables;

/// The descriptors that a program needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Descriptors of a connection.
    pub each: usize,
    /// Bytes of memory of a connection, nearly all of them in the kernel: its sockets, and their
    /// entries in the poll.
    pub bytes: u64,
    /// Descriptors besides connections in a table that all shards share.
    pub besides: usize,
    /// Further descriptors for each shard in such a table.
    pub of_a_shard: usize,
    /// Shards whose descriptors are a part of `besides`.
    pub shards_within: usize,
    /// Descriptors besides connections in a shard's own table. A wake-up descriptor for each shard
    /// comes on top.
    pub in_own_table: usize,
}

impl Needs {
    /// Descriptors that a server reserves for listeners, polls, wake-ups, logs and refusals.
    pub const RESERVED_BY_SERVERS: usize = 64;

    /// A server: one descriptor for each connection. Its own table has standard streams, its poll
    /// and the reserve besides.
    pub const SERVER: Self = Self {
        each: 1,
        bytes: 4096,
        besides: Self::RESERVED_BY_SERVERS,
        of_a_shard: 4,
        shards_within: 0,
        in_own_table: 3 + 1 + Self::RESERVED_BY_SERVERS,
    };

    /// A server with a thread for each connection, which has a descriptor beside its socket's: the
    /// wake-up of its thread, or the completion port; on other systems both ends of a pipe.
    pub const THREADED_SERVER: Self =
        Self { each: if cfg!(any(target_os = "linux", windows)) { 2 } else { 3 }, ..Self::SERVER };

    /// A load generator. Besides there are standard streams, polls and wake-ups, and files of
    /// /proc during measurements.
    pub const CLIENTS: Self = Self {
        each: 1,
        bytes: 4096,
        besides: 64,
        of_a_shard: 0,
        shards_within: 0,
        in_own_table: 64,
    };

    /// A load balancer: a descriptor for the client and one for its backend. Besides there are
    /// listeners, polls, checks, the API and refusals.
    pub const BALANCER: Self = Self {
        each: 2,
        bytes: 8192,
        besides: 192,
        of_a_shard: 32,
        shards_within: 2,
        in_own_table: 64,
    };

    /// Returns the descriptors besides connections in a table that `shards` share, where `used`
    /// are in use already or reserved for files.
    #[must_use]
    pub fn reserve(&self, shards: usize, used: usize) -> usize {
        let more = shards.saturating_sub(self.shards_within).saturating_mul(self.of_a_shard);
        self.besides.saturating_add(more).saturating_add(used)
    }

    /// Returns the descriptors left for connections in such a table.
    #[must_use]
    pub fn free(&self, descriptors: &Descriptors, shards: usize) -> usize {
        count(descriptors.limit).saturating_sub(self.reserve(shards, descriptors.used))
    }

    /// Returns the size of a shard's own table.
    #[must_use]
    pub fn own_table(&self, descriptors: &Descriptors) -> TableSize {
        TableSize {
            limit: descriptors.limit,
            reserve: self.in_own_table.saturating_add(descriptors.used_in_own),
            each: self.each,
        }
    }

    /// Decides whether each shard has its own table, and how many connections there can be.
    /// `refusal` returns why shards cannot have their own.
    ///
    /// # Errors
    /// More connections are demanded than their own tables hold.
    pub fn divide(
        &self,
        descriptors: &Descriptors,
        demand: &Demand,
        refusal: impl FnOnce() -> Option<String>,
    ) -> Result<Division, TooMany> {
        let connections = self.free(descriptors, demand.shards) / self.each;
        let shared = |refused| Ok(Division::Shared { connections, refused });
        match (demand.tables, demand.connections) {
            (DescriptorTables::Shared, _) | (DescriptorTables::Auto, None) => return shared(None),
            (DescriptorTables::Auto, Some(demanded)) if demanded <= connections => {
                return shared(None);
            }
            _ => {}
        }
        if let Some(why) = refusal() {
            return shared(Some(why));
        }
        let size = self.own_table(descriptors);
        TablePlan::new(size, demand.connections, demand.shards, demand.max_shards)
            .map(Division::PerShard)
    }
}

/// The descriptors of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Descriptors {
    /// The limit, which holds for each table.
    pub limit: u64,
    /// Descriptors of a shared table that are in use, or reserved for other purposes.
    pub used: usize,
    /// Descriptors of a shard's own table for listeners, and for files that are being sent.
    pub used_in_own: usize,
}

/// The demand of a program's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Whether shards share a table.
    pub tables: DescriptorTables,
    /// Connections; `None` for as many as fit.
    pub connections: Option<usize>,
    /// Event loops.
    pub shards: usize,
    /// The largest number of event loops that can be started in their place to have more tables.
    pub max_shards: usize,
}

/// The decision on descriptor tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Division {
    /// All threads share one table.
    Shared {
        /// Connections that fit.
        connections: usize,
        /// The reason, if separate tables were demanded.
        refused: Option<String>,
    },
    /// Each shard has its own table.
    PerShard(TablePlan),
}

/// The system's limits on threads; `None` where a limit is not known or does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadLimits {
    /// `kernel.threads-max`.
    pub threads_max: Option<u64>,
    /// `kernel.pid_max`.
    pub pid_max: Option<u64>,
    /// `vm.max_map_count`.
    pub max_map_count: Option<u64>,
    /// RLIMIT_NPROC, from which root is exempt.
    pub user_processes: Option<u64>,
    /// `pids.max` of the cgroup.
    pub cgroup_pids: Option<u64>,
}

/// The lowest of the system's limits on threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadLimit {
    /// Maximum threads of this process, including its present threads.
    pub threads: usize,
    /// The limit's usual name, for advice on raising it.
    pub limit: &'static str,
    /// Units of the limit that one thread takes: the limit for `n` threads is `n * each`.
    pub each: usize,
}

impl ThreadLimits {
    /// Memory maps that a thread takes: its stack, the stack on which the handler of a stack
    /// overflow runs, a guard page for each, and one spare for the allocator and for large
    /// messages. A process that is out of maps is not always refused a thread: the thread may
    /// start, fail to get its second stack, and abort the process.
    pub const MAPS_PER_THREAD: usize = 5;

    /// Returns each known limit.
    pub fn known(&self) -> impl Iterator<Item = ThreadLimit> {
        let limits = [
            (self.threads_max, "kernel.threads-max", 1),
            (self.pid_max, "kernel.pid_max", 1),
            (self.max_map_count, "vm.max_map_count", Self::MAPS_PER_THREAD),
            (self.user_processes, "ulimit -u", 1),
            (self.cgroup_pids, "pids.max of the cgroup", 1),
        ];
        limits.into_iter().filter_map(|(most, limit, each)| {
            Some(ThreadLimit { threads: count(most?) / each, limit, each })
        })
    }

    /// Returns the lowest limit.
    #[must_use]
    pub fn lowest(&self) -> Option<ThreadLimit> {
        self.known().min_by_key(|limit| limit.threads)
    }
}

impl ThreadLimit {
    /// Threads reserved for everything but connections.
    pub const RESERVED: usize = 64;

    /// Maximum connections of a process with a thread for each: they have the numbers of shards,
    /// and the acceptor takes one of them.
    pub const NUMBERS: usize = ConnId::MAX_SHARDS - 1;

    /// Returns the number of connections that can have a thread each.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.threads.saturating_sub(Self::RESERVED)
    }
}

/// Returns a limit as a count: at most as many as a driver has slots, where nothing is limited.
fn count(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX).min(ConnId::MAX_SLOTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_is_named() {
        let limits = ThreadLimits {
            threads_max: Some(9),
            max_map_count: Some(36),
            cgroup_pids: Some(8),
            ..ThreadLimits::default()
        };
        assert_eq!(
            limits.lowest(),
            Some(ThreadLimit { threads: 7, limit: "vm.max_map_count", each: 5 })
        );
        assert_eq!(ThreadLimits::default().lowest(), None);
    }

    #[test]
    fn without_a_limit_there_are_as_many_connections_as_slots() {
        let descriptors = Descriptors { limit: u64::MAX, used: 8, used_in_own: 1 };
        assert_eq!(Needs::SERVER.free(&descriptors, 2), ConnId::MAX_SLOTS - 64 - 8 - 8);
    }

    #[test]
    fn shards_share_a_table_unless_more_is_demanded_than_it_holds() {
        let descriptors = Descriptors { limit: 20_000, used: 8, used_in_own: 1 };
        let demand = |tables, connections| Demand { tables, connections, shards: 2, max_shards: 9 };
        let divide = |tables, connections, refused: Option<&str>| {
            let refusal = || refused.map(str::to_owned);
            Needs::SERVER.divide(&descriptors, &demand(tables, connections), refusal).unwrap()
        };
        let shared = |refused: Option<&str>| Division::Shared {
            connections: 20_000 - 64 - 8 - 8,
            refused: refused.map(str::to_owned),
        };
        assert_eq!(divide(DescriptorTables::Auto, None, None), shared(None));
        assert_eq!(divide(DescriptorTables::Auto, Some(19_920), None), shared(None));
        assert_eq!(divide(DescriptorTables::Shared, Some(30_000), None), shared(None));
        assert_eq!(divide(DescriptorTables::Auto, Some(30_000), Some("no")), shared(Some("no")));
        let Division::PerShard(plan) = divide(DescriptorTables::Auto, Some(30_000), None) else {
            panic!("shared");
        };
        assert_eq!((plan.shards, plan.max_connections), (2, 30_000));
    }
}
