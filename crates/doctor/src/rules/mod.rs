//! The rules: pure functions of the facts and the question.

mod capacity;
mod network;
mod processors;
mod program;

use throng_io::capacity::{Demand, Descriptors, Division, Needs};
use throng_io::table_plan::TablePlan;
use throng_io::tables::DescriptorTables;

use crate::facts::Facts;
use crate::finding::{Remedy, Status, Verdict};
use crate::numbers::count;
use crate::question::{Io, Question, Role, Settings};

/// A rule.
#[derive(Debug)]
pub struct Rule {
    /// Its id, which stays from release to release.
    pub id: &'static str,
    /// The name of the limit in reports.
    pub title: &'static str,
    /// The facts that it reads, for people.
    pub reads: &'static str,
    /// The condition under which it passes, for N connections and S sockets.
    pub formula: &'static str,
    /// The meaning, and the risk of leaving it as it is.
    pub about: &'static str,
    /// The way back after its remedy.
    pub undo: &'static str,
    /// The source of the formula.
    pub source: &'static str,
    /// Programs check it when they start.
    pub at_start: bool,
    pub(crate) check: fn(&Case<'_>) -> Verdict,
}

/// All rules, by subject.
pub static RULES: &[&[Rule]] =
    &[capacity::RULES, network::RULES, processors::RULES, program::RULES];

/// Returns the rule with this id.
#[must_use]
pub fn find(id: &str) -> Option<&'static Rule> {
    RULES.iter().flat_map(|of| *of).find(|rule| rule.id == id)
}

/// Ways back from remedies.
pub(crate) const UNDO_SYSCTL: &str = "Set the old value, which --undo-script writes \
     down; a reboot does the same, unless a file in /etc/sysctl.d has the new one.";
pub(crate) const UNDO_SETTING: &str = "Take the setting out again, and restart.";
pub(crate) const UNDO_NOTHING: &str = "Nothing is changed.";

/// The measurements of this project that rules build on.
pub(crate) const MEASURED: &str = "measured: BENCHMARKING.md, docs/design/memory.md";
pub(crate) const KERNEL: &str = "Linux, Documentation/networking/ip-sysctl.rst";

/// The largest number of event loops that programs start to have more descriptor tables.
const MAX_SHARDS: usize = 1024;

/// Maximum threads of `throng bench`.
const MAX_THREADS: usize = 64;

/// A question about a machine.
#[derive(Debug)]
pub(crate) struct Case<'a> {
    pub(crate) facts: &'a Facts,
    pub(crate) question: &'a Question,
    pub(crate) settings: &'a Settings,
    pub(crate) role: Role,
    /// Connections: the wanted number, or else as many as the program accepts.
    pub(crate) n: u64,
}

impl<'a> Case<'a> {
    pub(crate) fn new(facts: &'a Facts, question: &'a Question) -> Self {
        let settings = &question.settings;
        let mut case = Self { facts, question, settings, role: question.role, n: 0 };
        let is_limit = |most: &u64| *most < 1 << 32;
        let accepted = || facts.nofile_hard.map(|it| case.by_descriptors(it)).filter(is_limit);
        let wanted = question.connections.or(settings.max_connections);
        case.n = wanted.or_else(accepted).unwrap_or(0);
        case
    }

    /// Returns the sockets of all connections.
    pub(crate) fn sockets(&self) -> u64 {
        self.n.saturating_mul(self.role.sockets())
    }

    /// Returns the number of connections that have so many sockets.
    pub(crate) fn connections(&self, sockets: u64) -> u64 {
        sockets / self.role.sockets()
    }

    /// Returns whether each connection has a thread.
    pub(crate) fn has_threads(&self) -> bool {
        self.role == Role::Serve && self.settings.io == Io::Threads
    }

    /// Returns the CPUs that the process can use at the same time, as the standard library counts
    /// them: of a quota, the whole ones.
    pub(crate) fn cpus(&self) -> Option<u64> {
        let quota = self.facts.cpu_quota.map(|quota| (quota / 1_000).max(1));
        self.facts.cpus.into_iter().chain(quota).min()
    }

    /// Returns the number of event loops that the program starts.
    pub(crate) fn shards(&self) -> u64 {
        match self.settings.shards {
            _ if self.has_threads() => 1,
            Some(shards) => shards.clamp(1, MAX_SHARDS as u64),
            None => self.cpus().unwrap_or(1).clamp(1, MAX_SHARDS as u64),
        }
    }

    fn needs(&self) -> Needs {
        match self.role {
            Role::Serve if self.has_threads() => Needs::THREADED_SERVER,
            Role::Serve => Needs::SERVER,
            Role::Balance => Needs::BALANCER,
            Role::Bench => Needs::CLIENTS,
        }
    }

    /// Returns whether threads can have descriptor tables of their own.
    pub(crate) fn has_own_tables(&self) -> bool {
        self.facts.own_tables == Some(true)
            && self.settings.tables != DescriptorTables::Shared
            && self.settings.io == Io::Epoll
            && !self.settings.inherited
    }

    fn descriptors(&self, limit: u64) -> Descriptors {
        let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let Settings { listeners, files, inherited, .. } = self.settings;
        let files = number(if self.role == Role::Serve { (*files).min(limit / 4) } else { 0 });
        let listeners = number(*listeners);
        // Each event loop of a server has listeners of its own.
        let shared = match self.role {
            Role::Serve if !inherited => listeners.saturating_mul(number(self.shards())),
            _ => 0,
        };
        let used = number(self.facts.descriptors_used.unwrap_or(4));
        Descriptors {
            limit,
            used: used.saturating_add(files).saturating_add(shared),
            used_in_own: listeners.saturating_add(files),
        }
    }

    /// Returns the connections that a program accepts under this limit on descriptors. The sums
    /// are those that the program makes when it starts.
    pub(crate) fn by_descriptors(&self, limit: u64) -> u64 {
        let (needs, descriptors) = (self.needs(), self.descriptors(limit));
        let shards = self.shards() as usize;
        let most = match (self.role, self.settings.shards) {
            (Role::Bench, _) => MAX_THREADS.max(shards),
            (_, None) => MAX_SHARDS,
            (_, Some(_)) => shards,
        };
        let shared = needs.free(&descriptors, shards) / needs.each;
        // A load generator always demands a number.
        let demands = self.question.max_connections().is_some() || self.role == Role::Bench;
        let connections = match (self.has_own_tables(), demands) {
            (true, true) => {
                shared.max(TablePlan::largest(needs.own_table(&descriptors), shards, most))
            }
            (can_have, _) => {
                let tables = self.settings.tables;
                let demand = Demand { tables, connections: None, shards, max_shards: most };
                let refusal = || (!can_have).then(|| "this machine refuses them".to_owned());
                match needs.divide(&descriptors, &demand, refusal) {
                    Ok(Division::PerShard(plan)) => plan.max_connections,
                    Ok(Division::Shared { connections, .. }) => connections,
                    Err(_) => shared,
                }
            }
        };
        connections as u64
    }

    /// Returns the connections that fit into the one table of the process.
    pub(crate) fn in_one_table(&self, limit: u64) -> u64 {
        let needs = self.needs();
        (needs.free(&self.descriptors(limit), self.shards() as usize) / needs.each) as u64
    }

    /// Returns the tables that the wanted connections need, if they do not fit into one.
    pub(crate) fn tables(&self, limit: u64) -> Option<u64> {
        let demand = Demand {
            tables: self.settings.tables,
            connections: Some(usize::try_from(self.question.max_connections()?).ok()?),
            shards: self.shards() as usize,
            max_shards: if self.settings.shards.is_none() { MAX_SHARDS } else { 0 },
        };
        let can_have = self.has_own_tables() && self.role != Role::Bench;
        let refusal = || (!can_have).then(String::new);
        match self.needs().divide(&self.descriptors(limit), &demand, refusal) {
            Ok(Division::PerShard(plan)) => Some(plan.shards as u64),
            _ => None,
        }
    }

    /// Returns a sentence on the settings that the answer depends on. Open files come first, or
    /// do not.
    pub(crate) fn note(&self, files_first: bool) -> String {
        let Some(limit) = self.facts.nofile_hard else { return String::new() };
        let program = self.role.word();
        match (self.question.connections, self.settings.max_connections) {
            _ if self.role == Role::Bench || self.has_threads() => String::new(),
            (Some(wanted), None) if wanted > self.in_one_table(limit) => {
                let Some(tables) = self.tables(limit) else { return String::new() };
                format!(
                    "Start it with `throng {program} {}`: it takes {tables} descriptor tables of \
                     {}. Without that setting it accepts {}.",
                    self.demand(wanted),
                    count(limit),
                    count(self.in_one_table(limit)),
                )
            }
            (None, None) if self.has_own_tables() && files_first => format!(
                "With `{}` it takes more descriptor tables where one is too small: ask with \
                 --for N.",
                self.demand_of("N"),
            ),
            _ => String::new(),
        }
    }

    fn demand(&self, connections: u64) -> String {
        self.demand_of(&connections.to_string())
    }

    fn demand_of(&self, connections: &str) -> String {
        match self.role {
            Role::Serve => format!("--max-connections {connections}"),
            _ => format!("--set max_connections={connections}"),
        }
    }
}

/// Returns the skip of a rule whose facts are missing.
pub(crate) fn unknown(name: &str) -> Verdict {
    Verdict::skip(format!("{name} cannot be read here"))
}

/// Returns the verdict on a kernel setting that must have one value.
pub(crate) fn exactly(
    case: &Case<'_>,
    (key, found): (&'static str, u64),
    wanted: u64,
    otherwise: Status,
) -> Verdict {
    Verdict::unless(found == wanted, otherwise, count(found))
        .wanted(wanted.to_string())
        .remedy(sysctl(case.facts, key, wanted))
}

/// Returns the remedy that sets a kernel setting.
pub(crate) fn sysctl(facts: &Facts, key: &'static str, value: impl ToString) -> Remedy {
    let old: Vec<String> =
        facts.sysctls.get(key).into_iter().flatten().map(u64::to_string).collect();
    Remedy::Sysctl { key, value: value.to_string(), old: old.join(" ") }
}
