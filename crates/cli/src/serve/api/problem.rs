//! Mistakes in commands.

use std::borrow::Cow;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Why a command fails: a code of the protocol, and a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Problem {
    code: u32,
    message: Cow<'static, str>,
}

impl Problem {
    pub(super) const NO_METHOD: Self =
        Self { code: 104, message: Cow::Borrowed("method not found") };

    const fn new(code: u32, message: Cow<'static, str>) -> Self {
        Self { code, message }
    }

    /// The server cannot execute the command now.
    pub(super) fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(100, message.into())
    }

    /// The command is malformed.
    pub(super) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(107, message.into())
    }

    /// The server, or the channel, does not have what the command asks for.
    pub(super) fn not_available(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(108, message.into())
    }

    /// The history does not reach back to the position.
    pub(super) fn unrecoverable() -> Self {
        Self::new(112, "unrecoverable position".into())
    }
}

/// Reads the parameters of a command.
pub(super) fn parameters<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(error.to_string()))
}
