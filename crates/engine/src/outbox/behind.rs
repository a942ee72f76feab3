//! Output of sessions that waits behind their own publications.
//!
//! Where commands wait for a shard, a callback's publication is queued behind them, as the
//! channel's order requires. Later output of the session must follow the publication: it is kept
//! here, with a mark for each publication, until the shard has carried out the publication. Close
//! frames also wait. Sessions without such a publication are not affected.

use std::collections::VecDeque;

use crate::conn::record::Conn;
use crate::conn::stage::{Stage, flag};
use crate::outbox::Outbox;
use crate::outbox::frame::Frame;
use crate::outbox::sent::REFERENCE_COST;

/// The output that waits for one session, in order.
#[derive(Debug, Default)]
pub(crate) struct Behind {
    items: VecDeque<Item>,
    bytes: usize,
    is_closing: bool,
}

/// Output that waits, or a mark.
#[derive(Debug)]
pub(crate) enum Item {
    /// A publication that the shard has not carried out.
    Publication,
    Message {
        text: bool,
        payload: Box<[u8]>,
        compressible: bool,
    },
    Frame(Frame),
    Close(u16, Box<str>),
}

impl Item {
    fn bytes(&self) -> usize {
        match self {
            Self::Publication => 0,
            Self::Message { payload, .. } => payload.len() + REFERENCE_COST,
            Self::Frame(frame) => frame.as_bytes().len() + REFERENCE_COST,
            Self::Close(_, reason) => reason.len() + REFERENCE_COST,
        }
    }
}

impl Outbox {
    /// Keeps a session's output from now on behind a publication.
    pub(crate) fn hold(&mut self, conn: &mut Conn) {
        self.keep(conn, Item::Publication);
        conn.set(flag::HELD, true);
    }

    /// Appends output to the kept output.
    pub(crate) fn keep(&mut self, conn: &Conn, item: Item) {
        let behind = self.behind.entry(conn.id).or_default();
        behind.bytes += item.bytes();
        behind.is_closing |= matches!(item, Item::Close(..));
        behind.items.push_back(item);
    }

    /// Takes the output that waits for the publication that was just carried out, up to the next
    /// mark.
    pub(crate) fn take_behind(&mut self, conn: &mut Conn) -> Vec<Item> {
        let Some(behind) = self.behind.get_mut(&conn.id) else { return Vec::new() };
        behind.items.pop_front();
        let is_mark = |item: &Item| matches!(item, Item::Publication);
        let len = behind.items.iter().position(is_mark).unwrap_or(behind.items.len());
        let taken: Vec<Item> = behind.items.drain(..len).collect();
        behind.bytes -= taken.iter().map(Item::bytes).sum::<usize>();
        taken
    }

    /// Continues to hold the output of a session that has further publications and has not ended.
    pub(crate) fn hold_on(&mut self, conn: &mut Conn) {
        let Some(behind) = self.behind.get(&conn.id) else { return };
        if behind.items.is_empty() || !conn.is(Stage::Open) {
            self.behind.remove(&conn.id);
        } else {
            conn.set(flag::HELD, true);
        }
    }

    /// Drops the kept output.
    pub(crate) fn drop_behind(&mut self, conn: &mut Conn) {
        if !self.behind.is_empty() && self.behind.remove(&conn.id).is_some() {
            conn.set(flag::HELD, false);
        }
    }

    /// Returns whether a Close frame waits.
    pub(crate) fn is_closing_behind(&self, conn: &Conn) -> bool {
        conn.has(flag::HELD) && self.behind.get(&conn.id).is_some_and(|behind| behind.is_closing)
    }

    /// Returns the bytes that wait.
    pub(crate) fn bytes_behind(&self, conn: &Conn) -> usize {
        self.behind.get(&conn.id).map_or(0, |behind| behind.bytes)
    }

    /// Returns the sessions for which output waits; for audits.
    pub(crate) fn behind_len(&self) -> usize {
        self.behind.len()
    }
}
