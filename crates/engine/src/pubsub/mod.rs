//! Channels: subscriptions, who receives a publication, and the counts of those who did.

pub(crate) mod channels;
pub(crate) mod delivery;
pub(crate) mod filter;
pub(crate) mod history;
pub(crate) mod presence;
pub(crate) mod relay;
