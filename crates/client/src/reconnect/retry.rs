//! The decisions of a client that reconnects: whether to reconnect, and after which pause.

use std::time::Duration;

use super::backoff::Backoff;
use crate::close_frame::CloseFrame;
use crate::error::{ClientError, UpgradeRefused};

/// Gets the reason of the next attempt, and the pause before it.
type OnRetry = Box<dyn FnMut(&ClientError, Duration) + Send>;

/// The state behind the decision about the next attempt to connect.
pub(super) struct Retry {
    pub(super) backoff: Backoff,
    /// Returns whether a server that closes with this frame expects its clients to reconnect.
    pub(super) asks_to_reconnect: Box<dyn Fn(&CloseFrame) -> bool + Send>,
    /// Returns whether to try again after this refusal of an upgrade.
    pub(super) on_refused: Box<dyn FnMut(&UpgradeRefused) -> bool + Send>,
    /// Learns why the next attempt is necessary, and the pause before it.
    pub(super) on_retry: OnRetry,
    pub(super) connections: u64,
    /// Connections that failed or ended since the last message: each lengthens the pause.
    failures: u32,
    /// Attempts that failed since the last connection.
    attempts: u32,
    /// The server's last Close frame.
    close: Option<CloseFrame>,
}

impl Retry {
    pub(super) fn new(backoff: Backoff) -> Self {
        Self {
            backoff,
            asks_to_reconnect: Box::new(CloseFrame::asks_to_reconnect),
            on_refused: Box::new(UpgradeRefused::is_temporary),
            on_retry: Box::new(|_, _| {}),
            connections: 0,
            failures: 0,
            attempts: 0,
            close: None,
        }
    }

    /// Records a connection.
    pub(super) fn connected(&mut self) {
        self.connections += 1;
        self.attempts = 0;
    }

    /// Records a message.
    pub(super) fn received(&mut self) {
        self.failures = 0;
    }

    /// Records a failed attempt; returns the pause before the next one.
    ///
    /// # Errors
    /// Returns `error` if it is permanent, or if this was the last allowed attempt.
    pub(super) fn failed(&mut self, error: ClientError) -> Result<Duration, ClientError> {
        self.attempts = self.attempts.saturating_add(1);
        let is_worth_another = match &error {
            ClientError::Closed(Some(close)) => {
                self.close = Some(close.clone());
                (self.asks_to_reconnect)(close)
            }
            ClientError::Refused(refused) => (self.on_refused)(refused),
            error => error.is_temporary(),
        };
        if is_worth_another && self.attempts < self.backoff.attempts {
            return Ok(self.pause(&error));
        }
        self.attempts = 0;
        Err(error)
    }

    /// Records the end of a session, or a message that could not be sent; returns the pause before
    /// the next attempt, or `None` if the session has ended for good: the server closed it with a
    /// code that does not ask clients to reconnect, or the program closed it.
    pub(super) fn ended(&mut self, error: &ClientError) -> Option<Duration> {
        match error {
            ClientError::Closed(None) => return None,
            ClientError::Closed(Some(close)) => {
                self.close = Some(close.clone());
                if !(self.asks_to_reconnect)(close) {
                    return None;
                }
            }
            _ => {}
        }
        Some(self.pause(error))
    }

    /// Returns the server's last Close frame.
    pub(super) fn close_frame(&self) -> Option<&CloseFrame> {
        self.close.as_ref()
    }

    fn pause(&mut self, cause: &ClientError) -> Duration {
        let pause = self.backoff.pause(self.failures);
        self.failures = self.failures.saturating_add(1);
        (self.on_retry)(cause, pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use throng_proto::ws::CloseCode;

    use super::*;

    #[test]
    fn a_normal_closure_is_an_end_and_a_restart_is_none() {
        let asks = |code, reason: &str| {
            let code = CloseCode::new(code);
            CloseFrame { code, reason: reason.to_owned() }.asks_to_reconnect()
        };
        let codes = [1000, 1001, 1008, 1011, 1012, 1013, 4001].map(|code| asks(code, ""));
        assert_eq!(codes, [false, true, false, true, true, true, false]);
        assert!(asks(1008, "slow consumer") && !asks(1008, "not a member"));
    }
}
