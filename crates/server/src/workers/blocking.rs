//! A request that is answered on a worker.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_http::{Match, Request, Response, Router};
use throng_proto::http1::{self, SavedRequest};

use crate::http::Responder;
use crate::service::Target;

/// An HTTP handler that may block.
pub(crate) struct BlockingHandler {
    pub(crate) path: Arc<str>,
    pub(crate) handler: Box<dyn Fn(&Request<'_>) -> Response + Send + Sync>,
}

/// One request for it. The bytes it was lent are gone by the time a worker comes to it: it has copies.
pub(crate) struct BlockingJob {
    pub(crate) index: u16,
    head: SavedRequest,
    body: Vec<u8>,
    peer: Option<SocketAddr>,
    responder: Responder,
}

impl BlockingJob {
    /// Until it runs, `responder` answers that the server is busy if this is dropped.
    pub(crate) fn new(
        index: u16,
        head: &http1::Request<'_>,
        body: &[u8],
        peer: Option<SocketAddr>,
        mut responder: Responder,
    ) -> Self {
        responder.set_fallback(|| {
            Response::unavailable(crate::service::RETRY_AFTER, "the server is busy")
        });
        let mut saved = SavedRequest::new();
        saved.save(head);
        Self { index, head: saved, body: body.to_owned(), peer, responder }
    }

    /// Answers it. A panic leaves the answer to the responder.
    pub(crate) fn run(mut self, router: &Router<Target>, handler: &BlockingHandler) {
        self.responder.set_fallback(Responder::no_answer);
        let Some(head) = self.head.request() else { return };
        let is_it = |target| matches!(target, Target::Blocking(index) if index == self.index);
        // Found once before; again, because parameters refer to the path where it lies.
        let found = router.find_if(head.method(), head.path(), is_it);
        let Match::Found { params, .. } = found else { return };
        let request = Request::new(head, params, &self.body, self.peer);
        let response = (handler.handler)(&request);
        self.responder.send(response);
    }
}
