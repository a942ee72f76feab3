//! Input of a WebSocket session: from the bytes of one read to the messages that a service gets.

pub(crate) mod messages;
pub(crate) mod receive;
