//! Checks the outcome of each connection: a session, a stream, or neither, which `on_gone` must
//! report once.

use std::collections::BTreeMap;

use throng_io::ConnId;

#[derive(Clone, Copy, Debug, Default)]
struct LifecycleOutcome {
    upgraded: bool,
    /// Whether the connection was refused with an answer that states the reason, on acceptance or
    /// later.
    turned_away: bool,
    /// Whether the connection was certainly refused on acceptance.
    refused: bool,
    gone: bool,
    ended: bool,
}

/// The outcome of each connection, by its id.
#[derive(Debug, Default)]
pub struct LifecycleCheck {
    outcomes: BTreeMap<u64, LifecycleOutcome>,
}

impl LifecycleCheck {
    fn outcome(&mut self, id: ConnId) -> &mut LifecycleOutcome {
        self.outcomes.entry(id.to_bits()).or_default()
    }

    /// Records that the connection becomes a session or a stream.
    pub fn upgrade(&mut self, id: ConnId) {
        self.outcome(id).upgraded = true;
    }

    /// Records that the connection is refused. A refusal for lack of capacity is only possible
    /// before admission.
    pub fn turn_away(&mut self, id: ConnId, for_want_of_room: bool) {
        let outcome = self.outcome(id);
        outcome.turned_away = true;
        outcome.refused |= for_want_of_room;
    }

    /// Records a call of `on_gone`.
    ///
    /// # Errors
    /// The call was not allowed.
    pub fn go(&mut self, id: ConnId) -> Result<(), String> {
        let outcome = self.outcome(id);
        let before = *outcome;
        outcome.gone = true;
        match before.gone || before.upgraded || before.refused {
            true => Err(format!("on_gone of {id:?}: {before:?}")),
            false => Ok(()),
        }
    }

    /// Records that the driver has reported the end of the connection.
    pub fn end(&mut self, id: ConnId) {
        self.outcome(id).ended = true;
    }

    /// Returns the faults at the end of a run.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let lost = |outcome: &LifecycleOutcome| {
            outcome.ended && !(outcome.upgraded || outcome.turned_away || outcome.gone)
        };
        let lost = self.outcomes.iter().filter(|(_, outcome)| lost(outcome));
        lost.map(|(id, _)| format!("on_gone of {:?} is missing", ConnId::from_bits(*id))).collect()
    }
}
