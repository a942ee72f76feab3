//! Resources of this process, as the operating system reports them.

use throng_http::openmetrics::{Type, Writer};

use crate::system::System;

#[cfg_attr(windows, path = "process/windows.rs")]
mod figures;

/// Returns this process's resident memory in bytes; 0 on systems other than Linux and Windows.
#[must_use]
pub fn resident_bytes() -> u64 {
    figures::resident_bytes()
}

/// Writes the metrics of a process under the names that Prometheus's own libraries use, then its
/// descriptors by table and its CPU time by thread, and what the system counts for all programs of
/// the machine. On Windows it writes only the first, and descriptors are handles; on other systems
/// it writes none.
pub fn write_metrics(writer: &mut Writer) {
    write_own_metrics(writer);
    System::read().write(writer);
}

/// Returns as JSON what [`write_metrics`] writes last: an object with a number for each counter of
/// the machine, and the lists `descriptors`, by table, and `threads`, by name.
#[must_use]
pub fn system_json() -> String {
    System::read().to_json().to_string()
}

fn write_own_metrics(writer: &mut Writer) {
    let Some(Figures { cpu, started, virtual_bytes, open }) = figures::read() else { return };
    writer.set_prefix("process");
    let help = "User and system CPU time in seconds";
    writer.metric("cpu_seconds", help, Type::Counter).sample(&[], cpu);
    let help = "Resident memory in bytes";
    writer.metric("resident_memory_bytes", help, Type::Gauge).sample(&[], resident_bytes());
    let help = "Virtual memory in bytes";
    writer.metric("virtual_memory_bytes", help, Type::Gauge).sample(&[], virtual_bytes);
    writer.metric("open_fds", "Open file descriptors", Type::Gauge).sample(&[], open);
    let most = (descriptor_limit() as u64).saturating_mul(throng_io::tables::count() as u64);
    writer.metric("max_fds", "Limit on open file descriptors", Type::Gauge).sample(&[], most);
    if let Some(started) = started {
        let help = "Start time of the process in seconds since 1970";
        writer.metric("start_time_seconds", help, Type::Gauge).sample(&[], started);
    }
}

/// Figures of this process.
struct Figures {
    /// CPU time in seconds.
    cpu: f64,
    /// When it started, in seconds since 1970.
    started: Option<f64>,
    virtual_bytes: u64,
    /// Descriptors, or handles of Windows.
    open: u64,
}

/// Returns the number of open descriptors; 0 where the system does not list them.
#[must_use]
pub fn descriptors_in_use() -> usize {
    throng_io::limits::descriptors_in_use()
}

/// Raises this process's soft limit on descriptors to the hard limit, and returns it.
#[must_use]
pub fn descriptor_limit() -> usize {
    throng_io::limits::raise_descriptors()
        .map_or(1024, |limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(any(target_os = "linux", windows))]
    #[test]
    fn this_process_has_metrics_and_has_started() {
        let mut writer = Writer::new("throng");
        write_metrics(&mut writer);
        let text = writer.finish();
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse::<f64>().unwrap()
        };
        assert!(value("process_resident_memory_bytes ") > 0.0, "{text}");
        assert!(value("process_open_fds ") <= value("process_max_fds "), "{text}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let started = value("process_start_time_seconds ");
        assert!(started > 1e9 && started < now.as_secs_f64() + 1.0, "{text}");
    }
}
