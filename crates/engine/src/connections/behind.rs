//! Messages to a session whose own publication waits in the shard's queue: the messages follow the
//! publication, in the order of the calls.

use throng_io::ConnId;

use crate::conn::stage::{Stage, flag};
use crate::connections::Connections;
use crate::connections::send::Published;
use crate::outbox::TooSlow;
use crate::outbox::behind::Item;
use crate::outbox::frame::Frame;
use crate::outbox::sent::{REFERENCE_COST, Sent};

impl Connections {
    /// Keeps this session's output from now on until a publication that waits in the shard's queue
    /// is carried out: [`Connections::release_behind`]. Returns false if `id` is not an open
    /// session.
    pub(crate) fn hold_behind(&mut self, id: ConnId) -> bool {
        let Some(conn) = self.table.conn_mut(id).filter(|conn| conn.is(Stage::Open)) else {
            return false;
        };
        self.outbox.hold(conn);
        true
    }

    /// Returns whether this session's output waits for a publication.
    #[inline]
    pub(crate) fn is_held_behind(&self, id: ConnId) -> bool {
        let conn = self.table.conn(id);
        conn.is_some_and(|conn| conn.has(flag::HELD) && conn.is(Stage::Open))
    }

    /// Returns whether this session is open, with no Close waiting behind a publication.
    pub(crate) fn is_open(&self, id: ConnId) -> bool {
        let conn = self.table.conn(id).filter(|conn| conn.is(Stage::Open));
        conn.is_some_and(|conn| !self.outbox.is_closing_behind(conn))
    }

    /// Keeps a message, by the rules for slow receivers of queued output.
    #[cold]
    pub(crate) fn keep_message(
        &mut self,
        id: ConnId,
        text: bool,
        payload: &[u8],
        compressible: bool,
    ) -> Sent {
        let item = || Item::Message { text, payload: payload.into(), compressible };
        self.keep_behind(id, payload.len(), item)
    }

    /// Keeps a frame as [`Connections::keep_message`] keeps a message.
    #[cold]
    pub(crate) fn keep_frame(&mut self, id: ConnId, frame: &Frame) -> Sent {
        self.keep_behind(id, frame.as_bytes().len(), || Item::Frame(frame.clone()))
    }

    fn keep_behind(&mut self, id: ConnId, len: usize, item: impl FnOnce() -> Item) -> Sent {
        let Self { table, outbox, memory, .. } = self;
        let Some(conn) = table.conn_mut(id) else { return Sent::Closed };
        if outbox.is_closing_behind(conn) {
            return Sent::Closed;
        }
        match outbox.admit_congested(conn, len, None) {
            Ok(sent) => {
                memory.add(len + REFERENCE_COST);
                outbox.keep(conn, item());
                sent
            }
            Err(TooSlow(class)) => self.drop_slow(id, class),
        }
    }

    /// Keeps a Close frame; nothing is sent or read after it.
    #[cold]
    pub(crate) fn keep_close(&mut self, id: ConnId, code: u16, reason: &str) {
        let Some(conn) = self.table.conn_mut(id) else { return };
        if !self.outbox.is_closing_behind(conn) {
            self.outbox.keep(conn, Item::Close(code, reason.into()));
            self.stop_reading(id);
        }
    }

    /// Begins the closing handshake of a session that gets no further publications: output that
    /// waits behind publications is sent without them.
    pub(crate) fn close_at_once(&mut self, id: ConnId, code: u16, reason: &str) {
        while self.is_held_behind(id) {
            self.release_behind(id);
        }
        self.close(id, code, reason);
    }

    /// Sends the output that has waited for the publication that was just carried out. Returns the
    /// number of messages.
    pub(crate) fn release_behind(&mut self, id: ConnId) -> u64 {
        let Some(conn) = self.table.conn_mut(id).filter(|conn| conn.has(flag::HELD)) else {
            return 0;
        };
        let items = self.outbox.take_behind(conn);
        conn.set(flag::HELD, false);
        // A session that waits for `on_drain` is flushed, which checks the backlog.
        self.outbox.mark_dirty(conn);
        let count = items.len() as u64;
        for item in items {
            // The sender already has an outcome; count only the messages that are dropped now.
            match item {
                Item::Publication => {}
                Item::Message { text, payload, compressible } => {
                    let _ = self.send_hinted(id, text, &payload, compressible);
                }
                Item::Frame(frame) => {
                    let _ = self.send_frame(id, &frame, Published::default());
                }
                Item::Close(code, reason) => self.close(id, code, &reason),
            }
        }
        if let Some(conn) = self.table.conn_mut(id) {
            self.outbox.hold_on(conn);
        }
        count
    }
}
