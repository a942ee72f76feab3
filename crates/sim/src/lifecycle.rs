//! What becomes of each connection, by its id: a session, a stream, or neither, which is told by `on_gone`, once.

use std::collections::BTreeMap;

use throng_io::ConnId;

#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    upgraded: bool,
    /// It was told why it is turned away, at the door or later.
    turned_away: bool,
    /// That was certainly at the door.
    refused: bool,
    gone: bool,
    ended: bool,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct LifecycleCheck {
    outcomes: BTreeMap<u64, Outcome>,
}

impl LifecycleCheck {
    fn outcome(&mut self, id: ConnId) -> &mut Outcome {
        self.outcomes.entry(id.to_bits()).or_default()
    }

    /// It becomes a session, or a stream.
    pub fn upgrade(&mut self, id: ConnId) {
        self.outcome(id).upgraded = true;
    }

    /// It is turned away; for want of room, only who has not come in yet can be.
    pub fn turn_away(&mut self, id: ConnId, for_want_of_room: bool) {
        let outcome = self.outcome(id);
        outcome.turned_away = true;
        outcome.refused |= for_want_of_room;
    }

    /// `on_gone` came.
    ///
    /// # Errors
    /// It should not have.
    pub fn go(&mut self, id: ConnId) -> Result<(), String> {
        let outcome = self.outcome(id);
        let before = *outcome;
        outcome.gone = true;
        match before.gone || before.upgraded || before.refused {
            true => Err(format!("on_gone of {id:?}: {before:?}")),
            false => Ok(()),
        }
    }

    /// The driver told its end.
    pub fn end(&mut self, id: ConnId) {
        self.outcome(id).ended = true;
    }

    /// At the end of all.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let lost = |outcome: &Outcome| {
            outcome.ended && !(outcome.upgraded || outcome.turned_away || outcome.gone)
        };
        let lost = self.outcomes.iter().filter(|(_, outcome)| lost(outcome));
        lost.map(|(id, _)| format!("on_gone of {:?} is missing", ConnId::from_bits(*id))).collect()
    }
}
