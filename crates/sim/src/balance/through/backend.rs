//! A connection to a backend that ends TLS itself.

use super::conduct::Conduct;
use super::hello::id_of;
use crate::balance::frames;
use crate::balance::wire::{Over, Then, Wire};

/// The backend's side of a passed-through connection.
pub(in crate::balance) struct PassedBackend {
    conduct: Conduct,
    echoed: usize,
    has_answered: bool,
}

impl PassedBackend {
    pub(in crate::balance) fn new(conduct: Conduct) -> Self {
        Self { conduct, echoed: 0, has_answered: false }
    }

    /// Acts after a read. The client's bytes begin at `from`.
    pub(in crate::balance) fn step(&mut self, wire: &mut Wire, from: Option<usize>) {
        match self.conduct {
            Conduct::CloseAtOnce => return wire.leave(false),
            Conduct::ResetAfter(bytes) if wire.got.len() >= bytes => return wire.leave(true),
            _ => {}
        }
        if let Some(from) = from
            && let Some(id) = id_of(&wire.got[from..])
        {
            self.answer(wire, from, id);
        }
        if wire.over == Some(Over::Finished) {
            wire.then(Then::Close);
        }
    }

    fn answer(&mut self, wire: &mut Wire, from: usize, id: u32) {
        if self.conduct == Conduct::Echo {
            let fresh = wire.got[from + self.echoed..].to_vec();
            self.echoed += fresh.len();
            return wire.put(&fresh);
        }
        if std::mem::replace(&mut self.has_answered, true) {
            return;
        }
        match self.conduct {
            Conduct::Answer(len) => wire.put(&frames::body(id ^ 0x55, len)),
            Conduct::EndFirst(len) => {
                wire.put(&frames::body(id ^ 0x55, len));
                wire.then(Then::Finish);
            }
            Conduct::AnswerAndReset(len) => {
                wire.put(&frames::body(id ^ 0x55, len));
                wire.then(Then::Reset);
            }
            Conduct::Echo | Conduct::Mute | Conduct::CloseAtOnce | Conduct::ResetAfter(_) => {}
        }
    }
}
