//! Certificates that an authority issues by ACME (RFC 8555): the settings, and with the feature
//! `client` the client of the authority.
//!
//! * Duty: order a certificate, renew it, keep it and the account in files; answer the authority's
//!   validations.
//! * Not its duty: the messages of ACME (the crate instant-acme), the handshakes (`throng-tls`).
//! * Depends on: `throng-tls`; `throng-proto` for PEM, `throng-io` for errors of files.
//! * Start reading at: `Acme::start`.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "client")]
mod http;
#[cfg(feature = "client")]
mod order;
#[cfg(feature = "client")]
mod schedule;
mod settings;
#[cfg(feature = "client")]
mod store;

#[cfg(feature = "client")]
pub use client::{Acme, AcmeClient, AcmeEvent};
pub use settings::{AcmeSettings, Challenge, LETS_ENCRYPT, SettingError};
