//! A pool of client connections on one thread, doing some [`Work`] that is steered from here.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use throng_load::client::{
    self, Handshake, PoolShared, Setup, ThreadStart, Work, WsStart, open_driver,
};
use throng_load::clock::Clock;
use throng_load::run::{FinishOnPanic, Steering};
use throng_load::sampler::Processes;
use throng_load::{Deflate, Error, Mode, Plan, Progress, Sources, Target, descriptors, sources};

/// Maximum connections from one loopback address: connect(2) tries every even port before an odd
/// one, so many more connections from one address would take minutes.
pub(crate) const PER_SOURCE: usize = 6_000;

/// A pool of client connections.
pub(crate) struct SteeredPool<'a> {
    pub(crate) target: &'a Target,
    pub(crate) connections: usize,
    /// The number of the pool's first connection among the connections of all processes to this
    /// address, and their total. Both determine the source addresses.
    pub(crate) first: usize,
    pub(crate) of: usize,
    /// Largest message.
    pub(crate) size: usize,
    /// They come within this time.
    pub(crate) ramp: Duration,
    /// Messages are sent at their planned times.
    pub(crate) exact: bool,
    pub(crate) setup_timeout: Duration,
    /// The compression that the clients offer.
    pub(crate) deflate: Deflate,
    /// Processes whose CPU use is sampled during the run.
    pub(crate) watched: Option<&'a Processes>,
    pub(crate) stop: &'a AtomicBool,
}

impl<'a> SteeredPool<'a> {
    /// Creates a pool without a ramp, without exact times, and without watched processes.
    pub(crate) fn new(
        target: &'a Target,
        connections: usize,
        size: usize,
        stop: &'a AtomicBool,
    ) -> Self {
        Self {
            target,
            connections,
            first: 0,
            of: connections,
            size,
            ramp: Duration::ZERO,
            exact: false,
            setup_timeout: Duration::from_secs(10),
            deflate: Deflate::default(),
            watched: None,
            stop,
        }
    }

    fn handshake(&self) -> Result<Handshake, Error> {
        if !self.deflate.enabled {
            return Ok(Handshake::plain(&self.target.host_header()));
        }
        let idle = Mode::Idle { hold: Duration::ZERO };
        let plan = Plan { deflate: self.deflate, ..Plan::new(self.target.clone(), idle) };
        Handshake::of(&plan, 0)
    }

    /// Runs `work` until `steer` returns, and resets the connections.
    ///
    /// # Errors
    /// Errors of `steer`; a connection that failed; [`Error::Interrupted`].
    pub(crate) fn run<W: Work + Send, R>(
        &self,
        work: W,
        watch: &mut dyn FnMut(&Progress),
        steer: impl FnOnce(&mut Steering<'_>, &PoolShared) -> Result<R, Error>,
    ) -> Result<(R, Setup, W::Outcome), Error> {
        let peer = self.target.resolve()?;
        let loopback = matches!(peer.ip(), IpAddr::V4(ip) if ip.is_loopback());
        let wish = loopback.then(|| self.of.div_ceil(PER_SOURCE));
        let sources = Sources::plan(peer, self.of, sources::ephemeral_ports(), wish)?;
        descriptors::make_room(self.connections)?;
        let clock = Clock;
        let shared = Arc::new(PoolShared::new(1));
        let driver = open_driver(self.connections, self.size, None)?;
        let start = ThreadStart {
            first: self.first,
            ramp: self.ramp,
            exact: self.exact,
            ..ThreadStart::single(&shared, peer, sources, self.connections, driver)
        };
        let ws = WsStart {
            handshake: Arc::new(self.handshake()?),
            setup_timeout: self.setup_timeout,
            size: self.size,
            backlog: 1 << 20,
        };
        let mut steering =
            Steering::new(clock, &shared, self.watched, self.setup_timeout, self.stop, watch);
        thread::scope(|scope| {
            let finish = Arc::clone(&shared);
            let clients = thread::Builder::new()
                .name("throng-clients".to_owned())
                .spawn_scoped(scope, move || {
                    let finish = FinishOnPanic(finish);
                    let ran = client::run(start, &ws, work);
                    ran.map_err(|error| finish.0.fail(error)).ok()
                })
                .map_err(|error| Error::io("start a thread", error))?;
            let steered = steer(&mut steering, &shared);
            shared.finish();
            // A panic of ours: it has been printed; pass it on.
            let finished = clients.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // The clients' failure explains why the steering ended, if both did.
            if let Some(error) = shared.take_failure() {
                return Err(error);
            }
            let steered = steered?;
            let (setup, outcome) = finished.ok_or(Error::Interrupted)?;
            Ok((steered, setup, outcome))
        })
    }
}
