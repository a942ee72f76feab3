//! Idle connections to backends.

use std::collections::HashMap;
use std::net::SocketAddr;

use throng_io::ConnId;

/// Idle connections by backend, the one used last first: it is the least likely to be closed just
/// now.
#[derive(Debug, Default)]
pub(super) struct Pool {
    idle: HashMap<SocketAddr, Vec<ConnId>>,
    /// The number of all, which each turn needs.
    len: usize,
}

impl Pool {
    /// Keeps a connection, unless there are `most` already.
    pub(super) fn put(&mut self, backend: SocketAddr, id: ConnId, most: usize) -> bool {
        let idle = self.idle.entry(backend).or_default();
        let has_room = idle.len() < most;
        if has_room {
            idle.push(id);
            self.len += 1;
        }
        has_room
    }

    /// Takes a connection to use.
    pub(super) fn take(&mut self, backend: SocketAddr) -> Option<ConnId> {
        let taken = self.idle.get_mut(&backend)?.pop();
        self.len -= usize::from(taken.is_some());
        taken
    }

    /// Removes a connection that has ended.
    pub(super) fn remove(&mut self, backend: SocketAddr, id: ConnId) {
        if let Some(idle) = self.idle.get_mut(&backend) {
            let before = idle.len();
            idle.retain(|&other| other != id);
            self.len -= before - idle.len();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_used_is_taken_first_and_no_more_are_kept_than_asked() {
        let backend = "127.0.0.1:1".parse().unwrap();
        let id = |slot| ConnId::new(0, slot, 0);
        let mut pool = Pool::default();
        assert!(pool.put(backend, id(1), 2) && pool.put(backend, id(2), 2));
        assert!(!pool.put(backend, id(3), 2));
        assert_eq!((pool.len(), pool.take(backend)), (2, Some(id(2))));
        pool.remove(backend, id(1));
        assert_eq!((pool.len(), pool.take(backend)), (0, None));
    }
}
