//! A run from beginning to end: threads up, phases by the clock, samples at their edges, threads down, report.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use throng_io::Instant;

use super::client::Client;
use super::pool::Start;
use super::request::Wire;
use super::tally::Tally;
use super::{Pace, Plan, Report};
use crate::client::{Shared, Timeline, clock, open_driver, tables_of};
use crate::clock::Clock;
use crate::run::{FinishOnPanic, LEAD, Measured, NO_ANSWER, Steering, measure, watched};
use crate::sampler::Processes;
use crate::tls::TlsClient;
use crate::{Error, Progress, Sources, Stage, descriptors, sources};

/// Longest wait for the answers that are still out when an open loop has ended.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs a plan to its end and reports. Blocks; `watch` is called some ten times a second on this thread.
///
/// When `stop` becomes true the run ends early: with a report on what was measured until then, or with
/// [`Error::Interrupted`] if that was nothing.
///
/// # Errors
/// Whatever leaves nothing to report, each with its remedy; see [`Error`]. What goes wrong during the measurement is
/// counted in the report instead.
pub fn run(
    plan: &Plan,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    plan.check()?;
    let descriptors::Division { threads, own_tables } =
        descriptors::divide(plan.connections, plan.threads)?;
    let plan = &Plan { threads, ..plan.clone() };
    let peer = plan.target.resolve()?;
    let context = RunContext {
        plan,
        own_tables,
        wire: Wire::of(plan)?,
        peer,
        tls: plan.tls.load(&plan.target)?,
        sources: Sources::plan(peer, plan.connections, sources::ephemeral_ports(), plan.sources)?,
        clock: clock()?,
        shared: Arc::new(Shared::new(plan.threads)),
    };
    let server = watched(&plan.server_pids, peer)?;
    let (shared, limit) = (Arc::clone(&context.shared), plan.setup_timeout);
    let steering = Steering::new(context.clock, &shared, server.as_ref(), limit, stop, watch);
    let (steered, tally) = context.with_threads(|| context.steer(steering))?;
    Ok(Report::of(plan, &context.sources, &context.wire, server.as_ref(), &steered, tally))
}

/// What all threads stand on.
struct RunContext<'a> {
    plan: &'a Plan,
    /// Each thread has a descriptor table of its own.
    own_tables: bool,
    wire: Wire,
    peer: SocketAddr,
    tls: Option<Arc<TlsClient>>,
    sources: Sources,
    clock: Clock,
    shared: Arc<Shared>,
}

/// What the steering thread saw.
pub(super) struct Steered {
    /// Time of the set-up; `None` without one.
    pub(super) took: Option<Duration>,
    /// The begin of a run of a number of requests, whose time is over with the last answer.
    pub(super) start: Option<Instant>,
    pub(super) measured: Measured,
}

impl Steered {
    /// The measured time: up to the last answer, if there is a number of requests.
    pub(super) fn seconds(&self, plan: &Plan, tally: &Tally) -> f64 {
        match self.start {
            None => self.measured.seconds(plan.duration),
            Some(start) => tally.last.since(start).as_secs_f64().max(1e-9),
        }
    }
}

impl RunContext<'_> {
    /// Waits through the phases of the run.
    fn steer(&self, mut steering: Steering<'_>) -> Result<Steered, Error> {
        let plan = self.plan;
        let took = match plan.keep_alive {
            true => Some(steering.ready(plan.connections)?),
            false => None,
        };
        let start = self.clock.now().after(LEAD);
        let warmup = plan.warmup + plan.rate_ramp;
        let from = start.after(warmup);
        let timeline = Timeline { start, from, to: from.after(plan.duration) };
        self.shared.begin(timeline);
        if let Some(number) = plan.number {
            let begin = steering.moment();
            let limit = NO_ANSWER.max(plan.timeout + Duration::from_secs(2));
            steering.count(number, limit, |shared| {
                let over = shared.sum(|lane| &lane.sent) + shared.sum(|lane| &lane.done);
                number.saturating_sub(over)
            });
            return Ok(Steered { took, start: Some(start), measured: steering.measured(begin) });
        }
        let measured = measure(&mut steering, timeline, warmup, plan.duration)?;
        if let Pace::Open { .. } = plan.pace {
            let shared = &self.shared;
            let waiting =
                || shared.sum(|lane| &lane.sent).saturating_sub(shared.sum(|lane| &lane.done));
            let limit = DRAIN.min(plan.timeout);
            steering.wait_for(limit, || waiting() == 0, || Stage::Draining { waiting: waiting() });
        }
        Ok(Steered { took, start: None, measured })
    }

    /// Starts a thread for each share of the connections, steers them, and adds up their figures.
    fn with_threads<R>(
        &self,
        steer: impl FnOnce() -> Result<R, Error>,
    ) -> Result<(R, Tally), Error> {
        let drivers = (0..self.plan.threads)
            .map(|thread| open_driver(self.plan.share(thread), 0, self.tls.as_ref()));
        let mut drivers = drivers.collect::<Result<Vec<_>, _>>()?;
        let tables = match self.own_tables {
            true => tables_of(&mut drivers).map(|tables| Some(Arc::new(tables))),
            false => Ok(None),
        };
        let tables = tables.map_err(|error| Error::io("divide the descriptors", error))?;
        thread::scope(|scope| {
            let (mut first, mut threads) = (0, Vec::new());
            for (thread, driver) in drivers.into_iter().enumerate() {
                let connections = self.plan.share(thread);
                let shared = Arc::clone(&self.shared);
                let start = Start {
                    plan: self.plan,
                    wire: self.wire.clone(),
                    shared: Arc::clone(&shared),
                    clock: self.clock,
                    peer: self.peer,
                    tls: self.tls.clone(),
                    sources: self.sources,
                    thread,
                    connections,
                    first,
                };
                let tables = tables.clone();
                first += connections;
                let spawned = thread::Builder::new()
                    .name(format!("throng-load-{thread}"))
                    .spawn_scoped(scope, move || {
                        let _finish = FinishOnPanic(Arc::clone(&shared));
                        let tally = Client::new(start, driver, tables.as_deref());
                        let tally = tally.and_then(Client::run);
                        tally.map_err(|error| shared.fail(error)).ok()
                    });
                match spawned {
                    Ok(handle) => threads.push(handle),
                    Err(error) => {
                        self.shared.fail(Error::io("start a thread", error));
                        break;
                    }
                }
            }
            let steered = steer();
            self.shared.finish();
            let mut sum = Tally::new(&self.plan.expect);
            for thread in threads {
                // A panic of ours: it has been printed; pass it on.
                let tally = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                tally.into_iter().for_each(|tally| sum.merge(tally));
            }
            // A thread's failure explains why the steering ended, if both did.
            match self.shared.take_failure() {
                Some(error) => Err(error),
                None => Ok((steered?, sum)),
            }
        })
    }
}

/// Processes, as the report names them.
pub(super) type Server<'a> = Option<&'a Processes>;
