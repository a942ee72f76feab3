//! The life of a server: bound, running, drained.

mod bound;
mod capacity;
mod drain;
mod serving;
mod shards;
#[cfg(feature = "signals")]
#[cfg_attr(windows, path = "until_signal/windows.rs")]
mod until_signal;

use std::fmt;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use throng_engine::{DrainPlan, Snapshot, Stats};
use throng_io::tables::Tables;

use crate::error::{Error, Result};
use crate::shutdown::ServerDrain;
#[cfg(feature = "tls")]
use crate::tls::CertificateStatus;
pub use bound::Bound;
pub(crate) use capacity::Addresses;
pub use capacity::Capacity;
use drain::ExitGuard;
pub use drain::{Drained, Shutdown, Stopper, StuckShard};
pub(crate) use serving::Serving;
use serving::getters;
pub(crate) use shards::ShardThreads;
use shards::StartShard;

/// A running server.
///
/// [`shutdown`](Self::shutdown) ends it gracefully; [`wait`](Self::wait) waits until it has ended.
///
/// Dropping it ends the server at once, as [`DrainPlan::NOW`] does; if a shutdown has begun,
/// dropping does not wait for it. [`detach`](Self::detach) keeps the server running.
#[must_use = "keep it to `shutdown` or `wait`; dropped, it ends the server"]
pub struct Running {
    pub(crate) serving: Serving,
    threads: Vec<JoinHandle<std::io::Result<usize>>>,
    drain: Arc<ServerDrain>,
    #[cfg(feature = "acme")]
    acme: Option<throng_acme::AcmeClient>,
}

getters!(Running);

impl Running {
    /// Reads the files of [`Server::tls`](crate::Server::tls) again, for later connections.
    /// Sessions stay open, and clients can still resume them unless the authorities of client
    /// certificates have changed. Without TLS it does nothing. It also checks a certificate of an
    /// authority (`Tls::acme`), and orders or renews it if necessary.
    ///
    /// # Errors
    /// [`Error::Setting`] names the file and the remedy; the server keeps its current certificates.
    #[cfg(feature = "tls")]
    pub fn reload_tls(&self) -> Result<()> {
        #[cfg(feature = "acme")]
        if let Some(acme) = &self.acme {
            acme.check_now();
        }
        self.serving.security.reload()
    }

    /// Returns the certificates of [`Server::tls`](crate::Server::tls). Empty without TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn certificates(&self) -> Vec<CertificateStatus> {
        self.serving.security.certificates().into_iter().map(CertificateStatus::new).collect()
    }

    /// Returns the keys of session tickets that this process has drawn, for a process that replaces
    /// it: [`Bound::take_ticket_keys`](crate::server::Bound::take_ticket_keys). Empty if they
    /// come from a file.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn ticket_keys(&self) -> crate::tls::TicketKeys {
        self.serving.security.ticket_keys()
    }

    /// Calls [`Running::reload_tls`] if a file was modified since it was last read, or if a
    /// certificate has become valid since then. Returns whether it was called. The check costs a
    /// system call for each file.
    ///
    /// # Errors
    /// As for [`Running::reload_tls`], once for each modification, and once when a certificate
    /// becomes valid.
    #[cfg(feature = "tls")]
    pub fn reload_tls_if_changed(&self) -> Result<bool> {
        self.serving.security.reload_if_changed()
    }

    /// Returns whether a shard has ended: after a drain, or because it failed. [`Running::wait`]
    /// returns the reason.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.threads.iter().any(JoinHandle::is_finished)
    }

    /// Returns the metrics of each shard, at most one second old.
    #[must_use]
    pub fn shard_stats(&self) -> Vec<Stats> {
        self.serving.snapshots.iter().map(|snapshot| snapshot.read()).collect()
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
        self.serving.snapshots.iter().map(load).collect()
    }

    /// Begins to shut the server down gracefully; the [`Shutdown`] waits until it has ended.
    ///
    /// The server becomes unready, refuses new connections, closes sessions with 1001 over the
    /// plan's window, and resets connections still open at the deadline. With [`DrainPlan::NOW`] it
    /// ends at once: sessions get a Close frame, without time for an answer.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn main() -> throng::Result<()> {
    /// let running = Server::new(App::new()).bind("127.0.0.1:0")?.start()?;
    /// let drained = running.shutdown(DrainPlan::default()).wait()?;
    /// assert_eq!(drained.forced, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shutdown(self, plan: DrainPlan) -> Shutdown {
        self.stopper().shutdown(plan);
        Shutdown { running: self }
    }

    /// Returns a handle that begins the shutdown from elsewhere, such as from a thread that waits
    /// for signals.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper {
            admission: Arc::clone(&self.serving.admission),
            remote: self.serving.hub.remote().clone(),
            drain: Arc::clone(&self.drain),
        }
    }

    /// Starts the thread of the next shard, and lets it pin itself and enter its descriptor table.
    fn start_shard(
        &mut self,
        start: StartShard,
        tables: Option<&Arc<Tables>>,
    ) -> std::io::Result<()> {
        let shard = self.threads.len();
        let cpu = self.serving.placement.as_ref().map(|placement| placement.places()[shard].cpu);
        let (report, begun) = mpsc::sync_channel(1);
        let own = tables.cloned();
        let exit_guard = ExitGuard { shard, stopper: self.stopper(), must_drain: true };
        let name = format!("throng-shard-{shard}");
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            // Moves the whole guard into the thread, so that its drop runs at any end of the
            // thread.
            let mut exit_guard = exit_guard;
            // Pins before anything else, so that the shard's memory is near its CPU.
            let pinned = cpu.map_or(Ok(()), throng_io::affinity::pin_thread);
            let table = own.map(|tables| tables.enter(shard)).transpose();
            let _ = report.send((pinned, table.is_ok()));
            let ended = table.and_then(|_table| start());
            exit_guard.must_drain = ended.is_err();
            ended
        });
        self.threads.push(spawned.map_err(|error| throng_io::limits::thread_not_started(&error))?);
        if self.serving.placement.is_none() && tables.is_none() {
            return Ok(());
        }
        let Ok((pinned, entered)) = begun.recv() else { return Ok(()) };
        // A shard that has not entered its own table closes its descriptors in this one.
        if let Some(tables) = tables.filter(|_| entered) {
            tables.leave_to(shard);
        }
        if let (Some(placement), Err(reason)) = (&mut self.serving.placement, pinned) {
            placement.record_refusal(shard, &reason);
        }
        Ok(())
    }

    /// Lets the server run until the process ends. It can no longer be shut down or waited for,
    /// except by a [`Stopper`]; its [`Hub`](crate::Hub) still works.
    pub fn detach(mut self) {
        self.threads.clear();
    }

    /// Waits until the server has ended: by a [`Stopper`], or because a shard failed. Once a
    /// shutdown has begun, this waits no longer than [`Shutdown::wait`] does.
    ///
    /// # Errors
    /// A shard failed. Its failure drained the others with the default plan, so they have ended
    /// too. If several failed, returns the error of the lowest-numbered shard.
    pub fn wait(mut self) -> Result<Drained> {
        self.end()
    }

    /// Waits until the server has ended.
    fn end(&mut self) -> Result<Drained> {
        let threads = std::mem::take(&mut self.threads);
        let progress = |shard: usize| self.serving.snapshots[shard].progress();
        let remind = |plan| {
            let _ = self.serving.hub.remote().drain(plan);
        };
        let stuck = self.drain.wait(progress, remind);
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
        if let Some(workers) = self.serving.pool.get() {
            // Shards end without an error only in a drain; without one there is nothing to wait
            // for.
            let stuck = workers.stop(self.drain.deadline().unwrap_or_else(Instant::now));
            if let Ok(drained) = &mut outcome {
                drained.stuck = stuck;
            }
        }
        outcome
    }

    /// Returns the stuck event loops, and the stuck threads of single connections that the acceptor
    /// has waited for.
    fn stuck_shards(&self, stuck: &[(usize, u32)]) -> Vec<StuckShard> {
        let path = |route| self.serving.stalls.path(route).to_owned();
        let shards = stuck.iter().map(|&(shard, route)| StuckShard {
            shard,
            route: path(route),
            connections: self.serving.admission.connections_of(shard),
        });
        let threads = self.serving.hub.remote().in_callbacks();
        let threads = threads.into_iter().map(|(shard, route)| StuckShard {
            shard,
            route: path(route),
            connections: 1,
        });
        shards.chain(threads).collect()
    }
}

/// Ends the server, unless it was detached, shuts down or has ended.
impl Drop for Running {
    fn drop(&mut self) {
        if !self.threads.is_empty() && self.drain.deadline().is_none() {
            self.stopper().shutdown(DrainPlan::NOW);
            // There is no caller left to return the error to.
            let _ = self.end();
        }
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Running({}, {} shards)", self.local_addr(), self.threads.len())
    }
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
    /// The number of completed turns. A shard with connections takes a turn once a second, even if
    /// they are all idle.
    pub turns: u64,
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::app::App;
    use crate::builder::Server;
    use crate::handle::Handle;

    /// Starts a server of three shards whose last shard is replaced by `broken`.
    fn run_with(broken: StartShard) -> Running {
        let mut bound = Server::new(App::new()).shards(3).bind("127.0.0.1:0").unwrap();
        *bound.starts.last_mut().unwrap() = broken;
        bound.start().unwrap()
    }

    #[test]
    fn a_shard_that_fails_ends_the_others_and_is_reported() {
        let running = run_with(Box::new(|| Err(io::Error::other("no poll"))));
        assert!(
            matches!(running.wait(), Err(Error::Shard(error)) if error.to_string() == "no poll")
        );
        let running = run_with(Box::new(|| panic!("a bug")));
        assert!(matches!(running.wait(), Err(Error::ShardPanicked)));
    }

    #[test]
    fn a_shard_that_has_ended_holds_up_no_drain() {
        let running = run_with(Box::new(|| Err(io::Error::other("no poll"))));
        let its = throng_io::ConnId::new(2, 0, 0).to_bits();
        for _ in 0..throng_engine::MAILBOX_CAPACITY + 10 {
            running.hub().send(Handle::from_bits(its), "hello?").unwrap();
        }
        assert!(running.shutdown(DrainPlan::default()).wait().is_err());
    }

    #[test]
    fn a_cpu_that_the_kernel_refuses_is_reported_and_its_shard_serves() {
        let mut bound = Server::new(App::new()).shards(2).bind("127.0.0.1:0").unwrap();
        let none_such = 1 << 20;
        bound.serving.placement =
            throng_io::placement::place(&[], |cpu| cpu, &[none_such, none_such + 1], 2).ok();
        assert_eq!(bound.placement().unwrap().refusals(), []);
        let running = bound.start().unwrap();
        let refused = running.placement().unwrap().refusals();
        assert_eq!(refused.iter().map(|refusal| refusal.0).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(running.shutdown(DrainPlan::default()).wait().unwrap().forced, 0);
    }

    #[test]
    fn debug_shows_the_address_and_the_number_of_shards() {
        let bound = Server::new(App::new()).shards(2).bind("127.0.0.1:0").unwrap();
        let address = bound.local_addr();
        assert_eq!(format!("{bound:?}"), format!("Bound({address}, 2 shards)"));
        let running = bound.start().unwrap();
        assert_eq!(format!("{running:?}"), format!("Running({address}, 2 shards)"));
        running.shutdown(DrainPlan::default()).wait().unwrap();
    }
}
