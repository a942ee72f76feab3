//! A server's configuration, and how it starts.
//!
//! Start reading at [`Server`]; settings are in `settings.rs`, and [`Server::bind`] in `startup.rs`.

pub(crate) mod capacity;
mod io;
mod settings;
mod startup;

use std::fmt;
use std::net::SocketAddr;

use throng_engine::workers::WorkerSettings;
use throng_engine::{Classes, Limits};
use throng_http::Origins;
use throng_proto::ws::deflate::Settings as Deflate;

pub use io::Io;
pub(crate) use startup::workers;

use crate::app::App;
use crate::pin::Pin;
use crate::stalls::StallSettings;

/// Stack of a connection's thread, where it has one.
const THREAD_STACK: usize = 256 * 1024;

/// A server: an [`App`] and the configuration to serve it with. See the [crate's page](crate) for a whole one.
///
/// Nothing happens before [`Server::bind`], which reports mistakes in routes and settings.
#[must_use]
pub struct Server {
    app: App,
    limits: Limits,
    classes: Classes,
    wildcards: bool,
    compression: Deflate,
    origins: Origins,
    workers: WorkerSettings,
    /// The threads of the pool of workers are started with the server, even if no route needs them at once.
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

impl Server {
    /// A server for `app`, with default settings and [`Limits`].
    pub fn new(app: App) -> Self {
        Self {
            app,
            limits: Limits::default(),
            classes: Classes::default(),
            wildcards: false,
            compression: Deflate::default(),
            origins: Origins::SameHost,
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

    /// Keeps the first mistake for `bind`, so that building reads as one chain.
    fn note(&mut self, mistake: String) {
        self.mistake.get_or_insert(mistake);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("app", &self.app)
            .field("shards", &self.shards)
            .field("io", &self.io)
            .finish_non_exhaustive()
    }
}
