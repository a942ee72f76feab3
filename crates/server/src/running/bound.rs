//! A server that listens and does not answer yet.

use std::fmt;
use std::sync::Arc;

use throng_engine::DrainPlan;
use throng_io::tables::Tables;

#[cfg(feature = "signals")]
use super::Drained;
use super::Running;
use super::serving::{Serving, getters};
use super::shards::StartShard;
use crate::error::{Error, Result};
use crate::shutdown::ServerDrain;

/// A server that listens but does not answer yet.
///
/// Connections wait in the kernel's queue until [`run`](Self::run) or [`start`](Self::start).
/// Dropping it closes the listeners.
#[must_use = "a bound server answers nothing until `run` or `start`"]
pub struct Bound {
    pub(crate) serving: Serving,
    pub(crate) starts: Vec<StartShard>,
    /// The descriptor tables of the shards, where each has its own.
    pub(crate) tables: Option<Tables>,
    pub(crate) starts_workers: bool,
}

getters!(Bound);

impl Bound {
    /// Runs the server, and returns only when it has failed. To stop a server, use
    /// [`run_until_signal`](Self::run_until_signal), or [`start`](Self::start) and
    /// [`Running::shutdown`].
    ///
    /// # Errors
    /// A shard's thread could not be started, or failed.
    pub fn run(self) -> Result<()> {
        self.start()?.wait().map(drop)
    }

    /// Runs the server until the process gets SIGINT or SIGTERM, and then drains it with `plan`. A
    /// second signal ends the process at once. On Windows, an event of the console takes the place
    /// of a signal: Ctrl-C, Ctrl-Break, a closed window, or the end of the session.
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
    #[cfg(feature = "signals")]
    pub fn run_until_signal(self, plan: DrainPlan) -> Result<Drained> {
        super::until_signal::run_until_signal(self, plan)
    }

    /// Uses the keys of the process that this one replaces for session tickets, so that its clients
    /// can resume their sessions. It has no effect if the keys come from a file, and clients with
    /// other requirements for their certificates are not accepted by these keys.
    #[cfg(feature = "tls")]
    pub fn take_ticket_keys(&self, keys: &crate::tls::TicketKeys) {
        self.serving.security.take_ticket_keys(keys);
    }

    /// Starts the server on its own threads, and returns at once.
    ///
    /// # Errors
    /// A shard's thread, or a thread of the worker pool, could not be started.
    pub fn start(self) -> Result<Running> {
        let Self { serving, starts, tables, starts_workers } = self;
        // Worker threads started later, by the first job's shard, would inherit its CPU affinity.
        let starts_workers = starts_workers || serving.placement.is_some();
        if let Some(workers) = serving.pool.get()
            && starts_workers
        {
            workers.start().map_err(Error::of_workers)?;
        }
        let tables = tables.map(Arc::new);
        let mut running = Running {
            serving,
            threads: Vec::with_capacity(starts.len()),
            drain: Arc::new(ServerDrain::new(starts.len())),
            #[cfg(feature = "acme")]
            acme: None,
        };
        let mut starts = starts.into_iter();
        while let Some(start) = starts.next() {
            let shard = running.threads.len();
            let Err(error) = running.start_shard(start, tables.as_ref()) else { continue };
            // Shards that never ran read no commands; the drain must not wait for them.
            let never_ran = shard..=shard + starts.len();
            drop(starts);
            never_ran.for_each(|shard| running.drain.record_end(shard));
            let _ = running.shutdown(DrainPlan::default()).wait();
            return Err(Error::Shard(error));
        }
        #[cfg(feature = "acme")]
        {
            // From here on the server answers the certificate authority's challenges.
            running.acme = running.serving.security.start_issuer()?;
        }
        Ok(running)
    }
}

impl fmt::Debug for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bound({}, {} shards)", self.local_addr(), self.starts.len())
    }
}
