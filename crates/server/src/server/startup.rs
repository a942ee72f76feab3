//! From routes and settings to a server that listens.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use throng_engine::workers::{WorkerError, Workers};
use throng_engine::{BuildOptions, LimitError, Limits};
use throng_io::{ListenOptions, Options, Portable, listen_many};
use throng_proto::ws;
use throng_proto::ws::deflate::{self, Settings as Deflate};

use super::capacity::RESERVED_DESCRIPTORS;
use super::{Io, Server};
use crate::error::{Error, Result};
use crate::http::Delivered;
use crate::routes::Routes;
use crate::running::{Bound, Shards};
use crate::service::{ShardService, Shared};
use crate::stalls::Stalls;

/// More event loops than any machine has CPUs are a mistake.
const MOST_SHARDS: usize = 1024;

/// Silence after which the kernel asks whether the peer's host is still there. Heartbeats find out sooner; this is
/// for programs that turned them off, and for connections that are no WebSockets yet.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How much later than the shard the kernel gives a peer up that takes nothing, so that the figures tell why.
const KERNEL_LATER: Duration = Duration::from_secs(5);

/// What the kernel holds of a connection's output besides what is on its way. More would be memory that no limit of ours
/// knows, up to 4 MB for each client that does not read; less, and a fast one would wait for us.
const UNSENT_LOW_WATER: u32 = 128 << 10;

impl<R: Routes> Server<R> {
    /// Says what is wrong with the routes and settings, if anything: what [`bind`](Self::bind) would refuse before it
    /// listens.
    ///
    /// # Errors
    /// The caller's mistake, naming the setting, the value and the remedy.
    pub fn check(&self) -> Result<()> {
        if let Some(mistake) = &self.mistake {
            return Err(Error::Setting(mistake.clone()));
        }
        #[cfg(unix)]
        crate::threads::check_stack(self.thread_stack)?;
        let wrong = |error: LimitError| Error::Setting(error.to_string());
        self.workers.check().map_err(workers)?;
        self.limits.check().map_err(wrong)?;
        self.classes.check(&self.limits).map_err(wrong)
    }

    /// Listens on `address`; port 0 takes a free port, which [`Bound::local_addr`] tells. Connections wait in the
    /// kernel until the server runs.
    ///
    /// # Errors
    /// A route or setting that cannot work, an address that cannot be had, or no descriptors for the event loops.
    pub fn bind(self, address: impl ToSocketAddrs) -> Result<Bound> {
        self.check()?;
        let (limits, classes) = (self.limits.clone(), self.classes.clone());
        let compression = compression(&self.routes, self.count, self.compression)?;
        let address = resolve(address)?;
        let count = self.shard_count()?;
        let placement = self.pin.place(self.io, count)?;
        let listen = ListenOptions {
            backlog: self.backlog,
            reuse_port: self.share_port,
            ..ListenOptions::default()
        };
        let (listeners, bound) = listen_everywhere(address, &self.more_addresses, listen, count)?;
        let max_connections = self.max_connections(count)?;
        let stalls = Arc::new(Stalls::new(self.stalls));
        let shared = Arc::new(Shared {
            routes: self.routes,
            router: self.router,
            origins: self.origins,
            later: self.later,
            streams: self.streams,
            blocking: self.blocking,
            pool: self.pool.clone(),
            compression,
            stalls: Arc::clone(&stalls),
            snapshots: OnceLock::new(),
        });
        let options = BuildOptions {
            limits,
            classes,
            wildcards: self.wildcards,
            max_connections,
            watching: Some(stalls.watching()),
            mailbox_mark: None,
            seed: None,
        };
        let driver_options = |shard| driver_options(shard, max_connections, &self.limits);
        let ws_limits = ws_limits(&shared.routes, self.count, self.limits.ws);
        let common = Arc::clone(&shared);
        let service = move |admission: &Arc<_>| {
            ShardService::new(Arc::clone(&common), Arc::clone(admission), ws_limits.clone())
        };
        let shards = match self.io {
            #[cfg(target_os = "linux")]
            Io::Auto | Io::Epoll => {
                let mut drivers = Vec::new();
                for (shard, listeners) in listeners.into_iter().enumerate() {
                    let mut driver =
                        throng_io::Epoll::new(driver_options(shard)).map_err(Error::Shard)?;
                    for listener in listeners {
                        driver.add_listener(listener).map_err(Error::Shard)?;
                    }
                    drivers.push(driver);
                }
                Shards::build(drivers, &options, service)?
            }
            #[cfg(not(target_os = "linux"))]
            Io::Epoll => {
                let message = "io is epoll, which only Linux has; use auto or portable";
                return Err(Error::Setting(message.to_owned()));
            }
            #[cfg(unix)]
            Io::Threads => {
                let listeners = listeners.into_iter().flatten();
                let base = driver_options(0);
                crate::threads::build(listeners, base, self.thread_stack, &options, service)?
            }
            #[cfg(not(unix))]
            Io::Threads => {
                let message = "io is threads, which only Unix has; use auto or portable";
                return Err(Error::Setting(message.to_owned()));
            }
            #[allow(unreachable_patterns, reason = "Auto is epoll on Linux")]
            Io::Auto | Io::Portable => {
                let mut drivers = Vec::new();
                for (shard, listeners) in listeners.into_iter().enumerate() {
                    let mut driver = Portable::new(driver_options(shard)).map_err(Error::Shard)?;
                    for listener in listeners {
                        driver.add_listener(listener).map_err(Error::Shard)?;
                    }
                    drivers.push(driver);
                }
                Shards::build(drivers, &options, service)?
            }
        };
        let _ = shared.snapshots.set(Arc::clone(shards.snapshots()));
        let remote = shards.remote().clone();
        let on_room = move |id| remote.deliver(id, Box::new(Delivered::RoomInQueue));
        self.pool.set(Workers::new(self.workers, on_room).map_err(workers)?);
        Ok(Bound::new(bound, shards, placement, stalls, self.pool, self.starts_workers))
    }

    fn shard_count(&self) -> Result<usize> {
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        match self.shards {
            _ if self.io == Io::Threads => Ok(1),
            0 if cfg!(target_os = "linux") => Ok(usable),
            // Elsewhere one port cannot be shared by several listeners in a useful way.
            0 => Ok(1),
            n if n > MOST_SHARDS => Err(Error::Setting(format!(
                "shards is {n}; at most {MOST_SHARDS} are possible, and one for each CPU is enough"
            ))),
            n => Ok(n),
        }
    }
}

/// Its message names the setting and the remedy.
pub(crate) fn workers(error: WorkerError) -> Error {
    Error::Setting(error.to_string())
}

/// The listeners of each of `count` shards, and the addresses they got, in the order they were asked for.
fn listen_everywhere(
    first: SocketAddr,
    more: &[SocketAddr],
    options: ListenOptions,
    count: usize,
) -> Result<(Vec<Vec<TcpListener>>, Vec<SocketAddr>)> {
    let mut of_shards: Vec<Vec<TcpListener>> = (0..count).map(|_| Vec::new()).collect();
    let mut bound: Vec<SocketAddr> = Vec::with_capacity(1 + more.len());
    for mut address in std::iter::once(first).chain(more.iter().copied()) {
        if let (0, Some(first)) = (address.port(), bound.first()) {
            address.set_port(first.port());
        }
        let (listeners, got) =
            listen_many(address, options, count).map_err(|source| Error::bind(&address, source))?;
        of_shards.iter_mut().zip(listeners).for_each(|(all, listener)| all.push(listener));
        bound.push(got);
    }
    Ok((of_shards, bound))
}

fn driver_options(shard: usize, max_connections: usize, limits: &Limits) -> Options {
    Options {
        shard: shard as u16,
        // A refused connection is told why, so it is adopted for a moment too.
        max_connections: max_connections + RESERVED_DESCRIPTORS,
        // Both are set on the listener, which what it accepts inherits: no system call per connection.
        keepalive: Some(KEEP_ALIVE),
        // What left for the kernel is out of the engine's sight: there the kernel keeps the same promise.
        user_timeout: Some(limits.write_timeout + KERNEL_LATER),
        unsent_low_water: Some(UNSENT_LOW_WATER),
        ..Options::default()
    }
}

/// The message limits by route; empty where no route has its own.
fn ws_limits(routes: &impl Routes, count: u16, usual: ws::Limits) -> Vec<ws::Limits> {
    if (0..count).all(|route| routes.max_message_size(route).is_none()) {
        return Vec::new();
    }
    let of = |route| match routes.max_message_size(route) {
        Some(bytes) => ws::Limits { max_frame_size: bytes, max_message_size: bytes },
        None => usual,
    };
    (0..count).map(of).collect()
}

/// What each route offers.
fn compression(
    routes: &impl Routes,
    count: u16,
    usual: Deflate,
) -> Result<Vec<Option<deflate::Policy>>> {
    let check =
        |settings: Deflate| settings.check().map_err(|error| Error::Setting(error.to_string()));
    (0..count)
        .map(|route| {
            let policy = check(routes.compression(route).unwrap_or(usual))?;
            // A message that is passed on as it comes has no compressed whole.
            Ok(policy.filter(|_| !routes.streams(route)))
        })
        .collect()
}

pub(super) fn resolve(address: impl ToSocketAddrs) -> Result<SocketAddr> {
    let mut addresses = address
        .to_socket_addrs()
        .map_err(|error| Error::Setting(format!("the address cannot be understood: {error}")))?;
    addresses
        .next()
        .ok_or_else(|| Error::Setting("the address names no host; give HOST:PORT".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That accepted sockets inherit both is tested where the driver is (`accepted_sockets_inherit_their_options`).
    #[test]
    fn the_kernel_gives_vanished_peers_up_too() {
        let options = driver_options(3, 100, &Limits::default());
        assert_eq!(options.keepalive, Some(Duration::from_secs(60)));
        assert_eq!(options.user_timeout, Some(Limits::default().write_timeout + KERNEL_LATER));
        assert_eq!((options.shard, options.max_connections), (3, 164));
    }
}
