//! Response bodies that other threads write.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use throng_engine::Remote;
use throng_http::{Pull, Source};
use throng_io::ConnId;

use super::{Delivered, WINDOW};

/// Writes a response's body while it is sent. Writing blocks while 256 KiB wait for the client, so
/// use it on a thread that may block, never in a handler.
///
/// Call [`finish`](Self::finish) at the end. A writer that is dropped before closes the connection
/// without the end of the body, so that the client does not take a truncated body for complete.
/// Writing fails with [`BrokenPipe`](io::ErrorKind::BrokenPipe) when the client has disconnected,
/// was too slow, or asked for the head only.
#[must_use = "dropped without `finish`, it leaves the body truncated"]
pub struct BodyWriter {
    shared: Arc<Shared>,
    remote: Remote,
    id: ConnId,
}

/// The connection's side of a response's body.
struct BodySource(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// The connection has nothing to send, and waits for [`Delivered::More`].
    waits: bool,
    /// The connection takes no more bytes.
    gone: bool,
    end: Option<End>,
    trailers: Vec<(String, String)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates both ends of a response's body.
pub(super) fn body(remote: Remote, id: ConnId) -> (BodyWriter, impl Source) {
    let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
    let source = BodySource(Arc::clone(&shared));
    (BodyWriter { shared, remote, id }, source)
}

impl BodyWriter {
    /// Ends the body. Bytes that are not sent yet will be.
    pub fn finish(self) {
        self.finish_with(Vec::new());
    }

    /// Ends the body with trailer fields, which follow a chunked body; see [`Source::trailers`].
    pub fn finish_with(self, trailers: Vec<(String, String)>) {
        self.shared.lock().trailers = trailers;
        self.end(End::Whole);
    }

    fn end(&self, end: End) {
        let mut state = self.shared.lock();
        state.end.get_or_insert(end);
        self.wake(state);
    }

    /// Wakes the connection if it waits.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let waits = std::mem::take(&mut state.waits);
        drop(state);
        if waits {
            self.remote.post(self.id, Box::new(Delivered::More));
        }
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
            return Err(io::Error::new(
                io::ErrorKind::BrokenPipe,
                "the client takes no more of this response",
            ));
        }
        let count = bytes.len().min(WINDOW - state.bytes.len());
        state.bytes.extend_from_slice(&bytes[..count]);
        self.wake(state);
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

impl Source for BodySource {
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<Pull> {
        let mut state = self.0.lock();
        let count = state.bytes.len().min(room);
        out.extend(state.bytes.drain(..count));
        let pull = match (state.bytes.is_empty(), state.end) {
            (true, Some(End::Whole)) => Pull::End,
            (_, Some(End::Broken)) => {
                return Err(io::Error::other("the body was not written to its end"));
            }
            (true, None) if count == 0 => {
                state.waits = true;
                Pull::Wait
            }
            _ => Pull::More,
        };
        drop(state);
        self.0.changed.notify_one();
        Ok(pull)
    }

    fn wakes(&self) -> bool {
        true
    }

    fn trailers(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.lock().trailers)
    }
}

impl Drop for BodySource {
    fn drop(&mut self) {
        self.0.lock().gone = true;
        self.0.changed.notify_one();
    }
}
