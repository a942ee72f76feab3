//! Where to connect: an address taken apart, with or without TLS.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};

use crate::Error;

/// A WebSocket or HTTP address, taken apart but not yet looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// `ws`, `wss`, `http` or `https`.
    scheme: &'static str,
    host: String,
    port: u16,
    resource: Option<String>,
}

impl Target {
    /// Reads `ws://host[:port][/path][?query]` or `wss://...` (RFC 6455 section 3). The port is 80,
    /// or with TLS 443, when absent.
    ///
    /// # Errors
    /// [`Error::Usage`] with what to write instead.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Self::parse_as(["ws", "wss"], text)
    }

    /// Reads `http://host[:port][/path][?query]` or `https://...` (RFC 9110 section 4.2). The port
    /// is 80, or with TLS 443, when absent.
    ///
    /// # Errors
    /// [`Error::Usage`] with what to write instead.
    pub fn parse_http(text: &str) -> Result<Self, Error> {
        Self::parse_as(["http", "https"], text)
    }

    fn parse_as([plain, secure]: [&'static str; 2], text: &str) -> Result<Self, Error> {
        let scheme = plain;
        let bad = |what: &str| Error::Usage(format!("cannot use the URL {text:?}: {what}"));
        if let Some(at) = text.find(|c: char| c.is_whitespace() || c.is_control() || !c.is_ascii())
        {
            let character = text[at..].chars().next().unwrap_or(' ');
            return Err(bad(&format!("it contains {character:?}; write it percent-encoded")));
        }
        let (typed, rest) = text.split_once("://").ok_or_else(|| {
            let rest = text.trim_start_matches('/');
            bad(&format!("it has no scheme; did you mean {scheme}://{rest}?"))
        })?;
        let scheme = match typed.to_ascii_lowercase().as_str() {
            typed if typed == plain => plain,
            typed if typed == secure => secure,
            "ws" | "http" => return Err(bad(&format!("did you mean {plain}://{rest}?"))),
            "wss" | "https" => return Err(bad(&format!("did you mean {secure}://{rest}?"))),
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
        if authority.contains('@') {
            return Err(bad("a user name in the URL is not supported"));
        }
        let (host, port) = split_port(scheme, authority).map_err(|what| bad(&what))?;
        let port = port.unwrap_or(usual_port(scheme));
        if host.is_empty() {
            return Err(bad(&format!("it names no host; did you mean {scheme}://127.0.0.1:9001?")));
        }
        Ok(Self { scheme, host: host.to_owned(), port, resource })
    }

    /// Whether its connections have TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        matches!(self.scheme, "wss" | "https")
    }

    /// The scheme of the URL, such as `wss`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        self.scheme
    }

    /// Host without brackets: a name or an address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The request target, `fallback` if the URL stops at the port. An explicit `/` is kept.
    #[must_use]
    pub fn resource<'a>(&'a self, fallback: &'a str) -> &'a str {
        self.resource.as_deref().unwrap_or(fallback)
    }

    /// The value of the `Host` header: RFC 9110 section 7.2, the port left out when it is the usual
    /// one.
    #[must_use]
    pub fn host_header(&self) -> String {
        let host = if self.host.parse::<Ipv6Addr>().is_ok() {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        };
        if self.port == usual_port(self.scheme) { host } else { format!("{host}:{}", self.port) }
    }

    /// Looks the host up; IPv4 is preferred, because only its loopback has many source addresses.
    ///
    /// # Errors
    /// [`Error::Resolve`] when the name is unknown.
    pub fn resolve(&self) -> Result<SocketAddr, Error> {
        if let Ok(ip) = self.host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.port));
        }
        let failed = |reason: String| Error::Resolve { host: self.host.clone(), reason };
        let found: Vec<SocketAddr> = (self.host.as_str(), self.port)
            .to_socket_addrs()
            .map_err(|error| failed(error.to_string()))?
            .collect();
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first.copied().ok_or_else(|| failed("it has no address".to_owned()))
    }
}

fn usual_port(scheme: &str) -> u16 {
    match scheme {
        "wss" | "https" => 443,
        _ => 80,
    }
}

fn split_port<'a>(scheme: &str, authority: &'a str) -> Result<(&'a str, Option<u16>), String> {
    let (host, port) = if let Some(inner) = authority.strip_prefix('[') {
        let (host, after) = inner.split_once(']').ok_or("the [ has no ]")?;
        if host.parse::<Ipv6Addr>().is_err() {
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
                return Err(format!(
                    "write the IPv6 address in brackets: {scheme}://[{authority}]:9001"
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
            let target = Target::parse(text).unwrap();
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
            ("ws://::1:9001", "in brackets"),
            ("ws://[::1", "no ]"),
            ("ws://[nope]:1", "not an IPv6 address"),
            ("ws://[::1]9001", "not a port"),
            ("ws://u:p@h/", "user name"),
            ("ws://h/a b", "percent-encoded"),
            ("ws://h/é", "percent-encoded"),
            ("ws://h/\r\nX: y", "percent-encoded"),
            ("ws://h/#x", "no #fragment"),
        ] {
            let error = Target::parse(text).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{text}");
            assert!(error.to_string().contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn http_addresses_are_read_alike() {
        let target = Target::parse_http("HTTP://127.0.0.1:8080/a?b=c").unwrap();
        assert_eq!((target.port(), target.resource("/")), (8080, "/a?b=c"));
        for (text, hint) in [
            ("127.0.0.1:9001", "did you mean http://127.0.0.1:9001?"),
            ("ws://h:1/x", "did you mean http://h:1/x?"),
            ("wss://h", "did you mean https://h?"),
            ("ftp://h", "must be http://"),
            ("http://", "did you mean http://127.0.0.1:9001?"),
            ("http://::1:80", "http://[::1:80]:9001"),
            ("http://h/#x", "never sent"),
        ] {
            let error = Target::parse_http(text).unwrap_err().to_string();
            assert!(error.contains(hint), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_need_no_look_up() {
        let v6 = Target::parse("ws://[::1]:9").unwrap().resolve().unwrap();
        assert_eq!(v6, SocketAddr::from((Ipv6Addr::LOCALHOST, 9)));
        let v4 = Target::parse("ws://127.0.0.7:9").unwrap().resolve().unwrap();
        assert_eq!(v4, SocketAddr::from(([127, 0, 0, 7], 9)));
    }
}
