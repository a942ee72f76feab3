//! Requests whose route was found.

use std::sync::Arc;

use throng_engine::Cx;
use throng_http::Request;
use throng_proto::http1;

use super::BoundRoute;
use crate::exchanges::{ClientGuard, Responder};

/// A request whose route was found.
pub(super) struct Routed<'r, 'h> {
    pub(super) route: u16,
    pub(super) head: &'r http1::Request<'h>,
    pub(super) request: Request<'h>,
    /// The body is complete, and is part of `request`.
    pub(super) has_body: bool,
}

/// Creates the responder of this connection's request.
pub(super) fn responder_of(cx: &Cx<'_>, route: &BoundRoute) -> (Responder, ClientGuard) {
    let remote = cx.core_ref().remote().clone();
    Responder::new(remote, cx.id(), Arc::clone(&route.context.reporter))
}
