//! Whether a token is valid.

use std::time::Duration;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Header, Validation, decode, decode_header};

use crate::claims::{Claims, Wire};
use crate::error::TokenError;
use crate::key::Key;

/// The difference of clocks that is allowed for `exp` and `nbf`.
pub const LEEWAY: Duration = Duration::from_secs(30);

/// Maximum bytes of a token.
pub const MAX_TOKEN_BYTES: usize = 8 << 10;

/// Maximum keys of a verifier and of a set: a token without a key ID is tried with each.
pub const MAX_KEYS: usize = 64;

/// Verifies tokens by keys, each with one algorithm.
#[derive(Clone, Debug, Default)]
pub struct Verifier {
    keys: Vec<Key>,
    audience: Option<String>,
    issuer: Option<String>,
}

impl Verifier {
    /// Creates a verifier without keys, which refuses all tokens.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds keys. While keys change, old ones stay beside new ones. Keys beyond [`MAX_KEYS`] are
    /// left out.
    #[must_use]
    pub fn keys(mut self, keys: impl IntoIterator<Item = Key>) -> Self {
        self.keys.extend(keys);
        self.keys.truncate(MAX_KEYS);
        self
    }

    /// Requires this audience (`aud`) of each token. Default: any, or none.
    #[must_use]
    pub fn audience(mut self, audience: Option<String>) -> Self {
        self.audience = audience;
        self
    }

    /// Requires this issuer (`iss`) of each token. Default: any, or none.
    #[must_use]
    pub fn issuer(mut self, issuer: Option<String>) -> Self {
        self.issuer = issuer;
        self
    }

    /// Returns whether it has keys.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Verifies a token, and returns its claims. Takes microseconds with a secret, and tens of them
    /// with a public key.
    ///
    /// # Errors
    /// The token is the client's fault: see [`TokenError`].
    pub fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        let header = decode_header(token).map_err(|_| TokenError::Malformed)?;
        let mut refusal = TokenError::UnknownKey;
        for key in self.keys.iter().filter(|key| fits(key, &header)) {
            match decode::<Wire>(token, &key.decoding, &self.validation(key)) {
                Ok(data) => return Ok(data.claims.into()),
                Err(error) => refusal = why(error.kind()),
            }
            // Only a signature can be right with another key.
            if refusal != TokenError::Signature {
                break;
            }
        }
        Err(refusal)
    }

    fn validation(&self, key: &Key) -> Validation {
        let mut validation = Validation::new(key.algorithm.0);
        validation.leeway = LEEWAY.as_secs();
        validation.validate_nbf = true;
        let mut required = Vec::new();
        match &self.audience {
            Some(audience) => {
                validation.set_audience(&[audience]);
                required.push("aud");
            }
            // For any.
            None => validation.validate_aud = false,
        }
        if let Some(issuer) = &self.issuer {
            validation.set_issuer(&[issuer]);
            required.push("iss");
        }
        // A token without `exp` is valid for ever.
        validation.set_required_spec_claims(&required);
        validation
    }
}

/// Returns whether a key has a token's algorithm, and its ID if both have one.
fn fits(key: &Key, header: &Header) -> bool {
    let same_id = match (&key.id, &header.kid) {
        (Some(own), Some(id)) => own == id,
        _ => true,
    };
    same_id && key.algorithm.0 == header.alg
}

fn why(kind: &ErrorKind) -> TokenError {
    match kind {
        ErrorKind::ExpiredSignature => TokenError::Expired,
        ErrorKind::ImmatureSignature => TokenError::NotYet,
        ErrorKind::InvalidAudience => TokenError::Audience,
        ErrorKind::InvalidIssuer => TokenError::Issuer,
        ErrorKind::MissingRequiredClaim(claim) if claim == "aud" => TokenError::Audience,
        ErrorKind::MissingRequiredClaim(claim) if claim == "iss" => TokenError::Issuer,
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::InvalidAlgorithm => TokenError::UnknownKey,
        _ => TokenError::Malformed,
    }
}
