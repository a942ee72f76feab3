//! Faults on the server's side of the network. The seed switches each kind on or off: a seed with
//! few kinds reaches states that a seed with all of them never does (swarm testing).

use crate::rng::Rng;

/// The faults of one run, and their strength.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Maximum bytes lent at a time, which is the size of the receive buffer.
    pub receive_buffer: usize,
    /// A receive is cut to a random size (1 = always one byte; 0 = off).
    pub cut_receives: usize,
    /// One in this many sends is taken only in part (0 = never).
    pub partial_sends: usize,
    /// One in this many sends completes late although all of it has left (0 = never).
    pub delayed_sends: usize,
    /// One in this many accepts fails for lack of descriptors (0 = never).
    pub accept_fails: usize,
    /// One in this many adoptions fails for lack of descriptors (0 = never).
    pub adopt_fails: usize,
    /// One in this many receives finds no memory, and is delayed (0 = never).
    pub starved_receives: usize,
    /// One in this many closes is slow: [`Closed`](throng_io::Closed) is reported later (0 =
    /// never).
    pub slow_closes: usize,
    /// Maximum events of a turn.
    pub events_per_turn: usize,
    /// Whether connections are checked in random order.
    pub shuffled: bool,
    /// One turn in so many takes very long: the clock leaps (0 = never).
    pub clock_leaps: usize,
    /// One link in so many is cut by the network at a random byte (0 = never).
    pub cut_links: usize,
    /// One in this many connects fails at once, for lack of descriptors or of a route (0 = never).
    pub connect_fails: usize,
    /// One connection that the driver makes in so many is cut by the network at a random byte (0 =
    /// never).
    pub cut_dials: usize,
}

impl Default for Faults {
    /// Returns the faults of a network and a kernel without faults.
    fn default() -> Self {
        Self {
            receive_buffer: 64 * 1024,
            cut_receives: 0,
            partial_sends: 0,
            delayed_sends: 0,
            accept_fails: 0,
            adopt_fails: 0,
            starved_receives: 0,
            slow_closes: 0,
            events_per_turn: 1024,
            shuffled: false,
            clock_leaps: 0,
            cut_links: 0,
            connect_fails: 0,
            cut_dials: 0,
        }
    }
}

impl Faults {
    /// The faults of a seed.
    #[must_use]
    pub fn of(rng: &mut Rng) -> Self {
        let mut sometimes = |one_in: usize, choices: &[usize]| {
            if rng.one_in(one_in) { rng.pick(choices) } else { 0 }
        };
        Self {
            receive_buffer: 0,
            cut_receives: sometimes(2, &[1, 3, 30, 1000]),
            partial_sends: sometimes(2, &[1, 2, 5]),
            delayed_sends: sometimes(2, &[1, 2, 5]),
            accept_fails: sometimes(4, &[2, 5]),
            adopt_fails: sometimes(6, &[3, 8]),
            starved_receives: sometimes(3, &[2, 10]),
            slow_closes: sometimes(3, &[1, 3]),
            events_per_turn: 0,
            shuffled: sometimes(2, &[1]) == 1,
            clock_leaps: sometimes(10, &[100, 1000]),
            cut_links: sometimes(4, &[3, 8]),
            // Servers do not connect. A plan for an engine that connects sets these faults.
            connect_fails: 0,
            cut_dials: 0,
        }
        .sized(rng)
    }

    /// Returns whether data is received in very small pieces.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.receive_buffer < 1000 || (1..1000).contains(&self.cut_receives)
    }

    fn sized(mut self, rng: &mut Rng) -> Self {
        self.receive_buffer = rng.pick(&[64, 1000, 4096, 16 * 1024, 64 * 1024]);
        self.events_per_turn = rng.pick(&[1, 3, 16, 1024]);
        self
    }
}

/// True once in `n`; never if `n` is 0.
pub(crate) fn strikes(rng: &mut Rng, n: usize) -> bool {
    n != 0 && rng.one_in(n)
}
