//! Rules about what the operating system counts.

use serde_json::Value;

use super::{LiveRule, Readings, absent, percent, warn_unless};
use crate::finding::{Remedy, Status, Verdict};
use crate::numbers::{count, plural};

/// Segments sent again, from which on the network loses packets.
const MIN_RETRANSMITTED: u64 = 50;

pub(super) const RULES: &[LiveRule] = &[
    LiveRule {
        id: "live-overflows",
        title: "accept queues that overflow",
        reads: "system.listen_overflows",
        formula: "no connection finds the accept queue of its listener full",
        about: "The kernel drops the end of the handshake, and the client tries again after a \
                second. The counter is of the network namespace: another program of the machine \
                may be the cause.",
        check: overflows,
    },
    LiveRule {
        id: "live-retransmits",
        title: "packets that are sent again",
        reads: "system.tcp_segments_sent, system.tcp_segments_retransmitted",
        formula: "fewer than 50 segments are sent again, or at most 2 % of all",
        about: "The network, or a queue of a network card, loses packets: messages come later by \
                a round trip or by 200 ms. The counters are of the network namespace.",
        check: retransmits,
    },
    LiveRule {
        id: "live-descriptors",
        title: "descriptors or connections nearly used up",
        reads: "system.descriptors, connections, max_connections",
        formula: "less than 90 % of each descriptor table is open, and of max_connections",
        about: "The next clients are refused.",
        check: descriptors,
    },
];

fn overflows(it: &Readings<'_>) -> Verdict {
    let Some(overflows) = it.system("listen_overflows") else {
        return absent("system.listen_overflows");
    };
    let key = "net.core.somaxconn";
    warn_unless(overflows == 0, plural(overflows, "connection"))
        .wanted("none")
        .because("accept queues were full: clients connect a second late, or not at all")
        .remedy(Remedy::Sysctl { key, value: "4096".to_owned(), old: String::new() })
        .remedy(Remedy::Code("find blocking handlers: they do not accept either".to_owned()))
}

fn retransmits(it: &Readings<'_>) -> Verdict {
    let (Some(again), Some(sent)) =
        (it.system("tcp_segments_retransmitted"), it.system("tcp_segments_sent"))
    else {
        return absent("system.tcp_segments_retransmitted");
    };
    let share = again as f64 / (again + sent).max(1) as f64;
    let found = format!("{} sent again, {}", plural(again, "segment"), percent(share));
    warn_unless(again < MIN_RETRANSMITTED || share <= 0.02, found)
        .wanted("at most 2 %")
        .because("packets are lost on the way")
        .remedy(Remedy::Shell("ethtool -S DEVICE; nstat -az TcpExt*; tc -s qdisc".to_owned()))
}

fn descriptors(it: &Readings<'_>) -> Verdict {
    let tables = it.after["system"]["descriptors"].as_array().into_iter().flatten();
    let table = |table: &Value| Some((table["open"].as_u64()?, table["max"].as_u64()?));
    let mut all: Vec<(u64, u64, &str)> =
        tables.filter_map(table).map(|(open, most)| (open, most, "descriptors")).collect();
    if let (Some(open), Some(most)) = (it.now("connections"), it.now("max_connections")) {
        all.push((open, most, "connections"));
    }
    let share = |(open, most, _): &(u64, u64, &str)| *open as f64 / (*most).max(1) as f64;
    let fullest = all.iter().max_by(|a, b| share(a).total_cmp(&share(b)));
    let Some(fullest) = fullest else { return absent("system.descriptors") };
    let status = if share(fullest) >= 0.98 { Status::Fail } else { Status::Warn };
    let (open, most, what) = fullest;
    let found = format!("{} of {} {what}", count(*open), count(*most));
    let more = most.saturating_mul(2);
    let files = more.clamp(1024, 1 << 30);
    Verdict::unless(share(fullest) < 0.9, status, found)
        .wanted("less than 90 %")
        .because("the next clients are refused")
        .remedy(Remedy::Systemd(format!("LimitNOFILE={files}")))
        .remedy(Remedy::Shell(format!("ulimit -n {files}")))
        .remedy(Remedy::Setting(format!("max_connections={more}")))
}
