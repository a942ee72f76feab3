//! The number of [descriptor tables](crate::tables) needed, and of connections that they hold.

use std::fmt;

/// The descriptors of a shard's own table.
#[derive(Clone, Copy, Debug)]
pub struct TableSize {
    /// The descriptor limit, which holds for each table.
    pub limit: u64,
    /// Descriptors for other purposes than connections. A wake-up descriptor for each shard comes
    /// on top.
    pub reserve: usize,
    /// Descriptors of a connection.
    pub each: usize,
}

/// Descriptor tables of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePlan {
    /// Shards, each with a table.
    pub shards: usize,
    /// Connections of all shards together.
    pub max_connections: usize,
    /// Connections that one table has descriptors for.
    pub of_a_table: usize,
    /// The descriptor limit, which holds for each table.
    pub limit: u64,
}

/// The error of more connections than tables hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany {
    asked: usize,
    shards: usize,
    possible: usize,
    limit: u64,
    /// Number of shards whose tables would suffice.
    enough: Option<usize>,
}

impl TablePlan {
    /// Plans tables for at least `shards` shards, up to `most` of them, and for the connections
    /// that are `asked` for, or as many as fit.
    ///
    /// # Errors
    /// That many do not fit.
    pub fn new(
        size: TableSize,
        asked: Option<usize>,
        shards: usize,
        most: usize,
    ) -> Result<Self, TooMany> {
        let usable = usize::try_from(size.limit).unwrap_or(usize::MAX);
        let of_a_table =
            |shards: usize| usable.saturating_sub(size.reserve.saturating_add(shards)) / size.each;
        let capacity = |shards: usize| {
            connections_per_table(of_a_table(shards), shards).saturating_mul(shards)
        };
        let plan = |shards, max_connections| Self {
            shards,
            max_connections,
            of_a_table: of_a_table(shards),
            limit: size.limit,
        };
        let Some(asked) = asked else { return Ok(plan(shards, capacity(shards))) };
        let enough = (shards..=MAX_TABLES).find(|&count| capacity(count) >= asked);
        match enough {
            Some(count) if count <= most.max(shards) => Ok(plan(count, asked)),
            _ => {
                // No number would suffice: show how many connections the best one holds.
                let best = || (shards..=MAX_TABLES).max_by_key(|&count| capacity(count));
                let shards = if enough.is_some() { shards } else { best().unwrap_or(shards) };
                let possible = capacity(shards);
                Err(TooMany { asked, shards, possible, limit: size.limit, enough })
            }
        }
    }
}

impl TablePlan {
    /// Returns the largest number of connections that `shards` to `most` shards can have.
    #[must_use]
    pub fn largest(size: TableSize, shards: usize, most: usize) -> usize {
        let counts = shards..=most.clamp(shards, shards.max(MAX_TABLES));
        let all = counts.filter_map(|count| Self::new(size, None, count, count).ok());
        all.map(|plan| plan.max_connections).max().unwrap_or(0)
    }
}

impl fmt::Display for TablePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {} descriptor tables of {}", self.shards, self.limit)
    }
}

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, shards, possible, limit, enough } = self;
        write!(
            f,
            "max_connections is {asked}, but {shards} descriptor tables of {limit} hold {possible} \
             connections, spread at random; "
        )?;
        match enough {
            Some(count) => write!(f, "set shards to {count} or more, or lower max_connections"),
            None => f.write_str("lower max_connections"),
        }
    }
}

/// The maximum shards of a process: the number is a part of a connection's id.
const MAX_TABLES: usize = 1024;

/// Returns the greatest mean number of connections in each of `tables` tables that have `free`
/// places left for them.
///
/// SO_REUSEPORT picks a shard at random, so the numbers differ by a standard deviation of the
/// square root of the mean times `1 - 1 / tables`. Four of them fit.
#[must_use]
fn connections_per_table(free: usize, tables: usize) -> usize {
    let spread = 4.0 * (1.0 - 1.0 / tables.max(1) as f64).sqrt();
    let root = ((spread * spread + 4.0 * free as f64).sqrt() - spread) / 2.0;
    (root * root + 1e-6) as usize
}

/// Returns the number of connections that the machine holds, if each takes `bytes` of kernel memory
/// and `files` open files; `None` if nothing limits them.
#[must_use]
pub fn machine_holds(bytes: u64, files: u64) -> usize {
    least(crate::memory::available(), crate::limits::open_file_limit(), bytes, files)
}

fn least(memory: Option<u64>, open_files: Option<u64>, bytes: u64, files: u64) -> usize {
    let by_memory = memory.map_or(u64::MAX, |memory| memory / bytes);
    let by_files = open_files.map_or(u64::MAX, |most| most / files);
    usize::try_from(by_memory.min(by_files)).unwrap_or(usize::MAX)
}

/// Checks that the machine holds this many connections, if each takes `bytes` of kernel memory and
/// `files` open files.
///
/// # Errors
/// The reason, with the sum.
pub fn check_machine(connections: u64, bytes: u64, files: u64) -> Result<(), String> {
    let (memory, open_files) = (crate::memory::available(), crate::limits::open_file_limit());
    check(connections, memory, open_files, bytes, files)
}

fn check(
    connections: u64,
    memory: Option<u64>,
    open_files: Option<u64>,
    bytes: u64,
    files: u64,
) -> Result<(), String> {
    let all = connections.saturating_mul(bytes);
    let reason = match (memory, open_files) {
        (Some(memory), _) if all > memory => format!(
            "{connections} connections of {bytes} bytes of kernel memory are {} MB, and this \
             process may use {} MB",
            all / 1_000_000,
            memory / 1_000_000
        ),
        (_, Some(most)) if connections.saturating_mul(files) > most => {
            format!("all processes of this machine together may open {most} files (fs.file-max)")
        }
        _ => return Ok(()),
    };
    Err(format!("max_connections is {connections}, but {reason}; lower max_connections"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: TableSize = TableSize { limit: 20_000, reserve: 70, each: 1 };

    fn planned(asked: usize, shards: usize, most: usize) -> Result<TablePlan, String> {
        TablePlan::new(SIZE, Some(asked), shards, most).map_err(|error| error.to_string())
    }

    #[test]
    fn two_tables_of_20000_hold_39000_connections() {
        let plan = planned(39_000, 2, 2).unwrap();
        assert_eq!((plan.shards, plan.max_connections), (2, 39_000));
        assert!(plan.of_a_table < 20_000);
        assert_eq!(plan.to_string(), "in 2 descriptor tables of 20000");
        let error = planned(40_000, 2, 2).unwrap_err();
        assert!(error.contains("2 descriptor tables of 20000 hold 39"), "{error}");
        assert!(error.contains("set shards to 3"), "{error}");
    }

    #[test]
    fn as_many_shards_as_are_needed_unless_their_number_is_set() {
        let plan = planned(1_000_000, 2, 1024).unwrap();
        assert!((52..=54).contains(&plan.shards), "{plan:?}");
        assert!(plan.shards * plan.of_a_table > 1_000_000);
        let error = planned(1_000_000, 2, 2).unwrap_err();
        assert!(error.contains(&format!("set shards to {}", plan.shards)), "{error}");
        let most = planned(usize::MAX, 2, 1024).unwrap_err();
        assert!(most.contains("1024 descriptor tables of 20000 hold 18"), "{most}");
        assert!(most.ends_with("; lower max_connections"), "{most}");
    }

    #[test]
    fn connections_of_two_descriptors_need_twice_the_tables() {
        let size = TableSize { each: 2, ..SIZE };
        let plan = TablePlan::new(size, Some(100_000), 2, 1024).unwrap();
        assert!((11..=12).contains(&plan.shards), "{plan:?}");
        assert!(plan.of_a_table <= 10_000);
    }

    #[test]
    fn without_a_number_all_tables_are_filled() {
        let all = TablePlan::new(SIZE, None, 4, 1024).unwrap();
        assert_eq!(all.shards, 4);
        assert!((77_000..79_800).contains(&all.max_connections), "{all:?}");
    }

    #[test]
    fn more_than_the_machine_holds_is_refused_with_the_sum() {
        let check = |connections, memory, files| check(connections, memory, files, 4096, 1);
        assert_eq!(check(1_000_000, Some(5 << 30), Some(2_000_000)), Ok(()));
        assert_eq!(check(1_000_000, None, None), Ok(()));
        let error = check(1_000_000, Some(1 << 30), None).unwrap_err();
        assert!(error.contains("are 4096 MB, and this process may use 1073 MB"), "{error}");
        let error = check(1_000_000, None, Some(900_000)).unwrap_err();
        assert!(error.contains("may open 900000 files (fs.file-max)"), "{error}");
        assert_eq!(least(Some(1 << 30), Some(900), 4096, 2), 450);
    }

    #[test]
    fn the_spread_of_random_picks_fits_into_each_table() {
        assert_eq!(connections_per_table(19_936, 1), 19_936);
        let two = connections_per_table(19_929, 2);
        assert!((19_500..19_600).contains(&two), "{two}");
        for (free, tables) in [(100, 2), (19_929, 2), (19_875, 54), (1_000_000, 4)] {
            let mean = connections_per_table(free, tables) as f64;
            let deviation = (mean * (1.0 - 1.0 / tables as f64)).sqrt();
            assert!(mean + 4.0 * deviation <= free as f64 + 1.0, "{free} {tables}: {mean}");
            assert!(mean + 4.0 * deviation >= free as f64 - 3.0, "{free} {tables}: {mean}");
        }
        assert_eq!(connections_per_table(0, 2), 0);
    }
}
