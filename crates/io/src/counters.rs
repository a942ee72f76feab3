//! Counters that the kernel keeps of the machine, of the network namespace, and of this process's
//! threads (Linux).
//!
//! * Duty: read the texts of `/proc` as numbers. A text that is missing, or of another form, gives
//!   no number.
//! * Not its duty: descriptors, which `limits` counts.
//! * Start reading at: [`MachineCounters`].

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::time::Duration;

use crate::kernel_text::MAY_BE;

/// The largest part of a file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// A process with more threads than this is not asked for the times of each.
const MAX_THREADS: usize = 512;

/// Clock ticks per second in `/proc` (USER_HZ): 100 on each architecture of Linux except Alpha.
const TICKS_PER_SECOND: f64 = 100.0;

/// Counters of the machine and of the network namespace; `None` where the system has no such
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct MachineCounters {
    /// Connections that found the accept queue of their listener full.
    pub listen_overflows: Option<u64>,
    /// Connections that a listener dropped for any reason, a full accept queue included.
    pub listen_drops: Option<u64>,
    /// TCP segments sent, without those sent again.
    pub segments_sent: Option<u64>,
    /// TCP segments sent again.
    pub segments_retransmitted: Option<u64>,
    /// TCP connections that belong to no process any longer.
    pub orphans: Option<u64>,
    /// TCP connections in TIME_WAIT.
    pub time_wait: Option<u64>,
    /// Seconds of all CPUs together, idle ones included.
    pub cpu_seconds: Option<f64>,
    /// The part of these seconds in soft interrupts, where the kernel handles packets.
    pub softirq_seconds: Option<f64>,
}

impl MachineCounters {
    /// Reads the counters of this machine, and of the network namespace of this process.
    #[must_use]
    pub fn read() -> Self {
        let [netstat, snmp, sockstat, stat] =
            ["net/netstat", "net/snmp", "net/sockstat", "stat"].map(text);
        Self::parse(&netstat, &snmp, &sockstat, &stat)
    }

    /// Reads the texts of `/proc/net/netstat`, `snmp` and `sockstat`, and of `/proc/stat`.
    #[must_use]
    pub fn parse(netstat: &str, snmp: &str, sockstat: &str, stat: &str) -> Self {
        let times = cpu_times(stat);
        let seconds = |ticks: u64| ticks as f64 / TICKS_PER_SECOND;
        Self {
            listen_overflows: named(netstat, "TcpExt:", "ListenOverflows"),
            listen_drops: named(netstat, "TcpExt:", "ListenDrops"),
            segments_sent: named(snmp, "Tcp:", "OutSegs"),
            segments_retransmitted: named(snmp, "Tcp:", "RetransSegs"),
            orphans: pair(sockstat, "TCP:", "orphan"),
            time_wait: pair(sockstat, "TCP:", "tw"),
            cpu_seconds: times.map(|(all, _)| seconds(all)),
            softirq_seconds: times.map(|(_, softirq)| seconds(softirq)),
        }
    }
}

/// Reads a file of `/proc`; empty if there is none.
fn text(name: &str) -> String {
    if !MAY_BE {
        return String::new();
    }
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{name}"));
    let read = file.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Reads a number of a group, such as `TcpExt:`, where a line of names precedes a line of values.
#[must_use]
pub fn named(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(group));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|it| it == name)?;
    values.split_whitespace().nth(at)?.parse().ok()
}

/// Reads the number after `name` in the line that begins with `group`.
fn pair(text: &str, group: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(group))?;
    let mut words = line.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse().ok()
}

/// Reads the time of all CPUs together, and its part in soft interrupts, in ticks.
fn cpu_times(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user, nice, system, idle, iowait, irq, softirq, steal; what follows is a part of user.
    let times: Option<Vec<u64>> =
        line.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
    let times = times?;
    Some((times.iter().copied().fold(0, u64::saturating_add), *times.get(6)?))
}

/// Times of this process's threads of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThreadTimes {
    /// Their name. Shards have names of their own; of other threads with numbers, such as workers,
    /// it is the name without the number.
    pub name: String,
    /// The number of threads that run now.
    pub threads: usize,
    /// Time on a CPU.
    pub cpu: Duration,
    /// Time for which they were ready to run and had no CPU.
    pub run_delay: Duration,
}

/// Returns the times of this process's threads by name, in the order of names. Empty where the
/// system has no such numbers, or if there are more than 512 threads: each costs two files.
#[must_use]
pub fn thread_times() -> Vec<ThreadTimes> {
    if !MAY_BE {
        return Vec::new();
    }
    let listed = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let threads: Vec<String> = listed
        .take(MAX_THREADS + 1)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    if threads.len() > MAX_THREADS {
        return Vec::new();
    }
    let of = |thread: &String| {
        let file = |name: &str| text(&format!("self/task/{thread}/{name}"));
        (file("comm"), file("schedstat"))
    };
    by_name(threads.iter().map(of))
}

/// Adds the times of threads with one name; `comm` and `schedstat` of each are given. A thread
/// that has ended in between has neither.
fn by_name(threads: impl Iterator<Item = (String, String)>) -> Vec<ThreadTimes> {
    let mut names: BTreeMap<String, ThreadTimes> = BTreeMap::new();
    for (comm, schedstat) in threads {
        let mut numbers = schedstat.split_whitespace().map_while(|word| word.parse().ok());
        let (Some(cpu), Some(run_delay)) = (numbers.next(), numbers.next()) else { continue };
        let name = group_of(comm.trim());
        let sum = names.entry(name.to_owned()).or_default();
        sum.threads += 1;
        sum.cpu = sum.cpu.saturating_add(Duration::from_nanos(cpu));
        sum.run_delay = sum.run_delay.saturating_add(Duration::from_nanos(run_delay));
    }
    names.into_iter().map(|(name, times)| ThreadTimes { name, ..times }).collect()
}

/// Returns the name under which a thread is counted. A name per connection or job would be a metric
/// for each of them.
fn group_of(name: &str) -> &str {
    let start = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match start {
        "throng-shard-" | "balance-" => name,
        _ if start.len() < name.len() => start.strip_suffix('-').unwrap_or(name),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NETSTAT: &str = "\
TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPTimeouts
TcpExt: 0 17 19 3
IpExt: InNoRoutes ListenDrops
IpExt: 5 6
";
    const SNMP: &str = "\
Ip: Forwarding OutSegs
Ip: 1 64
Tcp: RtoAlgorithm MaxConn InSegs OutSegs RetransSegs
Tcp: 1 -1 700 800 9
Udp: InDatagrams
Udp: 3
";
    const SOCKSTAT: &str = "\
sockets: used 180
TCP: inuse 7 orphan 2 tw 31 alloc 12 mem 3
UDP: inuse 1 mem 0
";
    const STAT: &str = "\
cpu  100 0 50 800 10 5 35 0 7 0
cpu0 50 0 25 400 5 2 20 0 7 0
intr 5 4
";

    #[test]
    fn the_kernel_s_texts_are_numbers() {
        let read = MachineCounters::parse(NETSTAT, SNMP, SOCKSTAT, STAT);
        let expected = MachineCounters {
            listen_overflows: Some(17),
            listen_drops: Some(19),
            segments_sent: Some(800),
            segments_retransmitted: Some(9),
            orphans: Some(2),
            time_wait: Some(31),
            cpu_seconds: Some(10.0),
            softirq_seconds: Some(0.35),
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn texts_that_are_missing_or_cut_give_no_number() {
        assert_eq!(MachineCounters::parse("", "", "", ""), MachineCounters::default());
        let cut = |text: &'static str, at: usize| &text[..text.len().min(at)];
        let read = MachineCounters::parse(
            cut(NETSTAT, 70),
            "Tcp: OutSegs RetransSegs\nTcp: 800\n",
            "TCP: inuse orphan x tw",
            "cpu  1 2 3 4 5 6 x 8\n",
        );
        let expected = MachineCounters { segments_sent: Some(800), ..MachineCounters::default() };
        assert_eq!(read, expected);
        let huge = MachineCounters::parse(
            "TcpExt: ListenDrops\nTcpExt: 99999999999999999999\n",
            "Tcp: OutSegs\nTcp: -1\n",
            "",
            "cpu  18446744073709551615 1 0 0 0 0 0 0\n",
        );
        assert_eq!((huge.listen_drops, huge.segments_sent), (None, None));
        assert_eq!(huge.cpu_seconds, Some(u64::MAX as f64 / 100.0));
    }

    #[test]
    fn threads_are_added_by_name_and_shards_stay_apart() {
        let threads = [
            ("throng-shard-0\n", "3000000 1000 7\n"),
            ("throng-worker-1\n", "100 10 1\n"),
            ("throng-worker-2\n", "200 20 1\n"),
            ("throng-17\n", "1 1 1\n"),
            ("balance-1\n", "5 5 5\n"),
            ("h2o\n", "9 9 9\n"),
            ("8\n", "4 4 4\n"),
            ("gone\n", ""),
            ("", "x y z"),
        ];
        let all = by_name(threads.iter().map(|(comm, stat)| (comm.to_string(), stat.to_string())));
        let found: Vec<_> = all
            .iter()
            .map(|it| (&*it.name, it.threads, it.cpu.as_nanos(), it.run_delay.as_nanos()))
            .collect();
        let expected = [
            ("8", 1, 4, 4),
            ("balance-1", 1, 5, 5),
            ("h2o", 1, 9, 9),
            ("throng", 1, 1, 1),
            ("throng-shard-0", 1, 3_000_000, 1000),
            ("throng-worker", 2, 300, 30),
        ];
        assert_eq!(found, expected);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_counters_and_this_process_a_thread() {
        let read = MachineCounters::read();
        assert!(read.cpu_seconds > read.softirq_seconds, "{read:?}");
        let threads = thread_times();
        assert!(threads.iter().any(|it| it.cpu > Duration::ZERO), "{threads:?}");
    }

    #[test]
    fn no_part_of_a_text_is_a_panic() {
        let all = [NETSTAT, SNMP, SOCKSTAT, STAT].concat();
        for at in 0..all.len() {
            let (start, end) = all.split_at(at);
            for text in [start, end] {
                let read = MachineCounters::parse(text, text, text, text);
                assert!(read.softirq_seconds <= read.cpu_seconds, "{text}");
                let one = by_name(std::iter::once((text.to_owned(), text.to_owned())));
                assert!(one.len() <= 1, "{text}");
            }
        }
    }
}
