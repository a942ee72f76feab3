//! Large answers that consist of bytes just received: sent from the receive buffer, without a copy.

use std::ops::Range;
use std::sync::Arc;

use throng_io::{ConnId, Memory, Segment};

/// Below this a copy costs less than a segment of its own in a gathered send.
pub(crate) const LARGE: usize = 16 * 1024;

/// The memory in which the messages of the event at hand lie.
#[derive(Debug, Default)]
pub(crate) struct Borrowed {
    /// Connection whose bytes the driver has lent, and their addresses.
    lent: Option<(ConnId, Range<usize>)>,
    /// Message that was joined from fragments, while its callback runs.
    joined: Option<Arc<dyn Memory>>,
}

impl Borrowed {
    /// Begins a loan of `bytes`, which came from `conn`. They are flushed to it before anything
    /// else happens.
    pub(crate) fn lend(&mut self, conn: ConnId, bytes: &[u8]) {
        self.lent = Some((conn, addresses(bytes)));
    }

    /// Ends the loan.
    pub(crate) fn give_back(&mut self) {
        self.lent = None;
    }

    /// Sets the memory in which the message at hand was joined; `None`: it was not.
    pub(crate) fn set_joined(&mut self, joined: Option<Arc<dyn Memory>>) {
        self.joined = joined;
    }

    /// Returns the memory of `payload`, which may leave later, if it is all of the joined message.
    pub(crate) fn kept(&self, payload: &[u8]) -> Option<Arc<dyn Memory>> {
        let joined = self.joined.as_ref()?;
        (addresses(joined.as_ref().as_ref()) == addresses(payload)).then(|| Arc::clone(joined))
    }

    /// Returns `payload` as a segment of output for `to`, if it is part of that memory. Live slices
    /// overlap only if they are parts of the same memory, so comparing addresses is enough.
    pub(crate) fn segment(&self, to: ConnId, payload: &[u8]) -> Option<Segment> {
        let wanted = addresses(payload);
        if let Some(kept) = self.kept(payload) {
            return Some(Segment::Kept(kept));
        }
        match &self.lent {
            Some((conn, lent))
                if *conn == to && lent.start <= wanted.start && wanted.end <= lent.end =>
            {
                Some(Segment::Lent(wanted.start - lent.start..wanted.end - lent.start))
            }
            _ => None,
        }
    }
}

/// Address range of a slice: live slices are at the same addresses only if they are the same
/// memory.
pub(crate) fn addresses(bytes: &[u8]) -> Range<usize> {
    let Range { start, end } = bytes.as_ptr_range();
    start.addr()..end.addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_in_the_memory_at_hand_is_a_piece_of_it() {
        let (me, other) = (ConnId::new(0, 1, 0), ConnId::new(0, 2, 0));
        let (bytes, joined) = (vec![7; 100], Arc::new(vec![7; 100]));
        let mut borrowed = Borrowed::default();
        assert!(borrowed.segment(me, &bytes).is_none());
        borrowed.lend(me, &bytes[10..60]);
        borrowed.set_joined(Some(Arc::clone(&joined) as _));
        assert!(
            matches!(borrowed.segment(me, &bytes[12..60]), Some(Segment::Lent(r)) if r == (2..50))
        );
        assert!(borrowed.segment(me, &bytes[12..61]).is_none());
        assert!(borrowed.segment(me, &bytes[9..20]).is_none());
        assert!(borrowed.segment(other, &bytes[12..60]).is_none(), "flushed later");
        assert!(matches!(borrowed.segment(other, &joined), Some(Segment::Kept(_))));
        assert!(borrowed.segment(me, &joined[1..]).is_none());
        borrowed.give_back();
        borrowed.set_joined(None);
        assert!(borrowed.segment(me, &bytes[12..60]).is_none());
        assert!(borrowed.segment(me, &joined).is_none());
    }
}
