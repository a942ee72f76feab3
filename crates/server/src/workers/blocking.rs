//! Requests that are answered on a worker thread.

use std::net::SocketAddr;

use throng_http::{Extensions, Network, Params, Ranges, Reject, Request, Response};
use throng_proto::http1::{self, SavedRequest};

use crate::accept::AnyAccept;
use crate::exchanges::{HttpFn, Responder};
use crate::readiness::RETRY_AFTER;

/// One request for a handler that may block. It owns copies, since the received bytes are gone when
/// a worker runs it.
pub(crate) struct BlockingJob {
    head: SavedRequest,
    ranges: Ranges,
    body: Vec<u8>,
    peer: Option<SocketAddr>,
    extensions: Extensions,
    responder: Responder,
}

impl BlockingJob {
    /// Creates the job. If it is dropped before it runs, `responder` answers that the server is
    /// busy.
    pub(crate) fn new(
        head: &http1::Request<'_>,
        request: Request<'_>,
        mut responder: Responder,
    ) -> Self {
        responder.set_fallback(|| Response::unavailable(RETRY_AFTER, "the server is busy"));
        let mut saved = SavedRequest::new();
        saved.save(head);
        Self {
            head: saved,
            ranges: request.params().ranges(),
            body: request.body().to_owned(),
            peer: request.peer(),
            extensions: request.into_extensions(),
            responder,
        }
    }

    /// Decides on an upgrade, and sends the decision.
    pub(crate) fn decide(
        mut self,
        names: &[Box<str>],
        trusted_proxies: &[Network],
        decide: impl FnOnce(&Request<'_>) -> Result<AnyAccept, Reject>,
    ) {
        self.responder.set_fallback(Responder::no_answer);
        let Some(head) = self.head.request() else { return };
        let params = Params::new(names, self.ranges);
        let request = Request::new(head, params, &[], self.peer)
            .with_trusted_proxies(trusted_proxies)
            .with_extensions(self.extensions);
        let decision = decide(&request);
        self.responder.decide(decision);
    }

    /// Runs the handler and sends its response; `names` are the names of the route's parameters. If
    /// the handler panics, the responder answers with 500.
    pub(crate) fn run(mut self, names: &[Box<str>], trusted_proxies: &[Network], handler: &HttpFn) {
        self.responder.set_fallback(Responder::no_answer);
        let Some(head) = self.head.request() else { return };
        let params = Params::new(names, self.ranges);
        let request = Request::new(head, params, &self.body, self.peer)
            .with_trusted_proxies(trusted_proxies)
            .with_extensions(self.extensions);
        let response = handler(&request);
        self.responder.send(response);
    }
}
