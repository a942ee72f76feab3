//! Requests that futures answer, on a runtime of the user's.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::{Poll, Waker};

use throng_http::{Body, IntoResponse, Response, SourcePull, Stream, StreamSource};
use tokio::runtime::Handle;

use super::{OwnedRequest, Responder};

/// Starts the future that answers a request.
pub(crate) type AsyncFn = dyn Fn(OwnedRequest, Responder) + Send + Sync;

/// Answers with the output of the future that `start` returns, which is dropped when the client
/// leaves.
pub(crate) async fn answer<F>(start: impl FnOnce() -> F, mut responder: Responder)
where
    F: Future<Output: IntoResponse>,
{
    // The future begins here, so that a panic of the closure belongs to the task.
    let Some(output) = unless_closed(start(), &mut responder).await else { return };
    responder.send(in_runtime(output.into_response()));
}

/// Waits for a future, and drops it when the client leaves.
pub(crate) async fn unless_closed<F: Future>(
    future: F,
    responder: &mut Responder,
) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => responder.poll_closed(cx).map(|()| None),
    })
    .await
}

/// Lets the source of a body use the timers and sockets of the current runtime.
fn in_runtime(mut response: Response) -> Response {
    if !response.is_streamed() {
        return response;
    }
    let body = match response.take_body() {
        Body::Stream(Stream { source, length }) => {
            let source = InRuntime { runtime: Handle::current(), source: Some(source) };
            Body::Stream(Stream { source: Box::new(source), length })
        }
        whole => whole,
    };
    response.replacing_body(body)
}

/// A source that is called, and dropped, in the context of a runtime.
struct InRuntime {
    runtime: Handle,
    /// The source, until it is dropped.
    source: Option<Box<dyn StreamSource>>,
}

impl StreamSource for InRuntime {
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<SourcePull> {
        let _entered = self.runtime.enter();
        self.source.as_mut().map_or(Ok(SourcePull::End), |source| source.pull(room, out))
    }

    fn set_waker(&mut self, waker: Waker) {
        if let Some(source) = &mut self.source {
            source.set_waker(waker);
        }
    }

    fn ends_with_client(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.ends_with_client())
    }

    fn trailers(&mut self) -> Vec<(String, String)> {
        self.source.as_mut().map_or_else(Vec::new, |source| source.trailers())
    }
}

impl Drop for InRuntime {
    fn drop(&mut self) {
        let _entered = self.runtime.enter();
        self.source = None;
    }
}
