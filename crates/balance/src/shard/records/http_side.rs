//! The common part of both kinds of HTTP connection.

use throng_io::Batch;

/// The outbox of a connection that speaks HTTP, and the states of its two directions.
#[derive(Debug, Default)]
pub(in crate::shard) struct HttpSide {
    /// Data to be sent next.
    out: Option<Box<Batch>>,
    /// A send is in flight.
    is_sending: bool,
    /// The connection is not read.
    is_paused: bool,
    /// Its peer has ended its stream.
    has_finished: bool,
}

impl HttpSide {
    /// Returns the data to be sent next.
    pub(in crate::shard) fn out(&mut self) -> &mut Option<Box<Batch>> {
        &mut self.out
    }

    /// Takes the data to be sent next, if there is some.
    pub(in crate::shard) fn take_output(&mut self) -> Option<Box<Batch>> {
        self.out.take_if(|out| !out.is_empty())
    }

    /// Returns the number of bytes to be sent next.
    pub(in crate::shard) fn backlog(&self) -> usize {
        self.out.as_ref().map_or(0, |out| out.len())
    }

    /// Returns whether no bytes are waiting or in flight.
    pub(in crate::shard) fn is_clear(&self) -> bool {
        !self.is_sending && self.backlog() == 0
    }

    pub(in crate::shard) fn is_sending(&self) -> bool {
        self.is_sending
    }

    /// Records whether a send is in flight.
    pub(in crate::shard) fn set_sending(&mut self, is_sending: bool) {
        self.is_sending = is_sending;
    }

    pub(in crate::shard) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Records that the connection is not read. Returns whether the driver must pause it.
    #[must_use]
    pub(in crate::shard) fn pause(&mut self) -> bool {
        !std::mem::replace(&mut self.is_paused, true)
    }

    /// Records that the connection is read. Returns whether the driver must resume it.
    #[must_use]
    pub(in crate::shard) fn resume(&mut self) -> bool {
        std::mem::take(&mut self.is_paused)
    }

    pub(in crate::shard) fn has_finished(&self) -> bool {
        self.has_finished
    }

    /// Records that its peer has ended its stream.
    pub(in crate::shard) fn finish(&mut self) {
        self.has_finished = true;
    }
}
