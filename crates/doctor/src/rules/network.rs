//! TCP: queues of listeners, closed connections, buffers and packets.

use super::{KERNEL, Rule, UNDO_NOTHING, UNDO_SYSCTL, exactly, sysctl, unknown};
use crate::finding::{Remedy, Status, Verdict};
use crate::numbers::{count, size};
use crate::question::Role;
use crate::rules::Case;

/// The queue of a listener that holds a reconnect storm while event loops are busy.
const QUEUE: u64 = 4096;

/// The time that the programs wait for unacknowledged bytes, in seconds.
const USER_TIMEOUT: u64 = 35;

const LOOPBACK_ONLY: &str = "only this machine can connect";

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "somaxconn",
        title: "accept queue",
        reads: "net.core.somaxconn, backlog",
        formula: "the lower of both >= 4,096",
        about: "Connections wait here until an event loop accepts them. A queue that is full while \
                a loop is busy drops the handshake, and the client repeats it after a second.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: true,
        check: |case| {
            let key = "net.core.somaxconn";
            let Some(most) = case.facts.sysctl(key) else { return unknown(key) };
            if case.role == Role::Bench {
                return Verdict::skip("it does not listen");
            }
            if !case.settings.is_public() {
                return Verdict::skip(LOOPBACK_ONLY);
            }
            let length = most.min(case.settings.backlog);
            let verdict = Verdict::unless(length >= QUEUE, Status::Warn, count(length))
                .wanted(count(QUEUE))
                .because("a reconnect storm overflows it while an event loop is busy");
            let verdict = match most < QUEUE {
                true => verdict.remedy(sysctl(case.facts, key, QUEUE)),
                false => verdict,
            };
            match case.settings.backlog < QUEUE {
                true => verdict.remedy(Remedy::Setting(format!("backlog={QUEUE}"))),
                false => verdict,
            }
        },
    },
    Rule {
        id: "syn-backlog",
        title: "SYN backlog",
        reads: "net.ipv4.tcp_max_syn_backlog, net.core.somaxconn, backlog",
        formula: ">= the lower of somaxconn and backlog",
        about: "Handshakes that are not complete. Beyond it the kernel sends SYN cookies, which \
                lose options of TCP, or drops SYNs: a reconnect storm loses them first.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: true,
        check: |case| {
            let key = "net.ipv4.tcp_max_syn_backlog";
            let Some(most) = case.facts.sysctl(key) else { return unknown(key) };
            if case.role == Role::Bench {
                return Verdict::skip("it does not listen");
            }
            if !case.settings.is_public() {
                return Verdict::skip(LOOPBACK_ONLY);
            }
            let queue = case.facts.sysctl("net.core.somaxconn").unwrap_or(QUEUE);
            let wanted = queue.min(case.settings.backlog);
            Verdict::unless(most >= wanted, Status::Warn, count(most))
                .wanted(count(wanted))
                .because("a reconnect storm loses SYNs first")
                .remedy(sysctl(case.facts, key, wanted))
        },
    },
    Rule {
        id: "syncookies",
        title: "SYN cookies",
        reads: "net.ipv4.tcp_syncookies",
        formula: "1",
        about: "With 0, a flood of SYNs shuts clients out; with 2, every connection loses options \
                of TCP.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: false,
        check: |case| {
            let key = "net.ipv4.tcp_syncookies";
            match case.facts.sysctl(key) {
                _ if case.role == Role::Bench => Verdict::skip("it does not listen"),
                None => unknown(key),
                Some(mode) => exactly(case, (key, mode), 1, Status::Warn)
                    .because("a flood of SYNs shuts clients out"),
            }
        },
    },
    Rule {
        id: "overflow",
        title: "listener overflows",
        reads: "ListenOverflows, ListenDrops, TCPReqQFullDrop of /proc/net/netstat",
        formula: "no growth within a second; without two readings, 0",
        about: "Evidence that a queue of a listener, of any program, has been too short or an \
                event loop too slow.",
        undo: UNDO_NOTHING,
        source: KERNEL,
        at_start: false,
        check: |case| {
            let growth = case.facts.growth(|counters| {
                let all = [counters.listen_overflows, counters.listen_drops, counters.syn_drops];
                let known = all.into_iter().flatten();
                known.reduce(u64::saturating_add)
            });
            let Some((drops, since)) = growth else { return unknown("/proc/net/netstat") };
            Verdict::unless(drops == 0, Status::Warn, format!("{} {since}", count(drops)))
                .wanted("0")
                .because("connections were dropped before they were accepted")
        },
    },
    Rule {
        id: "tw-reuse",
        title: "reuse of TIME-WAIT",
        reads: "net.ipv4.tcp_tw_reuse",
        formula: "1 where we connect; 2 is for loopback alone",
        about: "Closed connections keep their port for 60 s. With 1, new outgoing connections may \
                take it earlier, which is safe with timestamps.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: false,
        check: |case| {
            let key = "net.ipv4.tcp_tw_reuse";
            match case.facts.sysctl(key) {
                _ if case.role == Role::Serve => Verdict::skip("it does not connect"),
                None => unknown(key),
                Some(mode) => exactly(case, (key, mode), 1, Status::Warn)
                    .because("closed connections keep their ports for a minute"),
            }
        },
    },
    Rule {
        id: "tw-buckets",
        title: "TIME-WAIT sockets",
        reads: "net.ipv4.tcp_max_tw_buckets",
        formula: ">= closes/s x 60; assumed: all N within a minute",
        about: "Beyond it, closed connections are forgotten at once. That is harmless on a good \
                network, and a late packet may reset a new connection.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: false,
        check: |case| {
            at_least(
                case,
                "net.ipv4.tcp_max_tw_buckets",
                Status::Info,
                "if all connections close within a minute",
            )
        },
    },
    Rule {
        id: "orphans",
        title: "orphaned sockets",
        reads: "net.ipv4.tcp_max_orphans",
        formula: ">= N, for the end of all connections at the same time",
        about: "Sockets that the process has closed and whose last bytes are not acknowledged. \
                Beyond the number the kernel resets them, so clients miss their Close frame.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: false,
        check: |case| {
            at_least(
                case,
                "net.ipv4.tcp_max_orphans",
                Status::Warn,
                "at a close of all, clients get a reset in place of a Close frame",
            )
        },
    },
    Rule {
        id: "fin-timeout",
        title: "FIN timeout",
        reads: "net.ipv4.tcp_fin_timeout",
        formula: "<= 30 s under churn",
        about: "The time that a closed socket waits for the peer's FIN. It matters where many \
                short connections end.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: false,
        check: |case| {
            let key = "net.ipv4.tcp_fin_timeout";
            let Some(seconds) = case.facts.sysctl(key) else { return unknown(key) };
            Verdict::unless(seconds <= 30, Status::Info, format!("{} s", count(seconds)))
                .wanted("at most 30 s")
                .because("for many short connections")
                .remedy(sysctl(case.facts, key, 30))
        },
    },
    Rule {
        id: "migrate",
        title: "migration of requests",
        reads: "net.ipv4.tcp_migrate_req",
        formula: "none",
        about: "With 1, the kernel moves waiting handshakes of a closed listener to another of the \
                same port. Throng does not need it where listeners are passed on.",
        undo: UNDO_NOTHING,
        source: KERNEL,
        at_start: false,
        check: |case| match case.facts.sysctl("net.ipv4.tcp_migrate_req") {
            None => unknown("net.ipv4.tcp_migrate_req"),
            Some(mode) => Verdict::pass(count(mode)).because("to be known with share_port"),
        },
    },
    Rule {
        id: "neighbours",
        title: "neighbour table",
        reads: "net.ipv4.neigh.default.gc_thresh3",
        formula: ">= 1.2 x peers on the same link: the backends of a balancer; for clients behind \
                  a router there is one entry",
        about: "Peers of the same link without an entry cannot be sent to. It matters in flat \
                networks of thousands of hosts.",
        undo: UNDO_SYSCTL,
        source: "Linux, Documentation/networking/ip-sysctl.rst (gc_thresh3)",
        at_start: false,
        check: |case| {
            let key = "net.ipv4.neigh.default.gc_thresh3";
            let Some(most) = case.facts.sysctl(key) else { return unknown(key) };
            let peers = if case.role == Role::Balance { case.settings.backends } else { 1 };
            let needed = peers.saturating_add(peers / 5);
            Verdict::unless(most >= needed, Status::Warn, count(most))
                .wanted(count(needed))
                .because("backends on the same link")
                .remedy(sysctl(case.facts, key, needed))
        },
    },
    Rule {
        id: "backlog-dev",
        title: "packet backlog",
        reads: "/proc/net/softnet_stat, net.core.netdev_max_backlog",
        formula: "no packets dropped within a second; without two readings, none",
        about: "Packets that a CPU did not take in time. Clients see them as loss, and repeat them \
                after 200 ms and more.",
        undo: UNDO_SYSCTL,
        source: "Linux, Documentation/networking/scaling.rst",
        at_start: false,
        check: |case| {
            let Some((drops, since)) = case.facts.growth(|it| it.packet_drops) else {
                return unknown("/proc/net/softnet_stat");
            };
            let squeezes = case.facts.growth(|it| it.packet_squeezes).map_or(0, |it| it.0);
            let found = format!("{} dropped, {} cut short, {since}", count(drops), count(squeezes));
            Verdict::unless(drops == 0, Status::Warn, found)
                .wanted("none dropped")
                .because("a CPU did not take packets in time")
                .remedy(sysctl(case.facts, "net.core.netdev_max_backlog", 10_000))
        },
    },
    Rule {
        id: "idle-restart",
        title: "idle restart",
        reads: "net.ipv4.tcp_slow_start_after_idle",
        formula: "0",
        about: "With 1, a connection that was quiet for a moment begins with ten segments again: \
                the first message after a pause needs one more round trip if it is above 14 KB.",
        undo: UNDO_SYSCTL,
        source: "RFC 2861, RFC 7661; Linux, Documentation/networking/ip-sysctl.rst",
        at_start: false,
        check: |case| {
            let key = "net.ipv4.tcp_slow_start_after_idle";
            let Some(mode) = case.facts.sysctl(key) else { return unknown(key) };
            let found = if mode == 0 { "off" } else { "on" };
            Verdict::unless(mode == 0, Status::Warn, found)
                .wanted("off")
                .because("after a pause, a message above 14 KB needs one more round trip")
                .remedy(sysctl(case.facts, key, 0))
        },
    },
    Rule {
        id: "notsent",
        title: "unsent bytes in the kernel",
        reads: "net.ipv4.tcp_notsent_lowat",
        formula: "16 to 128 KiB, or the program sets TCP_NOTSENT_LOWAT, as serve does",
        about: "Output that waits in the kernel is outside of every limit of the program. `serve` \
                bounds it for each socket: 128 KiB, or 16 KiB where rules drop old messages.",
        undo: UNDO_SYSCTL,
        source: "tcp(7), TCP_NOTSENT_LOWAT",
        at_start: false,
        check: |case| {
            let key = "net.ipv4.tcp_notsent_lowat";
            match case.facts.sysctl(key) {
                _ if case.role == Role::Serve => {
                    Verdict::pass("set for each socket").because("TCP_NOTSENT_LOWAT")
                }
                None => unknown(key),
                Some(bytes) => {
                    let is_fine = (16 << 10..=128 << 10).contains(&bytes);
                    let found =
                        if bytes >= u64::from(u32::MAX) { "no bound".into() } else { size(bytes) };
                    Verdict::unless(is_fine, Status::Info, found)
                        .wanted("16 to 128 KiB")
                        .because("output for slow peers fills the kernel's buffers")
                        .remedy(sysctl(case.facts, key, 128 << 10))
                }
            }
        },
    },
    Rule {
        id: "buffers",
        title: "socket buffers",
        reads: "net.ipv4.tcp_rmem, tcp_wmem, tcp_mem",
        formula: "from 100,000 connections on: the largest buffers of a socket at most 1 MiB each; \
                  the sum of all is bounded by tcp_mem",
        about: "A few peers that do not read can fill buffers of many megabytes each, and push the \
                memory of TCP to its limit for all others.",
        undo: UNDO_SYSCTL,
        source: KERNEL,
        at_start: false,
        check: |case| {
            let facts = case.facts;
            let [reads, writes] = ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"];
            let most = |key| facts.sysctl_list::<3>(key);
            let (Some(receive), Some(send)) = (most(reads), most(writes)) else {
                return unknown("net.ipv4.tcp_rmem");
            };
            if case.n < 100_000 {
                return Verdict::skip("fewer than 100,000 connections");
            }
            let largest = receive[2].max(send[2]);
            let value = |[low, usual, most]: [u64; 3]| {
                let most = most.min(1 << 20);
                format!("{} {} {most}", low.min(most), usual.min(most))
            };
            let found = format!("{} and {}", size(receive[2]), size(send[2]));
            Verdict::unless(largest <= 1 << 20, Status::Info, found)
                .wanted("at most 1 MiB each")
                .because("a few peers that do not read fill them")
                .remedy(sysctl(facts, reads, value(receive)))
                .remedy(sysctl(facts, writes, value(send)))
        },
    },
    Rule {
        id: "dead-peers",
        title: "dead peers",
        reads: "net.ipv4.tcp_retries2, TCP_USER_TIMEOUT of the programs",
        formula: "the lower of both <= 35 s; passes by design",
        about: "The kernel gives a peer up that does not acknowledge after 15 repetitions, some 15 \
                minutes. Throng sets TCP_USER_TIMEOUT to 35 s, and pings idle sessions.",
        undo: UNDO_NOTHING,
        source: "tcp(7), TCP_USER_TIMEOUT",
        at_start: false,
        check: |case| {
            let Some(repetitions) = case.facts.sysctl("net.ipv4.tcp_retries2") else {
                return unknown("net.ipv4.tcp_retries2");
            };
            Verdict::pass(format!("{USER_TIMEOUT} s"))
                .because(format!("set for each socket; {repetitions} repetitions do not matter"))
        },
    },
];

/// Judges a kernel setting that must be at least the number of connections.
fn at_least(case: &Case<'_>, key: &'static str, status: Status, why: &str) -> Verdict {
    let Some(most) = case.facts.sysctl(key) else { return unknown(key) };
    Verdict::unless(most >= case.n, status, count(most))
        .wanted(count(case.n))
        .because(why)
        .remedy(sysctl(case.facts, key, case.n))
}
