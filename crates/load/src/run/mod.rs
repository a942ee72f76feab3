//! A run from beginning to end: threads up, phases by the clock, samples at their edges, threads down, report.

mod connect;
mod fanout;
mod idle;
mod modes;
mod script;
mod steer;

use std::hash::{BuildHasher, RandomState};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

pub use self::modes::{LEAD, NO_ANSWER, measure, server_report};
pub use self::steer::{Measured, Steering};

use crate::client::{self, Handshake, Setup, Shared, Start, Work, clock};
use crate::clock::Clock;
use crate::plan::{Mode, Pace};
use crate::sampler::{Processes, listening_pids};
use crate::tls::TlsClient;
use crate::work::ChannelLayout;
use crate::{Error, Plan, Progress, Report, Sources, descriptors, sources};

/// Runs a plan to its end and reports. Blocks; `watch` is called some ten times a second on this thread.
///
/// When `stop` becomes true the run ends early: with a report on what was measured until then, or with
/// [`Error::Interrupted`] if that was nothing.
///
/// # Errors
/// Whatever leaves nothing to report, each with its remedy; see [`Error`].
pub fn run(
    plan: &Plan,
    stop: &AtomicBool,
    watch: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    plan.check()?;
    let descriptors::Division { threads, own_tables } =
        descriptors::divide(plan.sockets(), plan.threads)?;
    let plan = &Plan { threads, ..plan.clone() };
    let peer = plan.target.resolve()?;
    let context = RunContext {
        plan,
        own_tables,
        peer,
        tls: plan.tls.load(&plan.target)?,
        sources: Sources::plan(peer, plan.sockets(), sources::ephemeral_ports(), plan.sources)?,
        clock: clock()?,
        shared: Arc::new(Shared::new(plan.threads)),
        server: watched(&plan.server_pids, peer)?,
    };
    let steering = Steering::new(
        context.clock,
        &context.shared,
        context.server.as_ref(),
        plan.setup_timeout,
        stop,
        watch,
    );
    match plan.mode {
        Mode::Echo { pace: Pace::Closed { pipeline }, duration, warmup } => {
            modes::closed_echo(&context, steering, pipeline, duration, warmup)
        }
        Mode::Echo { pace: Pace::Open { rate_per_s }, duration, warmup } => {
            modes::open_echo(&context, steering, rate_per_s, duration, warmup)
        }
        Mode::Idle { hold } => idle::run(&context, steering, hold),
        Mode::Connect { rate_per_s: None, duration, warmup } => {
            connect::closed(&context, steering, duration, warmup)
        }
        Mode::Connect { rate_per_s: Some(rate_per_s), duration, warmup } => {
            connect::open(&context, steering, rate_per_s, duration, warmup)
        }
        Mode::Fanout { channels, subscribers, rate_per_s, duration, warmup } => {
            let layout = ChannelLayout { channels, subscribers };
            fanout::run(&context, steering, layout, rate_per_s, duration, warmup)
        }
        Mode::Script { duration, warmup, timeout } => {
            let script = plan.script.as_ref().ok_or_else(without_script)?;
            script::run(&context, steering, script, (duration, warmup), timeout)
        }
        Mode::Broadcast { publishes, timeout } => {
            modes::broadcast(&context, steering, publishes, timeout)
        }
    }
}

/// A plan that was not checked.
fn without_script() -> Error {
    Error::Usage("the script mode needs a script".to_owned())
}

/// What all parts of a run stand on.
struct RunContext<'a> {
    plan: &'a Plan,
    /// Each thread has a descriptor table of its own.
    own_tables: bool,
    peer: SocketAddr,
    tls: Option<Arc<TlsClient>>,
    sources: Sources,
    clock: Clock,
    shared: Arc<Shared>,
    /// The server's processes, if they are known.
    server: Option<Processes>,
}

/// Finds the server's processes: those given, or the process that listens on the port.
pub fn watched(server_pids: &[u32], peer: SocketAddr) -> Result<Option<Processes>, Error> {
    if server_pids.is_empty() {
        // A port of another machine says nothing about who listens on the same port of this one.
        let local = UdpSocket::bind((peer.ip(), 0)).is_ok();
        let pids = if local { listening_pids(peer) } else { Vec::new() };
        return Ok((!pids.is_empty()).then(|| Processes::new(pids)));
    }
    for &pid in server_pids {
        if Processes::new(vec![pid]).cpu(0).is_none() {
            return Err(Error::Usage(format!(
                "--server-pid {pid}: there is no such process on this machine"
            )));
        }
    }
    Ok(Some(Processes::new(server_pids.to_vec())))
}

impl RunContext<'_> {
    /// Starts a thread for each share of the connections, steers them, and collects their results.
    fn with_threads<W: Work + Send, R>(
        &self,
        extra_on_first: usize,
        backlog: usize,
        make: impl Fn(usize, usize) -> W + Sync,
        steer: impl FnOnce() -> Result<R, Error>,
    ) -> Result<(R, Setup, Vec<W::Outcome>), Error> {
        let exact = matches!(
            self.plan.mode,
            Mode::Echo { pace: Pace::Open { .. }, .. }
                | Mode::Connect { rate_per_s: Some(_), .. }
                | Mode::Fanout { .. }
        );
        let seed = RandomState::new().hash_one(self.plan.connections);
        let handshake = Arc::new(Handshake::of(self.plan, seed)?);
        let connections =
            |thread| self.plan.share(thread) + if thread == 0 { extra_on_first } else { 0 };
        let drivers = (0..self.plan.threads).map(|thread| {
            client::open_driver(connections(thread), self.plan.size, self.tls.as_ref())
        });
        let mut drivers = drivers.collect::<Result<Vec<_>, _>>()?;
        let tables = match self.own_tables {
            true => client::tables_of(&mut drivers).map(|tables| Some(Arc::new(tables))),
            false => Ok(None),
        };
        let tables = tables.map_err(|error| Error::io("divide the descriptors", error))?;
        thread::scope(|scope| {
            let mut first = 0;
            let mut threads = Vec::new();
            for (thread, driver) in drivers.into_iter().enumerate() {
                let (share, connections) = (self.plan.share(thread), connections(thread));
                let start = Start {
                    shared: Arc::clone(&self.shared),
                    clock: self.clock,
                    thread,
                    peer: self.peer,
                    tls: self.tls.clone(),
                    handshake: Arc::clone(&handshake),
                    connections,
                    wanted: self.plan.sockets(),
                    first,
                    sources: self.sources,
                    window: self.plan.window.div_ceil(self.plan.threads),
                    ramp: self.plan.ramp,
                    setup_timeout: self.plan.setup_timeout,
                    size: self.plan.size,
                    backlog,
                    exact,
                    driver,
                    tables: tables.clone(),
                };
                first += connections;
                let (make, shared) = (&make, Arc::clone(&self.shared));
                let spawned = thread::Builder::new()
                    .name(format!("throng-load-{thread}"))
                    .spawn_scoped(scope, move || {
                        let _finish = FinishOnPanic(Arc::clone(&shared));
                        let ran = client::run(start, make(thread, share));
                        ran.map_err(|error| shared.fail(error)).ok()
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
            let (mut setup, mut outcomes) = (Setup::default(), Vec::new());
            for thread in threads {
                // A panic of ours: it has been printed; pass it on.
                let finished =
                    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                if let Some((thread_setup, outcome)) = finished {
                    setup.merge(thread_setup);
                    outcomes.push(outcome);
                }
            }
            // A thread's failure explains why the steering ended, if both did.
            match self.shared.take_failure() {
                Some(error) => Err(error),
                None => Ok((steered?, setup, outcomes)),
            }
        })
    }
}

/// Ends the run when a thread of it panics: the others would wait for it for ever.
pub struct FinishOnPanic(pub Arc<Shared>);

impl Drop for FinishOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.finish();
        }
    }
}
