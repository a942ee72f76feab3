//! A handle that ends a blocking client from another thread.

use std::fmt;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Ends a [`ReconnectingClient`](super::ReconnectingClient) from another thread.
#[derive(Clone, Default)]
pub struct Stopper(Arc<StopState>);

#[derive(Default)]
struct StopState {
    state: Mutex<Connection>,
    changed: Condvar,
}

#[derive(Default)]
struct Connection {
    is_stopped: bool,
    /// The socket of the connection; shutting it down ends a pending read.
    socket: Option<TcpStream>,
}

impl Stopper {
    /// Ends the client: [`recv`](super::ReconnectingClient::recv) returns `None`, even during a
    /// wait for a message or a pause between attempts. From now on the client sends nothing and
    /// does not connect. An attempt that is looking up a host or making a TCP connection is not
    /// interrupted; it takes at most
    /// [`ClientBuilder::connect_timeout`](crate::ClientBuilder::connect_timeout).
    ///
    /// There is no closing handshake: the server sees 1006, as when a client is dropped.
    pub fn stop(&self) {
        let mut state = self.lock();
        state.is_stopped = true;
        if let Some(socket) = state.socket.take() {
            // The connection may have ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
        drop(state);
        self.0.changed.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }

    /// Keeps the socket of a new connection, if another handle can stop the client.
    pub(super) fn watch(&self, socket: &TcpStream) {
        if Arc::strong_count(&self.0) == 1 {
            return;
        }
        let mut state = self.lock();
        // If no descriptor is left for the duplicate, the client stops only between two waits.
        state.socket = socket.try_clone().ok();
        if state.is_stopped {
            drop(state);
            self.stop();
        }
    }

    /// Drops the socket of a connection that has ended.
    pub(super) fn forget(&self) {
        self.lock().socket = None;
    }

    /// Pauses until `end`, but at most for `limit`. Returns whether the pause is over.
    pub(super) fn pause(&self, end: Instant, limit: Option<Duration>) -> bool {
        let left = end.saturating_duration_since(Instant::now());
        let waited = limit.map_or(left, |limit| limit.min(left));
        let waiting = |state: &mut Connection| !state.is_stopped;
        let paused = self.0.changed.wait_timeout_while(self.lock(), waited, waiting);
        drop(paused.unwrap_or_else(PoisonError::into_inner));
        Instant::now() >= end
    }

    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Stopper").field(&self.is_stopped()).finish()
    }
}
