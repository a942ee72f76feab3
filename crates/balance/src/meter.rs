//! Meters of tunnels: how much of its rates a client has used.

use std::str::FromStr;
use std::time::Duration;

use throng_io::{ConnId, Instant};
use throng_proto::ws::Boundary;

/// The rates of the client of a tunnel, and the tunnel's longest life. What is not set has no
/// limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TunnelRates {
    /// The messages of the client a second: its frames, pings and pongs included.
    pub messages_per_second: Option<u32>,
    /// The messages at once. Default: as many as in one second.
    pub messages_burst: Option<u32>,
    /// The bytes of the client a second, headers of frames included.
    pub bytes_per_second: Option<u64>,
    /// The bytes at once. Default: as many as in one second.
    pub bytes_burst: Option<u64>,
    /// The treatment of a client beyond a rate. Default: [`OverRate::Throttle`].
    pub over: Option<OverRate>,
    /// The time after which a tunnel is closed with 1001, 10 % less or more, so that tunnels that
    /// were opened together do not end together.
    pub max_lifetime: Option<Duration>,
}

/// The treatment of a client beyond a rate of its tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OverRate {
    /// It is not read until it is within the rate again.
    #[default]
    Throttle,
    /// Its tunnel is also closed with 1008.
    Close,
}

impl FromStr for OverRate {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "throttle" => Ok(Self::Throttle),
            "close" => Ok(Self::Close),
            _ => Err("write \"throttle\" or \"close\""),
        }
    }
}

impl TunnelRates {
    /// Returns the rates with the rates of the level above.
    pub(crate) fn within(&self, outer: &Self) -> Self {
        Self {
            messages_per_second: self.messages_per_second.or(outer.messages_per_second),
            messages_burst: self.messages_burst.or(outer.messages_burst),
            bytes_per_second: self.bytes_per_second.or(outer.bytes_per_second),
            bytes_burst: self.bytes_burst.or(outer.bytes_burst),
            over: self.over.or(outer.over),
            max_lifetime: self.max_lifetime.or(outer.max_lifetime),
        }
    }

    /// Returns whether the client's data is counted.
    pub(crate) fn are_metered(&self) -> bool {
        self.messages_per_second.is_some() || self.bytes_per_second.is_some()
    }

    /// Returns the longest life of the tunnel of a client: the same in a successor, where its id
    /// stays.
    pub(crate) fn lifetime(&self, client: ConnId) -> Option<Duration> {
        // The ids of clients that came together are close to each other: spread them.
        let spread = client.to_bits().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
        self.max_lifetime.map(|most| most.mul_f64(0.9 + 0.2 * spread as f64 / 65_536.0))
    }
}

/// The used part of the rates of a client. Each value is the time in nanoseconds at which its
/// bucket is full again (GCRA).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meter {
    messages: u64,
    bytes: u64,
}

impl Meter {
    /// Creates a meter whose buckets are full after these nanoseconds.
    pub(crate) fn due_after(now: Instant, messages: u64, bytes: u64) -> Self {
        Self { messages: now.0.saturating_add(messages), bytes: now.0.saturating_add(bytes) }
    }

    /// Returns the nanoseconds until its buckets are full, of messages and of bytes.
    pub(crate) fn left(&self, now: Instant) -> (u64, u64) {
        (self.messages.saturating_sub(now.0), self.bytes.saturating_sub(now.0))
    }

    /// Counts data of the client, with the position before it. Returns when the client is within
    /// its rates again, if it is beyond one now.
    pub(crate) fn count(
        &mut self,
        rates: &TunnelRates,
        (before, data): (Boundary, &[u8]),
        now: Instant,
    ) -> Option<Instant> {
        let mut wait = 0;
        if let Some(rate) = rates.messages_per_second {
            let (rate, burst) = (rate.into(), rates.messages_burst.unwrap_or(rate).into());
            wait = take(&mut self.messages, ends_of_frames(before, data), (rate, burst), now);
        }
        if let Some(rate) = rates.bytes_per_second {
            let of_bytes = (rate, rates.bytes_burst.unwrap_or(rate));
            wait = wait.max(take(&mut self.bytes, data.len() as u64, of_bytes, now));
        }
        (wait > 0).then(|| Instant(now.0.saturating_add(wait)))
    }
}

/// Takes `count` from a bucket that is full at `full_at`. Returns the nanoseconds until it has at
/// least nothing.
fn take(full_at: &mut u64, count: u64, (rate, burst): (u64, u64), now: Instant) -> u64 {
    let time = |count: u64| {
        let nanos = u128::from(count) * 1_000_000_000 / u128::from(rate.max(1));
        u64::try_from(nanos).unwrap_or(u64::MAX)
    };
    *full_at = (*full_at).max(now.0).saturating_add(time(count));
    (*full_at - now.0).saturating_sub(time(burst))
}

/// Returns the number of frames that end in `data`.
fn ends_of_frames(mut position: Boundary, mut data: &[u8]) -> u64 {
    let mut ends = 0;
    while let [first, rest @ ..] = data {
        position.advance(std::slice::from_ref(first));
        let used = position.advance_to_boundary(rest);
        ends += u64::from(position.is_at_boundary());
        data = &rest[used..];
    }
    ends
}

#[cfg(test)]
mod tests {
    use throng_proto::ws::{Opcode, encode};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn frames(texts: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        texts.iter().for_each(|text| encode(Opcode::Text, text.as_bytes(), &mut out));
        out
    }

    #[test]
    fn frames_count_where_they_end() {
        let all = frames(&["", "hello", "", "x"]);
        assert_eq!(ends_of_frames(Boundary::new(), &all), 4);
        for cut in 0..all.len() {
            let mut position = Boundary::new();
            let first = ends_of_frames(position, &all[..cut]);
            position.advance(&all[..cut]);
            assert_eq!(first + ends_of_frames(position, &all[cut..]), 4, "{cut}");
        }
        assert_eq!(ends_of_frames(Boundary::unframed(), &all), 0);
    }

    #[test]
    fn a_client_has_its_burst_and_then_its_rate() {
        let rates = TunnelRates {
            messages_per_second: Some(10),
            messages_burst: Some(20),
            bytes_per_second: Some(1_000),
            ..TunnelRates::default()
        };
        let mut meter = Meter::default();
        let now = Instant(5 * SECOND);
        let mut count =
            |texts: &[&str], now| meter.count(&rates, (Boundary::new(), &frames(texts)), now);
        assert_eq!(count(&["a"; 20], now), None);
        assert_eq!(count(&["a"], now), Some(Instant(now.0 + SECOND / 10)));
        // It does not get less by time at its rate.
        let later = Instant(now.0 + SECOND / 10);
        assert_eq!(count(&[], later), None);
        assert_eq!(count(&["a"], later), Some(Instant(later.0 + SECOND / 10)));
        // Both buckets are full: 1,000 bytes at once.
        let full = Instant(later.0 + 10 * SECOND);
        let long = "x".repeat(996);
        assert_eq!(count(&[&long], full), None);
        assert_eq!(count(&[&"x".repeat(496)], full), Some(Instant(full.0 + SECOND / 2)));
    }

    #[test]
    fn a_meter_moves() {
        let rates = TunnelRates { bytes_per_second: Some(10), ..TunnelRates::default() };
        let mut meter = Meter::default();
        let now = Instant(7 * SECOND);
        meter.count(&rates, (Boundary::new(), &[0; 30]), now);
        let (messages, bytes) = meter.left(now);
        assert_eq!((messages, bytes), (0, 3 * SECOND));
        let moved = Meter::due_after(Instant(SECOND), messages, bytes);
        assert_eq!(moved.left(Instant(2 * SECOND)), (0, 2 * SECOND));
    }

    #[test]
    fn lives_are_spread_by_a_tenth() {
        let most = Duration::from_secs(1_000);
        let rates = TunnelRates { max_lifetime: Some(most), ..TunnelRates::default() };
        let lives: Vec<_> = (0..1_000)
            .map(|slot| rates.lifetime(ConnId::new(0, slot, 1)).unwrap().as_secs())
            .collect();
        assert!(lives.iter().all(|life| (900..=1_100).contains(life)));
        assert!(lives.iter().filter(|life| **life < 1_000).count().abs_diff(500) < 50);
        assert!(*lives.iter().min().unwrap() < 910 && *lives.iter().max().unwrap() > 1_090);
        assert_eq!(TunnelRates::default().lifetime(ConnId::new(0, 1, 1)), None);
    }
}
