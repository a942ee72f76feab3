//! A connection to a backend that ends TLS itself.

use throng_proto::proxy_protocol::{self, Decoded};

use super::hello::id_of;
use super::plan::Conduct;
use crate::balance::frames;
use crate::balance::wire::{Over, Then, Wire};

/// A connection of a simulated backend.
pub(super) struct Conn {
    pub(super) backend_index: usize,
    pub(super) wire: Wire,
    pub(super) conduct: Conduct,
    skip_proxy: bool,
    /// Where in [`Wire::got`] its client's bytes begin.
    from: usize,
    echoed: usize,
    has_answered: bool,
    pub(super) faults: Vec<String>,
}

impl Conn {
    pub(super) fn new(
        backend_index: usize,
        wire: Wire,
        conduct: Conduct,
        skip_proxy: bool,
    ) -> Self {
        let (from, echoed, has_answered, faults) = (0, 0, false, Vec::new());
        Self { backend_index, wire, conduct, skip_proxy, from, echoed, has_answered, faults }
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        self.wire.next_at()
    }

    /// Bytes of its client that came.
    pub(super) fn received(&self) -> &[u8] {
        if self.skip_proxy { &[] } else { &self.wire.got[self.from..] }
    }

    /// Bytes that were written.
    pub(super) fn said(&self) -> &[u8] {
        &self.wire.log[..self.wire.written]
    }

    /// The number of its client, once it is known.
    pub(super) fn client(&self) -> Option<u32> {
        id_of(self.received())
    }

    /// Returns whether its stream has ended as it should.
    pub(super) fn has_finished(&self) -> bool {
        self.wire.finish_sent || self.wire.gone
    }

    pub(super) fn step(&mut self) {
        self.wire.step();
        if self.wire.gone {
            return;
        }
        match self.conduct {
            Conduct::CloseAtOnce => return self.wire.leave(false),
            Conduct::ResetAfter(bytes) if self.wire.got.len() >= bytes => {
                return self.wire.leave(true);
            }
            _ => {}
        }
        if self.skip_proxy {
            match proxy_protocol::decode(&self.wire.got) {
                Ok(Decoded::Header(header)) if header.addresses.is_some() => {
                    (self.from, self.skip_proxy) = (header.len, false);
                }
                Ok(Decoded::Needs(_)) => {}
                other => {
                    self.faults.push(format!("a PROXY header was due, and came: {other:?}"));
                    return self.wire.leave(true);
                }
            }
        }
        if let Some(id) = self.client() {
            self.answer(id);
        }
        if self.wire.over == Some(Over::Finished) {
            self.wire.then(Then::Close);
        }
        self.wire.write();
    }

    fn answer(&mut self, id: u32) {
        if self.conduct == Conduct::Echo {
            let fresh = self.received()[self.echoed..].to_vec();
            self.echoed += fresh.len();
            return self.wire.put(&fresh);
        }
        if std::mem::replace(&mut self.has_answered, true) {
            return;
        }
        match self.conduct {
            Conduct::Answer(len) => self.wire.put(&frames::body(id ^ 0x55, len)),
            Conduct::EndFirst(len) => {
                self.wire.put(&frames::body(id ^ 0x55, len));
                self.wire.then(Then::Finish);
            }
            Conduct::AnswerAndReset(len) => {
                self.wire.put(&frames::body(id ^ 0x55, len));
                self.wire.then(Then::Reset);
            }
            Conduct::Echo | Conduct::Mute | Conduct::CloseAtOnce | Conduct::ResetAfter(_) => {}
        }
    }
}
