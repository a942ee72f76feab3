//! Protocols as bytes <-> events.
//!
//! * Duty: decode what a peer sent into events, strictly; encode what is to be sent. RFC 6455, RFC 9112, PROXY protocol.
//! * Not its duty: I/O, clocks, threads, policy. What an event means is for the engine and its users.
//! * Depends on: throng-simd for masking and UTF-8; nothing that knows a socket.
//! * Start reading at: [`ws::Decoder`], the road of a frame; [`Input`], the bytes it eats.
#![forbid(unsafe_code)]

pub mod http1;
mod input;
pub mod proxy_protocol;
pub mod sse;
pub mod ws;

pub use input::Input;
