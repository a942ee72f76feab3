//! Tokens, or in a build without them, none.

#[cfg(feature = "tokens")]
pub(crate) use throng_token::{ApiKeys, Claims, TokenError, Verifier};

#[cfg(not(feature = "tokens"))]
pub(crate) use none::{ApiKeys, Claims, TokenError, Verifier};

/// A server without keys refuses all tokens.
#[cfg(not(feature = "tokens"))]
mod none {
    use std::fmt;
    use std::time::SystemTime;

    /// The claims of a token.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Claims {
        pub(crate) user: Option<String>,
        pub(crate) expires: Option<SystemTime>,
        pub(crate) info: Option<String>,
        pub(crate) channel: Option<String>,
        pub(crate) channels: Vec<String>,
        pub(crate) join: Vec<String>,
        pub(crate) publish: Vec<String>,
        pub(crate) history: Vec<String>,
        pub(crate) presence: Vec<String>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum TokenError {}

    impl fmt::Display for TokenError {
        fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
            match *self {}
        }
    }

    /// A build without tokens has no keys.
    #[derive(Clone, Debug)]
    pub(crate) enum ApiKeys {}

    impl ApiKeys {
        pub(crate) fn name_of(&self, _: &[u8]) -> Option<&str> {
            match *self {}
        }
    }

    #[derive(Clone, Copy, Debug, Default)]
    pub(crate) struct Verifier;

    impl Verifier {
        pub(crate) fn has_keys(&self) -> bool {
            false
        }

        pub(crate) fn verify(&self, _: &str) -> Result<Claims, TokenError> {
            Ok(Claims::default())
        }
    }
}
