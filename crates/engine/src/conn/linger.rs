//! Bounds on reading and dropping input after our FIN.
//!
//! A peer that sends its whole request before it reads has not read an answer that we gave early. A
//! close with its bytes unread, or a close that further bytes meet, would become a reset and
//! destroy that answer. So we read on while bytes come, within bounds that no honest request needs
//! and that do not profit a dishonest one: dropped input costs a receive, and no memory.

use std::time::Duration;

use crate::conn::deadlines::Tick;

/// Silence after which a lingering connection is closed.
pub const LINGER_SILENCE: Duration = Duration::from_secs(2);

/// Seconds after which it is closed, even if it still sends.
const MAX_SECS: u32 = 30;

/// Bytes after which it is closed, even if more come.
const MAX_BYTES: usize = 1 << 30;

/// Data that a lingering connection sent after our FIN.
#[derive(Clone, Copy, Debug)]
pub struct Linger<T> {
    since: T,
    bytes: usize,
}

impl<T: Tick> Linger<T> {
    /// Starts with the first data.
    #[must_use]
    pub const fn new(now: T) -> Self {
        Self { since: now, bytes: 0 }
    }

    /// Counts dropped data. Returns whether the connection has [`LINGER_SILENCE`] once more.
    pub fn drop_input(&mut self, now: T, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        now.ticks_from(self.since) < MAX_SECS * T::PER_SECOND && self.bytes < MAX_BYTES
    }
}
