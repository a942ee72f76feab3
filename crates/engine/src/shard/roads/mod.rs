//! Roads: what needs several parts of a shard. Those that act on sockets are methods of the shard,
//! the others of its parts.

mod commands;
mod ending;
mod entering;
mod events;
mod expire;
mod held;
mod receive;
mod requests;
