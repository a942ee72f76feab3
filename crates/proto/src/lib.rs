//! Protocols without I/O: bytes in, events out, and back.
//!
//! * Duty: decode a peer's bytes strictly to events; encode output. RFC 6455, RFC 9112, PROXY
//!   protocol; PEM blocks; dates; setting errors shared by servers and clients.
//! * Not its duty: I/O, clocks, threads, policy. The engine and its users give events their
//!   meaning.
//! * Depends on: throng-simd for masking and UTF-8, throng-carry; on no crate with sockets.
//! * Start reading at: [`ws::Decoder`], the path of a frame; [`Input`], the bytes that it takes.
#![forbid(unsafe_code)]

mod blame;
pub mod calendar;
pub mod escape;
pub mod http1;
mod input;
#[cfg(feature = "serde")]
pub mod json;
pub mod pem;
pub mod proxy_protocol;
mod setting;
pub mod sse;
pub mod url;
pub mod ws;

pub use blame::Blame;
pub use input::Input;
pub use setting::{SettingError, UnknownName};
