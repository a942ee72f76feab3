//! TLS below the engine, as a driver over another driver.
//!
//! * Duty: protect the records of established sessions, each of which rests in 208 bytes; answer
//!   handshakes with rustls; report the outcome.
//! * Not its duty: any cipher, any message of a handshake, any certificate. rustls and its provider
//!   aws-lc-rs do all of that; here is record framing alone, as a kernel does it under kTLS.
//! * Depends on: `throng-io`, rustls, aws-lc-rs.
//! * Start reading at: [`session::Session`], then [`record`].
#![forbid(unsafe_code)]

pub mod alert;
pub mod cipher;
pub mod handshake;
pub mod record;
pub mod session;

pub use alert::Alert;
pub use cipher::{Suite, Version};
pub use session::{Direction, End, Opened, Session};
