//! Thread-per-connection mode: an acceptor, and for each accepted connection a thread with a shard
//! of its own, which ends with the connection.
//!
//! Handlers of different connections run in parallel and may block. Each connection has the costs
//! that a shard of thousands has once. So each shard has tables for one connection, adds its
//! counters to shared counters, frees its memory for large messages once a second, and sleeps until
//! something is due instead of checking every second.

use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

use throng_io::{ConnId, Driver};
use throng_proto::SettingError;

use crate::admission::Admission;
use crate::build::{BuildOptions, Built, SharedParts, shard_seed};
use crate::configuration::Configuration;
use crate::configurator::Configurator;
use crate::conn::by_address::AddressKey;
use crate::conn::proxy_protocol::ProxyProtocol;
use crate::connections::Connections;
use crate::connections::memory::{MemoryAccount, ShardMemory};
use crate::context::Core;
use crate::context::clocks::Clocks;
use crate::context::mail::ShardMail;
use crate::drop_guarded::drop_guarded;
use crate::pubsub::delivery::AckSlot;
use crate::remote::adoption::Early;
use crate::remote::mailbox::mailbox;
use crate::remote::registry::ThreadRegistry;
use crate::remote::{
    MAILBOX_CAPACITY, MAILBOX_MARK, Remote, ShardInbox, ShardQueue, shard_queue, thread_queue,
};
use crate::samples::Samples;
use crate::service::Service;
use crate::shard::Shard;
use crate::stalls::{SharedProgress, Watch, Watching};
use crate::start::EngineStart;
use crate::stats::Snapshot;

/// Capacity in commands of the queue of one connection, whose handler may block: more than a burst,
/// and less than would matter if all handlers block at once.
const THREAD_QUEUE_CAPACITY: usize = 8192;

/// Creates the driver of one connection, given its thread's number and the number of earlier
/// connections with that number.
pub type ThreadDriver<D> = Box<dyn Fn(u16, u32) -> io::Result<D> + Send + Sync>;

/// Creates the service of one connection.
type ThreadService<S> = Box<dyn Fn(&Arc<Admission>) -> S + Send + Sync>;

/// Further options of [`build_threads`].
pub struct ThreadOptions<D> {
    /// Bytes of a thread's stack. Only the used part takes memory.
    pub stack_size: usize,
    /// Creates the driver of a connection.
    pub driver: ThreadDriver<D>,
}

impl<D> std::fmt::Debug for ThreadOptions<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadOptions")
            .field("stack_size", &self.stack_size)
            .finish_non_exhaustive()
    }
}

/// State common to the shards of all connections.
struct ThreadPerConnection<D, S> {
    threads: ThreadOptions<D>,
    service: ThreadService<S>,
    configuration: Arc<Mutex<Arc<Configuration>>>,
    remote: Remote,
    registry: Arc<ThreadRegistry>,
    admission: Arc<Admission>,
    snapshot: Arc<Snapshot>,
    watching: Option<Watching>,
    /// Bytes of request bodies that are buffered. Common to all: an equal part for each shard, as
    /// with event loops, would be smaller than a body.
    account: Arc<MemoryAccount>,
    buffered: Arc<AtomicUsize>,
    seed: u64,
    proxy_protocol: Option<ProxyProtocol>,
}

/// Builds a server of one shard, which accepts on `acceptor` and starts a thread for each
/// connection. The snapshot counts for all of them.
///
/// # Errors
/// Limits or classes contradict themselves.
pub fn build_threads<D, S>(
    acceptor: D,
    options: &BuildOptions,
    threads: ThreadOptions<D>,
    service: impl Fn(&Arc<Admission>) -> S + Send + Sync + 'static,
) -> Result<Built<D, S>, SettingError>
where
    D: Driver + Send + 'static,
    S: Service + Send + 'static,
{
    let SharedParts { configuration, totals, account, stores, admission } =
        SharedParts::new(options, &options.limits.with_threads(), 1)?;
    let (queue, inbox) = shard_queue(MAILBOX_CAPACITY, MAILBOX_MARK, acceptor.waker());
    let registry = Arc::new(ThreadRegistry::new(acceptor.waker()));
    let remote = Remote::with_registry(
        queue.clone(),
        Arc::clone(&registry),
        Arc::clone(&totals),
        acceptor.clock(),
        stores,
    );
    let snapshot = Arc::new(Snapshot::new(&configuration.rules));
    let configuration = Arc::new(Mutex::new(Arc::new(configuration)));
    let shared = Arc::new(ThreadPerConnection {
        threads,
        service: Box::new(service),
        configuration: Arc::clone(&configuration),
        remote: remote.clone(),
        registry,
        admission: Arc::clone(&admission),
        snapshot: Arc::clone(&snapshot),
        watching: options.watching.clone(),
        buffered: Arc::default(),
        account: Arc::clone(&account),
        seed: options.seed(),
        proxy_protocol: options.proxy_protocol.clone(),
    });
    let (progress, now) = (Arc::clone(&snapshot.progress), current(&configuration));
    let mut shard = shared.shard(acceptor, 0, 0, (queue, inbox), progress, &now);
    let start = move |socket, peer, key, early| shared.start(socket, (peer, key), early);
    shard.set_starter(Box::new(start));
    let snapshots: Arc<[_]> = Arc::new([snapshot]);
    let configurator = Configurator {
        current: configuration,
        remote: remote.clone(),
        admission: Arc::clone(&admission),
        account,
        snapshots: Arc::clone(&snapshots),
        parts: 1,
        is_threaded: true,
    };
    Ok(Built { shards: vec![shard], remote, snapshots, totals, admission, configurator })
}

impl<D, S> ThreadPerConnection<D, S>
where
    D: Driver + Send + 'static,
    S: Service + Send + 'static,
{
    fn shard(
        &self,
        driver: D,
        thread: u16,
        generation: u32,
        mail: (ShardQueue, ShardInbox),
        progress: Arc<SharedProgress>,
        configuration: &Configuration,
    ) -> Shard<D, S> {
        let name = ConnId::new(thread, 0, generation).to_bits();
        let seed = shard_seed(self.seed, name);
        let capacity = 1;
        let memory = ShardMemory::new(Arc::clone(&self.account), true, seed);
        let mut connections = Connections::new(configuration, capacity, seed, driver.now(), memory);
        // All have the same slot: their thread numbers keep them from being pinged at the same
        // time.
        connections.spread_heartbeats(thread.into());
        let (_, handovers) = mailbox(0, driver.waker());
        let load = Arc::clone(&self.snapshot.load);
        let watch = Watch::new(thread.into(), self.watching.clone(), progress, load);
        let watch = watch.of_one_connection();
        let samples = Samples::new(Arc::clone(&self.snapshot.measured));
        let clocks = Clocks::new(driver.clock(), watch, samples);
        Shard::new(EngineStart {
            core: Core::new(thread, connections, &self.remote, ShardMail::new(mail), clocks),
            service: (self.service)(&self.admission),
            admission: Arc::clone(&self.admission),
            handovers,
            neighbours: Vec::new(),
            snapshot: Arc::clone(&self.snapshot),
            capacity,
            seed,
            proxy_protocol: self.proxy_protocol.clone(),
            buffered: Some(Arc::clone(&self.buffered)),
            driver,
        })
    }

    /// Reserves a number, and creates a driver, a shard and a thread. Returns the socket if any of
    /// them cannot be created.
    ///
    /// The shard is created here, on the acceptor's stack: creating it on the connection's stack
    /// would use four pages of every stack.
    fn start(
        self: &Arc<Self>,
        socket: D::Socket,
        (peer, key): (Option<SocketAddr>, Option<AddressKey>),
        early: Option<Early>,
    ) -> Result<(), D::Socket> {
        let Some((thread, generation)) = self.registry.reserve() else { return Err(socket) };
        let Ok(driver) = (self.threads.driver)(thread, generation) else {
            self.registry.vacate(thread, 0);
            return Err(socket);
        };
        let mailbox = thread_queue(THREAD_QUEUE_CAPACITY, driver.waker());
        let queue = mailbox.0.clone();
        let progress = Arc::new(SharedProgress::default());
        let its = Arc::clone(&progress);
        let configuration = current(&self.configuration);
        // The user's data has a default that may panic.
        let made = catch_unwind(AssertUnwindSafe(|| {
            Box::new(self.shard(driver, thread, generation, mailbox, its, &configuration))
        }));
        let Ok(shard) = made else {
            self.registry.vacate(thread, 0);
            return Err(socket);
        };
        self.registry.occupy(thread, queue.clone(), progress);
        // A change that came earlier is not in the queue of this thread.
        let latest = current(&self.configuration);
        if !Arc::ptr_eq(&latest, &configuration) {
            queue.configure(&latest, AckSlot::unclaimed());
        }
        // A thread that cannot be started drops its closure, but the socket is still needed.
        let waiting = Arc::new(Mutex::new(Some(socket)));
        let (shared, given) = (Arc::clone(self), Arc::clone(&waiting));
        let builder = std::thread::Builder::new()
            .name(format!("throng-{thread}"))
            .stack_size(self.threads.stack_size);
        let started = builder.spawn(move || {
            let socket = take(&given);
            drop(given);
            if let Some(socket) = socket {
                shared.serve(shard, thread, socket, (peer, key), early);
            }
        });
        if started.is_ok() {
            return Ok(());
        }
        self.registry.vacate(thread, 0);
        take(&waiting).map_or(Ok(()), Err)
    }

    /// Runs a connection on its thread.
    fn serve(
        &self,
        mut shard: Box<Shard<D, S>>,
        thread: u16,
        socket: D::Socket,
        (peer, key): (Option<SocketAddr>, Option<AddressKey>),
        early: Option<Early>,
    ) {
        // A driver's wait that fails, or a bug in the shard, ends this connection and no other.
        let served = catch_unwind(AssertUnwindSafe(|| shard.serve(socket, peer, key, early)));
        if !matches!(served, Ok(Ok(()))) {
            let _ = catch_unwind(AssertUnwindSafe(|| shard.abandon()));
        }
        let forced = shard.forced();
        // It holds commands that came too late, and values in them are the user's.
        drop_guarded(shard);
        self.registry.vacate(thread, forced);
        if !self.admission.is_ready() {
            self.registry.wake_acceptor();
        }
    }
}

fn current(configuration: &Mutex<Arc<Configuration>>) -> Arc<Configuration> {
    Arc::clone(&configuration.lock().unwrap_or_else(PoisonError::into_inner))
}

fn take<T>(slot: &Mutex<Option<T>>) -> Option<T> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl<D: Driver, S: Service> Shard<D, S> {
    /// Serves one connection until it has ended.
    fn serve(
        &mut self,
        socket: D::Socket,
        peer: Option<SocketAddr>,
        key: Option<AddressKey>,
        early: Option<Early>,
    ) -> io::Result<()> {
        if let Some((id, early)) = self.adopt(socket, peer, key).zip(early) {
            self.begin_with(id, early);
        }
        while self.core().conns.stats().connections > 0 {
            self.turn()?;
        }
        Ok(())
    }
}
