//! The CPU affinity of event loops.

use throng_engine::UnknownName;
use throng_io::placement::Placement;

use crate::error::{Error, Result};
use crate::io_backend::IoBackend;

/// The CPU affinity of event loops: whether each is pinned to a CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuAffinity {
    /// The system may move event loops between CPUs, which is right where other programs also need
    /// CPUs. The default.
    #[default]
    None,
    /// Pins each shard to its own CPU, among the CPUs that the process may use; more shards than
    /// such CPUs are an error. Linux, and Windows within one of its groups of up to 64 CPUs. Two
    /// servers on one machine choose the same CPUs, unless each is started with its own set
    /// (`taskset`, a container's cpuset, `start /affinity`).
    ///
    /// Uses as few NUMA nodes as possible, and on each node all cores before any core's second
    /// thread: shards send messages that other shards publish, so they should be near each other. A
    /// shard's large tables and its receive buffer are first touched by its own thread, so that
    /// Linux places them on its node, unless the process has another memory policy.
    ///
    /// Worker threads are not pinned. On Linux a thread that a handler starts inherits the CPU of
    /// its shard.
    ///
    /// If the kernel refuses a CPU, its shard runs unpinned, and
    /// [`Running::placement`](crate::server::Running::placement) reports it.
    Cores,
}

/// The error lists the accepted values; the caller adds the name of the setting.
impl std::str::FromStr for CpuAffinity {
    type Err = UnknownName;

    fn from_str(name: &str) -> std::result::Result<Self, UnknownName> {
        match name {
            "none" => Ok(Self::None),
            "cores" => Ok(Self::Cores),
            _ => Err(UnknownName::new(&["cores", "none"])),
        }
    }
}

impl CpuAffinity {
    /// Chooses the CPUs of `shards` shards; `None` if they are not pinned. If there may be more
    /// shards than CPUs, the CPUs are `shared`.
    pub(crate) fn place(
        self,
        io: IoBackend,
        shards: usize,
        shared: bool,
    ) -> Result<Option<Placement>> {
        if self == Self::None {
            return Ok(None);
        }
        if io == IoBackend::Threads {
            let message = "pin is cores, but io is threads, which has one thread per connection \
                           and no event loops; set pin to none, or io to auto";
            return Err(Error::setting("cpu_affinity", message));
        }
        let placement = throng_io::placement::choose(shards, shared);
        placement.map(Some).map_err(|message| Error::setting("cpu_affinity", message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_connections_are_not_pinned() {
        let error = CpuAffinity::Cores.place(IoBackend::Threads, 1, false).unwrap_err().to_string();
        assert!(error.contains("pin is cores") && error.contains("io is threads"), "{error}");
        assert_eq!(CpuAffinity::None.place(IoBackend::Threads, 1, false).unwrap(), None);
    }
}
