//! The life of a server: bound, running, drained.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_engine::workers::RunningJob;
use throng_engine::{
    Admission, BuildOptions, Built, Configurator, DrainPlan, Remote, Service, Snapshot, Stats,
    ThreadOptions,
};
use throng_io::tables::Tables;
use throng_io::{Driver, Listener};

use crate::affinity::Placement;
use crate::error::{Error, Result};
use crate::hub::Hub;
use crate::live::{Live, LiveOrigins};
#[cfg(feature = "metrics")]
use crate::observe::Observer;
use crate::shutdown::Shutdown;
use crate::stalls::Stalls;
use crate::tls::Security;
use crate::workers::Pool;

/// Where a server listens: at least one of both.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    pub(crate) tcp: Vec<SocketAddr>,
    pub(crate) unix: Vec<PathBuf>,
}

impl Addresses {
    /// Adds the address of a listener that exists.
    pub(crate) fn add(&mut self, listener: &Listener) -> Result<()> {
        match listener {
            Listener::Tcp(listener) => self.tcp.push(listener.local_addr().map_err(Error::Shard)?),
            #[cfg(unix)]
            Listener::Unix(socket) => self.unix.push(socket.path().unwrap_or_default()),
            other => {
                let message = format!("{other:?} is of a kind that servers do not know");
                return Err(Error::setting("listeners", message));
            }
        }
        Ok(())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tcp.is_empty() && self.unix.is_empty()
    }

    fn first(&self) -> SocketAddr {
        self.tcp.first().copied().unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
    }
}

/// A server that listens but does not answer yet.
///
/// Connections wait in the kernel's queue until [`run`](Self::run) or [`spawn`](Self::spawn).
/// Dropping it closes the listeners.
#[must_use = "a bound server answers nothing until `run` or `spawn`"]
pub struct Bound {
    pub(crate) addresses: Addresses,
    pub(crate) shards: Shards,
    pub(crate) placement: Option<Placement>,
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) pool: Pool,
    pub(crate) starts_workers: bool,
    pub(crate) security: Security,
    pub(crate) origins: LiveOrigins,
    /// How the limit on connections came about, where it is not that of one descriptor table.
    pub(crate) capacity: Option<String>,
    /// Why shards share a descriptor table although it was to be otherwise.
    pub(crate) tables_refused: Option<String>,
    #[cfg(feature = "metrics")]
    pub(crate) observer: Observer,
}

impl Bound {
    /// Returns the metrics of this server, for a server of their own that only operators reach.
    #[cfg(feature = "metrics")]
    #[must_use]
    pub fn observer(&self) -> Observer {
        self.observer.clone()
    }

    /// Returns the CPU that each event loop will be pinned to; `None` without
    /// [`CpuAffinity::Cores`](crate::CpuAffinity::Cores). [`Running::placement`] also has the CPUs
    /// that the kernel refused.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// Returns the first address it listens on. If port 0 was asked for, this has the real port.
    /// `0.0.0.0:0` if it listens on Unix sockets alone: see [`Bound::unix_paths`].
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addresses.first()
    }

    /// Returns all addresses it listens on: [`Bound::local_addr`], then those of
    /// [`Server::bind_also`](crate::Server::bind_also). Unix sockets have none.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses.tcp
    }

    /// Returns the paths of the Unix sockets it listens on, empty for one without a path.
    #[must_use]
    pub fn unix_paths(&self) -> &[PathBuf] {
        &self.addresses.unix
    }

    /// Returns whether it serves `https` and `wss`.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.security.is_on()
    }

    /// Returns the [`Hub`], which reaches its connections and channels from any thread.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.shards.hub.clone()
    }

    /// Returns how many connections it may hold: the setting, or what the descriptor limit allows.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.shards.admission.max_connections()
    }

    /// Returns how [`Bound::max_connections`] came about, where shards have descriptor tables of
    /// their own.
    #[doc(hidden)]
    #[must_use]
    pub fn capacity(&self) -> Option<&str> {
        self.capacity.as_deref()
    }

    /// Returns why shards share a descriptor table although each was to have its own.
    #[doc(hidden)]
    #[must_use]
    pub fn tables_refused(&self) -> Option<&str> {
        self.tables_refused.as_deref()
    }

    /// Runs the server, and returns only when it has failed. To stop a server, use
    /// [`run_until_signal`](Self::run_until_signal), or [`spawn`](Self::spawn) and
    /// [`Running::drain`].
    ///
    /// # Errors
    /// A shard's thread could not be started, or failed.
    pub fn run(self) -> Result<()> {
        self.spawn()?.join().map(drop)
    }

    /// Runs the server until the process gets SIGINT or SIGTERM, and then drains it with `plan`. A
    /// second signal ends the process at once.
    ///
    /// ```no_run
    /// use throng::prelude::*;
    ///
    /// # fn main() -> throng::Result<()> {
    /// let app = App::new().ws("/", Ws::new().on_message(|ws, message| ws.send(message)));
    /// let bound = Server::new(app).bind("127.0.0.1:9001")?;
    /// let drained = bound.run_until_signal(DrainPlan::default())?;
    /// eprintln!("{} connections had to be reset", drained.forced);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A shard's thread could not be started, or failed, or the signals cannot be handled.
    #[cfg(all(unix, feature = "signals"))]
    pub fn run_until_signal(self, plan: DrainPlan) -> Result<Drained> {
        use signal_hook::consts::{SIGINT, SIGTERM};
        let mut signals =
            signal_hook::iterator::Signals::new([SIGINT, SIGTERM]).map_err(Error::Shard)?;
        let handle = signals.handle();
        let running = self.spawn()?;
        let begin_drain = running.drain_beginner();
        let wait = move || {
            if signals.forever().next().is_none() {
                return;
            }
            begin_drain.begin(plan);
            if let Some(signal) = signals.forever().next() {
                let _ = signal_hook::low_level::emulate_default_handler(signal);
            }
        };
        let name = "throng-signals".to_owned();
        let waiting = std::thread::Builder::new().name(name).spawn(wait).map_err(Error::Shard)?;
        let drained = running.join();
        handle.close();
        let _ = waiting.join();
        drained
    }

    /// Starts the server on threads of its own, and returns at once.
    ///
    /// # Errors
    /// A shard's thread, or a thread of the worker pool, could not be started.
    pub fn spawn(self) -> Result<Running> {
        let address = self.local_addr();
        // Worker threads started later, by the first job's shard, would inherit its CPU affinity.
        let starts_workers = self.starts_workers || self.placement.is_some();
        if let Some(workers) = self.pool.get()
            && starts_workers
        {
            workers.start().map_err(Error::of_workers)?;
        }
        let Shards { starts, tables, hub, snapshots, admission, configurator } = self.shards;
        let tables = tables.map(Arc::new);
        let threads = Vec::with_capacity(starts.len());
        let (stalls, shutdown) = (self.stalls, Arc::new(Shutdown::new(starts.len())));
        let mut running = Running {
            address,
            hub,
            snapshots,
            admission,
            threads,
            placement: self.placement,
            stalls,
            shutdown,
            pool: self.pool,
            live: Live { configurator, origins: self.origins },
            #[cfg(feature = "tls")]
            security: self.security,
        };
        let mut starts = starts.into_iter();
        while let Some(start) = starts.next() {
            let shard = running.threads.len();
            let cpu = running.placement.as_ref().map(|placement| placement.places()[shard].cpu);
            let (report, begun) = mpsc::sync_channel(1);
            let own = tables.clone();
            let exit_guard =
                ExitGuard { shard, begin_drain: running.drain_beginner(), must_drain: true };
            let name = format!("throng-shard-{shard}");
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                // Moves the whole guard into the thread, so that it runs however the thread ends.
                let mut exit_guard = exit_guard;
                // Pins before anything else, so that the shard's memory is near its CPU.
                let pinned = cpu.map_or(Ok(()), throng_io::affinity::pin_thread);
                let table = own.map(|tables| tables.enter(shard)).transpose();
                let _ = report.send((pinned, table.is_ok()));
                let ended = table.and_then(|_table| start());
                exit_guard.must_drain = ended.is_err();
                ended
            });
            match thread {
                Ok(thread) => {
                    running.threads.push(thread);
                    if running.placement.is_none() && tables.is_none() {
                        continue;
                    }
                    let Ok((pinned, entered)) = begun.recv() else { continue };
                    // One that has not entered its table closes its descriptors in this one.
                    if let Some(tables) = tables.as_ref().filter(|_| entered) {
                        tables.leave_to(shard);
                    }
                    if let (Some(placement), Err(reason)) = (&mut running.placement, pinned) {
                        placement.record_refusal(shard, &reason);
                    }
                }
                Err(error) => {
                    // Shards that never ran read no commands; the drain must not wait for them.
                    let never_ran = shard..=shard + starts.len();
                    drop(starts);
                    never_ran.for_each(|shard| running.shutdown.record_end(shard));
                    let _ = running.drain(DrainPlan::default());
                    return Err(Error::Shard(error));
                }
            }
        }
        Ok(running)
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({}, {} shards)", self.local_addr(), self.shards.starts.len())
    }
}

/// A running server.
///
/// [`drain`](Self::drain) ends it gracefully; [`join`](Self::join) waits until it has ended.
///
/// Dropping it [stops](Self::stop) the server; a drain that has begun goes on, and is not waited
/// for. [`detach`](Self::detach) lets the server run on.
#[must_use = "keep it to `drain` or `join`; dropped, it stops the server"]
pub struct Running {
    address: SocketAddr,
    hub: Hub,
    snapshots: Arc<[Arc<Snapshot>]>,
    admission: Arc<Admission>,
    threads: Vec<JoinHandle<std::io::Result<usize>>>,
    placement: Option<Placement>,
    pool: Pool,
    stalls: Arc<Stalls>,
    shutdown: Arc<Shutdown>,
    pub(crate) live: Live,
    #[cfg(feature = "tls")]
    security: Security,
}

impl Running {
    /// Returns the first address it listens on, as [`Bound::local_addr`] does.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Returns the [`Hub`], which reaches its connections and channels from any thread.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.hub.clone()
    }

    /// Returns how many connections it may hold.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.admission.max_connections()
    }

    /// Returns the CPU of each event loop, and which CPUs the kernel refused; `None` without
    /// [`CpuAffinity::Cores`](crate::CpuAffinity::Cores).
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// Reads the files of [`Server::tls`](crate::Server::tls) again, for connections that begin from
    /// now on. Sessions are not touched, and clients can still resume them unless the authorities
    /// of client certificates have changed. Without TLS it does nothing.
    ///
    /// # Errors
    /// [`Error::Setting`] names the file and the remedy; the server keeps what it has.
    #[cfg(feature = "tls")]
    pub fn reload_tls(&self) -> Result<()> {
        self.security.reload()
    }

    /// Returns the certificates of [`Server::tls`](crate::Server::tls): the name of each, and when it
    /// expires, in seconds since 1970. Empty without TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn certificates(&self) -> Vec<(String, i64)> {
        self.security.certificates()
    }

    /// Does [`Running::reload_tls`] if a file was modified since it was last read, and returns
    /// whether one was. Looking costs a system call for each file.
    ///
    /// # Errors
    /// As for [`Running::reload_tls`], once for each modification.
    #[cfg(feature = "tls")]
    pub fn reload_tls_if_changed(&self) -> Result<bool> {
        self.security.reload_if_changed()
    }

    /// Returns whether a shard has ended: after a drain, or because it failed. [`Running::join`]
    /// returns the reason.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Returns the metrics of each shard, at most one second old.
    #[must_use]
    pub fn shard_stats(&self) -> Vec<Stats> {
        self.snapshots.iter().map(|snapshot| snapshot.read()).collect()
    }

    /// Returns the metrics summed over all shards, at most one second old.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for stats in self.shard_stats() {
            sum.add(&stats);
        }
        sum
    }

    /// Returns how busy each shard is at this moment.
    #[must_use]
    pub fn shard_loads(&self) -> Vec<ShardLoad> {
        let load = |snapshot: &Arc<Snapshot>| ShardLoad {
            busy: snapshot.busy(),
            longest_turn: snapshot.longest_turn(),
            turns: snapshot.progress().turns,
        };
        self.snapshots.iter().map(load).collect()
    }

    /// Shuts the server down gracefully, and waits until it has ended.
    ///
    /// Readiness turns off, new connections are refused, sessions are closed with 1001 spread over
    /// the plan's window, and connections still open at its deadline are reset. If a handler does
    /// not return, this returns half a second after the deadline: see [`Drained::stuck_shards`].
    ///
    /// # Errors
    /// A shard failed before or while draining.
    pub fn drain(self, plan: DrainPlan) -> Result<Drained> {
        self.begin_drain(plan);
        self.join()
    }

    /// Begins a graceful shutdown without waiting for its end, for which [`Running::join`] waits.
    pub fn begin_drain(&self, plan: DrainPlan) {
        self.drain_beginner().begin(plan);
    }

    fn drain_beginner(&self) -> BeginDrain {
        BeginDrain {
            admission: Arc::clone(&self.admission),
            remote: self.hub.remote().clone(),
            shutdown: Arc::clone(&self.shutdown),
        }
    }

    /// Shuts the server down like [`Running::drain`], for callers that must not block: a thread
    /// waits for the end. Dropping the future does not stop the shutdown.
    ///
    /// # Errors
    /// As for [`Running::drain`].
    pub fn drain_async(self, plan: DrainPlan) -> Draining {
        self.begin_drain(plan);
        Draining::of(self)
    }

    /// Ends the server at once: sessions get a Close frame with 1001 and are reset, without time
    /// for an answer. If a handler does not return, this returns after half a second.
    ///
    /// # Errors
    /// As for [`Running::drain`].
    pub fn stop(self) -> Result<Drained> {
        self.drain(AT_ONCE)
    }

    /// Lets the server run until the process ends. It can no longer be drained or joined; its
    /// [`Hub`] goes on.
    pub fn detach(mut self) {
        self.threads.clear();
    }

    /// Waits until the server has ended. Once a drain has begun, this waits no longer than
    /// [`Running::drain`] does.
    ///
    /// # Errors
    /// A shard failed. Its failure drained the others with the default plan, so they have ended
    /// too. If several failed, the error is that of the shard with the lowest number.
    pub fn join(mut self) -> Result<Drained> {
        self.wait()
    }

    fn wait(&mut self) -> Result<Drained> {
        let threads = std::mem::take(&mut self.threads);
        let progress = |shard: usize| self.snapshots[shard].progress();
        let remind = |plan| {
            let _ = self.hub.remote().drain(plan);
        };
        let stuck = self.shutdown.wait(progress, remind);
        let stuck_shards = self.stuck_shards(&stuck);
        let mut outcome = Ok(Drained { forced: 0, stuck_shards, stuck: Vec::new() });
        for (shard, thread) in threads.into_iter().enumerate() {
            if stuck.iter().any(|&(stuck, _)| stuck == shard) {
                // Its thread ends with the process.
                continue;
            }
            let ended = match thread.join() {
                Ok(Ok(forced)) => Ok(forced),
                Ok(Err(error)) => Err(Error::Shard(error)),
                Err(_) => Err(Error::ShardPanicked),
            };
            match (ended, &mut outcome) {
                (Ok(forced), Ok(drained)) => drained.forced += forced,
                (Err(error), Ok(_)) => outcome = Err(error),
                _ => {}
            }
        }
        if let Some(workers) = self.pool.get() {
            // Shards end without an error only in a drain; without one there is nothing to wait
            // for.
            let stuck = workers.stop(self.shutdown.deadline().unwrap_or_else(Instant::now));
            if let Ok(drained) = &mut outcome {
                drained.stuck = stuck;
            }
        }
        outcome
    }

    /// Returns the stuck event loops, and the stuck threads of single connections, for which the
    /// acceptor has waited.
    fn stuck_shards(&self, stuck: &[(usize, u32)]) -> Vec<StuckShard> {
        let path = |route| self.stalls.path(route).to_owned();
        let shards = stuck.iter().map(|&(shard, route)| StuckShard {
            shard,
            route: path(route),
            connections: self.admission.connections_of(shard),
        });
        let threads = self.hub.remote().in_callbacks();
        let threads = threads.into_iter().map(|(shard, route)| StuckShard {
            shard,
            route: path(route),
            connections: 1,
        });
        shards.chain(threads).collect()
    }
}

/// Stops the server, unless it was detached, drains or has ended.
impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() && self.shutdown.deadline().is_none() {
            self.begin_drain(AT_ONCE);
            // There is no caller left to return the error to.
            let _ = self.wait();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({}, {} shards)", self.address, self.threads.len())
    }
}

/// A shutdown that leaves connections no time.
const AT_ONCE: DrainPlan = DrainPlan::DEFAULT.window(Duration::ZERO).grace(Duration::ZERO);

/// A future for the end of a server: see [`Running::drain_async`].
#[must_use = "the server drains without it, but its end is not waited for"]
pub struct Draining {
    state: Arc<Mutex<DrainState>>,
}

#[derive(Default)]
struct DrainState {
    outcome: Option<Result<Drained>>,
    waker: Option<Waker>,
}

impl Draining {
    fn of(running: Running) -> Self {
        let state = Arc::<Mutex<DrainState>>::default();
        let its = Arc::clone(&state);
        let wait = move || {
            let outcome = running.join();
            let mut state = its.lock().unwrap_or_else(PoisonError::into_inner);
            state.outcome = Some(outcome);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        if let Err(error) = std::thread::Builder::new().name("throng-drain".to_owned()).spawn(wait)
        {
            let mut locked = state.lock().unwrap_or_else(PoisonError::into_inner);
            locked.outcome = Some(Err(Error::Shard(error)));
        }
        Self { state }
    }
}

impl Future for Draining {
    type Output = Result<Drained>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Drained>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Draining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Draining")
    }
}

/// Records the end of a shard's thread.
///
/// If the shard failed or panicked, it also drains the others, so that [`Running::join`] returns
/// and a supervisor can restart the process: without one of its shards, the server would no longer
/// answer a part of its clients.
struct ExitGuard {
    shard: usize,
    begin_drain: BeginDrain,
    must_drain: bool,
}

impl Drop for ExitGuard {
    fn drop(&mut self) {
        self.begin_drain.shutdown.record_end(self.shard);
        if self.must_drain {
            self.begin_drain.begin(DrainPlan::default());
        }
    }
}

/// Begins a drain on all shards.
struct BeginDrain {
    admission: Arc<Admission>,
    remote: Remote,
    shutdown: Arc<Shutdown>,
}

impl BeginDrain {
    /// Sends the command until every shard's queue has taken it, at most until the drain's
    /// deadline.
    ///
    /// A full queue empties within one turn, and that of an ended shard takes everything. Only a
    /// shard that is stuck in a handler keeps its queue full.
    fn begin(&self, plan: DrainPlan) {
        let shards = 0..self.remote.shards();
        let most = shards.map(|shard| self.admission.connections_of(shard)).max().unwrap_or(0);
        let deadline = self.shutdown.begin_drain(plan, most);
        self.admission.begin_drain(plan.hand_over);
        while self.remote.drain(plan).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The outcome of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Connections that did not close by the deadline and were reset.
    pub forced: usize,
    /// Jobs of the worker pool that had not returned by the deadline. Their threads are detached,
    /// and end with the process.
    pub stuck: Vec<RunningJob>,
    /// Shards in a handler that did not return. Their threads are detached, with their connections,
    /// and end with the process.
    pub stuck_shards: Vec<StuckShard>,
}

/// A shard in a handler that does not return.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StuckShard {
    /// The event loop, from 0; with [`IoBackend::Threads`](crate::IoBackend::Threads) the number in
    /// the name of the connection's thread.
    pub shard: usize,
    /// The path of the handler's route, as it was given to the app.
    pub route: String,
    /// The shard's connections, none of which was closed. With
    /// [`IoBackend::Threads`](crate::IoBackend::Threads) they are among [`Drained::forced`], too.
    pub connections: usize,
}

/// The load of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardLoad {
    /// The time its turns have taken since it started, in total.
    pub busy: Duration,
    /// The longest turn since this was last read, or of the last second if that is longer: how long
    /// an event may have waited for others.
    pub longest_turn: Duration,
    /// The turns that have ended. A shard with connections turns once a second, however idle they
    /// are.
    pub turns: u64,
}

type Start = Box<dyn FnOnce() -> std::io::Result<usize> + Send>;

/// Shards ready to run, with their driver's type erased.
pub(crate) struct Shards {
    starts: Vec<Start>,
    /// The descriptor tables of the shards, where each has its own.
    tables: Option<Tables>,
    hub: Hub,
    snapshots: Arc<[Arc<Snapshot>]>,
    admission: Arc<Admission>,
    configurator: Configurator,
}

impl Shards {
    pub(crate) fn build<D, S>(
        drivers: Vec<D>,
        options: &BuildOptions,
        service: impl Fn(&Arc<Admission>) -> S,
    ) -> Result<Self>
    where
        D: Driver + Send + 'static,
        S: Service + Send + 'static,
    {
        throng_engine::build(drivers, options, |_, admission, _| service(admission))
            .map(Self::new)
            .map_err(Error::from)
    }

    /// Builds a server with one thread per connection: one shard to start, that of the acceptor.
    pub(crate) fn build_threads<D, S>(
        acceptor: D,
        options: &BuildOptions,
        threads: ThreadOptions<D>,
        service: impl Fn(&Arc<Admission>) -> S + Send + Sync + 'static,
    ) -> Result<Self>
    where
        D: Driver + Send + 'static,
        S: Service + Send + 'static,
    {
        throng_engine::build_threads(acceptor, options, threads, service)
            .map(Self::new)
            .map_err(Error::from)
    }

    fn new<D, S>(built: Built<D, S>) -> Self
    where
        D: Driver + Send + 'static,
        S: Service + Send + 'static,
    {
        let Built { shards, remote, snapshots, admission, configurator, .. } = built;
        let starts =
            shards.into_iter().map(|mut shard| Box::new(move || shard.run()) as Start).collect();
        let hub = Hub::of(remote);
        Self { starts, tables: None, hub, snapshots, admission, configurator }
    }

    /// Has each shard enter its descriptor table when it starts.
    #[cfg(target_os = "linux")]
    pub(crate) fn in_tables(self, tables: Option<Tables>) -> Self {
        Self { tables, ..self }
    }

    pub(crate) fn remote(&self) -> &Remote {
        self.hub.remote()
    }

    pub(crate) fn admission(&self) -> &Arc<Admission> {
        &self.admission
    }

    pub(crate) fn snapshots(&self) -> &Arc<[Arc<Snapshot>]> {
        &self.snapshots
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::{App, Handle, Server};

    /// A server of three shards, of which the last is replaced by something that fails.
    fn run_with(broken: Start) -> Running {
        let mut bound = Server::new(App::new()).shards(3).bind("127.0.0.1:0").unwrap();
        *bound.shards.starts.last_mut().unwrap() = broken;
        bound.spawn().unwrap()
    }

    #[test]
    fn a_shard_that_fails_ends_the_others_and_is_reported() {
        let running = run_with(Box::new(|| Err(io::Error::other("no poll"))));
        assert!(
            matches!(running.join(), Err(Error::Shard(error)) if error.to_string() == "no poll")
        );
        let running = run_with(Box::new(|| panic!("a bug")));
        assert!(matches!(running.join(), Err(Error::ShardPanicked)));
    }

    #[test]
    fn a_shard_that_has_ended_holds_up_no_drain() {
        let running = run_with(Box::new(|| Err(io::Error::other("no poll"))));
        let its = throng_io::ConnId::new(2, 0, 0).to_bits();
        for _ in 0..throng_engine::MAILBOX_CAPACITY + 10 {
            running.hub().send(Handle::from_bits(its), "hello?").unwrap();
        }
        assert!(running.drain(DrainPlan::default()).is_err());
    }

    #[test]
    fn a_cpu_that_the_kernel_refuses_is_reported_and_its_shard_serves() {
        let mut bound = Server::new(App::new()).shards(2).bind("127.0.0.1:0").unwrap();
        let none_such = 1 << 20;
        bound.placement =
            crate::affinity::place(&[], |cpu| cpu, &[none_such, none_such + 1], 2).ok();
        assert_eq!(bound.placement().unwrap().refusals(), []);
        let running = bound.spawn().unwrap();
        let refused = running.placement().unwrap().refusals();
        assert_eq!(refused.iter().map(|refusal| refusal.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(running.drain(DrainPlan::default()).unwrap().forced, 0);
    }

    #[test]
    fn debug_shows_the_address_and_the_number_of_shards() {
        let bound = Server::new(App::new()).shards(2).bind("127.0.0.1:0").unwrap();
        let address = bound.local_addr();
        assert_eq!(format!("{bound:?}"), format!("Bound({address}, 2 shards)"));
        let running = bound.spawn().unwrap();
        assert_eq!(format!("{running:?}"), format!("Running({address}, 2 shards)"));
        running.drain(DrainPlan::default()).unwrap();
    }
}
