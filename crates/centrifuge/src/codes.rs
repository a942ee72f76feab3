//! The codes of the protocol: errors in replies, reasons to disconnect and to unsubscribe.

/// An error in a reply to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// 100: the server failed. Temporary: the client repeats the command.
    Internal,
    /// 101: the client must sign in.
    Unauthorized,
    /// 102: the channel does not exist.
    UnknownChannel,
    /// 103: the client may not do this.
    PermissionDenied,
    /// 104: the server does not know the command.
    MethodNotFound,
    /// 105: the client is subscribed to the channel already.
    AlreadySubscribed,
    /// 106: a limit is reached, such as channels of a connection.
    LimitExceeded,
    /// 107: the command cannot be carried out as it is.
    BadRequest,
    /// 108: the server does not have this function, or not for this channel.
    NotAvailable,
    /// 109: the token has expired: the client asks its application for another one.
    TokenExpired,
    /// 110: the connection or subscription has expired.
    Expired,
    /// 111: too many commands. Temporary.
    TooManyRequests,
    /// 112: the publications since the position are no longer kept.
    UnrecoverablePosition,
    /// 113: another command on the same list runs. Temporary.
    ConcurrentPagination,
}

impl ErrorCode {
    /// All errors, in the order of their codes.
    pub const ALL: [Self; 14] = [
        Self::Internal,
        Self::Unauthorized,
        Self::UnknownChannel,
        Self::PermissionDenied,
        Self::MethodNotFound,
        Self::AlreadySubscribed,
        Self::LimitExceeded,
        Self::BadRequest,
        Self::NotAvailable,
        Self::TokenExpired,
        Self::Expired,
        Self::TooManyRequests,
        Self::UnrecoverablePosition,
        Self::ConcurrentPagination,
    ];

    /// Returns the number of the error.
    #[must_use]
    pub const fn code(self) -> u32 {
        100 + self as u32
    }

    /// Returns whether the client may repeat the command.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        matches!(self, Self::Internal | Self::TooManyRequests | Self::ConcurrentPagination)
    }

    /// Returns the text that clients get.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Internal => "internal server error",
            Self::Unauthorized => "unauthorized",
            Self::UnknownChannel => "unknown channel",
            Self::PermissionDenied => "permission denied",
            Self::MethodNotFound => "method not found",
            Self::AlreadySubscribed => "already subscribed",
            Self::LimitExceeded => "limit exceeded",
            Self::BadRequest => "bad request",
            Self::NotAvailable => "not available",
            Self::TokenExpired => "token expired",
            Self::Expired => "expired",
            Self::TooManyRequests => "too many requests",
            Self::UnrecoverablePosition => "unrecoverable position",
            Self::ConcurrentPagination => "concurrent pagination",
        }
    }
}

/// The reason why a server closes a connection, as a code of the WebSocket's Close frame.
///
/// A client comes back after a code from 3000 to 3499, and does not after one from 3500 to 3999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Disconnect {
    /// 3000: the connection was closed.
    ConnectionClosed,
    /// 3001: the server ends.
    Shutdown,
    /// 3004: the server failed.
    ServerError,
    /// 3005: the token has expired, and no other came in time.
    Expired,
    /// 3006: the token of a server-side subscription has expired.
    SubscriptionExpired,
    /// 3008: the client reads too slowly.
    Slow,
    /// 3009: the connection could not be written to.
    WriteError,
    /// 3010: publications are lost: the client recovers when it comes back.
    InsufficientState,
    /// 3011: the client must connect again.
    ForceReconnect,
    /// 3012: the client did not answer a ping.
    NoPong,
    /// 3013: the client sends too many commands.
    TooManyRequests,
    /// 3014: the client's state and token are no longer valid.
    StateInvalidated,
    /// 3500: the token is not valid.
    InvalidToken,
    /// 3501: the client violates the protocol.
    BadRequest,
    /// 3502: no connect came in time.
    Stale,
    /// 3503: the server has closed the connection, and the client must not come back.
    ForceNoReconnect,
    /// 3504: too many connections.
    ConnectionLimit,
    /// 3505: too many channels.
    ChannelLimit,
    /// 3506: the data does not fit the client's encoding.
    InappropriateProtocol,
    /// 3507: the client may not do this.
    PermissionDenied,
    /// 3508: the server does not have this function.
    NotAvailable,
    /// 3509: too many errors.
    TooManyErrors,
}

impl Disconnect {
    /// All reasons, in the order of their codes.
    pub const ALL: [Self; 22] = [
        Self::ConnectionClosed,
        Self::Shutdown,
        Self::ServerError,
        Self::Expired,
        Self::SubscriptionExpired,
        Self::Slow,
        Self::WriteError,
        Self::InsufficientState,
        Self::ForceReconnect,
        Self::NoPong,
        Self::TooManyRequests,
        Self::StateInvalidated,
        Self::InvalidToken,
        Self::BadRequest,
        Self::Stale,
        Self::ForceNoReconnect,
        Self::ConnectionLimit,
        Self::ChannelLimit,
        Self::InappropriateProtocol,
        Self::PermissionDenied,
        Self::NotAvailable,
        Self::TooManyErrors,
    ];

    /// Returns the code of the Close frame.
    #[must_use]
    pub const fn code(self) -> u16 {
        match self {
            Self::ConnectionClosed => 3000,
            Self::Shutdown => 3001,
            Self::ServerError => 3004,
            Self::Expired => 3005,
            Self::SubscriptionExpired => 3006,
            Self::Slow => 3008,
            Self::WriteError => 3009,
            Self::InsufficientState => 3010,
            Self::ForceReconnect => 3011,
            Self::NoPong => 3012,
            Self::TooManyRequests => 3013,
            Self::StateInvalidated => 3014,
            Self::InvalidToken => 3500,
            Self::BadRequest => 3501,
            Self::Stale => 3502,
            Self::ForceNoReconnect => 3503,
            Self::ConnectionLimit => 3504,
            Self::ChannelLimit => 3505,
            Self::InappropriateProtocol => 3506,
            Self::PermissionDenied => 3507,
            Self::NotAvailable => 3508,
            Self::TooManyErrors => 3509,
        }
    }

    /// Returns the text of the Close frame.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::ConnectionClosed => "connection closed",
            Self::Shutdown => "shutdown",
            Self::ServerError => "internal server error",
            Self::Expired => "connection expired",
            Self::SubscriptionExpired => "subscription expired",
            Self::Slow => "slow",
            Self::WriteError => "write error",
            Self::InsufficientState => "insufficient state",
            Self::ForceReconnect => "force reconnect",
            Self::NoPong => "no pong",
            Self::TooManyRequests => "too many requests",
            Self::StateInvalidated => "state invalidated",
            Self::InvalidToken => "invalid token",
            Self::BadRequest => "bad request",
            Self::Stale => "stale",
            Self::ForceNoReconnect => "force disconnect",
            Self::ConnectionLimit => "connection limit",
            Self::ChannelLimit => "channel limit",
            Self::InappropriateProtocol => "inappropriate protocol",
            Self::PermissionDenied => "permission denied",
            Self::NotAvailable => "not available",
            Self::TooManyErrors => "too many errors",
        }
    }

    /// Returns whether the client comes back by itself.
    #[must_use]
    pub const fn is_temporary(self) -> bool {
        self.code() < 3500
    }
}

/// The reason why a server ends a subscription. The client subscribes again from 2500 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnsubscribeCode {
    /// 2000: the server has ended it.
    Server,
    /// 2500: publications are lost: the client recovers when it subscribes again.
    Insufficient,
    /// 2501: the token of the subscription has expired, and no other came in time.
    Expired,
    /// 2502: the client's state and token are no longer valid.
    StateInvalidated,
}

impl UnsubscribeCode {
    /// Returns the number of the reason.
    #[must_use]
    pub const fn code(self) -> u32 {
        match self {
            Self::Server => 2000,
            Self::Insufficient => 2500,
            Self::Expired => 2501,
            Self::StateInvalidated => 2502,
        }
    }

    /// Returns the text that clients get.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Server => "server unsubscribe",
            Self::Insufficient => "insufficient state",
            Self::Expired => "subscription expired",
            Self::StateInvalidated => "state invalidated",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_those_of_the_protocol() {
        let errors: Vec<u32> = ErrorCode::ALL.iter().map(|error| error.code()).collect();
        assert_eq!(errors, (100..=113).collect::<Vec<_>>());
        let temporary = ErrorCode::ALL.iter().filter(|error| error.is_temporary());
        assert_eq!(temporary.map(|error| error.code()).collect::<Vec<_>>(), [100, 111, 113]);
        let codes: Vec<u16> = Disconnect::ALL.iter().map(|reason| reason.code()).collect();
        let expected = [
            &[3000, 3001, 3004, 3005, 3006][..],
            &(3008..=3014).collect::<Vec<_>>(),
            &(3500..=3509).collect::<Vec<_>>(),
        ];
        assert_eq!(codes, expected.concat());
        for reason in Disconnect::ALL {
            assert_eq!(reason.is_temporary(), reason.code() < 3500, "{reason:?}");
            assert!(reason.text().len() <= 123, "a Close frame has 125 bytes");
        }
    }
}
