//! Keys for session tickets that the process draws itself. They are replaced in time, and pass to a
//! successor of the process, so that its clients resume their sessions.

use std::fmt;
use std::sync::{RwLock, RwLockReadGuard};

use aws_lc_rs::error::Unspecified;
use rustls::server::ProducesTickets;
use throng_carry::Secret;
use zeroize::Zeroizing;

use crate::tickets::{KEY_LEN, LIFETIME, TicketKey, now, open, seal};

/// Seconds for which a key seals tickets. It opens them for the lifetime of a ticket longer.
const SEALS: u64 = 6 * 60 * 60;

/// The most keys that are kept: one seals, and the tickets of the others have not all ended.
const MAX_KEYS: usize = 1 + (LIFETIME as u64).div_ceil(SEALS) as usize;

/// Bytes of the time before each carried key.
const TIME_LEN: usize = 8;

/// Seals tickets with the newest key, and opens tickets of all.
pub(crate) struct OwnTicketer {
    /// The policy for which the keys are derived: another one has other keys.
    policy: Box<[u8]>,
    /// The newest first. It is locked for writing only to replace a key.
    keys: RwLock<Vec<OwnKey>>,
}

struct OwnKey {
    /// When it was drawn, in seconds since 1970.
    since: u64,
    secret: Zeroizing<[u8; KEY_LEN]>,
    derived: TicketKey,
}

impl OwnKey {
    fn draw(policy: &[u8], now: u64) -> Result<Self, Unspecified> {
        let mut secret = Zeroizing::new([0; KEY_LEN]);
        aws_lc_rs::rand::fill(&mut *secret)?;
        Self::of(secret, policy, now)
    }

    fn of(
        secret: Zeroizing<[u8; KEY_LEN]>,
        policy: &[u8],
        since: u64,
    ) -> Result<Self, Unspecified> {
        let derived = TicketKey::new(&*secret, policy)?;
        Ok(Self { since, secret, derived })
    }

    fn seals(&self, now: u64) -> bool {
        // If the clock was set back, the key stays.
        now.saturating_sub(self.since) < SEALS
    }

    fn opens(&self, now: u64) -> bool {
        now.saturating_sub(self.since) < SEALS + u64::from(LIFETIME)
    }
}

impl OwnTicketer {
    /// Draws a key for a policy.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(crate) fn new(policy: &[u8]) -> Result<Self, Unspecified> {
        let first = OwnKey::draw(policy, now().unwrap_or_default())?;
        Ok(Self { policy: policy.into(), keys: RwLock::new(vec![first]) })
    }

    fn keys(&self) -> RwLockReadGuard<'_, Vec<OwnKey>> {
        self.keys.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the keys in the form that [`take_over`](Self::take_over) reads.
    pub(crate) fn carried(&self) -> Secret {
        let mut all = Secret::default();
        for OwnKey { since, secret, derived: _ } in &*self.keys() {
            all.append(&since.to_be_bytes());
            all.append(&**secret);
        }
        all
    }

    /// Uses the keys of a predecessor in place of the keys that were drawn here, if any of them
    /// still opens tickets. Ignores bytes that are not keys.
    pub(crate) fn take_over(&self, carried: &[u8]) {
        self.take_over_at(carried, now().unwrap_or_default());
    }

    fn take_over_at(&self, carried: &[u8], now: u64) {
        let (records, rest) = carried.as_chunks::<{ TIME_LEN + KEY_LEN }>();
        if !rest.is_empty() || records.len() > MAX_KEYS {
            return;
        }
        let key = |record: &[u8; TIME_LEN + KEY_LEN]| {
            let (since, secret) = record.split_first_chunk()?;
            let secret = Zeroizing::new(*secret.first_chunk()?);
            OwnKey::of(secret, &self.policy, u64::from_be_bytes(*since)).ok()
        };
        let keys: Vec<_> = records.iter().filter_map(key).filter(|key| key.opens(now)).collect();
        if !keys.is_empty() {
            *self.keys.write().unwrap_or_else(std::sync::PoisonError::into_inner) = keys;
        }
    }

    fn seal(&self, content: &[u8], now: u64) -> Option<Vec<u8>> {
        let keys = self.keys();
        let newest = keys.first()?;
        if newest.seals(now) {
            return seal(&newest.derived, content, now);
        }
        drop(keys);
        let mut keys = self.keys.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Another thread may have replaced it.
        if !keys.first()?.seals(now) {
            keys.insert(0, OwnKey::draw(&self.policy, now).ok()?);
            keys.retain(|key| key.opens(now));
            keys.truncate(MAX_KEYS);
        }
        seal(&keys.first()?.derived, content, now)
    }

    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        open(self.keys().iter().map(|key| &key.derived), ticket, now)
    }
}

impl ProducesTickets for OwnTicketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        LIFETIME
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.seal(plain, now()?)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, now()?)
    }
}

impl fmt::Debug for OwnTicketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnTicketer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticketer(policy: &[u8], now: u64) -> OwnTicketer {
        let first = OwnKey::draw(policy, now).unwrap();
        OwnTicketer { policy: policy.into(), keys: RwLock::new(vec![first]) }
    }

    #[test]
    fn a_ticket_is_opened_for_its_lifetime_while_keys_are_replaced() {
        let own = ticketer(b"", 0);
        let mut tickets: Vec<(u64, Vec<u8>)> = Vec::new();
        for now in (0..4 * u64::from(LIFETIME)).step_by(600) {
            tickets.push((now, own.seal(b"a session", now).unwrap()));
            for (sealed_at, ticket) in &tickets {
                let is_valid = now - sealed_at <= u64::from(LIFETIME);
                assert_eq!(own.open(ticket, now).is_some(), is_valid, "{sealed_at} at {now}");
            }
            assert!(own.keys().len() <= MAX_KEYS);
        }
        assert_eq!(own.keys().len(), MAX_KEYS);
    }

    #[test]
    fn a_successor_opens_and_seals_with_the_keys_of_its_predecessor() {
        let (before, after) = (ticketer(b"", 0), ticketer(b"", 0));
        let old = before.seal(b"a session", 0).unwrap();
        let new = before.seal(b"a session", SEALS).unwrap();
        assert_eq!(after.open(&new, SEALS), None);
        after.take_over_at(&before.carried(), SEALS);
        for ticket in [&old, &new, &after.seal(b"a session", SEALS).unwrap()] {
            assert_eq!(after.open(ticket, SEALS).unwrap(), b"a session");
            assert_eq!(before.open(ticket, SEALS).unwrap(), b"a session");
        }
        // It has replaced the key in time.
        after.seal(b"a session", 2 * SEALS).unwrap();
        assert_eq!(after.keys().len(), 3);
    }

    #[test]
    fn keys_for_another_policy_and_bytes_that_are_no_keys_open_nothing() {
        let (before, after) = (ticketer(b"", 0), ticketer(b"certificates", 0));
        let ticket = before.seal(b"a session", 0).unwrap();
        let own = after.seal(b"a session", 0).unwrap();
        let carried = before.carried();
        for wrong in [&b""[..], &carried[1..], &[carried.as_ref(); 4].concat()] {
            after.take_over_at(wrong, 0);
            assert!(after.open(&own, 0).is_some());
        }
        after.take_over_at(&carried, u64::MAX);
        assert!(after.open(&own, 0).is_some(), "they are too old");
        after.take_over_at(&carried, 0);
        assert_eq!(after.open(&ticket, 0), None);
    }
}
