//! Bounds on reading and dropping input after our FIN.
//!
//! A peer that sends its whole request before it looks for an answer has not read the one that we
//! gave early: a close with its bytes unread, or a close that further bytes meet, would be a reset,
//! and destroy that answer. So we read on for as long as bytes come, within bounds that no honest
//! request needs and that a dishonest one gains nothing by: dropped input costs a receive, and no
//! memory.

use std::time::Duration;

use throng_io::ConnId;

use crate::conn::deadlines::Tick;
use crate::conn::stage::AfterFlush;
use crate::conn::table::Connections;

/// Silence after which a lingering connection is closed.
pub const LINGER_SILENCE: Duration = Duration::from_secs(2);

/// Seconds after which it is closed, however much it sends.
const MOST_SECS: u32 = 30;

/// Bytes after which no more are waited for.
const MOST_BYTES: usize = 1 << 30;

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
        now.ticks_from(self.since) < MOST_SECS * T::PER_SECOND && self.bytes < MOST_BYTES
    }
}

impl Connections {
    /// Counts the bytes from a lingering connection, which are dropped.
    #[cold]
    pub(crate) fn linger_on(&mut self, id: ConnId, bytes: usize) {
        let now = self.tick();
        let Some(cold) = self.cold_mut(id) else { return };
        if cold.dropped.get_or_insert(Linger::new(now)).drop_input(now, bytes) {
            self.due_in(id, LINGER_SILENCE.as_secs() as u16);
        }
    }

    /// Closes a connection that has lingered long enough. Not with a reset: the kernel may hold
    /// output that a slow peer has not taken yet, and delivers that without us.
    pub(crate) fn end_lingering(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.set_after_flush(AfterFlush::Close);
            self.mark_dirty(id);
        }
    }
}
