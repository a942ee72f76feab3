//! What becomes of each connection, by its id: a session, a stream, or neither, which is told by `on_gone`, once.

use std::collections::BTreeMap;

use throng_io::ConnId;

#[derive(Clone, Copy, Debug, Default)]
struct Fate {
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
pub struct Visitors {
    fates: BTreeMap<u64, Fate>,
}

impl Visitors {
    fn fate(&mut self, id: ConnId) -> &mut Fate {
        self.fates.entry(id.to_bits()).or_default()
    }

    /// It becomes a session, or a stream.
    pub fn upgrade(&mut self, id: ConnId) {
        self.fate(id).upgraded = true;
    }

    /// It is turned away; for want of room, only who has not come in yet can be.
    pub fn turn_away(&mut self, id: ConnId, for_want_of_room: bool) {
        let fate = self.fate(id);
        fate.turned_away = true;
        fate.refused |= for_want_of_room;
    }

    /// `on_gone` came.
    ///
    /// # Errors
    /// It should not have.
    pub fn go(&mut self, id: ConnId) -> Result<(), String> {
        let fate = self.fate(id);
        let before = *fate;
        fate.gone = true;
        match before.gone || before.upgraded || before.refused {
            true => Err(format!("on_gone of {id:?}: {before:?}")),
            false => Ok(()),
        }
    }

    /// The driver told its end.
    pub fn end(&mut self, id: ConnId) {
        self.fate(id).ended = true;
    }

    /// At the end of all.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let lost = |fate: &Fate| fate.ended && !(fate.upgraded || fate.turned_away || fate.gone);
        let lost = self.fates.iter().filter(|(_, fate)| lost(fate));
        lost.map(|(id, _)| format!("on_gone of {:?} is missing", ConnId::from_bits(*id))).collect()
    }
}
