//! A bound server, and a running one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use throng_engine::{Admission, Built, DrainPlan, Limits, Remote, Service, Snapshot, Stats};
use throng_io::Driver;

use crate::error::{Error, Result};
use crate::hub::Hub;

/// A server that listens but does not answer yet.
pub struct Bound {
    address: SocketAddr,
    shards: Shards,
}

impl Bound {
    pub(crate) fn new(address: SocketAddr, shards: Shards) -> Self {
        Self { address, shards }
    }

    /// Where it listens; with port 0 asked for, the port it got.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The way to its connections and channels from any thread.
    #[must_use]
    pub fn hub(&self) -> Hub {
        Hub::new(self.shards.remote.clone())
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
    /// A shard's thread could not be started.
    pub fn spawn(self) -> Result<Running> {
        let Shards { starts, remote, snapshots, admission } = self.shards;
        let mut threads = Vec::with_capacity(starts.len());
        for (shard, start) in starts.into_iter().enumerate() {
            let thread = std::thread::Builder::new()
                .name(format!("throng-shard-{shard}"))
                .spawn(start)
                .map_err(Error::Shard)?;
            threads.push(thread);
        }
        Ok(Running { address: self.address, remote, snapshots, admission, threads })
    }
}

/// A running server.
pub struct Running {
    address: SocketAddr,
    remote: Remote,
    snapshots: Arc<[Arc<Snapshot>]>,
    admission: Arc<Admission>,
    threads: Vec<JoinHandle<std::io::Result<usize>>>,
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
        Hub::new(self.remote.clone())
    }

    /// Connections it may hold.
    #[must_use]
    pub fn max_connections(&self) -> usize {
        self.admission.max_connections()
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

    /// Ends the server in good order: readiness off, no new connections, every session closed with 1001 at its
    /// moment of the plan's window, the rest reset at the deadline. Returns when all is over.
    ///
    /// # Errors
    /// A shard failed before or while draining.
    pub fn drain(self, plan: DrainPlan) -> Result<Drained> {
        self.begin_drain(plan);
        self.join()
    }

    /// The same, without waiting; [`Running::join`] waits.
    pub fn begin_drain(&self, plan: DrainPlan) {
        self.admission.begin_drain();
        // A full mailbox empties within a turn; a shard that is gone has nothing left to drain.
        while Hub::new(self.remote.clone()).drain(plan).is_err() {
            std::thread::yield_now();
        }
    }

    /// Waits until the server has ended.
    ///
    /// # Errors
    /// A shard failed; the others are drained.
    pub fn join(self) -> Result<Drained> {
        let mut outcome = Ok(Drained { forced: 0 });
        for thread in self.threads {
            let ended = match thread.join() {
                Ok(Ok(forced)) => Ok(forced),
                Ok(Err(error)) => Err(Error::Shard(error)),
                Err(_) => Err(Error::ShardPanicked),
            };
            match (ended, &mut outcome) {
                (Ok(forced), Ok(drained)) => drained.forced += forced,
                (Err(error), Ok(_)) => {
                    outcome = Err(error);
                    self.admission.begin_drain();
                    let _ = self.remote.drain(DrainPlan::default());
                }
                _ => {}
            }
        }
        outcome
    }
}

/// How a drain went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Connections that did not close by the deadline and were reset.
    pub forced: usize,
}

type Start = Box<dyn FnOnce() -> std::io::Result<usize> + Send>;

/// Shards ready to run, whatever their driver.
pub(crate) struct Shards {
    starts: Vec<Start>,
    remote: Remote,
    snapshots: Arc<[Arc<Snapshot>]>,
    admission: Arc<Admission>,
}

impl Shards {
    pub(crate) fn build<D, S>(
        drivers: Vec<D>,
        limits: &Limits,
        max_connections: usize,
        service: impl Fn(&Arc<Admission>) -> S,
    ) -> Result<Self>
    where
        D: Driver + Send + 'static,
        S: Service + Send + 'static,
    {
        let Built { shards, remote, snapshots, admission } =
            throng_engine::build(drivers, limits, max_connections, None, |_, admission, _| {
                service(admission)
            })
            .map_err(|error| Error::Setting(error.to_string()))?;
        let starts =
            shards.into_iter().map(|mut shard| Box::new(move || shard.run()) as Start).collect();
        Ok(Self { starts, remote, snapshots, admission })
    }

    pub(crate) fn snapshots(&self) -> &Arc<[Arc<Snapshot>]> {
        &self.snapshots
    }
}
