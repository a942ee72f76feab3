//! Server names whose TLS is not ended here. `hello.rs` follows a ClientHello until it is whole,
//! rustls reads it in `handshake.rs`, and `Event::PassedThrough` reports the connection.

use std::collections::HashSet;
use std::sync::Arc;

use rustls::pki_types::DnsName;

use crate::challenges::{Challenges, is_validation};
use crate::handshake::read_hello;

/// The pattern for all names that match no other, and for clients that send no name.
const ANY: &str = "*";

/// Patterns of server names whose connections are passed through.
#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    patterns: HashSet<Box<str>>,
    /// Names and wildcards of certificates, including a certificate that is not issued yet: a name
    /// of a certificate wins over a wildcard here.
    certified: Arc<HashSet<Box<str>>>,
    /// Challenges of the authority that issues a certificate.
    challenges: Option<Arc<Challenges>>,
}

impl Passthrough {
    pub(crate) fn new<'a>(
        patterns: &[Box<str>],
        certified: impl Iterator<Item = &'a str>,
        challenges: Option<Arc<Challenges>>,
    ) -> Self {
        let patterns = patterns.iter().cloned().collect();
        let certified: HashSet<_> =
            certified.map(|name| name.to_ascii_lowercase().into()).collect();
        Self { patterns, certified: Arc::new(certified), challenges }
    }

    /// Returns a copy with these patterns and the same certificates; `None` if the patterns are the
    /// same.
    pub(crate) fn with_patterns(&self, patterns: HashSet<Box<str>>) -> Option<Self> {
        if self.patterns == patterns {
            return None;
        }
        let (certified, challenges) = (Arc::clone(&self.certified), self.challenges.clone());
        Some(Self { patterns, certified, challenges })
    }

    /// Takes the patterns from `other`, and keeps its own certificates.
    pub(crate) fn keep_patterns(&mut self, of: &Self) {
        self.patterns.clone_from(&of.patterns);
    }

    /// Returns the matching pattern for a complete ClientHello, and the name in it; `None` if its
    /// TLS is ended here, or rustls cannot read it.
    pub(crate) fn route(&self, hello: &[u8]) -> Option<(Box<str>, Option<Box<str>>)> {
        if self.patterns.is_empty() {
            return None;
        }
        let (name, validates) = read_hello(hello, |hello| {
            (hello.server_name().map(Box::<str>::from), is_validation(hello))
        })?;
        if validates && name.as_deref().is_some_and(|name| self.is_challenged(name)) {
            return None;
        }
        let pattern = self.find(name.as_deref())?;
        Some((pattern.into(), name))
    }

    /// Returns whether an authority was asked to validate that name here.
    fn is_challenged(&self, name: &str) -> bool {
        let challenges = self.challenges.as_ref();
        challenges.is_some_and(|challenges| challenges.tls_alpn_01(name).is_some())
    }

    /// Returns the pattern for a name: the name itself, then a wildcard for its first label, then
    /// `*`.
    fn find(&self, name: Option<&str>) -> Option<&str> {
        if let Some(name) = name {
            let name = canonical(name);
            let wildcard = name.split_once('.').map(|(_, parent)| format!("*.{parent}"));
            for form in [Some(name), wildcard].into_iter().flatten() {
                if let Some(pattern) = self.patterns.get(form.as_str()) {
                    return Some(pattern);
                }
                if self.certified.contains(form.as_str()) {
                    return None;
                }
            }
        }
        self.patterns.get(ANY).map(Box::as_ref)
    }
}

/// Returns a server name in the form used for comparison: in lower case, without a final dot.
pub(crate) fn canonical(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns whether `pattern` is a server name in lower case, `*.` and a domain, or `*`.
#[must_use]
pub fn is_server_name_pattern(pattern: &str) -> bool {
    let name = pattern.strip_prefix("*.").unwrap_or(pattern);
    let is_name = DnsName::try_from(name).is_ok() && !name.ends_with('.');
    pattern == ANY || is_name && !name.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boxed(names: &[&str]) -> Vec<Box<str>> {
        names.iter().map(|name| Box::from(*name)).collect()
    }

    #[test]
    fn the_most_specific_of_patterns_and_certificates_wins() {
        let find = |patterns: &[&str], name: Option<&str>| {
            let certified = boxed(&["www.example.com", "*.example.org"]);
            let certified = certified.iter().map(Box::as_ref);
            let names = Passthrough::new(&boxed(patterns), certified, None);
            names.find(name).map(str::to_owned)
        };
        let all = &["db.example.com", "*.example.com", "a.example.org", "*"];
        for (name, pattern) in [
            (Some("db.example.com"), Some("db.example.com")),
            (Some("DB.Example.com"), Some("db.example.com")),
            (Some("db.example.com."), Some("db.example.com")),
            (Some("www.example.com."), None),
            (Some("x.example.com"), Some("*.example.com")),
            (Some("www.example.com"), None),
            (Some("a.example.org"), Some("a.example.org")),
            (Some("b.example.org"), None),
            (Some("x.y.example.com"), Some("*")),
            (Some("example.com"), Some("*")),
            (Some("localhost"), Some("*")),
            (None, Some("*")),
        ] {
            assert_eq!(find(all, name).as_deref(), pattern, "{name:?}");
        }
        let certified = ["www.example.com"].into_iter();
        let late = Passthrough::new(&[], certified, None);
        let patterns: HashSet<_> = boxed(all).into_iter().collect();
        let late = late.with_patterns(patterns.clone()).unwrap();
        assert!(late.with_patterns(patterns).is_none());
        assert_eq!(late.find(Some("www.example.com")), None);
        assert_eq!(late.find(Some("x.example.com")), Some("*.example.com"));
        assert_eq!(find(&["*.example.com"], None), None);
        assert_eq!(find(&["*.example.com"], Some("x.y.example.com")), None);
    }

    #[test]
    fn a_pattern_is_a_name_a_wildcard_or_all() {
        for pattern in
            ["*", "localhost", "db.example.com", "*.example.com", "xn--bcher-kva.example"]
        {
            assert!(is_server_name_pattern(pattern), "{pattern}");
        }
        for pattern in
            ["", "*.", "a.*.com", "*a.com", "10.0.0.1", "::1", "DB.example.com", "a b", "a."]
        {
            assert!(!is_server_name_pattern(pattern), "{pattern}");
        }
    }
}
