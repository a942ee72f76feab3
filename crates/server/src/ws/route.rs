//! A WebSocket route: its handler, and its options.

use std::sync::Arc;

use throng_engine::{Backpressure, RouteOptions, SettingError};
use throng_proto::ws::deflate::Settings as Deflate;

use super::sessions::AnyEndpoint;

/// A WebSocket handler of any type, with the options of its route.
pub(crate) struct WsRoute {
    pub(crate) endpoint: Arc<dyn AnyEndpoint>,
    pub(crate) options: WsOptions,
}

/// Options of a WebSocket route.
#[derive(Clone, Debug, Default)]
pub(crate) struct WsOptions {
    pub(crate) subprotocols: Vec<Box<str>>,
    /// The route's own limits, and whether messages are passed on in chunks.
    pub(crate) limits: RouteOptions,
    /// Overrides whether messages are passed on in chunks.
    pub(super) streaming: Option<bool>,
    pub(crate) backpressure: Option<Backpressure>,
    pub(crate) compression: Option<Deflate>,
    /// The threads of the pool of workers are started with the server.
    pub(crate) uses_workers: bool,
    /// Sessions are placed by key.
    pub(crate) is_placed: bool,
    /// A mistake in the handler's settings, for `bind`.
    pub(crate) mistake: Option<SettingError>,
}
