//! Reports of upgrades, for operators.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The outcome of an upgrade.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct UpgradeReport {
    /// The build that has served.
    pub(crate) from: String,
    /// The build that serves now, or could.
    pub(crate) to: String,
    /// The new process.
    pub(crate) process: u32,
    /// Connections that have moved to the new process, with their sessions.
    #[serde(default)]
    pub(crate) moved: u64,
    /// The times for which the connections that moved have rested.
    #[serde(default)]
    pub(crate) pause: Option<Pause>,
    /// Connections that drain in the old process.
    pub(crate) connections: u64,
    /// The number of these by the reason.
    #[serde(default)]
    pub(crate) drains: BTreeMap<String, u64>,
    /// Why no connection could move, if none could.
    #[serde(default)]
    pub(crate) unmoved: Option<String>,
    /// The time from the request until the new process accepted, and had all that moves.
    pub(crate) duration_ms: u64,
    /// Whether it was only tried.
    pub(crate) dry_run: bool,
}

/// Reasons why connections drain: the word in a report, and the words after their number.
const REASONS: [(&str, &str); 7] = [
    ("idle", "without a request"),
    ("request", "with a request under way"),
    ("closing", "that close"),
    ("ending", "of tunnels that end"),
    ("backend", "of tunnels whose backend takes no clients"),
    ("refused", "of tunnels that the new process has refused"),
    ("late", "of tunnels that did not move in time"),
];

/// The times for which connections rested while they moved, in microseconds.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Pause {
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
    pub(crate) max_us: u64,
}

/// Connections that have moved, and those that have not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) connections: u64,
    pub(crate) pause: Option<Pause>,
    /// The number of connections that drain, by the reason.
    pub(crate) drains: BTreeMap<String, u64>,
}

/// The upgrades of a process, for `GET /upgrade`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct UpgradeState {
    /// `idle`, `starting`, `moving`, `replaced` or `ending`.
    pub(crate) state: &'static str,
    /// The last upgrade that ended. At first, it is the upgrade that has begun this process.
    pub(crate) last: Option<LastUpgrade>,
}

/// An upgrade that has ended.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LastUpgrade {
    /// When, in RFC 3339.
    pub(crate) at: String,
    #[serde(flatten)]
    pub(crate) outcome: UpgradeOutcome,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UpgradeOutcome {
    Replaced(UpgradeReport),
    Tried(UpgradeReport),
    Failed {
        reason: String,
        /// Connections that were the new process's, and ended with it.
        lost: u64,
    },
}

impl LastUpgrade {
    pub(crate) fn now(outcome: UpgradeOutcome) -> Self {
        let at = humantime::format_rfc3339_millis(std::time::SystemTime::now()).to_string();
        Self { at, outcome }
    }
}

impl UpgradeReport {
    /// Returns it on one line.
    pub(crate) fn in_words(&self) -> String {
        let Self { from, to, process, connections, duration_ms, dry_run, .. } = self;
        let plural = if *connections == 1 { "connection drains" } else { "connections drain" };
        if *dry_run {
            return format!(
                "upgrade {from} -> {to}: the new process was ready after {duration_ms} ms and has \
                 ended; in an upgrade, at most {connections} {plural}"
            );
        }
        let verb = if self.moved == 0 { "accepts" } else { "serves" };
        let moved = self.moved_in_words();
        let why = self.drains_in_words();
        format!(
            "upgrade {from} -> {to}: process {process} {verb} since {duration_ms} ms after the \
             request; {moved}{connections} {plural}{why}"
        )
    }

    fn moved_in_words(&self) -> String {
        let tunnels = match self.moved {
            0 => return String::new(),
            1 => "1 tunnel moved".to_owned(),
            moved => format!("{moved} tunnels moved"),
        };
        let Some(Pause { p50_us, p99_us, max_us }) = self.pause else {
            return format!("{tunnels}; ");
        };
        let [p50, p99, max] = [p50_us, p99_us, max_us].map(|micros| micros as f64 / 1000.0);
        format!("{tunnels} (pause p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms); ")
    }

    /// Returns the reasons after the number of connections that drain, if there are any.
    pub(super) fn drains_in_words(&self) -> String {
        let in_words = |why: &str| {
            let known = REASONS.iter().find(|(word, _)| *word == why);
            known.map_or_else(|| why.to_owned(), |(_, words)| (*words).to_owned())
        };
        let reasons = self.drains.iter().map(|(why, count)| format!("{count} {}", in_words(why)));
        let reasons: Vec<_> = reasons.chain(self.unmoved.clone()).collect();
        match (self.connections, reasons.as_slice()) {
            (0, _) | (_, []) => String::new(),
            (_, reasons) => format!(": {}", reasons.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_counts_each_reason() {
        let drains = [("ending", 1), ("idle", 1), ("of a later release", 1)];
        let report = UpgradeReport {
            from: "1".to_owned(),
            to: "2".to_owned(),
            process: 4711,
            moved: 8996,
            pause: Some(Pause { p50_us: 290, p99_us: 1_100, max_us: 5_960 }),
            connections: 3,
            drains: drains.map(|(why, count)| (why.to_owned(), count)).into(),
            duration_ms: 238,
            ..UpgradeReport::default()
        };
        let words = "upgrade 1 -> 2: process 4711 serves since 238 ms after the request; 8996 \
                     tunnels moved (pause p50 0.3 ms, p99 1.1 ms, max 6.0 ms); 3 connections \
                     drain: 1 of tunnels that end, 1 without a request, 1 of a later release";
        assert_eq!(report.in_words(), words);
        let unmoved = Some("none can move".to_owned());
        let all_drain = UpgradeReport {
            moved: 0,
            drains: BTreeMap::new(),
            unmoved,
            connections: 1,
            ..report.clone()
        };
        assert!(all_drain.in_words().ends_with("; 1 connection drains: none can move"));
        let none = UpgradeReport { connections: 0, ..all_drain };
        assert!(none.in_words().ends_with("; 0 connections drain"));
        // The report of an earlier release, which a successor may get.
        let earlier = r#"{"from":"1","to":"2","process":1,"connections":0,"duration_ms":5,
                          "dry_run":false}"#;
        assert_eq!(serde_json::from_str::<UpgradeReport>(earlier).unwrap().moved, 0);
    }
}
