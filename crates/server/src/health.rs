//! Answers to health checks, and to refused clients.

use throng_engine::Admission;
use throng_http::Response;

use crate::cluster::Node;
use crate::panics::Panics;
use crate::readiness::{RETRY_AFTER, Readiness};

impl Readiness {
    /// Returns the health of a server.
    pub(crate) fn of(admission: &Admission, node: &Node, panics: &Panics) -> Self {
        match admission.is_ready() {
            true => match node.readiness() {
                Self::Ready if panics.failing_ticks() > 0 => {
                    let why = "a function of Server::every panicked at its last call";
                    Self::Degraded(why.to_owned())
                }
                other => other,
            },
            false => Self::NotReady("the server is shutting down".to_owned()),
        }
    }

    /// Returns the answer of `/readyz`.
    pub(crate) fn response(&self) -> Response {
        match self {
            Self::Ready => Response::text("ready\n"),
            Self::Degraded(why) => Response::text(format!("degraded: {why}\n")),
            Self::NotReady(why) => Response::unavailable(RETRY_AFTER, why),
        }
    }
}

pub(crate) fn live() -> Response {
    Response::text("alive\n")
}
