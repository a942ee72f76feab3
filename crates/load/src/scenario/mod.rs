//! Scenarios: loads as small files, written by hand or recorded from a running server.

mod record;

use std::sync::Arc;
use std::time::Duration;

use throng_config::{ConfigErrors, Draft, Key, Kind, Sources, Table};
use throng_proto::ws::deflate::Settings as Deflate;

pub use self::record::recorded;
use crate::deflate;
use crate::error::Error;
use crate::find_max::Load;
use crate::http;
use crate::plan::{Content, MAX_SIZE, Mode, Pace, Plan};
use crate::report::{LoadReport, Measured};
use crate::script::Script;
use crate::slo::Slo;
use crate::target::Target;
use crate::tune::Reading;
use crate::verdict::Limit;

/// The scenarios that come with the program: name and file.
pub const SCENARIOS: [(&str, &str); 5] = [
    ("chat", include_str!("chat.toml")),
    ("ticker", include_str!("ticker.toml")),
    ("game", include_str!("game.toml")),
    ("dashboard", include_str!("dashboard.toml")),
    ("api", include_str!("api.toml")),
];

const MODES: Kind = Kind::Word(&["echo", "fanout", "script", "http"]);
const PAYLOADS: Kind = Kind::Word(&["letters", "json", "random"]);
const OBJECTIVES: Kind = Kind::Word(&["rate", "cpu", "latency"]);
const SLOS: Kind = Kind::List(&Kind::Text("a threshold such as \"p99<10ms\""));
const ONE_OR_MORE: Kind = Kind::count(1, u32::MAX as u64);
const SECONDS: Kind = Kind::POSITIVE_DURATION;

/// Share of all CPUs above which server and generator leave nothing to other work that counts.
const OWN: f64 = 0.85;

/// The keys of a scenario.
pub static TABLE: Table = Table { program: "scenario", keys: &KEYS };

#[rustfmt::skip]
static KEYS: [Key; 17] = [
    Key::new("mode", MODES, "echo",
        "echo: each message comes back; fanout: channels with publishers and subscribers; script: \
         steps of each client; http: requests"),
    Key::new("path", Kind::Text("a path such as \"/chat\""), "",
        "path of the URL; if not set, where throng serve does this; fanout needs {channel} in it"),
    Key::new("connections", ONE_OR_MORE, "100",
        "connections; with fanout they follow from channels and subscribers"),
    Key::new("threads", Kind::count(1, 64), "1", "threads of the generator"),
    Key::new("size", Kind::size(0, MAX_SIZE as u64), "100", "bytes of a message"),
    Key::new("payload", PAYLOADS, "letters",
        "content of messages: letters, JSON documents, or random bytes, which do not shrink"),
    Key::new("deflate", Kind::Text("a mode such as \"shared\""), "off",
        "compression that clients offer: off, shared or window:BITS; for echo"),
    Key::new("rate", Kind::COUNT, "0",
        "messages or requests a second of all connections together; 0 = each answer triggers the \
         next one; fanout needs a rate"),
    Key::new("pipeline", ONE_OR_MORE, "1",
        "messages or requests under way on a connection, without a rate"),
    Key::new("channels", ONE_OR_MORE, "100", "for fanout: channels, each with a publisher"),
    Key::new("subscribers", ONE_OR_MORE, "10", "for fanout: subscribers of each channel"),
    Key::new("script", Kind::Text("steps such as \"send a\""), "",
        "for script: the steps, one a line, as for throng bench script"),
    Key::new("duration", SECONDS, "4s", "measured time of a run"),
    Key::new("warmup", Kind::DURATION, "1s", "time before that, which is not measured"),
    Key::new("timeout", SECONDS, "10s", "longest wait for an answer, of script and http"),
    Key::new("maximize", OBJECTIVES, "rate",
        "what is better: rate = more answers a second; cpu = more answers for a second of the \
         server's CPU time; latency = a lower p99"),
    Key::new("slo", SLOS, "", "thresholds that changes must keep, as for throng bench --slo"),
];

/// The figure to improve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// More answers a second.
    Rate,
    /// More answers for a second of the server's CPU time.
    Cpu,
    /// A lower 99th percentile of the latency.
    Latency,
}

impl Objective {
    /// The word in files and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Cpu => "cpu",
            Self::Latency => "latency",
        }
    }

    /// Returns the objective of that name.
    ///
    /// # Errors
    /// There is no such objective; the message has the names.
    pub fn parse(name: &str) -> Result<Self, String> {
        match name {
            "rate" => Ok(Self::Rate),
            "cpu" => Ok(Self::Cpu),
            "latency" => Ok(Self::Latency),
            _ => Err("write rate, cpu or latency".to_owned()),
        }
    }
}

/// A load on any server, and what is better under it.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The name of the scenario or of its file.
    pub name: String,
    /// The figure to improve.
    pub objective: Objective,
    /// The measured time of a run.
    pub duration: Duration,
    mode: String,
    path: String,
    connections: usize,
    threads: usize,
    size: usize,
    payload: String,
    deflate: Deflate,
    rate: u32,
    pipeline: usize,
    channels: usize,
    subscribers: usize,
    script: Option<Arc<Script>>,
    warmup: Duration,
    timeout: Duration,
    slos: Vec<Slo>,
}

impl Scenario {
    /// Returns the scenario of that name that comes with the program.
    ///
    /// # Panics
    /// Never: a test reads all of them.
    #[must_use]
    pub fn builtin(name: &str) -> Option<Self> {
        let (name, text) = SCENARIOS.iter().find(|(known, _)| *known == name)?;
        Some(Self::parse(name, text).expect("a test reads all scenarios"))
    }

    /// Reads a scenario. `name` is the file's name for errors.
    ///
    /// # Errors
    /// [`Error::Usage`] with all mistakes, each with its place and remedy.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let mut sources = Sources::new(&TABLE);
        sources.file(name, text);
        Self::of_draft(name, sources.finish())
    }

    fn of_draft(name: &str, draft: Draft) -> Result<Self, Error> {
        let deflate = deflate::parse(&draft.get::<String>("deflate"));
        let deflate = deflate.map_err(|remedy| draft.wrong("deflate", remedy)).unwrap_or_default();
        let mut slos = Vec::new();
        for (at, text) in draft.get::<Vec<String>>("slo").iter().enumerate() {
            match Slo::parse(text) {
                Ok(slo) => slos.push(slo),
                Err(remedy) => draft.wrong(&format!("slo[{at}]"), remedy),
            }
        }
        let mode: String = draft.get("mode");
        let steps: String = draft.get("script");
        let script = match (mode.as_str(), steps.as_str()) {
            ("script", steps) => match Script::parse(name, steps) {
                Ok(script) => Some(Arc::new(script)),
                Err(error) => {
                    draft.wrong("script", error);
                    None
                }
            },
            (_, "") => None,
            _ => {
                draft.wrong("script", "write mode = \"script\" as well");
                None
            }
        };
        let rate: u32 = draft.get("rate");
        let objective = match draft.get::<String>("maximize").as_str() {
            "cpu" => Objective::Cpu,
            "latency" => Objective::Latency,
            _ => Objective::Rate,
        };
        if mode == "fanout" && rate == 0 {
            draft.wrong("rate", "fanout needs a rate: write for example rate = 100");
        }
        let scenario = Self {
            name: name.to_owned(),
            objective,
            duration: draft.get("duration"),
            path: draft.get("path"),
            connections: draft.get("connections"),
            threads: draft.get("threads"),
            size: draft.get("size"),
            payload: draft.get("payload"),
            deflate,
            rate,
            pipeline: draft.get("pipeline"),
            channels: draft.get("channels"),
            subscribers: draft.get("subscribers"),
            script,
            warmup: draft.get("warmup"),
            timeout: draft.get("timeout"),
            slos,
            mode,
        };
        let usage = |errors: ConfigErrors| Error::Usage(errors.with_lines());
        draft.finish().map_err(usage)?;
        scenario.check_objective()?;
        Ok(scenario)
    }

    /// Refuses an objective that no setting could change.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check_objective(&self) -> Result<(), Error> {
        if self.rate > 0 && self.objective == Objective::Rate {
            return Err(Error::Usage(format!(
                "{}: with a rate, each server has the same number of answers: write maximize = \
                 \"latency\" or \"cpu\", or no rate",
                self.name
            )));
        }
        Ok(())
    }

    /// Adds thresholds.
    pub fn add_slos(&mut self, slos: &[Slo]) {
        self.slos.extend_from_slice(slos);
    }

    /// Sets the path, such as the one of a URL.
    pub fn set_path(&mut self, path: &str) {
        path.clone_into(&mut self.path);
    }

    /// Returns the number of connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        match self.mode.as_str() {
            "fanout" => Plan::fanout_connections(self.channels, self.subscribers),
            _ => self.connections,
        }
    }

    /// Returns the bytes of a message.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns whether clients offer compression.
    #[must_use]
    pub fn offers_deflate(&self) -> bool {
        self.deflate.enabled
    }

    /// Returns whether the load has a rate.
    #[must_use]
    pub fn has_rate(&self) -> bool {
        self.rate > 0
    }

    /// Returns the scenario in words: `chat: fanout, 1,100 connections, 160 B`.
    #[must_use]
    pub fn words(&self) -> String {
        let connections = crate::units::grouped(self.connections() as u64);
        let size = crate::units::show_bytes(self.size as i64);
        let pace = match self.rate {
            0 => String::new(),
            rate => format!(", {} a second", crate::units::grouped(rate.into())),
        };
        format!("{}: {}, {connections} connections, {size}{pace}", self.name, self.mode)
    }

    /// Returns the load on the server at `authority`, such as `127.0.0.1:9001`, with or without
    /// TLS.
    ///
    /// # Errors
    /// [`Error::Usage`] for a load that is not possible.
    pub fn load(&self, authority: &str, is_secure: bool) -> Result<Load, Error> {
        let s = if is_secure { "s" } else { "" };
        let mut load = match self.mode.as_str() {
            "http" => {
                let path = if self.path.is_empty() { "/" } else { &self.path };
                let target = Target::parse_http(&format!("http{s}://{authority}{path}"))?;
                Load::Http(Box::new(self.http_plan(target)))
            }
            _ => {
                let target = Target::parse(&format!("ws{s}://{authority}{}", self.path))?;
                Load::WebSocket(Box::new(self.plan(target)))
            }
        };
        let common = load.common_mut();
        common.connections = self.connections();
        common.threads = self.threads.min(common.connections);
        common.slos.clone_from(&self.slos);
        match &load {
            Load::WebSocket(plan) => plan.check()?,
            Load::Http(plan) => plan.check()?,
        }
        Ok(load)
    }

    fn plan(&self, target: Target) -> Plan {
        let Self { duration, warmup, timeout, .. } = *self;
        let pace = match self.rate {
            0 => Pace::Closed { pipeline: self.pipeline },
            rate => Pace::Open { rate_per_s: f64::from(rate) / self.connections as f64 },
        };
        let mode = match self.mode.as_str() {
            "fanout" => Mode::Fanout {
                channels: self.channels,
                subscribers: self.subscribers,
                rate_per_s: self.rate.into(),
                duration,
                warmup,
            },
            "script" => Mode::Script { duration, warmup, timeout },
            _ => Mode::Echo { pace, duration, warmup },
        };
        let mut plan = Plan::new(target, mode);
        plan.size = self.size;
        plan.deflate = self.deflate;
        plan.script.clone_from(&self.script);
        plan.content = match self.payload.as_str() {
            "json" => Content::Json { seed: 1 },
            "random" => Content::Given(random_bytes(self.size).into()),
            _ => Content::Letters,
        };
        plan
    }

    fn http_plan(&self, target: Target) -> http::HttpPlan {
        let mut plan = http::HttpPlan::new(target);
        (plan.duration, plan.warmup, plan.timeout) = (self.duration, self.warmup, self.timeout);
        plan.pipeline = self.pipeline;
        if self.rate > 0 {
            plan.pace = http::Pace::Open { rate_per_s: self.rate.into() };
        }
        plan
    }

    /// Returns the figures of a run of WebSocket clients.
    #[must_use]
    pub fn reading(&self, report: &LoadReport) -> Reading {
        let (per_s, per_cpu_s, latency) = match &report.result {
            Measured::Echo(echo) => {
                (echo.messages_per_s, echo.messages_per_server_cpu_s, echo.latency)
            }
            Measured::Fanout(fanout) => {
                let per_cpu_s = fanout.server_cpu_us_per_delivery.map(|us| 1e6 / us);
                (fanout.received_per_s, per_cpu_s, fanout.latency)
            }
            Measured::Script(script) => {
                let per_cpu_s = script.server_cpu_us_per_answer.map(|us| 1e6 / us);
                (script.answers_per_s, per_cpu_s, script.latency)
            }
            Measured::Idle(_) | Measured::Connect(_) | Measured::Broadcast(_) => (0.0, None, None),
        };
        let p99_us = latency.map(|latency| latency.p99_us);
        self.of_figures((per_s, per_cpu_s, p99_us), report)
    }

    /// Returns the figures of a run of requests.
    #[must_use]
    pub fn reading_of_requests(&self, report: &http::HttpReport) -> Reading {
        let result = &report.result;
        let p99_us = result.latency.map(|latency| latency.p99_us);
        let figures = (result.requests_per_s, result.requests_per_server_cpu_s, p99_us);
        self.of_figures(figures, report)
    }

    fn of_figures<R>(
        &self,
        (per_s, per_cpu_s, p99_us): (f64, Option<f64>, Option<f64>),
        report: &LoadReport<R>,
    ) -> Reading {
        let LoadReport { verdict, slo, generator, .. } = report;
        let server = report.server.as_ref().and_then(|server| server.cpu);
        let cores = server.map_or(0.0, |cpu| cpu.cores) + generator.cpu.cores;
        // An unknown figure is 0, which counts as no valid run.
        let figure = match self.objective {
            Objective::Rate => per_s,
            Objective::Cpu => per_cpu_s.unwrap_or(0.0),
            Objective::Latency => p99_us.map_or(0.0, |us| 1e6 / us),
        };
        Reading {
            figure,
            p99_us,
            limit: limit_of(verdict.limit, cores, report.run.machine.cpus),
            verdict: verdict.line.clone(),
            keeps_slos: slo.iter().all(|slo| slo.kept),
        }
    }
}

/// Returns the limit of a run in which server and generator used so many of the CPUs. If they used
/// nearly all, they waited for each other: a server that needs less is faster.
fn limit_of(verdict: Limit, cores: f64, cpus: usize) -> Limit {
    match verdict {
        Limit::Machine if cores >= OWN * cpus as f64 => Limit::Both,
        limit => limit,
    }
}

/// Returns bytes that do not shrink, the same ones each time (xorshift).
fn random_bytes(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scenario_of_the_program_is_a_valid_load() {
        for (name, _) in SCENARIOS {
            let scenario = Scenario::builtin(name).unwrap();
            let load = scenario.load("127.0.0.1:9001", false).unwrap();
            assert_eq!(load.common().connections, scenario.connections());
            assert!(scenario.words().starts_with(name), "{}", scenario.words());
        }
        assert!(Scenario::builtin("chess").is_none());
    }

    #[test]
    fn a_file_becomes_a_plan() {
        let text = "mode = \"echo\"\nconnections = 50\nrate = 500\nsize = \"1KiB\"\n\
                    payload = \"random\"\ndeflate = \"window:10\"\npath = \"/chat\"\n\
                    maximize = \"latency\"\nslo = [\"p99<10ms\"]\nduration = \"2s\"\n";
        let scenario = Scenario::parse("our.toml", text).unwrap();
        let Load::WebSocket(plan) = scenario.load("[::1]:80", true).unwrap() else { panic!() };
        let Mode::Echo { pace, duration, .. } = plan.mode else { panic!("{:?}", plan.mode) };
        assert_eq!((pace, duration.as_secs()), (Pace::Open { rate_per_s: 10.0 }, 2));
        assert_eq!((plan.size, plan.resource(), plan.common.slos.len()), (1024, "/chat", 1));
        assert!(scenario.offers_deflate() && plan.common.target.scheme() == "wss");
        let Content::Given(bytes) = &plan.content else { panic!() };
        assert_eq!(bytes.len(), 1024);
    }

    #[test]
    fn a_script_is_in_the_file() {
        let text = "mode = \"script\"\nscript = '''\nsend a\nexpect a\nrepeat\n'''\n";
        let scenario = Scenario::parse("s.toml", text).unwrap();
        let Load::WebSocket(plan) = scenario.load("127.0.0.1:1", false).unwrap() else { panic!() };
        assert!(plan.script.is_some() && matches!(plan.mode, Mode::Script { .. }));
    }

    #[test]
    fn server_and_generator_alone_may_fill_the_machine() {
        assert_eq!(limit_of(Limit::Machine, 1.9, 2), Limit::Both);
        assert_eq!(limit_of(Limit::Machine, 1.5, 2), Limit::Machine);
        assert_eq!(limit_of(Limit::Generator, 1.9, 2), Limit::Generator);
    }

    #[test]
    fn mistakes_name_the_place_and_the_remedy() {
        for (text, words) in [
            ("mod = \"echo\"", "s.toml:1"),
            ("mode = \"fanout\"", "fanout needs a rate"),
            ("deflate = \"gzip\"", "write no-context, window:BITS"),
            ("slo = [\"p99\"]", "write p99<10ms"),
            ("script = \"send a\"", "write mode = \"script\" as well"),
            ("mode = \"script\"", "has no step"),
            ("rate = 100", "each server has the same number of answers"),
            ("connections = 0", "connections"),
        ] {
            let error = Scenario::parse("s.toml", text).unwrap_err();
            assert!(error.to_string().contains(words), "{words}: {error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
