//! Request bodies that other threads read.

use std::fmt;
use std::io::{self, Read};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use throng_engine::{Flow, Remote};
use throng_io::ConnId;

use super::{ExchangeEvent, WINDOW};

/// Reads a request's body while it is received. Reading blocks, so use it on a thread that may
/// block, never in a handler.
///
/// At most 256 KiB, plus the bytes of one read of the socket, are buffered; until the reader takes
/// them, a faster client is not read. The end of the body is `Ok(0)`. If the client disconnects
/// before that, is too slow, or violates HTTP, reading fails with
/// [`UnexpectedEof`](io::ErrorKind::UnexpectedEof). If the reader is dropped, the rest of the body
/// is received and discarded.
pub struct BodyReader {
    shared: Arc<ReaderShared>,
    remote: Remote,
    id: ConnId,
    /// Bytes taken from the shared buffer and not yet read.
    taken: Vec<u8>,
    at: usize,
}

/// The connection's side of a request's body.
pub(crate) struct BodySender(Arc<ReaderShared>);

struct ReaderShared {
    state: Mutex<ReaderState>,
    changed: Condvar,
}

#[derive(Default)]
struct ReaderState {
    bytes: Vec<u8>,
    /// The connection is not read, because the buffer is full.
    stopped: bool,
    end: Option<End>,
    /// The reader was dropped.
    unwanted: bool,
    trailers: Vec<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
}

impl ReaderShared {
    fn lock(&self) -> MutexGuard<'_, ReaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates both ends of a request's body.
pub(crate) fn body(remote: Remote, id: ConnId) -> (BodySender, BodyReader) {
    let shared = Arc::new(ReaderShared { state: Mutex::default(), changed: Condvar::new() });
    let reader = BodyReader { shared: Arc::clone(&shared), remote, id, taken: Vec::new(), at: 0 };
    (BodySender(shared), reader)
}

impl BodySender {
    /// Buffers bytes that were received.
    pub(crate) fn push(&self, bytes: &[u8]) -> Flow {
        let mut state = self.0.lock();
        if state.unwanted {
            return Flow::More;
        }
        state.bytes.extend_from_slice(bytes);
        state.stopped = state.bytes.len() >= WINDOW;
        let flow = if state.stopped { Flow::Stop } else { Flow::More };
        drop(state);
        self.0.changed.notify_one();
        flow
    }

    /// Records that the body is complete.
    pub(crate) fn end(&self, trailers: Vec<(String, String)>) {
        let mut state = self.0.lock();
        state.end = Some(End::Whole);
        state.trailers = trailers;
        drop(state);
        self.0.changed.notify_one();
    }
}

impl Drop for BodySender {
    fn drop(&mut self) {
        self.0.lock().end.get_or_insert(End::Broken);
        self.0.changed.notify_one();
    }
}

impl BodyReader {
    /// Returns the trailer fields of a chunked body (RFC 9112 section 7.1.2). They are empty until
    /// the body was read to its end, and for most bodies.
    #[must_use]
    pub fn trailers(&self) -> Vec<(String, String)> {
        self.shared.lock().trailers.clone()
    }

    /// Waits until there is more to read; returns false at the end.
    fn refill(&mut self) -> io::Result<bool> {
        self.taken.clear();
        self.at = 0;
        let mut state = self.shared.lock();
        while state.bytes.is_empty() {
            match state.end {
                Some(End::Whole) => return Ok(false),
                Some(End::Broken) => {
                    let message = "the client disconnected before the end of the body";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
                }
                None => {
                    let waiting = self.shared.changed.wait(state);
                    state = waiting.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
        std::mem::swap(&mut state.bytes, &mut self.taken);
        let was_stopped = std::mem::take(&mut state.stopped);
        drop(state);
        if was_stopped {
            self.remote.post(self.id, Box::new(ExchangeEvent::Capacity));
        }
        Ok(true)
    }
}

impl Read for BodyReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() || (self.at == self.taken.len() && !self.refill()?) {
            return Ok(0);
        }
        let rest = &self.taken[self.at..];
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.unwanted = true;
        state.bytes = Vec::new();
        let was_stopped = std::mem::take(&mut state.stopped);
        drop(state);
        if was_stopped {
            self.remote.post(self.id, Box::new(ExchangeEvent::Capacity));
        }
    }
}

impl fmt::Debug for BodyReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyReader")
    }
}
