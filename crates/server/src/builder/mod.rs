//! A server's configuration, and how it starts.
//!
//! Start reading at [`Server`]; settings are in `settings.rs`, and [`Server::bind`] in
//! `startup.rs`.

mod capacity;
mod channels;
#[cfg(feature = "settings")]
mod environment;
mod observe;
mod proxies;
mod reconfigure;
mod settings;
mod shards;
mod sockets;
mod startup;
mod tables;

use std::fmt;
use std::net::SocketAddr;

use throng_engine::workers::WorkerSettings;
use throng_engine::{Backpressure, Limits, SettingError};
use throng_http::Origins;
use throng_io::tables::DescriptorTables;
use throng_io::{HeldListeners, Purpose};
use throng_proto::ws::deflate::Settings as Deflate;

pub use self::channels::Channels;
pub use self::observe::Observe;
pub use self::proxies::Proxies;
pub use self::shards::Shards;
pub use self::sockets::SocketOptions;

use crate::app::App;
use crate::hub::Hub;
use crate::ticks::{ShardTick, Ticker};
use crate::tls::Setting;

/// A server: an [`App`] and the configuration to serve it with.
///
/// The [crate's page](crate) has complete examples. Mistakes in routes and settings are reported by
/// [`Server::bind`], or earlier by [`Server::check`].
#[must_use]
pub struct Server {
    app: App,
    limits: Limits,
    backpressure: Backpressure,
    channels: Channels,
    compression: Deflate,
    origins: Origins,
    proxies: Proxies,
    workers: WorkerSettings,
    /// Whether the worker threads are started with the server even if no route always needs them.
    starts_workers: bool,
    shards: Shards,
    descriptor_tables: DescriptorTables,
    sockets: SocketOptions,
    observe: Observe,
    /// The process's list of its listening sockets, for its successor.
    held: Option<(HeldListeners, Purpose)>,
    /// Addresses besides the one given to `bind`.
    more_addresses: Vec<SocketAddr>,
    tls: Setting,
    cluster: crate::cluster::Setting,
    /// Made before the server.
    hub: Option<Hub>,
    ticks: Vec<Ticker>,
    shard_ticks: Vec<ShardTick>,
    mistake: Option<SettingError>,
}

impl Server {
    /// Creates a server for `app`, with default settings and [`Limits`].
    pub fn new(app: impl Into<App>) -> Self {
        Self {
            app: app.into(),
            limits: Limits::default(),
            backpressure: Backpressure::default(),
            channels: Channels::new(),
            compression: Deflate::default(),
            origins: Origins::SameHost,
            proxies: Proxies::new(),
            workers: WorkerSettings::default(),
            starts_workers: false,
            shards: Shards::new(),
            descriptor_tables: DescriptorTables::Shared,
            sockets: SocketOptions::new(),
            observe: Observe::new(),
            held: None,
            more_addresses: Vec::new(),
            tls: Setting::default(),
            cluster: crate::cluster::Setting::default(),
            hub: None,
            ticks: Vec::new(),
            shard_ticks: Vec::new(),
            mistake: None,
        }
    }

    /// Keeps the first mistake for `bind`, so that the builder can be used as one chain.
    fn note(&mut self, mistake: SettingError) {
        self.mistake.get_or_insert(mistake);
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("app", &self.app)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}
