//! Certificates that an authority issues by ACME (RFC 8555): the settings, and with the feature
//! `acme` the client, which is the crate instant-acme.

#[cfg(feature = "acme")]
mod client;
#[cfg(feature = "acme")]
mod http;
#[cfg(feature = "acme")]
mod order;
#[cfg(feature = "acme")]
mod schedule;
mod settings;
#[cfg(feature = "acme")]
mod store;

#[cfg(feature = "acme")]
pub use self::client::{Acme, AcmeClient, AcmeEvent};
pub use self::settings::{AcmeSettings, Challenge, LETS_ENCRYPT, SettingError};
