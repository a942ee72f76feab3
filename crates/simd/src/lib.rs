//! Masking, UTF-8 validation and byte classes at memory speed.
//!
//! * Duty: loops over payload bytes: mask, unmask, validate UTF-8, append, find the first of a
//!   class; a safe interface to the vector instructions of the CPU.
//! * Not its duty: frames, messages, limits. The crate does not know the purpose of the bytes.
//! * Depends on: simdutf8 for the UTF-8 of long inputs.
//! * Start reading at: [`mask`], then [`JoinBuffer`], which joins a message that arrived in chunks.

mod ascii;
pub mod block;
pub mod frame;
mod join;
pub mod mask;
pub mod utf8;

pub use join::{BrokenUtf8, JoinBuffer};
