//! Connections that come in a circle of balancers that pass them through: their bytes have no place
//! for a mark such as CDN-Loop, but each connection has a ClientHello of its own, which the circle
//! brings back.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::shard::records::EighthTick;

/// Maximum connections with one ClientHello within [`WINDOW`]. A client without random numbers, or
/// a health check with recorded bytes, may open several.
const MAX_ROUNDS: u64 = 8;

/// Eighths of a second from the first connection to the last that counts with it. A circle takes
/// milliseconds.
const WINDOW: u32 = 80;

/// The number of ClientHellos that are remembered: 128 KiB, allocated with the first.
const SLOTS: usize = 1 << 14;

/// The ClientHellos of all shards that were passed through last, each with its count. A slot has
/// half of the hash, the tick of the first connection, and the count, in 32, 24 and 8 bits. Another
/// ClientHello replaces it. Used once per connection.
#[derive(Debug, Default)]
pub(super) struct RecentHellos {
    slots: OnceLock<Box<[AtomicU64]>>,
    /// The key of the hash, so that no client can choose the slot.
    key: RandomState,
}

impl RecentHellos {
    /// Counts a connection with these random bytes. Returns false if it is one too many.
    pub(super) fn enter(&self, random: &[u8; 32], now: EighthTick) -> bool {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect());
        let hash = self.key.hash_one(random);
        let slot = &slots[(hash % SLOTS as u64) as usize];
        let tag = hash >> 32;
        let tick = u64::from(now.0 & 0xff_ffff);
        let next = |old: u64| {
            let age = tick.wrapping_sub(old >> 8 & 0xff_ffff) & 0xff_ffff;
            let is_same = old >> 32 == tag && old & 0xff > 0 && age <= u64::from(WINDOW);
            match is_same {
                true if old & 0xff >= MAX_ROUNDS => None,
                true => Some(old + 1),
                false => Some(tag << 32 | tick << 8 | 1),
            }
        };
        slot.fetch_update(Relaxed, Relaxed, next).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_that_comes_again_and_again_is_refused_until_the_window_ends() {
        let hellos = RecentHellos::default();
        let wraps = (1 << 24) - 3;
        for from in [0, 5, wraps] {
            let random = [from as u8; 32];
            let enter = |tick| hellos.enter(&random, EighthTick(from + tick));
            assert!((0..8).all(enter), "{from}");
            assert!(!enter(8) && !enter(WINDOW), "{from}");
            assert!(enter(WINDOW + 1), "{from}");
            assert!((2..9).all(|round| enter(WINDOW + round)), "{from}");
            assert!(!enter(WINDOW + 9), "{from}");
        }
    }

    #[test]
    fn any_number_of_connections_with_hellos_of_their_own_pass() {
        let hellos = RecentHellos::default();
        for number in 0..4 * SLOTS as u32 {
            let mut random = [0; 32];
            random[..4].copy_from_slice(&number.to_be_bytes());
            assert!(hellos.enter(&random, EighthTick(number / 1000)), "{number}");
        }
    }
}
