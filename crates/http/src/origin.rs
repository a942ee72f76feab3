//! Origin check: which web pages may open a WebSocket.
//! [RFC 6455 section 10.2](https://www.rfc-editor.org/rfc/rfc6455#section-10.2).

use std::fmt;

/// The origins whose pages are accepted.
///
/// A browser always sends the true `Origin`; other clients need not send it and can lie. So this
/// protects users of browsers and does not replace authentication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// Pages of the host that the request is for, and requests without `Origin`. The default.
    #[default]
    SameHost,
    /// Pages of these origins, such as `https://app.example.com`, and requests without `Origin`.
    List(Vec<String>),
    /// All origins.
    Any,
}

impl Origins {
    /// Creates a list, or `Any` if one of its members is `*`.
    #[must_use]
    pub fn list<S: AsRef<str>>(origins: impl IntoIterator<Item = S>) -> Self {
        let list: Vec<_> = origins.into_iter().map(|origin| origin.as_ref().to_owned()).collect();
        if list.iter().any(|origin| origin == "*") { Self::Any } else { Self::List(list) }
    }

    /// Returns whether a request for `host` (see [`Request::host`](crate::Request::host)) with
    /// these `Origin` headers is accepted. Several headers, or the value `null`, are accepted only
    /// by `Any`.
    pub fn allow<'h>(
        &self,
        origins: impl IntoIterator<Item = &'h [u8]>,
        host: Option<&str>,
    ) -> bool {
        if *self == Self::Any {
            return true;
        }
        let mut origins = origins.into_iter();
        let Some(origin) = origins.next() else { return true };
        if origins.next().is_some() {
            return false;
        }
        let Some(origin) = str::from_utf8(origin).ok().and_then(Origin::parse) else {
            return false;
        };
        match self {
            Self::Any => true,
            Self::SameHost => host.is_some_and(|host| origin.is_of_host(host)),
            Self::List(list) => {
                list.iter().filter_map(|known| Origin::parse(known)).any(|known| known == origin)
            }
        }
    }
}

impl fmt::Display for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SameHost => f.write_str("same host"),
            Self::Any => f.write_str("any"),
            Self::List(list) => f.write_str(&list.join(", ")),
        }
    }
}

/// The parts of `scheme "://" host [ ":" port ]`, RFC 6454 section 7.
#[derive(Clone, Copy, Debug)]
struct Origin<'o> {
    scheme: &'o str,
    host: &'o str,
    port: Option<u16>,
}

impl<'o> Origin<'o> {
    fn parse(text: &'o str) -> Option<Self> {
        let (scheme, authority) = text.split_once("://")?;
        if scheme.is_empty() || authority.contains(['/', '?', '#', '@']) {
            return None;
        }
        let (host, port) = split_port(authority)?;
        (!host.is_empty()).then_some(Self { scheme, host, port })
    }

    /// Returns the port, or the scheme's default.
    fn port(&self) -> Option<u16> {
        self.port.or_else(|| default_port(self.scheme))
    }

    /// Compares with a Host header. It names no scheme, so without a port it means the default port
    /// of the page's scheme.
    fn is_of_host(&self, host: &str) -> bool {
        split_port(host).is_some_and(|(name, port)| {
            self.host.eq_ignore_ascii_case(name)
                && port.or_else(|| default_port(self.scheme)) == self.port()
        })
    }
}

impl PartialEq for Origin<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.scheme.eq_ignore_ascii_case(other.scheme)
            && self.host.eq_ignore_ascii_case(other.host)
            && self.port() == other.port()
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    let is = |known: &str| scheme.eq_ignore_ascii_case(known);
    if is("http") || is("ws") {
        Some(80)
    } else if is("https") || is("wss") {
        Some(443)
    } else {
        None
    }
}

/// Splits off the port, if there is one; the colons inside `[::1]` do not begin a port.
fn split_port(authority: &str) -> Option<(&str, Option<u16>)> {
    let name_end = authority.rfind(']').unwrap_or(0);
    match authority[name_end..].find(':') {
        None => Some((authority, None)),
        Some(colon) => {
            let (name, port) = authority.split_at(name_end + colon);
            let digits = &port[1..];
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            let port = if digits.is_empty() { None } else { Some(digits.parse().ok()?) };
            Some((name, port))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allow(origins: &Origins, origin: &str, host: &str) -> bool {
        origins.allow([origin.as_bytes()], Some(host))
    }

    #[test]
    fn rfc6455_10_2_pages_of_the_same_host_are_accepted() {
        for (origin, host, expected) in [
            ("http://example.com", "example.com", true),
            ("https://example.com", "example.com", true),
            ("https://Example.COM", "example.com:443", true),
            ("http://example.com:80", "example.com", true),
            ("http://localhost:9001", "localhost:9001", true),
            ("http://[::1]:9001", "[::1]:9001", true),
            ("http://[::1]", "[::1]:80", true),
            ("http://localhost:9001", "localhost:9002", false),
            ("https://example.com", "example.com:80", false),
            ("http://evil.example", "example.com", false),
            ("http://example.com.evil.example", "example.com", false),
            ("http://example.com@evil.example", "example.com", false),
            ("http://evilexample.com", "example.com", false),
            ("http://example.com/", "example.com", false),
            ("http://example.com:port", "example.com", false),
            ("null", "example.com", false),
            ("", "", false),
            ("http://", "", false),
        ] {
            assert_eq!(allow(&Origins::SameHost, origin, host), expected, "{origin} at {host}");
        }
    }

    #[test]
    fn a_client_without_origin_is_accepted() {
        assert!(Origins::SameHost.allow([], Some("example.com")));
        assert!(Origins::SameHost.allow([], None));
        assert!(Origins::list(["https://a.example"]).allow([], None));
    }

    #[test]
    fn two_origins_are_refused() {
        let twice = [&b"http://a.example"[..], b"http://a.example"];
        assert!(!Origins::SameHost.allow(twice, Some("a.example")));
        assert!(Origins::Any.allow(twice, Some("a.example")));
    }

    #[test]
    fn a_list_is_compared_as_origins_not_as_text() {
        let origins = Origins::list(["https://app.example.com", "http://localhost:3000"]);
        for (origin, expected) in [
            ("https://app.example.com", true),
            ("https://APP.example.com:443", true),
            ("http://localhost:3000", true),
            ("http://app.example.com", false),
            ("http://localhost", false),
            ("https://other.example.com", false),
            ("null", false),
        ] {
            assert_eq!(allow(&origins, origin, "app.example.com"), expected, "{origin}");
        }
        assert_eq!(Origins::list(["https://a.example", "*"]), Origins::Any);
        assert!(allow(&Origins::Any, "null", "x"));
    }
}
