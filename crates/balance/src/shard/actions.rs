//! Consequences of events, run when their bytes are no longer lent.

use throng_io::{ConnId, Driver};

use super::State;
use super::conn::Conn;
use crate::report::Failure;

/// A consequence of an event, to be run when its bytes are no longer lent.
#[derive(Debug)]
pub(super) enum Action {
    /// Find a backend for this client's request.
    Dispatch(ConnId),
    /// Send its outbox.
    Flush(ConnId),
    /// Begin TLS, the PROXY header has come.
    Secure(ConnId),
    /// Continue with the bytes that were held back.
    Proceed(ConnId),
    /// Stop reading it until it is resumed.
    Pause(ConnId),
    /// The backend's side failed.
    Fail(ConnId, Failure),
    /// The answer to this client is whole.
    Complete(ConnId),
    /// Client and backend have agreed on WebSocket.
    Open { client: ConnId, upstream: ConnId },
    /// A tunnel's client has answered our Close frame.
    Answered(ConnId),
    /// Close it.
    Close(ConnId),
    /// Close it with a reset: its data is incomplete, and must not look complete.
    Cut(ConnId),
}

impl State {
    /// Runs the consequences of the last event, and theirs.
    pub(super) fn perform<D: Driver>(&mut self, driver: &mut D) {
        while let Some(action) = self.actions.pop_front() {
            match action {
                Action::Dispatch(id) => self.dispatch(driver, id),
                Action::Flush(id) => self.flush(driver, id),
                Action::Secure(id) => self.begin_tls(driver, id),
                Action::Proceed(id) => self.proceed(driver, id),
                Action::Pause(id) => self.pause(driver, id),
                Action::Fail(id, failure) => {
                    if let Conn::Upstream(upstream) = self.conns.take(id) {
                        driver.abort(id);
                        self.upstream_closed(id, *upstream, failure);
                    }
                }
                Action::Complete(id) => self.complete(driver, id),
                Action::Open { client, upstream } => self.open_tunnel(driver, client, upstream),
                Action::Answered(id) => self.close_answered(driver, id),
                Action::Close(id) => self.close(driver, id),
                Action::Cut(id) => {
                    driver.abort(id);
                    self.close(driver, id);
                }
            }
        }
    }

    /// Closes a connection that no other record refers to. Bytes that the kernel took are still
    /// sent.
    pub(super) fn close<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        match self.conns.take(id) {
            Conn::Client(client) => {
                self.client_closed(id, *client);
                return self.close_counted(driver, id);
            }
            Conn::Tunnel(tunnel) => return self.end_tunnel(driver, id, tunnel),
            Conn::Upstream(upstream) if upstream.client.is_none() => {
                self.pool.remove(upstream.backend.address(), id);
            }
            Conn::Upstream(_) | Conn::Vacant | Conn::Closing => {}
        }
        driver.close(id);
    }

    /// Closes the connection of a client whose record was taken out. It counts until it is gone.
    pub(super) fn close_counted<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        driver.close(id);
        match driver.is_closing(id) {
            true => self.conns.insert(id, Conn::Closing),
            false => self.release_admission(id),
        }
    }

    /// Closes a connection at once, so that another one can have its place.
    pub(super) fn close_for_another<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        self.close(driver, id);
        driver.close_now(id);
        if self.conns.end_closing(id) {
            self.release_admission(id);
        }
    }
}
