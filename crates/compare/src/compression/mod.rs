//! Costs and savings of compression at a server for each setting: memory per connection, CPU per
//! message, bytes per message.
//!
//! Each setting has a new server process with its own memory and CPU time. The server's `/compose`
//! answers every message with a message of its own with the same text. Its `/echo` sends the
//! received message back, which a server may do without compressing it again.

mod report;

use std::fmt;
use std::time::Duration;

use throng_config::units::{parse_duration, parse_size};
use throng_load::deflate::parse;
use throng_load::report::{Measured as Results, mode_name};
use throng_load::sampler::{Memory, Processes};
use throng_load::{Common, Content, Deflate, DeflateMode, Error, Mode, Pace, Plan, Report, Target};

pub use report::{CompressionReport, CompressionRow};

use crate::bench::{Bench, FIRST_CONNECTIONS};
use crate::comparison::{Comparison, Measured};
use crate::parts::{OwnServer, ServerPart};

/// The examples and the meaning of the columns, for help.
pub const EXAMPLES: &str = "Examples:
  lab compression
  lab compression --size 1KiB --html deflate.html
  lab compression --settings off,no-context,window:10 --connections 15000 --csv

What the table says:
  memory/conn    what the server's resident memory grew by for each connection, after use
  CPU/message    server CPU for one message that came and one that was composed and sent
  sent on        the same when the server sends on what came (no-context: not compressed again)
  size           of a message from the server, as part of its plain size";

/// The path where a server composes its answers, and the path where it sends messages back.
const COMPOSE: &str = "/compose";
const ECHO: &str = "/echo";
/// The time for which connections stay open before memory is measured.
const FIRST: Duration = Duration::from_millis(200);

/// A comparison of settings of compression.
#[derive(Clone, Debug, clap::Args)]
pub struct Compression {
    /// Settings to compare: off, no-context, window:BITS (9 to 15) [default: all of them]
    #[arg(long, value_name = "MODE", value_delimiter = ',', value_parser = parse)]
    pub settings: Vec<Deflate>,
    /// Connections
    #[arg(long, short, value_name = "N", default_value_t = 1000)]
    pub connections: usize,
    /// Bytes of a JSON document, such as 136 or 4KiB
    #[arg(long, short, value_name = "SIZE", default_value = "256", value_parser = parse_size)]
    pub size: usize,
    /// Seed of the documents; equal seeds make equal documents
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Time measured of each setting, such as 10s or 1.5s
    #[arg(long, short, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Time run before and not counted
    #[arg(long, short, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// Give up when set-up makes no progress for so long
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    pub setup_timeout: Duration,
}

/// A setting of compression.
#[derive(Clone, Copy, Debug)]
pub struct Setting(Deflate);

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&mode_name(&self.0))
    }
}

impl Compression {
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
            // The client uses the server's setting: if it kept no context, the cost of the server's
            // context would not show.
            deflate: *deflate,
            ..Plan::new(common, Mode::Echo { pace, duration, warmup })
        })
    }
}

impl Comparison for Compression {
    type Cell = Setting;
    type Row = CompressionRow;
    type Findings = CompressionReport;

    const NAME: &'static str = "compression";

    fn prepare(&mut self) -> Result<(), Error> {
        if self.settings.is_empty() {
            let windows = (9..=15).map(|bits| DeflateMode::Window { bits });
            self.settings.push(Deflate::default());
            self.settings
                .extend([DeflateMode::Shared].into_iter().chain(windows).map(Deflate::new));
        }
        // A placeholder address, since only the other settings are checked.
        let check = |deflate| self.plan(deflate, "127.0.0.1:1", ECHO, 0)?.check();
        self.settings.iter().try_for_each(check)
    }

    fn cells(&self) -> Vec<Setting> {
        self.settings.iter().copied().map(Setting).collect()
    }

    fn estimate(&self, setting: &Setting) -> Duration {
        let runs = if setting.0.mode == DeflateMode::Shared && setting.0.enabled { 2 } else { 1 };
        let connecting = Duration::from_micros(150 * self.connections as u64);
        2 * FIRST + (connecting + self.warmup + self.duration) * runs
    }

    fn measure(&self, setting: &Setting, bench: &mut Bench<'_>) -> Result<CompressionRow, Error> {
        let deflate = &setting.0;
        let server = ServerPart { deflate: setting.to_string(), ..ServerPart::default() };
        let server = OwnServer::start(bench.launch, server)?;
        let plan_for = |path| self.plan(deflate, &server.address, path, server.pid());
        let composed = plan_for(COMPOSE)?;
        let pace = Pace::Closed { pipeline: 1 };
        let mode = Mode::Echo { pace, duration: FIRST, warmup: FIRST };
        let mut first = Plan { mode, ..composed.clone() };
        first.common.connections = FIRST_CONNECTIONS.min(self.connections);
        bench.load(&first)?;
        let before = Processes::new(vec![server.pid()]).memory();
        let report = bench.load(&composed)?;
        // Only without a kept context does the server send a message back as it came; with a
        // context this would measure the same as `/compose`.
        let relayed = match deflate.mode {
            DeflateMode::Shared if deflate.enabled => Some(bench.load(&plan_for(ECHO)?)?),
            _ => None,
        };
        Ok(CompressionRow::new(self, deflate, before, &report, relayed.as_ref()))
    }

    fn report(self, measured: Measured<CompressionRow>) -> CompressionReport {
        CompressionReport::new(&self, measured.rows)
    }
}

impl CompressionRow {
    fn new(
        plan: &Compression,
        deflate: &Deflate,
        before: Option<Memory>,
        report: &Report,
        relayed: Option<&Report>,
    ) -> Self {
        let echo = |report: &Report| match &report.result {
            Results::Echo(echo) => Some(echo.clone()),
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
            setting: mode_name(deflate),
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
    use crate::comparison::{assert_refused, checked};

    #[test]
    fn the_usual_settings_make_plans() {
        let usual: Compression = checked("").unwrap();
        assert_eq!((usual.settings.len(), usual.connections, usual.size), (9, 1000, 256));
        let made = usual.plan(&usual.settings[3], "127.0.0.1:9", COMPOSE, 7).unwrap();
        assert_eq!(
            (made.resource(), made.common.connections, &made.common.server_pids[..]),
            ("/compose", 1000, &[7][..])
        );
        assert_eq!(made.deflate.mode, DeflateMode::Window { bits: 10 });
        let line = "--settings off,shared,window:12 -c 50 -s 1KiB --seed 5 -d 1s -w 0s";
        let asked: Compression = checked(line).unwrap();
        let words: Vec<String> = asked.cells().iter().map(Setting::to_string).collect();
        assert_eq!(words, ["off", "no-context", "window:12"]);
        assert_eq!((asked.connections, asked.size, asked.seed), (50, 1024, 5));
    }

    #[test]
    fn mistakes_teach() {
        assert_refused::<Compression>(&[
            ("--settings window", "window:BITS"),
            ("--settings window:8", "9 to 15"),
            ("--settings window:x", "9 to 15"),
            ("--size 10", "--size is 10"),
            ("--connections 0", "--connections"),
            ("--duration 0s", "--duration"),
        ]);
    }
}
