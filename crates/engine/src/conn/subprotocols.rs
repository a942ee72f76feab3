//! Subprotocol of each connection: a byte a connection, and only once one was agreed on.

/// Subprotocols of the connections of a shard.
#[derive(Debug, Default)]
pub(crate) struct Subprotocols {
    names: Vec<Box<str>>,
    /// Indexed by slot: the number of the name, counted from 1; 0 = none.
    of: Vec<u8>,
}

impl Subprotocols {
    /// Returns the subprotocol of the connection in `slot`.
    pub(crate) fn of(&self, slot: usize) -> Option<&str> {
        let number = usize::from(*self.of.get(slot)?);
        self.names.get(number.checked_sub(1)?).map(|name| &**name)
    }

    /// Records the subprotocol of a connection. The names come from the server's routes, so there
    /// are few; beyond 255 none is recorded.
    pub(crate) fn set(&mut self, slot: usize, name: &str) {
        let known = self.names.iter().position(|other| **other == *name);
        let at = known.unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        });
        if self.of.len() <= slot {
            self.of.resize(slot + 1, 0);
        }
        self.of[slot] = u8::try_from(at + 1).unwrap_or(0);
    }

    /// Clears the slot, which has a new owner.
    pub(crate) fn forget(&mut self, slot: usize) {
        if let Some(number) = self.of.get_mut(slot) {
            *number = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_has_its_own_until_it_is_forgotten() {
        let mut subprotocols = Subprotocols::default();
        subprotocols.set(7, "mqtt");
        subprotocols.set(2, "json");
        subprotocols.set(3, "mqtt");
        subprotocols.forget(7);
        subprotocols.forget(1000);
        let spoken: Vec<_> = (0..9).filter_map(|slot| subprotocols.of(slot)).collect();
        assert_eq!(spoken, ["json", "mqtt"]);
        assert_eq!(subprotocols.names.len(), 2);
    }
}
