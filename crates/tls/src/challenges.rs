//! Answers to the challenges of an authority that validates a domain.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;

/// The protocol for validations over TLS (ALPN), RFC 8737 section 6.2.
pub(crate) const ACME_TLS_1: &[u8] = b"acme-tls/1";

/// Returns whether the client is an authority that validates a name: by RFC 8737 section 3 such a
/// client offers only this protocol.
pub(crate) fn is_validation(hello: &ClientHello<'_>) -> bool {
    let mut offered = hello.alpn().into_iter().flatten();
    offered.next() == Some(ACME_TLS_1) && offered.next().is_none()
}

/// The path before a token, RFC 8555 section 8.3.
const WELL_KNOWN: &str = "/.well-known/acme-challenge/";

/// The answers to pending challenges. Event loops read them; the client of the authority writes
/// them.
#[derive(Default)]
pub struct Challenges(RwLock<Answers>);

#[derive(Default)]
struct Answers {
    /// By the validated name: TLS-ALPN-01.
    certificates: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// By token: HTTP-01.
    key_authorizations: HashMap<Box<str>, Box<str>>,
}

impl Challenges {
    /// Returns the key authorization for a request with this `path` (HTTP-01).
    #[must_use]
    pub fn http_01(&self, path: &str) -> Option<Box<str>> {
        let token = path.strip_prefix(WELL_KNOWN)?;
        self.read(|answers| answers.key_authorizations.get(token).cloned())
    }

    /// Returns the certificate that validates a name (TLS-ALPN-01).
    #[must_use]
    pub fn tls_alpn_01(&self, name: &str) -> Option<Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        self.read(|answers| answers.certificates.get(name.as_str()).cloned())
    }

    fn read<T>(&self, find: impl FnOnce(&Answers) -> T) -> T {
        find(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Challenges {
    /// Adds the certificate that validates a name (TLS-ALPN-01).
    pub fn add_certificate(&self, name: &str, certificate: CertifiedKey) {
        let name = name.to_ascii_lowercase().into();
        self.write(|answers| drop(answers.certificates.insert(name, Arc::new(certificate))));
    }

    /// Adds the answer to requests for a token (HTTP-01).
    pub fn add_key_authorization(&self, token: &str, key_authorization: &str) {
        let (token, answer) = (token.into(), key_authorization.into());
        self.write(|answers| drop(answers.key_authorizations.insert(token, answer)));
    }

    /// Removes all answers.
    pub fn clear(&self) {
        self.write(|answers| *answers = Answers::default());
    }

    fn write(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl fmt::Debug for Challenges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Challenges")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc8555_8_3_a_path_leads_to_the_key_authorization_of_its_token() {
        let challenges = Challenges::default();
        challenges.add_key_authorization("evaGxfADs6pSRb2LAv9IZ", "evaGxfADs6pSRb2LAv9IZ.9jg46");
        let answer = |path: &str| challenges.http_01(path);
        let found = answer("/.well-known/acme-challenge/evaGxfADs6pSRb2LAv9IZ");
        assert_eq!(found.as_deref(), Some("evaGxfADs6pSRb2LAv9IZ.9jg46"));
        for path in ["/", "/.well-known/acme-challenge/", "/.well-known/acme-challenge/other"] {
            assert_eq!(answer(path), None, "{path}");
        }
        challenges.clear();
        assert_eq!(answer("/.well-known/acme-challenge/evaGxfADs6pSRb2LAv9IZ"), None);
    }
}
