//! Flags that several loads have.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use throng_config::units::{parse_count, parse_duration};
use throng_load::find_max::Load;
use throng_load::{Common as PlanCommon, Error, Plan, RateStage, Slo, TlsPlan, TlsTrust};

use super::find_max::FindMaxArgs;
use super::identity::HandshakeArgs;
use super::measurement::Measurement;
use super::output::OutputArgs;

/// The server that is measured.
#[derive(Debug, ClapArgs)]
pub(super) struct TargetArgs {
    /// The server, as ws://host:port/path or wss://...; without a path, where `throng serve` does
    /// this
    #[arg(value_name = "URL")]
    pub(super) url: String,
}

/// The times of a measurement.
#[derive(Debug, ClapArgs)]
pub struct TimeArgs {
    /// Time measured, such as 10s, 1.5s or 2m
    #[arg(long, short, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Warm-up time, which is not measured
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    pub warmup: Duration,
}

/// Thresholds.
#[derive(Debug, ClapArgs)]
pub(super) struct SloArgs {
    /// A threshold, such as p99<10ms, p99.9<50ms, max<1s, rate>50000 or errors<0.1%; repeatable.
    /// One that is not kept makes the exit code 99. Without one about errors any error makes the
    /// figures invalid
    #[arg(long, value_name = "THRESHOLD", value_parser = Slo::parse)]
    pub(super) slo: Vec<Slo>,
}

/// Flags of open and closed loops besides the rate and the times.
#[derive(Debug, ClapArgs)]
pub(super) struct LoopArgs {
    /// Rates of all connections together that follow one another, each reached evenly within its
    /// time: 10s:1k,30s:5k rises to 1,000 a second within 10 s, and to 5,000 within 30 s more;
    /// 0s:1k jumps. All of it is measured (open loop)
    #[arg(long, value_name = "TIME:RATE,...", value_delimiter = ',', value_parser = parse_stage,
          conflicts_with_all = ["rate", "rate_ramp", "find_max", "duration", "warmup"])]
    pub(super) stages: Vec<RateStage>,
    /// Let the rate rise from 0 over this time, before the warm-up
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true,
          value_parser = parse_duration, requires = "rate", conflicts_with = "find_max")]
    pub(super) rate_ramp: Duration,
    #[command(flatten)]
    pub(super) find_max: FindMaxArgs,
    /// So many messages, requests or connections in all, and the run is over; with --rate it takes
    /// as long as they need
    #[arg(long, short, value_name = "N", value_parser = parse_count,
          conflicts_with_all = ["duration", "warmup", "find_max", "rate_ramp", "stages"])]
    number: Option<usize>,
}

impl LoopArgs {
    /// Copies the flags to the plan, whose [times](Self::times) are already known.
    pub(super) fn apply(self, number: Option<u64>, plan: &mut PlanCommon) {
        (plan.number, plan.rate_ramp, plan.stages) = (number, self.rate_ramp, self.stages);
    }

    /// The highest rate of the stages, if there are any.
    pub(super) fn highest(&self) -> Option<f64> {
        (!self.stages.is_empty()).then(|| RateStage::highest(&self.stages))
    }

    /// Returns the number of a closed loop, and duration and warm-up of the run. In an open loop
    /// without stages, all connections together have this rate.
    pub(super) fn times(
        &self,
        time: &TimeArgs,
        rate_per_s: Option<f64>,
    ) -> (Option<u64>, Duration, Duration) {
        if !self.stages.is_empty() {
            return (None, RateStage::total(&self.stages), Duration::ZERO);
        }
        let Some(number) = self.number else { return (None, time.duration, time.warmup) };
        match rate_per_s.map(|rate| Duration::try_from_secs_f64(number as f64 / rate)) {
            None => (Some(number as u64), WEEK, Duration::ZERO),
            Some(duration) => (None, duration.unwrap_or(Duration::MAX), Duration::ZERO),
        }
    }
}

/// `10s:1k` or `1m:2500/s`.
fn parse_stage(text: &str) -> Result<RateStage, String> {
    let wrong = || format!("{text:?} is not a stage: write a time and a rate, such as 10s:1k");
    let (duration, rate) = text.split_once(':').ok_or_else(wrong)?;
    let rate = rate.strip_suffix("/s").unwrap_or(rate);
    let count = parse_count(rate).map(|count| count as f64).ok();
    let rate_per_s = count.or_else(|| rate.parse().ok()).ok_or_else(wrong)?;
    Ok(RateStage { duration: parse_duration(duration)?, rate_per_s })
}

/// The longest time that a run may have.
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Flags of all loads of WebSocket clients.
#[derive(Debug, ClapArgs)]
pub(super) struct Common {
    #[command(flatten)]
    thresholds: SloArgs,
    #[command(flatten)]
    handshake: HandshakeArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    pub(super) connecting: Connecting,
}

impl Common {
    /// Returns a run of this plan, completed by these flags, on its target.
    ///
    /// # Errors
    /// The plan is contradictory, or a file named by a flag cannot be read.
    pub(super) fn measurement(self, mut plan: Plan) -> Result<Measurement, Error> {
        self.handshake.apply(&mut plan)?;
        self.connecting.apply(&mut plan.common);
        plan.common.slos = self.thresholds.slo;
        plan.check()?;
        let load = Load::WebSocket(Box::new(plan));
        Ok(Measurement { load, search: None, own_shards: None, output: self.output })
    }
}

/// Flags of the generator's connections, and of the processes that it measures.
#[derive(Debug, ClapArgs)]
pub(super) struct Connecting {
    /// Threads of this generator; one keeps up with one server thread
    #[arg(long, short, value_name = "N", default_value_t = 1, hide_short_help = true)]
    pub(super) threads: usize,
    /// Source addresses 127.0.0.1, .2, ... [default: one for each 25,000 connections]
    #[arg(
        long,
        alias = "source",
        value_name = "N",
        help_heading = "Connecting",
        hide_short_help = true
    )]
    pub(super) sources: Option<usize>,
    /// Connections being made at a time during set-up
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        help_heading = "Connecting",
        hide_short_help = true
    )]
    pub(super) window: usize,
    /// Spread the set-up over this time [default: as fast as --window allows]
    #[arg(long, value_name = "TIME", default_value = "0s", hide_default_value = true,
          value_parser = parse_duration, help_heading = "Connecting", hide_short_help = true)]
    pub(super) ramp: Duration,
    /// Give up when set-up makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration,
          help_heading = "Connecting", hide_short_help = true)]
    pub(super) setup_timeout: Duration,
    /// The server's process, or several: 12,13 [default: the process listening on the port]
    #[arg(
        long,
        alias = "pid",
        value_name = "PID",
        value_delimiter = ',',
        help_heading = "Watching",
        hide_short_help = true
    )]
    pub(super) server_pid: Vec<u32>,
    #[command(flatten)]
    pub(super) tls: TlsArgs,
}

/// TLS, for URLs that begin with wss:// or https://.
#[derive(Debug, ClapArgs)]
pub(super) struct TlsArgs {
    /// Trust the authorities in this file (PEM) [default: the system's]
    #[arg(long, value_name = "FILE", conflicts_with = "insecure", help_heading = "TLS")]
    ca: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long, help_heading = "TLS")]
    insecure: bool,
    /// Ask for this name (SNI), which the certificate has to have [default: the URL's host]
    #[arg(long, value_name = "NAME", help_heading = "TLS", hide_short_help = true)]
    sni: Option<String>,
    /// Offer TLS 1.2 only
    #[arg(long, help_heading = "TLS", hide_short_help = true)]
    tls12: bool,
    /// Resume sessions: handshakes are measured without certificates, after each thread's first
    #[arg(long, help_heading = "TLS", hide_short_help = true)]
    resume: bool,
    /// A client certificate (PEM), with --key
    #[arg(
        long,
        value_name = "FILE",
        requires = "key",
        help_heading = "TLS",
        hide_short_help = true
    )]
    cert: Option<PathBuf>,
    /// The private key of --cert (PEM)
    #[arg(
        long,
        value_name = "FILE",
        requires = "cert",
        help_heading = "TLS",
        hide_short_help = true
    )]
    key: Option<PathBuf>,
}

impl TlsArgs {
    pub(super) fn plan(self) -> TlsPlan {
        let trust = match self.ca {
            _ if self.insecure => TlsTrust::Anyone,
            Some(file) => TlsTrust::File(file),
            None => TlsTrust::System,
        };
        let certificate = self.cert.zip(self.key);
        let (only_tls12, resumes) = (self.tls12, self.resume);
        TlsPlan { trust, certificate, only_tls12, resumes, name: self.sni }
    }
}

impl Connecting {
    /// Puts the flags into the plan.
    pub(super) fn apply(self, plan: &mut PlanCommon) {
        plan.threads = self.threads;
        plan.sources = self.sources;
        plan.window = self.window;
        plan.ramp = self.ramp;
        plan.setup_timeout = self.setup_timeout;
        plan.server_pids = self.server_pid;
        plan.tls = self.tls.plan();
    }
}

/// `1000`, `1000/s` or `0.5/s`.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix("/s").unwrap_or(text).replace(['_', ','], "");
    number.parse().map_err(|_| {
        format!("{text:?} is not a rate: write messages a second, such as 1000 or 1000/s")
    })
}
