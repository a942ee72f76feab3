//! Costs and savings of compression at a server for each setting: memory per connection, CPU per
//! message, bytes per message.
//!
//! Each setting has a fresh server process, which the caller starts ([`Server`]), so that its
//! memory and CPU time are its own. Its `/compose` answers every message with the same text in a
//! message of the server's own; at `/echo` the message itself is sent on, which a server may do
//! without compressing it again.

pub(crate) mod command;
mod report;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub(crate) use report::{CompressionReport, Row};

use crate::servers::Server;
use throng_load::report::Measured;
use throng_load::sampler::{Memory, Processes};
use throng_load::{
    Common, Content, Deflate, DeflateMode, Error, Mode, Pace, Plan, Progress, Report, Target,
};

/// Where a server makes its answers itself, and where it sends on what came.
const COMPOSE: &str = "/compose";
const ECHO: &str = "/echo";
/// Before memory is looked at: what a process allocates once should not count as a connection's.
const FIRST_CONNECTIONS: usize = 4;
const FIRST: Duration = Duration::from_millis(200);

/// A whole comparison.
#[derive(Clone, Debug)]
pub(crate) struct CompressionPlan {
    /// The settings compared, in this order. Default off, shared, and windows of 9 to 15 bits.
    pub settings: Vec<Deflate>,
    /// Connections of each measurement. Default 1,000.
    pub connections: usize,
    /// Bytes of a JSON document, at least 72. Default 256.
    pub size: usize,
    /// Seed of the documents. Default: 1.
    pub seed: u64,
    /// Time measured, of each setting. Default 3 s.
    pub duration: Duration,
    /// Time run before, not counted. Default 2 s.
    pub warmup: Duration,
    /// Longest time without progress while connections are set up. Default 10 s.
    pub setup_timeout: Duration,
}

impl Default for CompressionPlan {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        let on = |mode| Deflate::new(mode);
        let windows = (9..=15).map(|bits| on(DeflateMode::Window { bits }));
        Self {
            settings: [Deflate::default(), on(DeflateMode::Shared)]
                .into_iter()
                .chain(windows)
                .collect(),
            connections: 1_000,
            size: 256,
            seed: 1,
            duration: 3 * second,
            warmup: 2 * second,
            setup_timeout: 10 * second,
        }
    }
}

impl CompressionPlan {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// [`Error::Usage`] naming the flag, the value and what to write instead.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.settings.is_empty() {
            return Err(Error::Usage("--settings needs at least one value".to_owned()));
        }
        for deflate in &self.settings {
            // No server has this address; all other settings are those of the run.
            self.plan(deflate, "127.0.0.1:1", ECHO, 0)?.check()?;
        }
        Ok(())
    }

    fn plan(&self, deflate: &Deflate, address: &str, path: &str, pid: u32) -> Result<Plan, Error> {
        let target = Target::parse(&format!("ws://{address}{path}"))?;
        let Self { duration, warmup, .. } = *self;
        let pace = Pace::Closed { pipeline: 1 };
        let common = Common {
            connections: self.connections,
            setup_timeout: self.setup_timeout,
            server_pids: vec![pid],
            ..target.into()
        };
        Ok(Plan {
            size: self.size,
            content: Content::Json { seed: self.seed },
            // What the server has: a client that keeps no context would not show what one costs.
            deflate: *deflate,
            ..Plan::new(common, Mode::Echo { pace, duration, warmup })
        })
    }
}

/// Runs a comparison and reports. Blocks; `watch` is called some ten times a second, with the
/// setting at hand.
///
/// When `stop` becomes true it ends early, with a report of the settings that were complete.
///
/// # Errors
/// A plan that makes no sense, a server that did not start or declined, a run that failed; and
/// [`Error::Interrupted`] if it was stopped before there was anything to report.
pub(crate) fn run<S: Server>(
    plan: &CompressionPlan,
    start: &dyn Fn(&Deflate) -> Result<S, Error>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Deflate, &Progress),
) -> Result<CompressionReport, Error> {
    plan.check()?;
    let mut rows = Vec::new();
    for deflate in &plan.settings {
        match measure(plan, deflate, start, stop, watch) {
            Ok(row) => rows.push(row),
            Err(Error::Interrupted) if !rows.is_empty() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(CompressionReport::new(plan, rows))
}

/// One setting on a fresh server.
fn measure<S: Server>(
    plan: &CompressionPlan,
    deflate: &Deflate,
    start: &dyn Fn(&Deflate) -> Result<S, Error>,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Deflate, &Progress),
) -> Result<Row, Error> {
    let server = start(deflate)?;
    let mut run =
        |plan: &Plan| throng_load::run(plan, stop, &mut |progress| watch(deflate, progress));
    let plan_for = |path| plan.plan(deflate, server.address(), path, server.pid());
    let composed = plan_for(COMPOSE)?;
    let first = Mode::Echo { pace: Pace::Closed { pipeline: 1 }, duration: FIRST, warmup: FIRST };
    let mut first = Plan { mode: first, ..composed.clone() };
    first.common.connections = FIRST_CONNECTIONS.min(plan.connections);
    run(&first)?;
    let before = Processes::new(vec![server.pid()]).memory();
    let report = run(&composed)?;
    // Sent on as it came only where no context is kept; elsewhere it would be the same figure
    // again.
    let relayed = match deflate.mode {
        DeflateMode::Shared if deflate.enabled => Some(run(&plan_for(ECHO)?)?),
        _ => None,
    };
    Ok(Row::new(plan, deflate, before, &report, relayed.as_ref()))
}

impl Row {
    fn new(
        plan: &CompressionPlan,
        deflate: &Deflate,
        before: Option<Memory>,
        report: &Report,
        relayed: Option<&Report>,
    ) -> Self {
        let echo = |report: &Report| match &report.result {
            Measured::Echo(echo) => Some(echo.clone()),
            _ => None,
        };
        let own = echo(report);
        let compressed = own.as_ref().and_then(|echo| echo.deflate);
        let after = report.server.as_ref().and_then(|server| server.memory);
        let memory = before.zip(after).map(|(before, after)| {
            (after.rss_bytes as f64 - before.rss_bytes as f64) / plan.connections as f64
        });
        let exchanged = compressed.map(|deflate| deflate.bytes_received / plan.connections as u64);
        let bits = match deflate.mode {
            DeflateMode::Window { bits } if deflate.enabled => Some(bits),
            _ => None,
        };
        Self {
            setting: throng_load::report::mode_name(deflate),
            window_bits: bits,
            windows_filled: bits.zip(exchanged).map(|(bits, bytes)| bytes >= 1 << bits),
            memory_bytes_per_connection: memory,
            server_cpu_us_per_message: own.as_ref().and_then(|echo| echo.server_cpu_us_per_message),
            relayed_cpu_us_per_message: relayed
                .and_then(echo)
                .and_then(|echo| echo.server_cpu_us_per_message),
            ratio: compressed.and_then(|deflate| deflate.ratio_received),
            messages_per_s: own.as_ref().map_or(0.0, |echo| echo.messages_per_s),
            latency: own.and_then(|echo| echo.latency),
            machine_busy_share: report.machine_busy_share,
            errors: report.errors.total() + relayed.map_or(0, |report| report.errors.total()),
            verdict: report.verdict.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_settings_make_plans() {
        let plan = CompressionPlan::default();
        assert_eq!(plan.settings.len(), 9);
        plan.check().unwrap();
        let made = plan.plan(&plan.settings[3], "127.0.0.1:9", COMPOSE, 7).unwrap();
        assert_eq!(
            (made.resource(), made.common.connections, &made.common.server_pids[..]),
            ("/compose", 1000, &[7][..])
        );
        assert_eq!(made.deflate.mode, DeflateMode::Window { bits: 10 });
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let fine = CompressionPlan::default;
        let window = |bits| Deflate::default().enabled(true).mode(DeflateMode::Window { bits });
        for (plan, words) in [
            (CompressionPlan { settings: Vec::new(), ..fine() }, "--settings"),
            (CompressionPlan { settings: vec![window(8)], ..fine() }, "9 to 15"),
            (CompressionPlan { size: 10, ..fine() }, "--size is 10"),
            (CompressionPlan { connections: 0, ..fine() }, "--connections"),
            (CompressionPlan { duration: Duration::ZERO, ..fine() }, "--duration"),
        ] {
            let error = plan.check().unwrap_err();
            assert!(
                error.to_string().contains(words) && error.exit_code() == 2,
                "{words}: {error}"
            );
        }
    }
}
