//! Keys that verify tokens.

use std::fmt;
use std::str::FromStr;

use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyAlgorithm, PublicKeyUse};
use throng_proto::pem;
use x509_parser::pem::parse_x509_pem;
use x509_parser::prelude::FromDer;
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

/// An algorithm of signatures ([RFC 7518 section
/// 3.1](https://www.rfc-editor.org/rfc/rfc7518#section-3.1)); `none` is unknown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Algorithm(pub(crate) jsonwebtoken::Algorithm);

impl Algorithm {
    /// The names of all algorithms.
    pub const NAMES: &'static [&'static str] = &[
        "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256",
        "ES384", "EdDSA",
    ];

    /// Returns the least bytes of a secret: as many as a hash has (RFC 7518 section 3.2). `None`
    /// for an algorithm with a public key.
    #[must_use]
    pub const fn secret_bytes(self) -> Option<usize> {
        match self.0 {
            jsonwebtoken::Algorithm::HS256 => Some(32),
            jsonwebtoken::Algorithm::HS384 => Some(48),
            jsonwebtoken::Algorithm::HS512 => Some(64),
            _ => None,
        }
    }

    const fn kind(self) -> KeyKind {
        use jsonwebtoken::Algorithm as A;
        match self.0 {
            A::RS256 | A::RS384 | A::RS512 | A::PS256 | A::PS384 | A::PS512 => KeyKind::Rsa,
            A::ES256 => KeyKind::P256,
            A::ES384 => KeyKind::P384,
            A::EdDSA => KeyKind::Ed25519,
            _ => KeyKind::Secret,
        }
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::NAMES.contains(&text).then(|| text.parse().ok()).flatten();
        known.map(Self).ok_or_else(|| format!("write one of {}", Self::NAMES.join(", ")))
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A kind of key. Displayed as a phrase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyKind {
    /// A secret that this server and the signer share.
    Secret,
    /// A public key of RSA.
    Rsa,
    /// A point of the curve P-256.
    P256,
    /// A point of the curve P-384.
    P384,
    /// A public key of Ed25519.
    Ed25519,
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Secret => "a secret",
            Self::Rsa => "an RSA key",
            Self::P256 => "a key of the curve P-256",
            Self::P384 => "a key of the curve P-384",
            Self::Ed25519 => "an Ed25519 key",
        })
    }
}

/// A key that verifies tokens of one algorithm.
#[derive(Clone)]
pub struct Key {
    pub(crate) id: Option<String>,
    pub(crate) algorithm: Algorithm,
    pub(crate) decoding: DecodingKey,
}

impl Key {
    /// Creates a key from a secret that this server and the signer share.
    ///
    /// # Errors
    /// The algorithm has public keys, or the secret is too short, or is a public key: then anyone
    /// could sign.
    pub fn secret(algorithm: Algorithm, secret: &[u8]) -> Result<Self, KeyError> {
        let Some(least) = algorithm.secret_bytes() else {
            return Err(KeyError::NeedsPublic(algorithm));
        };
        let looks_public = secret.trim_ascii_start().starts_with(b"-----BEGIN");
        if looks_public {
            return Err(KeyError::SecretIsPem);
        }
        match secret.len() {
            bytes if bytes < least => Err(KeyError::Short { algorithm, bytes, least }),
            _ => Ok(Self { id: None, algorithm, decoding: decoding(secret)? }),
        }
    }

    /// Creates a key from a public key in PEM.
    ///
    /// # Errors
    /// The algorithm has a secret, the text has no public key, or it is a key of another kind.
    pub fn public(algorithm: Algorithm, pem: &[u8]) -> Result<Self, KeyError> {
        if algorithm.secret_bytes().is_some() {
            return Err(KeyError::NeedsSecret(algorithm));
        }
        let blocks = pem::blocks(pem).map_err(|_| KeyError::NotPem)?;
        let block = blocks.iter().find(|block| block.label == "PUBLIC KEY");
        let text = block.ok_or(KeyError::NotPem)?.to_pem();
        let (_, block) = parse_x509_pem(&text).map_err(|_| KeyError::NotPem)?;
        let (_, info) =
            SubjectPublicKeyInfo::from_der(&block.contents).map_err(|_| KeyError::NotPem)?;
        let (kind, decoding) = of_info(&info).ok_or(KeyError::Unknown)?;
        match kind == algorithm.kind() {
            true => Ok(Self { id: None, algorithm, decoding }),
            false => Err(KeyError::Other { algorithm, needs: algorithm.kind(), is: kind }),
        }
    }

    /// Sets the key's ID: a token with a `kid` has this one.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Reads a public key of a set; `None` for a key that cannot verify tokens: a secret, an
    /// encryption key, or an unknown kind.
    pub(crate) fn from_jwk(jwk: &Jwk) -> Option<Self> {
        if matches!(&jwk.common.public_key_use, Some(usage) if *usage != PublicKeyUse::Signature) {
            return None;
        }
        let (kind, usual) = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => (KeyKind::Rsa, "RS256"),
            AlgorithmParameters::EllipticCurve(key) => match key.curve {
                EllipticCurve::P256 => (KeyKind::P256, "ES256"),
                EllipticCurve::P384 => (KeyKind::P384, "ES384"),
                _ => return None,
            },
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                (KeyKind::Ed25519, "EdDSA")
            }
            _ => return None,
        };
        let algorithm: Algorithm = match &jwk.common.key_algorithm {
            Some(named) => name_of(named)?.parse().ok()?,
            None => usual.parse().ok()?,
        };
        let decoding = DecodingKey::from_jwk(jwk).ok()?;
        let id = jwk.common.key_id.clone();
        (algorithm.kind() == kind).then_some(Self { id, algorithm, decoding })
    }
}

/// Keys are not for logs.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({:?}, {})", self.id, self.algorithm)
    }
}

fn decoding(secret: &[u8]) -> Result<DecodingKey, KeyError> {
    DecodingKey::from_secret(secret).map_err(|_| KeyError::Unknown)
}

/// Returns the name of an algorithm in a set.
fn name_of(algorithm: &KeyAlgorithm) -> Option<String> {
    serde_json::to_value(algorithm).ok()?.as_str().map(str::to_owned)
}

/// Object identifiers of keys and curves (RFC 5480, RFC 8410).
const P256: &str = "1.2.840.10045.3.1.7";
const P384: &str = "1.3.132.0.34";
const ED25519: &str = "1.3.101.112";

fn of_info(info: &SubjectPublicKeyInfo<'_>) -> Option<(KeyKind, DecodingKey)> {
    let bytes = info.subject_public_key.as_ref();
    if info.algorithm.algorithm.to_id_string() == ED25519 {
        return Some((KeyKind::Ed25519, DecodingKey::from_ed_der(bytes)));
    }
    match info.parsed().ok()? {
        PublicKey::RSA(_) => Some((KeyKind::Rsa, DecodingKey::from_rsa_der(bytes))),
        PublicKey::EC(_) => {
            let curve = info.algorithm.parameters.as_ref()?.as_oid().ok()?.to_id_string();
            let kind = match curve.as_str() {
                P256 => KeyKind::P256,
                P384 => KeyKind::P384,
                _ => return None,
            };
            Some((kind, DecodingKey::from_ec_der(bytes)))
        }
        _ => None,
    }
}

/// Why a key cannot be used. It has no part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyError {
    /// The algorithm verifies by a public key.
    NeedsPublic(Algorithm),
    /// The algorithm verifies by a secret.
    NeedsSecret(Algorithm),
    /// The secret is a key in PEM, which others may have.
    SecretIsPem,
    /// The secret is shorter than the algorithm's hash.
    #[non_exhaustive]
    Short {
        /// The algorithm.
        algorithm: Algorithm,
        /// The bytes of the secret.
        bytes: usize,
        /// The least bytes.
        least: usize,
    },
    /// The text has no `PUBLIC KEY` in PEM.
    NotPem,
    /// It is a key that no algorithm here uses.
    Unknown,
    /// It is a key of another algorithm.
    #[non_exhaustive]
    Other {
        /// The algorithm.
        algorithm: Algorithm,
        /// The key that the algorithm needs.
        needs: KeyKind,
        /// The key that there is.
        is: KeyKind,
    },
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeedsPublic(algorithm) => {
                write!(f, "{algorithm} needs a public key: write public_key_file")
            }
            Self::NeedsSecret(algorithm) => {
                write!(f, "{algorithm} needs a secret: write secret_file")
            }
            Self::SecretIsPem => f.write_str(
                "it is a key in PEM, which is no secret: write public_key_file, and the algorithm \
                 of the key",
            ),
            Self::Short { algorithm, bytes, least } => write!(
                f,
                "it has {bytes} bytes, and a secret of {algorithm} at least {least} (RFC 7518 \
                 section 3.2): make one with `openssl rand -hex {least}`"
            ),
            Self::NotPem => f.write_str(
                "it has no public key in PEM: make one with `openssl pkey -in KEY -pubout`",
            ),
            Self::Unknown => {
                f.write_str("only RSA, P-256, P-384 and Ed25519 keys can verify tokens")
            }
            Self::Other { algorithm, needs, is } => {
                write!(f, "it is {is}, and {algorithm} needs {needs}")
            }
        }
    }
}

impl std::error::Error for KeyError {}
