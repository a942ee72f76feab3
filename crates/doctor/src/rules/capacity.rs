//! Descriptors, memory, ports and threads: limits that stop connections.

use throng_io::capacity::{ThreadLimit, ThreadLimits};

use super::{KERNEL, MEASURED, Rule, UNDO_NOTHING, UNDO_SETTING, UNDO_SYSCTL, sysctl, unknown};
use crate::finding::{Remedy, Status, Verdict};
use crate::numbers::{count, size};
use crate::question::{Io, Role};
use crate::rules::Case;

/// Bytes of kernel memory of a socket without data.
const SOCKET: u64 = 4096;
/// Bytes that the process adds for an idle connection, without and with TLS.
const OWN: u64 = 103;
const OWN_WITH_TLS: u64 = 320;
/// Bytes that a balancer adds for an idle tunnel.
const TUNNEL: u64 = 165;
/// Bytes of an entry of connection tracking.
const FLOW: u64 = 256;

/// Bytes of a connection besides its queue and its messages: the receive buffer of a reader that
/// is behind.
const WORST_BESIDES: u64 = 512 << 10;

/// The recommended hard limit for so many sockets.
fn recommended(sockets: u64) -> u64 {
    sockets.saturating_add(sockets / 20).saturating_add(4096)
}

fn per_cent(of: u64, part: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(part) / 100).unwrap_or(u64::MAX)
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "nofile-hard",
        title: "open files per process",
        reads: "hard limit of RLIMIT_NOFILE, and whether threads can have descriptor tables",
        formula: "the connections that the program accepts under this limit >= N; if each event \
                  loop has a table (max_connections set, Linux 5.9), the limit counts for each \
                  table; recommended: 1.05 S + 4,096",
        about: "Every socket is a descriptor. At the limit, new connections are refused. Programs \
                raise their soft limit to the hard one; only root can raise the hard one.",
        undo: "Take the line out of the unit, or start from a shell without `ulimit`.",
        source: "the programs' own sum at their start (throng-io, capacity)",
        at_start: true,
        check: |case| {
            let Some(limit) = case.facts.nofile_hard else { return unknown("RLIMIT_NOFILE") };
            if limit == u64::MAX {
                return Verdict::pass("unlimited");
            }
            let wall = case.by_descriptors(limit);
            let needed = recommended(case.sockets());
            let found = match case.tables(limit) {
                Some(tables) if wall >= case.n => {
                    format!("{} in each of {tables} tables", count(limit))
                }
                _ => count(limit),
            };
            let reason = match case.role {
                Role::Balance => "a connection takes two descriptors",
                Role::Serve if case.has_threads() => "a connection takes a socket and a wake-up",
                _ => "a connection takes a descriptor",
            };
            let verdict = Verdict::unless(wall >= case.n, Status::Fail, found);
            let wanted = if wall >= case.n { String::new() } else { count(needed) };
            verdict
                .wanted(wanted)
                .because(reason)
                .wall(wall)
                .remedy(Remedy::Systemd(format!("LimitNOFILE={needed}")))
                .remedy(Remedy::Shell(format!("ulimit -n {needed}")))
                .remedy(Remedy::Container(format!("--ulimit nofile={needed}")))
        },
    },
    Rule {
        id: "nofile-soft",
        title: "soft limit on open files",
        reads: "soft limit of RLIMIT_NOFILE",
        formula: "none: programs raise it to the hard limit",
        about: "The soft limit is what a process starts with. It does not matter here, because \
                `serve`, `balance` and `bench` raise it when they start.",
        undo: UNDO_NOTHING,
        source: "throng-io, limits",
        at_start: false,
        check: |case| match (case.facts.nofile_soft, case.facts.nofile_hard) {
            (Some(soft), Some(hard)) if soft < hard => {
                Verdict::pass(count(soft)).because("raised to the hard limit at the start")
            }
            (Some(soft), _) => Verdict::pass(count(soft)),
            _ => unknown("RLIMIT_NOFILE"),
        },
    },
    Rule {
        id: "nr-open",
        title: "fs.nr_open",
        reads: "fs.nr_open",
        formula: "the connections that the program accepts with a hard limit of fs.nr_open >= N",
        about: "The kernel's bound on every hard limit on open files. Its default of 1,048,576 is \
                too small for a million tunnels of a balancer in one descriptor table.",
        undo: UNDO_SYSCTL,
        source: "Linux, Documentation/admin-guide/sysctl/fs.rst",
        at_start: false,
        check: |case| {
            let key = "fs.nr_open";
            let Some(most) = case.facts.sysctl(key) else { return unknown(key) };
            let hard = case.facts.nofile_hard.unwrap_or(0);
            let wall = case.by_descriptors(most.max(hard));
            let needed = recommended(case.sockets());
            let is_enough = wall >= case.n;
            let verdict = Verdict::unless(is_enough, Status::Fail, count(most))
                .wanted(if is_enough { String::new() } else { count(needed) })
                .because("no hard limit on open files can be higher")
                .remedy(sysctl(case.facts, key, needed));
            // If the needed limit exceeds the hard limit, which cannot be raised, the hard limit is
            // the wall.
            if most > hard { verdict.wall(wall) } else { verdict }
        },
    },
    Rule {
        id: "file-max",
        title: "fs.file-max",
        reads: "fs.file-max, fs.file-nr",
        formula: "fs.file-max - open files of all processes >= 1.1 S",
        about: "The bound on the open files of all processes together. At it, every process of \
                the machine fails to open files. Root is exempt.",
        undo: UNDO_SYSCTL,
        source: "Linux, Documentation/admin-guide/sysctl/fs.rst",
        at_start: false,
        check: |case| {
            let key = "fs.file-max";
            let Some(most) = case.facts.sysctl(key) else { return unknown(key) };
            if most >= 1 << 62 {
                return Verdict::pass("unlimited");
            }
            let used = case.facts.files_used.unwrap_or(0);
            let free = most.saturating_sub(used);
            let needed = per_cent(case.sockets(), 110);
            let wall = case.connections(free / 11 * 10);
            Verdict::unless(free >= needed, Status::Fail, format!("{} free", count(free)))
                .wanted(count(needed))
                .because("open files of all processes together")
                .wall(wall)
                .remedy(sysctl(case.facts, key, needed.saturating_add(used)))
        },
    },
    Rule {
        id: "epoll-watches",
        title: "fs.epoll.max_user_watches",
        reads: "fs.epoll.max_user_watches",
        formula: "watches of the user >= S",
        about: "Each socket is watched by the poll of its event loop. All processes of one user \
                share this number; by default it allows 4 % of low memory.",
        undo: UNDO_SYSCTL,
        source: "epoll(7)",
        at_start: false,
        check: |case| {
            let key = "fs.epoll.max_user_watches";
            let Some(most) = case.facts.sysctl(key) else { return unknown(key) };
            if case.question.settings.io != Io::Epoll && case.role == Role::Serve {
                return Verdict::skip("io is not epoll");
            }
            Verdict::unless(most >= case.sockets(), Status::Fail, count(most))
                .wanted(count(case.sockets()))
                .because("every socket is watched")
                .wall(case.connections(most))
                .remedy(sysctl(case.facts, key, case.sockets().saturating_mul(2)))
        },
    },
    Rule {
        id: "tcp-mem",
        title: "tcp_mem",
        reads: "net.ipv4.tcp_mem, in pages",
        formula: "maximum >= 4 A and pressure >= 2 A pages, where A = S / 4 sockets hold data at \
                  the peak; a socket that holds data takes at least a page",
        about: "Pages that TCP may hold for data of all sockets. Above the pressure mark the \
                kernel shrinks windows, at the maximum it drops packets and refuses to send. It \
                bounds sockets with data, not idle ones: the number assumes that a quarter of \
                them have some at the same time, with four pages each.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: false,
        check: |case| {
            let key = "net.ipv4.tcp_mem";
            let Some([low, pressure, most]) = case.facts.sysctl_list(key) else {
                return unknown(key);
            };
            let sockets = case.sockets();
            let is_enough = most >= sockets && pressure >= sockets / 2;
            let found = format!("{} pages, pressure at {}", count(most), count(pressure));
            let value = [sockets / 2, sockets, sockets.saturating_mul(2)];
            let value =
                format!("{} {} {}", value[0].max(low), value[1].max(pressure), value[2].max(most));
            let wanted = format!("{} and {}", count(sockets), count(sockets / 2));
            Verdict::unless(is_enough, Status::Warn, found)
                .wanted(wanted)
                .because("data of a quarter of the sockets at the same time")
                .wall(case.connections(most))
                .remedy(sysctl(case.facts, key, value))
        },
    },
    Rule {
        id: "memory",
        title: "memory",
        reads: "MemAvailable, memory.max and memory.high of the cgroups, RLIMIT_AS, RLIMIT_DATA",
        formula: "4,096 B x S + 103 B x N (320 B with TLS; 165 B for a tunnel) + 256 B for each \
                  tracked flow <= 80 % of the memory that can be used",
        about: "Idle connections: the kernel's part of a socket and the process's own. Messages in \
                queues, and what handlers keep, come on top; leave room for them.",
        undo: UNDO_NOTHING,
        source: MEASURED,
        at_start: false,
        check: |case| {
            let facts = case.facts;
            let used = facts.cgroup_memory_used.unwrap_or(0);
            let of_group = facts.cgroup_memory.map(|most| most.saturating_sub(used));
            let machine = facts.memory_available.or(facts.memory_total);
            let process = facts.process_memory.filter(|&most| most != u64::MAX);
            let limits = [
                (machine, "available"),
                (of_group, "left in the cgroup"),
                (process, "for the process"),
            ];
            let known = limits.into_iter().filter_map(|(bytes, of)| Some((bytes?, of)));
            let Some((bytes, of)) = known.min() else { return unknown("/proc/meminfo") };
            let own = match case.role {
                Role::Balance => TUNNEL,
                _ if case.settings.tls => OWN_WITH_TLS,
                _ => OWN,
            };
            let flows = if is_tracking(case) { FLOW * case.role.sockets() } else { 0 };
            let each = SOCKET * case.role.sockets() + own + flows;
            let (budget, needed) = (per_cent(bytes, 80), case.n.saturating_mul(each));
            let found = format!("{} {of}", size(bytes));
            Verdict::unless(needed <= budget, Status::Fail, found)
                .wanted(size(per_cent(needed, 125)))
                .because(format!("{each} bytes for an idle connection, and a fifth to spare"))
                .wall(budget / each)
                .remedy(Remedy::Systemd(format!("MemoryMax={}", per_cent(needed, 125))))
                .remedy(Remedy::Container(format!("--memory={}", per_cent(needed, 125))))
        },
    },
    Rule {
        id: "worst-case",
        title: "memory in the worst case",
        reads: "max_connections, max_backlog, max_message_size, max_memory",
        formula: "the lower of max_memory and max_connections x (max_backlog + 2 max_message_size \
                  + 512 KiB) <= memory of the machine or its cgroup",
        about: "The memory if every client reads nothing and sends its largest message in parts. \
                max_memory bounds it for all connections together, and is a quarter of the memory \
                unless it is set.",
        undo: UNDO_SETTING,
        source: "SECURITY.md",
        at_start: true,
        check: |case| {
            if case.role != Role::Serve {
                return Verdict::skip("a balancer and a load generator keep no messages");
            }
            let memory = case.facts.memory_total.into_iter().chain(case.facts.cgroup_memory).min();
            let Some(memory) = memory else { return unknown("/proc/meminfo") };
            let settings = case.settings;
            let message = settings.max_message_size.saturating_mul(2);
            let each = settings.max_backlog.saturating_add(message).saturating_add(WORST_BESIDES);
            let worst = case.n.saturating_mul(each).min(settings.max_memory.unwrap_or(memory / 4));
            let quarter = memory / 4;
            Verdict::unless(worst <= memory, Status::Warn, size(worst))
                .wanted(format!("at most {}", size(memory)))
                .because("clients that read nothing can take all memory")
                .remedy(Remedy::Setting(format!("max_memory={quarter}")))
        },
    },
    Rule {
        id: "conntrack",
        title: "conntrack table",
        reads: "net.netfilter.nf_conntrack_max, nf_conntrack_count",
        formula: "nf_conntrack_max >= 1.25 flows, or no rule tracks connections; a connection is a \
                  flow, and two in a balancer",
        about: "A firewall that tracks connections has an entry for each. When its table is full, \
                the kernel drops packets of new connections without an answer.",
        undo: UNDO_SYSCTL,
        source: "Linux, Documentation/networking/nf_conntrack-sysctl.rst",
        at_start: false,
        check: |case| {
            let key = "net.netfilter.nf_conntrack_max";
            let Some(most) = case.facts.sysctl(key) else {
                return Verdict::skip("the kernel does not track connections");
            };
            if !is_tracking(case) {
                return Verdict::skip("no rule tracks connections");
            }
            let needed = per_cent(case.sockets(), 125);
            Verdict::unless(most >= needed, Status::Fail, count(most))
                .wanted(count(needed))
                .because("a full table drops new connections without an answer")
                .wall(case.connections(most / 5 * 4))
                .remedy(sysctl(case.facts, key, needed))
        },
    },
    Rule {
        id: "conntrack-time",
        title: "conntrack timeout",
        reads: "net.netfilter.nf_conntrack_tcp_timeout_established",
        formula: "<= 24 h",
        about: "The time that an entry of a dead connection stays in the table. The default of \
                five days fills the table with connections that have ended without a FIN.",
        undo: UNDO_SYSCTL,
        source: "Linux, Documentation/networking/nf_conntrack-sysctl.rst",
        at_start: false,
        check: |case| {
            let key = "net.netfilter.nf_conntrack_tcp_timeout_established";
            let Some(seconds) = case.facts.sysctl(key) else {
                return Verdict::skip("the kernel does not track connections");
            };
            if !is_tracking(case) {
                return Verdict::skip("no rule tracks connections");
            }
            Verdict::unless(seconds <= 86_400, Status::Info, format!("{} s", count(seconds)))
                .wanted("at most 86,400 s")
                .because("dead connections stay in the table for so long")
                .remedy(sysctl(case.facts, key, 86_400))
        },
    },
    Rule {
        id: "ports",
        title: "ephemeral ports",
        reads: "net.ipv4.ip_local_port_range, source addresses, backends",
        formula: "ports in the range x source addresses x backend addresses >= N; not for serve: \
                  accepted sockets take no port",
        about: "An outgoing connection takes a port for its pair of addresses. The default range \
                has 28,232 of them.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: false,
        check: |case| {
            let key = "net.ipv4.ip_local_port_range";
            if case.role == Role::Serve {
                return Verdict::skip("accepted sockets take no port");
            }
            let Some([first, last]) = case.facts.sysctl_list(key) else { return unknown(key) };
            let ports = last.saturating_sub(first).saturating_add(1);
            let targets = if case.role == Role::Balance { case.settings.backends } else { 1 };
            let each = ports.saturating_mul(targets.max(1));
            let Some(sources) = case.settings.sources else {
                if case.role == Role::Bench {
                    return Verdict::pass(count(ports))
                        .because("takes a source address for each 25,000 connections");
                }
                return ports_of(case, each, 1);
            };
            ports_of(case, each, sources.max(1))
        },
    },
    Rule {
        id: "reserved-ports",
        title: "listener in the ephemeral range",
        reads: "listen, net.ipv4.ip_local_port_range, ip_local_reserved_ports",
        formula: "ports of listen are outside of the range, or reserved",
        about: "If an outgoing connection of any program has taken the port, the next start fails \
                with \"address in use\".",
        undo: "Set net.ipv4.ip_local_reserved_ports to its old value.",
        source: KERNEL,
        at_start: false,
        check: |case| {
            let key = "net.ipv4.ip_local_port_range";
            let Some([first, last]) = case.facts.sysctl_list(key) else { return unknown(key) };
            if case.settings.listen.is_empty() {
                return Verdict::skip("no settings were given");
            }
            let reserved = case.facts.reserved_ports.as_deref().unwrap_or(&[]);
            let is_reserved = |port| reserved.iter().any(|(a, b)| (*a..=*b).contains(&port));
            let mut ports = case.settings.listen.iter().map(std::net::SocketAddr::port);
            let taken = ports
                .find(|port| (first..=last).contains(&u64::from(*port)) && !is_reserved(*port));
            let Some(port) = taken else { return Verdict::pass("outside of the range") };
            let old: Vec<String> = reserved.iter().map(|(a, b)| format!("{a}-{b}")).collect();
            let old = old.join(",");
            let comma = if old.is_empty() { "" } else { "," };
            Verdict::unless(false, Status::Warn, format!("port {port}"))
                .wanted(format!("outside of {first} to {last}, or reserved"))
                .because("an outgoing connection may take it before the next start")
                .remedy(Remedy::Sysctl {
                    key: "net.ipv4.ip_local_reserved_ports",
                    value: format!("{old}{comma}{port}"),
                    old,
                })
        },
    },
    Rule {
        id: "threads",
        title: "threads",
        reads: "kernel.threads-max, kernel.pid_max, RLIMIT_NPROC, pids.max (TasksMax)",
        formula: "with io = threads: N + 64 below each, and N <= 65,535",
        about: "With io = threads each connection has a thread. The lowest of the limits counts; \
                root is exempt from RLIMIT_NPROC.",
        undo: UNDO_SYSCTL,
        source: "the server's own sum at its start (throng-io, capacity)",
        at_start: false,
        check: |case| {
            if !case.has_threads() {
                return Verdict::skip("io is not threads");
            }
            let limits = ThreadLimits { max_map_count: None, ..thread_limits(case) };
            let Some(lowest) = limits.lowest() else { return unknown("kernel.threads-max") };
            let needed = case.n.saturating_add(ThreadLimit::RESERVED as u64);
            let wall = lowest.connections().min(ThreadLimit::NUMBERS) as u64;
            let found = format!("{} ({})", count(lowest.threads as u64), lowest.limit);
            let verdict = Verdict::unless(wall >= case.n, Status::Fail, found)
                .wanted(count(needed))
                .because("a thread for each connection")
                .wall(wall);
            match lowest.limit {
                "kernel.threads-max" => {
                    verdict.remedy(sysctl(case.facts, "kernel.threads-max", needed))
                }
                "kernel.pid_max" => verdict.remedy(sysctl(case.facts, "kernel.pid_max", needed)),
                "ulimit -u" => verdict
                    .remedy(Remedy::Systemd(format!("LimitNPROC={needed}")))
                    .remedy(Remedy::Shell(format!("ulimit -u {needed}"))),
                _ => verdict
                    .remedy(Remedy::Systemd(format!("TasksMax={needed}")))
                    .remedy(Remedy::Container(format!("--pids-limit={needed}"))),
            }
        },
    },
    Rule {
        id: "map-count",
        title: "vm.max_map_count",
        reads: "vm.max_map_count",
        formula: "with io = threads: >= 5 (N + 64)",
        about: "A thread takes five maps: its stack, the stack of its signal handler, a guard page \
                for each, and one to spare. A process without maps may abort.",
        undo: UNDO_SYSCTL,
        source: "the server's own sum at its start (throng-io, capacity)",
        at_start: false,
        check: |case| {
            let key = "vm.max_map_count";
            if !case.has_threads() {
                return Verdict::skip("io is not threads");
            }
            let maps = case.facts.sysctl(key);
            let limits = ThreadLimits { max_map_count: maps, ..ThreadLimits::default() };
            let (Some(maps), Some(lowest)) = (maps, limits.lowest()) else { return unknown(key) };
            let threads = case.n.saturating_add(ThreadLimit::RESERVED as u64);
            let needed = threads.saturating_mul(ThreadLimits::MAPS_PER_THREAD as u64);
            let wall = lowest.connections() as u64;
            Verdict::unless(wall >= case.n, Status::Fail, count(maps))
                .wanted(count(needed))
                .because("stacks and guard pages of the threads")
                .wall(wall)
                .remedy(sysctl(case.facts, key, needed))
        },
    },
];

/// Returns whether a rule of the firewall tracks connections: on a machine where none does, the
/// table stays empty.
fn is_tracking(case: &Case<'_>) -> bool {
    case.facts.sysctl("net.netfilter.nf_conntrack_count").is_some_and(|flows| flows > 0)
}

fn ports_of(case: &Case<'_>, each: u64, sources: u64) -> Verdict {
    let wall = each.saturating_mul(sources);
    let wanted = case.n.div_ceil(each.max(1));
    let addresses = if wanted == 1 { "source address" } else { "source addresses" };
    Verdict::unless(wall >= case.n, Status::Fail, count(wall))
        .wanted(format!("{} {addresses}", count(wanted)))
        .because("an outgoing connection takes a port of its pair of addresses")
        .wall(wall)
        .remedy(sysctl(case.facts, "net.ipv4.ip_local_port_range", "1024 65535"))
        .remedy(Remedy::Setting(format!("sources: {} addresses of this machine", count(wanted))))
}

fn thread_limits(case: &Case<'_>) -> ThreadLimits {
    let facts = case.facts;
    let limited = facts.user_processes.filter(|&most| most != u64::MAX && facts.user != Some(0));
    ThreadLimits {
        threads_max: facts.sysctl("kernel.threads-max"),
        pid_max: facts.sysctl("kernel.pid_max"),
        max_map_count: facts.sysctl("vm.max_map_count"),
        user_processes: limited,
        cgroup_pids: facts.cgroup_pids,
    }
}
