//! The URLs of servers: `ws`, `wss`, `http` and `https`.

use std::borrow::Cow;
use std::net::{Ipv6Addr, SocketAddr};
use std::{error, fmt};

/// The URL of a WebSocket or HTTP server, parsed; its host is not yet looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    /// `ws`, `wss`, `http` or `https`.
    scheme: &'static str,
    host: String,
    /// The interface of a link-local address.
    zone: Option<String>,
    port: u16,
    resource: Option<String>,
}

/// Returns an address as a Host header has it: without the zone of a link-local one, which means
/// something to this machine only, and which Host has no place for (RFC 3986 section 3.2.2).
#[must_use]
pub fn without_zone(mut address: SocketAddr) -> SocketAddr {
    if let SocketAddr::V6(address) = &mut address {
        address.set_scope_id(0);
    }
    address
}

/// Masks the user and the query values of a URL, for texts that others may see. Returns a text
/// without a scheme unchanged.
#[must_use]
pub fn masked(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, rest)) => format!("{scheme}://{}", masked_rest(rest, end_of_user)),
        None => text.to_owned(),
    }
}

/// Masks the part of a URL after its scheme. `end_of_user` returns where its user ends.
fn masked_rest(rest: &str, end_of_user: impl Fn(&str) -> Option<usize>) -> String {
    let (place, query) = rest.split_once('?').map_or((rest, None), |(at, it)| (at, Some(it)));
    let place = match end_of_user(place) {
        Some(end) => format!("***{}", &place[end..]),
        None => place.to_owned(),
    };
    let pair = |pair: &str| match pair.split_once('=') {
        Some((key, _)) => format!("{key}=***"),
        None => pair.to_owned(),
    };
    let query = query.map(|query| query.split('&').map(pair).collect::<Vec<_>>().join("&"));
    place + &query.map_or_else(String::new, |query| format!("?{query}"))
}

/// Returns the index of the `@` after the user in the part of a URL after its scheme. The password
/// may contain a slash, which should have been encoded.
fn end_of_user(place: &str) -> Option<usize> {
    let authority = place.split('/').next().unwrap_or_default();
    let is_port = |port: &str| port.ends_with(']') || port.bytes().all(|b| b.is_ascii_digit());
    match authority.rsplit_once(':') {
        Some((_, password)) if !is_port(password) => place.rfind('@'),
        _ => authority.rfind('@'),
    }
}

/// The error of a text that is not the URL of a server. `Display` shows the reason and the expected
/// form, and hides the user and the query values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidUrl {
    url: String,
    reason: String,
}

impl fmt::Display for InvalidUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot use the URL {:?}: {}", self.url, self.reason)
    }
}

impl error::Error for InvalidUrl {}

impl Url {
    /// Parses `ws://host[:port][/path][?query]` or `wss://...` ([RFC 6455 section
    /// 3](https://www.rfc-editor.org/rfc/rfc6455#section-3)). The default port is 80, or with TLS
    /// 443.
    ///
    /// # Errors
    /// Not a valid URL; the error shows the expected form.
    pub fn parse_ws(text: &str) -> Result<Self, InvalidUrl> {
        Self::parse_as(["ws", "wss"], text)
    }

    /// Parses `http://host[:port][/path][?query]` or `https://...` ([RFC 9110 section
    /// 4.2](https://www.rfc-editor.org/rfc/rfc9110#section-4.2)). The default port is 80, or with
    /// TLS 443.
    ///
    /// # Errors
    /// Not a valid URL; the error shows the expected form.
    pub fn parse_http(text: &str) -> Result<Self, InvalidUrl> {
        Self::parse_as(["http", "https"], text)
    }

    fn parse_as([plain, secure]: [&'static str; 2], text: &str) -> Result<Self, InvalidUrl> {
        let scheme = plain;
        let shown = match text.contains("://") {
            true => masked(text),
            false => masked_rest(text, |text| text.rfind('@')),
        };
        let hide = |rest| masked_rest(rest, |text| text.rfind('@'));
        let bad = |what: &str| InvalidUrl { url: shown.clone(), reason: what.to_owned() };
        if let Some(at) = text.find(|c: char| c.is_whitespace() || c.is_control() || !c.is_ascii())
        {
            let character = text[at..].chars().next().unwrap_or(' ');
            return Err(bad(&format!("it contains {character:?}; write it percent-encoded")));
        }
        let (typed, rest) = text.split_once("://").ok_or_else(|| {
            let rest = text.trim_start_matches('/');
            // A scheme with only one slash, or without slashes.
            let typed = rest.split_once(':').filter(|(typed, _)| {
                ["ws", "wss", "http", "https"].iter().any(|it| typed.eq_ignore_ascii_case(it))
            });
            if let Some((typed, rest)) = typed {
                let is_secure = typed.ends_with(['s', 'S']) && !typed.eq_ignore_ascii_case("ws");
                let scheme = if is_secure { secure } else { plain };
                let rest = hide(rest.trim_start_matches('/'));
                return bad(&format!("`//` is missing; did you mean {scheme}://{rest}?"));
            }
            bad(&format!("it has no scheme; did you mean {scheme}://{}?", hide(rest)))
        })?;
        let scheme = match typed.to_ascii_lowercase().as_str() {
            typed if typed == plain => plain,
            typed if typed == secure => secure,
            "ws" | "http" => return Err(bad(&format!("did you mean {plain}://{}?", hide(rest)))),
            "wss" | "https" => {
                return Err(bad(&format!("did you mean {secure}://{}?", hide(rest))));
            }
            _ => return Err(bad(&format!("the scheme must be {plain}:// or {secure}://"))),
        };
        if rest.contains('#') {
            return Err(bad(match scheme {
                "ws" | "wss" => "a WebSocket URL has no #fragment (RFC 6455 section 3)",
                _ => "a #fragment is never sent to a server (RFC 9110 section 4.2.5); leave it out",
            }));
        }
        let (authority, resource) = match rest.find(['/', '?']) {
            None => (rest, None),
            Some(at) if rest[at..].starts_with('/') => (&rest[..at], Some(rest[at..].to_owned())),
            Some(at) => (&rest[..at], Some(format!("/{}", &rest[at..]))),
        };
        if end_of_user(rest.split('?').next().unwrap_or_default()).is_some() {
            return Err(bad("a user name in the URL is not supported"));
        }
        let (host, port) = split_port(scheme, authority).map_err(|what| bad(&what))?;
        let (host, zone) = split_zone(host).map_err(|what| bad(&what))?;
        let port = port.unwrap_or(default_port(scheme));
        if host.is_empty() {
            return Err(bad(&format!("it names no host; did you mean {scheme}://127.0.0.1:9001?")));
        }
        let (host, zone) = (host.to_owned(), zone.map(str::to_owned));
        Ok(Self { scheme, host, zone, port, resource })
    }

    /// Returns whether its connections have TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        matches!(self.scheme, "wss" | "https")
    }

    /// Returns the scheme, such as `wss`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Returns the host without brackets: a name, or an address without its zone.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the host as the system's resolver takes it: with the zone of a link-local address.
    #[must_use]
    pub fn lookup_host(&self) -> Cow<'_, str> {
        match &self.zone {
            Some(zone) => format!("{}%{zone}", self.host).into(),
            None => (&self.host).into(),
        }
    }

    /// Returns the TCP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the request target, or `fallback` if the URL ends after the port. Keeps an explicit
    /// `/`.
    #[must_use]
    pub fn resource<'a>(&'a self, fallback: &'a str) -> &'a str {
        self.resource.as_deref().unwrap_or(fallback)
    }

    /// Returns the value of the `Host` header
    /// ([RFC 9110 section 7.2](https://www.rfc-editor.org/rfc/rfc9110#section-7.2)): without the
    /// port when it is the default one.
    #[must_use]
    pub fn host_header(&self) -> String {
        let host = if self.host.parse::<Ipv6Addr>().is_ok() {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        match self.port == default_port(self.scheme) {
            true => host,
            false => format!("{host}:{}", self.port),
        }
    }
}

fn default_port(scheme: &str) -> u16 {
    match scheme {
        "wss" | "https" => 443,
        _ => 80,
    }
}

/// Splits the zone from an IPv6 address, as in `fe80::1%25eth0` (RFC 6874 section 2), or with a `%`
/// alone, as people type it.
fn split_zone(host: &str) -> Result<(&str, Option<&str>), String> {
    let Some((ip, zone)) = host.split_once('%') else { return Ok((host, None)) };
    // Names are left to the lookup.
    let Ok(address) = ip.parse::<Ipv6Addr>() else { return Ok((host, None)) };
    let zone = zone.strip_prefix("25").unwrap_or(zone);
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._~-".contains(&b);
    if zone.is_empty() || !zone.bytes().all(is_plain) {
        return Err(format!("{zone:?} is not the name of an interface, as in [{ip}%25eth0]"));
    }
    if !address.is_unicast_link_local() {
        return Err(format!("only a link-local address such as fe80::1 has a zone: write [{ip}]"));
    }
    Ok((ip, Some(zone)))
}

fn split_port<'a>(scheme: &str, authority: &'a str) -> Result<(&'a str, Option<u16>), String> {
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let (host, after) = inner.split_once(']').ok_or("the [ has no ]")?;
        if host.split('%').next().is_none_or(|ip| ip.parse::<Ipv6Addr>().is_err()) {
            return Err(format!("[{host}] is not an IPv6 address"));
        }
        match after.strip_prefix(':') {
            None if after.is_empty() => (host, None),
            None => return Err(format!("{after:?} after the ] is not a port")),
            Some(port) => (host, Some(port)),
        }
    } else {
        match authority.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                let (ip, port) = match authority.rsplit_once(':') {
                    Some((ip, port)) if ip.parse::<Ipv6Addr>().is_ok() && !port.is_empty() => {
                        (ip, port)
                    }
                    _ => (authority, "9001"),
                };
                return Err(format!(
                    "write the IPv6 address in brackets: {scheme}://[{ip}]:{port}"
                ));
            }
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    match port {
        None => Ok((host, None)),
        Some(port) => match port.parse::<u16>() {
            Ok(number) if number > 0 && port.bytes().all(|b| b.is_ascii_digit()) => {
                Ok((host, Some(number)))
            }
            _ => Err(format!("{port:?} is not a port (1 to 65535)")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_shows_a_user_a_password_or_the_values_of_a_query() {
        for (text, shown) in [
            ("ws://u:hidden@h:1/x?a=hidden&b", "ws://***@h:1/x?a=***&b"),
            ("ws://u:hid/den@h/x", "ws://***@h/x"),
            ("ws://h:1/@x", "ws://h:1/@x"),
            ("ws://[::1]:1/@x?@=hidden", "ws://[::1]:1/@x?@=***"),
            ("ws://[::1]/@x", "ws://[::1]/@x"),
            ("h:1", "h:1"),
        ] {
            assert_eq!(masked(text), shown);
        }
        for text in [
            "http://u:hidden@h/",
            "ws://u:hidden@h/",
            "ws://u:hid/den@h",
            "xy://u:hidden@h",
            "u:hidden@h",
            "ws:/u:hidden@h",
            "ws://u:hidden@h/#x",
            "ws://h:x/?token=hidden",
            "h?token=hidden",
        ] {
            let error = Url::parse_ws(text).unwrap_err().to_string();
            assert!(!error.contains("hidden") && !error.contains("den@"), "{error}");
        }
        assert!(Url::parse_ws("ws://h:1/@x").is_ok());
    }

    #[test]
    fn parts() {
        for (text, host, port, resource, header) in [
            ("ws://127.0.0.1:9001/echo", "127.0.0.1", 9001, "/echo", "127.0.0.1:9001"),
            ("ws://localhost:9001", "localhost", 9001, "/fallback", "localhost:9001"),
            ("ws://localhost:9001/", "localhost", 9001, "/", "localhost:9001"),
            ("WS://example.org", "example.org", 80, "/fallback", "example.org"),
            ("ws://h:1/ws/a?echo=1&x=/", "h", 1, "/ws/a?echo=1&x=/", "h:1"),
            ("ws://h:1?x=1", "h", 1, "/?x=1", "h:1"),
            ("ws://[::1]:9001/x", "::1", 9001, "/x", "[::1]:9001"),
            ("ws://[::1]", "::1", 80, "/fallback", "[::1]"),
            ("wss://h/x", "h", 443, "/x", "h"),
            ("WSS://h:80/x", "h", 80, "/x", "h:80"),
        ] {
            let target = Url::parse_ws(text).unwrap();
            assert_eq!(
                (target.host(), target.port(), target.resource("/fallback")),
                (host, port, resource),
                "{text}"
            );
            assert_eq!(target.host_header(), header, "{text}");
            assert_eq!(target.is_secure(), text.to_lowercase().starts_with("wss"), "{text}");
        }
    }

    #[test]
    fn rfc6874_2_a_zone_is_for_the_lookup_and_not_for_the_server() {
        for text in ["ws://[fe80::1%25eth0]:9001/x", "ws://[fe80::1%eth0]:9001/x"] {
            let target = Url::parse_ws(text).unwrap();
            assert_eq!((target.host(), &*target.lookup_host()), ("fe80::1", "fe80::1%eth0"));
            assert_eq!(target.host_header(), "[fe80::1]:9001");
        }
        assert_eq!(Url::parse_ws("ws://[::1]:1").unwrap().lookup_host(), "::1");
    }

    #[test]
    fn mistakes_teach() {
        for (text, hint) in [
            ("127.0.0.1:9001/echo", "did you mean ws://127.0.0.1:9001/echo?"),
            ("//h:1/", "did you mean ws://h:1/?"),
            ("http://h:1/x", "did you mean ws://h:1/x?"),
            ("ftp://h", "must be ws://"),
            ("ws://", "names no host"),
            ("ws://:9001", "names no host"),
            ("ws:///path", "names no host"),
            ("ws://h:0", "not a port"),
            ("ws://h:65536", "not a port"),
            ("ws://h:+1", "not a port"),
            ("ws://h:", "not a port"),
            ("ws://::1:9001", "in brackets: ws://[::1]:9001"),
            ("http:/h:1/x", "did you mean ws://h:1/x?"),
            ("wss:h", "did you mean wss://h?"),
            ("ws://[::1", "no ]"),
            ("ws://[nope]:1", "not an IPv6 address"),
            ("ws://[nope%25eth0]:1", "not an IPv6 address"),
            ("ws://[::1%25eth0]:1", "only a link-local address"),
            ("ws://[fe80::1%25]:1", "not the name of an interface"),
            ("ws://[fe80::1%25a%2f]:1", "not the name of an interface"),
            ("ws://[::1]9001", "not a port"),
            ("ws://u:p@h/", "user name"),
            ("ws://h/a b", "percent-encoded"),
            ("ws://h/é", "percent-encoded"),
            ("ws://h/\r\nX: y", "percent-encoded"),
            ("ws://h/#x", "no #fragment"),
        ] {
            let error = Url::parse_ws(text).unwrap_err();
            assert!(error.to_string().contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn http_addresses_are_read_alike() {
        let target = Url::parse_http("HTTP://127.0.0.1:8080/a?b=c").unwrap();
        assert_eq!((target.port(), target.resource("/")), (8080, "/a?b=c"));
        for (text, hint) in [
            ("127.0.0.1:9001", "did you mean http://127.0.0.1:9001?"),
            ("ws://h:1/x", "did you mean http://h:1/x?"),
            ("wss://h", "did you mean https://h?"),
            ("ftp://h", "must be http://"),
            ("http://", "did you mean http://127.0.0.1:9001?"),
            ("http://::1:80", "http://[::1]:80"),
            ("http://h/#x", "never sent"),
        ] {
            let error = Url::parse_http(text).unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }
}
