//! Channels: subscriptions, publications to their members, and rules for members that read too
//! slowly.

pub(crate) mod backpressure;
pub(crate) mod channels;
pub(crate) mod delivery;
pub(crate) mod filter;
pub(crate) mod pattern;
pub(crate) mod publish;
pub(crate) mod publishers;
