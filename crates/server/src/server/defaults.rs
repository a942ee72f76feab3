//! A server of which nothing was said yet.

use throng_engine::workers::WorkerSettings;
use throng_engine::{Classes, Limits};
use throng_http::{Origins, Router};
use throng_proto::ws::deflate::Settings as Deflate;

use super::{Io, Server};
use crate::pin::Pin;
use crate::stalls::StallSettings;
use crate::workers::Pool;

/// Stack of a connection's thread, where it has one.
const THREAD_STACK: usize = 256 * 1024;

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
