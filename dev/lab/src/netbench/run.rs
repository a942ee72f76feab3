//! The matrix, case by case.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::check::{check_blank, check_work};
use super::document::Document;
use super::process::Process;
use super::report::{CaseReport, Report};
use super::{Mode, Plan};
use throng_cli::http_client::exchange;
use throng_load::sampler::{Processes, listening_pids};
use throng_load::units::show_duration;
use throng_load::{Error, Progress, descriptors, http};

/// Between two looks whether a server listens.
const POLL: Duration = Duration::from_millis(10);
/// Time that a port has to become free after its server has ended.
const PORT_FREED: Duration = Duration::from_secs(3);

/// Where a run is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CaseProgress<'a> {
    /// From 1.
    pub case: usize,
    /// Cases in all.
    pub cases: usize,
    /// Connections of this case.
    pub connections: usize,
    /// Mode of this case.
    pub mode: Mode,
    /// Progress of the load; `None` while the server is started and its answers are checked.
    pub load: Option<&'a Progress>,
}

/// Runs the whole matrix. Blocks; `watch` is called some ten times a second on this thread.
///
/// A fault of a server fails its case, not the run. When `stop` becomes true the run ends
/// early with the cases until then.
///
/// # Errors
/// A plan that makes no sense; something else listens on the port; too few descriptors; or
/// [`Error::Interrupted`] if no case was finished.
pub(crate) fn run(
    plan: &Plan,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&CaseProgress<'_>),
) -> Result<Report, Error> {
    plan.check()?;
    if answers(plan.address) {
        return Err(Error::Child(taken(plan.address)));
    }
    // Before the server starts, which inherits the limit: its connections are as many.
    descriptors::make_room(plan.connections.iter().copied().max().unwrap_or(0))?;
    let all: Vec<_> = plan.cases().collect();
    let mut cases = Vec::new();
    for (index, &(connections, mode)) in all.iter().enumerate() {
        let mut show = |load: Option<&Progress>| {
            let (case, cases) = (index + 1, all.len());
            watch(&CaseProgress { case, cases, connections, mode, load });
        };
        match run_case(plan, connections, mode, stop, &mut show) {
            Ok(load) => cases.push(CaseReport::measured(connections, mode, load)),
            Err(Failed::Interrupted) => {}
            Err(Failed::Because(reason, load)) => {
                cases.push(CaseReport::failed(connections, mode, reason, load.map(|load| *load)));
            }
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
    }
    if cases.is_empty() { Err(Error::Interrupted) } else { Ok(Report::of(plan, all.len(), cases)) }
}

/// Why a case has no figures, or none that count.
enum Failed {
    /// The caller stopped the run.
    Interrupted,
    /// In words, with what was measured nevertheless.
    Because(String, Option<Box<http::Report>>),
}

impl From<String> for Failed {
    fn from(reason: String) -> Self {
        Self::Because(reason, None)
    }
}

fn run_case(
    plan: &Plan,
    connections: usize,
    mode: Mode,
    stop: &AtomicBool,
    show: &mut dyn FnMut(Option<&Progress>),
) -> Result<http::Report, Failed> {
    show(None);
    let mut load = plan.load(connections, mode).map_err(|error| error.to_string())?;
    wait_until_free(plan.address)?;
    let mut server = Process::start(&plan.command.filled(mode, plan.address.port()))?;
    wait_until_listening(&mut server, plan, stop)?;
    check(&load, plan, mode).map_err(|reason| with_end(&mut server, reason))?;
    load.common.server_pids = server.pids();
    let report = match http::run(&load, stop, &mut |progress| show(Some(progress))) {
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
    if report.result.requests == 0 && !stop.load(Ordering::Relaxed) {
        return Err(because("not one request was answered in the measured time".to_owned()));
    }
    // What it answered under load was counted, not read: it must not have lost its way there.
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
fn check(load: &http::Plan, plan: &Plan, mode: Mode) -> Result<(), String> {
    let response = |body: Vec<u8>| {
        let plan_of_one = http::Plan { body, ..load.clone() };
        let request = http::encode(&plan_of_one).map_err(|error| error.to_string())?;
        exchange(plan.address, &request, plan.timeout)
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
    plan: &Plan,
    stop: &AtomicBool,
) -> Result<(), Failed> {
    let until = Instant::now() + plan.start_timeout;
    loop {
        let is_answered = answers(plan.address);
        if let Some(how) = server.ended() {
            let hint = if is_answered {
                format!(
                    ", and {}; start the server so that it stays in the foreground",
                    taken(plan.address)
                )
            } else {
                String::new()
            };
            return Err(format!("the server ended at once: {how}{hint}").into());
        }
        if is_answered {
            break;
        }
        if stop.load(Ordering::Relaxed) {
            return Err(Failed::Interrupted);
        }
        if Instant::now() > until {
            return Err(format!(
                "nothing listens on {} {} after the start; does the server use another port \
                 (--port) or address (--address)?",
                plan.address,
                show_duration(plan.start_timeout)
            )
            .into());
        }
        thread::sleep(POLL);
    }
    let (listening, own) = (listening_pids(plan.address), server.pids());
    if !listening.is_empty() && !listening.iter().any(|pid| own.contains(pid)) {
        return Err(format!("{}, which this command did not start", taken(plan.address)).into());
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

fn answers(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

fn taken(address: SocketAddr) -> String {
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
