//! Settings of the program against what surrounds it.

use std::time::Duration;

use super::{MEASURED, Rule, UNDO_NOTHING, UNDO_SETTING, unknown};
use crate::finding::{Remedy, Status, Verdict};
use crate::numbers::size;
use crate::question::Role;

/// The longest idle time that common proxies and NATs are sure to keep a connection for.
const IDLE: Duration = Duration::from_secs(30);

/// The time that a stop needs beyond the shutdown's own.
const SPARE: u64 = 5;

/// The capability to listen on low ports.
const NET_BIND_SERVICE: u32 = 10;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "heartbeat",
        title: "heartbeat",
        reads: "heartbeat.interval",
        formula: "<= 30 s, which is below the 60 s of common proxies (ALB, nginx) and of NATs",
        about: "Proxies and NATs forget a connection without traffic. The client notices at its \
                next message, the server at the next ping.",
        undo: UNDO_SETTING,
        source: "documentation of AWS Application Load Balancers and of nginx; RFC 5382",
        at_start: true,
        check: |case| {
            if case.role != Role::Serve {
                return Verdict::skip("the backends send the pings");
            }
            let (found, is_fine) = match case.settings.heartbeat {
                None => ("off".to_owned(), false),
                Some(interval) => (format!("{} s", interval.as_secs()), interval <= IDLE),
            };
            Verdict::unless(is_fine, Status::Warn, found)
                .wanted("at most 30 s")
                .because("proxies and NATs drop idle connections after a minute")
                .remedy(Remedy::Setting("heartbeat.interval=25s".to_owned()))
        },
    },
    Rule {
        id: "stop-time",
        title: "time to stop",
        reads: "TimeoutStopSec of the unit; TERMINATION_GRACE_PERIOD_SECONDS in Kubernetes",
        formula: ">= the longest shutdown (delay + window + grace) + 5 s",
        about: "The manager kills a process that takes longer, in the middle of its drain: the \
                remaining clients get a reset in place of a Close frame. In Kubernetes the pod's \
                terminationGracePeriodSeconds (30 by default) must be passed on as a variable.",
        undo: "Take the line out of the unit or the pod.",
        source: "systemd.service(5); Kubernetes, Pod lifecycle",
        at_start: true,
        check: |case| {
            let (Some(given), Some(source)) = (case.facts.stop_time, case.facts.stop_source) else {
                return Verdict::skip("not started by systemd or Kubernetes");
            };
            if case.role == Role::Bench {
                return Verdict::skip("it is not a service");
            }
            let shutdown = case.settings.shutdown;
            let longest = shutdown.as_secs() + u64::from(shutdown.subsec_nanos() > 0);
            let needed = longest.saturating_add(SPARE);
            let found = match given {
                u64::MAX => "no limit".to_owned(),
                given => format!("{given} s ({source})"),
            };
            let verdict = Verdict::unless(given >= needed, Status::Fail, found)
                .wanted(format!("{needed} s"))
                .because("the process is killed in the middle of a drain");
            match source {
                "TimeoutStopSec" => verdict.remedy(Remedy::Systemd(format!("{source}={needed}"))),
                _ => verdict.remedy(Remedy::Container(format!("{source}: {needed}"))),
            }
        },
    },
    Rule {
        id: "io-uring",
        title: "io_uring",
        reads: "kernel.io_uring_disabled, Seccomp of /proc/self/status",
        formula: "none: Throng uses epoll",
        about: "Hardened machines and containers forbid io_uring. Throng does not use it, so that \
                it is as fast there.",
        undo: UNDO_NOTHING,
        source: "Linux, Documentation/admin-guide/sysctl/kernel.rst",
        at_start: false,
        check: |case| {
            let disabled = case.facts.sysctl("kernel.io_uring_disabled");
            let found = match (disabled, case.facts.is_filtered) {
                (None, _) => return unknown("kernel.io_uring_disabled"),
                (Some(0), Some(true)) => "system calls are filtered",
                (Some(0), _) => "usable",
                (Some(_), _) => "disabled",
            };
            Verdict::pass(found).because("not used: epoll is")
        },
    },
    Rule {
        id: "low-port",
        title: "low port",
        reads: "listen, net.ipv4.ip_unprivileged_port_start, CapEff",
        formula: "ports of listen >= ip_unprivileged_port_start, or CAP_NET_BIND_SERVICE, or \
                  sockets passed on",
        about: "Without the capability the start fails with \"permission denied\".",
        undo: "Take the line out of the unit.",
        source: "capabilities(7)",
        at_start: true,
        check: |case| {
            let key = "net.ipv4.ip_unprivileged_port_start";
            let Some(first) = case.facts.sysctl(key) else { return unknown(key) };
            if case.settings.listen.is_empty() {
                return Verdict::skip("no settings were given");
            }
            let ports = case.settings.listen.iter().map(|address| u64::from(address.port()));
            let Some(low) = ports.filter(|&port| port > 0 && port < first).min() else {
                return Verdict::pass(format!("not below {first}"));
            };
            let Some(capabilities) = case.facts.capabilities else { return unknown("CapEff") };
            let may = capabilities >> NET_BIND_SERVICE & 1 == 1;
            Verdict::unless(may, Status::Fail, format!("port {low}"))
                .wanted(format!("{first} or higher, or CAP_NET_BIND_SERVICE"))
                .because("the start fails with permission denied")
                .remedy(Remedy::Systemd("AmbientCapabilities=CAP_NET_BIND_SERVICE".to_owned()))
                .remedy(Remedy::Container("--cap-add=NET_BIND_SERVICE".to_owned()))
        },
    },
    Rule {
        id: "exposure",
        title: "exposure",
        reads: "listen, allowed_origins, admin.listen, public_metrics, the user",
        formula: "where other machines can connect: not root, no admin server, no public metrics, \
                  no origin *",
        about: "A server that only this machine reaches passes. Elsewhere each of these lets \
                strangers do more than serve needs.",
        undo: UNDO_SETTING,
        source: "SECURITY.md",
        at_start: true,
        check: |case| {
            let settings = case.settings;
            if case.role == Role::Bench {
                return Verdict::skip("it does not listen");
            }
            if settings.listen.is_empty() {
                return Verdict::skip("no settings were given");
            }
            let is_public = settings.is_public();
            let is_open =
                |address: &std::net::SocketAddr| !address.ip().to_canonical().is_loopback();
            let exposed = [
                (is_public && case.facts.user == Some(0), "runs as root", None),
                (
                    is_public && settings.any_origin,
                    "every web page may connect",
                    Some("allowed_origins=https://example.com"),
                ),
                (
                    is_public && settings.public_metrics,
                    "metrics for every client",
                    Some("public_metrics=false"),
                ),
                (
                    settings.admin.as_ref().is_some_and(is_open),
                    "admin server for the network",
                    Some("admin.listen=127.0.0.1:9101"),
                ),
            ];
            let all: Vec<_> = exposed.iter().filter(|it| it.0).collect();
            let found: Vec<&str> = all.iter().map(|it| it.1).collect();
            let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
            let verdict = Verdict::unless(all.is_empty(), Status::Warn, found)
                .wanted("nothing that serving does not need")
                .because("strangers can do more than serving needs");
            let settings = all.iter().filter_map(|it| it.2);
            let verdict = settings
                .fold(verdict, |verdict, it| verdict.remedy(Remedy::Setting(it.to_owned())));
            match all.first().is_some_and(|it| it.1 == "runs as root") {
                true => verdict.remedy(Remedy::Systemd("User=throng".to_owned())),
                false => verdict,
            }
        },
    },
    Rule {
        id: "owners",
        title: "owners of kernel settings",
        reads: "processes tuned, bpftune and irqbalance; files of sysctl.d",
        formula: "none: they are named, since they may overwrite a remedy",
        about: "A kernel setting that another program or a file sets is back after a while or a \
                reboot.",
        undo: UNDO_NOTHING,
        source: "sysctl.d(5), tuned(8)",
        at_start: false,
        check: |case| {
            let facts = case.facts;
            let known = crate::facts::SYSCTLS.iter().copied();
            let files = known.filter_map(|key| {
                let file = facts.boot_settings.get(key)?;
                Some(format!("{key} in {file}"))
            });
            // bpftune and tuned change settings; irqbalance only moves interrupts.
            let programs = facts.owners.iter().filter(|it| it.as_str() != "irqbalance").cloned();
            let all: Vec<String> = programs.chain(files).collect();
            match all.is_empty() {
                true => Verdict::pass("nothing else sets them"),
                false => Verdict::unless(false, Status::Info, all.join(", "))
                    .because("they may overwrite a remedy of the same setting"),
            }
        },
    },
    Rule {
        id: "deflate-cost",
        title: "memory for compression",
        reads: "deflate.*",
        formula: "N x 2 x 2^bits x 1.2 <= 25 % of the memory",
        about: "With context, each compressed connection keeps a window for each direction. Mode \
                shared keeps no window.",
        undo: UNDO_SETTING,
        source: MEASURED,
        at_start: false,
        check: |case| {
            let Some(bits) = case.settings.deflate_bits else {
                return Verdict::skip("no compression with context");
            };
            let memory = case.facts.memory_total.into_iter().chain(case.facts.cgroup_memory).min();
            let Some(memory) = memory else { return unknown("/proc/meminfo") };
            let each = (2u64 << bits.min(15)).saturating_mul(6) / 5;
            let all = case.n.saturating_mul(each);
            Verdict::unless(all <= memory / 4, Status::Warn, size(all))
                .wanted(format!("at most {}", size(memory / 4)))
                .because("windows of all connections together")
                .remedy(Remedy::Setting("deflate.mode=shared".to_owned()))
        },
    },
    Rule {
        id: "workers",
        title: "workers",
        reads: "the pool of a running server",
        formula: "none: only a running server shows it",
        about: "Handlers that block run on workers. Too few of them queue while CPUs are idle: \
                compare throng_worker_queue_depth with the use of the CPUs.",
        undo: UNDO_NOTHING,
        source: "docs/design/decisions.md",
        at_start: false,
        check: |_| Verdict::skip("only a running server shows it"),
    },
];
