//! Memory of TLS handshakes in progress and of incomplete records, limited for each shard. All
//! other memory of a connection has its own limit.

use throng_io::ConnId;

/// Least bytes between two measurements.
const LEAST_STEP: usize = 64 << 10;

/// A connection that the driver holds memory for. The largest is ended first, and handshakes before
/// all others, since no request has been served on them yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::shard) struct Holder {
    is_handshaking: bool,
    bytes: usize,
    id: ConnId,
}

impl Holder {
    pub(in crate::shard) fn new(id: ConnId, is_handshaking: bool, bytes: usize) -> Self {
        Self { is_handshaking, bytes, id }
    }
}

/// The time of the next measurement of memory, and the limit.
#[derive(Debug, Default)]
pub(super) struct Measurements {
    /// Bytes that the driver has taken for TLS since the last measurement.
    growth: usize,
    /// This shard's part of the limit, once it is known.
    limit: Option<usize>,
}

impl Measurements {
    /// Counts `growth` more bytes; returns the limit if a measurement is due. `limit` reads files
    /// to find the limit of the process, so it is called only once.
    pub(super) fn due(&mut self, growth: usize, limit: impl FnOnce() -> usize) -> Option<usize> {
        self.growth = self.growth.saturating_add(growth);
        if self.growth < LEAST_STEP {
            return None;
        }
        let limit = *self.limit.get_or_insert_with(limit);
        if self.growth < limit / 64 {
            return None;
        }
        self.growth = 0;
        Some(limit)
    }

    /// Forgets the limit after a change of the configuration.
    pub(super) fn forget_limit(&mut self) {
        self.limit = None;
    }
}

/// Returns each shard's part of the limit, for `shards` shards. A `configured` of 0 means a quarter
/// of the memory that the process may use.
pub(super) fn part_of_limit(configured: usize, shards: u32) -> usize {
    let quarter = || throng_io::memory::available().map(|bytes| (bytes / 4) as usize);
    let limit = match configured {
        0 => quarter().unwrap_or(usize::MAX),
        limit => limit,
    };
    limit / shards as usize
}

/// Returns the connections to end so that at most seven eighths of the limit stay in use.
pub(in crate::shard) fn to_be_ended(mut holders: Vec<Holder>, limit: usize) -> Vec<ConnId> {
    let mut held: usize = holders.iter().map(|holder| holder.bytes).sum();
    if held <= limit {
        return Vec::new();
    }
    holders.sort_unstable_by(|a, b| b.cmp(a));
    let is_too_much = |holder: &&Holder| {
        let is_too_much = held > limit - limit / 8;
        held -= holder.bytes;
        is_too_much
    };
    holders.iter().take_while(is_too_much).map(|holder| holder.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_asked_for_once_for_each_configuration() {
        let (mut memory, mut asked) = (Measurements::default(), 0);
        let mut due = |memory: &mut Measurements, growth| {
            let limit = memory.due(growth, || {
                asked += 1;
                64 << 20
            });
            (limit, asked)
        };
        assert_eq!(due(&mut memory, LEAST_STEP - 1), (None, 0));
        // Enough bytes to be checked in every turn, too few for a measurement.
        for _ in 0..100 {
            assert_eq!(due(&mut memory, 1), (None, 1));
        }
        assert_eq!(due(&mut memory, 1 << 20), (Some(64 << 20), 1));
        assert_eq!(due(&mut memory, 1 << 19), (None, 1));
        memory.forget_limit();
        assert_eq!(due(&mut memory, 1 << 19), (Some(64 << 20), 2));
    }

    #[test]
    fn handshakes_end_before_others_and_the_largest_first() {
        let ended = |handshakes: &[usize], others: &[usize]| -> Vec<usize> {
            let handshakes = handshakes.iter().map(|bytes| (true, *bytes));
            let all = handshakes.chain(others.iter().map(|bytes| (false, *bytes)));
            let holders = all.enumerate().map(|(at, (is_handshaking, bytes))| {
                Holder::new(ConnId::new(0, at as u32, 1), is_handshaking, bytes)
            });
            to_be_ended(holders.collect(), 800).into_iter().map(ConnId::slot).collect()
        };
        assert_eq!(ended(&[300], &[500]), [0; 0]);
        assert_eq!(ended(&[100, 50, 200], &[600]), [2, 0]);
        assert_eq!(ended(&[50], &[400, 500]), [0, 2]);
    }
}
