//! New request ids.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

/// A source of ids for requests that have no id: 128 bits as 32 hexadecimal digits.
#[derive(Default)]
pub struct RequestIdSource {
    next: AtomicU64,
    /// Two hashers with separate keys: their hashes of a number are unpredictable.
    keys: [RandomState; 2],
}

impl RequestIdSource {
    /// Returns a new id.
    pub fn create(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let [high, low] = self.keys.each_ref().map(|key| key.hash_one(number));
        format!("{high:016x}{low:016x}")
    }
}

impl fmt::Debug for RequestIdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestIdSource")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_have_32_digits() {
        let (source, other) = (RequestIdSource::default(), RequestIdSource::default());
        let ids = [source.create(), source.create(), other.create()];
        assert!(ids.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())));
        assert!(ids[0] != ids[1] && ids[0] != ids[2]);
    }
}
