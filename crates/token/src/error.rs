//! Why a token is refused.

use std::fmt;

/// Why a token is refused. It has no part of the token, so that a log may have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenError {
    /// It has expired: the client needs a new one.
    Expired,
    /// It is not valid yet (`nbf`).
    NotYet,
    /// It is for another audience (`aud`), or for none although one is required.
    Audience,
    /// Another issuer made it (`iss`), or none is named although one is required.
    Issuer,
    /// No key has its algorithm and its key ID (`kid`).
    UnknownKey,
    /// The signature does not fit the token and its key.
    Signature,
    /// It is not a JSON Web Token, is too long, or a claim has the wrong type.
    Malformed,
}

impl TokenError {
    /// Returns the word for this error in metrics and logs.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::NotYet => "not_yet",
            Self::Audience => "audience",
            Self::Issuer => "issuer",
            Self::UnknownKey => "unknown_key",
            Self::Signature => "signature",
            Self::Malformed => "malformed",
        }
    }
}

impl fmt::Display for TokenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the token has expired",
            Self::NotYet => "the token is not valid yet",
            Self::Audience => "the token is for another audience",
            Self::Issuer => "the token is from another issuer",
            Self::UnknownKey => "no key of this server fits the token",
            Self::Signature => "the token's signature is wrong",
            Self::Malformed => "this is not a token",
        })
    }
}

impl std::error::Error for TokenError {}
