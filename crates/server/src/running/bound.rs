//! A server that listens and does not answer yet.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use throng_engine::DrainPlan;
use throng_io::Listener;

#[cfg(feature = "signals")]
use super::Drained;
use super::{Running, ShardThreads};
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

/// Addresses on which a server listens: at least one of both.
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

/// How many connections a server may hold, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capacity {
    /// The number, as [`Bound::max_connections`] returns it.
    pub connections: usize,
    /// The origin of the number where each shard has a descriptor table of its own; `None` where
    /// all share one.
    pub reason: Option<String>,
    /// Why the shards share a descriptor table although each was to have its own.
    pub tables_refused: Option<String>,
}

/// A server that listens but does not answer yet.
///
/// Connections wait in the kernel's queue until [`run`](Self::run) or [`spawn`](Self::spawn).
/// Dropping it closes the listeners.
#[must_use = "a bound server answers nothing until `run` or `spawn`"]
pub struct Bound {
    pub(crate) addresses: Addresses,
    pub(crate) shards: ShardThreads,
    pub(crate) placement: Option<Placement>,
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) pool: Pool,
    pub(crate) starts_workers: bool,
    pub(crate) security: Security,
    pub(crate) origins: LiveOrigins,
    pub(crate) capacity: Capacity,
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
    /// [`CpuAffinity::Cores`](crate::server::CpuAffinity::Cores). [`Running::placement`] also has
    /// the CPUs that the kernel refused.
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

    /// Returns how many connections it may hold, and why.
    #[must_use]
    pub fn capacity(&self) -> &Capacity {
        &self.capacity
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
    /// let app = App::new().ws("/", Ws::new().on_message(|ws, (), message| ws.send(message)));
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
        let waiting = std::thread::Builder::new()
            .name(name)
            .spawn(wait)
            .map_err(|error| Error::Shard(throng_io::limits::thread_not_started(&error)))?;
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
        let ShardThreads { starts, tables, hub, snapshots, admission, configurator } = self.shards;
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
            #[cfg(feature = "acme")]
            acme: None,
        };
        let mut starts = starts.into_iter();
        while let Some(start) = starts.next() {
            let shard = running.threads.len();
            let Err(error) = running.start_shard(start, tables.as_ref()) else { continue };
            // ShardThreads that never ran read no commands; the drain must not wait for them.
            let never_ran = shard..=shard + starts.len();
            drop(starts);
            never_ran.for_each(|shard| running.shutdown.record_end(shard));
            let _ = running.drain(DrainPlan::default());
            return Err(Error::Shard(error));
        }
        #[cfg(feature = "acme")]
        {
            // The server answers to its challenges by now.
            running.acme = running.security.start_issuer()?;
        }
        Ok(running)
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({}, {} shards)", self.local_addr(), self.shards.starts.len())
    }
}
