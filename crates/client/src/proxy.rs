//! Connections through proxies: the bytes of HTTP CONNECT and of SOCKS5, without I/O.

use std::net::IpAddr;

use throng_proto::Input;
use throng_proto::http1::{Limits, ResponseDecoder, ResponseEvent};

use crate::error::ClientError;

/// Maximum length of a proxy's answer to CONNECT, with the interim responses before it.
const MAX_ANSWER: usize = 64 << 10;

/// A proxy, from its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Proxy {
    kind: Kind,
    pub(crate) host: String,
    pub(crate) port: u16,
    credentials: Option<(String, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connect,
    Socks5,
}

/// The state of a negotiation with a proxy.
pub(crate) struct Negotiation<'p> {
    proxy: &'p Proxy,
    host: &'p str,
    port: u16,
    stage: ProxyStage,
    /// Decodes the answer to CONNECT.
    decoder: ResponseDecoder,
    /// Bytes that the decoder has processed.
    decoded: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProxyStage {
    /// The method CONNECT was sent.
    Connect,
    /// The SOCKS5 greeting was sent.
    Methods,
    /// User name and password were sent.
    Password,
    /// The SOCKS5 request was sent.
    Request,
}

/// The action after the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxyAction {
    /// More bytes are needed.
    Wait,
    /// Send these bytes; all received bytes were processed.
    Send(Vec<u8>),
    /// The connection to the server is made.
    Done,
}

impl Proxy {
    /// Parses `http://[user:password@]host:port` or `socks5://...`.
    pub(crate) fn parse(url: &str) -> Result<Self, ClientError> {
        let bad = |what: &str| {
            let message = format!("cannot use the proxy {:?}: {what}", without_password(url));
            ClientError::setting("proxy", message)
        };
        let (scheme, rest) = url
            .split_once("://")
            .ok_or_else(|| bad("it has no scheme; use http:// or socks5://"))?;
        let (kind, default_port) = match scheme.to_ascii_lowercase().as_str() {
            "http" => (Kind::Connect, 80),
            "socks5" | "socks5h" => (Kind::Socks5, 1080),
            _ => return Err(bad("the scheme must be http:// or socks5://")),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (credentials, authority) = match rest.rsplit_once('@') {
            None => (None, rest),
            Some((credentials, authority)) => {
                let (user, password) = credentials.split_once(':').unwrap_or((credentials, ""));
                if user.is_empty() || user.len() > 255 || password.len() > 255 {
                    return Err(bad("user name and password take 1 to 255 bytes"));
                }
                (Some((user.to_owned(), password.to_owned())), authority)
            }
        };
        let port_given = authority.rsplit_once(':').filter(|(_, port)| !port.ends_with(']'));
        let (host, port) = match port_given {
            None => (authority, default_port),
            Some((host, port)) => {
                (host, port.parse().map_err(|_| bad("its port is not 1 to 65535"))?)
            }
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || port == 0 || host.contains(['/', '?', '#']) {
            return Err(bad("write scheme://host:port"));
        }
        Ok(Self { kind, host: host.to_owned(), port, credentials })
    }

    /// Begins a connection to the server at `host`, and returns the first bytes to send.
    pub(crate) fn begin<'p>(
        &'p self,
        host: &'p str,
        port: u16,
    ) -> Result<(Negotiation<'p>, Vec<u8>), ClientError> {
        let (stage, bytes) = match self.kind {
            Kind::Connect => (ProxyStage::Connect, self.connect_request(host, port)),
            // Version 5, and the methods: none, or user name and password.
            Kind::Socks5 => match self.credentials {
                None => (ProxyStage::Methods, vec![5, 1, 0]),
                Some(_) => (ProxyStage::Methods, vec![5, 2, 0, 2]),
            },
        };
        if host.len() > 255 {
            return Err(ClientError::setting("url", "the host is longer than 255 bytes"));
        }
        let decoder = ResponseDecoder::new();
        Ok((Negotiation { proxy: self, host, port, stage, decoder, decoded: 0 }, bytes))
    }

    fn connect_request(&self, host: &str, port: u16) -> Vec<u8> {
        use base64::Engine;
        let bracketed = match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let mut request = format!("CONNECT {bracketed} HTTP/1.1\r\nHost: {bracketed}\r\n");
        if let Some((user, password)) = &self.credentials {
            let encoded =
                base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
            request.push_str(&format!("Proxy-Authorization: Basic {encoded}\r\n"));
        }
        request.push_str("\r\n");
        request.into_bytes()
    }
}

fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, authority))) => format!("{scheme}://...@{authority}"),
        _ => url.to_owned(),
    }
}

impl Negotiation<'_> {
    /// Handles all bytes received since the last request to the proxy.
    pub(crate) fn receive(&mut self, received: &[u8]) -> Result<ProxyAction, ClientError> {
        let refused = |what: String| Err(ClientError::Proxy(what));
        match (self.stage, received) {
            (ProxyStage::Connect, _) => return self.connected(received),
            (ProxyStage::Methods, [5, 0]) => {}
            (ProxyStage::Methods, [5, 2]) if self.proxy.credentials.is_some() => {
                let (user, password) = self.proxy.credentials.clone().unwrap_or_default();
                // RFC 1929: version 1, then both with their lengths, which `parse` has checked.
                let mut bytes = vec![1, user.len() as u8];
                bytes.extend_from_slice(user.as_bytes());
                bytes.push(password.len() as u8);
                bytes.extend_from_slice(password.as_bytes());
                self.stage = ProxyStage::Password;
                return Ok(ProxyAction::Send(bytes));
            }
            (ProxyStage::Methods, [5, _]) => {
                return refused("it wants a user name and a password".to_owned());
            }
            (ProxyStage::Password, [_, 0]) => {}
            (ProxyStage::Password, [_, _]) => {
                return refused("it does not accept the user name and the password".to_owned());
            }
            (ProxyStage::Request, [5, 0, ..]) => return socks_reply(received),
            (ProxyStage::Request, [5, code, ..]) => return refused(socks_error(*code)),
            (_, [] | [_]) => return Ok(ProxyAction::Wait),
            _ => return refused("its answer is not SOCKS5".to_owned()),
        }
        // Version 5, connect, reserved, then the type of the address.
        let mut bytes = vec![5, 1, 0];
        match self.host.parse() {
            Ok(IpAddr::V4(ip)) => {
                bytes.push(1);
                bytes.extend_from_slice(&ip.octets());
            }
            Ok(IpAddr::V6(ip)) => {
                bytes.push(4);
                bytes.extend_from_slice(&ip.octets());
            }
            Err(_) => {
                bytes.extend_from_slice(&[3, self.host.len() as u8]);
                bytes.extend_from_slice(self.host.as_bytes());
            }
        }
        bytes.extend_from_slice(&self.port.to_be_bytes());
        self.stage = ProxyStage::Request;
        Ok(ProxyAction::Send(bytes))
    }

    fn connected(&mut self, received: &[u8]) -> Result<ProxyAction, ClientError> {
        if received.len() > MAX_ANSWER {
            let what = format!("its answer is longer than {MAX_ANSWER} bytes");
            return Err(ClientError::Proxy(what));
        }
        let mut bytes = received.get(self.decoded..).unwrap_or_default().to_vec();
        self.decoded = received.len();
        let mut input = Input::new(&mut bytes);
        let limits = Limits::default();
        loop {
            match self.decoder.next_event(&mut input, &limits) {
                Err(error) => {
                    return Err(ClientError::Proxy(format!("its answer is not HTTP/1.1: {error}")));
                }
                Ok(Some(ResponseEvent::Head(response))) if response.is_interim() => {}
                Ok(Some(ResponseEvent::Head(response))) => {
                    return match response.status() {
                        // The proxy sends only answers until the tunnel is used, so no bytes
                        // follow.
                        200..=299 => Ok(ProxyAction::Done),
                        status => Err(ClientError::Proxy(format!("it answered {status}"))),
                    };
                }
                Ok(_) => return Ok(ProxyAction::Wait),
            }
        }
    }
}

/// Handles the end of a SOCKS5 reply: an address whose length depends on its type.
fn socks_reply(received: &[u8]) -> Result<ProxyAction, ClientError> {
    let len = match received {
        [_, _, _, 1, ..] => 10,
        [_, _, _, 4, ..] => 22,
        [_, _, _, 3, len, ..] => 7 + usize::from(*len),
        _ if received.len() < 5 => return Ok(ProxyAction::Wait),
        _ => return Err(ClientError::Proxy("its answer is not SOCKS5".to_owned())),
    };
    Ok(if received.len() >= len { ProxyAction::Done } else { ProxyAction::Wait })
}

/// Describes a reply of [RFC 1928 section 6](https://www.rfc-editor.org/rfc/rfc1928#section-6).
fn socks_error(code: u8) -> String {
    match code {
        1 => "general failure",
        2 => "its rules do not allow the connection",
        3 => "the network is unreachable",
        4 => "the host is unreachable",
        5 => "the server refused the connection",
        6 => "the time to live expired",
        7 => "it does not support the command",
        8 => "it does not support this type of address",
        _ => return format!("unknown error {code}"),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_read_from_urls() {
        let plain = Proxy::parse("http://proxy.example:3128/").unwrap();
        assert_eq!(
            (plain.kind, plain.host.as_str(), plain.port),
            (Kind::Connect, "proxy.example", 3128)
        );
        let socks = Proxy::parse("socks5://me:a:b@[::1]").unwrap();
        assert_eq!((socks.kind, socks.host.as_str(), socks.port), (Kind::Socks5, "::1", 1080));
        assert_eq!(socks.credentials, Some(("me".into(), "a:b".into())));
        for (url, hint) in [
            ("proxy:3128", "no scheme"),
            ("https://proxy", "must be http:// or socks5://"),
            ("http://:3128", "scheme://host:port"),
            ("http://proxy:x", "port"),
        ] {
            let error = Proxy::parse(url).unwrap_err().to_string();
            assert!(error.contains(hint), "{url}: {error}");
        }
        let secret = Proxy::parse("http://me:secret@proxy:x").unwrap_err().to_string();
        assert!(!secret.contains("secret"), "{secret}");
    }

    #[test]
    fn connect_waits_for_the_whole_head_and_refuses_by_status() {
        let proxy = Proxy::parse("http://me:pw@p:1").unwrap();
        let (mut talk, request) = proxy.begin("::1", 443).unwrap();
        assert_eq!(
            String::from_utf8(request).unwrap(),
            "CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\n\
             Proxy-Authorization: Basic bWU6cHc=\r\n\r\n"
        );
        assert_eq!(talk.receive(b"HTTP/1.1 200 OK\r\n").unwrap(), ProxyAction::Wait);
        assert_eq!(talk.receive(b"HTTP/1.1 200 OK\r\n\r\n").unwrap(), ProxyAction::Done);
        let (mut talk, _) = proxy.begin("::1", 443).unwrap();
        let refused = talk.receive(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n").unwrap_err();
        assert!(refused.to_string().contains("it answered 407"), "{refused}");
    }

    #[test]
    fn rfc1928_and_rfc1929_negotiation() {
        let proxy = Proxy::parse("socks5://me:pw@p:1").unwrap();
        let (mut talk, greeting) = proxy.begin("h", 258).unwrap();
        assert_eq!(greeting, [5, 2, 0, 2]);
        assert_eq!(talk.receive(&[5]).unwrap(), ProxyAction::Wait);
        let login = vec![1, 2, b'm', b'e', 2, b'p', b'w'];
        assert_eq!(talk.receive(&[5, 2]).unwrap(), ProxyAction::Send(login));
        let request = vec![5, 1, 0, 3, 1, b'h', 1, 2];
        assert_eq!(talk.receive(&[1, 0]).unwrap(), ProxyAction::Send(request));
        assert_eq!(talk.receive(&[5, 0, 0, 1, 0, 0, 0, 0, 0]).unwrap(), ProxyAction::Wait);
        assert_eq!(talk.receive(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap(), ProxyAction::Done);
        let refused = talk.receive(&[5, 5, 0, 1]).unwrap_err();
        assert!(refused.to_string().contains("refused the connection"), "{refused}");
    }
}
