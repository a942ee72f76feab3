//! The tags by which sticky cookies name a backend.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;
use std::sync::OnceLock;
use throng_io::PeerAddress;

use siphasher::sip::SipHasher24;
use throng_config::Token;
use throng_proto::http1::Request;

/// The key of sticky cookies: without it a client can neither read a backend's address from a
/// cookie, nor forge a cookie for a backend. A key from a secret also hashes other bindings:
/// without it a client cannot choose its backend by the value that it sends.
#[derive(Clone, PartialEq, Eq)]
pub struct CookieKey {
    key: [u8; 16],
    /// Whether the key was drawn at random: another process then has another key.
    is_drawn: bool,
}

impl CookieKey {
    /// Creates the key from a secret: the same in every process, for balancers that run in
    /// parallel.
    #[must_use]
    pub fn of(secret: &Token) -> Self {
        let hasher = siphasher::sip128::SipHasher24::new();
        Self { key: hasher.hash(secret.as_bytes()).as_bytes(), is_drawn: false }
    }

    /// Returns the cookie's tag for the backend at `address`.
    #[must_use]
    pub fn tag(&self, address: PeerAddress) -> u64 {
        self.tag_in("", address)
    }

    /// Returns the tag for the backend at `address` in the pool of this name; an empty name stands
    /// for the default pool.
    pub(crate) fn tag_in(&self, pool: &str, address: PeerAddress) -> u64 {
        let mut hasher = SipHasher24::new_with_key(&self.key);
        hasher.write(pool.as_bytes());
        match address {
            PeerAddress::Ip(address) => {
                match address.ip().to_canonical() {
                    IpAddr::V4(ip) => hasher.write(&ip.octets()),
                    IpAddr::V6(ip) => hasher.write(&ip.octets()),
                }
                hasher.write(&address.port().to_be_bytes());
            }
            PeerAddress::Unix(path) => hasher.write(path.as_str().as_bytes()),
        }
        hasher.finish()
    }

    /// Returns the number of the client with this value, the same in every process with the secret;
    /// `None` without a secret: a drawn key would differ in each balancer and after each start.
    pub(crate) fn hash(&self, value: &[u8]) -> Option<u64> {
        if self.is_drawn {
            return None;
        }
        let mut hasher = SipHasher24::new_with_key(&self.key);
        // Distinct from the tags of backends.
        hasher.write(b"client");
        hasher.write(value);
        Some(hasher.finish())
    }
}

impl Default for CookieKey {
    /// Returns a key that is drawn at random when the process begins.
    fn default() -> Self {
        static DRAWN: OnceLock<[u8; 16]> = OnceLock::new();
        let key = *DRAWN.get_or_init(|| {
            let draw = || RandomState::new().hash_one(0).to_ne_bytes();
            let mut key = [0; 16];
            key[..8].copy_from_slice(&draw());
            key[8..].copy_from_slice(&draw());
            key
        });
        Self { key, is_drawn: true }
    }
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CookieKey(secret)")
    }
}

/// Returns the value of the first cookie called `name`.
pub(crate) fn cookie_value<'a>(request: &Request<'a>, name: &str) -> Option<&'a [u8]> {
    cookies(request).find(|(cookie, _)| *cookie == name.as_bytes()).map(|(_, value)| value)
}

/// Returns the pairs of the Cookie header. RFC 6265 section 4.2.1; browsers put `; ` between them,
/// some programs only `;`.
pub(crate) fn cookies<'a>(request: &Request<'a>) -> impl Iterator<Item = (&'a [u8], &'a [u8])> {
    request
        .lines()
        .all_bytes("Cookie")
        .flat_map(|value| value.split(|byte| *byte == b';'))
        .filter_map(|pair| {
            let pair = pair.trim_ascii();
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            Some((&pair[..equals], &pair[equals + 1..]))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_depends_on_the_secret_and_the_address_alone() {
        let key = |secret: &str| CookieKey::of(&Token::new(secret).unwrap());
        let (one, other) = (key("0123456789abcdef"), key("0123456789abcdeF"));
        let address = |text: &str| text.parse().unwrap();
        let backend = address("127.0.0.1:9001");
        assert_eq!(one.tag(backend), key("0123456789abcdef").tag(backend));
        assert_eq!(one.tag(backend), one.tag(address("[::ffff:127.0.0.1]:9001")));
        let socket = address("unix:/run/app.sock");
        assert_eq!(one.tag(socket), key("0123456789abcdef").tag(address("unix:/run/app.sock")));
        assert_ne!(one.tag(socket), one.tag(address("unix:/run/app2.sock")));
        for different in ["127.0.0.1:9002", "127.0.0.2:9001", "[::1]:9001", "unix:/run/app.sock"] {
            assert_ne!(one.tag(backend), one.tag(address(different)));
        }
        assert_ne!(one.tag(backend), other.tag(backend));
        assert_eq!(CookieKey::default(), CookieKey::default(), "drawn once");
        assert_ne!(CookieKey::default().tag(backend), one.tag(backend));
        assert_eq!(format!("{one:?}"), "CookieKey(secret)");
    }
}
