//! The verdict on the limit of a run, which keeps readers from publishing the generator's limit as
//! the server's.

use serde::Serialize;

use crate::record::Record;
use crate::sampler::CpuUsage;
use crate::slo::Figures;
use crate::units;

/// Share of a core above which a thread counts as saturated. A busy loop that the kernel interrupts
/// occasionally reads about 0.98.
const BUSY: f64 = 0.92;
/// Share of time spent waiting for a CPU above which the machine counts as contended: first if the
/// wait keeps a thread below its limit, then in any case.
const CONTENDED: f64 = 0.05;
const OVERLOADED: f64 = 0.2;
/// Maximum lateness, at the 99th percentile of planned sends, of a schedule that counts as kept.
const KEPT_NS: u64 = 5_000_000;

/// Party that limited a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The figures are not valid: wrong answers, lost connections, or no measurement.
    Invalid,
    /// The generator was the limit: the server can handle more.
    Generator,
    /// The server was the limit: the figures describe it.
    Server,
    /// Both used all of their CPU.
    Both,
    /// Neither side got enough CPU, because something else runs on this machine.
    Machine,
    /// Neither was at its limit.
    Neither,
    /// The server's CPU is not known, and the generator was not the limit.
    Unknown,
}

impl Limit {
    /// The word in JSON and CSV.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::Generator => "generator",
            Self::Server => "server",
            Self::Both => "both",
            Self::Machine => "machine",
            Self::Neither => "neither",
            Self::Unknown => "unknown",
        }
    }

    /// Returns whether the figures describe the server, or a schedule that was kept: neither the
    /// generator nor anything else on the machine was the limit.
    #[must_use]
    pub fn is_sound(self) -> bool {
        matches!(self, Self::Server | Self::Neither)
    }

    /// Returns how severely the limit restricts the figures. For several rows, the most severe
    /// verdict is shown.
    pub fn gravity(self) -> u8 {
        match self {
            Self::Invalid => 6,
            Self::Generator => 5,
            Self::Both => 4,
            Self::Machine => 3,
            Self::Unknown => 2,
            Self::Neither => 1,
            Self::Server => 0,
        }
    }
}

/// Facts known after a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Messages, connections or publishes that completed.
    pub completed: u64,
    /// Wrong answers, lost connections and other failures.
    pub failures: u64,
    /// The generator's CPU use.
    pub generator: CpuUsage,
    /// The server's CPU use, if it was readable.
    pub server: Option<CpuUsage>,
    /// CPUs that the server may use, if known.
    pub server_cpus: Option<usize>,
    /// Whether the server runs in this process, so that the two are indistinguishable.
    pub same_process: bool,
    /// Whether a threshold allows some failures, which then do not invalidate the figures.
    pub tolerates_failures: bool,
    /// Set for an open loop.
    pub pacing: Option<Pacing>,
    /// A comparison of broadcasts: its generator has other flags, and short pauses by design.
    pub comparison: bool,
    /// Whether this is a closed loop of connects; `--concurrency` sets how many are in progress.
    pub connects: bool,
    /// Whether this is the idle mode, whose work is too little for either side to reach a limit.
    pub idle: bool,
}

/// Counts and lateness of an open loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pacing {
    /// The name of the planned units: `messages`, `requests` or `connections`.
    pub of: &'static str,
    /// The 99th percentile of the lateness, in nanoseconds.
    pub lateness_p99_ns: u64,
    /// Number of planned units.
    pub planned: u64,
    /// Answers within the measured time. If there are fewer than planned, the answers fall behind.
    pub in_time: u64,
}

impl Facts {
    /// Returns the figures for thresholds. In an open loop every planned message without an answer
    /// counts as failed.
    pub(crate) fn figures<'a>(&self, latency: &'a Record, rate_per_s: f64) -> Figures<'a> {
        let (failed, begun) = match self.pacing {
            Some(Pacing { planned, .. }) => {
                (self.failures.max(planned.saturating_sub(self.completed)), planned)
            }
            None => (self.failures, self.completed + self.failures),
        };
        Figures { latency, rate_per_s, failed, begun }
    }

    /// Returns the flag that gives the generator more capacity.
    fn more_generator(&self) -> &'static str {
        if self.comparison { "--clients" } else { "--threads" }
    }

    /// Returns the flags that give the server more work.
    fn more_load(&self) -> &'static str {
        if self.connects { "--concurrency finds" } else { "--connections or --pipeline find" }
    }
}

impl Pacing {
    pub(crate) fn of(of: &'static str, lateness: &Record, planned: u64, in_time: u64) -> Self {
        Self { of, lateness_p99_ns: lateness.quantile_ns(0.99), planned, in_time }
    }

    /// Returns whether answers arrive more slowly than messages are planned.
    fn falls_behind(&self) -> bool {
        self.in_time * 100 < self.planned * 95
    }
}

/// The last line of every report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// For programs.
    pub limit: Limit,
    /// One line for readers, with the relevant figures and a recommendation.
    pub line: String,
}

impl Verdict {
    /// Judges a run. A pure function.
    #[must_use]
    pub fn of(facts: &Facts) -> Self {
        let (limit, mut line) = judge(facts);
        if facts.failures > 0 && limit != Limit::Invalid {
            line.push_str(&format!("; {} failures (see errors)", units::grouped(facts.failures)));
        }
        Self { limit, line }
    }

    /// Adds a remark that `waited` of `planned` connections had to wait, because all `places` were
    /// in use. The generator's bound may then be the limit instead of the server.
    #[must_use]
    pub fn with_places(mut self, waited: u64, planned: u64, places: u64) -> Self {
        if waited > 0 {
            self.line.push_str("; ");
            self.line.push_str(&waited_for_place(waited, planned, places));
        }
        self
    }

    /// Adds a remark that `lost` of `expected` deliveries never arrived. A server may drop messages
    /// by its policy, so losses alone do not invalidate the figures; but readers must see them.
    #[must_use]
    pub fn with_loss(mut self, lost: u64, expected: u64) -> Self {
        if lost > 0 && self.limit != Limit::Invalid {
            let (lost, expected) = (units::grouped(lost), units::grouped(expected));
            self.line.push_str(&format!("; {lost} of {expected} deliveries never came"));
        }
        self
    }
}

/// Describes how many connections of a schedule waited for a place, and the remedy.
pub(crate) fn waited_for_place(waited: u64, planned: u64, places: u64) -> String {
    let [waited, planned, places] = [waited, planned, places].map(units::grouped);
    format!(
        "{waited} of {planned} connections waited for one of {places} places: more of them \
         (--concurrency) tell whether the server can do more"
    )
}

fn judge(facts: &Facts) -> (Limit, String) {
    if facts.failures > 0 && !facts.tolerates_failures {
        let failures = units::grouped(facts.failures);
        return (
            Limit::Invalid,
            format!("not valid: {failures} failures (see errors); do not publish these figures"),
        );
    }
    if facts.completed == 0 {
        return (Limit::Invalid, "not valid: nothing was measured".to_owned());
    }
    let generator = percent(facts.generator.busiest_thread_cores);
    let client_busy = facts.generator.busiest_thread_cores >= BUSY;
    let Some(server) = facts.server.filter(|_| !facts.same_process) else {
        return without_server(facts, client_busy, &generator);
    };
    let used = server_share(&server, facts.server_cpus);
    if facts.idle {
        return (
            Limit::Neither,
            format!(
                "nothing to limit: the server used {} of a core while idle",
                percent(server.cores)
            ),
        );
    }
    let server_busy = is_busy(&server, facts.server_cpus);
    match (client_busy, server_busy) {
        (true, true) => (
            Limit::Both,
            format!(
                "both at their limit: the server used {used}, this generator {generator} of its \
                 core; {} 2 would tell which is slower",
                facts.more_generator()
            ),
        ),
        (true, false) => (
            Limit::Generator,
            format!(
                "client-limited: this generator used {generator} of its core, the server only \
                 {used}; the server can do more (add {})",
                facts.more_generator()
            ),
        ),
        (false, true) => (
            Limit::Server,
            format!(
                "server-limited: the server used {used}, this generator {generator} of its core"
            ),
        ),
        (false, false) => neither(facts, &server, &used, &generator),
    }
}

fn without_server(facts: &Facts, client_busy: bool, generator: &str) -> (Limit, String) {
    if client_busy && !facts.idle {
        return (
            Limit::Generator,
            format!(
                "client-limited: this generator used {generator} of its core (add {})",
                facts.more_generator()
            ),
        );
    }
    let why = if facts.same_process {
        "server and generator share this process"
    } else {
        "the server's CPU is not known (is it on this machine? give --server-pid)"
    };
    let behind = if facts.pacing.is_some_and(|pacing| pacing.falls_behind()) {
        " and answers fell behind the plan"
    } else {
        ""
    };
    (
        Limit::Unknown,
        format!("not client-limited: this generator used {generator} of its core{behind}; {why}"),
    )
}

fn neither(facts: &Facts, server: &CpuUsage, used: &str, generator: &str) -> (Limit, String) {
    if let Some(verdict) = overloaded_machine(facts, server) {
        return verdict;
    }
    if facts.comparison {
        return (
            Limit::Neither,
            format!(
                "neither was the limit: the server used {used}, this generator {generator} of its \
                 core; the rest is waking up"
            ),
        );
    }
    match facts.pacing {
        Some(pacing) => by_schedule(pacing, used, generator),
        None => (
            Limit::Neither,
            format!(
                "neither was the limit: the server used {used}, this generator {generator} of its \
                 core; they waited for each other (more {} the limit)",
                facts.more_load()
            ),
        ),
    }
}

/// Returns the verdict on a run in which one side waited for a CPU.
fn overloaded_machine(facts: &Facts, server: &CpuUsage) -> Option<(Limit, String)> {
    for (who, usage) in [("the server", server), ("this generator", &facts.generator)] {
        let waiting = usage.busiest_thread_waiting;
        let wanted = usage.busiest_thread_cores + waiting;
        if waiting >= OVERLOADED || wanted >= BUSY && waiting >= CONTENDED {
            return Some((
                Limit::Machine,
                format!(
                    "machine-limited: {who} waited {} of the time for a CPU that something else \
                     used; repeat on a quiet machine, or pin both with taskset",
                    percent(waiting)
                ),
            ));
        }
    }
    None
}

/// Returns the verdict on an open loop in which neither side was busy.
fn by_schedule(pacing: Pacing, used: &str, generator: &str) -> (Limit, String) {
    let (of, late) = (pacing.of, units::show_ns(pacing.lateness_p99_ns));
    if pacing.falls_behind() {
        return (
            Limit::Server,
            format!(
                "server-limited: only {} of {} {of} were answered in time, though the server used \
                 {used}; it waits for something other than CPU",
                units::grouped(pacing.in_time),
                units::grouped(pacing.planned)
            ),
        );
    }
    if pacing.lateness_p99_ns > KEPT_NS {
        return (
            Limit::Machine,
            format!(
                "machine-limited: 1 % of the {of} were {late} or more late, though this generator \
                 used only {generator} of its core; the machine paused it"
            ),
        );
    }
    (
        Limit::Neither,
        format!(
            "neither was the limit: the schedule was kept (99 % of {of} at most {late} late), the \
             server used {used}, this generator {generator} of its core"
        ),
    )
}

fn is_busy(server: &CpuUsage, cpus: Option<usize>) -> bool {
    // A runtime that moves work between threads is saturated when all its CPUs are, even if no
    // single thread is.
    server.busiest_thread_cores >= BUSY || cpus.is_some_and(|n| server.cores >= BUSY * n as f64)
}

fn server_share(server: &CpuUsage, cpus: Option<usize>) -> String {
    if server.threads <= 1 || server.cores - server.busiest_thread_cores < 0.01 {
        return format!("{} of a core", percent(server.cores));
    }
    let of = match cpus {
        Some(n) => format!(
            "{} of {n} core{}",
            percent(server.cores / n as f64),
            if n == 1 { "" } else { "s" }
        ),
        None => format!("{:.2} cores", server.cores),
    };
    format!("{of} (its busiest thread {})", percent(server.busiest_thread_cores))
}

fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if percent >= 10.0 || percent == 0.0 {
        format!("{percent:.0} %")
    } else {
        format!("{percent:.1} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(busiest: f64) -> CpuUsage {
        CpuUsage {
            wall_s: 10.0,
            cpu_s: busiest * 10.0,
            cores: busiest,
            busiest_thread_cores: busiest,
            busiest_thread_waiting: 0.0,
            threads: 1,
        }
    }

    fn facts(generator: f64, server: f64) -> Facts {
        Facts {
            completed: 1_000_000,
            generator: usage(generator),
            server: Some(usage(server)),
            server_cpus: Some(1),
            ..Facts::default()
        }
    }

    fn check(facts: &Facts, limit: Limit, words: &[&str]) {
        let verdict = Verdict::of(facts);
        assert_eq!(verdict.limit, limit, "{}", verdict.line);
        assert!(!verdict.line.contains('\n'));
        for word in words {
            assert!(verdict.line.contains(word), "{word:?} in {:?}", verdict.line);
        }
    }

    #[test]
    fn the_side_that_used_its_core_is_the_limit() {
        check(&facts(0.97, 0.61), Limit::Generator, &["client-limited", "97 %", "61 %"]);
        check(&facts(0.61, 0.99), Limit::Server, &["server-limited", "99 %", "61 %"]);
        check(&facts(0.98, 0.98), Limit::Both, &["both", "--threads"]);
        check(&facts(0.30, 0.40), Limit::Neither, &["waited for each other", "--pipeline"]);
        let connects = Facts { connects: true, ..facts(0.30, 0.40) };
        check(&connects, Limit::Neither, &["waited for each other", "(more --concurrency finds"]);
    }

    #[test]
    fn a_comparison_is_advised_by_its_own_flags() {
        let comparison = |facts| Facts { comparison: true, ..facts };
        check(&comparison(facts(0.97, 0.61)), Limit::Generator, &["client-limited", "--clients"]);
        check(&comparison(facts(0.98, 0.98)), Limit::Both, &["--clients 2"]);
        check(&comparison(facts(0.30, 0.40)), Limit::Neither, &["waking up"]);
    }

    #[test]
    fn failures_make_every_figure_worthless() {
        let wrong = Facts { failures: 1_234, ..facts(0.5, 0.99) };
        check(&wrong, Limit::Invalid, &["not valid", "1,234"]);
        check(&Facts { completed: 0, ..facts(0.5, 0.99) }, Limit::Invalid, &["nothing"]);
    }

    #[test]
    fn an_unknown_server_is_said_to_be_unknown() {
        let unknown = Facts { server: None, ..facts(0.5, 0.0) };
        check(&unknown, Limit::Unknown, &["not client-limited", "--server-pid"]);
        check(&Facts { server: None, ..facts(0.97, 0.0) }, Limit::Generator, &["97 %"]);
        let shared = Facts { same_process: true, ..facts(0.5, 0.99) };
        check(&shared, Limit::Unknown, &["share this process"]);
    }

    #[test]
    fn a_server_of_many_threads_is_busy_when_its_cpus_are() {
        let mut many = facts(0.5, 0.0);
        many.server =
            Some(CpuUsage { cores: 1.96, busiest_thread_cores: 0.6, threads: 8, ..usage(0.6) });
        many.server_cpus = Some(2);
        check(&many, Limit::Server, &["98 % of 2 cores", "busiest thread 60 %"]);
        many.server_cpus = Some(16);
        check(&many, Limit::Neither, &["of 16 cores"]);
        many.server_cpus = None;
        check(&many, Limit::Neither, &["1.96 cores"]);
    }

    #[test]
    fn an_overloaded_machine_is_distinguished_from_a_slow_server() {
        let mut overloaded = facts(0.4, 0.6);
        overloaded.server = Some(CpuUsage { busiest_thread_waiting: 0.38, ..usage(0.6) });
        check(&overloaded, Limit::Machine, &["the server waited 38 %", "taskset"]);
        let mut overloaded = facts(0.6, 0.4);
        overloaded.generator.busiest_thread_waiting = 0.39;
        check(&overloaded, Limit::Machine, &["this generator waited 39 %"]);
        let mut overloaded = facts(0.12, 0.11);
        overloaded.generator.busiest_thread_waiting = 0.55;
        check(&overloaded, Limit::Machine, &["this generator waited 55 %"]);
    }

    #[test]
    fn an_open_loop_is_judged_by_its_schedule() {
        let paced = |pacing| Facts { pacing: Some(pacing), ..facts(0.3, 0.4) };
        let of = "connections";
        let kept = Pacing { of, lateness_p99_ns: 80_000, planned: 100_000, in_time: 99_900 };
        check(
            &paced(kept),
            Limit::Neither,
            &["the schedule was kept", "99 % of connections", "80.0 us"],
        );
        let backlog = Pacing { in_time: 5_000, ..kept };
        check(&paced(backlog), Limit::Server, &["5,000 of 100,000 connections", "other than CPU"]);
        let late = Pacing { lateness_p99_ns: 40_000_000, ..kept };
        check(&paced(late), Limit::Machine, &["1 % of the connections", "40.0 ms"]);
        let busy = Facts { pacing: Some(backlog), ..facts(0.3, 0.99) };
        check(&busy, Limit::Server, &["99 %"]);
        let unknown = Facts { server: None, ..paced(backlog) };
        check(&unknown, Limit::Unknown, &["fell behind the plan", "--server-pid"]);
    }

    #[test]
    fn a_bound_that_was_reached_is_said() {
        let verdict = |waited| Verdict::of(&facts(0.5, 0.99)).with_places(waited, 5_000, 1_000);
        assert!(verdict(12).line.contains("; 12 of 5,000 connections waited for one of 1,000"));
        assert!(!verdict(0).line.contains("--concurrency"));
    }

    #[test]
    fn loss_is_said_and_none_is_not() {
        let verdict = |lost| Verdict::of(&facts(0.5, 0.99)).with_loss(lost, 5_000);
        assert!(verdict(12).line.ends_with("; 12 of 5,000 deliveries never came"));
        assert!(!verdict(0).line.contains("never came"));
    }

    #[test]
    fn idle_has_no_limit() {
        check(
            &Facts { idle: true, ..facts(0.0, 0.0) },
            Limit::Neither,
            &["0 % of a core while idle"],
        );
        check(&Facts { idle: true, ..facts(0.0, 0.004) }, Limit::Neither, &["0.4 %"]);
    }
}
