//! Fill of a queue that a sender can wait for.

/// Fill of a queue after something was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// There is room for much more.
    Available,
    /// The queue is crowded: a sender that can wait should send no more until there is room; see
    /// [`Mailbox::await_capacity`](crate::mailbox::Mailbox::await_capacity).
    Crowded,
}
