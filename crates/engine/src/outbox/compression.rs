//! permessage-deflate for a shard's connections: their agreements, and the one codec they share.
//!
//! A connection that negotiated compression costs two bytes in a table by slot; a connection that
//! keeps a context also costs a box after its first compressed message.

use std::ops::Range;
use std::sync::Arc;

use throng_proto::ws::deflate::{Agreed, Deflater, History, Policy};

use crate::outbox::borrowed::addresses;
use crate::outbox::frame::Frame;
use crate::stats::Stats;

/// Compression state of a shard.
#[derive(Debug, Default)]
pub(crate) struct Compression {
    /// All agreements made so far; few.
    agreements: Vec<Agreement>,
    /// Indexed by slot: the number of its agreement, counted from 1; 0 = none.
    of: Vec<u16>,
    /// Indexed by slot; as long as the highest slot that keeps a context.
    histories: Vec<Option<Box<Histories>>>,
    /// Indexed by policy: they differ in effort.
    deflaters: Vec<(Policy, Deflater)>,
    /// The compressed form of the last message.
    out: Vec<u8>,
    /// Address of the message whose callback runs, if it came in a form that can be relayed; else
    /// empty.
    relayed: Range<usize>,
    /// The form that can be relayed.
    relay: Vec<u8>,
    /// Work of the codec since the bytes at hand came, see [`Compression::has_worked_enough`].
    work: usize,
    /// Work of the codec for all input of this phase of the turn.
    phase_work: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Agreement {
    policy: Policy,
    agreed: Agreed,
}

/// Both directions' contexts of one connection, as far as they are kept and in use.
#[derive(Debug, Default)]
struct Histories {
    ours: Option<History>,
    peers: Option<History>,
}

/// Maximum bytes that the codec processes for one connection's input before other connections have
/// their turn, and for all input that came in a turn: a millisecond or two. A receive buffer of
/// tiny messages, or of bombs that stay within the limit, would otherwise take seconds. One message
/// may exceed it.
const WORK_BUDGET: usize = 1 << 20;

/// Cost of a message beside its bytes and its context, in bytes: about a microsecond.
const WORK_PER_MESSAGE: usize = 512;

/// Compressed messages up to this size leave their memory for the next.
const MAX_OUT_KEPT: usize = 1 << 20;

impl Compression {
    /// Records the agreement of the connection in `slot`. Returns false if there are too many
    /// agreements to distinguish.
    pub(crate) fn set(&mut self, slot: usize, policy: Policy, agreed: Agreed) -> bool {
        let agreement = Agreement { policy, agreed };
        let known = self.agreements.iter().position(|other| *other == agreement);
        let at = known.unwrap_or_else(|| {
            self.agreements.push(agreement);
            self.agreements.len() - 1
        });
        let Ok(number) = u16::try_from(at + 1) else { return false };
        if self.of.len() <= slot {
            self.of.resize(slot + 1, 0);
        }
        self.of[slot] = number;
        true
    }

    /// Frees memory of the codec, but not what connections keep from one message to the next.
    pub(crate) fn shed_memory(&mut self) {
        (self.out, self.relay, self.relayed) = (Vec::new(), Vec::new(), 0..0);
        self.deflaters = Vec::new();
    }

    /// Clears the slot, which has a new owner, or none.
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(number) = self.of.get_mut(slot) {
            *number = 0;
        }
        if let Some(histories) = self.histories.get_mut(slot) {
            *histories = None;
        }
    }

    /// Compresses a message for the connection in `slot`, to be sent now; `None`: it must be sent
    /// uncompressed.
    pub(crate) fn deflate(
        &mut self,
        slot: usize,
        payload: &[u8],
        stats: &mut Stats,
    ) -> Option<&[u8]> {
        let Agreement { policy, agreed } = self.agreement(slot)?;
        if !policy.compresses(payload.len(), &agreed) {
            return None;
        }
        self.out.clear();
        self.out.shrink_to(MAX_OUT_KEPT);
        if self.relays(&agreed, payload) {
            // An echo, or a message passed on: its sender has done the work.
            self.out.extend_from_slice(&self.relay);
            return Some(&self.out);
        }
        let histories = self.histories.get(slot).and_then(Option::as_deref);
        let history = histories.and_then(|histories| histories.ours.as_ref());
        let work = payload.len() + history.map_or(0, History::len);
        self.record_work(work);
        let histories = self.histories.get(slot).and_then(Option::as_deref);
        let history = histories.and_then(|histories| histories.ours.as_ref());
        let deflater = deflater(&mut self.deflaters, &policy);
        if !deflater.deflate(payload, agreed.our_window_bits, history, &mut self.out) {
            self.out.shrink_to(MAX_OUT_KEPT);
            stats.deflate_kept_bytes += payload.len() as u64;
            return None;
        }
        record_deflated(stats, payload.len(), self.out.len());
        if let Some(bits) = agreed.our_history_bits {
            let history = self.histories(slot).ours.get_or_insert_with(|| History::new(bits));
            history.append(payload);
        }
        Some(&self.out)
    }

    /// Returns whether a message is at hand in a form that the connection in `slot` can be sent.
    pub(crate) fn can_relay(&self, slot: usize, payload: &[u8]) -> bool {
        self.agreement(slot).is_some_and(|Agreement { policy, agreed }| {
            policy.compresses(payload.len(), &agreed) && self.relays(&agreed, payload)
        })
    }

    fn relays(&self, agreed: &Agreed, payload: &[u8]) -> bool {
        agreed.our_history_bits.is_none()
            && addresses(payload) == self.relayed
            && Deflater::shared_window_bits(agreed.our_window_bits, payload.len()) == 15
    }

    /// Sets the relayable form of the message at hand: it lies in `plaintext` while its callback
    /// runs, came as `deflated`, and can be sent so wherever no context is kept.
    pub(crate) fn set_relay(&mut self, plaintext: &[u8], deflated: &[u8]) {
        self.relayed = addresses(plaintext);
        self.relay.clear();
        self.relay.shrink_to(MAX_OUT_KEPT);
        self.relay.extend_from_slice(deflated);
    }

    /// Ends relaying after the callback has returned: other messages may be at that address.
    #[inline]
    pub(crate) fn end_relay(&mut self) {
        self.relayed = 0..0;
    }

    /// Charges other work on `len` bytes of messages.
    pub(crate) fn record_work(&mut self, len: usize) {
        self.work += WORK_PER_MESSAGE + len;
        self.phase_work += WORK_PER_MESSAGE + len;
    }

    /// Starts counting work for the input of one connection, for which others may have to wait.
    #[inline]
    pub(crate) fn begin_work(&mut self) {
        self.work = 0;
    }

    /// Returns whether the rest of the input must wait until other connections had their turn.
    #[inline]
    pub(crate) fn has_worked_enough(&self) -> bool {
        self.work > WORK_BUDGET
    }

    /// Begins a phase of a turn: the events that came in it, or the input held from earlier turns.
    /// Held input has a separate budget, so that new input cannot delay it forever.
    pub(crate) fn begin_phase(&mut self) {
        self.phase_work = 0;
    }

    /// Returns whether compressed input must wait because the input of other connections has used
    /// this phase's time.
    pub(crate) fn is_phase_spent(&self) -> bool {
        self.phase_work > WORK_BUDGET
    }

    /// Counts a message of `len` bytes that was decompressed, with `context` bytes of context.
    pub(crate) fn record_inflated(&mut self, len: usize, context: usize) {
        self.record_work(len + context);
    }

    /// Takes the last result of [`Compression::deflate`], to be [put back](Compression::put_back).
    pub(crate) fn take_deflated(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Keeps the memory for the next message, unless it is much: the next may be a long time away.
    pub(crate) fn put_back(&mut self, out: Vec<u8>) {
        if out.capacity() <= MAX_OUT_KEPT {
            self.out = out;
        }
    }

    /// Returns the form of a frame for the connection in `slot`, created once for all that have the
    /// same window; `None`: it must be sent uncompressed. [`Compression::record_sent`] follows if
    /// it is sent.
    pub(crate) fn frame<'f>(
        &mut self,
        slot: usize,
        frame: &'f Frame,
        stats: &mut Stats,
    ) -> Option<&'f Arc<[u8]>> {
        let Agreement { policy, agreed } = self.agreement(slot)?;
        let len = frame.payload().len();
        if frame.is_incompressible() || !policy.compresses(len, &agreed) {
            return None;
        }
        let bits = Deflater::shared_window_bits(agreed.our_window_bits, len);
        let Self { deflaters, work, .. } = self;
        frame.deflated(bits, |payload, out| {
            *work += WORK_PER_MESSAGE + payload.len();
            let shrank = deflater(deflaters, &policy).deflate(payload, bits, None, out);
            match shrank {
                true => record_deflated(stats, payload.len(), out.len()),
                false => stats.deflate_kept_bytes += payload.len() as u64,
            }
            shrank
        })
    }

    /// Records that the compressed form of `frame` goes to the connection in `slot`: where a
    /// context is kept, later messages may refer to it, and the receiver's context has it.
    #[inline]
    pub(crate) fn record_sent(&mut self, slot: usize, frame: &Frame) {
        let Some(Agreement { agreed, .. }) = self.agreement(slot) else { return };
        if let Some(bits) = agreed.our_history_bits {
            let history = self.histories(slot).ours.get_or_insert_with(|| History::new(bits));
            history.append_shared(frame.shared(), frame.payload_range());
        }
    }

    /// Returns the history that the peer in `slot` may refer to, where it keeps a context.
    pub(crate) fn peers_history(&mut self, slot: usize) -> Option<&mut History> {
        let bits = self.agreement(slot)?.agreed.peer_history_bits?;
        Some(self.histories(slot).peers.get_or_insert_with(|| History::new(bits)))
    }

    /// Returns the slots of connections that keep a context.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        let kept = self.histories.iter().enumerate().filter(|(_, histories)| histories.is_some());
        kept.map(|(slot, _)| slot as u32)
    }

    /// Returns the memory of the contexts that the connection in `slot` keeps.
    pub(crate) fn memory(&self, slot: usize) -> usize {
        let Some(Some(histories)) = self.histories.get(slot) else { return 0 };
        let kept = [&histories.ours, &histories.peers].into_iter().flatten();
        kept.map(History::memory).sum()
    }

    fn agreement(&self, slot: usize) -> Option<Agreement> {
        let number = usize::from(*self.of.get(slot)?);
        self.agreements.get(number.checked_sub(1)?).copied()
    }

    fn histories(&mut self, slot: usize) -> &mut Histories {
        if self.histories.len() <= slot {
            self.histories.resize_with(slot + 1, || None);
        }
        self.histories[slot].get_or_insert_default()
    }
}

fn deflater<'d>(deflaters: &'d mut Vec<(Policy, Deflater)>, policy: &Policy) -> &'d mut Deflater {
    let known = deflaters.iter().position(|(other, _)| other == policy);
    let at = known.unwrap_or_else(|| {
        deflaters.push((*policy, Deflater::new(policy)));
        deflaters.len() - 1
    });
    &mut deflaters[at].1
}

fn record_deflated(stats: &mut Stats, before: usize, after: usize) {
    stats.deflate_input_bytes += before as u64;
    stats.deflate_output_bytes += after as u64;
}
