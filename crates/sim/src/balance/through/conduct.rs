//! Behaviour of clients and backends on passed-through connections.

use crate::balance::wire::Then;

/// The behaviour of a backend on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::balance) enum Conduct {
    /// Sends this many bytes after its client's first bytes, and ends after its client has ended.
    Answer(usize),
    /// Sends this many bytes after its client's first bytes, then ends at once.
    EndFirst(usize),
    /// Echoes every byte.
    Echo,
    /// Nothing, ever.
    Mute,
    /// Ends before any read.
    CloseAtOnce,
    /// Resets the connection after reading this many bytes.
    ResetAfter(usize),
    /// Sends this many bytes, then resets the connection.
    AnswerAndReset(usize),
}

/// The first bytes of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// A ClientHello.
    Hello,
    /// Only a part of a ClientHello, in thousandths.
    Part(usize),
    /// A ClientHello that announces too many bytes.
    Oversized,
    /// HTTP without TLS.
    Plain,
}

/// The ClientHello of a client, and the data after it.
#[derive(Clone, Copy, Debug)]
pub(in crate::balance) struct HelloPlan {
    pub(super) beginning: Beginning,
    pub(super) name: Option<&'static str>,
    pub(super) padding: usize,
    /// Maximum length of the records of its ClientHello.
    pub(super) record: usize,
    /// Number of bytes directly after it.
    pub(super) surplus: usize,
    /// The action after everything is written.
    pub(super) then: Then,
}
