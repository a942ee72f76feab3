//! Building a server: routes and settings in, a bound server out.
//!
//! Start reading at [`Server`]; routes are in `routing.rs`, settings in `settings.rs`, and [`Server::bind`] in `startup.rs`.

pub(crate) mod capacity;
mod defaults;
mod io;
mod routing;
mod settings;
mod startup;

use std::fmt;
use std::net::SocketAddr;

use throng_engine::workers::WorkerSettings;
use throng_engine::{Classes, Limits};
use throng_http::{Files, Origins, Router};
use throng_proto::ws::deflate::Settings as Deflate;

pub use io::Io;
pub(crate) use startup::workers;

use crate::pin::Pin;
use crate::service::{LaterHandler, StreamHandler, Target};
use crate::stalls::StallSettings;
use crate::workers::{BlockingHandler, Pool};

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

impl<R> Server<R> {
    /// Keeps the first mistake for `bind`, so that building reads as one chain.
    fn note(&mut self, mistake: String) {
        self.mistake.get_or_insert(mistake);
    }
}
