//! Memory of TLS handshakes in progress and of incomplete records, which is bounded for each shard.
//! All else that is held of a connection has a bound of its own.

use throng_io::{ConnId, Driver};

use super::State;

/// Least bytes between two measurements.
const LEAST_STEP: usize = 64 << 10;

/// A connection that the driver holds memory for. The greatest is ended first: a handshake before
/// any other, since no request was served on it yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Holder {
    is_handshaking: bool,
    bytes: usize,
    id: ConnId,
}

impl State {
    /// Ends connections if enough memory was taken since the last time, and too much is held.
    pub(super) fn check_memory<D: Driver>(&mut self, driver: &mut D) {
        self.memory_growth = self.memory_growth.saturating_add(driver.take_growth());
        if self.memory_growth < LEAST_STEP {
            return;
        }
        let limit = self.memory_limit();
        if self.memory_growth >= limit / 64 {
            self.memory_growth = 0;
            self.free_memory(driver, limit);
        }
    }

    /// Returns this shard's part of the limit.
    fn memory_limit(&self) -> usize {
        let quarter = || throng_io::memory::available().map(|bytes| (bytes / 4) as usize);
        let limit = match self.configuration.settings.max_tls_memory {
            0 => quarter().unwrap_or(usize::MAX),
            limit => limit,
        };
        limit / self.shards as usize
    }

    #[cold]
    fn free_memory<D: Driver>(&mut self, driver: &mut D, limit: usize) {
        let holder = |id| Holder {
            is_handshaking: driver.is_handshaking(id),
            bytes: driver.output_memory(id),
            id,
        };
        let holders = driver.input_holders().into_iter().map(holder).collect();
        for id in to_be_ended(holders, limit) {
            self.metrics.memory_ended += 1;
            driver.abort(id);
        }
    }
}

/// Returns the connections to be ended, so that seven eighths of the limit remain.
fn to_be_ended(mut holders: Vec<Holder>, limit: usize) -> Vec<ConnId> {
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
    fn handshakes_end_before_others_and_the_largest_first() {
        let ended = |handshakes: &[usize], others: &[usize]| -> Vec<usize> {
            let handshakes = handshakes.iter().map(|bytes| (true, *bytes));
            let all = handshakes.chain(others.iter().map(|bytes| (false, *bytes)));
            let holders = all.enumerate().map(|(at, (is_handshaking, bytes))| Holder {
                is_handshaking,
                bytes,
                id: ConnId::new(0, at as u32, 1),
            });
            to_be_ended(holders.collect(), 800).into_iter().map(ConnId::slot).collect()
        };
        assert_eq!(ended(&[300], &[500]), [0; 0]);
        assert_eq!(ended(&[100, 50, 200], &[600]), [2, 0]);
        assert_eq!(ended(&[50], &[400, 500]), [0, 2]);
    }
}
