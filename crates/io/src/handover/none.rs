//! The connection between a process and its successor, which only Linux has.

/// A part of a shard that moves to a successor. There are none on this system.
#[derive(Debug)]
pub enum Passage {}
