//! The base of a run's threads, for any protocol: shared state, start and end.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use super::Steering;
use crate::clock::Clock;
use crate::common::Common;
use crate::error::Error;
use crate::merge::Merge;
use crate::pool::{PoolShared, ThreadStart, Timeline, open_driver, tables_of};
use crate::progress::Progress;
use crate::sampler::{Processes, listening_pids};
use crate::sources::Sources;
use crate::tls::TlsClient;
use crate::{descriptors, sources};

/// Pause between the moment when all connections are ready and the first message: the threads must
/// be informed.
pub const LEAD: Duration = Duration::from_millis(5);

/// State that all threads of a run need.
pub(crate) struct Base {
    /// Whether each thread has its own descriptor table.
    own_tables: bool,
    pub(crate) peer: SocketAddr,
    pub(crate) tls: Option<Arc<TlsClient>>,
    pub(crate) sources: Sources,
    pub(crate) clock: Clock,
    pub(crate) shared: Arc<PoolShared>,
    /// The server's processes, if they are known.
    pub(crate) server: Option<Processes>,
}

impl Base {
    /// Prepares a run with this many sockets. Raises the number of threads if the sockets require
    /// it.
    pub(crate) fn of(plan: &mut Common, sockets: usize) -> Result<Self, Error> {
        let division = descriptors::divide(sockets, plan.threads)?;
        plan.threads = division.threads;
        let peer = plan.target.resolve()?;
        Ok(Self {
            own_tables: division.own_tables,
            peer,
            tls: plan.tls.load(&plan.target)?,
            sources: Sources::plan(peer, sockets, sources::ephemeral_ports(), plan.sources)?,
            clock: Clock,
            shared: Arc::new(PoolShared::new(plan.threads)),
            server: watched(&plan.server_pids, peer)?,
        })
    }

    /// Returns the steering of a run of this plan.
    pub(crate) fn steering<'a>(
        &'a self,
        plan: &Common,
        stop: &'a AtomicBool,
        watch: &'a mut dyn FnMut(&Progress),
    ) -> Steering<'a> {
        let server = self.server.as_ref();
        Steering::new(self.clock, &self.shared, server, plan.setup_timeout, stop, watch)
    }

    /// Sets the timeline. The threads then begin.
    pub(crate) fn begin(&self, warmup: Duration, duration: Duration) -> Timeline {
        let start = self.clock.now().after(LEAD);
        let from = start.after(warmup);
        let timeline = Timeline { start, from, to: from.after(duration) };
        self.shared.begin(timeline);
        timeline
    }

    /// Starts a thread for each share of the connections, with `extra` more connections on the
    /// first, for answers of up to `size` bytes. Each thread calls `run`; the calling thread calls
    /// `steer`. Adds up the threads' measurements.
    pub(crate) fn with_threads<T: Merge + Send, R>(
        &self,
        common: &Common,
        extra: usize,
        size: usize,
        exact: bool,
        run: impl Fn(ThreadStart) -> Result<T, Error> + Sync,
        steer: impl FnOnce() -> Result<R, Error>,
    ) -> Result<(R, T), Error> {
        let connections = |thread| common.share(thread) + if thread == 0 { extra } else { 0 };
        let drivers = (0..common.threads)
            .map(|thread| open_driver(connections(thread), size, self.tls.as_ref()));
        let mut drivers: Vec<_> = drivers.collect::<Result<_, _>>()?;
        let tables = self.own_tables.then(|| tables_of(&mut drivers).map(Arc::new)).transpose();
        let tables = tables.map_err(|error| Error::io("divide the descriptors", error))?;
        let run = &run;
        thread::scope(|scope| {
            let mut threads = Vec::new();
            for (thread, driver) in drivers.into_iter().enumerate() {
                let shared = Arc::clone(&self.shared);
                let start = ThreadStart {
                    thread,
                    tls: self.tls.clone(),
                    wanted: common.connections + extra,
                    first: (0..thread).map(connections).sum(),
                    window: common.window.div_ceil(common.threads),
                    ramp: common.ramp,
                    exact,
                    tables: tables.clone(),
                    ..ThreadStart::single(
                        &self.shared,
                        self.peer,
                        self.sources,
                        connections(thread),
                        driver,
                    )
                };
                let spawned = thread::Builder::new()
                    .name(format!("throng-load-{thread}"))
                    .spawn_scoped(scope, move || {
                        let _finish = FinishOnPanic(Arc::clone(&shared));
                        run(start).map_err(|error| shared.fail(error)).ok()
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
            // A panic is a bug of this program. Its thread has printed it; pass it on.
            let ended = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            let measurements = ended.collect::<Vec<_>>().into_iter().flatten();
            let sum = measurements.reduce(|mut sum, more| {
                sum.merge(more);
                sum
            });
            // If both failed, the thread's failure explains why the steering ended.
            match self.shared.take_failure() {
                Some(error) => Err(error),
                None => Ok((steered?, sum.ok_or(Error::Interrupted)?)),
            }
        })
    }
}

/// Finds the server's processes: those given, or the process that listens on the port.
fn watched(server_pids: &[u32], peer: SocketAddr) -> Result<Option<Processes>, Error> {
    if server_pids.is_empty() {
        // A port on another machine is unrelated to the same port on this one.
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

/// Ends the run when one of its threads panics: otherwise the other threads would wait for it
/// forever.
pub struct FinishOnPanic(pub Arc<PoolShared>);

impl Drop for FinishOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.finish();
        }
    }
}
