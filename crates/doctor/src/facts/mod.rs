//! The state of a machine, as plain data. All of it is optional: a machine may not have it, and a
//! container may not show it.

pub mod parse;
mod read;
mod service;
mod tree;

use std::collections::BTreeMap;

pub use read::{ReadOptions, read};

/// The kernel settings that rules use.
pub const SYSCTLS: &[&str] = &[
    "fs.epoll.max_user_watches",
    "fs.file-max",
    "fs.nr_open",
    "kernel.io_uring_disabled",
    "kernel.numa_balancing",
    "kernel.pid_max",
    "kernel.threads-max",
    "net.core.netdev_max_backlog",
    "net.core.somaxconn",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_max_orphans",
    "net.ipv4.tcp_max_syn_backlog",
    "net.ipv4.tcp_max_tw_buckets",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_migrate_req",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_retries2",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_wmem",
    "net.netfilter.nf_conntrack_count",
    "net.netfilter.nf_conntrack_max",
    "net.netfilter.nf_conntrack_tcp_timeout_established",
    "vm.max_map_count",
];

/// The state of a machine. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Kernel settings by their names; see [`SYSCTLS`].
    pub sysctls: BTreeMap<String, Vec<u64>>,
    /// Hard limit on open descriptors; `u64::MAX` for none. Programs raise their soft limit to it.
    pub nofile_hard: Option<u64>,
    /// Soft limit on open descriptors.
    pub nofile_soft: Option<u64>,
    /// Limit on the user's processes and threads.
    pub user_processes: Option<u64>,
    /// Limit on the address space or the data of the process.
    pub process_memory: Option<u64>,
    /// Descriptors in use when a program starts.
    pub descriptors_used: Option<u64>,
    /// Threads can have descriptor tables of their own (Linux 5.9).
    pub own_tables: Option<bool>,
    /// Open files of all processes.
    pub files_used: Option<u64>,
    /// Memory of the machine.
    pub memory_total: Option<u64>,
    /// Memory that can be used without swapping.
    pub memory_available: Option<u64>,
    /// The lowest `memory.max` or `memory.high` of the cgroups.
    pub cgroup_memory: Option<u64>,
    /// Memory that the cgroup uses.
    pub cgroup_memory_used: Option<u64>,
    /// The lowest `pids.max` of the cgroups.
    pub cgroup_pids: Option<u64>,
    /// CPU quota in thousandths of a CPU.
    pub cpu_quota: Option<u64>,
    /// CPUs that the process may run on.
    pub cpus: Option<u64>,
    /// NUMA nodes with memory.
    pub nodes: Option<u64>,
    /// The clock source of the kernel.
    pub clock_source: Option<String>,
    /// Time to read the clock, in nanoseconds.
    pub clock_read: Option<u64>,
    /// Frequency governors of the CPUs, without repetitions.
    pub governors: Vec<String>,
    /// Network interfaces with a device.
    pub interfaces: Vec<Interface>,
    /// Mode of transparent huge pages: `always`, `madvise` or `never`.
    pub huge_pages: Option<String>,
    /// Swapped memory of this process.
    pub swapped: Option<u64>,
    /// Ranges of ports that are not given to outgoing connections.
    pub reserved_ports: Option<Vec<(u16, u16)>>,
    /// User of the process; 0 is root.
    pub user: Option<u64>,
    /// Capabilities of the process, as bits.
    pub capabilities: Option<u64>,
    /// A filter of system calls (seccomp) is in force.
    pub is_filtered: Option<bool>,
    /// Time that the service manager waits for an end before it kills, in seconds; `u64::MAX` for
    /// no limit.
    pub stop_time: Option<u64>,
    /// The source of `stop_time`: `TimeoutStopSec` or `terminationGracePeriodSeconds`.
    pub stop_source: Option<&'static str>,
    /// Programs that change kernel settings or interrupts.
    pub owners: Vec<String>,
    /// Files that set kernel settings at boot: the name, and the file that sets it last.
    pub boot_settings: BTreeMap<String, String>,
    /// Counters of the kernel.
    pub counters: Counters,
    /// Counters that were read earlier.
    pub earlier: Option<Counters>,
}

/// A network interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its queues for received packets.
    pub queues: u64,
    /// The kernel spreads received packets over CPUs (RPS).
    pub is_spread: bool,
    /// Its NUMA node.
    pub node: Option<u64>,
}

/// Counters since the start of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Connections dropped because the queue of a listener was full.
    pub listen_overflows: Option<u64>,
    /// Connections dropped by listeners for any reason.
    pub listen_drops: Option<u64>,
    /// SYNs dropped because their queue was full.
    pub syn_drops: Option<u64>,
    /// Packets dropped because a CPU's queue was full.
    pub packet_drops: Option<u64>,
    /// Times that the kernel stopped receiving packets before its queue was empty.
    pub packet_squeezes: Option<u64>,
    /// Periods in which the cgroup had used up its CPU quota.
    pub throttled: Option<u64>,
    /// Pages read from swap.
    pub swapped_in: Option<u64>,
    /// Times of each CPU.
    pub cpus: Vec<CpuTimes>,
    /// Interrupts of network devices, by CPU.
    pub interrupts: Vec<u64>,
}

/// Times of a CPU, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// All of them.
    pub all: u64,
    /// Received packets and other software interrupts.
    pub soft_interrupts: u64,
    /// Taken by the hypervisor for others.
    pub stolen: u64,
}

impl Facts {
    /// Returns a kernel setting that is a number.
    #[must_use]
    pub fn sysctl(&self, key: &str) -> Option<u64> {
        self.sysctls.get(key)?.first().copied()
    }

    /// Returns a kernel setting that is a list of numbers.
    #[must_use]
    pub fn sysctl_list<const N: usize>(&self, key: &str) -> Option<[u64; N]> {
        self.sysctls.get(key)?.as_slice().try_into().ok()
    }

    /// Returns the growth of a counter, and since when.
    pub(crate) fn growth(
        &self,
        of: impl Fn(&Counters) -> Option<u64>,
    ) -> Option<(u64, &'static str)> {
        let now = of(&self.counters)?;
        match self.earlier.as_ref().map(of) {
            Some(before) => Some((now.saturating_sub(before?), "in a second")),
            None => Some((now, "since the machine's start")),
        }
    }

    /// Returns the largest share of a CPU's time, in percent, and whether it is a recent one.
    pub(crate) fn largest_share(&self, of: impl Fn(&CpuTimes) -> u64) -> Option<u64> {
        let earlier = self.earlier.as_ref().map_or(&[][..], |counters| &counters.cpus);
        let share = |(index, now): (usize, &CpuTimes)| {
            let before = earlier.get(index).copied().unwrap_or_default();
            let all = now.all.saturating_sub(before.all);
            let part = of(now).saturating_sub(of(&before));
            part.saturating_mul(100).checked_div(all)
        };
        self.counters.cpus.iter().enumerate().filter_map(share).max()
    }
}
