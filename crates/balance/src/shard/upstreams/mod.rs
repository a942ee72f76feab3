//! Idle connections to backends.

use std::collections::HashMap;

use throng_io::ConnId;

use super::actions::{ActionQueue, ConnAction};
use super::records::{BalanceRecords, Owner};
use crate::backend::Backend;

/// An idle connection. A connection that carried a body serves only its own client: some servers
/// answer without reading the body and take it for the next request. The response to that would
/// reach another client.
#[derive(Clone, Copy, Debug)]
struct Idle {
    id: ConnId,
    owner: Option<Owner>,
}

/// Idle connections by the backend's id. The most recently used comes first: it is the least likely
/// to be closed soon.
#[derive(Debug, Default)]
pub(super) struct IdlePool {
    idle: HashMap<u64, Vec<Idle>>,
    /// The number of all idle connections, which every turn needs.
    len: usize,
    /// For each client, the backends of the connections that serve only this client.
    owned: HashMap<ConnId, Vec<u64>>,
}

impl IdlePool {
    /// Keeps a connection. If there are `most` already, returns one to close: the oldest that
    /// serves only one client, or else `id`.
    pub(super) fn put(
        &mut self,
        backend: u64,
        id: ConnId,
        owner: Option<Owner>,
        most: usize,
    ) -> Option<ConnId> {
        let idle = self.idle.entry(backend).or_default();
        let mut surplus = None;
        if idle.len() >= most {
            let Some(oldest) = idle.iter().position(|idle| idle.owner.is_some()) else {
                return Some(id);
            };
            let removed = idle.remove(oldest);
            surplus = Some(removed.id);
            self.len -= 1;
            disown(&mut self.owned, backend, removed.owner);
        }
        idle.push(Idle { id, owner });
        self.len += 1;
        if let Some(client) = owner.map(|owner| owner.client()) {
            self.owned.entry(client).or_default().push(backend);
        }
        surplus
    }

    /// Takes an idle connection that this client may use. Closes those that are outdated.
    pub(super) fn take_usable(
        &mut self,
        backend: &Backend,
        client: Owner,
        records: &mut BalanceRecords,
        actions: &mut ActionQueue,
    ) -> Option<ConnId> {
        while let Some(id) = self.take(backend.id(), client) {
            let Some(upstream) = records.upstream(id) else { continue };
            match upstream.client() {
                None if upstream.is_current() => return Some(id),
                None => actions.push(ConnAction::Close(id)),
                Some(_) => {}
            }
        }
        None
    }

    /// Takes a connection that this client may use, preferably one reserved for it.
    fn take(&mut self, backend: u64, client: Owner) -> Option<ConnId> {
        let idle = self.idle.get_mut(&backend)?;
        let last_of = |owner| idle.iter().rposition(|idle| idle.owner == owner);
        let last = last_of(Some(client)).or_else(|| last_of(None))?;
        let taken = idle.remove(last);
        self.len -= 1;
        disown(&mut self.owned, backend, taken.owner);
        Some(taken.id)
    }

    /// Takes all connections reserved for a client that has gone.
    pub(super) fn take_of(&mut self, client: ConnId) -> Vec<ConnId> {
        let mut taken = Vec::new();
        for backend in self.owned.remove(&client).unwrap_or_default() {
            let Some(idle) = self.idle.get_mut(&backend) else { continue };
            let is_of = |idle: &mut Idle| idle.owner.is_some_and(|owner| owner.client() == client);
            taken.extend(idle.extract_if(.., is_of).map(|idle| idle.id));
            if idle.is_empty() {
                self.idle.remove(&backend);
            }
        }
        self.len -= taken.len();
        taken
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, backend: u64, id: ConnId) {
        if let Some(idle) = self.idle.get_mut(&backend) {
            let removed = idle.extract_if(.., |other| other.id == id);
            for removed in removed {
                self.len -= 1;
                disown(&mut self.owned, backend, removed.owner);
            }
            if idle.is_empty() {
                self.idle.remove(&backend);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of idle connections to all backends.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

/// Forgets one connection to `backend` that was reserved for this client, if there is one.
fn disown(owned: &mut HashMap<ConnId, Vec<u64>>, backend: u64, owner: Option<Owner>) {
    let Some(client) = owner.map(|owner| owner.client()) else { return };
    let Some(backends) = owned.get_mut(&client) else { return };
    if let Some(at) = backends.iter().position(|other| *other == backend) {
        backends.swap_remove(at);
    }
    if backends.is_empty() {
        owned.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_used_is_taken_first_and_no_more_are_kept_than_asked() {
        let backend = 1;
        let id = |slot| ConnId::new(0, slot, 0);
        let mut pool = IdlePool::default();
        let client = owner(9, "192.0.2.1");
        let mut put = |slot| pool.put(backend, id(slot), None, 2);
        assert_eq!([put(1), put(2), put(3)], [None, None, Some(id(3))]);
        assert_eq!((pool.len(), pool.take(backend, client)), (2, Some(id(2))));
        pool.remove(backend, id(1));
        assert_eq!((pool.len(), pool.take(backend, client)), (0, None));
        assert_eq!(pool.put(backend, id(1), None, 0), Some(id(1)));
    }

    fn owner(slot: u32, address: &str) -> Owner {
        Owner::new(ConnId::new(0, slot, 0), address.parse().unwrap())
    }

    #[test]
    fn a_connection_that_carried_a_body_serves_its_client_and_makes_room_for_others() {
        let backend = 1;
        let id = |slot| ConnId::new(0, slot, 0);
        let (one, other) = (owner(8, "192.0.2.1"), owner(8, "192.0.2.2"));
        let mut pool = IdlePool::default();
        assert_eq!(pool.put(backend, id(1), Some(one), 2), None);
        assert_eq!(pool.take(backend, other), None, "of another client of the same proxy");
        assert_eq!(pool.put(backend, id(2), None, 2), None);
        assert_eq!(pool.put(backend, id(3), Some(other), 2), Some(id(1)));
        assert_eq!(pool.take(backend, other), Some(id(3)), "its own first");
        assert_eq!(pool.put(backend, id(3), Some(other), 2), None);
        assert_eq!(pool.take(backend, one), Some(id(2)));
        assert_eq!((pool.take(backend, one), pool.take(backend, other)), (None, Some(id(3))));
        assert!(pool.is_empty());
    }

    #[test]
    fn connections_of_one_client_are_taken_out_when_it_has_gone() {
        let id = |slot| ConnId::new(0, slot, 0);
        let backends = [1, 2];
        let (one, same, other) =
            (owner(8, "192.0.2.1"), owner(8, "192.0.2.2"), owner(9, "192.0.2.1"));
        let mut pool = IdlePool::default();
        for (slot, (backend, owner)) in
            [(0, Some(one)), (1, Some(same)), (0, Some(other)), (1, None)].into_iter().enumerate()
        {
            assert_eq!(pool.put(backends[backend], id(slot as u32), owner, 8), None);
        }
        let mut taken = pool.take_of(one.client());
        taken.sort_unstable();
        assert_eq!((taken, pool.len()), (vec![id(0), id(1)], 2));
        assert_eq!(pool.take(backends[0], other), Some(id(2)));
        assert_eq!((pool.take_of(other.client()), pool.owned.len()), (vec![], 0));
        assert_eq!(pool.take(backends[1], one), Some(id(3)));
        assert!(pool.is_empty());
    }

    #[test]
    fn a_client_owns_nothing_once_its_connections_are_taken_removed_or_closed() {
        let backend = 1;
        let id = |slot| ConnId::new(0, slot, 0);
        let client = owner(8, "192.0.2.1");
        let mut pool = IdlePool::default();
        for slot in 1..4 {
            assert_eq!(pool.put(backend, id(slot), Some(client), 3), None);
        }
        pool.remove(backend, id(2));
        assert_eq!(pool.take(backend, client), Some(id(3)));
        assert_eq!(pool.owned[&client.client()], [backend]);
        assert_eq!(pool.put(backend, id(4), None, 1), Some(id(1)), "it makes room");
        assert!(pool.owned.is_empty());
        assert_eq!((pool.take_of(client.client()), pool.len()), (vec![], 1));
    }
}
