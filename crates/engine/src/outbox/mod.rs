//! Output of a connection: from a message that is sent to the one flush of a turn.

pub(crate) mod borrowed;
pub(crate) mod compression;
pub(crate) mod fanout;
pub(crate) mod flush;
pub(crate) mod fragments;
pub(crate) mod frame;
pub(crate) mod queue;
pub(crate) mod send;
pub(crate) mod spares;
