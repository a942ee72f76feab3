//! The descriptor limit: raised as far as it goes, and said plainly when that is not far enough.

use crate::Error;

/// Descriptors that are not connections: standard streams, the poller, its waker, /proc files while sampling.
pub const RESERVE: usize = 64;

/// Raises the soft limit so that `connections` sockets fit, if it is lower.
///
/// # Errors
/// [`Error::Descriptors`] with the number that would fit, when even the hard limit is too low.
#[cfg(unix)]
pub fn make_room(connections: usize) -> Result<(), Error> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let limit = getrlimit(Resource::Nofile);
    let Some(needed) = shortfall(connections, limit.current, limit.maximum)? else { return Ok(()) };
    // All of it: the in-process server of a demo or a test needs as many again.
    let raised = Rlimit { current: limit.maximum.or(Some(needed)), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised)
        .map_err(|error| Error::io("raise the descriptor limit", error.into()))
}

/// Nothing to raise: sockets are not counted in descriptors here.
///
/// # Errors
/// Never.
#[cfg(not(unix))]
pub fn make_room(_connections: usize) -> Result<(), Error> {
    Ok(())
}

/// The most descriptors this process may ever have; `None` if there is no such limit.
#[cfg(unix)]
#[must_use]
pub fn hard_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum
}

/// The most descriptors this process may ever have: sockets are not counted in descriptors here.
#[cfg(not(unix))]
#[must_use]
pub fn hard_limit() -> Option<u64> {
    None
}

/// The soft limit needed, `None` if the present one will do. `None` as a limit is "unlimited".
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
