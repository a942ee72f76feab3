//! Bounds on reading and dropping input after our FIN.
//!
//! A peer that sends its whole request before it reads has not yet read an early answer. If we
//! closed with unread bytes, or if more bytes met the closed socket, the kernel would send a reset,
//! which destroys that answer. So we keep reading while bytes come, within bounds that no honest
//! request needs. A dishonest peer gains nothing: dropped input costs one receive, and no memory.

use std::time::Duration;

use crate::conn::deadlines::DeadlineTick;

/// Silence after which a lingering connection is closed.
pub const LINGER_SILENCE: Duration = Duration::from_secs(2);

/// Seconds after which the connection is closed, even if its peer still sends.
const MAX_SECS: u32 = 30;

/// Bytes after which the connection is closed, even if its peer sends more.
const MAX_BYTES: usize = 1 << 30;

/// Data that a lingering connection sent after our FIN.
#[derive(Clone, Copy, Debug)]
pub struct Linger<T> {
    since: T,
    bytes: usize,
}

impl<T: DeadlineTick> Linger<T> {
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
