//! Rules about clients that are lost.

use serde_json::Value;

use super::{LiveRule, Readings, absent, percent, warn_unless};
use crate::finding::{Remedy, Verdict};
use crate::numbers::{count, plural};

/// Codes of sessions that end as they should, and those that programs define.
const NORMAL: [&str; 5] = ["1000", "1001", "1005", "3000-3999", "4000-4999"];

/// Clients that are lost, from which on there is a pattern.
const MIN_LOST: u64 = 10;

/// Sessions that end badly, from which on it is more than a few clients.
const MIN_CLOSED: u64 = 20;

pub(super) const RULES: &[LiveRule] = &[
    LiveRule {
        id: "live-slow",
        title: "slow consumers",
        reads: "slow_consumers, messages_dropped, messages_out, classes",
        formula: "at most one session in 1,000 is closed, and one message in 100 dropped, because \
                  its client reads too slowly",
        about: "Clients read more slowly than messages come, and the rules of back-pressure act. \
                Values that a newer one replaces, with the policy latest, are not counted.",
        check: slow,
    },
    LiveRule {
        id: "live-heartbeat",
        title: "heartbeats less often than a proxy wants",
        reads: "sessions_lost, by the seconds of silence before",
        formula: "fewer than 10 sessions are lost, or no narrow range of silences has 80 % of \
                  them",
        about: "Sessions end without a Close frame, and most of them after about the same \
                silence of a second or more: a proxy, a cloud balancer or a NAT drops idle \
                connections. It may also be that many idle clients were stopped at once. Sessions \
                with heartbeats alone are counted.",
        check: heartbeat,
    },
    LiveRule {
        id: "live-closes",
        title: "clients that leave, and why",
        reads: "sessions_closed, connections_ended, sessions; of a balancer lost, tunnels",
        formula: "fewer than 20 sessions end with a code of an error or without one, or they are \
                  at most 10 % of the sessions",
        about: "Any code is an error except 1000 and 1001 and 1005 (for no code) and the codes of \
                programs (3000 to 4999). Without a Close frame it is 1006. The reasons are why \
                the server ended connections.",
        check: closes,
    },
];

fn slow(it: &Readings<'_>) -> Verdict {
    let (Some(closed), Some(dropped), Some(sent)) =
        (it.growth("slow_consumers"), it.growth("messages_dropped"), it.growth("messages_out"))
    else {
        return absent("slow_consumers");
    };
    let sessions = it.now("sessions").unwrap_or(0) + closed;
    let (evicted, classes) = of_classes(it);
    let lost = dropped.max(evicted);
    let is_fine = closed * 1000 <= sessions && lost * 100 <= sent + lost;
    let found = format!(
        "{} closed, {} dropped{}",
        plural(closed, "session"),
        plural(lost, "message"),
        if is_fine { String::new() } else { classes }
    );
    warn_unless(is_fine, found)
        .wanted("few")
        .because("these clients read too slowly for what they are sent")
        .remedy(Remedy::Code(
            "send less (a policy of latest, fewer channels), or wait longer (max_backlog)"
                .to_owned(),
        ))
}

/// Returns the messages dropped by the classes of back-pressure, and the names of these classes.
fn of_classes(it: &Readings<'_>) -> (u64, String) {
    let mut sum = 0;
    let mut names: Vec<String> = Vec::new();
    for class in it.after["classes"].as_array().into_iter().flatten() {
        let is_same =
            |other: &&Value| other["name"] == class["name"] && other["policy"] == class["policy"];
        let earlier = it.before["classes"].as_array().into_iter().flatten().find(is_same);
        let growth = |name: &str| {
            let before = earlier.and_then(|class| class[name].as_u64()).unwrap_or(0);
            class[name].as_u64().unwrap_or(0).saturating_sub(before)
        };
        let oldest = if class["policy"] == "latest" { 0 } else { growth("dropped_oldest") };
        let lost = ["slow_consumers", "dropped_newest", "expired"].map(growth);
        let lost = lost.iter().sum::<u64>() + oldest;
        if lost > 0 {
            let name = class["name"].as_str().filter(|name| !name.is_empty());
            names.push(name.unwrap_or("the default").to_owned());
        }
        sum += lost;
    }
    match names.is_empty() {
        true => (sum, String::new()),
        false => (sum, format!(" ({})", names.join(", "))),
    }
}

fn heartbeat(it: &Readings<'_>) -> Verdict {
    let Some(lost) = it.counts("sessions_lost") else { return absent("sessions_lost") };
    let all: u64 = lost.iter().map(|(_, lost)| lost).sum();
    let bounds = |range: &str| -> Option<(u64, u64)> {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    let mut ranges: Vec<((u64, u64), u64)> =
        lost.iter().filter_map(|(range, lost)| Some((bounds(range)?, *lost))).collect();
    ranges.retain(|((first, _), _)| *first > 0);
    ranges.sort_unstable();
    let is_most = |lost: u64| lost * 5 >= all * 4;
    let single = ranges.iter().copied().find(|(_, lost)| is_most(*lost));
    // A silence near the border of two ranges is in both.
    let double = ranges.windows(2).find_map(|pair| {
        let (((first, last), lost), ((next, end), more)) = (pair[0], pair[1]);
        (last + 1 == next && is_most(lost + more)).then_some(((first, end), lost + more))
    });
    let Some(((first, last), same)) = single.or(double).filter(|_| all >= MIN_LOST) else {
        return Verdict::pass(format!("{} lost, with no pattern", plural(all, "session")));
    };
    let interval = (first * 3 / 4).max(1);
    let found = format!(
        "{} of {} lost sessions were silent for {first} to {} s",
        count(same),
        count(all),
        last + 1
    );
    warn_unless(false, found)
        .wanted("pings before that")
        .because("a proxy or NAT in between drops idle connections")
        .remedy(Remedy::Setting(format!("heartbeat.interval={interval}s")))
}

fn closes(it: &Readings<'_>) -> Verdict {
    let Some(codes) = it.counts("sessions_closed") else { return lost_tunnels(it) };
    let ended: u64 = codes.iter().map(|(_, ended)| ended).sum();
    let bad: Vec<_> = codes.iter().filter(|(code, _)| !NORMAL.contains(code)).collect();
    let failed: u64 = bad.iter().map(|(_, ended)| ended).sum();
    let all = it.now("sessions").unwrap_or(0) + ended;
    let listed = |of: &[&(&str, u64)]| {
        let each = of.iter().take(3).map(|(word, number)| format!("{word} {}", count(*number)));
        each.collect::<Vec<_>>().join(", ")
    };
    let is_fine = failed < MIN_CLOSED || failed * 10 <= all;
    let mut found = format!("{} of {} ended badly", count(failed), plural(all, "session"));
    if !is_fine {
        found += &format!(": code {}", listed(&bad));
        let reasons = it.counts("connections_ended").unwrap_or_default();
        if !reasons.is_empty() {
            found += &format!("; reasons {}", listed(&reasons.iter().collect::<Vec<_>>()));
        }
    }
    let code = bad.first().map_or("", |(code, _)| *code);
    let advice = match code {
        "1006" => "look at the network, at proxies between, and at clients that crash",
        "1002" | "1007" => "these clients break RFC 6455: find them in the log",
        "1008" => "look at limits on rates and back-pressure: the log names the setting",
        "1009" => "raise max_message_size, or send less at once",
        "1011" => "handlers fail or panic: the log has the message",
        "1012" | "1013" => "the server is overloaded, or drains",
        _ => "the log has each of them",
    };
    warn_unless(is_fine, found)
        .wanted("at most 10 %")
        .because("clients that come back cost more than clients that stay")
        .remedy(Remedy::Code(advice.to_owned()))
}

/// The rule for a balancer, which sees tunnels.
fn lost_tunnels(it: &Readings<'_>) -> Verdict {
    let (Some(lost), Some(tunnels)) = (it.growth("lost"), it.now("tunnels")) else {
        return absent("sessions_closed");
    };
    let all = tunnels + lost;
    let is_fine = lost < MIN_CLOSED || lost * 10 <= all;
    let share = percent(lost as f64 / all.max(1) as f64);
    warn_unless(is_fine, format!("{} of {} lost, {share}", count(lost), plural(all, "tunnel")))
        .wanted("at most 10 %")
        .because("backends end tunnels without a Close frame")
        .remedy(Remedy::Code("find the backend by backend_tunnels_lost, and its log".to_owned()))
}
