//! Alerts, and the peer's errors that they answer.

/// The description of an alert (RFC 8446 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alert(pub u8);

impl Alert {
    /// The sender will send nothing more on this connection.
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// The protocol forbids a message of this type, or at this time.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// A record could not be deprotected.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// A record is longer than allowed.
    pub const RECORD_OVERFLOW: Self = Self(22);
    /// A field is out of range.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// A message could not be decoded.
    pub const DECODE_ERROR: Self = Self(50);
    /// An error at our side, unrelated to the peer.
    pub const INTERNAL_ERROR: Self = Self(80);
    /// The sender cancels the handshake for a reason other than a failure.
    pub const USER_CANCELED: Self = Self(90);
    /// An extension is missing that the receiver needs.
    pub const MISSING_EXTENSION: Self = Self(109);
    /// There is no server with the name that the client asked for (RFC 6066 section 3).
    pub const UNRECOGNIZED_NAME: Self = Self(112);
    /// A renegotiation is refused (RFC 5246 section 7.2.2).
    pub const NO_RENEGOTIATION: Self = Self(100);

    /// The bytes of the alert. An alert that closes a connection in an orderly way is a warning,
    /// any other is fatal.
    pub(crate) fn encode(self) -> [u8; 2] {
        let is_warning = matches!(self, Self::CLOSE_NOTIFY | Self::NO_RENEGOTIATION);
        [if is_warning { 1 } else { 2 }, self.0]
    }
}
