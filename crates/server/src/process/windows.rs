//! This process's figures, by the calls of Windows.

use throng_io::processes::WatchedProcess;

use super::Figures;

/// Returns the working set in bytes; 0 if the system does not tell.
pub(super) fn resident_bytes() -> u64 {
    own().and_then(|own| own.memory()).map_or(0, |memory| memory.working_set)
}

/// Returns the others; `None` if the system does not tell. The virtual memory is what the process
/// has allocated for itself alone, which Windows commits.
pub(super) fn read() -> Option<Figures> {
    let own = own()?;
    Some(Figures {
        cpu: own.cpu_time()? as f64 / 1e9,
        started: own.started(),
        virtual_bytes: own.memory()?.private,
        open: own.handles()? as u64,
    })
}

fn own() -> Option<WatchedProcess> {
    WatchedProcess::open(std::process::id())
}
