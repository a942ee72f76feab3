//! This process's figures, from Linux's `/proc`.

use super::Figures;

/// Returns the resident memory in bytes; 0 without `/proc`.
pub(super) fn resident_bytes() -> u64 {
    status_bytes("VmRSS:")
}

/// Returns the others; `None` without `/proc`.
pub(super) fn read() -> Option<Figures> {
    let times = Times::read(&std::fs::read_to_string("/proc/self/stat").ok()?)?;
    Some(Figures {
        cpu: times.cpu,
        started: boot_time().map(|booted| booted + times.started),
        virtual_bytes: status_bytes("VmSize:"),
        open: super::descriptors_in_use() as u64,
    })
}

/// Returns a line of `/proc/self/status` that is in kB.
fn status_bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.trim().trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_after_a_name_with_spaces_and_parentheses() {
        let stat = "7 (a (b) c) S 1 7 7 0 -1 4194304 90 0 0 0 250 150 0 0 20 0 3 0 12345 99 1";
        assert_eq!(Times::read(stat), Some(Times { cpu: 4.0, started: 123.45 }));
        assert_eq!(Times::read("7 (a) S 1"), None);
    }
}
