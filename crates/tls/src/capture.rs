//! Facts of a handshake that rustls passes only to callbacks: the traffic secrets, and the server
//! name that the client asked for.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use rustls::KeyLog;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use zeroize::Zeroize;

use crate::cipher::MAX_SECRET;

thread_local! {
    /// Filled by [`Capture`] while rustls does a step of a handshake, and emptied after it.
    pub(crate) static CAPTURED: RefCell<Captured> = RefCell::default();
}

/// Facts of a handshake that rustls passes only to callbacks.
#[derive(Default)]
pub(crate) struct Captured {
    pub(crate) secrets: Secrets,
    pub(crate) server_name: Option<Arc<String>>,
    /// The last captured name: nearly all clients of a server ask for the same.
    last_name: Option<Arc<String>>,
    /// No certificate was found for the client.
    pub(crate) lacks_certificate: bool,
}

impl Captured {
    pub(crate) fn wipe(&mut self) {
        self.secrets.wipe();
        (self.server_name, self.lacks_certificate) = (None, false);
    }

    /// Returns a name in memory that handshakes share.
    fn share(&mut self, name: &str) -> Arc<String> {
        match &self.last_name {
            Some(last) if **last == *name => Arc::clone(last),
            _ => Arc::clone(self.last_name.insert(Arc::new(name.to_owned()))),
        }
    }
}

/// The traffic secrets of a handshake, as far as they are known; wiped when dropped. The type has
/// only byte fields, so that it fits in the space of the session's keys.
#[derive(Default)]
pub struct Secrets {
    pub(crate) client: Secret,
    pub(crate) server: Secret,
}

impl Secrets {
    /// Moves the secrets of `more` into this value, and wipes `more`. A plain move would leave them
    /// on the stack.
    pub(crate) fn add(&mut self, more: &mut Self) {
        for (secret, more) in [(&mut self.client, &more.client), (&mut self.server, &more.server)] {
            if let Some(bytes) = more.bytes() {
                secret.set(bytes);
            }
        }
        more.wipe();
    }

    fn wipe(&mut self) {
        self.client.wipe();
        self.server.wipe();
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// A traffic secret, wiped when dropped.
pub(crate) struct Secret {
    bytes: [u8; MAX_SECRET],
    len: u8,
}

impl Default for Secret {
    fn default() -> Self {
        Self { bytes: [0; MAX_SECRET], len: 0 }
    }
}

impl Secret {
    fn set(&mut self, secret: &[u8]) {
        if let Some(bytes) = self.bytes.get_mut(..secret.len()) {
            bytes.copy_from_slice(secret);
            self.len = secret.len() as u8;
        }
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        (self.len > 0).then_some(&self.bytes[..usize::from(self.len)])
    }

    fn wipe(&mut self) {
        self.bytes.zeroize();
        self.len = 0;
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// Captures what passes through a callback of rustls.
#[derive(Debug)]
pub(crate) struct Capture<T> {
    pub(crate) next: T,
}

const CLIENT_SECRET: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_SECRET: &str = "SERVER_TRAFFIC_SECRET_0";

impl KeyLog for Capture<Arc<dyn KeyLog>> {
    fn log(&self, label: &str, client_random: &[u8], secret: &[u8]) {
        match label {
            CLIENT_SECRET => {
                CAPTURED.with_borrow_mut(|captured| captured.secrets.client.set(secret))
            }
            SERVER_SECRET => {
                CAPTURED.with_borrow_mut(|captured| captured.secrets.server.set(secret))
            }
            _ => {}
        }
        if self.next.will_log(label) {
            self.next.log(label, client_random, secret);
        }
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_SECRET | SERVER_SECRET) || self.next.will_log(label)
    }
}

impl ResolvesServerCert for Capture<Arc<dyn ResolvesServerCert>> {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        CAPTURED.with_borrow_mut(|captured| {
            captured.server_name = hello.server_name().map(|name| captured.share(name));
        });
        let found = self.next.resolve(hello);
        CAPTURED.with_borrow_mut(|captured| captured.lacks_certificate = found.is_none());
        found
    }

    fn only_raw_public_keys(&self) -> bool {
        self.next.only_raw_public_keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_fit_where_keys_will_be() {
        assert_eq!((size_of::<Secrets>(), align_of::<Secrets>()), (98, 1));
    }

    #[test]
    fn captured_secrets_are_wiped_where_they_were() {
        let (mut from, mut to) = (Secrets::default(), Secrets::default());
        from.client.set(&[1; 32]);
        from.server.set(&[2; 48]);
        to.add(&mut from);
        assert_eq!(to.client.bytes(), Some(&[1; 32][..]));
        assert_eq!(to.server.bytes(), Some(&[2; 48][..]));
        for secret in [&from.client, &from.server] {
            assert_eq!((secret.bytes(), secret.bytes), (None, [0; MAX_SECRET]));
        }
        // A later step does not replace known secrets.
        to.add(&mut from);
        assert_eq!(to.server.bytes(), Some(&[2; 48][..]));
    }

    #[test]
    fn handshakes_share_the_name_that_was_asked_for_last() {
        let mut captured = Captured::default();
        let [one, same, other] = ["a.example", "a.example", "b"].map(|name| captured.share(name));
        assert!(Arc::ptr_eq(&one, &same) && *other == "b");
    }
}
