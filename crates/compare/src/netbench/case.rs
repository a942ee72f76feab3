//! One case: checks a server, puts it under load, and checks it again.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use throng_http::blocking_client::exchange;
use throng_load::sampler::{Processes, listening_pids};
use throng_load::units::show_duration;
use throng_load::{Error, http};

use super::check::{check_blank, check_work};
use super::document::Document;
use super::flags::NetBench;
use crate::bench::Bench;
use crate::blank_work::Mode;
use crate::process::Process;

/// Between two looks whether a server listens.
const POLL: Duration = Duration::from_millis(10);
/// Time that a port has to become free after its server has ended.
const PORT_FREED: Duration = Duration::from_secs(3);

/// Why a case has no figures, or none that count.
pub(super) enum Failed {
    /// The caller stopped the run.
    Interrupted,
    /// In words, with what was measured nevertheless.
    Because(String, Option<Box<http::HttpReport>>),
}

impl From<String> for Failed {
    fn from(reason: String) -> Self {
        Self::Because(reason, None)
    }
}

pub(super) fn run_case(
    plan: &NetBench,
    connections: usize,
    mode: Mode,
    bench: &mut Bench<'_>,
) -> Result<http::HttpReport, Failed> {
    let mut load = plan.load(connections, mode).map_err(|error| error.to_string())?;
    let address = plan.listens_on();
    wait_until_free(address)?;
    let command = plan.server.as_ref().ok_or_else(|| "there is no server".to_owned())?;
    let mut server = Process::start(&command.filled(mode, address.port()))?;
    wait_until_listening(&mut server, plan, bench)?;
    check(&load, plan, mode).map_err(|reason| with_end(&mut server, reason))?;
    load.common.server_pids = server.pids();
    let report = match http::run(&load, bench.stop, bench.watch) {
        Ok(report) => report,
        Err(Error::Interrupted) => return Err(Failed::Interrupted),
        Err(error) => return Err(with_end(&mut server, error.to_string()).into()),
    };
    let because = |reason| Failed::Because(reason, Some(Box::new(report.clone())));
    if let Some(how) = server.ended() {
        return Err(because(format!("the server ended under the load: {how}")));
    }
    if let Some(first) = &report.errors.first {
        let total = report.errors.total();
        return Err(because(format!(
            "{total} error{}: {first}",
            if total == 1 { "" } else { "s" }
        )));
    }
    if report.result.requests == 0 && !bench.is_stopped() {
        return Err(because("not one request was answered in the measured time".to_owned()));
    }
    // Answers under load are counted, not read, so the server must prove that it still answers
    // correctly.
    check(&load, plan, mode).map_err(|reason| because(format!("after the load: {reason}")))?;
    Ok(report)
}

/// Returns a failure, with the end of the server if that is its cause.
fn with_end(server: &mut Process, reason: String) -> String {
    // A lost connection may be noticed before the end of its server.
    thread::sleep(POLL);
    match server.ended() {
        Some(how) => format!("{reason} (the server ended: {how})"),
        None => reason,
    }
}

/// Asks once, or in work mode about two documents, and checks the answers in full.
fn check(load: &http::HttpPlan, plan: &NetBench, mode: Mode) -> Result<(), String> {
    let response = |body: Vec<u8>| {
        let plan_of_one = http::HttpPlan { body, ..load.clone() };
        let request = http::encode(&plan_of_one).map_err(|error| error.to_string())?;
        exchange(plan.listens_on(), &request, plan.timeout)
    };
    match mode {
        Mode::Blank => check_blank(&response(Vec::new())?),
        Mode::Work => [Document::of_the_suite(), Document::random()]
            .iter()
            .try_for_each(|document| check_work(&response(document.request.clone())?, document)),
    }
}

fn wait_until_listening(
    server: &mut Process,
    plan: &NetBench,
    bench: &Bench<'_>,
) -> Result<(), Failed> {
    let address = plan.listens_on();
    let until = Instant::now() + plan.start_timeout;
    loop {
        let is_answered = answers(address);
        if let Some(how) = server.ended() {
            let hint = if is_answered {
                format!(
                    ", and {}; start the server so that it stays in the foreground",
                    taken(address)
                )
            } else {
                String::new()
            };
            return Err(format!("the server ended at once: {how}{hint}").into());
        }
        if is_answered {
            break;
        }
        if bench.is_stopped() {
            return Err(Failed::Interrupted);
        }
        if Instant::now() > until {
            return Err(format!(
                "nothing listens on {} {} after the start; does the server use another port \
                 (--port) or address (--address)?",
                address,
                show_duration(plan.start_timeout)
            )
            .into());
        }
        thread::sleep(POLL);
    }
    let (listening, own) = (listening_pids(address), server.pids());
    if !listening.is_empty() && !listening.iter().any(|pid| own.contains(pid)) {
        return Err(format!("{}, which this command did not start", taken(address)).into());
    }
    Ok(())
}

fn wait_until_free(address: SocketAddr) -> Result<(), String> {
    let until = Instant::now() + PORT_FREED;
    while answers(address) {
        if Instant::now() > until {
            return Err(taken(address));
        }
        thread::sleep(POLL);
    }
    Ok(())
}

pub(crate) fn answers(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

pub(super) fn taken(address: SocketAddr) -> String {
    let pids = listening_pids(address);
    let who: Vec<String> = pids
        .iter()
        .map(|&pid| match Processes::new(vec![pid]).name() {
            Some(name) => format!("{pid}, {name}"),
            None => pid.to_string(),
        })
        .collect();
    match who.is_empty() {
        true => format!("something else listens on {address}; end it, or give another --port"),
        false => format!(
            "something else listens on {address} (process {}); end it, or give another --port",
            who.join("; ")
        ),
    }
}
