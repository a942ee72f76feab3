//! Masking, UTF-8 and classes of bytes at memory speed.
//!
//! * Duty: the loops over payload bytes: mask, unmask, check UTF-8, append, find the first of a class; a safe surface over whatever the CPU offers.
//! * Not its duty: frames, messages, limits: it does not know what the bytes are for.
//! * Depends on: simdutf8 for the UTF-8 of long inputs.
//! * Start reading at: [`mask`], then [`JoinBuffer`], where a message that came in pieces is put together.

pub mod block;
pub mod frame;
mod join;
pub mod mask;
pub mod utf8;

pub use join::{BrokenUtf8, JoinBuffer};
