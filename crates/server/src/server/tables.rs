//! Whether each shard gets a descriptor table of its own, and how many connections that makes
//! possible.

use throng_io::tables::{DescriptorTables, check_support, connections_per_table};

use super::Server;
use super::capacity::{Descriptors, RESERVED_DESCRIPTORS};
use super::startup::MAX_SHARDS;
use crate::error::{Error, Result};
use crate::io_backend::IoBackend;

/// Bytes of memory that a connection takes, nearly all of them in the kernel: its socket, and its
/// entry in the poll.
const BYTES_PER_CONNECTION: u64 = 4096;

/// Descriptors of a shard besides its connections and its listeners: standard streams, its poll, and
/// [what is reserved](RESERVED_DESCRIPTORS). A wake-up descriptor for each shard comes on top.
const BESIDES: usize = 3 + 1 + RESERVED_DESCRIPTORS;

/// The decision on descriptor tables.
#[derive(Debug)]
pub(super) enum Decision {
    /// All threads share one, for the reason given if it was to be otherwise.
    Shared(Option<String>),
    /// Each shard has its own.
    PerShard(Plan),
}

/// Descriptor tables of shards.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) shards: usize,
    /// Connections of all shards together.
    pub(super) max_connections: usize,
    /// Connections that one table has descriptors for.
    pub(super) of_a_table: usize,
    /// The descriptor limit, which holds for each table.
    pub(super) limit: u64,
}

impl Plan {
    /// Returns how the limit on connections came about.
    pub(super) fn describe(&self) -> String {
        format!("in {} descriptor tables of {}", self.shards, self.limit)
    }
}

impl Server {
    /// Decides on the tables, before anything is opened. Sockets that were passed on are
    /// `inherited`: only one shard accepts from each, so connections would not be spread.
    pub(super) fn plan_tables(&self, shards: usize, inherited: bool) -> Result<Decision> {
        let asked = self.limits.max_connections;
        let descriptors = self.descriptors();
        // They are not open yet, but will be where shards share a table.
        let addresses = 1 + self.more_addresses.len();
        let listeners = if inherited { 0 } else { shards * addresses };
        let fit = descriptors.free(shards).saturating_sub(listeners);
        match self.descriptor_tables {
            DescriptorTables::Shared => return Ok(Decision::Shared(None)),
            DescriptorTables::Auto if asked.is_none_or(|asked| asked <= fit) => {
                return Ok(Decision::Shared(None));
            }
            _ => {}
        }
        let refusal = match self.io {
            IoBackend::Auto | IoBackend::Epoll if inherited => {
                Some("sockets that were passed on are accepted from by one shard each".to_owned())
            }
            IoBackend::Auto | IoBackend::Epoll => {
                check_support().err().map(|error| format!("this system refuses them: {error}"))
            }
            _ => Some("only io = epoll can have them".to_owned()),
        };
        if let Some(why) = refusal {
            return Ok(Decision::Shared(Some(why)));
        }
        let mut plan = plan(&descriptors, asked, shards, self.shards.is_none(), addresses)?;
        let memory = throng_io::memory::available();
        let open_files = throng_io::limits::open_file_limit();
        match asked {
            Some(asked) => check_machine(asked as u64, memory, open_files)?,
            None => {
                let most = machine_holds(memory, open_files);
                plan.max_connections = plan.max_connections.min(most);
            }
        }
        Ok(Decision::PerShard(plan))
    }
}

/// Plans tables for at least `shards` shards, or exactly so many if they may not `grow`.
fn plan(
    descriptors: &Descriptors,
    asked: Option<usize>,
    shards: usize,
    grow: bool,
    listeners: usize,
) -> Result<Plan> {
    let free = |shards: usize| {
        descriptors.usable.saturating_sub(BESIDES + shards + listeners + descriptors.for_files)
    };
    let capacity = |shards: usize| connections_per_table(free(shards), shards) * shards;
    let enough = |wanted: usize| (shards..=MAX_SHARDS).find(|&count| capacity(count) >= wanted);
    let plan = |shards, max_connections| Plan {
        shards,
        max_connections,
        of_a_table: free(shards),
        limit: descriptors.limit,
    };
    match asked {
        None => Ok(plan(shards, capacity(shards))),
        Some(asked) if capacity(shards) >= asked => Ok(plan(shards, asked)),
        Some(asked) => match enough(asked) {
            Some(count) if grow => Ok(plan(count, asked)),
            count => Err(too_many(asked, shards, capacity(shards), descriptors.limit, count)),
        },
    }
}

fn too_many(
    asked: usize,
    shards: usize,
    possible: usize,
    limit: u64,
    enough: Option<usize>,
) -> Error {
    let remedy = match enough {
        Some(count) => format!("set shards to {count} or more, or lower max_connections"),
        None => "lower max_connections".to_owned(),
    };
    Error::setting(
        "max_connections",
        format!(
            "max_connections is {asked}, but {shards} descriptor tables of {limit} hold \
             {possible} connections, spread at random; {remedy}"
        ),
    )
}

/// Returns how many connections the machine can hold.
fn machine_holds(memory: Option<u64>, open_files: Option<u64>) -> usize {
    let by_memory = memory.map_or(u64::MAX, |bytes| bytes / BYTES_PER_CONNECTION);
    let most = by_memory.min(open_files.unwrap_or(u64::MAX));
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Refuses more connections than the machine can hold.
fn check_machine(connections: u64, memory: Option<u64>, open_files: Option<u64>) -> Result<()> {
    let refuse = |why: String| {
        let remedy = "lower max_connections";
        let message = format!("max_connections is {connections}, but {why}; {remedy}");
        Err(Error::setting("max_connections", message))
    };
    let bytes = connections.saturating_mul(BYTES_PER_CONNECTION);
    match (memory, open_files) {
        (Some(memory), _) if bytes > memory => refuse(format!(
            "{connections} connections of {BYTES_PER_CONNECTION} bytes of kernel memory are {} MB, \
             and this process may use {} MB",
            bytes / 1_000_000,
            memory / 1_000_000
        )),
        (_, Some(files)) if connections > files => refuse(format!(
            "all processes of this machine together may open {files} files (fs.file-max)"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Descriptors = Descriptors { limit: 20_000, usable: 20_000, used: 5, for_files: 0 };

    fn planned(asked: usize, shards: usize, grow: bool) -> std::result::Result<Plan, String> {
        plan(&LIMIT, Some(asked), shards, grow, 1).map_err(|error| error.to_string())
    }

    #[test]
    fn two_tables_of_20000_hold_39000_connections() {
        let plan = planned(39_000, 2, false).unwrap();
        assert_eq!((plan.shards, plan.max_connections), (2, 39_000));
        assert!(plan.of_a_table < 20_000);
        assert_eq!(plan.describe(), "in 2 descriptor tables of 20000");
        let error = planned(40_000, 2, false).unwrap_err();
        assert!(error.contains("2 descriptor tables of 20000 hold 39"), "{error}");
        assert!(error.contains("set shards to 3"), "{error}");
    }

    #[test]
    fn as_many_shards_as_are_needed_unless_their_number_is_set() {
        let plan = planned(1_000_000, 2, true).unwrap();
        assert!((52..=54).contains(&plan.shards), "{plan:?}");
        assert!(plan.shards * plan.of_a_table > 1_000_000);
        let error = planned(1_000_000, 2, false).unwrap_err();
        assert!(error.contains(&format!("set shards to {}", plan.shards)), "{error}");
        let most = planned(usize::MAX, 2, true).unwrap_err();
        assert!(most.ends_with("; lower max_connections"), "{most}");
    }

    #[test]
    fn without_a_number_all_tables_are_filled() {
        let all = plan(&LIMIT, None, 4, true, 1).unwrap();
        assert_eq!(all.shards, 4);
        assert!((77_000..79_800).contains(&all.max_connections), "{all:?}");
    }

    #[test]
    fn more_than_the_machine_holds_is_refused_with_the_sum() {
        let check = |connections, memory, files| {
            check_machine(connections, memory, files).map_err(|error| error.to_string())
        };
        assert_eq!(check(1_000_000, Some(5 << 30), Some(2_000_000)), Ok(()));
        assert_eq!(check(1_000_000, None, None), Ok(()));
        let error = check(1_000_000, Some(1 << 30), None).unwrap_err();
        assert!(error.contains("are 4096 MB, and this process may use 1073 MB"), "{error}");
        let error = check(1_000_000, None, Some(900_000)).unwrap_err();
        assert!(error.contains("may open 900000 files (fs.file-max)"), "{error}");
    }
}
