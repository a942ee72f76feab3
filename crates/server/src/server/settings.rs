//! The builder's settings: all that is not a route.

use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::workers::WorkerSettings;
use throng_engine::{Backpressure, Limits};
use throng_http::Origins;
use throng_proto::ws::deflate::Settings as Deflate;

use super::startup::resolve;
use super::{Io, Server};
use crate::pin::Pin;
use crate::stalls::Stall;

impl Server {
    /// What happens to messages for receivers that read too slowly, where neither the channel nor the route has rules
    /// of its own. Default: [`SlowPolicy::Close`](crate::SlowPolicy::Close) at [`Limits::max_backlog`].
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
    /// Server::new(App::new()).channel_backpressure(
    ///     "prices.*",
    ///     Backpressure::new(SlowPolicy::Latest).max_age(Duration::from_secs(5)),
    /// );
    /// ```
    pub fn channel_backpressure(mut self, pattern: &str, rules: impl Into<Backpressure>) -> Self {
        if let Err(error) = self.classes.add_channels(pattern, rules.into()) {
            self.note(error.to_string());
        }
        self
    }

    /// Whether subscriptions may be patterns: `news.*` for all channels of two tokens of which the first is `news`,
    /// `news.>` for all that begin with `news.`. Default false: a star is a character like any other. Then a
    /// malformed pattern is not subscribed to; what is published to stays literal.
    pub fn wildcards(mut self, wildcards: bool) -> Self {
        self.wildcards = wildcards;
        self
    }

    /// Sets the [`Limits`].
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How messages are compressed where an endpoint does not say otherwise, with clients that offer it: a
    /// [`Compression`](crate::Compression), or all settings as a [`Deflate`]. Default: not at all.
    pub fn compression(mut self, compression: impl Into<Deflate>) -> Self {
        self.compression = compression.into();
        self
    }

    /// Which web pages may open WebSockets here. Default: those of the same host; clients that are not browsers
    /// send no Origin and are let in.
    pub fn origins(mut self, origins: Origins) -> Self {
        self.origins = origins;
        self
    }

    /// Event loops, each on a thread of its own. Default 0: one for each usable CPU. A connection stays on one for
    /// life.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// Which way the kernel is spoken to. Default [`Io::Auto`].
    pub fn io(mut self, io: Io) -> Self {
        self.io = io;
        self
    }

    /// Bytes of a connection's stack with [`Io::Threads`]. Default 256 KiB, of which memory is taken as it is used: 8 KiB by
    /// an idle connection whose handler is shallow. A handler that needs more, for deep recursion or large
    /// arrays, ends the process when it overflows, as on any thread. At least 64 KiB.
    pub fn thread_stack(mut self, bytes: usize) -> Self {
        self.thread_stack = bytes;
        self
    }

    /// The pool of workers for what blocks: [`Socket::offload`](crate::Socket::offload), [`Ws::on_message_blocking`](crate::Ws::on_message_blocking) and
    /// [`App::blocking`](crate::App::blocking). Default: one for each usable CPU, 4,096 jobs that wait, and connections that are not read while the
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
    /// Server::new(App::new()).workers(WorkerSettings {
    ///     pool_size,
    ///     overload: Overload::Close,
    ///     ..WorkerSettings::default()
    /// });
    /// ```
    pub fn workers(mut self, settings: WorkerSettings) -> Self {
        self.workers = settings;
        self.starts_workers = true;
        self
    }

    /// Connections the kernel keeps until they are accepted. Default 4096; the kernel caps it at
    /// `net.core.somaxconn`.
    pub fn backlog(mut self, backlog: i32) -> Self {
        self.backlog = backlog;
        self
    }

    /// Lets other processes that ask for the same listen on the port, too (Linux): the kernel spreads connections
    /// over them, so that several processes hold more connections than one may have descriptors. Channels are each
    /// process's own. Default false: a port that another program has is an error.
    pub fn share_port(mut self, share: bool) -> Self {
        self.share_port = share;
        self
    }

    /// Whether each event loop stays on a CPU of its own. Default [`Pin::None`]. Where they are: [`Running::placement`](crate::Running::placement).
    pub fn pin(mut self, pin: Pin) -> Self {
        self.pin = pin;
        self
    }

    /// A callback that holds its shard for this long or longer, while the shard's other connections wait, is a stall: counted
    /// by route in the metrics, and told to [`on_stall`](Self::on_stall). Default 50 ms; 0 = never. The clock is read at
    /// the end of each turn of the event loop, and after each event only for ten seconds after a stall; so a first stall
    /// may be that of several short callbacks of one route, and one of several routes is not named. It has no meaning with
    /// [`Io::Threads`], where a handler holds up its own connection alone.
    pub fn stall_warning(mut self, warning: Duration) -> Self {
        self.stalls.warning = warning;
        self
    }

    /// Who is told of stalls, instead of standard error, which gets a line a second at most. Called for each stall on the
    /// stalled shard's thread, so it must not take long itself.
    ///
    /// ```
    /// # use throng::prelude::*;
    /// Server::new(App::new()).on_stall(|stall| eprintln!("{} took {:?}", stall.route, stall.length));
    /// ```
    pub fn on_stall(mut self, tell: impl Fn(&Stall<'_>) + Send + Sync + 'static) -> Self {
        self.stalls.on_stall = Arc::new(tell);
        self
    }

    /// Listens on `address` besides the one given to [`bind`](Self::bind): on `[::1]:80` and on `127.0.0.1:80`, say. Port 0
    /// takes the port of the first address. May be called several times.
    pub fn listen_also(mut self, address: impl ToSocketAddrs) -> Self {
        match resolve(address) {
            Ok(address) => self.more_addresses.push(address),
            Err(error) => self.note(error.to_string()),
        }
        self
    }
}
