//! The right to answer one request, from any thread.

use std::fmt;

use throng_engine::Remote;
use throng_http::{IntoResponse, Response, Status};
use throng_io::ConnId;

use super::Delivered;
use super::writer::{BodyWriter, body};

/// Answers one request, now or later, from any thread. The connection's next request waits until then, so answers keep their
/// order, and other connections are served meanwhile.
///
/// One that is dropped without an answer answers 500. If the client has gone, the answer goes nowhere.
#[must_use = "dropped without an answer, it answers 500"]
pub struct Responder {
    remote: Remote,
    id: ConnId,
    answered: bool,
    /// What is answered if nothing is.
    fallback: fn() -> Response,
}

impl Responder {
    pub(crate) fn new(remote: Remote, id: ConnId) -> Self {
        Self { remote, id, answered: false, fallback: Self::no_answer }
    }

    /// What a responder answers that was forgotten.
    pub(crate) fn no_answer() -> Response {
        Response::error(Status::INTERNAL_SERVER_ERROR, "this request got no answer")
    }

    /// What is answered if this is dropped from now on.
    pub(crate) fn set_fallback(&mut self, fallback: fn() -> Response) {
        self.fallback = fallback;
    }

    /// Answers.
    pub fn send(mut self, answer: impl IntoResponse) {
        self.deliver(answer.into_response());
    }

    /// Answers with the head of `response` and a body that is written bit by bit, from a thread that may block; never from a
    /// handler, which would wait for itself. `length` in bytes is the Content-Length where it is known; otherwise the
    /// body is sent in chunks. A body that `response` has is dropped.
    pub fn stream(mut self, response: Response, length: Option<u64>) -> BodyWriter {
        let (writer, source) = body(self.remote.clone(), self.id);
        self.deliver(response.with_stream(length, source));
        writer
    }

    fn deliver(&mut self, response: Response) {
        self.answered = true;
        self.remote.post(self.id, Box::new(Delivered::Answer(response)));
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        if !self.answered {
            self.deliver((self.fallback)());
        }
    }
}

impl fmt::Debug for Responder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responder").field("answered", &self.answered).finish_non_exhaustive()
    }
}
