//! Session tickets: with keys of this process and its successors, or of a file that several servers
//! share.
//!
//! A client that resumes a session is not asked for its certificate again. So tickets of sessions
//! under one policy for client certificates must not be accepted under another: keys of this
//! process are replaced when the policy changes, and keys of a file are derived from the file and
//! the policy. The provider seals tickets: with AES-256-GCM-SIV (RFC 8452), servers can safely draw
//! random nonces independently.

use std::cell::Cell;
use std::fmt;
use std::fs::Metadata;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use rustls::server::ProducesTickets;
use throng_io::file;
use x509_parser::prelude::{FromDer, X509Certificate};
use zeroize::Zeroizing;

use crate::error::ConfigError;

/// Bytes of a key in a file, the same as in nginx.
pub(crate) const KEY_LEN: usize = 80;
/// Maximum keys of a file: each ticket of an unknown client is compared with the names of all.
const MAX_KEYS: usize = 32;
/// Bytes at the start of a ticket that identify the key that sealed it.
const NAME_LEN: usize = 16;
/// Bytes of the key derived for the AEAD.
const SEALING_KEY_LEN: usize = 32;
/// Bytes of the time at which a ticket was sealed, before its content.
const TIME_LEN: usize = 8;
/// Seconds for which a ticket can be used, the same as with keys of this process.
pub(crate) const LIFETIME: u32 = 12 * 60 * 60;

/// Seals tickets with the first key of a file, and opens tickets of all its keys.
pub(crate) struct SharedTicketer {
    keys: Vec<TicketKey>,
}

/// A key for one policy.
pub(crate) struct TicketKey {
    name: [u8; NAME_LEN],
    key: RandomizedNonceKey,
}

impl SharedTicketer {
    /// Reads the keys of a file, for a policy.
    ///
    /// # Errors
    /// The file cannot be read, or its contents are not keys.
    pub(crate) fn load(file: &Path, policy: &[u8]) -> Result<Self, ConfigError> {
        let keys = read_keys(file)?;
        let keys: Result<_, _> =
            keys.chunks(KEY_LEN).map(|key| TicketKey::new(key, policy)).collect();
        let keys = keys.map_err(|Unspecified| {
            ConfigError::new(file, "no keys for session tickets can be derived from it")
        })?;
        Ok(Self { keys })
    }

    fn seal(&self, content: &[u8], now: u64) -> Option<Vec<u8>> {
        seal(self.keys.first()?, content, now)
    }

    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        open(self.keys.iter(), ticket, now)
    }
}

/// Seals a ticket at the time `now`.
pub(crate) fn seal(key: &TicketKey, content: &[u8], now: u64) -> Option<Vec<u8>> {
    let TicketKey { name, key } = key;
    let mut sealed = Vec::with_capacity(TIME_LEN + content.len() + 16);
    sealed.extend_from_slice(&now.to_be_bytes());
    sealed.extend_from_slice(content);
    let nonce = key.seal_in_place_append_tag(Aad::from(name), &mut sealed).ok()?;
    Some([&name[..], nonce.as_ref(), &sealed].concat())
}

/// Opens a ticket that one of the keys has sealed, until its end.
pub(crate) fn open<'a>(
    mut keys: impl Iterator<Item = &'a TicketKey>,
    ticket: &[u8],
    now: u64,
) -> Option<Vec<u8>> {
    let (name, rest) = ticket.split_first_chunk::<NAME_LEN>()?;
    let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
    let TicketKey { key, .. } = keys.find(|key| key.name == *name)?;
    // The text becomes the secret with which the session is resumed.
    let mut sealed = Zeroizing::new(sealed.to_vec());
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let content = key.open_in_place(nonce, Aad::from(name), &mut sealed).ok()?;
    let (time, content) = content.split_first_chunk::<TIME_LEN>()?;
    // The clock of another server may be ahead.
    let age = now.saturating_sub(u64::from_be_bytes(*time));
    (age <= u64::from(LIFETIME)).then(|| content.to_vec())
}

impl ProducesTickets for SharedTicketer {
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

impl fmt::Debug for SharedTicketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedTicketer")
    }
}

impl TicketKey {
    /// Derives a key from a secret and a policy.
    pub(crate) fn new(key: &[u8], policy: &[u8]) -> Result<Self, Unspecified> {
        let parts = [b"throng session tickets".as_slice(), policy];
        let mut derived = Zeroizing::new([0; NAME_LEN + SEALING_KEY_LEN]);
        Salt::new(HKDF_SHA256, &[]).extract(key).expand(&parts, Derived)?.fill(&mut *derived)?;
        let (name, key) = derived.split_first_chunk().ok_or(Unspecified)?;
        Ok(Self { name: *name, key: RandomizedNonceKey::new(&AES_256_GCM_SIV, key)? })
    }
}

/// The length of the derived value.
struct Derived;

impl KeyType for Derived {
    fn len(&self) -> usize {
        NAME_LEN + SEALING_KEY_LEN
    }
}

/// Limits tickets to the validity of the client's certificate: a client that resumes a session is
/// not asked for its certificate again (RFC 8446 section 4.6.1).
#[derive(Debug)]
pub(crate) struct BoundTicketer {
    inner: Arc<dyn ProducesTickets>,
}

thread_local! {
    /// The lifetime of the last sealed ticket: rustls asks for it next, on this thread.
    static LIFETIME_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

impl BoundTicketer {
    pub(crate) fn new(inner: Arc<dyn ProducesTickets>) -> Self {
        Self { inner }
    }

    /// Seals a session, preceded by the time at which it ends. A session whose certificate has
    /// expired or cannot be read gets no ticket.
    fn seal(&self, session: &[u8], now: u64) -> Option<Vec<u8>> {
        let end = end_of_certificates(session)?;
        let left = end.checked_sub(now).filter(|left| *left > 0)?;
        let lifetime = u32::try_from(left).unwrap_or(u32::MAX).min(self.inner.lifetime());
        let mut content = Zeroizing::new(Vec::with_capacity(TIME_LEN + session.len()));
        content.extend_from_slice(&end.to_be_bytes());
        content.extend_from_slice(session);
        LIFETIME_LEFT.set(Some(lifetime));
        self.inner.encrypt(&content)
    }

    fn open(&self, ticket: &[u8], now: u64) -> Option<Vec<u8>> {
        let content = Zeroizing::new(self.inner.decrypt(ticket)?);
        let (end, session) = content.split_first_chunk::<TIME_LEN>()?;
        (now < u64::from_be_bytes(*end)).then(|| session.to_vec())
    }
}

impl ProducesTickets for BoundTicketer {
    fn enabled(&self) -> bool {
        self.inner.enabled()
    }

    fn lifetime(&self) -> u32 {
        LIFETIME_LEFT.take().unwrap_or_else(|| self.inner.lifetime())
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        LIFETIME_LEFT.set(None);
        self.seal(plain, now()?)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.open(cipher, now()?)
    }
}

/// Returns when the first certificate of the session's client expires, in seconds since 1970; the
/// end of time if there is none. `None`: the session does not have the form that rustls gives it,
/// which a test compares.
fn end_of_certificates(session: &[u8]) -> Option<u64> {
    let mut rest = session;
    let mut take = |len: usize| {
        let (taken, left) = rest.split_at_checked(len)?;
        rest = left;
        Some(taken)
    };
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
    // Skips the server name, if there is one; version and cipher suite; the secret.
    if take(1)? == [1] {
        let len = number(take(1)?);
        take(len)?;
    }
    take(4)?;
    let len = number(take(1)?);
    take(len)?;
    // Whether it is an extended master secret; and whether there are certificates.
    take(1)?;
    if take(1)? == [0] {
        return Some(u64::MAX);
    }
    let mut chain = {
        let len = number(take(3)?);
        take(len)?
    };
    let mut end = u64::MAX;
    while let Some((len, after)) = chain.split_first_chunk::<3>() {
        let (certificate, after) = after.split_at_checked(number(len))?;
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        // Includes the last second (RFC 5280 section 4.1.2.5).
        let last = parsed.validity().not_after.timestamp();
        end = end.min(u64::try_from(last).unwrap_or(0).saturating_add(1));
        chain = after;
    }
    Some(end)
}

/// Returns the seconds since 1970.
pub(crate) fn now() -> Option<u64> {
    SystemTime::now().duration_since(UNIX_EPOCH).ok().map(|now| now.as_secs())
}

/// Reads the keys of a file, one after the other.
fn read_keys(file: &Path) -> Result<Zeroizing<Vec<u8>>, ConfigError> {
    let wrong = |what: String| ConfigError::new(file, what);
    // The command never names an existing file: its keys may only have another form.
    let recipe = |new: &dyn fmt::Display| {
        format!(
            "make a key with `openssl rand -out {new} {KEY_LEN} && chmod 600 {new}`, and copy the \
             file to the other servers"
        )
    };
    let new_file = || recipe(&"NEW_FILE");
    let (keys, metadata) = file::read_with_metadata(file).map_err(|error| {
        let hint = match error.is_missing() {
            true => format!(", or {}", recipe(&file.display())),
            false => String::new(),
        };
        wrong(format!("{error}{hint}")).passing_if(error.may_pass())
    })?;
    let keys = Zeroizing::new(keys);
    if is_open_to_all(&metadata) {
        let file = file.display();
        return Err(wrong(format!(
            "every user can read or replace these keys, which decrypt sessions: \
             `chmod 600 {file}`, or 640 with a group of its own; of a Secret that Kubernetes \
             mounts, set `defaultMode: 0400`"
        )));
    }
    if keys.len() > KEY_LEN * MAX_KEYS {
        return Err(wrong(format!("has more than {MAX_KEYS} keys of {KEY_LEN} bytes")));
    }
    let is_text = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=\r\n".contains(byte);
    if !keys.is_empty() && keys.iter().all(is_text) {
        return Err(wrong(format!(
            "has text, and not keys of {KEY_LEN} bytes: decode a key in base64 with \
             `openssl base64 -d -A`, or {}",
            new_file()
        )));
    }
    if keys.is_empty() || keys.len() % KEY_LEN != 0 {
        let len = keys.len();
        return Err(wrong(format!(
            "has {len} bytes, and each key for session tickets has {KEY_LEN}: {}",
            new_file()
        )));
    }
    let is_blank = |key: &[u8]| key.iter().all(|byte| *byte == key[0]);
    if let Some(at) = keys.chunks(KEY_LEN).position(is_blank) {
        let number = at + 1;
        return Err(wrong(format!("key {number} is one byte repeated: {}", new_file())));
    }
    Ok(keys)
}

/// Returns whether users other than the file's owner and group can read or write it.
#[cfg(unix)]
fn is_open_to_all(metadata: &Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o007 != 0
}

#[cfg(not(unix))]
fn is_open_to_all(_: &Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticketer(keys: &[u8], policy: &[u8]) -> SharedTicketer {
        let key = |byte: &u8| TicketKey::new(&[*byte; KEY_LEN], policy).unwrap();
        SharedTicketer { keys: keys.iter().map(key).collect() }
    }

    #[test]
    fn the_first_key_seals_and_all_open() {
        let (old, both, new) = (ticketer(&[1], b""), ticketer(&[2, 1], b""), ticketer(&[2], b""));
        let of_old = old.seal(b"a session", 7).unwrap();
        let of_both = both.seal(b"a session", 7).unwrap();
        assert_eq!(both.open(&of_old, 7).unwrap(), b"a session");
        assert_eq!(new.open(&of_both, 7).unwrap(), b"a session");
        assert_eq!(new.open(&of_old, 7), None);
        assert_eq!(old.open(&of_both, 7), None);
        assert_ne!(of_both, both.seal(b"a session", 7).unwrap(), "its nonce is another one");
    }

    #[test]
    fn policies_have_keys_and_names_of_their_own() {
        let (none, required) = (ticketer(&[1], b""), ticketer(&[1], b"required"));
        assert_ne!(none.keys[0].name, required.keys[0].name);
        let mut ticket = none.seal(b"a session", 7).unwrap();
        assert_eq!(required.open(&ticket, 7), None);
        ticket[..NAME_LEN].copy_from_slice(&required.keys[0].name);
        assert_eq!(required.open(&ticket, 7), None, "nor with the name of the key");
    }

    #[test]
    fn a_ticket_that_was_changed_or_cut_is_not_accepted() {
        let ticketer = ticketer(&[1], b"");
        let ticket = ticketer.seal(b"a session", 7).unwrap();
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(ticketer.open(&changed, 7), None, "byte {at}");
            assert_eq!(ticketer.open(&ticket[..at], 7), None, "cut at {at}");
        }
    }

    #[test]
    fn a_ticket_has_an_end() {
        let (ticketer, day) = (ticketer(&[1], b""), 86_400);
        let ticket = ticketer.seal(b"a session", day).unwrap();
        for (now, is_accepted) in [
            (day - 600, true),
            (day, true),
            (day + u64::from(LIFETIME), true),
            (day + u64::from(LIFETIME) + 1, false),
        ] {
            assert_eq!(ticketer.open(&ticket, now).is_some(), is_accepted, "{now}");
        }
    }

    /// Keeps the sealed sessions.
    #[derive(Debug, Default)]
    struct Spy(std::sync::Mutex<Vec<u8>>);

    impl ProducesTickets for Spy {
        fn enabled(&self) -> bool {
            true
        }

        fn lifetime(&self) -> u32 {
            LIFETIME
        }

        fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
            *self.0.lock().unwrap() = plain.to_vec();
            Some(vec![0; 8])
        }

        fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
            None
        }
    }

    /// A session in rustls's form, of a client with a certificate that ends in that year or without
    /// one.
    fn session(version: &'static rustls::SupportedProtocolVersion, year: Option<i32>) -> Vec<u8> {
        use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
        use rustls::{
            ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection,
        };

        let made = |year| {
            let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().unwrap();
            let der = params.self_signed(&key).unwrap().der().clone();
            (der, PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der())))
        };
        let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let roots = |der| {
            let mut roots = RootCertStore::empty();
            roots.add(der).unwrap();
            Arc::new(roots)
        };
        let (of_server, of_client) = (made(2100), year.map(made));
        let builder = ServerConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(&[version]).unwrap();
        let builder = match &of_client {
            None => builder.with_no_client_auth(),
            Some((der, _)) => {
                let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
                    roots(der.clone()),
                    provider(),
                );
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let spy = Arc::new(Spy::default());
        let server = builder.with_single_cert(vec![of_server.0.clone()], of_server.1);
        let mut server = server.unwrap();
        server.ticketer = spy.clone();
        let builder = ClientConfig::builder_with_provider(provider());
        let builder = builder.with_protocol_versions(&[version]).unwrap();
        let builder = builder.with_root_certificates(roots(of_server.0));
        let client = match of_client {
            None => builder.with_no_client_auth(),
            Some((der, key)) => builder.with_client_auth_cert(vec![der], key).unwrap(),
        };
        let mut server = ServerConnection::new(Arc::new(server)).unwrap();
        let name = "localhost".try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(client), name).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut bytes = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut bytes).unwrap();
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                server.read_tls(&mut rest).unwrap();
                server.process_new_packets().unwrap();
            }
            let mut bytes = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut bytes).unwrap();
            }
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest).unwrap();
                client.process_new_packets().unwrap();
            }
        }
        let sealed = spy.0.lock().unwrap().clone();
        assert!(!sealed.is_empty(), "it has a ticket");
        sealed
    }

    /// 2050-01-01, 00:00:00.
    const YEAR_2050: u64 = 2_524_608_000;

    #[test]
    fn rfc8446_4_6_1_a_ticket_ends_with_the_certificate_of_its_client() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let session = session(version, Some(2050));
            let end = end_of_certificates(&session).unwrap();
            assert_eq!(end, YEAR_2050 + 1, "{version:?}");
            let bound = BoundTicketer::new(Arc::new(ticketer(&[1], b"")));
            for (left, lifetime) in [(60, 60), (u64::from(LIFETIME) + 7, LIFETIME)] {
                let ticket = bound.seal(&session, end - left).unwrap();
                assert_eq!(ProducesTickets::lifetime(&bound), lifetime);
                assert_eq!(ProducesTickets::lifetime(&bound), LIFETIME, "of the next one");
                assert_eq!(bound.open(&ticket, end - 1).as_ref(), Some(&session));
                assert_eq!(bound.open(&ticket, end), None);
            }
            assert_eq!(bound.seal(&session, end), None);
        }
    }

    #[test]
    fn a_session_without_a_certificate_has_the_whole_lifetime() {
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            assert_eq!(end_of_certificates(&session(version, None)), Some(u64::MAX));
        }
        for broken in [&[][..], &[1, 9, 0], &[0, 3, 4, 19, 1, 0, 1, 1, 0, 0, 9]] {
            assert_eq!(end_of_certificates(broken), None, "{broken:?}");
        }
    }
}
