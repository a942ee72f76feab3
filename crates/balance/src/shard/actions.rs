//! Consequences of events, run when their bytes are no longer lent.

use throng_io::{ConnId, Driver};

use super::BalanceParts;
use super::records::BalanceRecord;
use crate::report::Failure;

/// A consequence of an event, to be run when its bytes are no longer lent.
#[derive(Debug)]
pub(super) enum ConnAction {
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

impl BalanceParts {
    /// Runs the consequences of the last event, and theirs.
    pub(super) fn perform<D: Driver>(&mut self, driver: &mut D) {
        while let Some(action) = self.actions.pop_front() {
            match action {
                ConnAction::Dispatch(id) => self.dispatch(driver, id),
                ConnAction::Flush(id) => self.flush(driver, id),
                ConnAction::Secure(id) => self.begin_tls(driver, id),
                ConnAction::Proceed(id) => self.proceed(driver, id),
                ConnAction::Pause(id) => self.pause(driver, id),
                ConnAction::Fail(id, failure) => {
                    if let BalanceRecord::Upstream(upstream) = self.records.take(id) {
                        driver.abort(id);
                        self.upstream_closed(id, *upstream, failure);
                    }
                }
                ConnAction::Complete(id) => self.complete(driver, id),
                ConnAction::Open { client, upstream } => self.open_tunnel(driver, client, upstream),
                ConnAction::Answered(id) => self.close_answered(driver, id),
                ConnAction::Close(id) => self.close(driver, id),
                ConnAction::Cut(id) => {
                    driver.abort(id);
                    self.close(driver, id);
                }
            }
        }
    }

    /// Closes a connection that no other record refers to. Bytes that the kernel took are still
    /// sent.
    pub(super) fn close<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        match self.records.take(id) {
            BalanceRecord::Client(client) => {
                self.client_closed(id, *client);
                return self.close_counted(driver, id);
            }
            BalanceRecord::Tunnel(tunnel) => return self.end_tunnel(driver, id, tunnel),
            BalanceRecord::Upstream(upstream) if upstream.client.is_none() => {
                self.pool.remove(upstream.backend.address(), id);
            }
            BalanceRecord::Upstream(_) | BalanceRecord::Vacant | BalanceRecord::Closing => {}
        }
        driver.close(id);
    }

    /// Closes the connection of a client whose record was taken out. It counts until it is gone.
    pub(super) fn close_counted<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        driver.close(id);
        match driver.is_closing(id) {
            true => self.records.insert(id, BalanceRecord::Closing),
            false => self.release_admission(id),
        }
    }

    /// Closes a connection at once, so that another one can have its place.
    pub(super) fn close_for_another<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        self.close(driver, id);
        driver.close_now(id);
        if self.records.end_closing(id) {
            self.release_admission(id);
        }
    }
}
