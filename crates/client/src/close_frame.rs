//! The end of a session.

use throng_proto::ws::CloseCode;

/// A Close frame, or its equivalent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloseFrame {
    /// The close code; 1005 if the frame had none.
    pub code: CloseCode,
    /// The reason; usually empty.
    pub reason: String,
}

/// The reason with which a server closes a client that reads too slowly.
const SLOW_CONSUMER: &str = "slow consumer";

impl CloseFrame {
    /// Returns whether a server that closes with this frame expects its clients to reconnect.
    pub(crate) fn asks_to_reconnect(&self) -> bool {
        match self.code.get() {
            1008 => self.reason == SLOW_CONSUMER,
            code => matches!(code, 1001 | 1006 | 1011..=1014),
        }
    }
}
