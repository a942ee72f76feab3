//! TLS below the engine, as a driver over another driver.
//!
//! * Duty: protect the records of established sessions, at 200 bytes for an idle session; answer
//!   handshakes with rustls; report the outcome.
//! * Not its duty: ciphers, handshake messages, certificates. rustls and its provider aws-lc-rs do
//!   all of that; this crate has only the record framing, as a kernel has for kTLS.
//! * Depends on: `throng-carry`, `throng-io`, `throng-proto` for PEM, rustls, aws-lc-rs.
//! * Start reading at: [`driver`], then [`session::Session`] and [`record`].
#![forbid(unsafe_code)]

pub mod alert;
mod capture;
pub mod certificate;
pub mod chain;
mod challenges;
pub mod cipher;
pub mod client;
pub mod config;
pub mod driver;
mod error;
pub mod files;
mod fragments;
pub mod handshake;
mod hello;
mod own_tickets;
mod passthrough;
mod policies;
pub mod record;
pub mod server;
pub mod session;
mod stats;
mod tickets;
mod timed;
mod unwritten;
mod watch;

pub use alert::Alert;
pub use certificate::Certificate;
pub use challenges::Challenges;
pub use cipher::{Suite, Version};
pub use client::{
    ClientConfigs, ClientSettings, TlsClient, TlsStream, Trust, failure_of, is_certificate_refused,
    is_certificate_required,
};
pub use config::{
    CertificateFiles, ClientAuth, ConfigError, Managed, ServedCertificate, SuitePreference,
    TlsConfig, TlsPolicy,
};
pub use driver::{HandshakeLimits, Tls, TlsRecord};
pub use passthrough::is_server_name_pattern;
pub use server::{Prepared, TlsServer};
pub use session::{Direction, End, Messages, Opened, Session, WarmKeys};
pub use stats::{HandshakeStats, OrderStats, SessionStats};
#[doc(hidden)]
pub use throng_carry::Secret;
pub use unwritten::Unwritten;
