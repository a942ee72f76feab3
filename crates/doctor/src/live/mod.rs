//! Rules about a running server: pure functions of its statistics at two moments.

mod clients;
mod loops;
mod system;
mod work;

use serde_json::Value;

use crate::finding::{Finding, Status, Verdict};

/// A rule about a running server.
#[derive(Debug)]
pub struct LiveRule {
    /// Its id, which stays from release to release.
    pub id: &'static str,
    /// The name of the problem.
    pub title: &'static str,
    /// The figures of the statistics that it reads.
    pub reads: &'static str,
    /// The condition under which it passes.
    pub formula: &'static str,
    /// The meaning.
    pub about: &'static str,
    check: fn(&Readings<'_>) -> Verdict,
}

/// All rules about a running server, by subject.
pub static LIVE_RULES: &[&[LiveRule]] = &[work::RULES, loops::RULES, clients::RULES, system::RULES];

/// Returns the rule about a running server with this id.
#[must_use]
pub fn find_live(id: &str) -> Option<&'static LiveRule> {
    LIVE_RULES.iter().flat_map(|of| *of).find(|rule| rule.id == id)
}

/// The source of all of them.
const SOURCE: &str = "the server's statistics, read twice";

/// The statistics of a server at two moments: its `/stats.json`, or a balancer's `/status.json`.
#[derive(Debug)]
struct Readings<'a> {
    before: &'a Value,
    after: &'a Value,
    /// The time between them.
    seconds: f64,
}

/// Counts by word that have grown, the largest first.
type Grown<'a> = Vec<(&'a str, u64)>;

impl<'a> Readings<'a> {
    /// Returns a figure of one reading. A balancer's counters are in `metrics`.
    fn figure(of: &'a Value, name: &str) -> &'a Value {
        match &of[name] {
            Value::Null => &of["metrics"][name],
            found => found,
        }
    }

    /// Returns a number of the second reading.
    fn now(&self, name: &str) -> Option<u64> {
        Self::figure(self.after, name).as_u64()
    }

    /// Returns the growth of a counter.
    fn growth(&self, name: &str) -> Option<u64> {
        let of = |reading| Self::figure(reading, name).as_u64();
        Some(of(self.after)?.saturating_sub(of(self.before)?))
    }

    /// Returns the growth of a counter of the system.
    fn system(&self, name: &str) -> Option<u64> {
        let of = |reading: &Value| reading["system"][name].as_u64();
        Some(of(self.after)?.saturating_sub(of(self.before)?))
    }

    /// Returns the counts of an object that have grown.
    fn counts(&self, name: &str) -> Option<Grown<'a>> {
        let before = &self.before[name];
        let grown = |(word, now): (&'a String, &Value)| {
            let earlier = before[word.as_str()].as_u64().unwrap_or(0);
            let growth = now.as_u64()?.saturating_sub(earlier);
            (growth > 0).then_some((word.as_str(), growth))
        };
        let mut all: Grown<'a> = self.after[name].as_object()?.iter().filter_map(grown).collect();
        all.sort_by_key(|(_, growth)| std::cmp::Reverse(*growth));
        Some(all)
    }

    /// Returns the CPU time in between of the threads whose names `choose` selects.
    fn threads(&self, choose: fn(&str) -> bool) -> Vec<Threads<'a>> {
        let list = |reading: &'a Value| reading["system"]["threads"].as_array();
        let (Some(before), Some(after)) = (list(self.before), list(self.after)) else {
            return Vec::new();
        };
        let used = |now: &'a Value| {
            let name = now["name"].as_str().filter(|name| choose(name))?;
            let earlier = before.iter().find(|it| it["name"] == name)?;
            let growth =
                |figure: &str| Some((now[figure].as_f64()? - earlier[figure].as_f64()?).max(0.0));
            Some(Threads {
                name,
                threads: now["threads"].as_u64()?,
                cpu: growth("cpu_seconds")?,
                run_delay: growth("run_delay_seconds")?,
            })
        };
        after.iter().filter_map(used).collect()
    }

    /// Returns the event loops' threads.
    fn loops(&self) -> Vec<Threads<'a>> {
        self.threads(|name| {
            let number = ["throng-shard-", "balance-"].iter().find_map(|it| name.strip_prefix(it));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
    }

    /// Returns whether the server was started again in between.
    fn has_restarted(&self) -> bool {
        ["accepted", "uptime_seconds"].iter().any(|name| {
            let of = |reading| Self::figure(reading, name).as_f64();
            of(self.after) < of(self.before)
        })
    }
}

/// CPU time of the threads of one name between two readings, in seconds.
#[derive(Debug)]
struct Threads<'a> {
    name: &'a str,
    threads: u64,
    cpu: f64,
    /// Ready to run, but without a CPU.
    run_delay: f64,
}

impl Threads<'_> {
    /// Returns the time that they would have used on an idle machine.
    fn wanted(&self) -> f64 {
        self.cpu + self.run_delay
    }
}

fn absent(name: &str) -> Verdict {
    Verdict::skip(format!("the statistics have no {name}"))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Applies the rules about a running server to its statistics at two moments, so many seconds
/// apart: `/stats.json` of a server, or `/status.json` of a balancer.
#[must_use]
pub fn diagnose_live(before: &Value, after: &Value, seconds: f64) -> Vec<Finding> {
    let readings = Readings { before, after, seconds: seconds.max(0.001) };
    let has_restarted = readings.has_restarted();
    let apply = |rule: &LiveRule| {
        let verdict = match has_restarted {
            true => Verdict::skip("the server was started again between the readings"),
            false => (rule.check)(&readings),
        };
        Finding::of([rule.id, rule.title, rule.formula, SOURCE], verdict)
    };
    LIVE_RULES.iter().flat_map(|of| *of).map(apply).collect()
}

/// Returns a warning, or a pass if `is_fine`.
fn warn_unless(is_fine: bool, found: impl Into<String>) -> Verdict {
    Verdict::unless(is_fine, Status::Warn, found)
}
