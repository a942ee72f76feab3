//! Answers to health checks, and to clients that are turned away.

use throng_engine::Admission;
use throng_http::Response;

use crate::cluster::Node;
use crate::panics::Panics;

/// Value of `Retry-After` for clients that are turned away, in seconds.
pub(crate) const RETRY_AFTER: u64 = 5;

pub(crate) fn live() -> Response {
    Response::text("alive\n")
}

/// Answers 200 while new connections are accepted and the node of a cluster is ready, with the
/// reason if the server is degraded.
pub(crate) fn ready(admission: &Admission, node: &Node, panics: &Panics) -> Response {
    match (admission.is_ready(), node.unready()) {
        (true, None) if panics.failing_ticks() > 0 => {
            Response::text("degraded: a function of Server::every panicked at its last call\n")
        }
        (true, None) => Response::text("ready\n"),
        (true, Some(why)) => Response::unavailable(RETRY_AFTER, &why),
        (false, _) => Response::unavailable(RETRY_AFTER, "the server is shutting down"),
    }
}
