//! A client whose connection should be passed through.

use super::conduct::{Beginning, HelloPlan};
use super::hello::{OVERSIZED, hello};
use crate::balance::frames;
use crate::balance::wire::{Over, Then, Wire};
use crate::rng::Rng;

/// A request without TLS.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n";

/// The client's side of a passed-through connection.
pub(in crate::balance) struct PassedClient {
    id: u32,
    pub(super) plan: HelloPlan,
    rng: Rng,
    /// The length of the ClientHello; `None` if no whole ClientHello is ever sent.
    hello: Option<usize>,
}

impl PassedClient {
    pub(in crate::balance) fn new(id: u32, plan: HelloPlan, rng: Rng) -> Self {
        Self { id, plan, rng, hello: None }
    }

    /// Returns whether its whole ClientHello was written.
    pub(super) fn said_hello(&self, wire: &Wire) -> bool {
        self.hello.is_some_and(|len| wire.said().len() >= len)
    }

    /// Starts it on its link.
    pub(in crate::balance) fn begin(&mut self, wire: &mut Wire) {
        let HelloPlan { beginning, name, padding, record, surplus, then } = self.plan;
        let hello = hello(&mut self.rng, self.id, name, padding, record);
        match beginning {
            Beginning::Hello => {
                self.hello = Some(hello.len());
                wire.put(&hello);
                wire.put(&frames::body(self.id, surplus));
                wire.then(then);
            }
            Beginning::Part(of) => wire.put(&hello[..hello.len() * of / 1000]),
            Beginning::Oversized => wire.put(&OVERSIZED),
            Beginning::Plain => wire.put(REQUEST),
        }
    }

    /// Acts after a read.
    pub(in crate::balance) fn step(&mut self, wire: &mut Wire) {
        if wire.over == Some(Over::Finished) {
            // Writes the rest first, unless the peer accepts no more.
            match self.hello {
                Some(_) => wire.then(Then::Close),
                None => wire.leave(false),
            }
        }
    }
}
