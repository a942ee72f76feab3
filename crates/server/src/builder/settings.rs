//! Settings of [`Server`]'s builder: everything that is not a route.

use std::fmt;
use std::net::ToSocketAddrs;
use std::time::Duration;

use throng_engine::workers::WorkerSettings;
use throng_engine::{Backpressure, Limits, SettingError};
use throng_http::Origins;
#[cfg(feature = "deflate")]
use throng_proto::ws::deflate::Settings as Deflate;

use super::startup::resolve;
use super::{Channels, Observe, Proxies, Server, Shards, SocketOptions};
use crate::hub::Hub;
use crate::shard::Shard;
use crate::ticks::{ShardTick, Ticker};

impl Server {
    /// Sets the rules for messages to receivers that read too slowly, where neither the channel nor
    /// the route has its own rules. Default:
    /// [`SlowPolicy::Close`](crate::channel::SlowPolicy::Close) at [`Limits::max_backlog`].
    pub fn backpressure(mut self, rules: impl Into<Backpressure>) -> Self {
        self.backpressure = rules.into();
        self
    }

    /// Sets the rules of channels, by pattern: for slow receivers, history and presence. Default:
    /// no rules.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use std::time::Duration;
    /// let five_minutes = Duration::from_secs(300);
    /// let rules = Channels::new().history("chat.*", History::new(100, five_minutes));
    /// let server = Server::new(App::new()).channels(rules);
    /// ```
    pub fn channels(mut self, mut channels: Channels) -> Self {
        if let Some(mistake) = channels.mistake.take() {
            self.note(mistake);
        }
        self.channels = channels;
        self
    }

    /// Makes this server a node of a [`Cluster`](crate::cluster::Cluster): members of a channel get
    /// publications of all nodes. The server connects to the broker in [`bind`](Self::bind), and
    /// fails if it cannot. Default: channels end at the process.
    ///
    /// ```no_run
    /// # use throng::prelude::*;
    /// use throng::cluster::Cluster;
    ///
    /// let server = Server::new(App::new()).cluster(Cluster::redis("redis://10.0.0.5"));
    /// ```
    #[cfg(feature = "redis")]
    pub fn cluster(mut self, cluster: crate::cluster::Cluster) -> Self {
        self.cluster = crate::cluster::Setting(Some(cluster));
        self
    }

    /// Connects a hub that was made before the server, by [`Hub::new`](crate::Hub::new), for its
    /// handlers. A hub has one server: [`Server::bind`] fails with a hub that belongs to another
    /// server.
    pub fn with_hub(mut self, hub: &Hub) -> Self {
        self.hub = Some(hub.clone());
        self
    }

    /// Calls `tick` once each `period`, from one period after the start until the server has ended,
    /// also while it drains: for things that change without client messages, such as a game or a
    /// feed. Missed periods are skipped, so that calls do not pile up.
    ///
    /// It runs on the first shard, whose connections wait until it returns, so it must not block.
    /// If it panics, it is called again after its next period, with its state as the panic left it:
    /// [`ServerEvent::TickPanicked`](crate::server::ServerEvent::TickPanicked) reports it each
    /// time, `throng_callback_panics_total` counts it, and `/readyz` and `throng_ticks_failing`
    /// show it until a call returns.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throng::prelude::*;
    /// let mut second = 0;
    /// let server = Server::new(App::new()).every(Duration::from_secs(1), move |hub| {
    ///     second += 1;
    ///     // It fails if a queue is full: those members miss this second.
    ///     let _ = hub.publish("clock", format!("{second} s"));
    /// });
    /// ```
    pub fn every(mut self, period: Duration, tick: impl FnMut(&Hub) + Send + 'static) -> Self {
        if period.is_zero() {
            let message = "a period of every is 0; give for example 1 s";
            self.note(SettingError::new("every", message));
        }
        self.ticks.push(Ticker::of_server(period, tick));
        self
    }

    /// Calls `tick` once each `period` on each event loop, with that loop's state of type `T`,
    /// which [`Socket::shard_state`](crate::Socket::shard_state) also returns to sessions there.
    /// Otherwise like [`every`](Self::every).
    ///
    /// With sessions placed by key ([`Ws::place_by`](crate::Ws::place_by)) it suits rooms that
    /// change on a timer: each room is in the state of one event loop, and needs no lock.
    ///
    /// This is not available with [`IoBackend::Threads`](crate::server::IoBackend::Threads), which
    /// `bind` refuses.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use throng::prelude::*;
    /// #[derive(Default)]
    /// struct Seconds(u64);
    ///
    /// let counter = Ws::new().on_message(|ws, (), _| {
    ///     let passed = ws.shard_state::<Seconds>().0;
    ///     ws.send(passed.to_string())
    /// });
    /// let second = Duration::from_secs(1);
    /// let server = Server::new(App::new().ws("/", counter))
    ///     .every_on_shard(second, |seconds: &mut Seconds, _shard| seconds.0 += 1);
    /// ```
    pub fn every_on_shard<T: Default + Send + 'static>(
        mut self,
        period: Duration,
        tick: impl Fn(&mut T, &mut Shard<'_>) + Send + Sync + 'static,
    ) -> Self {
        if period.is_zero() {
            let message = "a period of every_on_shard is 0; give for example 33 ms";
            self.note(SettingError::new("every_on_shard", message));
        }
        self.shard_ticks.push(ShardTick::new(period, tick));
        self
    }

    /// Sets the [`Limits`] on connections, sizes and times. Default: [`Limits::default`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Sets how messages are compressed for clients that offer it, where a route has no setting: a
    /// [`Compression`](crate::ws::Compression), or all settings as a [`Deflate`]. Default: no
    /// compression.
    #[cfg(feature = "deflate")]
    pub fn compression(mut self, compression: impl Into<Deflate>) -> Self {
        self.compression = compression.into();
        self
    }

    /// Sets which web pages may open WebSockets. Default: pages of the same host. Clients that send
    /// no Origin header, because they are not browsers, are accepted.
    pub fn origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Sets the proxies in front of this server. Default: none.
    pub fn proxies(mut self, mut proxies: Proxies) -> Self {
        if let Some(mistake) = proxies.mistake.take() {
            self.note(mistake);
        }
        self.proxies = proxies;
        self
    }

    /// Sets the shards, threads with an event loop each: a number, or all their
    /// settings. Default: one per usable CPU.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// let server = Server::new(App::new()).shards(4);
    /// ```
    pub fn shards(mut self, shards: impl Into<Shards>) -> Self {
        self.shards = shards.into();
        self
    }

    /// Sets the options of sockets: the backlog, port sharing and the kernel's buffers.
    pub fn sockets(mut self, sockets: SocketOptions) -> Self {
        self.sockets = sockets;
        self
    }

    /// Sets what is reported while the server runs: events, records of requests, stalls. Default:
    /// events go to standard error.
    pub fn observe(mut self, observe: Observe) -> Self {
        self.observe = observe;
        self
    }

    /// Sets whether each shard gets its own descriptor table. Default: no.
    ///
    /// Only for the binary `throng`, which moves no descriptor between threads: in other programs
    /// an `OwnedFd` that is dropped on another thread would close an unrelated descriptor. For that
    /// reason the type is in a crate outside this crate's interface.
    #[cfg(feature = "descriptor-tables")]
    pub fn descriptor_tables(mut self, tables: throng_io::tables::DescriptorTables) -> Self {
        self.descriptor_tables = tables;
        self
    }

    /// Takes listening sockets from a list that a successor of the process gets, and from a
    /// predecessor's. Default: the server has its sockets to itself.
    ///
    /// For the binary alone: the list must be released when the server shuts down.
    #[cfg(feature = "descriptor-tables")]
    pub fn held_listeners(
        mut self,
        held: throng_io::HeldListeners,
        purpose: throng_io::Purpose,
    ) -> Self {
        self.held = Some((held, purpose));
        self
    }

    /// Sets the worker pool for blocking work: [`Socket::offload`](crate::Socket::offload),
    /// [`Ws::on_message_blocking`](crate::Ws::on_message_blocking) and
    /// [`Route::blocking`](crate::http::Route::blocking). Default: one thread per usable CPU, a
    /// queue of 4,096 jobs, and connections that are not read while the queue is full.
    /// [`suggested_size`](crate::workers::suggested_size) computes a pool size.
    ///
    /// The threads are started with the server if a route always uses them or if this is called;
    /// otherwise with the first job.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use throng::workers::{Overload, suggested_size, usable_cpus, WorkerSettings};
    /// # use std::time::Duration;
    /// // Handlers that wait 5 ms for a database, and compute for 1 ms.
    /// let pool_size =
    ///     suggested_size(usable_cpus(), Duration::from_millis(5), Duration::from_millis(1));
    /// Server::new(App::new()).workers(
    ///     WorkerSettings::default().pool_size(pool_size).overload(Overload::Close),
    /// );
    /// ```
    pub fn workers(mut self, settings: WorkerSettings) -> Self {
        self.workers = settings;
        self.starts_workers = true;
        self
    }

    /// Serves `https` and `wss` instead of `http` and `ws`, on all addresses. Default: no TLS.
    ///
    /// Handlers do not change. An idle session takes about 240 bytes more;
    /// [`Running::reload_tls`](crate::server::Running::reload_tls) reads renewed certificates. A
    /// client that sends HTTP without TLS gets 400 with the reason.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: crate::tls::Tls) -> Self {
        self.tls = crate::tls::Setting(Some(tls));
        self
    }

    /// Adds an address to listen on, besides the one given to [`bind`](Self::bind): for example
    /// `[::1]:80` besides `127.0.0.1:80`. Port 0 takes the port of the first address. May be called
    /// several times.
    pub fn bind_also(mut self, address: impl ToSocketAddrs + fmt::Debug) -> Self {
        match resolve(address) {
            Ok(address) => self.more_addresses.push(address),
            Err(error) => self.note(error),
        }
        self
    }
}
