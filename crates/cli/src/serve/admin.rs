//! The server of `throng serve` for operators: metrics and statistics, apart from the clients.

use std::net::SocketAddr;
use std::sync::Arc;

use throng::{App, Bound, Observer, Request, Response};
use throng_config::Token;

use crate::admin::{self, guard};
use crate::log::Log;

/// The address of the server for operators, and the token that requests need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admin {
    pub(super) address: SocketAddr,
    pub(super) token: Option<Token>,
}

/// Binds the server that shows the metrics of `observer`.
pub(super) fn bind(admin: &Admin, observer: Observer, log: Log) -> throng::Result<Bound> {
    let shared = Arc::new((observer, admin.token.clone()));
    let route = |answer: fn(&Observer, &Request<'_>) -> Response| {
        let shared = Arc::clone(&shared);
        move |request: &Request<'_>| {
            let (observer, token) = &*shared;
            match guard::check_read(request, token.as_ref()) {
                Ok(()) => answer(observer, request),
                // Only holders of the token keep one of the few places.
                Err(refusal) => refusal.closing(),
            }
        }
    };
    let ready = Arc::clone(&shared);
    let app = App::new()
        .livez()
        .get("/readyz", move |_: &Request<'_>| ready.0.readiness())
        .get("/metrics", route(Observer::metrics))
        .get("/stats.json", route(|observer, _| observer.stats()));
    admin::bind(app, admin.address, log)
}
