//! Responses from other threads.

use std::fmt;

use throng_engine::Remote;
use throng_http::{IntoResponse, Reject, Response, Status};
use throng_io::ConnId;

use super::Delivered;
use super::writer::{BodyWriter, body};
use crate::ws::accept::AnyAccept;

/// Answers one request, now or later, from any thread.
///
/// The connection's next request waits until then, so responses keep their order. Other connections
/// are served meanwhile. A responder that is dropped without a response answers with 500. If the
/// client has disconnected, the response is dropped.
#[must_use = "dropped without a response, it answers with 500"]
pub struct Responder {
    remote: Remote,
    id: ConnId,
    answered: bool,
    /// Makes the response if this is dropped without one.
    fallback: fn() -> Response,
}

impl Responder {
    pub(crate) fn new(remote: Remote, id: ConnId) -> Self {
        Self { remote, id, answered: false, fallback: Self::no_answer }
    }

    /// Returns the response of a responder that was dropped without one.
    pub(crate) fn no_answer() -> Response {
        Response::error(Status::INTERNAL_SERVER_ERROR, "this request got no answer")
    }

    /// Sets the response that is sent if this is dropped from now on.
    pub(crate) fn set_fallback(&mut self, fallback: fn() -> Response) {
        self.fallback = fallback;
    }

    /// Sends the response.
    pub fn send(mut self, answer: impl IntoResponse) {
        self.deliver(answer.into_response());
    }

    /// Sends the head of `response`, and returns a writer for its body. `length` is the
    /// Content-Length in bytes where it is known; without one the body is chunked. A body that
    /// `response` has is dropped. Writing blocks, so write on a thread that may block, never in a
    /// handler, which would wait for itself.
    pub fn stream(mut self, response: Response, length: Option<u64>) -> BodyWriter {
        let (writer, source) = body();
        self.deliver(response.with_stream(length, source));
        writer
    }

    /// Sends the decision on an upgrade.
    pub(crate) fn decide(mut self, decision: Result<AnyAccept, Reject>) {
        self.answered = true;
        self.remote.post(self.id, Box::new(Delivered::Upgrade(decision)));
    }

    fn deliver(&mut self, response: Response) {
        self.answered = true;
        self.remote.post(self.id, Box::new(Delivered::Answer(response)));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if std::thread::panicking() {
            return self.remote.post(self.id, Box::new(Delivered::RequestPanicked));
        }
        self.deliver((self.fallback)());
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("answered", &self.answered).finish_non_exhaustive()
    }
}
