//! A client whose connection is to be passed through.

use super::hello::{OVERSIZED, hello};
use super::plan::{Beginning, ClientPlan};
use crate::balance::frames;
use crate::balance::wire::{Over, Then, Wire};
use crate::rng::Rng;

/// A request without TLS.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n";

/// A simulated client whose connection is passed through.
pub(super) struct Client {
    pub(super) plan: ClientPlan,
    /// `None` before it comes, or if the port was closed.
    pub(super) wire: Option<Wire>,
    pub(super) came: bool,
    rng: Rng,
    /// The length of its ClientHello; `None`: none ever comes whole.
    pub(super) hello: Option<usize>,
}

impl Client {
    pub(super) fn new(plan: ClientPlan, rng: Rng) -> Self {
        Self { plan, wire: None, came: false, rng, hello: None }
    }

    pub(super) fn is_gone(&self) -> bool {
        self.came && self.wire.as_ref().is_none_or(|wire| wire.gone)
    }

    pub(super) fn next_at(&self) -> Option<u64> {
        match &self.wire {
            None if self.came => None,
            None => Some(self.plan.at),
            Some(wire) => wire.next_at(),
        }
    }

    /// Bytes that were written.
    pub(super) fn said(&self) -> &[u8] {
        self.wire.as_ref().map_or(&[], |wire| &wire.log[..wire.written])
    }

    /// Bytes that came.
    pub(super) fn received(&self) -> &[u8] {
        self.wire.as_ref().map_or(&[], |wire| &wire.got)
    }

    /// Returns whether its whole ClientHello was written.
    pub(super) fn said_hello(&self) -> bool {
        self.hello.is_some_and(|len| self.said().len() >= len)
    }

    /// Starts it on its link.
    pub(super) fn begin(&mut self, mut wire: Wire) {
        let ClientPlan { id, name, padding, record, surplus, then, .. } = self.plan;
        let hello = hello(&mut self.rng, id, name, padding, record);
        match self.plan.beginning {
            Beginning::Hello => {
                self.hello = Some(hello.len());
                wire.put(&hello);
                wire.put(&frames::body(id, surplus));
            }
            Beginning::Part(of) => wire.put(&hello[..hello.len() * of / 1000]),
            Beginning::Oversized => wire.put(&OVERSIZED),
            Beginning::Plain => wire.put(REQUEST),
        }
        if self.plan.beginning == Beginning::Hello {
            wire.then(then);
        }
        self.wire = Some(wire);
    }

    pub(super) fn step(&mut self) {
        let Some(wire) = &mut self.wire else { return };
        wire.step();
        if wire.over == Some(Over::Finished) {
            // What is left is written first, unless the peer takes no more.
            match self.hello {
                Some(_) => wire.then(Then::Close),
                None => wire.leave(false),
            }
        }
        wire.write();
    }
}
