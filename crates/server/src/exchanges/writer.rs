//! Response bodies that other threads write.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use throng_http::{SourcePull, StreamSource};

use super::WINDOW;

/// Writes a response's body while it is sent. Writing blocks while 256 KiB wait for the client, so
/// use it on a thread that may block, never in a handler.
///
/// Call [`finish`](Self::finish) at the end. A writer that is dropped before closes the connection
/// without the end of the body, so that the client does not take a truncated body for complete.
/// Writing fails with [`BrokenPipe`](io::ErrorKind::BrokenPipe) when the client has disconnected,
/// was too slow, or asked for the head only.
#[must_use = "dropped without `finish`, it leaves the body truncated"]
pub struct BodyWriter {
    shared: Arc<WriterShared>,
}

/// The connection's side of a response's body.
struct BodySource {
    shared: Arc<WriterShared>,
    waker: Option<Waker>,
}

struct WriterShared {
    state: Mutex<WriterState>,
    changed: Condvar,
}

#[derive(Default)]
struct WriterState {
    bytes: Vec<u8>,
    /// The waker of the connection, once it waits for more to send.
    waiting: Option<Waker>,
    /// The waker of a future that waits for space, or for the end of the connection.
    #[cfg(feature = "tower")]
    writer: Option<Waker>,
    /// Whether the connection accepts no further bytes.
    gone: bool,
    end: Option<End>,
    trailers: Vec<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
}

impl WriterShared {
    /// Wakes the writer: there is space, or the client accepts no further bytes.
    fn wake_writer(&self, state: MutexGuard<'_, WriterState>) {
        #[cfg(feature = "tower")]
        let mut state = state;
        #[cfg(feature = "tower")]
        let writer = state.writer.take();
        drop(state);
        self.changed.notify_one();
        #[cfg(feature = "tower")]
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, WriterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates both ends of a response's body.
pub(super) fn body() -> (BodyWriter, impl StreamSource) {
    let shared = Arc::new(WriterShared { state: Mutex::default(), changed: Condvar::new() });
    let source = BodySource { shared: Arc::clone(&shared), waker: None };
    (BodyWriter { shared }, source)
}

impl BodyWriter {
    /// Ends the body. Bytes that are still queued will be sent.
    pub fn finish(self) {
        self.finish_with(Vec::new());
    }

    /// Ends the body with trailer fields, which follow a chunked body; see
    /// [`StreamSource::trailers`].
    pub fn finish_with(self, trailers: Vec<(String, String)>) {
        self.shared.lock().trailers = trailers;
        self.end(End::Whole);
    }

    fn end(&self, end: End) {
        let mut state = self.shared.lock();
        state.end.get_or_insert(end);
        wake(state);
    }
}

fn gone() -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, "the client takes no more of this response")
}

#[cfg(feature = "tower")]
impl BodyWriter {
    /// Writes as [`Write::write`] does, from a future, which is woken when there is space.
    pub(crate) fn poll_write(
        &mut self,
        cx: &std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        let mut state = self.shared.lock();
        if state.gone {
            return std::task::Poll::Ready(Err(gone()));
        }
        if state.bytes.len() >= WINDOW {
            state.writer = Some(cx.waker().clone());
            return std::task::Poll::Pending;
        }
        let count = bytes.len().min(WINDOW - state.bytes.len());
        state.bytes.extend_from_slice(&bytes[..count]);
        wake(state);
        std::task::Poll::Ready(Ok(count))
    }

    /// Waits until the connection accepts no further bytes, and returns the error that a write
    /// would return.
    pub(crate) fn poll_gone(&mut self, cx: &std::task::Context<'_>) -> std::task::Poll<io::Error> {
        let mut state = self.shared.lock();
        if state.gone {
            return std::task::Poll::Ready(gone());
        }
        state.writer = Some(cx.waker().clone());
        std::task::Poll::Pending
    }
}

/// Wakes the connection if it waits.
fn wake(mut state: MutexGuard<'_, WriterState>) {
    let waiting = state.waiting.take();
    drop(state);
    if let Some(waker) = waiting {
        waker.wake();
    }
}

impl Write for BodyWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.shared.lock();
        while state.bytes.len() >= WINDOW && !state.gone {
            let waiting = self.shared.changed.wait(state);
            state = waiting.unwrap_or_else(PoisonError::into_inner);
        }
        if state.gone {
            return Err(gone());
        }
        let count = bytes.len().min(WINDOW - state.bytes.len());
        state.bytes.extend_from_slice(&bytes[..count]);
        wake(state);
        Ok(count)
    }

    /// Does nothing: bytes written are sent without a flush.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for BodyWriter {
    fn drop(&mut self) {
        self.end(End::Broken);
    }
}

impl fmt::Debug for BodyWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyWriter")
    }
}

impl StreamSource for BodySource {
    fn pull(&mut self, space: usize, out: &mut Vec<u8>) -> io::Result<SourcePull> {
        let mut state = self.shared.lock();
        let count = state.bytes.len().min(space);
        out.extend(state.bytes.drain(..count));
        let pull = match (state.bytes.is_empty(), state.end) {
            (true, Some(End::Whole)) => SourcePull::End,
            (_, Some(End::Broken)) => {
                return Err(io::Error::other("the body was not written to its end"));
            }
            (true, None) if count == 0 => {
                state.waiting.clone_from(&self.waker);
                SourcePull::Wait
            }
            _ => SourcePull::More,
        };
        self.shared.wake_writer(state);
        Ok(pull)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }

    fn trailers(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.shared.lock().trailers)
    }
}

impl Drop for BodySource {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.gone = true;
        self.shared.wake_writer(state);
    }
}
