//! Input of a WebSocket session: its decoder, and the messages of one read.

pub(crate) mod inbound;
pub(crate) mod messages;
