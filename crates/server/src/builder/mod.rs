//! A server's configuration, and how it starts.
//!
//! Start reading at [`Server`]; settings are in `settings.rs`, and [`Server::bind`] in
//! `startup.rs`.

mod capacity;
mod reconfigure;
mod settings;
mod startup;
mod tables;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use throng_engine::workers::WorkerSettings;
use throng_engine::{Classes, Limits, PresenceRules, SettingError};
use throng_http::{Network, Origins};
use throng_io::tables::DescriptorTables;
use throng_proto::ws::deflate::Settings as Deflate;

use crate::access;
use crate::affinity::CpuAffinity;
use crate::app::App;
use crate::events::Events;
use crate::hub::Hub;
use crate::io_backend::IoBackend;
use crate::ticks::{ShardTick, Tick};
use crate::tls::Setting;

/// Bytes of the stack of a connection's thread, with [`IoBackend::Threads`].
const THREAD_STACK: usize = 256 * 1024;

/// A server: an [`App`] and the configuration to serve it with.
///
/// The [crate's page](crate) has complete examples. Mistakes in routes and settings are reported by
/// [`Server::bind`], or earlier by [`Server::check`].
#[must_use]
pub struct Server {
    app: App,
    limits: Limits,
    classes: Classes,
    presences: PresenceRules,
    compression: Deflate,
    origins: Origins,
    trusted_proxies: Vec<Network>,
    proxy_protocol: bool,
    workers: WorkerSettings,
    /// Whether the worker threads are started with the server even if no route always needs them.
    starts_workers: bool,
    shards: Option<usize>,
    descriptor_tables: DescriptorTables,
    io: IoBackend,
    thread_stack: usize,
    backlog: i32,
    reuse_port: bool,
    send_buffer: Option<usize>,
    unsent_limit: Option<usize>,
    stall_warning: Option<Duration>,
    events: Events,
    access: access::Log,
    cpu_affinity: CpuAffinity,
    /// Addresses besides the one given to `bind`.
    more_addresses: Vec<SocketAddr>,
    tls: Setting,
    cluster: crate::cluster::Setting,
    /// Made before the server.
    hub: Option<Hub>,
    #[cfg(feature = "metrics")]
    build: &'static [(&'static str, &'static str)],
    ticks: Vec<Tick>,
    shard_ticks: Vec<ShardTick>,
    mistake: Option<SettingError>,
}

impl Server {
    /// Creates a server for `app`, with default settings and [`Limits`].
    pub fn new(app: App) -> Self {
        Self {
            app,
            limits: Limits::default(),
            classes: Classes::default(),
            presences: PresenceRules::default(),
            compression: Deflate::default(),
            origins: Origins::SameHost,
            trusted_proxies: Vec::new(),
            proxy_protocol: false,
            workers: WorkerSettings::default(),
            starts_workers: false,
            shards: None,
            descriptor_tables: DescriptorTables::Shared,
            io: IoBackend::Auto,
            thread_stack: THREAD_STACK,
            backlog: 4096,
            reuse_port: false,
            send_buffer: None,
            unsent_limit: None,
            stall_warning: Some(crate::stalls::WARNING),
            events: Events::default(),
            access: access::Log::default(),
            cpu_affinity: CpuAffinity::None,
            more_addresses: Vec::new(),
            tls: Setting::default(),
            cluster: crate::cluster::Setting::default(),
            hub: None,
            #[cfg(feature = "metrics")]
            build: &[],
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
            .field("io", &self.io)
            .finish_non_exhaustive()
    }
}
