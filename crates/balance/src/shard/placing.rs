//! Accepted sockets that another shard serves: only Linux spreads the connections of a port over
//! several listeners. Elsewhere the first shard accepts for all, and gives each socket to the shard
//! that has the fewest clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use throng_engine::mailbox::{Inbox, Mailbox, mailbox};
use throng_io::{Driver, ListenerId, Waker};

use super::Shard;

/// Sockets that wait for one shard; with more, the accepting shard keeps them.
const CAPACITY: usize = 4096;

/// A socket in transit to the shard that will serve it.
struct Placed<S> {
    socket: S,
    peer: SocketAddr,
    listener: ListenerId,
}

/// A shard's part of the placing: the sockets that come to it, and the ways to the others.
pub struct Placing<S> {
    arrivals: Inbox<Placed<S>>,
    neighbours: Vec<Mailbox<Placed<S>>>,
    loads: Loads,
}

/// The number of clients of each shard, with those in transit to it.
#[derive(Clone, Debug)]
pub(super) struct Loads {
    all: Arc<[AtomicUsize]>,
    here: usize,
}

impl<S> Placing<S> {
    /// Creates the parts of all shards, whose drivers have these wakers.
    pub fn between(wakers: impl IntoIterator<Item = Waker>) -> Vec<Self> {
        let boxes = wakers.into_iter().map(|waker| mailbox(CAPACITY, waker));
        let (neighbours, inboxes): (Vec<_>, Vec<_>) = boxes.unzip();
        let all: Arc<[AtomicUsize]> = neighbours.iter().map(|_| AtomicUsize::new(0)).collect();
        let part = |(here, arrivals)| Self {
            arrivals,
            neighbours: neighbours.clone(),
            loads: Loads { all: Arc::clone(&all), here },
        };
        inboxes.into_iter().enumerate().map(part).collect()
    }

    /// Gives a socket to the shard that has the fewest clients, or returns it.
    pub(super) fn give(&self, socket: S, peer: SocketAddr, listener: ListenerId) -> Option<S> {
        let to = self.loads.least();
        if to == self.loads.here {
            return Some(socket);
        }
        // Before it is sent, so that its removal never comes first.
        self.loads.all[to].fetch_add(1, Relaxed);
        match self.neighbours[to].send_to_owner(Placed { socket, peer, listener }, 0) {
            Ok(()) => None,
            // Its shard has ended, or is far behind.
            Err(placed) => {
                self.loads.all[to].fetch_sub(1, Relaxed);
                Some(placed.socket)
            }
        }
    }

    /// Passes the sockets that have come to `enter`, which counts those it takes.
    pub(super) fn take(&mut self, mut enter: impl FnMut(S, SocketAddr, ListenerId)) {
        for Placed { socket, peer, listener } in self.arrivals.drain() {
            enter(socket, peer, listener);
            self.loads.leave();
        }
    }

    /// Refuses sockets from now on, if none waits. Returns whether it does.
    pub(super) fn close_if_empty(&mut self) -> bool {
        self.arrivals.close_if_empty()
    }
}

impl Loads {
    /// Counts a client of this shard.
    pub(super) fn enter(&self) {
        self.all[self.here].fetch_add(1, Relaxed);
    }

    /// Uncounts a client of this shard, or a socket that was in transit to it.
    pub(super) fn leave(&self) {
        self.all[self.here].fetch_sub(1, Relaxed);
    }

    /// Returns the shard with the fewest clients: this one, or the first, of several.
    fn least(&self) -> usize {
        let clients = |shard: &usize| self.all[*shard].load(Relaxed);
        let here = self.here;
        (0..self.all.len()).min_by_key(|shard| (clients(shard), *shard != here)).unwrap_or(here)
    }
}

impl<D: Driver> Shard<D> {
    /// Places accepted sockets; called before the first turn.
    #[must_use]
    pub fn with_placing(mut self, placing: Placing<D::Socket>) -> Self {
        self.parts.clients.count_by_shard(placing.loads.clone());
        self.placing = Some(placing);
        self
    }
}

impl<S> std::fmt::Debug for Placing<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Placing({:?})", self.loads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl throng_io::Wake for Nothing {
        fn wake(&self) {}
    }

    fn parts(count: usize) -> Vec<Placing<u32>> {
        Placing::between((0..count).map(|_| Arc::new(Nothing) as Waker))
    }

    /// Gives a socket that the first shard has accepted. Returns whether it stays there.
    fn stays(placing: &Placing<u32>, socket: u32) -> bool {
        let peer = "192.0.2.1:1".parse().unwrap();
        let stays = placing.give(socket, peer, ListenerId(0)).is_some();
        if stays {
            placing.loads.enter();
        }
        stays
    }

    fn loads(placing: &Placing<u32>) -> Vec<usize> {
        placing.loads.all.iter().map(|it| it.load(Relaxed)).collect()
    }

    #[test]
    fn sockets_go_to_the_shard_with_the_fewest_clients() {
        let mut all = parts(3);
        for socket in 0..9 {
            assert_eq!(stays(&all[0], socket), socket % 3 == 0);
        }
        assert_eq!(loads(&all[0]), [3, 3, 3], "those in transit count");
        let (mut came, of_third) = (Vec::new(), all[2].loads.clone());
        all[2].take(|socket, _, _| {
            came.push(socket);
            of_third.enter();
        });
        assert_eq!(came, [2, 5, 8]);
        assert_eq!(loads(&all[0]), [3, 3, 3]);
        of_third.leave();
        assert!(!stays(&all[0], 9));
        assert_eq!(loads(&all[0]), [3, 3, 3], "the third had fewer");
        // Its shard takes none of them.
        all[1].take(|_, _, _| {});
        assert_eq!(loads(&all[0]), [3, 0, 3]);
    }

    #[test]
    fn a_socket_for_a_shard_that_has_ended_stays() {
        let mut all = parts(2);
        assert!(stays(&all[0], 0));
        assert!(!stays(&all[0], 1));
        assert!(!all[1].close_if_empty(), "one is in transit");
        all[1].take(|_, _, _| {});
        assert!(all[1].close_if_empty());
        assert!(stays(&all[0], 2));
        assert_eq!(loads(&all[0]), [2, 0]);
    }
}
