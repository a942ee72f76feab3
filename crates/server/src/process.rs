//! Resources of this process, as the operating system reports them.

use throng_http::openmetrics::{Type, Writer};

use crate::system::System;

/// Returns this process's resident memory in bytes; 0 on systems without Linux's `/proc`.
#[must_use]
pub fn resident_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// Returns a line of `/proc/self/status` that is in kB.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
}

/// Writes the metrics of a process under the names that Prometheus's own libraries use, then its
/// descriptors by table and its CPU time by thread, and what the system counts for all programs of
/// the machine. Without Linux's `/proc` it writes none.
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
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let Some(times) = Times::read(&stat) else { return };
    writer.set_prefix("process");
    let help = "User and system CPU time in seconds";
    writer.metric("cpu_seconds", help, Type::Counter).sample(&[], times.cpu);
    let help = "Resident memory in bytes";
    writer.metric("resident_memory_bytes", help, Type::Gauge).sample(&[], resident_bytes());
    let help = "Virtual memory in bytes";
    let bytes = status_bytes("VmSize:");
    writer.metric("virtual_memory_bytes", help, Type::Gauge).sample(&[], bytes);
    let open = descriptors_in_use() as u64;
    writer.metric("open_fds", "Open file descriptors", Type::Gauge).sample(&[], open);
    let most = (descriptor_limit() as u64).saturating_mul(throng_io::tables::count() as u64);
    writer.metric("max_fds", "Limit on open file descriptors", Type::Gauge).sample(&[], most);
    if let Some(booted) = boot_time() {
        let help = "Start time of the process in seconds since 1970";
        let started = booted + times.started;
        writer.metric("start_time_seconds", help, Type::Gauge).sample(&[], started);
    }
}

/// Clock ticks per second in `/proc` (USER_HZ): 100 on each architecture of Linux except Alpha.
const TICKS: f64 = 100.0;

/// Times in seconds.
#[derive(Debug, PartialEq)]
struct Times {
    cpu: f64,
    /// Seconds from the start of the system to the start of the process.
    started: f64,
}

impl Times {
    /// Reads `/proc/self/stat` (proc_pid_stat(5)).
    fn read(stat: &str) -> Option<Self> {
        // The name of the program, the second field, may have spaces and parentheses.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let ticks = |field: usize| fields.get(field - 3)?.parse::<f64>().ok();
        Some(Self { cpu: (ticks(14)? + ticks(15)?) / TICKS, started: ticks(22)? / TICKS })
    }
}

/// Returns when the system started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
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

    #[test]
    fn times_are_read_after_a_name_with_spaces_and_parentheses() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 90 0 0 0 250 150 0 0 20 0 3 0 12345 99 1";
        assert_eq!(Times::read(stat), Some(Times { cpu: 4.0, started: 123.45 }));
        assert_eq!(Times::read("7 (a) S 1"), None);
    }

    #[cfg(target_os = "linux")]
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
