//! `throng demo --attack`: the effects of attacks on a server's other clients, and the cost to the
//! server.
//!
//! Each attack has a separate server in a separate process, so that its memory is known.

mod attacks;
mod neighbours;

use std::fmt;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use throng::prelude::*;
use throng_config::Sources;
use throng_load::sampler::Processes;
use throng_load::units::{grouped, show_bytes};

use self::attacks::{ATTACKS, Attack, Context, NONE};
use self::neighbours::Totals;
use crate::failure::Failure;
use crate::serve::{Settings, TABLE, site};
use crate::{serve, terminal};

/// The settings of the attacked server that differ from the defaults: few enough places, and little
/// enough memory for bodies, that an attacker with one process can use them up.
const SETTINGS: [(&str, &str); 4] = [
    ("listen", "127.0.0.1:0"),
    ("max_connections", "1000"),
    ("max_body_memory", "64MiB"),
    ("deflate.enabled", "true"),
];

/// The descriptors that the attackers and the other clients need.
pub(crate) const DESCRIPTORS: usize = 2000;

/// The time in which the server's memory may fall after an attack.
const SETTLE: Duration = Duration::from_secs(5);
/// The interval at which its memory is read.
const SAMPLE: Duration = Duration::from_millis(20);

/// Serves as the attacked server, until it is ended.
pub(crate) fn serve_attacked() -> Result<ExitCode, Failure> {
    let settings = settings()?;
    let app = site::app(&settings, None).post("/body", |request| {
        Response::text(request.body().len().to_string()).with_status(Status::OK)
    });
    let bound = site::listen(site::configured(app, &settings), &settings)?;
    serve::until_stopped(bound, settings.drain)
}

/// Returns the shards of the attacked server. One CPU is left for its clients, which usually run on
/// other machines: their delays are then due to the server, not to the scheduler.
fn shards() -> usize {
    thread::available_parallelism().map_or(1, |cpus| cpus.get() - 1).max(1)
}

fn settings() -> Result<Settings, Failure> {
    let mut sources = Sources::new(&TABLE);
    for (key, value) in SETTINGS {
        sources.default_to(key, value, "--attack");
    }
    sources.default_to("shards", &shards().to_string(), "--attack");
    Ok(Settings::from_draft(sources.finish())?)
}

/// Runs all attacks, each for `duration`, and prints a row for each.
pub(crate) fn run(duration: Duration, json: bool) -> Result<ExitCode, Failure> {
    if !json {
        let settings = SETTINGS.map(|(key, value)| format!("{key}={value}")).join(" ");
        let shards = shards();
        terminal::line(format_args!(
            "the attacked server: {settings} shards={shards}; all else by default"
        ));
        terminal::line(
            "others: 8 sessions that send every 10 ms, and three new connections every 50 ms",
        );
        terminal::line(Row::HEAD);
    }
    let mut rows = Vec::new();
    for attack in ATTACKS {
        let row = measure(attack, duration).map_err(Failure::runtime)?;
        if !json {
            terminal::line(&row);
            if let Some(error) = &row.first_error {
                terminal::error_line(format_args!(
                    "{}: the first error was of {error}",
                    row.attack
                ));
            }
        }
        rows.push(row);
    }
    if json {
        let text = serde_json::to_string_pretty(&rows).map_err(Failure::runtime)?;
        terminal::line(text);
    }
    Ok(ExitCode::SUCCESS)
}

/// The attacked server, which ends when this is dropped.
struct Attacked {
    process: Child,
    address: SocketAddr,
}

impl Attacked {
    fn start() -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut process = Command::new(program)
            .args(["demo", "--attacked"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("cannot start the attacked server: {error}"))?;
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        let address = line.split(' ').find_map(|word| word.strip_prefix("http://"));
        match address.and_then(|address| address.parse().ok()) {
            Some(address) => Ok(Self { process, address }),
            None => {
                let _ = process.kill();
                let _ = process.wait();
                Err(format!("the attacked server did not start: {line:?}"))
            }
        }
    }

    /// Returns its resident memory in bytes; 0 if the system does not report it.
    fn resident(&self) -> u64 {
        Processes::new(vec![self.process.id()]).resident().unwrap_or(0)
    }

    /// Returns the maximum resident memory while the condition holds.
    fn peak_while(&self, condition: impl Fn() -> bool) -> u64 {
        let mut peak = 0;
        while condition() {
            thread::sleep(SAMPLE);
            peak = peak.max(self.resident());
        }
        peak
    }

    /// Waits until the resident memory is near the value `before`, and returns it.
    fn settled(&self, before: u64) -> u64 {
        let ended = Instant::now();
        let mut after = self.resident();
        while after > before + before / 2 && ended.elapsed() < SETTLE {
            thread::sleep(SAMPLE);
            after = self.resident();
        }
        after
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Resident memory of the attacked server, in bytes.
#[derive(Clone, Copy)]
struct Memory {
    before: u64,
    peak: u64,
    after: u64,
}

/// The outcome of an attack.
#[derive(Debug, Serialize)]
struct Row {
    attack: &'static str,
    /// Echoes that the other clients received.
    echoes: usize,
    p50_us: u64,
    p99_us: u64,
    longest_us: u64,
    /// New connections of the other clients that were served.
    served: u64,
    refused: u64,
    /// Sessions of the other clients that the server ended.
    disconnected: u64,
    first_error: Option<String>,
    memory_before: u64,
    memory_peak: u64,
    memory_after: u64,
    /// Cost to the attacker: connections, and bytes sent.
    attacker_connections: u64,
    attacker_bytes: u64,
}

/// Lowers the priority of this thread, and of threads that it starts: attackers usually run on
/// other machines, and here they would mostly take the CPU from the other clients.
fn yield_to_others() {
    // Linux gives each thread its own priority. If this is refused, the figures look worse than
    // they are.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::nice(19);
}

fn measure(attack: &Attack, duration: Duration) -> Result<Row, String> {
    let server = Attacked::start()?;
    let totals = Totals::default();
    let (counts, stop) = (AtomicBool::new(false), AtomicBool::new(false));
    let stop_attack = AtomicBool::new(false);
    let is_none = attack.name == NONE;
    let context = Context {
        address: server.address,
        stop: &stop_attack,
        connections: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
    };
    let memory = thread::scope(|scope| {
        let started = neighbours::start(scope, server.address, (&counts, &stop), &totals);
        if let Err(error) = started {
            stop.store(true, Relaxed);
            return Err(format!("the attacked server did not answer: {error}"));
        }
        let before = server.resident();
        let attacker = scope.spawn(|| {
            yield_to_others();
            (attack.run)(&context);
        });
        counts.store(true, Relaxed);
        // On a busy machine an attack may take longer than that to begin.
        let has_begun = || is_none || context.connections.load(Relaxed) > 0;
        let begun = Instant::now();
        let peak = server.peak_while(|| {
            begun.elapsed() < duration || !totals.has_some_of_each() || !has_begun()
        });
        counts.store(false, Relaxed);
        stop_attack.store(true, Relaxed);
        let _ = attacker.join();
        let peak = peak.max(before).max(server.resident());
        let after = server.settled(before);
        stop.store(true, Relaxed);
        Ok(Memory { before, peak, after })
    })?;
    Ok(Row::of(attack, &totals, memory, &context))
}

impl Row {
    fn of(attack: &Attack, totals: &Totals, memory: Memory, context: &Context<'_>) -> Self {
        let latencies = totals.latencies();
        let part = |percent: usize| {
            let last = latencies.len().saturating_sub(1);
            latencies.get(last * percent / 100).copied().unwrap_or(0)
        };
        Self {
            attack: attack.name,
            echoes: latencies.len(),
            p50_us: part(50),
            p99_us: part(99),
            longest_us: part(100),
            served: totals.arrivals.load(Relaxed),
            refused: totals.refused.load(Relaxed),
            disconnected: totals.disconnected.load(Relaxed),
            first_error: totals.first_error(),
            memory_before: memory.before,
            memory_peak: memory.peak,
            memory_after: memory.after,
            attacker_connections: context.connections.load(Relaxed),
            attacker_bytes: context.bytes.load(Relaxed),
        }
    }

    /// The table's first two lines.
    const HEAD: &str = "\
| attack | others: echoes | p50, p99, longest ms | new: served | refused | disconnected | \
memory before, peak, after | attacker: connections | sent |
|---|---|---|---|---|---|---|---|---|";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |micros: u64| format!("{:.1}", micros as f64 / 1000.0);
        let bytes = |bytes: u64| show_bytes(i64::try_from(bytes).unwrap_or(i64::MAX));
        write!(
            f,
            "| {} | {} | {}, {}, {} | {} | {} | {} | {}, {}, {} | {} | {} |",
            self.attack,
            grouped(self.echoes as u64),
            millis(self.p50_us),
            millis(self.p99_us),
            millis(self.longest_us),
            grouped(self.served),
            grouped(self.refused),
            grouped(self.disconnected),
            bytes(self.memory_before),
            bytes(self.memory_peak),
            bytes(self.memory_after),
            grouped(self.attacker_connections),
            bytes(self.attacker_bytes),
        )
    }
}
