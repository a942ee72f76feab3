//! Building a server: routes and settings in, a bound server out.

use std::fmt;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use throng_engine::workers::{WorkerError, WorkerSettings, Workers};
use throng_engine::{Backpressure, BuildOptions, Classes, LimitError, Limits};
use throng_http::{
    Files, IntoResponse, Method, Origins, Reject, Request, Response, Router, Status,
};
use throng_io::{ListenOptions, Options, Portable, listen_many};
use throng_proto::ws::deflate::{self, Settings as Deflate};
use throng_proto::ws::{self, handshake};

use crate::error::{Error, Result};
use crate::handler::Handler;
use crate::http::{BodyReader, Delivered, Responder};
use crate::pin::Pin;
use crate::routes::{EventsRoute, HttpRoute, Routes, WsRoute};
use crate::running::{Bound, Shards};
use crate::service::{LaterHandler, ShardService, Shared, StreamHandler, Target};
use crate::stalls::{Stall, StallSettings, Stalls};
use crate::workers::{BlockingHandler, Desk, Pool};

/// Descriptors kept back for listeners, polls, wake-ups, logs and refusals.
const RESERVED_DESCRIPTORS: usize = 64;

/// Fewer connections than this are no server: a descriptor limit that allows no more is told, not obeyed.
const FEWEST_CONNECTIONS: usize = 16;

/// More event loops than any machine has CPUs are a mistake.
const MOST_SHARDS: usize = 1024;

/// Silence after which the kernel asks whether the peer's host is still there. Heartbeats find out sooner; this is
/// for programs that turned them off, and for connections that are no WebSockets yet.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Stack of a connection's thread, where it has one.
const THREAD_STACK: usize = 256 * 1024;

/// How much later than the shard the kernel gives a peer up that takes nothing, so that the figures tell why.
const KERNEL_LATER: Duration = Duration::from_secs(5);

/// What the kernel holds of a connection's output besides what is on its way. More would be memory that no limit of ours
/// knows, up to 4 MB for each client that does not read; less, and a fast one would wait for us.
const UNSENT_LOW_WATER: u32 = 128 << 10;

/// Which way the kernel is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Io {
    /// The best this system has: epoll on Linux, else the portable driver.
    #[default]
    Auto,
    /// Level-triggered epoll. Linux only.
    Epoll,
    /// mio: kqueue on the BSDs and macOS, epoll on Linux.
    Portable,
    /// One thread for each connection, and one that accepts. Unix only.
    ///
    /// Handlers of different connections run in parallel, and may block: they hold up their own connection and
    /// nobody else. Simplest to reason about, and right for a few thousand connections: each takes two
    /// descriptors and 27 KiB of memory, besides 16 KiB of the kernel's for its thread, where an event loop takes a hundred
    /// bytes, 300 KB more once a message was compressed for it, and a publication wakes a thread for each receiver. All else is the same. [`Server::shards`] has no meaning; see [`Server::thread_stack`].
    Threads,
}

/// The error says what can be written; whoever read the name knows which setting it was for.
impl std::str::FromStr for Io {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "epoll" => Ok(Self::Epoll),
            "portable" => Ok(Self::Portable),
            "threads" => Ok(Self::Threads),
            _ => Err("write auto, epoll, portable or threads".to_owned()),
        }
    }
}

/// A server being put together. See the [crate's page](crate) for a whole one.
///
/// Nothing happens before [`Server::bind`]; mistakes in routes and settings are reported there.
pub struct Server<R = ()> {
    routes: R,
    count: u16,
    router: Router<Target>,
    limits: Limits,
    classes: Classes,
    wildcards: bool,
    compression: Deflate,
    origins: Origins,
    later: Vec<LaterHandler>,
    streams: Vec<StreamHandler>,
    /// Those of each [`dir`](Self::dir): what they hold open counts against the connections.
    files: Vec<Files>,
    blocking: Vec<BlockingHandler>,
    pool: Pool,
    workers: WorkerSettings,
    /// They are wanted for sure, and not only once somebody offloads something.
    starts_workers: bool,
    shards: usize,
    io: Io,
    thread_stack: usize,
    backlog: i32,
    share_port: bool,
    stalls: StallSettings,
    pin: Pin,
    /// Besides the address given to `bind`.
    more_addresses: Vec<SocketAddr>,
    mistake: Option<String>,
}

impl<R> fmt::Debug for Server<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("handlers", &self.count)
            .field("shards", &self.shards)
            .field("io", &self.io)
            .finish_non_exhaustive()
    }
}

impl Default for Server {
    fn default() -> Self {
        Self::new()
    }
}

impl Server {
    /// A server without routes, with default [`Limits`].
    #[must_use]
    pub fn new() -> Self {
        Self {
            routes: (),
            count: 0,
            router: Router::new(),
            limits: Limits::default(),
            classes: Classes::default(),
            wildcards: false,
            compression: Deflate::default(),
            origins: Origins::SameHost,
            later: Vec::new(),
            streams: Vec::new(),
            files: Vec::new(),
            blocking: Vec::new(),
            pool: Pool::default(),
            workers: WorkerSettings::default(),
            starts_workers: false,
            shards: 0,
            io: Io::Auto,
            thread_stack: THREAD_STACK,
            backlog: 4096,
            share_port: false,
            stalls: StallSettings::default(),
            pin: Pin::None,
            more_addresses: Vec::new(),
            mistake: None,
        }
    }
}

impl<R: Routes> Server<R> {
    /// Serves WebSockets at `path`, a pattern like `/chat/{room}` or `/files/{*rest}`. A request there that does
    /// not ask for an upgrade goes to the next route that matches, say to [`any`](Self::any) at the same path, and is
    /// answered with 426 where there is none.
    #[must_use]
    pub fn ws<H: Handler>(mut self, path: &str, handler: H) -> Server<(WsRoute<H>, R)> {
        let number = self.count;
        if let Some(name) = handler.subprotocols().iter().find(|name| !handshake::is_token(name)) {
            self.note(format!("subprotocol {name:?} is not a token (RFC 6455 section 4.1)"));
        }
        if let Some(rules) = handler.backpressure() {
            self.classes.add_route(number, path, rules);
        }
        self.route(Some(Method::Get), path, Target::Ws(number));
        self.starts_workers |= handler.uses_workers();
        let desk = Desk { route: path.into(), pool: self.pool.clone() };
        self.add(|routes| (WsRoute { number, handler, desk }, routes))
    }

    /// Streams a channel at `path` as server-sent events (WHATWG HTML section 9.2), the read-only fallback for clients that
    /// cannot have a WebSocket: what is published there comes as `data:` lines, binary messages as events of type
    /// `binary` in base64. `channel` tells which channel a request is for, or refuses it; with
    /// [`wildcards`](Self::wildcards) it may be a pattern. Origins are checked as for WebSockets, and pages of other hosts
    /// that are let in may read the stream (CORS). The rules for slow receivers are the same; a stream that is closed
    /// for being slow just ends, and browsers come back by themselves.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::new().events("/sse/{channel}", |request| {
    ///     Ok(request.param("channel").unwrap_or_default().to_owned())
    /// });
    /// ```
    #[must_use]
    pub fn events<F>(mut self, path: &str, channel: F) -> Server<(EventsRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> std::result::Result<String, Reject> + Send + Sync + 'static,
    {
        let number = self.count;
        self.route(Some(Method::Get), path, Target::Events(number));
        self.add(|routes| (EventsRoute { number, channel }, routes))
    }

    /// What happens to messages for receivers that read too slowly, where neither the channel nor the route has rules
    /// of its own. Default: [`SlowPolicy::Close`](crate::SlowPolicy::Close) at [`Limits::max_backlog`].
    #[must_use]
    pub fn backpressure(mut self, rules: impl Into<Backpressure>) -> Self {
        self.classes.set_default(rules.into());
        self
    }

    /// The same for what is published to the channels that match `pattern`: tokens separated by dots, `*` for any one
    /// token, `>` at the end for any that follow. Of several patterns that match, the one given first rules; a
    /// channel's rules win over those of its receivers' routes.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use std::time::Duration;
    /// // A slow client gets the newest price of each symbol, and none that is older than five seconds.
    /// Server::<()>::new().channels(
    ///     "prices.*",
    ///     Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5)),
    /// );
    /// ```
    #[must_use]
    pub fn channels(mut self, pattern: &str, rules: impl Into<Backpressure>) -> Self {
        if let Err(error) = self.classes.add_channels(pattern, rules.into()) {
            self.note(error.to_string());
        }
        self
    }

    /// Whether subscriptions may be patterns: `news.*` for all channels of two tokens of which the first is `news`,
    /// `news.>` for all that begin with `news.`. Default false: a star is a character like any other. Then a
    /// malformed pattern is not subscribed to; what is published to stays literal.
    #[must_use]
    pub fn wildcards(mut self, wildcards: bool) -> Self {
        self.wildcards = wildcards;
        self
    }

    /// Answers GET (and HEAD) at `path` with what `handler` returns: text, bytes, a
    /// [`Response`](crate::Response), or a `Result` of them. A request's body, of any method, is read before
    /// the handler is called, up to [`Limits::http`]'s `max_body`: [`Request::body`].
    #[must_use]
    pub fn get<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Get), path, handler)
    }

    /// Answers POST at `path`; see [`Server::get`].
    #[must_use]
    pub fn post<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Post), path, handler)
    }

    /// Answers PUT at `path`; see [`Server::get`].
    #[must_use]
    pub fn put<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Put), path, handler)
    }

    /// Answers DELETE at `path`; see [`Server::get`].
    #[must_use]
    pub fn delete<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Delete), path, handler)
    }

    /// Answers PATCH at `path`; see [`Server::get`].
    #[must_use]
    pub fn patch<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(Some(Method::Patch), path, handler)
    }

    /// Answers every method at `path` that has no route of its own; see [`Server::get`].
    #[must_use]
    pub fn any<F, T>(self, path: &str, handler: F) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        self.http(None, path, handler)
    }

    fn http<F, T>(
        mut self,
        method: Option<Method>,
        path: &str,
        handler: F,
    ) -> Server<(HttpRoute<F>, R)>
    where
        F: Fn(&Request<'_>) -> T + Send + Sync + 'static,
        T: IntoResponse,
    {
        let number = self.count;
        self.route(method, path, Target::Http(number));
        self.add(|routes| (HttpRoute { number, handler }, routes))
    }

    /// Answers a request later, from any thread: `handler` gets a [`Responder`] and passes it on. The body is read before it is
    /// called, as for [`Server::get`]. The client's next request on this connection waits until then; everyone else is
    /// served.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn report(name: &str) -> String { name.to_owned() }
    /// Server::new().later(Method::Get, "/reports/{name}", |request, responder| {
    ///     let name = request.param("name").unwrap_or_default().to_owned();
    ///     std::thread::spawn(move || responder.send(report(&name)));
    /// });
    /// ```
    #[must_use]
    pub fn later(
        mut self,
        method: Method,
        path: &str,
        handler: impl Fn(&Request<'_>, Responder) + Send + Sync + 'static,
    ) -> Self {
        self.route(Some(method), path, Target::Later(self.later.len() as u16));
        self.later.push(Box::new(handler));
        self
    }

    /// Answers a request on the server's pool of workers, where `handler` may block. Like [`Server::get`] otherwise: the body is read
    /// before it is called, up to [`Limits::http`]'s `max_body`, and a route for GET answers HEAD, too. The client's next request on
    /// this connection waits; everyone else is served.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # fn find(id: &str) -> Option<String> { Some(id.to_owned()) }
    /// Server::new().blocking(Method::Get, "/users/{id}", |request| {
    ///     find(request.param("id").unwrap_or_default()).ok_or(Reject::not_found())
    /// });
    /// ```
    #[must_use]
    pub fn blocking<T: IntoResponse>(
        mut self,
        method: Method,
        path: &str,
        handler: impl Fn(&Request<'_>) -> T + Send + Sync + 'static,
    ) -> Self {
        self.route(Some(method), path, Target::Blocking(self.blocking.len() as u16));
        self.starts_workers = true;
        let handler = Box::new(move |request: &Request<'_>| handler(request).into_response());
        self.blocking.push(BlockingHandler { path: path.into(), handler });
        self
    }

    /// The pool of workers for what blocks: [`Socket::offload`](crate::Socket::offload), [`Ws::blocking`](crate::Ws::blocking) and
    /// [`Server::blocking`]. Default: one for each usable CPU, 4,096 jobs that wait, and connections that are not read while the
    /// queue is full. For how many to ask see [`suggested_size`](crate::suggested_size).
    ///
    /// The threads are started with the server if a route always uses them, or if this is called; otherwise when the first
    /// work comes.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// # use throng::{Overload, WorkerSettings, suggested_size, usable_cpus};
    /// # use std::time::Duration;
    /// // Handlers that wait 5 ms for a database, and compute for 1 ms.
    /// let pool_size =
    ///     suggested_size(usable_cpus(), Duration::from_millis(5), Duration::from_millis(1));
    /// Server::new().workers(WorkerSettings {
    ///     pool_size,
    ///     overload: Overload::Close,
    ///     ..WorkerSettings::default()
    /// });
    /// ```
    #[must_use]
    pub fn workers(mut self, settings: WorkerSettings) -> Self {
        self.workers = settings;
        self.starts_workers = true;
        self
    }

    /// Takes a request's body while it comes, up to `max_body` bytes (more are refused with 413), and answers later: both from a
    /// thread that may block. Neither the body nor the answer need fit in memory: see [`BodyReader`] and
    /// [`BodyWriter`](crate::BodyWriter).
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::new().stream(Method::Put, "/files/{name}", 1 << 40, |_, mut body, responder| {
    ///     std::thread::spawn(move || match std::io::copy(&mut body, &mut std::io::sink()) {
    ///         Ok(bytes) => responder.send(format!("{bytes} bytes")),
    ///         Err(error) => eprintln!("an upload ended early: {error}"),
    ///     });
    /// });
    /// ```
    #[must_use]
    pub fn stream(
        mut self,
        method: Method,
        path: &str,
        max_body: u64,
        handler: impl Fn(&Request<'_>, BodyReader, Responder) + Send + Sync + 'static,
    ) -> Self {
        self.route(Some(method), path, Target::Stream(self.streams.len() as u16));
        self.streams.push(StreamHandler { max_body, handler: Box::new(handler) });
        self
    }

    /// Serves the files of a directory below `prefix`: `/assets` for `/assets/app.js`, `/` for all paths that have no route
    /// of their own. A path, or [`Files`] with its settings. That the directory is there is checked by [`Server::bind`], which
    /// also keeps a descriptor back from the connections for each file that [may be open](Files::max_open): all
    /// directories together at most a quarter of what the process may have, to which their bounds are lowered.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::new().dir("/", "public").dir("/docs", Files::new("manual").precompressed(true));
    /// ```
    #[must_use]
    pub fn dir(mut self, prefix: &str, files: impl Into<Files>) -> Server<impl Routes> {
        let files = files.into();
        if let Err(error) = files.check() {
            self.note(error.to_string());
        }
        self.files.push(files.clone());
        let prefix = prefix.trim_end_matches('/');
        if !prefix.is_empty() {
            self.route(Some(Method::Get), prefix, Target::Http(self.count));
        }
        // Relative, so that it holds behind a proxy that has a prefix of its own.
        let location = format!("./{}/", prefix.rsplit('/').next().unwrap_or_default());
        self.get(&format!("{prefix}/{{*rest}}"), move |request: &Request<'_>| {
            if request.raw_param("rest").is_some() {
                return Ok(files.respond(request));
            }
            Response::error(Status::new(301), "a directory ends with a slash")
                .header("Location", location.clone())
        })
    }

    /// Serves the server's figures at `path`, in the text format that Prometheus reads.
    #[must_use]
    pub fn metrics(mut self, path: &str) -> Self {
        self.route(Some(Method::Get), path, Target::Metrics);
        self
    }

    /// Serves the server's figures at `path` as JSON, summed over the shards.
    #[must_use]
    pub fn stats(mut self, path: &str) -> Self {
        self.route(Some(Method::Get), path, Target::Stats);
        self
    }

    /// Serves `/livez` (200 while the process answers) and `/readyz` (200 while it takes connections, 503 while it
    /// drains).
    #[must_use]
    pub fn health(mut self) -> Self {
        self.route(Some(Method::Get), "/livez", Target::Live);
        self.route(Some(Method::Get), "/readyz", Target::Ready);
        self
    }

    /// Sets the [`Limits`].
    #[must_use]
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How messages are compressed where an endpoint does not say otherwise, with clients that offer it: a
    /// [`Compression`](crate::Compression), or all settings as a [`Deflate`]. Default: not at all.
    #[must_use]
    pub fn compression(mut self, compression: impl Into<Deflate>) -> Self {
        self.compression = compression.into();
        self
    }

    /// Which web pages may open WebSockets here. Default: those of the same host; clients that are not browsers
    /// send no Origin and are let in.
    #[must_use]
    pub fn origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Event loops, each on a thread of its own. Default 0: one for each usable CPU. A connection stays on one for
    /// life.
    #[must_use]
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// Which way the kernel is spoken to. Default [`Io::Auto`].
    #[must_use]
    pub fn io(mut self, io: Io) -> Self {
        self.io = io;
        self
    }

    /// Bytes of a connection's stack with [`Io::Threads`]. Default 256 KiB, of which memory is taken as it is used: 8 KiB by
    /// an idle connection whose handler is shallow. A handler that needs more, for deep recursion or large
    /// arrays, ends the process when it overflows, as on any thread. At least 64 KiB.
    #[must_use]
    pub fn thread_stack(mut self, bytes: usize) -> Self {
        self.thread_stack = bytes;
        self
    }

    /// Connections the kernel keeps until they are accepted. Default 4096; the kernel caps it at
    /// `net.core.somaxconn`.
    #[must_use]
    pub fn backlog(mut self, backlog: i32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Lets other processes that ask for the same listen on the port, too (Linux): the kernel spreads connections
    /// over them, so that several processes hold more connections than one may have descriptors. Channels are each
    /// process's own. Default false: a port that another program has is an error.
    #[must_use]
    pub fn share_port(mut self, share: bool) -> Self {
        self.share_port = share;
        self
    }

    /// Whether each event loop stays on a CPU of its own. Default [`Pin::None`]. Where they are: [`Running::placement`](crate::Running::placement).
    #[must_use]
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = pin;
        self
    }

    /// A callback that holds its shard for this long or longer, while the shard's other connections wait, is a stall: counted
    /// by route in the metrics, and told to [`on_stall`](Self::on_stall). Default 50 ms; 0 = never. The clock is read at
    /// the end of each turn of the event loop, and after each event only for ten seconds after a stall; so a first stall
    /// may be that of several short callbacks of one route, and one of several routes is not named. It has no meaning with
    /// [`Io::Threads`], where a handler holds up its own connection alone.
    #[must_use]
    pub fn stall_warning(mut self, warning: Duration) -> Self {
        self.stalls.warning = warning;
        self
    }

    /// Who is told of stalls, instead of standard error, which gets a line a second at most. Called for each stall on the
    /// stalled shard's thread, so it must not take long itself.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::<()>::new().on_stall(|stall| eprintln!("{} took {:?}", stall.route, stall.length));
    /// ```
    #[must_use]
    pub fn on_stall(mut self, tell: impl Fn(&Stall<'_>) + Send + Sync + 'static) -> Self {
        self.stalls.on_stall = Arc::new(tell);
        self
    }

    /// Listens on `address` besides the one given to [`bind`](Self::bind): on `[::1]:80` and on `127.0.0.1:80`, say. Port 0
    /// takes the port of the first address. May be called several times.
    #[must_use]
    pub fn listen_also(mut self, address: impl ToSocketAddrs) -> Self {
        match resolve(address) {
            Ok(address) => self.more_addresses.push(address),
            Err(error) => self.note(error.to_string()),
        }
        self
    }

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

    fn add<N>(self, extend: impl FnOnce(R) -> N) -> Server<N> {
        Server {
            routes: extend(self.routes),
            count: self.count + 1,
            router: self.router,
            limits: self.limits,
            classes: self.classes,
            wildcards: self.wildcards,
            compression: self.compression,
            origins: self.origins,
            later: self.later,
            streams: self.streams,
            files: self.files,
            blocking: self.blocking,
            pool: self.pool,
            workers: self.workers,
            starts_workers: self.starts_workers,
            shards: self.shards,
            io: self.io,
            thread_stack: self.thread_stack,
            backlog: self.backlog,
            share_port: self.share_port,
            stalls: self.stalls,
            pin: self.pin,
            more_addresses: self.more_addresses,
            mistake: self.mistake,
        }
    }

    fn route(&mut self, method: Option<Method>, path: &str, target: Target) {
        self.stalls.name(target.code(), path);
        let added = match (method, target) {
            // A handshake is a GET, and there is no answer of which a HEAD could have the head.
            (_, Target::Ws(_)) => self.router.add_get_only(path, target),
            (Some(method), _) => self.router.add(method, path, target),
            (None, _) => self.router.add_any(path, target),
        };
        if let Err(error) = added {
            self.note(format!("route {path:?}: {error}"));
        }
    }

    /// Keeps the first mistake for `bind`, so that building reads as one chain.
    fn note(&mut self, mistake: String) {
        self.mistake.get_or_insert(mistake);
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

    /// The limit in force: what the descriptors allow, or what was set if they allow it.
    fn max_connections(&self, shards: usize) -> Result<usize> {
        let descriptors = throng_io::limits::raise_descriptors().map_err(Error::Shard)?;
        let used = throng_io::limits::descriptors_in_use();
        let descriptors_usable = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let for_files = share_among(&self.files, descriptors_usable / 4);
        let reserve = RESERVED_DESCRIPTORS + shards * 4 + used + for_files;
        let free = descriptors_usable.saturating_sub(reserve);
        let asked = self.limits.max_connections;
        #[cfg(unix)]
        if self.io == Io::Threads {
            let each = throng_io::threads::DESCRIPTORS;
            let possible = crate::threads::possible(asked, free / each)?;
            return choose_max_connections(asked, possible, descriptors, reserve, each);
        }
        choose_max_connections(asked, free, descriptors, reserve, 1)
    }
}

/// Its message names the setting and the remedy.
pub(crate) fn workers(error: WorkerError) -> Error {
    Error::Setting(error.to_string())
}

/// Lowers how many files each may have open so that all have no more than `most`, in proportion; returns how many they have.
fn share_among(files: &[Files], most: usize) -> usize {
    let limits: Vec<u128> = files.iter().map(|files| files.open_limit() as u128).collect();
    let wanted: u128 = limits.iter().sum();
    if wanted > most as u128 {
        for (files, limit) in files.iter().zip(limits) {
            let share = usize::try_from(limit * most as u128 / wanted).unwrap_or(usize::MAX);
            // One at least: none would be no directory at all.
            files.lower_max_open(share.max(1));
        }
    }
    files.iter().map(Files::open_limit).sum()
}

/// Of `descriptors`, `reserve` are spoken for, which leaves `possible` connections of `each` descriptors; `asked` is 0
/// for as many as possible.
fn choose_max_connections(
    asked: usize,
    possible: usize,
    descriptors: u64,
    reserve: usize,
    each: usize,
) -> Result<usize> {
    let problem = match asked {
        0 if possible >= FEWEST_CONNECTIONS => return Ok(possible),
        0 => String::new(),
        _ if asked <= possible => return Ok(asked),
        _ => format!("max_connections is {asked}, but "),
    };
    let (wanted, remedy) = match asked {
        0 => (1000 * each + reserve, ""),
        _ => (asked * each + reserve, ", or lower max_connections"),
    };
    Err(Error::Setting(format!(
        "{problem}the descriptor limit of {descriptors} allows {possible} connections, {reserve} descriptors being \
         needed otherwise; raise it with `ulimit -n {wanted}` (or LimitNOFILE= in the systemd unit){remedy}"
    )))
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

fn resolve(address: impl ToSocketAddrs) -> Result<SocketAddr> {
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

    #[test]
    fn directories_share_the_descriptors_that_files_may_have() {
        let files = |most| Files::new(".").max_open(most);
        let limits = |files: &[Files]| files.iter().map(Files::open_limit).collect::<Vec<_>>();
        assert_eq!(share_among(&[], 100), 0);
        let few = [files(30), files(70)];
        assert_eq!((share_among(&few, 100), limits(&few)), (100, vec![30, 70]));
        let many = [files(300), files(100)];
        assert_eq!((share_among(&many, 100), limits(&many)), (100, vec![75, 25]));
        let unbounded = [files(usize::MAX), files(usize::MAX), files(1)];
        assert_eq!((share_among(&unbounded, 100), limits(&unbounded)), (99, vec![49, 49, 1]));
        let one = files(100);
        let twice = [one.clone(), one];
        assert_eq!((share_among(&twice, 100), limits(&twice)), (100, vec![50, 50]));
    }

    #[test]
    fn too_few_descriptors_are_told_in_the_words_of_who_set_what() {
        let choose = |asked, possible: usize| {
            choose_max_connections(asked, possible, possible as u64 + 80, 80, 1)
                .map_err(|error| error.to_string())
        };
        assert_eq!(choose(0, 16), Ok(16));
        assert_eq!(choose(3, 3), Ok(3));
        let nothing_set = choose(0, 15).unwrap_err();
        assert!(
            nothing_set.starts_with("the descriptor limit of 95 allows 15 conn"),
            "{nothing_set}"
        );
        assert!(nothing_set.contains("`ulimit -n 1080`"), "{nothing_set}");
        assert!(!nothing_set.contains("max_connections"), "{nothing_set}");
        let too_many = choose(17, 16).unwrap_err();
        assert!(too_many.starts_with("max_connections is 17, but the descriptor"), "{too_many}");
        assert!(too_many.contains("`ulimit -n 97`"), "{too_many}");
        assert!(too_many.ends_with("or lower max_connections"), "{too_many}");
        let of_threads = choose_max_connections(17, 16, 32 + 80, 80, 2).unwrap_err().to_string();
        assert!(of_threads.contains("`ulimit -n 114`"), "{of_threads}");
    }
}
