//! Conduct of clients and backends on connections that are passed through.

use crate::balance::wire::Then;

/// Behavior of a backend on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::balance) enum Conduct {
    /// So many bytes of its own after its client's first bytes; its end follows its client's.
    Answer(usize),
    /// So many bytes of its own after its client's first bytes, then its end at once.
    EndFirst(usize),
    /// Every byte is echoed.
    Echo,
    /// Nothing, ever.
    Mute,
    /// The end before any read.
    CloseAtOnce,
    /// A reset after so many bytes were read.
    ResetAfter(usize),
    /// So many bytes, and a reset.
    AnswerAndReset(usize),
}

/// First bytes of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beginning {
    /// A ClientHello.
    Hello,
    /// A part of a ClientHello, in thousandths: no more ever comes.
    Part(usize),
    /// A ClientHello that announces too much.
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
    /// The largest record of its ClientHello.
    pub(super) record: usize,
    /// Bytes right after it.
    pub(super) surplus: usize,
    /// The action after all is written.
    pub(super) then: Then,
}
