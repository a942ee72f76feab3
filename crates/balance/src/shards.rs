//! All shards of a balancer: their start, commands, metrics and end.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use throng_engine::mailbox::{Inbox, Mailbox, mailbox};
use throng_http::LiveDate;
use throng_io::affinity::pin_thread;
use throng_io::placement::Placement;
use throng_io::tables::{DescriptorTables, Tables};
use throng_io::{
    Driver, HeldListeners, ListenOptions, Listener, Options, PeerAddress, Purpose, ServerTls,
    UnixPath,
};
use throng_tls::{HandshakeLimits, Tls, TlsServer};

use crate::access::AccessLog;
use crate::backend::Backend;
use crate::command::BalanceCommand;
use crate::configuration::Configuration;
use crate::descriptors::{Division, divide};
use crate::inherited::InheritedSockets;
use crate::listener::{ListenAt, Listeners};
use crate::moves::{self, Movable, Moves, Passage, Runner};
use crate::report::{BackendReport, Metrics};
use crate::settings::Closing;
use crate::shard::{BalanceStart, Placing, RECEIVE_BUFFER, Shard};

#[cfg(target_os = "linux")]
type Sockets = throng_io::Epoll;
#[cfg(windows)]
type Sockets = throng_io::Iocp;
#[cfg(not(any(target_os = "linux", windows)))]
type Sockets = throng_io::Portable;

/// The bytes that the kernel buffers for a slow receiver before it reports a full buffer: enough
/// for a fast receiver, and less than the kernel's default of megabytes.
const UNSENT: u32 = 128 << 10;

/// The idle time after which the kernel probes the other host, so that a tunnel to a host that is
/// gone ends.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// The time after which the kernel ends a connection whose host does not acknowledge or take data;
/// the same as in `throng serve`.
const USER_TIMEOUT: Duration = Duration::from_secs(35);

/// The limit of commands queued for one shard. The control thread sends one command per change, so
/// the limit is never reached.
const COMMANDS: usize = 1 << 16;

/// The parameters of a start.
#[derive(Debug)]
pub struct Launch {
    /// Where to listen. On Linux every shard listens at all of them, elsewhere the first one, which
    /// gives clients to the others.
    pub listen: Vec<ListenAt>,
    /// The number of threads, each with its own connections. 0 means one for each CPU, or more if
    /// the descriptors require it.
    pub shards: usize,
    /// Whether each shard is pinned to a CPU of its own.
    pub is_pinned: bool,
    /// Whether each shard has a descriptor table of its own.
    pub descriptors: DescriptorTables,
    /// The settings and the backends.
    pub configuration: Arc<Configuration>,
    /// The channel for reports of failures.
    pub reports: Sender<BackendReport>,
    /// TLS of clients.
    pub tls: Option<Arc<TlsServer>>,
    /// TLS handshakes of clients that may begin in a second; 0: no limit.
    pub handshakes_per_second: u32,
    /// Whether clients or backends may have TLS.
    pub uses_tls: bool,
    /// The log of requests and tunnels.
    pub access: Option<Arc<dyn AccessLog>>,
    /// The listening sockets of the process.
    pub held: HeldListeners,
    /// Called when everything is open, before the first client is accepted; an error ends the
    /// start.
    pub on_bound: Option<OnBound>,
}

/// Called once when a start is certain to succeed, with the number of shards if tunnels can move to
/// them. Returns what moves to each shard from its predecessor, or nothing.
pub struct OnBound(pub Box<dyn FnOnce(Option<usize>) -> io::Result<Vec<Passage>> + Send>);

impl std::fmt::Debug for OnBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnBound")
    }
}

/// Running shards.
#[derive(Debug)]
pub struct Shards {
    listening: Vec<(PeerAddress, bool)>,
    /// The IP addresses in it.
    addresses: Vec<SocketAddr>,
    all: Vec<Running>,
    threads: Mutex<Vec<JoinHandle<io::Result<()>>>>,
    division: Division,
    listeners: Listeners,
    /// The CPUs of the shards, if they are pinned.
    placement: Option<Placement>,
}

#[derive(Debug)]
struct Running {
    mailbox: Mailbox<BalanceCommand>,
    metrics: Arc<Mutex<Metrics>>,
}

impl Shards {
    /// Binds the addresses and starts the shards.
    ///
    /// # Errors
    /// Fails if an address cannot be bound, or if there is no descriptor or thread for a shard. No
    /// shard runs then.
    pub fn start(mut launch: Launch) -> io::Result<Self> {
        let most = launch.configuration.settings.max_connections;
        let division = divide(launch.descriptors, most, launch.shards, launch.listen.len())?;
        let count = division.shards;
        let placement = placement(launch.is_pinned, launch.shards, count)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        // Only Linux spreads the connections of a port over several listeners.
        let accepting = if cfg!(target_os = "linux") { count } else { 1 };
        let mut addresses = Vec::new();
        let mut listeners: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
        let wanted: Vec<_> = launch.listen.iter().map(|listen| listen.address).collect();
        let inherited = InheritedSockets::take(&wanted, &launch.held)?;
        let mut tls = Vec::new();
        let mut rules = Vec::new();
        for at in &launch.listen {
            let (address, has_tls) = (at.address, at.has_tls);
            let bound = match inherited.at(address, accepting) {
                Some(bound) => bound.map(|bound| (bound, address)),
                None => bind(&launch.held, at, accepting),
            };
            let (bound, address) = bound.map_err(|error| {
                let why = match error.kind() {
                    io::ErrorKind::AddrInUse if address.socket_addr().is_none() => {
                        "another program listens there; stop it, or choose another path".into()
                    }
                    io::ErrorKind::AlreadyExists => {
                        "the file is not a socket; remove it, or choose another path".into()
                    }
                    io::ErrorKind::AddrInUse => {
                        "another program has this port; stop it, or choose another port".into()
                    }
                    io::ErrorKind::AddrNotAvailable => {
                        "this machine has no such address; write one of its own, or 0.0.0.0".into()
                    }
                    _ => error.to_string(),
                };
                io::Error::new(error.kind(), format!("cannot listen at {address}: {why}"))
            })?;
            addresses.push((address, has_tls));
            // A predecessor with more shards has left more sockets than there are shards.
            tls.extend(std::iter::repeat_n(has_tls, bound.len() / accepting));
            rules.push((at.rules.clone(), bound.len() / accepting));
            for (at, listener) in bound.into_iter().enumerate() {
                listeners[at % accepting].push(listener);
            }
        }
        let (sockets, tables) = open(listeners, division.plan.is_some())?;
        let place = BoundShards {
            addresses,
            tls,
            listeners: Listeners::new(rules),
            division,
            tables,
            placement,
        };
        let movable = place.movable();
        let passages = launch.on_bound.take().map(|OnBound(call)| call(movable)).transpose()?;
        let passages = passages.unwrap_or_default();
        // Without TLS, its layer would only cost instructions.
        if !launch.uses_tls {
            return Self::run(sockets, place, launch, passages);
        }
        let per_second = launch.handshakes_per_second.div_ceil(count as u32);
        let limits = HandshakeLimits { per_second, ..HandshakeLimits::default() };
        let secure = |sockets| {
            let mut driver = Tls::new(sockets);
            driver.limit_handshakes(limits);
            driver
        };
        Self::run(sockets.into_iter().map(secure).collect(), place, launch, passages)
    }

    /// Starts a thread for each driver.
    fn run<D: Movable + Send + 'static>(
        mut drivers: Vec<D>,
        place: BoundShards,
        launch: Launch,
        passages: Vec<Passage>,
    ) -> io::Result<Self> {
        moves::prepare(&mut drivers, &passages)?;
        let mut passages = passages.into_iter();
        let BoundShards { addresses, tls: of_listeners, listeners, division, tables, placement } =
            place;
        let tables = tables.map(Arc::new);
        let server = launch.tls.map(|tls| tls as ServerTls);
        let of_listener = |has_tls: &bool| server.clone().filter(|_| *has_tls);
        let tls: Vec<_> = of_listeners.iter().map(of_listener).collect();
        let listening = addresses;
        let addresses = listening.iter().filter_map(|(address, _)| address.socket_addr()).collect();
        let (count, descriptors_for) = (drivers.len(), division.connections);
        let placings = match count > 1 && !cfg!(target_os = "linux") {
            true => Placing::between(drivers.iter().map(Driver::waker)),
            false => Vec::new(),
        };
        let mut placings = placings.into_iter();
        let admission = Arc::default();
        let mut begun = Self {
            listening,
            addresses,
            all: Vec::new(),
            threads: Mutex::default(),
            division,
            listeners: listeners.clone(),
            placement,
        };
        for (index, driver) in drivers.into_iter().enumerate() {
            let (mailbox, commands): (_, Inbox<BalanceCommand>) = mailbox(COMMANDS, driver.waker());
            let metrics = Arc::new(Mutex::new(Metrics::default()));
            let start = BalanceStart {
                configuration: Arc::clone(&launch.configuration),
                commands,
                reports: launch.reports.clone(),
                published: Arc::clone(&metrics),
                shard: index as u32,
                shards: count as u32,
                descriptors_for,
                admission: Arc::clone(&admission),
                tls: tls.clone(),
                listeners: listeners.clone(),
                seed: seed(index),
                access: launch.access.clone(),
                date: LiveDate::default(),
            };
            let passage = passages.next();
            let listened = passage
                .as_ref()
                .map_or(Ok(()), |passage| moves::listen(passage, Mailbox::clone(&mailbox)));
            let placing = placings.next();
            let make = move || {
                let shard = Shard::new(driver, start);
                match placing {
                    Some(placing) => shard.with_placing(placing),
                    None => shard,
                }
            };
            let of_shard = begun.placement.as_ref().and_then(|all| all.places().get(index));
            let cpu = of_shard.map(|place| place.cpu);
            let spawned =
                listened.and_then(|()| spawn(make, (index, cpu), tables.as_ref(), passage));
            let error = match spawned {
                Ok((thread, is_in, pinned)) => {
                    if let (Err(error), Some(placement)) = (pinned, &mut begun.placement) {
                        placement.record_refusal(index, &error);
                    }
                    begun.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(thread);
                    begun.all.push(Running { mailbox, metrics });
                    if is_in {
                        continue;
                    }
                    None
                }
                Err(error) => Some(throng_io::limits::thread_not_started(&error)),
            };
            begun.shut_down(Duration::ZERO, Duration::ZERO, false);
            let ended = begun.join();
            return Err(error.or(ended.err()).unwrap_or_else(|| io::Error::other("no thread")));
        }
        Ok(begun)
    }

    /// Returns the number of shards if tunnels can move between them and another process.
    pub(crate) fn movable(&self) -> Option<usize> {
        movable(&self.division)
    }

    /// Begins to move tunnels to a successor, and returns its part of each shard. After an error,
    /// [abandon](Moves::abandon) the moves.
    #[doc(hidden)]
    pub fn begin_moves(&self) -> (Option<Moves>, io::Result<Vec<Passage>>) {
        Moves::begin(self.all.iter().map(|running| Mailbox::clone(&running.mailbox)))
    }

    /// Returns the number of client connections that the descriptors allow, and how it was computed
    /// if each shard has its own descriptor table.
    #[must_use]
    pub fn capacity(&self) -> (usize, Option<String>) {
        match self.division.plan {
            Some(plan) => (plan.max_connections, Some(plan.to_string())),
            None => (self.division.connections, None),
        }
    }

    /// Returns why the shards share a descriptor table although they should not.
    #[must_use]
    pub fn tables_refused(&self) -> Option<&str> {
        self.division.refused.as_deref()
    }

    /// Returns whether the address at `place` uses TLS.
    pub(crate) fn has_tls(&self, place: usize) -> bool {
        let mut tcp = self.listening.iter().filter(|(address, _)| address.socket_addr().is_some());
        tcp.nth(place).is_some_and(|(_, has_tls)| *has_tls)
    }

    /// Returns where the shards listen, each with whether clients use TLS there.
    #[must_use]
    pub fn listening(&self) -> &[(PeerAddress, bool)] {
        &self.listening
    }

    /// Returns the CPUs of the shards, if they are pinned.
    #[must_use]
    pub fn placement(&self) -> Option<&Placement> {
        self.placement.as_ref()
    }

    /// Returns the listeners with their counts.
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    /// Returns the IP addresses in the order of the request; a port 0 is replaced by the bound one.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// Sets the configuration. Connections under way are not affected.
    pub fn configure(&self, configuration: &Arc<Configuration>) {
        self.send(|| BalanceCommand::Configure(Arc::clone(configuration)));
    }

    /// Closes tunnels of `backend`: `most` of them, or all existing and new ones. It replaces an
    /// earlier close job for that backend.
    pub fn close_tunnels(&self, backend: &Arc<Backend>, closing: &Closing, most: Option<u32>) {
        // All shards share one budget: each takes from it for every tunnel that it closes.
        let most = most.map(|most| Arc::new(AtomicU32::new(most)));
        self.send(|| BalanceCommand::CloseTunnels {
            backend: Arc::clone(backend),
            closing: closing.clone(),
            most: most.clone(),
        });
    }

    /// Ends a close job for `backend`. Tunnels that have been sent a Close frame end nevertheless.
    pub fn keep_tunnels(&self, backend: &Arc<Backend>) {
        self.send(|| BalanceCommand::KeepTunnels(Arc::clone(backend)));
    }

    /// Stops accepting, closes tunnels with 1001 spread over `window`, and resets connections left
    /// at `deadline`. With `hand_over`, clients that have not sent a request yet are answered.
    pub fn shut_down(&self, window: Duration, deadline: Duration, hand_over: bool) {
        self.send(|| BalanceCommand::ShutDown { window, deadline, hand_over });
    }

    /// Returns whether all shards have ended.
    #[must_use]
    pub fn have_ended(&self) -> bool {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.iter().all(JoinHandle::is_finished)
    }

    /// Waits until all shards have ended.
    ///
    /// # Errors
    /// Fails if the poll of a shard failed, or if a shard panicked, which is a bug in this crate.
    pub fn join(&self) -> io::Result<()> {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let mut outcome = Ok(());
        for thread in threads.drain(..) {
            let ended = thread.join().unwrap_or_else(|_| Err(io::Error::other("a shard panicked")));
            outcome = outcome.and(ended);
        }
        outcome
    }

    /// Returns the metrics of each shard, at most a second old.
    #[must_use]
    pub fn metrics_of_each(&self) -> Vec<Metrics> {
        let read =
            |running: &Running| *running.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        self.all.iter().map(read).collect()
    }

    /// Returns the sums over all shards. If a shard does not answer in time, its values may be a
    /// second old.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let (published, done) = mpsc::channel();
        self.send(|| BalanceCommand::Publish(published.clone()));
        drop(published);
        let until = std::time::Instant::now() + PUBLISHING;
        for _ in &self.all {
            let left = until.saturating_duration_since(std::time::Instant::now());
            if done.recv_timeout(left).is_err() {
                break;
            }
        }
        let mut sum = Metrics::default();
        for running in &self.all {
            sum += *running.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        }
        sum
    }

    fn send(&self, command: impl Fn() -> BalanceCommand) {
        for running in &self.all {
            running.mailbox.send_always(command());
        }
    }
}

/// The time that shards have to publish their metrics.
const PUBLISHING: Duration = Duration::from_millis(200);

/// The addresses and descriptors of shards that do not run yet.
struct BoundShards {
    /// Bound addresses, each with whether it has TLS.
    addresses: Vec<(PeerAddress, bool)>,
    /// For each listener of a shard, whether it has TLS.
    tls: Vec<bool>,
    listeners: Listeners,
    division: Division,
    placement: Option<Placement>,
    /// The descriptors, if each shard has a table of its own.
    tables: Option<Tables>,
}

impl BoundShards {
    fn movable(&self) -> Option<usize> {
        movable(&self.division)
    }
}

/// Returns the number of shards if tunnels can move between them and another process. A
/// link reads on a thread of its own, whose descriptors must be the shard's.
fn movable(division: &Division) -> Option<usize> {
    (cfg!(target_os = "linux") && division.plan.is_none()).then_some(division.shards)
}

/// Opens listeners at an address for `count` shards.
fn bind(
    held: &HeldListeners,
    at: &ListenAt,
    count: usize,
) -> io::Result<(Vec<Listener>, PeerAddress)> {
    match at.address {
        PeerAddress::Ip(address) => {
            let options = ListenOptions { reuse_port: at.share_port, ..ListenOptions::default() };
            let (bound, address) = held.listen_many(Purpose::Clients, address, options, count)?;
            Ok((bound.into_iter().map(Listener::from).collect(), address.into()))
        }
        PeerAddress::Unix(path) => {
            Ok((bind_unix(held, path, at.unix_mode, count)?, PeerAddress::Unix(path)))
        }
    }
}

/// Opens a Unix socket, whose queue all shards share.
#[cfg(unix)]
fn bind_unix(
    held: &HeldListeners,
    path: UnixPath,
    mode: u32,
    count: usize,
) -> io::Result<Vec<Listener>> {
    let socket = held.bind_unix(path.as_path(), mode)?;
    (0..count).map(|_| socket.try_clone().map(Listener::from)).collect()
}

#[cfg(not(unix))]
fn bind_unix(_: &HeldListeners, _: UnixPath, _: u32, _: usize) -> io::Result<Vec<Listener>> {
    let why = "this system has no Unix sockets; write HOST:PORT";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// Opens the sockets of each shard, with its listeners.
#[cfg(target_os = "linux")]
fn open(
    listeners: Vec<Vec<Listener>>,
    own_tables: bool,
) -> io::Result<(Vec<Sockets>, Option<Tables>)> {
    let mut tables = own_tables.then(|| Tables::new(listeners.len()));
    let mut all = Vec::new();
    for (shard, listeners) in listeners.into_iter().enumerate() {
        let mut sockets = Sockets::new(options(shard as u16))?;
        if let Some(tables) = &mut tables {
            sockets.enlist(shard, tables);
            listeners.iter().for_each(|listener| tables.give(shard, listener));
        }
        for listener in listeners {
            sockets.add_listener(listener)?;
        }
        all.push(sockets);
    }
    Ok((all, tables))
}

/// Opens the sockets of each shard, with its listeners. There are no tables on this system.
#[cfg(not(target_os = "linux"))]
fn open(
    listeners: Vec<Vec<Listener>>,
    _own_tables: bool,
) -> io::Result<(Vec<Sockets>, Option<Tables>)> {
    let mut all = Vec::new();
    for (shard, listeners) in listeners.into_iter().enumerate() {
        let mut sockets = Sockets::new(options(shard as u16))?;
        for listener in listeners {
            sockets.add_listener(listener)?;
        }
        all.push(sockets);
    }
    Ok((all, None))
}

fn options(shard: u16) -> Options {
    Options {
        shard,
        receive_buffer: RECEIVE_BUFFER,
        unsent_low_water: Some(UNSENT),
        keepalive: Some(KEEP_ALIVE),
        user_timeout: Some(USER_TIMEOUT),
        ..Options::default()
    }
}

/// Chooses the CPUs of `count` shards of `asked`, if they are pinned. The error is a sentence with
/// the remedy.
pub(crate) fn placement(
    is_pinned: bool,
    asked: usize,
    count: usize,
) -> Result<Option<Placement>, String> {
    is_pinned.then(|| throng_io::placement::choose(count, asked == 0)).transpose()
}

/// Starts the thread of a shard, which makes it, pinned to `cpu`. Returns it, whether the shard has
/// its own descriptor table if it should, and whether it could be pinned.
fn spawn<D: Movable + Send + 'static>(
    make: impl FnOnce() -> Shard<D> + Send + 'static,
    (index, cpu): (usize, Option<usize>),
    tables: Option<&Arc<Tables>>,
    passage: Option<Passage>,
) -> io::Result<(JoinHandle<io::Result<()>>, bool, io::Result<()>)> {
    let thread = std::thread::Builder::new().name(format!("balance-{index}"));
    let (own, (entering, entered)) = (tables.cloned(), mpsc::sync_channel(1));
    let thread = thread.spawn(move || {
        // Before its memory is first touched.
        let pinned = cpu.map_or(Ok(()), pin_thread);
        // Do this first, so that all that the shard opens is in its own table.
        let table = own.map(|tables| tables.enter(index)).transpose();
        let is_in = table.is_ok();
        let _ = entering.send((is_in, pinned));
        let _table = table?;
        Runner::new(make(), index as u16, passage).run()
    })?;
    let (is_in, pinned) = entered.recv().unwrap_or((false, Ok(())));
    if let Some(tables) = tables.filter(|_| is_in) {
        tables.leave_to(index);
    }
    Ok((thread, is_in, pinned))
}

/// Returns a seed that differs for each shard and process, so that no two balancers make the same
/// picks.
fn seed(shard: usize) -> u64 {
    use std::hash::BuildHasher;
    std::hash::RandomState::new().hash_one(shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_a_host_that_is_gone_end_by_themselves() {
        let options = options(3);
        assert_eq!(options.keepalive, Some(Duration::from_secs(60)));
        assert_eq!(options.user_timeout, Some(Duration::from_secs(35)));
        assert_eq!(options.shard, 3);
    }
}
