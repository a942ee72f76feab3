//! Echoes of 100 B from many clients on `throng serve`, at the article's rate or the highest lower
//! rate that this machine can keep.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use throng_engine::workers::usable_cpus;
use throng_http::blocking_client::exchange;
use throng_load::page::{Axis, Plot};
use throng_load::record::Summary;
use throng_load::report::Measured;
use throng_load::report::model::Unit;
use throng_load::units::{grouped, show_bytes};
use throng_load::{
    Common, Error, Limit, Mode, Pace, Plan, Progress, Report, RunStage, Target, descriptors,
};

use super::row::{Better, PublishedRow};
use super::{Run, Section};
use crate::bench::Bench;
use crate::figures::{ECHO, ECHO_RATE, Echo, SCALING};
use crate::netbench::answers;
use crate::peers::free_address;
use crate::pool::PER_SOURCE;
use crate::process::Process;
use crate::table::with_lines;

/// Messages per second of each client: the article's rate, then the lower rates to try.
const RATES: [f64; 7] = [ECHO_RATE, 5.0, 2.0, 1.0, 0.5, 0.2, 0.1];
/// After a run whose rate was not kept, the next run tries at most this share of the answers per
/// second.
const HELD: f64 = 0.7;
/// Maximum runs for one number of clients.
const MAX_TRIES: usize = 4;
/// Kernel memory of both ends of a connection, with some user memory.
const CONNECTION_BYTES: u64 = 12_000;
/// Maximum wait until the server listens.
const START: Duration = Duration::from_secs(10);
/// The server in the article.
const BY: &str = "sgcWebSockets";

pub(super) fn measure(run: &mut Run<'_>, section: &mut Section) -> Result<(), Error> {
    section.title = "Echoes of 100 B".to_owned();
    section.articles = vec![SCALING];
    section.notes = vec![
        "Server: `throng serve` with an event loop for each CPU; server and generator share this \
         machine. Where the article's rate is more than both can do here, a lower rate is measured \
         that is not: then only memory compares, as the same number of clients. CPU: share of the \
         whole machine. Latency and lateness count from the planned time; lateness is the \
         generator's own. Loop lag: how long a turn of an event loop took at most, 99 in 100."
            .to_owned(),
    ];
    let quick = [Echo { clients: 100, ..ECHO[0] }];
    let sizes: &[Echo] = run.choose(&ECHO, &quick);
    // Messages per second that a smaller size achieved: a larger size does not try much more.
    let mut possible = f64::INFINITY;
    for (done, stated) in sizes.iter().enumerate() {
        let clients = stated.clients;
        if let Some(why) = shortage(clients) {
            section.rows.extend(missing(stated, &why));
            continue;
        }
        let tries = if run.quick { 1 } else { MAX_TRIES };
        let mut rate = next_rate(clients, possible * 1.5, f64::INFINITY);
        let mut found: Option<(f64, EchoFigures)> = None;
        for _ in 0..tries {
            let name = format!("{} clients, {rate}/s each", grouped(clients as u64));
            let (program, quick) = (run.program.display().to_string(), run.quick);
            let each = Duration::from_secs(if quick { 2 } else { 20 });
            let outcome = run.cell(&name, (done, sizes.len()), each, |bench| {
                one(&program, clients, rate, quick, bench)
            });
            let outcome = match outcome {
                Ok(outcome) => outcome,
                Err(error @ Error::Interrupted) => return Err(error),
                Err(error) => {
                    section.rows.extend(missing(stated, &error.to_string()));
                    section.failure = Some(format!("{name}: {error}"));
                    break;
                }
            };
            let (is_held, answered_per_s) = (outcome.limit.is_sound(), outcome.messages_per_s);
            found = Some((rate, outcome));
            let lower = next_rate(clients, answered_per_s * HELD, rate);
            if is_held || lower == rate {
                break;
            }
            rate = lower;
        }
        let Some((rate, outcome)) = found else { continue };
        if outcome.limit.is_sound() {
            possible = possible.min(rate * clients as f64);
        }
        let name = case(clients, rate);
        section.notes.push(format!("{name}: {}.", outcome.line));
        // The article has no figure for another number of clients.
        let stated = (!run.quick).then_some(stated);
        section.rows.extend(rows(&name, stated, rate, &outcome));
    }
    section.plots = plots(&section.rows);
    Ok(())
}

/// Returns the highest rate below `last` with at most `most_per_s` messages per second in total;
/// otherwise the lowest rate.
fn next_rate(clients: usize, most_per_s: f64, last: f64) -> f64 {
    let fits = |rate: &f64| *rate < last && rate * clients as f64 <= most_per_s;
    RATES.into_iter().find(fits).unwrap_or(RATES[RATES.len() - 1])
}

fn case(clients: usize, rate: f64) -> String {
    format!("{} clients x {rate}/s", grouped(clients as u64))
}

/// The figures of one run.
struct EchoFigures {
    limit: Limit,
    line: String,
    messages_per_s: f64,
    latency: Option<Summary>,
    lateness: Option<Summary>,
    /// The share of the machine's CPU time.
    cpu: Option<f64>,
    rss_bytes: Option<u64>,
    lag_s: Option<f64>,
}

fn rows(name: &str, stated: Option<&Echo>, rate: f64, of: &EchoFigures) -> Vec<PublishedRow> {
    let is_same_rate = rate == ECHO_RATE;
    let row = |figure, unit, published: fn(&Echo) -> f64, ours: Option<f64>| {
        let row = PublishedRow::new(name, figure, unit).ours(ours, of.limit);
        match stated {
            Some(stated) => row.published(published(stated), BY),
            None => row,
        }
    };
    let at_rate = |row: PublishedRow, better| match is_same_rate {
        true => row.compared(better),
        false => row,
    };
    let us = |figure: fn(&Summary) -> f64| of.latency.as_ref().map(figure);
    let own = |figure, unit, ours| PublishedRow::new(name, figure, unit).ours(ours, of.limit);
    vec![
        at_rate(
            row("messages/s", Unit::Number, |it| it.messages_per_s, Some(of.messages_per_s)),
            Better::More,
        ),
        at_rate(row("p50", Unit::Us, |it| it.p50_us, us(|it| it.p50_us)), Better::Less),
        at_rate(row("p99", Unit::Us, |it| it.p99_us, us(|it| it.p99_us)), Better::Less),
        own("lateness p99", Unit::Us, of.lateness.map(|it| it.p99_us)),
        own("loop lag p99", Unit::Us, of.lag_s.map(|s| s * 1e6)),
        row("CPU", Unit::Share, |it| it.cpu, of.cpu),
        row("memory (RSS)", Unit::Bytes, |it| it.rss_bytes, of.rss_bytes.map(|it| it as f64))
            .compared(Better::Less),
    ]
}

fn missing(stated: &Echo, why: &str) -> Vec<PublishedRow> {
    let name = case(stated.clients, ECHO_RATE);
    let row = |figure, unit, published| {
        PublishedRow::new(&name, figure, unit).published(published, BY).missing(why)
    };
    vec![
        row("messages/s", Unit::Number, stated.messages_per_s),
        row("p50", Unit::Us, stated.p50_us),
        row("p99", Unit::Us, stated.p99_us),
        row("CPU", Unit::Share, stated.cpu),
        row("memory (RSS)", Unit::Bytes, stated.rss_bytes),
    ]
}

/// Returns why this machine cannot hold this many clients.
fn shortage(clients: usize) -> Option<String> {
    if let Err(error) = descriptors::divide(clients, 1) {
        return Some(error.to_string());
    }
    let (needed, free) = (clients as u64 * CONNECTION_BYTES, free_memory()?);
    let show = |bytes: u64| show_bytes(bytes as i64);
    (needed > free)
        .then(|| format!("needs some {} of memory, {} are free", show(needed), show(free)))
}

/// Returns the kernel's estimate of available memory.
fn free_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Measures one run on a new server.
fn one(
    program: &str,
    clients: usize,
    rate: f64,
    quick: bool,
    bench: &mut Bench<'_>,
) -> Result<EchoFigures, Error> {
    let server = Serve::start(program, clients)?;
    let target = Target::parse(&format!("ws://{}/echo", server.address))?;
    let common = Common {
        connections: clients,
        sources: Some(clients.div_ceil(PER_SOURCE)),
        server_pids: server.process.pids(),
        ..Common::from(target)
    };
    let pace = Pace::Open { rate_per_s: rate };
    let ms = |usual, few| Duration::from_millis(if quick { few } else { usual });
    let mode = Mode::Echo { pace, duration: ms(10_000, 500), warmup: ms(2_000, 200) };
    let mut before = None;
    let mut watch = |progress: &Progress| {
        if before.is_none() && matches!(progress.stage, RunStage::Measuring { .. }) {
            before = lag_buckets(server.address);
        }
        (bench.watch)(progress);
    };
    let report = throng_load::run(&Plan::new(common, mode), bench.stop, &mut watch)?;
    let lag_s = before.zip(lag_buckets(server.address)).and_then(|(a, b)| p99(&a, &b));
    Ok(outcome(report, lag_s))
}

fn outcome(report: Report, lag_s: Option<f64>) -> EchoFigures {
    let server = report.server.as_ref();
    let cores = server.and_then(|server| server.cpu).map(|cpu| cpu.cores);
    let rss_bytes = server.and_then(|server| server.memory).map(|memory| memory.rss_bytes);
    let echo = match report.result {
        Measured::Echo(echo) => echo,
        _ => Default::default(),
    };
    EchoFigures {
        limit: report.verdict.limit,
        line: report.verdict.line,
        messages_per_s: echo.messages_per_s,
        latency: echo.latency,
        lateness: echo.open_loop.and_then(|open| open.lateness),
        cpu: cores.map(|cores| cores / usable_cpus() as f64),
        rss_bytes,
        lag_s,
    }
}

/// A `throng serve` process for a measurement, which ends when this is dropped.
pub(super) struct Serve {
    pub(super) process: Process,
    pub(super) address: SocketAddr,
}

impl Serve {
    /// Starts a server for this many clients, and waits until it listens.
    pub(super) fn start(program: &str, clients: usize) -> Result<Self, Error> {
        let cannot = |why: String| Error::Child(format!("cannot start `throng serve`: {why}"));
        let address = free_address().map_err(|error| cannot(error.to_string()))?;
        let (listen, most) = (address.to_string(), (clients + 100).to_string());
        let words = [
            program,
            "serve",
            "--listen",
            &listen,
            "--max-connections",
            &most,
            "--set",
            "public_metrics=true",
            // All clients connect from one address at the same time.
            "--set",
            "max_pending_handshakes=0",
        ];
        let process = Process::start(&words.map(str::to_owned)).map_err(cannot)?;
        let mut server = Self { process, address };
        let begun = Instant::now();
        while !answers(address) {
            if let Some(how) = server.process.ended() {
                return Err(cannot(how));
            }
            if begun.elapsed() > START {
                return Err(cannot("it does not listen".to_owned()));
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(server)
    }
}

/// The histogram of loop lag: upper bounds in seconds, each with the number of turns up to it.
type Buckets = Vec<(f64, u64)>;

fn lag_buckets(address: SocketAddr) -> Option<Buckets> {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    let response = exchange(address, request.as_bytes(), Duration::from_secs(2)).ok()?;
    buckets(str::from_utf8(&response.body).ok()?)
}

fn buckets(metrics: &str) -> Option<Buckets> {
    let all: Buckets = metrics
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix("throng_loop_lag_seconds_bucket{le=\"")?;
            let (bound, count) = rest.split_once("\"} ")?;
            Some((bound.parse().ok()?, count.trim().parse::<f64>().ok()? as u64))
        })
        .collect();
    (!all.is_empty()).then_some(all)
}

/// Returns the smallest bound that 99 % of the turns between two readings kept.
fn p99(before: &Buckets, after: &Buckets) -> Option<f64> {
    let between =
        |at: usize| Some((after.get(at)?.0, after[at].1 - before.get(at)?.1.min(after[at].1)));
    let (_, all) = between(after.len().checked_sub(1)?)?;
    let most = (0..after.len()).filter_map(between).find(|&(_, n)| n * 100 >= all * 99)?;
    Some(most.0).filter(|bound| all > 0 && bound.is_finite())
}

fn plots(rows: &[PublishedRow]) -> Vec<Plot> {
    let clients = |row: &PublishedRow| {
        let digits: String = row.case.split(' ').next()?.replace(',', "");
        digits.parse::<f64>().ok()
    };
    [("p99", "p99 in us"), ("memory (RSS)", "memory in bytes")]
        .into_iter()
        .map(|(figure, label)| {
            let of = |value: fn(&PublishedRow) -> Option<f64>| -> Vec<(f64, f64)> {
                let same = rows.iter().filter(|row| row.figure == figure);
                same.filter_map(|row| Some((clients(row)?, value(row)?))).collect()
            };
            let plot = Plot::new(
                &format!("Echo: {figure} by clients"),
                Axis::log("clients"),
                Axis::log(label),
            );
            with_lines(plot, [("published", of(|row| row.published)), ("ours", of(|row| row.ours))])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "# TYPE throng_loop_lag_seconds histogram\n\
        throng_loop_lag_seconds_bucket{le=\"0.001\"} 90\n\
        throng_loop_lag_seconds_bucket{le=\"0.01\"} 100\n\
        throng_loop_lag_seconds_bucket{le=\"+Inf\"} 100\n\
        throng_loop_lag_seconds_sum 1\n";

    #[test]
    fn loop_lag_is_that_of_the_time_between_two_readings() {
        let after = buckets(METRICS).unwrap();
        assert_eq!(after.len(), 3);
        let none = vec![(0.001, 0), (0.01, 0), (f64::INFINITY, 0)];
        assert_eq!(p99(&none, &after), Some(0.01));
        let slow_before = vec![(0.001, 0), (0.01, 10), (f64::INFINITY, 10)];
        assert_eq!(p99(&slow_before, &after), Some(0.001));
        assert_eq!(p99(&after, &after), None, "no turn");
        assert_eq!(buckets("throng_other 1\n"), None);
    }

    #[test]
    fn a_rate_that_was_too_much_is_followed_by_one_that_leaves_room() {
        assert_eq!(next_rate(10_000, f64::INFINITY, f64::INFINITY), ECHO_RATE);
        assert_eq!(next_rate(10_000, 70_000.0, ECHO_RATE), 5.0);
        assert_eq!(next_rate(50_000, 15_000.0, 1.0), 0.2);
        assert_eq!(next_rate(250_000, 1.0, 0.1), 0.1, "there is no lower one");
    }

    #[test]
    fn another_rate_compares_memory_only() {
        let outcome = EchoFigures {
            limit: Limit::Neither,
            line: String::new(),
            messages_per_s: 20_000.0,
            latency: None,
            lateness: None,
            cpu: Some(0.5),
            rss_bytes: Some(9_000_000),
            lag_s: None,
        };
        let ratios = |rate| -> Vec<(&str, f64)> {
            let rows = rows("x", Some(&ECHO[0]), rate, &outcome);
            rows.iter().filter_map(|row| Some((row.figure, row.ratio?))).collect()
        };
        assert_eq!(ratios(2.0), [("memory (RSS)", 100.0)]);
        assert_eq!(ratios(10.0), [("messages/s", 0.2), ("memory (RSS)", 100.0)]);
    }
}
