//! The descriptor limit: raised to its maximum, with a clear error if that is not enough.

use crate::common::MAX_THREADS;
use crate::error::Error;

/// Descriptors that are not for connections.
pub const RESERVE: usize = throng_io::capacity::Needs::CLIENTS.besides;

/// Raises the soft limit so that `connections` sockets fit, if it is lower.
///
/// # Errors
/// [`Error::Descriptors`] with the number that would fit, when even the hard limit is too low.
#[cfg(unix)]
pub fn make_room(connections: usize) -> Result<(), Error> {
    use rustix::process::{Resource, Rlimit, setrlimit};

    let (soft, hard) = throng_io::limits::descriptor_limits();
    let known = |limit| Some(limit).filter(|&limit| limit != u64::MAX);
    let Some(needed) = shortfall(connections, known(soft), known(hard))? else { return Ok(()) };
    // Raises the limit to the hard limit, because the in-process server of a demo or test needs as
    // many descriptors again.
    let raised = Rlimit { current: known(hard).or(Some(needed)), maximum: known(hard) };
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| Error::io("raise the descriptor limit", error.into()))
}

/// Division of a run's connections over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Threads.
    pub threads: usize,
    /// Whether each thread has its own descriptor table, because one table cannot hold all
    /// connections.
    pub own_tables: bool,
}

/// Divides `sockets` over `threads` threads, or over more if their tables require it, and raises
/// the soft limit.
///
/// # Errors
/// [`Error::Descriptors`] if the hard limit is still too low, or if threads cannot have their own
/// tables here.
pub fn divide(sockets: usize, threads: usize) -> Result<Division, Error> {
    let limited = match make_room(sockets) {
        Ok(()) => return Ok(Division { threads, own_tables: false }),
        Err(error) => error,
    };
    if throng_io::tables::check_support().is_err() {
        return Err(limited);
    }
    let limit = hard_limit().map_or(usize::MAX, |limit| limit as usize);
    let threads = threads_for(sockets, threads, limit.saturating_sub(RESERVE)).ok_or(limited)?;
    make_room(sockets.div_ceil(threads))?;
    Ok(Division { threads, own_tables: true })
}

/// Threads whose tables hold `sockets` sockets, if each holds `of_a_table`.
fn threads_for(sockets: usize, threads: usize, of_a_table: usize) -> Option<usize> {
    let needed = sockets.div_ceil(of_a_table.max(1)).max(threads);
    (needed <= MAX_THREADS).then_some(needed)
}

/// Nothing to raise: sockets are not counted in descriptors here.
///
/// # Errors
/// Never.
#[cfg(not(unix))]
pub fn make_room(_connections: usize) -> Result<(), Error> {
    Ok(())
}

/// Returns the maximum number of descriptors of this process; `None` if there is no limit.
#[cfg(unix)]
#[must_use]
pub fn hard_limit() -> Option<u64> {
    Some(throng_io::limits::descriptor_limits().1).filter(|&limit| limit != u64::MAX)
}

/// Returns the maximum number of descriptors of this process: none, since sockets do not use
/// descriptors here.
#[cfg(not(unix))]
#[must_use]
pub fn hard_limit() -> Option<u64> {
    None
}

/// Returns the required soft limit; `None` if the current limit is high enough. A limit of `None`
/// is unlimited.
#[cfg(any(unix, test))]
fn shortfall(
    connections: usize,
    soft: Option<u64>,
    hard: Option<u64>,
) -> Result<Option<u64>, Error> {
    let needed = (connections + RESERVE) as u64;
    if soft.is_none_or(|soft| soft >= needed) {
        return Ok(None);
    }
    match hard {
        Some(hard) if hard < needed => Err(Error::Descriptors {
            wanted: connections,
            possible: (hard as usize).saturating_sub(RESERVE),
            hard_limit: hard,
        }),
        _ => Ok(Some(needed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enough_needs_nothing() {
        assert!(matches!(shortfall(100, Some(1024), Some(4096)), Ok(None)));
        assert!(matches!(shortfall(1_000_000, None, None), Ok(None)));
    }

    #[test]
    fn threads_with_tables_of_their_own_hold_as_many_times_the_limit() {
        assert_eq!(threads_for(100_000, 1, 19_936), Some(6));
        assert_eq!(threads_for(100_000, 8, 19_936), Some(8));
        assert_eq!(threads_for(1_000_000, 2, 19_936), Some(51));
        assert_eq!(threads_for(2_000_000, 2, 19_936), None);
    }

    #[test]
    fn a_low_soft_limit_is_raised() {
        assert!(matches!(shortfall(5_000, Some(1024), Some(20_000)), Ok(Some(5_064))));
        assert!(matches!(shortfall(5_000, Some(1024), None), Ok(Some(5_064))));
    }

    #[test]
    fn a_low_hard_limit_says_what_fits() {
        let error = shortfall(50_000, Some(1024), Some(20_000)).unwrap_err();
        assert!(matches!(error, Error::Descriptors { possible: 19_936, .. }), "{error:?}");
    }
}
