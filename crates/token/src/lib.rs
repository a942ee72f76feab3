//! Tokens of clients, JSON Web Tokens that an application signs
//! ([RFC 7519](https://www.rfc-editor.org/rfc/rfc7519)), and the keys of applications.
//!
//! * Duty: keys with one algorithm each, from files and from sets of JSON Web Keys; whether a token
//!   is valid, and its claims.
//! * Not its duty: signatures (the crate jsonwebtoken), where a request has its token, what a claim
//!   allows.
//! * Depends on: throng-proto for PEM.
//! * Start reading at: [`Verifier::verify`].
#![forbid(unsafe_code)]

mod api_keys;
mod claims;
mod error;
mod key;
mod set;
mod verifier;

pub use api_keys::{ApiKeys, MAX_API_KEYS};
pub use claims::Claims;
pub use error::TokenError;
pub use key::{Algorithm, Key, KeyError, KeyKind};
pub use set::{KeySet, MAX_SET_BYTES};
pub use verifier::{LEEWAY, MAX_KEYS, MAX_TOKEN_BYTES, Verifier};

#[cfg(test)]
mod tests;
