//! Decisions of the caller about clients and their rights.

use crate::codes::{Disconnect, ErrorCode};
use crate::command::ConnectRequest;

/// Decides about clients and their rights.
pub trait Authority {
    /// Knowledge of the authority about a connected client, besides its [`Identity`].
    type Claims;

    /// Decides about a connect.
    ///
    /// # Errors
    /// The client may not connect.
    fn connect(&self, request: &ConnectRequest) -> Result<Identity<Self::Claims>, Refusal>;

    /// Decides about a new token of a connected client. The new identity replaces the old one, but
    /// server-side subscriptions stay.
    ///
    /// # Errors
    /// The token does not fit.
    fn refresh(
        &self,
        client: &Identity<Self::Claims>,
        token: &str,
    ) -> Result<Identity<Self::Claims>, Refusal>;

    /// Decides about a subscription; `token` is the subscription's own.
    ///
    /// # Errors
    /// The client may not subscribe.
    fn subscribe(
        &self,
        client: &Identity<Self::Claims>,
        channel: &str,
        token: Option<&str>,
    ) -> Result<Grant, Refusal>;

    /// Returns what the client may do in a channel to which it is not subscribed.
    fn without_subscription(&self, client: &Identity<Self::Claims>, channel: &str) -> Grant;

    /// Answers a call. Default: not available.
    ///
    /// # Errors
    /// The client gets the error.
    fn call(
        &self,
        client: &Identity<Self::Claims>,
        method: &str,
        data: &[u8],
    ) -> Result<Vec<u8>, Refusal> {
        let _ = (client, method, data);
        Err(Refusal::Error(ErrorCode::NotAvailable))
    }

    /// Takes a message. Default: the client is disconnected, since it would not learn otherwise
    /// that its messages are lost.
    ///
    /// # Errors
    /// The client is disconnected.
    fn take(&self, client: &Identity<Self::Claims>, data: &[u8]) -> Result<(), Disconnect> {
        let _ = (client, data);
        Err(Disconnect::NotAvailable)
    }
}

/// A connected client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity<C = ()> {
    /// The user; empty without one.
    pub user: String,
    /// Information about the client for others, as JSON; empty without any.
    pub info: Vec<u8>,
    /// When its token expires, in seconds since 1970.
    pub expires: Option<u64>,
    /// Channels to which the server subscribes the client.
    pub channels: Vec<String>,
    /// Data of the application for the client, as JSON; empty without any.
    pub data: Vec<u8>,
    /// Further knowledge of the authority.
    pub claims: C,
}

/// The rights of a client in a channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Grant {
    /// Whether it may publish.
    pub publishes: bool,
    /// Whether it may read the history, and recover.
    pub reads_history: bool,
    /// Whether it may list the channel's clients.
    pub sees_presence: bool,
    /// Information about the client for others in this channel, as JSON; empty without any.
    pub info: Vec<u8>,
    /// When the subscription expires, in seconds since 1970.
    pub expires: Option<u64>,
}

/// Why a client may not do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The command fails.
    Error(ErrorCode),
    /// The connection is closed.
    Disconnect(Disconnect),
}

impl From<ErrorCode> for Refusal {
    fn from(error: ErrorCode) -> Self {
        Self::Error(error)
    }
}

impl From<Disconnect> for Refusal {
    fn from(reason: Disconnect) -> Self {
        Self::Disconnect(reason)
    }
}
