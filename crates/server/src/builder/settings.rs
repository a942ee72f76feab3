//! Settings of [`Server`]'s builder: everything that is not a route.

use std::fmt;
use std::net::ToSocketAddrs;
use std::time::Duration;

use throng_engine::workers::WorkerSettings;
use throng_engine::{Backpressure, History, Limits, Presence, SettingError};
use throng_http::Origins;
#[cfg(feature = "deflate")]
use throng_proto::ws::deflate::Settings as Deflate;

use super::Server;
use super::startup::resolve;
use crate::access::{self, AccessLog};
use crate::affinity::CpuAffinity;
use crate::events::{Events, ServerEvent};
use crate::hub::Hub;
use crate::io_backend::IoBackend;
use crate::shard::Shard;
use crate::ticks::{ShardTick, Tick};

impl Server {
    /// Sets the rules for messages to receivers that read too slowly, where neither the channel nor
    /// the route has rules of its own. Default:
    /// [`SlowPolicy::Close`](crate::channel::SlowPolicy::Close) at [`Limits::max_backlog`].
    pub fn backpressure(mut self, rules: impl Into<Backpressure>) -> Self {
        self.classes.set_default(rules.into());
        self
    }

    /// Sets the back-pressure rules of the channels that match `pattern`: tokens separated by dots,
    /// `*` for any one token, `>` at the end for all that follow. Of several patterns that match,
    /// the first one added applies. A channel's rules win over those of its receivers' routes.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use std::time::Duration;
    /// // A slow client gets the newest price of each symbol, and none older than five seconds.
    /// Server::new(App::new()).channel_backpressure(
    ///     "prices.*",
    ///     Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5)),
    /// );
    /// ```
    pub fn channel_backpressure(mut self, pattern: &str, rules: impl Into<Backpressure>) -> Self {
        if let Err(error) = self.classes.add_channels(pattern, rules.into()) {
            self.note(error);
        }
        self
    }

    /// Keeps a history of the channels that match `pattern`, as for
    /// [`channel_backpressure`](Self::channel_backpressure): a client that comes back gets what it
    /// missed, or learns that this is not possible. See
    /// [`Socket::subscribe_since`](crate::Socket::subscribe_since); streams of server-sent events
    /// do it by themselves. `None` gives the channels no history, whatever patterns that are added
    /// later say. Default: no history.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use std::time::Duration;
    /// let five_minutes = Duration::from_secs(300);
    /// Server::new(App::new()).channel_history("chat.*", History::new(100, five_minutes));
    /// ```
    pub fn channel_history(mut self, pattern: &str, history: impl Into<Option<History>>) -> Self {
        if let Err(error) = self.classes.add_history(pattern, history.into()) {
            self.note(error);
        }
        self
    }

    /// Keeps presence of the channels that match `pattern`, as for
    /// [`channel_backpressure`](Self::channel_backpressure):
    /// [`Hub::presence`](crate::Hub::presence) lists their members, and these may get each other's
    /// joins and leaves. `None` gives the channels none, whatever patterns that are added later
    /// say. Default: no presence.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::new(App::new()).channel_presence("chat.*", Presence::new().join_leave(true));
    /// ```
    pub fn channel_presence(
        mut self,
        pattern: &str,
        presence: impl Into<Option<Presence>>,
    ) -> Self {
        if let Err(error) = self.presences.add(pattern, presence.into()) {
            self.note(error);
        }
        self
    }

    /// Makes this server a node of a [`Cluster`](crate::cluster::Cluster): members of a channel get
    /// what is published on any node. The server connects to the broker in [`bind`](Self::bind),
    /// and fails if it cannot. Default: channels end at the process.
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
    /// handlers. A hub has one server: with the hub of another, [`Server::bind`] fails.
    pub fn hub(mut self, hub: &Hub) -> Self {
        self.hub = Some(hub.clone());
        self
    }

    /// Calls `tick` once each `period`, from one period after the start on until the server has
    /// ended, also while it drains: for what moves without messages of clients, such as a game or a
    /// feed. Periods that could not be kept are left out, so that calls do not pile up.
    ///
    /// It runs on the first event loop, whose connections wait meanwhile, so it must not block. If
    /// it panics, it is called again when its next period has passed, with its state as it is by
    /// then: [`ServerEvent::TickPanicked`] says so each time, `throng_callback_panics_total` counts
    /// it, and `/readyz` and `throng_ticks_failing` show it until a call returns.
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
        self.ticks.push(Tick::of_server(period, tick));
        self
    }

    /// Calls `tick` once each `period` on each event loop, with that loop's state of type `T`: the
    /// same that [`Socket::shard_state`](crate::Socket::shard_state) returns to sessions there.
    /// Otherwise like [`every`](Self::every).
    ///
    /// With sessions placed by key ([`Ws::place_by`](crate::Ws::place_by)) it is for rooms that
    /// move by themselves: each room is in the state of one event loop, and needs no lock.
    ///
    /// Not with [`IoBackend::Threads`](crate::server::IoBackend::Threads), which `bind` refuses.
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

    /// Sets how messages are compressed for clients that offer it, where a route has no setting of
    /// its own: a [`Compression`](crate::ws::Compression), or all settings as a [`Deflate`].
    /// Default: no compression.
    #[cfg(feature = "deflate")]
    pub fn compression(mut self, compression: impl Into<Deflate>) -> Self {
        self.compression = compression.into();
        self
    }

    /// Sets which web pages may open WebSockets. Default: those of the same host. Clients that send
    /// no Origin header, because they are not browsers, are accepted.
    pub fn origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Sets the networks of proxies in front of this server, such as `10.0.0.0/8` or `::1`: the
    /// client's address that they write into X-Forwarded-For or Forwarded is believed, and
    /// [`Request::client`](crate::Request::client) returns it. The connections of a trusted proxy
    /// are not capped by [`Limits::max_connections_per_address`]. `unix:` stands for all peers on
    /// Unix sockets, which have no address. Default: none.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// let app = App::new().get("/", |request| format!("you are {:?}", request.client()));
    /// let server = Server::new(app).trusted_proxies(["10.0.0.0/8", "fd00::/8"]);
    /// # server.check().unwrap();
    /// ```
    pub fn trusted_proxies<N: AsRef<str>>(mut self, networks: impl IntoIterator<Item = N>) -> Self {
        for network in networks {
            match network.as_ref().parse() {
                Ok(network) => self.trusted_proxies.push(network),
                Err(error) => {
                    let error: String = error;
                    self.note(SettingError::new("trusted_proxies", error));
                }
            }
        }
        self
    }

    /// Sets whether connections begin with a PROXY protocol header, version 1 or 2, which proxies
    /// send with the client's address (HAProxy: `send-proxy-v2`, nginx: `proxy_protocol on`,
    /// `throng balance`: `send_proxy`). It comes before a TLS handshake. Only
    /// [`trusted_proxies`](Self::trusted_proxies) may connect then; other peers, and proxies that
    /// send something else or nothing within [`Limits::handshake_timeout`], are closed and counted.
    ///
    /// The client's address in the header takes the place of the proxy's everywhere: in
    /// [`Request::peer`](crate::Request::peer) and [`Request::client`](crate::Request::client),
    /// logs, events and [`Limits::max_connections_per_address`]. A proxy's own connections, such as
    /// health checks, keep its address. Default: false.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// let server = Server::new(App::new()).trusted_proxies(["10.0.0.0/8"]).proxy_protocol(true);
    /// # server.check().unwrap();
    /// ```
    pub fn proxy_protocol(mut self, on: bool) -> Self {
        self.proxy_protocol = on;
        self
    }

    /// Sets the number of event loops, each on a thread of its own. Default: `None`, one per usable
    /// CPU on Linux, and one elsewhere. A connection stays on one event loop for life.
    pub fn shards(mut self, shards: impl Into<Option<usize>>) -> Self {
        self.shards = shards.into();
        self
    }

    /// Sets whether shards get descriptor tables of their own. Default: no.
    ///
    /// For the binary alone, which moves no descriptor from one thread to another: in other
    /// programs an `OwnedFd` that is dropped on another thread would close a stranger's descriptor.
    /// That is why the type is in a crate that is no part of this one's interface.
    #[doc(hidden)]
    pub fn descriptor_tables(mut self, tables: throng_io::tables::DescriptorTables) -> Self {
        self.descriptor_tables = tables;
        self
    }

    /// Sets the I/O backend. Default: [`IoBackend::Auto`].
    pub fn io(mut self, io: IoBackend) -> Self {
        self.io = io;
        self
    }

    /// Sets the stack size of a connection's thread with [`IoBackend::Threads`], in bytes. Default:
    /// 256 KiB; minimum: 64 KiB. The system allocates memory for it as it is used: 8 KiB for an
    /// idle connection with a shallow handler. A handler that overflows its stack, by deep
    /// recursion or large arrays, aborts the process, as on any thread.
    pub fn thread_stack(mut self, bytes: usize) -> Self {
        self.thread_stack = bytes;
        self
    }

    /// Sets the worker pool for blocking work: [`Socket::offload`](crate::Socket::offload),
    /// [`Ws::on_message_blocking`](crate::Ws::on_message_blocking) and
    /// [`App::blocking`](crate::App::blocking). Default: one thread per usable CPU, a queue of
    /// 4,096 jobs, and connections that are not read while the queue is full.
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

    /// Sets the listen backlog: how many connections the kernel queues until they are accepted.
    /// Default: 4,096; Linux caps it at `net.core.somaxconn`.
    pub fn backlog(mut self, backlog: i32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Sets whether other processes with the same setting may listen on the port, too
    /// (`SO_REUSEPORT`, Linux). The kernel spreads connections over them, so that several processes
    /// can hold more connections than the descriptor limit of one allows. Channels are not shared
    /// between processes. Default: false, where a port in use is an error. A server of several
    /// shards shares the port among these by the same option: another process of the same user that
    /// sets this can join it later.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// Sets how many bytes of output that has not been sent yet the kernel may hold for a
    /// connection (`TCP_NOTSENT_LOWAT`, Linux). What waits there is out of reach of
    /// [`Backpressure`]: a client that has stalled gets it first, however old it is. Default: 128
    /// KiB; 16 KiB where a channel, a route or the server has rules that drop old messages
    /// ([`Latest`](crate::channel::SlowPolicy::Latest),
    /// [`DropOldest`](crate::channel::SlowPolicy::DropOldest), [`Backpressure::max_age`]), so that
    /// a stalled client gets about 64 KiB of old messages at most besides those in its own receive
    /// buffer. At least 1: the kernel takes 0 for no limit.
    pub fn unsent_limit(mut self, bytes: usize) -> Self {
        self.unsent_limit = Some(bytes);
        self
    }

    /// Sets the size of the kernel's send buffer of each connection in bytes (`SO_SNDBUF`; Linux
    /// doubles it). It bounds what is sent and not acknowledged, and with it the throughput over
    /// long distances: bytes per round trip. Default: the kernel sizes it, up to
    /// `net.ipv4.tcp_wmem`. That of a Unix socket, by default `net.core.wmem_default`, holds what
    /// its peer has not read.
    pub fn socket_send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }

    /// Sets whether each event loop is pinned to a CPU of its own. Default: [`CpuAffinity::None`].
    /// [`Running::placement`](crate::server::Running::placement) returns the CPUs chosen.
    pub fn cpu_affinity(mut self, affinity: CpuAffinity) -> Self {
        self.cpu_affinity = affinity;
        self
    }

    /// Sets how long callbacks may hold their shard before it is reported as a stall: counted by
    /// route in the metrics, and passed to [`on_event`](Self::on_event). Default: 50 ms; `None`
    /// turns it off.
    ///
    /// The clock is read at the end of each turn of the event loop, and after each event only for
    /// ten seconds after a stall. So a first stall may be the sum of several short callbacks of one
    /// route, and one of several routes is reported without a route. It has no effect with
    /// [`IoBackend::Threads`], where a handler holds up its own connection only.
    pub fn stall_warning(mut self, warning: impl Into<Option<Duration>>) -> Self {
        self.stall_warning = warning.into();
        self
    }

    /// Sets the callback for [`ServerEvent`]s: refusals, faults of clients, slow consumers, panics
    /// and stalls. Default: at most one line per second on standard error, with cause and remedy;
    /// with the feature `tracing`, events of the target `throng`.
    ///
    /// It is called for each event on the shard's thread, so it must not take long itself. A panic
    /// in it is counted, and changes nothing more.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use throng::server::ServerEvent;
    /// Server::new(App::new()).on_event(|event| match event {
    ///     ServerEvent::Refused { .. } => {} // The access log of the proxy has it.
    ///     event => eprintln!("{event}"),
    /// });
    /// ```
    pub fn on_event(mut self, callback: impl Fn(&ServerEvent<'_>) + Send + Sync + 'static) -> Self {
        self.events = Events::new(callback);
        self
    }

    /// Sets the labels of the metric `throng_build_info` besides `version`, for example the commit.
    #[cfg(feature = "metrics")]
    pub fn build_info(mut self, labels: &'static [(&'static str, &'static str)]) -> Self {
        self.build = labels;
        self
    }

    /// Sets the receiver of a record of each request and session that has ended. Default: none,
    /// which costs nothing.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use throng::server::{AccessEntry, AccessLog};
    /// struct Lines;
    ///
    /// impl AccessLog for Lines {
    ///     fn record(&self, access: &AccessEntry<'_>) {
    ///         println!("{} {} {:?}", access.method, access.path, access.status);
    ///     }
    /// }
    ///
    /// Server::new(App::new()).access_log(Lines);
    /// ```
    pub fn access_log(mut self, log: impl AccessLog) -> Self {
        self.access = access::Log::new(log);
        self
    }

    /// Serves `https` and `wss` instead of `http` and `ws`, on all addresses. Default: no TLS.
    ///
    /// Handlers notice nothing. An idle session takes about 240 bytes more; certificates that are
    /// renewed are read again by [`Running::reload_tls`](crate::server::Running::reload_tls). A
    /// client that speaks HTTP without TLS gets 400 with the reason.
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
