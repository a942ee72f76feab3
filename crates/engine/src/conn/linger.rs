//! Bounds on reading and dropping input after our FIN.
//!
//! A peer that sends its whole request before it looks for an answer has not read the one that we
//! gave early: a close with its bytes unread, or a close that further bytes meet, would be a reset,
//! and destroy that answer. So we read on for as long as bytes come, within bounds that no honest
//! request needs and that a dishonest one gains nothing by: dropped input costs a receive, and no
//! memory.

use throng_io::ConnId;

use crate::conn::record::{AfterFlush, Dropped};
use crate::conn::table::Connections;

/// Seconds of silence after which it is closed.
pub(crate) const SILENCE_SECS: u16 = 2;

/// Seconds after which it is closed, however much it sends.
const MOST_SECS: u16 = 30;

/// Bytes after which no more are waited for.
const MOST_BYTES: usize = 1 << 30;

impl Connections {
    /// Counts the bytes from a lingering connection, which are dropped.
    #[cold]
    pub(crate) fn linger_on(&mut self, id: ConnId, bytes: usize) {
        let now = self.tick();
        let Some(cold) = self.cold_mut(id) else { return };
        let dropped = cold.dropped.get_or_insert(Dropped { since: now, bytes: 0 });
        dropped.bytes = dropped.bytes.saturating_add(bytes);
        if now.since(dropped.since) < MOST_SECS && dropped.bytes < MOST_BYTES {
            self.due_in(id, SILENCE_SECS);
        }
    }

    /// Closes a connection that has lingered long enough. Not with a reset: the kernel may hold
    /// output that a slow peer has not taken yet, and delivers that without us.
    pub(crate) fn end_lingering(&mut self, id: ConnId) {
        if let Some(conn) = self.conn_mut(id) {
            conn.after_flush = AfterFlush::Close;
            self.mark_dirty(id);
        }
    }
}
