//! State that all shards of a server share.

use std::sync::{Arc, OnceLock};

#[cfg(feature = "files")]
use throng_http::Reject;
use throng_http::{Match, Network, Params, Router};
use throng_proto::http1;
use throng_proto::ws::deflate;
#[cfg(feature = "files")]
use throng_proto::ws::handshake;

use crate::access;
use crate::app::{AppRoute, RefusalForm};
use crate::cluster::Guard;
use crate::events::Events;
use crate::live::LiveOrigins;
use crate::middleware::Middleware;
#[cfg(feature = "metrics")]
use crate::observe::Observer;
use crate::shard::ShardContext;
use crate::stalls::Stalls;
use crate::ticks;
use crate::tls::Security;
use crate::workers::{RouteContext, WorkerPool};

/// Routes and settings. Only the origins change after `bind`.
pub(crate) struct RouteShared {
    pub(crate) routes: Box<[BoundRoute]>,
    /// A route's value is its index in `routes`.
    pub(crate) router: Router<u16>,
    /// Handler of requests that no route answers.
    pub(crate) layers: Vec<Arc<dyn Middleware>>,
    pub(crate) refusals: Option<Box<RefusalForm>>,
    pub(crate) origins: LiveOrigins,
    pub(crate) trusted_proxies: Arc<[Network]>,
    pub(crate) pool: WorkerPool,
    pub(crate) events: Events,
    pub(crate) shards: ShardContext,
    pub(crate) access: access::Log,
    pub(crate) stalls: Arc<Stalls>,
    pub(crate) security: Security,
    /// Until the first shard takes them.
    pub(crate) ticks: ticks::Waiting,
    /// Set before the first request.
    pub(crate) cluster: OnceLock<Guard>,
    /// Set before the first request.
    #[cfg(feature = "metrics")]
    pub(crate) observer: OnceLock<Observer>,
}

/// A route of a bound server.
pub(crate) struct BoundRoute {
    pub(crate) route: AppRoute,
    /// The names of its parameters.
    pub(crate) names: Arc<[Box<str>]>,
    pub(crate) context: Arc<RouteContext>,
    /// The compression that it negotiates with clients that offer it.
    pub(crate) compression: Option<deflate::Policy>,
}

impl RouteShared {
    pub(crate) fn route(&self, route: u16) -> &BoundRoute {
        &self.routes[usize::from(route)]
    }

    /// Returns the route of a request. A path can have a WebSocket and an HTTP route: requests for
    /// an upgrade go to the first. If the path has only one route, it answers all requests: a
    /// WebSocket route with 426.
    pub(crate) fn find(&self, head: &http1::Request<'_>) -> Match<'_, u16> {
        let (method, path) = (head.method(), head.path());
        let wants_websocket = head.wants_websocket();
        let is_for_it = |route: u16| self.route(route).route.is_ws() == wants_websocket;
        match self.router.find_if(method, path, is_for_it) {
            found @ Match::Found { .. } => found,
            _ => self.router.find(method, path),
        }
    }

    /// Returns the WebSocket route at the path of a request, and the fault of the request as an
    /// upgrade.
    #[cfg(feature = "files")]
    pub(crate) fn wrong_upgrade(&self, head: &http1::Request<'_>) -> Option<(u16, Reject)> {
        let is_ws = |route: u16| self.route(route).route.is_ws();
        let found = self.router.find_if(head.method(), head.path(), is_ws);
        let Match::Found { value, .. } = found else { return None };
        let checked = handshake::check_request(head.method(), head.is_http11(), head);
        checked.err().map(|refusal| (value, refusal.into()))
    }

    /// Returns the route that a preflight request asks about, whose middleware has the answer
    /// ([Fetch, section 3.3.2](https://fetch.spec.whatwg.org/#http-requests)).
    pub(crate) fn find_for_preflight(
        &self,
        head: &http1::Request<'_>,
    ) -> Option<(u16, Params<'_>)> {
        let method = head.values("access-control-request-method").next()?;
        let is_http = |route: u16| !self.route(route).route.is_ws();
        match self.router.find_if(method, head.path(), is_http) {
            Match::Found { value, params } => Some((value, params)),
            _ => None,
        }
    }
}
