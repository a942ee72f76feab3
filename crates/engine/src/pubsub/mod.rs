//! Channels: subscriptions, the receivers of a publication, and their counts.

pub(crate) mod channels;
pub(crate) mod delivery;
pub(crate) mod filter;
pub(crate) mod history;
pub(crate) mod presence;
pub(crate) mod publishing;
pub(crate) mod relay;
pub(crate) mod waiting;
