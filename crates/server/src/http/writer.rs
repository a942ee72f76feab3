//! A response's body, written by another thread.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use throng_engine::Remote;
use throng_http::{Pull, Source};
use throng_io::ConnId;

use super::{Delivered, WINDOW};

/// Writes a response's body while it is sent. It blocks while 256 KiB wait for the client, so it belongs on a thread that may:
/// never in a handler.
///
/// Call [`finish`](Self::finish) at the end. One that is dropped before ends the connection without the end of the body, so that the
/// client does not take what it has for the whole. Writing fails with [`BrokenPipe`](io::ErrorKind::BrokenPipe) when nobody reads: the client
/// has gone, was too slow, or asked for the head only.
#[must_use = "dropped without `finish`, it leaves the body without an end"]
pub struct BodyWriter {
    shared: Arc<Shared>,
    remote: Remote,
    id: ConnId,
}

/// The connection's side.
struct Outlet(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// The connection has nothing to send, and waits to be told of more.
    waits: bool,
    /// Nobody takes anything.
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

/// Both ends of a response's body.
pub(super) fn body(remote: Remote, id: ConnId) -> (BodyWriter, impl Source) {
    let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
    let outlet = Outlet(Arc::clone(&shared));
    (BodyWriter { shared, remote, id }, outlet)
}

impl BodyWriter {
    /// The body is complete. What is not sent yet will be.
    pub fn finish(self) {
        self.finish_with(Vec::new());
    }

    /// The same, with fields after a body that is sent in chunks; see [`Source::trailers`].
    pub fn finish_with(self, trailers: Vec<(String, String)>) {
        self.shared.lock().trailers = trailers;
        self.end(End::Whole);
    }

    fn end(&self, end: End) {
        let mut state = self.shared.lock();
        state.end.get_or_insert(end);
        self.tell(state);
    }

    /// Wakes the connection if it waits.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
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
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "nobody reads this response"));
        }
        let count = bytes.len().min(WINDOW - state.bytes.len());
        state.bytes.extend_from_slice(&bytes[..count]);
        self.tell(state);
        Ok(count)
    }

    /// Nothing to do: what is written is on its way.
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

impl Source for Outlet {
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

    fn trailers(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.0.lock().trailers)
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.0.lock().gone = true;
        self.0.changed.notify_one();
    }
}
