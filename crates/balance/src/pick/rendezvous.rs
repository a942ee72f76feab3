//! Rendezvous hashing: a backend that leaves moves only its own clients, a new one gets its part
//! from each.

use throng_engine::random::mix;

use crate::backend::Backend;

/// Draws for every backend a number that depends only on the key and the backend; the highest wins.
/// With `-share / ln(die)` each wins in proportion to its share, and a growing share draws clients
/// to its backend but moves none between others.
pub(super) fn pick<'a>(
    key: u64,
    candidates: impl Iterator<Item = (usize, &'a Backend)>,
) -> Option<usize> {
    let score = |backend: &Backend| f64::from(backend.share()) / -die(key, backend.key()).ln();
    let scored = candidates.map(|(place, backend)| (place, score(backend)));
    let highest = scored.reduce(|one, other| if other.1 > one.1 { other } else { one });
    highest.map(|(place, _)| place)
}

/// Returns a number between 0 and 1, both excluded: of 52 bits, so that adding a half is exact.
fn die(key: u64, backend_key: u64) -> f64 {
    let bits = mix(key ^ backend_key) >> 12;
    (bits as f64 + 0.5) / (1u64 << 52) as f64
}
