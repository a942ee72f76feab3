//! Origin check: which web pages may open a WebSocket.
//! [RFC 6455 section 10.2](https://www.rfc-editor.org/rfc/rfc6455#section-10.2).

use std::fmt;
use std::net::Ipv6Addr;

use crate::hosts;

/// The origins whose pages are accepted.
///
/// A browser always sends the true `Origin`; other clients need not send it and can lie. So this
/// protects users of browsers and does not replace authentication.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Origins {
    /// Pages of the host that the request is for, and requests without `Origin`. The default.
    #[default]
    SameHost,
    /// Pages of these origins, and requests without `Origin`. Each origin is a scheme and a host,
    /// with a port unless it is the scheme's default, such as `https://app.example.com`;
    /// `https://*.example.com` for all subdomains of a domain; `null` for pages without an origin,
    /// such as sandboxed pages and local files; or `file://`.
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

    /// Checks the members of a list.
    ///
    /// # Errors
    /// The first member that no browser sends, so that it could never match; with the remedy.
    pub fn check(&self) -> Result<(), String> {
        let Self::List(list) = self else { return Ok(()) };
        list.iter().try_for_each(|origin| {
            Self::check_member(origin).map_err(|remedy| format!("the origin {origin:?}: {remedy}"))
        })
    }

    /// Checks a member of a list.
    ///
    /// # Errors
    /// No browser sends the member, so that it could never match. The error is the remedy.
    pub fn check_member(text: &str) -> Result<(), String> {
        match text {
            "*" | "null" | "file://" => Ok(()),
            _ => check_origin(text),
        }
    }

    /// Returns whether a request for `host` (see [`Request::host`](crate::Request::host)) with
    /// these `Origin` headers is accepted. Only `Any` accepts several headers.
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
        let Ok(text) = str::from_utf8(origin) else { return false };
        let origin = Origin::parse(text);
        match self {
            Self::Any => true,
            Self::SameHost => {
                host.zip(origin).is_some_and(|(host, origin)| origin.is_of_host(host))
            }
            Self::List(list) => list.iter().any(|known| match origin {
                Some(origin) => Origin::parse(known).is_some_and(|known| known.covers(&origin)),
                None => matches!(text, "null" | "file://") && known == text,
            }),
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

/// Checks the form of an origin, or of an origin with `*.` for all subdomains. The error is the
/// remedy.
fn check_origin(text: &str) -> Result<(), String> {
    if text.contains(|c: char| c.is_whitespace() || matches!(c, ';' | ',')) {
        return Err("several are separated by commas, or are a list".to_owned());
    }
    let Some((scheme, rest)) = text.split_once("://") else {
        let text = text.trim_start_matches('.');
        return Err(format!("a browser sends the scheme, too: write \"https://{text}\""));
    };
    let is_scheme = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.');
    if scheme.is_empty() || !scheme.chars().all(is_scheme) {
        return Err("it has no scheme: write for example \"https://example.com\"".to_owned());
    }
    let is_websocket = ["ws", "wss"].iter().any(|it| scheme.eq_ignore_ascii_case(it));
    if is_websocket {
        let scheme = if scheme.len() == 3 { "https" } else { "http" };
        return Err(format!("a browser sends the origin of the page: write \"{scheme}://{rest}\""));
    }
    if let Some((authority, _)) = rest.split_once(['/', '?', '#']) {
        return Err(format!("a browser sends no path: write \"{scheme}://{authority}\""));
    }
    if let Some((_, host)) = rest.rsplit_once('@') {
        return Err(format!("a browser sends no user: write \"{scheme}://{host}\""));
    }
    // The port of an address without its closing bracket is not recognizable.
    let end = match rest.starts_with('[') {
        true => rest.find(']').unwrap_or(rest.len()),
        false => 0,
    };
    let (host, port) = match rest[end..].find(':') {
        Some(colon) => (&rest[..end + colon], Some(&rest[end + colon + 1..])),
        None => (rest, None),
    };
    match port {
        None => {}
        Some("*") => return Err("name each port; without one it is the scheme's own".to_owned()),
        Some(port) => {
            let is_digit = |byte: u8| byte.is_ascii_digit();
            let number = port.parse().ok().filter(|port: &u16| *port > 0);
            if number.is_none() || !port.bytes().all(is_digit) {
                return Err(format!(
                    "{port:?} is not a port: write 1 to 65535, or \"{scheme}://{host}\" for the \
                     default"
                ));
            }
        }
    }
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']').unwrap_or(address);
        return match address.parse::<Ipv6Addr>() {
            Ok(own) if serialized(own).eq_ignore_ascii_case(address) && host.ends_with(']') => {
                Ok(())
            }
            Ok(own) => Err(format!("a browser sends another form: write [{}]", serialized(own))),
            Err(_) => Err("it has no IPv6 address: write for example [2001:db8::1]".to_owned()),
        };
    }
    hosts::check(host).map_err(|remedy| format!("its host {host:?}: {remedy}"))
}

/// Returns an address as browsers write it: without the four numbers of an IPv4 address
/// ([URL, section 3.5](https://url.spec.whatwg.org/#concept-ipv6-serializer)).
fn serialized(address: Ipv6Addr) -> String {
    match address.to_ipv4_mapped() {
        Some(_) => {
            let [.., high, low] = address.segments();
            format!("::ffff:{high:x}:{low:x}")
        }
        None => address.to_string(),
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

    /// Returns whether a page of `other` belongs to this origin, whose host may be a pattern.
    fn covers(&self, other: &Self) -> bool {
        self.scheme.eq_ignore_ascii_case(other.scheme)
            && hosts::matches(self.host, other.host)
            && self.port() == other.port()
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

    #[test]
    fn patterns_and_names_without_a_host_can_be_listed() {
        let listed = ["https://*.example.com", "http://*.test:8080", "null", "file://"];
        let origins = Origins::list(listed);
        assert_eq!(origins.check(), Ok(()));
        for (origin, expected) in [
            ("https://a.example.com", true),
            ("https://b.A.example.com:443", true),
            ("https://example.com", false),
            ("https://evilexample.com", false),
            ("http://a.example.com", false),
            ("http://a.test:8080", true),
            ("http://a.test", false),
            ("null", true),
            ("file://", true),
        ] {
            assert_eq!(allow(&origins, origin, "x"), expected, "{origin}");
        }
        let others = Origins::list(["https://a.example"]);
        assert!(!allow(&others, "null", "x") && !allow(&others, "file://", "x"));
    }

    #[test]
    fn origins_that_no_browser_sends_are_refused_with_the_form_that_matches() {
        for (text, remedy) in [
            ("https://app.example/", "write \"https://app.example\""),
            ("https://app.example/path", "write \"https://app.example\""),
            ("app.example", "write \"https://app.example\""),
            ("localhost:3000", "write \"https://localhost:3000\""),
            ("*.example.com", "write \"https://*.example.com\""),
            ("https://app.example:abc", "\"abc\" is not a port"),
            ("https://app.example:+80", "\"+80\" is not a port"),
            ("https://app.example:0", "\"0\" is not a port"),
            ("https://app.example:", "\"\" is not a port"),
            ("http://localhost:*", "name each port"),
            ("https://a.example https://b.example", "commas"),
            ("https://a.example;https://b.example", "commas"),
            ("wss://app.example", "write \"https://app.example\""),
            ("https://user@app.example", "write \"https://app.example\""),
            ("https://b\u{fc}cher.example", "write \"xn--bcher-kva.example\""),
            ("https://a.*.example", "*.example.com"),
            ("https://", "not a host's name"),
            ("https://[0:0::1]", "write [::1]"),
            ("https://[::1", "write [::1]"),
            ("https://[::ffff:1.2.3.4]", "write [::ffff:102:304]"),
            ("https://*.192.0.2.1", "subdomains"),
            ("https://127.1", "four numbers"),
            ("://a.example", "scheme"),
        ] {
            let error = Origins::list([text]).check().unwrap_err();
            assert!(error.contains(remedy), "{text}: {error}");
        }
        for text in [
            "https://app.example",
            "https://app.example:8443",
            "http://[::1]:3000",
            "https://[::ffff:102:304]",
            "http://127.0.0.1",
            "capacitor://localhost",
            "chrome-extension://abcdefghijklmnop",
            "http://localhost",
        ] {
            assert_eq!(Origins::list([text]).check(), Ok(()), "{text}");
        }
    }
}
