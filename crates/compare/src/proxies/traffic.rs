//! Messages and their times: pure functions of a seed, the connection and the message's number, so
//! that nothing has to be remembered to check an answer whole.

use std::time::Duration;

use throng_io::Instant;

/// The shortest gap between two messages of a mostly idle connection.
const SHORTEST_GAP: Duration = Duration::from_millis(100);
const LONGEST_GAP: Duration = Duration::from_secs(10);
/// Different beginnings of a message.
const PLACES: usize = 1 << 16;
/// Messages of a mostly idle connection, in bytes.
const SMALLEST: u64 = 10;
const LARGEST: u64 = 4096;

/// Random bytes that every message is a piece of. Which piece depends on the connection and the
/// message's number, so an answer that is another's, lost, repeated or cut differs somewhere, and
/// all of it is compared.
pub(super) struct Content {
    pool: Vec<u8>,
    seed: u64,
}

impl Content {
    /// For messages of up to `largest` bytes.
    pub(super) fn new(seed: u64, largest: usize) -> Self {
        let words = (PLACES + largest).div_ceil(8) as u64;
        let pool = (0..words).flat_map(|word| mixed(seed, word, u64::MAX).to_le_bytes()).collect();
        Self { pool, seed }
    }

    /// Message `k` of connection `index`.
    #[inline]
    pub(super) fn message(&self, index: usize, k: u64, size: usize) -> &[u8] {
        let from = (mixed(self.seed, index as u64, k) >> 32) as usize % PLACES;
        &self.pool[from..from + size]
    }
}

/// When connections that are mostly idle say something, and how much: gaps and sizes are spread
/// evenly.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrafficPattern {
    seed: u64,
}

impl TrafficPattern {
    pub(super) fn new(seed: u64) -> Self {
        // Not the numbers that the content is chosen by.
        Self { seed: !seed }
    }

    /// Between message `k - 1` and message `k`.
    pub(super) fn gap(self, index: usize, k: u64) -> Duration {
        let span = (LONGEST_GAP - SHORTEST_GAP).as_nanos() as u64;
        let drawn = mixed(self.seed, index as u64, k << 1) % (span + 1);
        SHORTEST_GAP + Duration::from_nanos(drawn)
    }

    /// Bytes of message `k`.
    pub(super) fn size(self, index: usize, k: u64) -> usize {
        let drawn = mixed(self.seed, index as u64, k << 1 | 1) % (LARGEST - SMALLEST + 1);
        (SMALLEST + drawn) as usize
    }

    /// The first message of a connection from `start` on, as if all had begun long before:
    /// otherwise no message would be sent in the first tenth of a second, and more than usual in
    /// the tenth second.
    pub(super) fn first(self, index: usize, start: Instant) -> Turn {
        let mut before = Duration::ZERO;
        let mut k = 0;
        while before < EARLIER {
            before += self.gap(index, k);
            k += 1;
        }
        Turn { k, planned: start.after(before - EARLIER) }
    }

    /// The message after `turn`.
    pub(super) fn after(self, index: usize, turn: Turn) -> Turn {
        let planned = turn.planned.after(self.gap(index, turn.k));
        Turn { k: turn.k + 1, planned }
    }
}

/// Time for which the pattern is followed before the start: several times the longest gap.
const EARLIER: Duration = Duration::from_secs(60);

/// A message's number and planned time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) k: u64,
    pub(super) planned: Instant,
}

/// 64 bits from three numbers (SplitMix64's last steps over a sum of odd multiples).
#[inline]
fn mixed(seed: u64, a: u64, b: u64) -> u64 {
    let mut x = seed
        .wrapping_add(a.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(b.wrapping_mul(0xd1b5_4a32_d192_ed03));
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant(7_000_000_000);

    #[test]
    fn messages_differ_by_connection_and_number_and_come_again_from_the_seed() {
        let content = Content::new(1, 4096);
        assert_eq!(content.message(3, 9, 4096), Content::new(1, 4096).message(3, 9, 4096));
        assert_ne!(content.message(3, 9, 64), Content::new(2, 4096).message(3, 9, 64));
        for (index, k) in [(3, 10), (4, 9), (9, 3)] {
            assert_ne!(content.message(3, 9, 16), content.message(index, k, 16));
        }
        assert_eq!(content.message(0, 0, 0), b"");
        // Of single bytes 255 in 256 differ from their neighbour's.
        let differ =
            (0..1000).filter(|&k| content.message(0, k, 1) != content.message(0, k + 1, 1));
        assert!(differ.count() > 980);
    }

    #[test]
    fn gaps_and_sizes_fill_their_ranges_evenly() {
        let pattern = TrafficPattern::new(1);
        let all = (0..200).flat_map(|index| (0..50).map(move |k| (index, k)));
        let (mut gaps, mut sizes) = (Vec::new(), Vec::new());
        for (index, k) in all {
            gaps.push(pattern.gap(index, k).as_secs_f64());
            sizes.push(pattern.size(index, k) as f64);
        }
        for (values, low, high) in [(&gaps, 0.1, 10.0), (&sizes, 10.0, 4096.0)] {
            let least = values.iter().copied().fold(f64::MAX, f64::min);
            let greatest = values.iter().copied().fold(0.0, f64::max);
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            assert!(least >= low && least < low + (high - low) / 100.0, "{least}");
            assert!(greatest <= high && greatest > high - (high - low) / 100.0, "{greatest}");
            assert!((mean / ((low + high) / 2.0) - 1.0).abs() < 0.02, "{mean}");
        }
    }

    #[test]
    fn the_rate_is_the_same_from_the_first_second_on() {
        let pattern = TrafficPattern::new(5);
        let mut by_second = [0_u32; 20];
        for index in 0..5_000 {
            let mut turn = pattern.first(index, START);
            assert!(turn.planned >= START);
            while turn.planned.since(START) < Duration::from_secs(20) {
                by_second[turn.planned.since(START).as_secs() as usize] += 1;
                turn = pattern.after(index, turn);
            }
        }
        // 5,000 connections by 5.05 s.
        for (second, &n) in by_second.iter().enumerate() {
            assert!((880..1100).contains(&n), "second {second}: {n}");
        }
    }

    #[test]
    fn a_turn_follows_by_its_gap() {
        let pattern = TrafficPattern::new(5);
        let first = pattern.first(3, START);
        let second = pattern.after(3, first);
        assert_eq!(second.k, first.k + 1);
        assert_eq!(second.planned.since(first.planned), pattern.gap(3, first.k));
    }
}
