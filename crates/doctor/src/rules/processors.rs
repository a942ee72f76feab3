//! CPUs, clocks, interrupts and memory pages.

use super::{KERNEL, Rule, UNDO_NOTHING, UNDO_SETTING, UNDO_SYSCTL, exactly, unknown};
use crate::finding::{Remedy, Status, Verdict};
use crate::numbers::{count, plural, size};

/// Clock sources that a process reads without a system call.
const FAST_CLOCKS: [&str; 5] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "riscv_clocksource"];

/// The longest time of a read of the clock that does not matter, in nanoseconds.
const FAST_READ: u64 = 60;

/// The path of the mode of huge pages.
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "clock",
        title: "clock",
        reads: "current_clocksource; 100,000 reads of the clock, timed",
        formula: "tsc, kvm-clock or the timer of the architecture, and <= 60 ns a read",
        about: "A turn of an event loop reads the clock. Other sources need a system call or a \
                device for it: microseconds in place of nanoseconds.",
        undo: UNDO_NOTHING,
        source: "Valkey, src/syscheck.c",
        at_start: false,
        check: |case| {
            let Some(source) = case.facts.clock_source.as_deref() else {
                return unknown("the clock source");
            };
            let read = case.facts.clock_read;
            let is_fast_source = FAST_CLOCKS.contains(&source);
            let is_fine = is_fast_source && read.is_none_or(|it| it <= FAST_READ);
            let found = match read {
                Some(time) => format!("{source}, {time} ns"),
                None => source.to_owned(),
            };
            let verdict = Verdict::unless(is_fine, Status::Warn, found)
                .wanted("tsc or kvm-clock, 60 ns")
                .because("each turn of an event loop reads it");
            // A fast source that is slow, as on a shared host, has no setting.
            if is_fast_source {
                return verdict;
            }
            verdict.remedy(Remedy::SysFile {
                path: "/sys/devices/system/clocksource/clocksource0/current_clocksource",
                value: "tsc".to_owned(),
            })
        },
    },
    Rule {
        id: "cpu-quota",
        title: "CPU quota",
        reads: "cpu.max of the cgroups, nr_throttled of cpu.stat",
        formula: "event loops <= quota in CPUs, rounded up, and no throttled periods within a \
                  second",
        about: "A process that has used up its quota stands still for the rest of 100 ms, with all \
                its connections. Latencies grow in steps of that length.",
        undo: UNDO_SETTING,
        source: "Linux, Documentation/admin-guide/cgroup-v2.rst",
        at_start: true,
        check: |case| {
            let Some(quota) = case.facts.cpu_quota else { return Verdict::skip("no CPU quota") };
            let shards = case.shards();
            let recent = case.facts.earlier.as_ref();
            let growth = recent.and_then(|_| case.facts.growth(|it| it.throttled));
            let (throttled, since) = growth.unwrap_or((0, ""));
            let (cpus, rest) = (quota / 1_000, quota % 1_000 / 100);
            let is_fine = shards <= quota.div_ceil(1_000).max(1) && throttled == 0;
            let stopped = match throttled {
                0 => String::new(),
                periods => format!(", stopped {} {since}", plural(periods, "time")),
            };
            let loops = plural(shards, "event loop");
            let found = format!("{cpus}.{rest} CPUs for {loops}{stopped}");
            let more = quota.div_ceil(1_000) + u64::from(throttled > 0);
            let wanted = shards.max(more);
            let verdict = Verdict::unless(is_fine, Status::Warn, found)
                .wanted("a CPU for each, and no stops")
                .because("latencies grow in steps of 100 ms");
            let fewer = (quota / 1_000).max(1);
            let verdict = match shards > fewer {
                true => verdict.remedy(Remedy::Setting(format!("shards={fewer}"))),
                false => verdict,
            };
            let per_cent = wanted.saturating_mul(100);
            verdict
                .remedy(Remedy::Systemd(format!("CPUQuota={per_cent}%")))
                .remedy(Remedy::Container(format!("--cpus={wanted}")))
        },
    },
    Rule {
        id: "shards",
        title: "event loops",
        reads: "CPUs that the process may use, NUMA nodes, shards, pin",
        formula: "event loops <= usable CPUs; on several NUMA nodes, bound to CPUs",
        about: "More event loops than CPUs take turns, and add latency. On several nodes, a loop \
                that moves leaves its memory behind.",
        undo: UNDO_SETTING,
        source: "docs/design/decisions.md",
        at_start: false,
        check: |case| {
            let Some(cpus) = case.cpus() else { return unknown("the list of CPUs") };
            let (shards, nodes) = (case.shards(), case.facts.nodes.unwrap_or(1));
            let is_bound = nodes <= 1 || case.settings.pinned;
            let found = match nodes {
                0 | 1 => format!("{shards} on {}", plural(cpus, "CPU")),
                _ => format!("{shards} on {} of {nodes} nodes", plural(cpus, "CPU")),
            };
            let verdict = Verdict::unless(shards <= cpus && is_bound, Status::Warn, found)
                .wanted(if is_bound { "at most one for each CPU" } else { "bound to CPUs" })
                .because("event loops that wait for a CPU, or leave their memory behind");
            let verdict = match shards > cpus {
                true => verdict.remedy(Remedy::Setting(format!("shards={cpus}"))),
                false => verdict,
            };
            match is_bound {
                true => verdict,
                false => verdict.remedy(Remedy::Setting("pin=cores".to_owned())),
            }
        },
    },
    Rule {
        id: "steal",
        title: "stolen CPU time",
        reads: "/proc/stat",
        formula: "< 2 % of any CPU within a second",
        about: "Time in which the hypervisor ran others. Event loops stand still for it, and no \
                setting of this machine changes that.",
        undo: UNDO_NOTHING,
        source: "proc(5)",
        at_start: false,
        check: |case| {
            let Some(share) = case.facts.largest_share(|cpu| cpu.stolen) else {
                return unknown("/proc/stat");
            };
            Verdict::unless(share < 2, Status::Warn, format!("{share} %"))
                .wanted("below 2 %")
                .because("the hypervisor ran other machines: take a size with CPUs of its own")
        },
    },
    Rule {
        id: "governor",
        title: "frequency governor",
        reads: "scaling_governor of the CPUs",
        formula: "performance",
        about: "Other governors lower the frequency of a CPU that waits, so that the first \
                messages after a pause are slower.",
        undo: "Set the old governor, for example with cpupower.",
        source: "Linux, Documentation/admin-guide/pm/cpufreq.rst",
        at_start: false,
        check: |case| match case.facts.governors.as_slice() {
            [] => Verdict::skip("no frequency scaling, as in most virtual machines"),
            all => {
                let is_fine = all.iter().all(|it| it == "performance");
                Verdict::unless(is_fine, Status::Info, all.join(", "))
                    .wanted("performance")
                    .because("the first messages after a pause are slower")
                    .remedy(Remedy::Shell("cpupower frequency-set -g performance".to_owned()))
            }
        },
    },
    Rule {
        id: "irq-spread",
        title: "interrupts of the network",
        reads: "/proc/interrupts",
        formula: "with more than two CPUs: no CPU has more than half of the interrupts within a \
                  second",
        about: "One CPU that takes all packets is busy before the others are.",
        undo: "Write the old masks to /proc/irq/*/smp_affinity, or start irqbalance again.",
        source: "Linux, Documentation/networking/scaling.rst",
        at_start: false,
        check: |case| {
            let now = &case.facts.counters.interrupts;
            if now.len() <= 2 {
                return Verdict::skip("two CPUs or fewer");
            }
            let before = case.facts.earlier.as_ref().map_or(&[][..], |it| &it.interrupts);
            let grown = |(index, count): (usize, &u64)| {
                count.saturating_sub(before.get(index).copied().unwrap_or(0))
            };
            let grown: Vec<u64> = now.iter().enumerate().map(grown).collect();
            let all = grown.iter().copied().fold(0, u64::saturating_add);
            if all < 100 {
                return Verdict::skip("too few interrupts to judge");
            }
            let largest = grown.iter().copied().max().unwrap_or(0);
            let share = largest.saturating_mul(100) / all;
            Verdict::unless(share <= 50, Status::Warn, format!("{share} % on one CPU"))
                .wanted("at most 50 %")
                .because("one CPU takes the packets of all")
                .remedy(Remedy::Shell("systemctl enable --now irqbalance".to_owned()))
        },
    },
    Rule {
        id: "queues",
        title: "receive queues",
        reads: "/sys/class/net/*/queues, rps_cpus",
        formula: "each interface of a device has several queues, or spreads packets (RPS), on more \
                  than two CPUs",
        about: "Packets of one queue are taken by one CPU.",
        undo: "Write 0 to rps_cpus of the queue.",
        source: "Linux, Documentation/networking/scaling.rst",
        at_start: false,
        check: |case| {
            let interfaces = &case.facts.interfaces;
            if interfaces.is_empty() {
                return Verdict::skip("no network device");
            }
            let cpus = case.facts.cpus.unwrap_or(1);
            if cpus <= 2 {
                return Verdict::skip("two CPUs or fewer");
            }
            let single = interfaces.iter().find(|it| it.queues <= 1 && !it.is_spread);
            let Some(single) = single else {
                let queues = interfaces.iter().map(|it| it.queues).max().unwrap_or(0);
                return Verdict::pass(format!("{queues} queues, or spread"));
            };
            Verdict::unless(false, Status::Warn, format!("one of {}", single.name))
                .wanted("several, or RPS")
                .because("one CPU takes the packets of all")
                .remedy(Remedy::Shell(format!("ethtool -L {} combined {cpus}", single.name)))
        },
    },
    Rule {
        id: "softirq",
        title: "software interrupts",
        reads: "/proc/stat",
        formula: "< 30 % of any CPU within a second",
        about: "Evidence that receiving packets takes a large part of a CPU, which an event loop \
                on it does not have.",
        undo: UNDO_NOTHING,
        source: "proc(5)",
        at_start: false,
        check: |case| {
            let Some(share) = case.facts.largest_share(|cpu| cpu.soft_interrupts) else {
                return unknown("/proc/stat");
            };
            Verdict::unless(share < 30, Status::Warn, format!("{share} %"))
                .wanted("below 30 %")
                .because("receiving packets takes a large part of a CPU")
        },
    },
    Rule {
        id: "numa-balancing",
        title: "NUMA balancing",
        reads: "kernel.numa_balancing, number of nodes",
        formula: "0 on more than one node",
        about: "The kernel moves pages to the node that uses them, and stops the process for it. \
                Event loops bound to CPUs do not need it.",
        undo: UNDO_SYSCTL,
        source: "Linux, Documentation/admin-guide/sysctl/kernel.rst",
        at_start: false,
        check: |case| {
            let key = "kernel.numa_balancing";
            match case.facts.sysctl(key) {
                _ if case.facts.nodes.unwrap_or(1) <= 1 => Verdict::skip("one node"),
                None => unknown(key),
                Some(mode) => exactly(case, (key, mode), 0, Status::Info)
                    .because("the kernel stops event loops to move their pages"),
            }
        },
    },
    Rule {
        id: "thp",
        title: "transparent huge pages",
        reads: "/sys/kernel/mm/transparent_hugepage/enabled",
        formula: "madvise or never",
        about: "With always, small heaps are rounded up to 2 MiB pages, and the kernel stops a \
                thread to make them.",
        undo: "Write the old word to the file.",
        source: "Valkey, src/syscheck.c; Linux, Documentation/admin-guide/mm/transhuge.rst",
        at_start: false,
        check: |case| match case.facts.huge_pages.as_deref() {
            None => unknown(HUGE_PAGES),
            Some(mode) => Verdict::unless(mode != "always", Status::Warn, mode)
                .wanted("madvise")
                .because("memory is rounded up to 2 MiB pages")
                .remedy(Remedy::SysFile { path: HUGE_PAGES, value: "madvise".to_owned() }),
        },
    },
    Rule {
        id: "swap",
        title: "swapping",
        reads: "VmSwap of /proc/self/status, pswpin of /proc/vmstat",
        formula: "no memory of the process is swapped, and no pages are read back within a second",
        about: "An event loop that waits for a page from a disk stands still with all its \
                connections.",
        undo: UNDO_NOTHING,
        source: KERNEL,
        at_start: false,
        check: |case| {
            let Some(swapped) = case.facts.swapped else { return unknown("VmSwap") };
            let recent = case.facts.earlier.as_ref();
            let pages = recent.and_then(|_| case.facts.growth(|it| it.swapped_in)).map(|it| it.0);
            let pages = pages.unwrap_or(0);
            let is_fine = swapped == 0 && pages == 0;
            let found = format!("{} of this process, {} pages read", size(swapped), count(pages));
            Verdict::unless(is_fine, Status::Fail, found)
                .wanted("none")
                .because("event loops wait for the disk")
                .remedy(Remedy::Systemd("MemorySwapMax=0".to_owned()))
        },
    },
];
