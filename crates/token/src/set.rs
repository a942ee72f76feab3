//! Sets of public keys that an issuer publishes (JWKS).

use jsonwebtoken::jwk::Jwk;
use serde::Deserialize;

use crate::key::Key;
use crate::verifier::MAX_KEYS;

/// Maximum bytes of a set.
pub const MAX_SET_BYTES: usize = 256 << 10;

/// A set of public keys ([RFC 7517 section 5](https://www.rfc-editor.org/rfc/rfc7517#section-5)).
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<Key>,
}

#[derive(Deserialize)]
struct Wire {
    /// Each by itself: an issuer may have keys of kinds that are newer than this server.
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// Reads a set. Leaves out what cannot verify tokens: secrets, keys that encrypt, unknown kinds
    /// and algorithms. A key without `alg` has the usual algorithm of its kind: RS256, ES256, ES384
    /// or EdDSA.
    ///
    /// # Errors
    /// The text is longer than [`MAX_SET_BYTES`], is not a set, or has no key, or more than
    /// [`MAX_KEYS`], that can verify tokens.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > MAX_SET_BYTES {
            return Err(format!("the set is longer than {MAX_SET_BYTES} bytes"));
        }
        let Wire { keys } = serde_json::from_slice(text)
            .map_err(|error| format!("it is not a set of JSON Web Keys: {error}"))?;
        let jwks = keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        let keys: Vec<Key> = jwks.filter_map(|jwk| Key::from_jwk(&jwk)).collect();
        match keys.len() {
            0 => Err("none of its keys can verify tokens".to_owned()),
            1..=MAX_KEYS => Ok(Self { keys }),
            more => Err(format!("it has {more} keys, and {MAX_KEYS} are the most")),
        }
    }

    /// Returns the IDs of its keys, in their order.
    #[must_use]
    pub fn ids(&self) -> Vec<Option<&str>> {
        self.keys.iter().map(|key| key.id.as_deref()).collect()
    }

    /// Returns the keys.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }
}
