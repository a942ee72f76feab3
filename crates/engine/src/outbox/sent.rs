//! Results of sending, and sizes from which messages are queued by reference.

/// Result of sending a message. Exhaustive: every copy of a message has exactly one of these
/// results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// Queued with nothing ahead of it that the peer has not taken: it leaves in this turn.
    Accepted,
    /// Queued behind output that waits for the peer, or the queue has passed its high-water mark.
    /// Nothing is lost; `on_drained` is called when the backlog has fallen.
    Queued,
    /// Not sent: the backlog has reached its cap. The [`SlowPolicy`](crate::SlowPolicy) was to drop
    /// this message, or to close the connection.
    Dropped,
    /// Not sent: the connection is closed or closing.
    Closed,
}

/// Frames up to this many bytes are copied into queues: a reference costs as much, in memory and in
/// a gathered send, and would let tiny messages pass the backlog's limit, which counts bytes.
pub(crate) const SMALL_FRAME: usize = 64;

/// Cost of a queued reference besides its frame's bytes, generously.
pub(crate) const REFERENCE_COST: usize = 64;
