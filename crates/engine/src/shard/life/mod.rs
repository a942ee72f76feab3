//! The way of connections into a shard, to other shards, and out of it.

pub(crate) mod drain;
pub(crate) mod entrance;
pub(crate) mod moves;
