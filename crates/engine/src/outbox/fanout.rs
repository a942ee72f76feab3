//! Frames published in this turn to connections that have nothing else queued: nearly all of a
//! publication.
//!
//! These connections get no queue. Each remembers its list of frames in one number; receivers of
//! the same frames share a list, so that its bytes are joined once and only one plain send per
//! receiver follows. Only output that the kernel does not take, or that meets other output, goes
//! into a queue.

use std::sync::Arc;

use throng_io::{Batch, Segment};

use crate::outbox::sent::SMALL_FRAME;

/// Number of a list; 0 is the empty one.
type ListIndex = u32;

/// Form of a frame on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The frame as encoded.
    Plain,
    /// Compressed.
    Deflated,
    /// The frame as a server-sent event.
    Event,
}

/// Largest joined list in bytes: lists of several frames are joined, so they must not become large;
/// further frames go into queues.
const MAX_JOINED: usize = 64 * 1024;

/// Frames up to this size are joined with those before and after them when they have to wait: a
/// reference to each would cost every receiver 24 bytes and its part of a gathered send.
pub(crate) const JOINED_FRAME: usize = 1100;

/// Capacity for lists that is kept from one flush to the next.
const KEPT_LISTS: usize = 4096;

/// Lists of frames published in this turn, and the list of each connection.
#[derive(Debug, Default)]
pub(crate) struct Fanout {
    /// The list of each connection, indexed by slot.
    of: Vec<ListIndex>,
    lists: Vec<List>,
    /// The longer list that was last needed, for each form of a frame: consecutive receivers of a
    /// publication usually need the same list.
    recent: [ListIndex; 3],
    joined: Vec<u8>,
    /// The list that `joined` holds.
    joined_of: ListIndex,
    /// The frames of a list as they go into queues: short ones that follow each other are joined.
    parts: Vec<Arc<[u8]>>,
    /// The list that `parts` holds.
    parts_of: ListIndex,
}

/// All frames of a parent list, and one more.
#[derive(Debug)]
struct List {
    parent: ListIndex,
    last: Arc<[u8]>,
    len: usize,
}

/// Cost of one more frame for one connection until the flush: at most the memory of a list that it
/// does not share, and usually only time, which the same budget bounds.
pub(crate) const COST: usize = 2 * size_of::<List>();

impl Fanout {
    /// Adds `frame` to the list of the connection in `slot`; returns false if that is enough for a
    /// queue.
    #[inline]
    pub(crate) fn add(&mut self, slot: usize, frame: &Arc<[u8]>, form: Form) -> bool {
        if self.of.len() <= slot {
            self.of.resize(slot + 1, 0);
        }
        let parent = self.of[slot];
        let recent = self.recent[form as usize];
        if recent != 0
            && let Some(list) = self.lists.get(recent as usize - 1)
            && list.parent == parent
            && Arc::ptr_eq(&list.last, frame)
        {
            self.of[slot] = recent;
            return true;
        }
        self.add_list(slot, parent, frame, form)
    }

    #[inline(never)]
    fn add_list(&mut self, slot: usize, parent: ListIndex, frame: &Arc<[u8]>, form: Form) -> bool {
        let before = self.list(parent).map_or(0, |list| list.len);
        let len = before + frame.len();
        if before > 0 && len > MAX_JOINED {
            return false;
        }
        self.lists.push(List { parent, last: Arc::clone(frame), len });
        self.of[slot] = self.lists.len() as ListIndex;
        self.recent[form as usize] = self.of[slot];
        true
    }

    /// Returns the bytes that the connection in `slot` will get.
    pub(crate) fn len(&self, slot: usize) -> usize {
        self.of.get(slot).and_then(|number| self.list(*number)).map_or(0, |list| list.len)
    }

    /// Returns these bytes, to be sent at once.
    #[inline]
    pub(crate) fn bytes(&mut self, slot: usize) -> &[u8] {
        let number = self.of[slot];
        match self.list(number) {
            None => &[],
            Some(List { parent: 0, .. }) => &self.lists[number as usize - 1].last,
            Some(_) => {
                if self.joined_of != number {
                    self.join(number);
                }
                &self.joined
            }
        }
    }

    /// Clears the list of the connection in `slot`, which was sent or dropped.
    #[inline]
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(number) = self.of.get_mut(slot) {
            *number = 0;
        }
    }

    /// Moves the list of the connection in `slot` into its queue; by reference, unless that costs
    /// more. Short frames of one turn are joined once for all receivers that have to wait, or a
    /// burst of them would be copied for each slow receiver.
    pub(crate) fn move_to(&mut self, slot: usize, queue: &mut Batch) {
        let number = self.of[slot];
        if self.parts_of != number {
            self.make_parts(number);
        }
        for part in &self.parts {
            if part.len() <= SMALL_FRAME {
                queue.append(|out| out.extend_from_slice(part));
            } else {
                queue.push(Segment::Shared(Arc::clone(part)));
            }
        }
        self.forget(slot);
    }

    /// Clears all lists, after every connection was flushed.
    pub(crate) fn clear(&mut self) {
        debug_assert!(
            self.of.iter().all(|number| *number == 0),
            "a connection waits for the flush"
        );
        self.lists.clear();
        self.lists.shrink_to(KEPT_LISTS);
        self.recent = [0; 3];
        self.joined.clear();
        self.joined.shrink_to(MAX_JOINED);
        self.joined_of = 0;
        self.parts.clear();
        self.parts_of = 0;
    }

    fn list(&self, number: ListIndex) -> Option<&List> {
        self.lists.get((number as usize).checked_sub(1)?)
    }

    /// Returns the frames of a list, oldest first.
    fn frames(&self, number: ListIndex) -> impl Iterator<Item = &Arc<[u8]>> {
        let mut lists = Vec::new();
        let mut next = self.list(number);
        while let Some(list) = next {
            lists.push(&list.last);
            next = self.list(list.parent);
        }
        lists.into_iter().rev()
    }

    #[inline(never)]
    fn make_parts(&mut self, number: ListIndex) {
        let mut parts = std::mem::take(&mut self.parts);
        parts.clear();
        let mut small = Vec::new();
        let end_run = |small: &mut Vec<&Arc<[u8]>>, parts: &mut Vec<Arc<[u8]>>| {
            match small[..] {
                [] => {}
                [only] => parts.push(Arc::clone(only)),
                _ => {
                    let joined: Vec<u8> =
                        small.iter().flat_map(|frame| frame.iter()).copied().collect();
                    parts.push(joined.into());
                }
            }
            small.clear();
        };
        for frame in self.frames(number) {
            if frame.len() > JOINED_FRAME {
                end_run(&mut small, &mut parts);
                parts.push(Arc::clone(frame));
            } else {
                small.push(frame);
            }
        }
        end_run(&mut small, &mut parts);
        self.parts = parts;
        self.parts_of = number;
    }

    #[inline(never)]
    fn join(&mut self, number: ListIndex) {
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        self.frames(number).for_each(|frame| joined.extend_from_slice(frame));
        self.joined = joined;
        self.joined_of = number;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(text: &str) -> Arc<[u8]> {
        Arc::from(text.as_bytes())
    }

    #[test]
    fn receivers_of_the_same_frames_share_a_list() {
        let (a, b, c) = (frame("aa"), frame("b"), frame("c"));
        let mut fanout = Fanout::default();
        for slot in [3, 0, 7] {
            assert!(fanout.add(slot, &a, Form::Plain));
        }
        for slot in [0, 7, 9] {
            assert!(fanout.add(slot, &b, Form::Plain));
        }
        // Streams of events between sessions do not disturb them.
        for slot in [0, 5, 7] {
            assert!(fanout.add(slot, &c, if slot == 5 { Form::Event } else { Form::Plain }));
        }
        assert_eq!(fanout.lists.len(), 5, "aa; aa b; b; aa b c; c");
        let expected = [(3, "aa"), (0, "aabc"), (7, "aabc"), (9, "b"), (5, "c"), (1, "")];
        for (slot, bytes) in expected {
            assert_eq!(fanout.bytes(slot), bytes.as_bytes(), "{slot}");
            assert_eq!(fanout.len(slot), bytes.len());
        }
        let mut queue = Batch::default();
        fanout.move_to(7, &mut queue);
        let mut moved = Vec::new();
        queue.copy_to(&[], &mut moved);
        assert_eq!((moved.as_slice(), fanout.len(7)), (&b"aabc"[..], 0));
        (0..10).for_each(|slot| fanout.forget(slot));
        fanout.forget(1000);
        fanout.clear();
        assert_eq!(Arc::strong_count(&b), 1, "it is copied, which costs less than a reference");
    }

    #[test]
    fn short_frames_are_joined_once_for_all_receivers_that_wait() {
        let mut fanout = Fanout::default();
        let small: Vec<_> = (0..20).map(|n| frame(&format!("number {n};"))).collect();
        let large = frame(&"x".repeat(JOINED_FRAME + 1));
        let slots = [1, 5, 6];
        for each in small.iter().chain([&large, &small[0]]) {
            for slot in slots {
                assert!(fanout.add(slot, each, Form::Plain));
            }
        }
        let mut queues = slots.map(|slot| {
            let mut queue = Batch::default();
            fanout.move_to(slot, &mut queue);
            queue
        });
        fanout.clear();
        assert_eq!(Arc::strong_count(&large), 1 + slots.len());
        let expected: Vec<u8> = small
            .iter()
            .chain([&large, &small[0]])
            .flat_map(|frame| frame.iter())
            .copied()
            .collect();
        for queue in &mut queues {
            let mut bytes = Vec::new();
            queue.copy_to(&[], &mut bytes);
            assert_eq!(bytes, expected);
        }
        let all: usize = queues.iter().map(Batch::memory).sum();
        let [one, ..] = queues;
        let alone = one.memory();
        assert!(all < alone + 1000, "{all} for three, {alone} for one");
    }

    #[test]
    fn one_frame_may_be_of_any_size_but_many_become_a_queue() {
        let large: Arc<[u8]> = Arc::from(vec![0; 2 * MAX_JOINED]);
        let mut fanout = Fanout::default();
        assert!(fanout.add(0, &large, Form::Plain));
        assert!(!fanout.add(0, &frame("more"), Form::Plain));
        assert_eq!(fanout.bytes(0).len(), large.len());
        let mut queue = Batch::default();
        fanout.move_to(0, &mut queue);
        fanout.clear();
        assert_eq!((queue.len(), Arc::strong_count(&large)), (large.len(), 1 + 1));
    }

    #[test]
    fn memory_of_many_lists_is_returned() {
        let mut fanout = Fanout::default();
        for slot in 0..2 * KEPT_LISTS {
            assert!(fanout.add(slot, &frame("its own"), Form::Plain));
        }
        assert!(fanout.lists.len() > KEPT_LISTS);
        (0..2 * KEPT_LISTS).for_each(|slot| fanout.forget(slot));
        fanout.clear();
        assert!(fanout.lists.capacity() <= KEPT_LISTS);
    }
}
