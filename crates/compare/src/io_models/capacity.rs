//! Capacity of this machine for the connections of a model, compared before anything is
//! started.

use throng_load::descriptors;
use throng_load::units::grouped;

use crate::io_model::IoModel;

/// Descriptors of a server that are not for connections, and descriptors of each event loop.
const RESERVE: usize = 88;
const EACH_LOOP: usize = 4;
/// Threads that the server reserves.
const THREAD_RESERVE: usize = 64;

/// Why `connections` cannot be, with the figure that would be needed and the one there is.
pub(super) fn shortage(model: IoModel, shards: usize, connections: usize) -> Option<String> {
    let hard = descriptors::hard_limit();
    descriptor_shortage(model, shards, connections, hard)
        .or_else(|| thread_shortage(model, connections))
}

/// Connections that the descriptors leave room for.
pub(crate) fn max_connections(model: IoModel, shards: usize) -> Option<usize> {
    let hard = usize::try_from(descriptors::hard_limit()?).unwrap_or(usize::MAX);
    let clients = hard.saturating_sub(descriptors::RESERVE);
    Some((hard.saturating_sub(reserve(model, shards)) / each(model)).min(clients))
}

/// Returns how many connections the thread limit allows, with one thread for each.
pub(crate) fn thread_room() -> Option<usize> {
    Some(throng_io::threads::thread_limit()?.threads.saturating_sub(THREAD_RESERVE))
}

/// Returns the descriptors of a connection: its socket, and the wake-up descriptor or completion
/// port of its thread.
fn each(model: IoModel) -> usize {
    if model == IoModel::Threads { 2 } else { 1 }
}

fn reserve(model: IoModel, shards: usize) -> usize {
    RESERVE + if model.is_event_driven() { EACH_LOOP * shards } else { EACH_LOOP }
}

fn descriptor_shortage(
    model: IoModel,
    shards: usize,
    connections: usize,
    hard_limit: Option<u64>,
) -> Option<String> {
    let server = (each(model) * connections + reserve(model, shards)) as u64;
    // The clients are in another process, with as many of its own.
    let needed = server.max((connections + descriptors::RESERVE) as u64);
    let given = hard_limit.filter(|limit| *limit < needed)?;
    let (needed, given) = (grouped(needed), grouped(given));
    Some(format!("needs {needed} descriptors, this machine gives {given}"))
}

fn thread_shortage(model: IoModel, connections: usize) -> Option<String> {
    let ceiling = throng_io::threads::thread_limit().filter(|_| model == IoModel::Threads)?;
    let needed = connections + THREAD_RESERVE;
    (ceiling.threads < needed).then(|| {
        let (needed, given) = (grouped(needed as u64), grouped(ceiling.threads as u64));
        format!("needs {needed} threads, this machine gives {given} ({})", ceiling.limit)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_needs_two_descriptors() {
        let few = |model, connections| descriptor_shortage(model, 2, connections, Some(20_000));
        assert_eq!(
            few(IoModel::Threads, 10_000).unwrap(),
            "needs 20,092 descriptors, this machine gives 20,000"
        );
        assert_eq!(few(IoModel::Epoll, 10_000), None);
        assert_eq!(few(IoModel::Threads, 3_500), None);
        assert_eq!(
            few(IoModel::Epoll, 20_000).unwrap(),
            "needs 20,096 descriptors, this machine gives 20,000"
        );
        assert_eq!(descriptor_shortage(IoModel::Threads, 1, 1 << 20, None), None);
    }

    #[test]
    fn no_machine_has_a_thread_for_each_of_a_trillion() {
        assert!(
            thread_shortage(IoModel::Threads, 1 << 40).unwrap().contains("threads, this machine")
        );
        assert_eq!(thread_shortage(IoModel::Epoll, 1 << 40), None);
    }
}
