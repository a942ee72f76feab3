//! A peer's end of a link: the data that it writes, how its writes are cut, and the data that it
//! has read.

use crate::net::{LinkId, Readable, SharedNet, Side};
use crate::rng::Rng;

/// End of the other side's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Finished,
    Reset,
}

/// The action after all data has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    Stay,
    /// End our stream and read on.
    Finish,
    Close,
    Reset,
}

/// Speed and end of a peer's writes and reads.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerBehaviour {
    /// Maximum bytes of a write (0: no cut).
    pub(super) cut: usize,
    /// Maximum pause between two writes, in nanoseconds.
    pub(super) rest: u64,
    /// After so many bytes read, read nothing for so long.
    pub(super) nap: Option<(usize, u64)>,
    /// After this many written bytes the peer disappears, with a reset or without.
    pub(super) vanish: Option<(usize, bool)>,
}

/// One end of a connection, with the bytes that it writes and has read.
pub(super) struct Wire {
    net: SharedNet,
    pub(super) link: LinkId,
    side: Side,
    /// All data to write; the first `written` bytes have been written.
    pub(super) log: Vec<u8>,
    pub(super) written: usize,
    /// All data that was read.
    pub(super) got: Vec<u8>,
    /// Rules that the other side has broken.
    pub(super) faults: Vec<String>,
    behaviour: PeerBehaviour,
    write_at: u64,
    read_at: u64,
    then: Then,
    pub(super) finish_sent: bool,
    pub(super) over: Option<Over>,
    /// Whether this side has left, and does nothing more.
    pub(super) gone: bool,
    /// Whether this side left before the planned end.
    pub(super) vanished: bool,
    /// When this side's stream ended, and when the other side's stream did.
    pub(super) ended_at: u64,
    rng: Rng,
}

impl Wire {
    pub(super) fn new(
        net: &SharedNet,
        link: LinkId,
        side: Side,
        behaviour: PeerBehaviour,
        rng: Rng,
    ) -> Self {
        Self {
            net: SharedNet::clone(net),
            link,
            side,
            log: Vec::new(),
            written: 0,
            got: Vec::new(),
            faults: Vec::new(),
            behaviour,
            write_at: 0,
            read_at: 0,
            then: Then::Stay,
            finish_sent: false,
            over: None,
            gone: false,
            vanished: false,
            ended_at: 0,
            rng,
        }
    }

    /// Returns the bytes that were written.
    pub(super) fn said(&self) -> &[u8] {
        &self.log[..self.written]
    }

    pub(super) fn put(&mut self, bytes: &[u8]) {
        if self.then == Then::Stay && !self.gone {
            self.log.extend_from_slice(bytes);
        }
    }

    /// Sets the action after everything is written. An earlier action stays, except that a finish
    /// may become a close.
    pub(super) fn then(&mut self, then: Then) {
        if matches!(self.then, Then::Stay | Then::Finish) {
            self.then = then;
        }
    }

    /// Leaves at once, even with unwritten data.
    pub(super) fn leave(&mut self, reset: bool) {
        if std::mem::replace(&mut self.gone, true) {
            return;
        }
        let mut net = self.net.borrow_mut();
        self.ended_at = net.now();
        match reset {
            true => net.reset(self.link, self.side),
            false => net.close(self.link, self.side),
        }
    }

    /// The network has cut it.
    pub(super) fn was_cut(&self) -> bool {
        self.net.borrow().was_cut(self.link)
    }

    /// Returns whether the other end still has its socket.
    pub(super) fn is_wanted(&self) -> bool {
        !self.net.borrow().is_gone(self.link, self.side.other())
    }

    /// Returns whether all data has been written.
    pub(super) fn is_flushed(&self) -> bool {
        self.written == self.log.len()
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        if self.gone {
            return None;
        }
        let mut net = self.net.borrow_mut();
        let now = net.now();
        let mut next: Option<u64> = net.next_change(self.link, self.side);
        let mut note = |at: u64| next = Some(next.map_or(at, |known| known.min(at)).max(now));
        if !self.is_flushed() && net.space(self.link, self.side) > 0 {
            note(self.write_at);
        }
        if self.behaviour.vanish.is_some_and(|(at, _)| at <= self.written) {
            note(now);
        }
        let is_done = self.then == Then::Stay || (self.then == Then::Finish && self.finish_sent);
        if self.is_flushed() && !is_done {
            note(now);
        }
        match net.readable(self.link, self.side) {
            Readable::Reset => note(now),
            Readable::Bytes(_) => note(self.read_at),
            Readable::Finished if self.over.is_none() => note(self.read_at),
            _ => {}
        }
        next
    }

    /// Writes and reads as much as possible.
    pub(super) fn step(&mut self) {
        self.write();
        if !self.gone {
            self.read();
        }
    }

    /// Writes as much as possible, and leaves if this is planned.
    pub(super) fn write(&mut self) {
        if self.gone {
            return;
        }
        let shared = SharedNet::clone(&self.net);
        let now = shared.borrow().now();
        if shared.borrow().knows_reset(self.link, self.side) {
            self.over = Some(Over::Reset);
            return self.leave(false);
        }
        while !self.is_flushed() && self.write_at <= now {
            let space = shared.borrow().space(self.link, self.side);
            let mut n = space.min(self.log.len() - self.written);
            if self.behaviour.cut > 0 {
                n = n.min(1 + self.rng.below(self.behaviour.cut));
            }
            if let Some((at, _)) = self.behaviour.vanish {
                n = n.min(at.saturating_sub(self.written));
            }
            if n == 0 {
                break;
            }
            let piece = &self.log[self.written..self.written + n];
            shared.borrow_mut().write(self.link, self.side, piece);
            self.written += n;
            if self.behaviour.cut > 0 && self.behaviour.rest > 0 {
                self.write_at = now + self.rng.between(0, self.behaviour.rest);
            }
        }
        if let Some((_, reset)) = self.behaviour.vanish.filter(|(at, _)| *at <= self.written) {
            self.vanished = true;
            return self.leave(reset);
        }
        if self.is_flushed() {
            match self.then {
                Then::Stay => {}
                Then::Finish if self.finish_sent => {}
                Then::Finish => {
                    self.finish_sent = true;
                    shared.borrow_mut().finish(self.link, self.side);
                }
                Then::Close => self.leave(false),
                Then::Reset => self.leave(true),
            }
        }
    }

    fn read(&mut self) {
        let shared = SharedNet::clone(&self.net);
        let now = shared.borrow().now();
        if self.read_at > now {
            return;
        }
        let readable = shared.borrow_mut().readable(self.link, self.side);
        match readable {
            Readable::Bytes(mut n) => {
                if let Some((after, nap)) = self.behaviour.nap
                    && self.got.len() + n >= after
                {
                    n = after.saturating_sub(self.got.len());
                    self.read_at = now + nap;
                    self.behaviour.nap = None;
                }
                shared.borrow_mut().read(self.link, self.side, n, &mut self.got);
            }
            Readable::Finished if self.over.is_none() => {
                self.over = Some(Over::Finished);
                self.ended_at = now;
            }
            // The end of a link that did not end its session.
            Readable::Reset => {
                self.over = Some(Over::Reset);
                self.leave(false);
            }
            _ => {}
        }
    }
}
