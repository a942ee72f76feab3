//! A bound server, and a running one.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_engine::workers::RunningJob;
use throng_engine::{
    Admission, BuildOptions, Built, DrainPlan, Remote, Service, Snapshot, Stats, ThreadOptions,
};
use throng_io::Driver;

use crate::ending::Ending;
use crate::error::{Error, Result};
use crate::hub::Hub;
use crate::pin::Placement;
use crate::stalls::Stalls;
use crate::workers::Pool;

/// A server that listens but does not answer yet.
pub struct Bound {
    /// At least one.
    addresses: Vec<SocketAddr>,
    shards: Shards,
    placement: Option<Placement>,
    stalls: Arc<Stalls>,
    pool: Pool,
    starts_workers: bool,
}

impl Bound {
    pub(crate) fn new(
        addresses: Vec<SocketAddr>,
        shards: Shards,
        placement: Option<Placement>,
        stalls: Arc<Stalls>,
        pool: Pool,
        starts_workers: bool,
    ) -> Self {
        Self { addresses, shards, placement, stalls, pool, starts_workers }
    }

    /// Which CPU each event loop is to get; `None` where the system chooses. [`Running::placement`] tells what came of it.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// Where it listens; with port 0 asked for, the port it got.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Everywhere it listens: [`Bound::local_addr`], then those of [`Server::listen_also`](crate::Server::listen_also).
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The way to its connections and channels from any thread.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.shards.hub.clone()
    }

    /// Connections it may hold: the setting, or what the descriptor limit allows.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.shards.admission.max_connections()
    }

    /// Runs until the process ends.
    ///
    /// # Errors
    /// A shard's thread could not be started, or failed.
    pub fn run(self) -> Result<()> {
        self.spawn()?.join().map(drop)
    }

    /// Runs on threads of its own.
    ///
    /// # Errors
    /// A shard's thread could not be started, or as many workers as were asked for.
    pub fn spawn(self) -> Result<Running> {
        let address = self.local_addr();
        // Started later, by the first job's shard, they would inherit that shard's CPU.
        let starts_workers = self.starts_workers || self.placement.is_some();
        if let Some(workers) = self.pool.get()
            && starts_workers
        {
            workers.start().map_err(crate::server::workers)?;
        }
        let Shards { starts, hub, snapshots, admission } = self.shards;
        let threads = Vec::with_capacity(starts.len());
        let (stalls, ending) = (self.stalls, Arc::new(Ending::of(starts.len())));
        let mut running = Running {
            address,
            hub,
            snapshots,
            admission,
            threads,
            placement: self.placement,
            stalls,
            ending,
            pool: self.pool,
        };
        let mut starts = starts.into_iter();
        while let Some(start) = starts.next() {
            let shard = running.threads.len();
            let cpu = running.placement.as_ref().map(|placement| placement.places()[shard].cpu);
            let (say, hear) = mpsc::sync_channel(1);
            let last_words =
                LastWords { shard, begin_drain: running.drain_beginner(), must_drain: true };
            let name = format!("throng-shard-{shard}");
            let thread = std::thread::Builder::new().name(name).spawn(move || {
                // The whole of it, whatever ends this thread.
                let mut last_words = last_words;
                // First of all, so that what the shard touches first lies near its CPU.
                let _ = say.send(cpu.map_or(Ok(()), throng_io::affinity::pin_thread));
                let ended = start();
                last_words.must_drain = ended.is_err();
                ended
            });
            match thread {
                Ok(thread) => {
                    running.threads.push(thread);
                    if let Some(placement) = &mut running.placement
                        && let Ok(Err(reason)) = hear.recv()
                    {
                        placement.note_refusal(shard, &reason);
                    }
                }
                Err(error) => {
                    // Nobody waits for mail in shards that never ran.
                    let never_ran = shard..=shard + starts.len();
                    drop(starts);
                    never_ran.for_each(|shard| running.ending.note_end(shard));
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
pub struct Running {
    address: SocketAddr,
    hub: Hub,
    snapshots: Arc<[Arc<Snapshot>]>,
    admission: Arc<Admission>,
    threads: Vec<JoinHandle<std::io::Result<usize>>>,
    placement: Option<Placement>,
    pool: Pool,
    stalls: Arc<Stalls>,
    ending: Arc<Ending>,
}

impl Running {
    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The way to its connections and channels from any thread.
    #[must_use]
    pub fn hub(&self) -> Hub {
        self.hub.clone()
    }

    /// Connections it may hold.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.admission.max_connections()
    }

    /// Which CPU each event loop got, and which the kernel refused; `None` where the system chooses.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// True when a shard has ended: after a drain, or because it failed. [`Running::join`] tells which.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// The figures of each shard, at most a second old.
    #[must_use]
    pub fn shard_stats(&self) -> Vec<Stats> {
        self.snapshots.iter().map(|snapshot| snapshot.read()).collect()
    }

    /// The figures of all shards together, at most a second old.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut sum = Stats::default();
        for stats in self.shard_stats() {
            sum.add(&stats);
        }
        sum
    }

    /// How busy each shard is, at this moment.
    #[must_use]
    pub fn shard_loads(&self) -> Vec<ShardLoad> {
        let load = |snapshot: &Arc<Snapshot>| ShardLoad {
            busy: snapshot.busy(),
            longest_turn: snapshot.longest_turn(),
        };
        self.snapshots.iter().map(load).collect()
    }

    /// Ends the server in good order: readiness off, no new connections, every session closed with 1001 at its
    /// moment of the plan's window, the rest reset at the deadline. Returns when all is over, or half a second after the
    /// deadline if a handler does not return: see [`Drained::stuck_shards`].
    ///
    /// # Errors
    /// A shard failed before or while draining.
    pub fn drain(self, plan: DrainPlan) -> Result<Drained> {
        self.begin_drain(plan);
        self.join()
    }

    /// The same, without waiting; [`Running::join`] waits.
    pub fn begin_drain(&self, plan: DrainPlan) {
        self.drain_beginner().begin(plan);
    }

    fn drain_beginner(&self) -> BeginDrain {
        BeginDrain {
            admission: Arc::clone(&self.admission),
            remote: self.hub.remote().clone(),
            ending: Arc::clone(&self.ending),
        }
    }

    /// Waits until the server has ended. Once a drain was begun, no longer than [`Running::drain`] does.
    ///
    /// # Errors
    /// A shard failed; it drained the others with the default plan when it did, and they have ended too. The first
    /// failure in the order of the shards is told.
    pub fn join(self) -> Result<Drained> {
        let whereabouts = |shard: usize| self.snapshots[shard].progress();
        let remind = |plan| {
            let _ = self.hub.remote().drain(plan);
        };
        let stuck = self.ending.wait(whereabouts, remind);
        let stuck_shards = self.stuck_shards(&stuck);
        let mut outcome = Ok(Drained { forced: 0, stuck_shards, stuck: Vec::new() });
        for (shard, thread) in self.threads.into_iter().enumerate() {
            if stuck.iter().any(|&(stuck, _)| stuck == shard) {
                // It ends with the process.
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
            // No shard ends well without a drain, its own or another's.
            let stuck = workers.stop(self.ending.deadline().unwrap_or_else(Instant::now));
            if let Ok(drained) = &mut outcome {
                drained.stuck = stuck;
            }
        }
        outcome
    }

    /// Those of event loops, and of connections with threads of their own: the acceptor has waited for these.
    fn stuck_shards(&self, stuck: &[(usize, u32)]) -> Vec<StuckShard> {
        let path = |route| self.stalls.path(route).to_owned();
        let shards = stuck.iter().map(|&(shard, route)| StuckShard {
            shard,
            route: path(route),
            connections: self.admission.connections_of(shard),
        });
        let seats = self.hub.remote().in_callbacks();
        let seats = seats.into_iter().map(|(shard, route)| StuckShard {
            shard,
            route: path(route),
            connections: 1,
        });
        shards.chain(seats).collect()
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({}, {} shards)", self.address, self.threads.len())
    }
}

/// A server without one of its shards would go on deaf in part: a shard that fails, or panics, takes the others with
/// it, so that [`Running::join`] returns and a supervisor starts the process anew.
struct LastWords {
    shard: usize,
    begin_drain: BeginDrain,
    must_drain: bool,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        self.begin_drain.ending.note_end(self.shard);
        if self.must_drain {
            self.begin_drain.begin(DrainPlan::default());
        }
    }
}

/// All it takes to begin a drain.
struct BeginDrain {
    admission: Arc<Admission>,
    remote: Remote,
    ending: Arc<Ending>,
}

impl BeginDrain {
    /// A full mailbox empties within a turn, and that of a shard that is gone takes everything. One that stays full is
    /// that of a shard that is stuck in a handler, for which nobody waits longer than for the drain.
    fn begin(&self, plan: DrainPlan) {
        let shards = 0..self.remote.shards();
        let most = shards.map(|shard| self.admission.connections_of(shard)).max().unwrap_or(0);
        let deadline = self.ending.begin_drain(plan, most);
        self.admission.begin_drain();
        while self.remote.drain(plan).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// How a drain went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that did not close by the deadline and were reset.
    pub forced: usize,
    /// Work on workers that had not returned by the deadline, by its route. Its threads are left to themselves, and end with the
    /// process.
    pub stuck: Vec<RunningJob>,
    /// Shards that did not come back from a handler. Their threads are left to themselves, with their connections, and end
    /// with the process.
    pub stuck_shards: Vec<StuckShard>,
}

/// A shard that is in a handler which does not return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckShard {
    /// The event loop, from 0; with [`Io::Threads`](crate::Io::Threads) the number in the name of the connection's thread.
    pub shard: usize,
    /// The path of the handler's route, as it was given to the server.
    pub route: String,
    /// The shard's connections, of which none was closed. With [`Io::Threads`](crate::Io::Threads) they are among
    /// [`Drained::forced`], too.
    pub connections: usize,
}

/// How busy a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLoad {
    /// How long its turns have taken since it began, all together.
    pub busy: Duration,
    /// The longest turn since this was asked last, at least of a second: how long an event may have waited for others.
    pub longest_turn: Duration,
}

type Start = Box<dyn FnOnce() -> std::io::Result<usize> + Send>;

/// Shards ready to run, whatever their driver.
pub(crate) struct Shards {
    starts: Vec<Start>,
    hub: Hub,
    snapshots: Arc<[Arc<Snapshot>]>,
    admission: Arc<Admission>,
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
            .map_err(|error| Error::Setting(error.to_string()))
    }

    /// Of the family with a thread for each connection: one shard to start, that of the acceptor.
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
            .map_err(|error| Error::Setting(error.to_string()))
    }

    fn new<D, S>(built: Built<D, S>) -> Self
    where
        D: Driver + Send + 'static,
        S: Service + Send + 'static,
    {
        let Built { shards, remote, snapshots, totals, admission } = built;
        let starts =
            shards.into_iter().map(|mut shard| Box::new(move || shard.run()) as Start).collect();
        Self { starts, hub: Hub::new(remote, totals), snapshots, admission }
    }

    pub(crate) fn remote(&self) -> &Remote {
        self.hub.remote()
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
    fn a_shard_that_fails_ends_the_others_and_is_told() {
        let running = run_with(Box::new(|| Err(io::Error::other("no poll"))));
        assert!(
            matches!(running.join(), Err(Error::Shard(error)) if error.to_string() == "no poll")
        );
        let running = run_with(Box::new(|| panic!("a bug")));
        assert!(matches!(running.join(), Err(Error::ShardPanicked)));
    }

    #[test]
    fn a_shard_that_is_gone_holds_up_no_drain() {
        let running = run_with(Box::new(|| Err(io::Error::other("no poll"))));
        let its = throng_io::ConnId::new(2, 0, 0).to_bits();
        for _ in 0..throng_engine::MAILBOX_CAPACITY + 10 {
            running.hub().send(Handle::from_bits(its), "is anybody there?").unwrap();
        }
        assert!(running.drain(DrainPlan::default()).is_err());
    }

    #[test]
    fn a_cpu_that_the_kernel_refuses_is_told_and_its_shard_serves() {
        let mut bound = Server::new(App::new()).shards(2).bind("127.0.0.1:0").unwrap();
        let none_such = 1 << 20;
        bound.placement = crate::pin::place(&[], |cpu| cpu, &[none_such, none_such + 1], 2).ok();
        assert_eq!(bound.placement().unwrap().refusals(), []);
        let running = bound.spawn().unwrap();
        let refused = running.placement().unwrap().refusals();
        assert_eq!(refused.iter().map(|refusal| refusal.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(running.drain(DrainPlan::default()).unwrap().forced, 0);
    }

    #[test]
    fn debug_tells_where_and_how_many() {
        let bound = Server::new(App::new()).shards(2).bind("127.0.0.1:0").unwrap();
        let address = bound.local_addr();
        assert_eq!(format!("{bound:?}"), format!("Bound({address}, 2 shards)"));
        let running = bound.spawn().unwrap();
        assert_eq!(format!("{running:?}"), format!("Running({address}, 2 shards)"));
        running.drain(DrainPlan::default()).unwrap();
    }
}
