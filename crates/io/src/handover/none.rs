//! The connection between a process and its successor, which only Linux has.

/// A part of a shard that moves to a successor. This system has no such part.
#[derive(Debug)]
pub enum Passage {}
