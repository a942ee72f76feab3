//! One HTTP request and its answer, for the small talk between our own processes: an admin API, a
//! registration.
//!
//! Blocking, a connection each: these come a few times a minute, and a connection that is kept
//! would be one more thing that can have died meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_load::Target;
use throng_proto::Input;
use throng_proto::http1::{Limits, RequestHead, ResponseDecoder, ResponseEvent};

/// An admin API's list of a thousand backends has half a mebibyte.
const LIMITS: Limits = Limits { max_header_bytes: 16 << 10, max_headers: 100, max_body: 16 << 20 };

/// A server to ask, by its URL.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    target: Target,
    token: Option<String>,
}

/// The peer's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Returns whether the status is 2xx.
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Parses the body as JSON; null if it is not JSON.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns the reason of a refusal, from the body.
    pub(crate) fn reason(&self) -> String {
        match self.json()["error"].as_str() {
            Some(error) => error.to_owned(),
            None => String::from_utf8_lossy(&self.body).trim().chars().take(300).collect(),
        }
    }
}

impl Peer {
    /// Reads `http://host:port`, or `host:port` alone.
    ///
    /// # Errors
    /// The message names the remedy.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let url = match text.contains("://") {
            true => text.to_owned(),
            false => format!("http://{text}"),
        };
        if url.starts_with("https://") {
            return Err(format!("{text:?} is not asked with TLS; write {}", example()));
        }
        let target = Target::parse_http(&url).map_err(|error| error.to_string())?;
        if target.resource("/") != "/" {
            return Err(format!("{text:?} has a path; write the address alone, {}", example()));
        }
        Ok(Self { target, token: None })
    }

    /// With `Authorization: Bearer`.
    pub(crate) fn with_token(mut self, token: Option<String>) -> Self {
        self.token = token;
        self
    }

    /// Asks once, and gives up after `timeout`.
    ///
    /// # Errors
    /// It is away, does not answer in time, or does not speak HTTP.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Answer, String> {
        let until = Instant::now() + timeout;
        let request = self.request(method, path, body)?;
        let address = self.target.resolve().map_err(|error| error.to_string())?;
        let mut stream = TcpStream::connect_timeout(&address, timeout)
            .map_err(|error| format!("cannot connect: {}", plain(&error)))?;
        let failed = |error| format!("it does not answer: {}", plain(&error));
        stream.set_write_timeout(Some(timeout)).map_err(failed)?;
        stream.write_all(&request).map_err(failed)?;
        let (status, body) = read(&mut stream, until)?;
        Ok(Answer { status, body })
    }

    /// The address of this machine on the way there: what a process that listens on all addresses
    /// can be reached by.
    ///
    /// # Errors
    /// There is no way there.
    pub(crate) fn own_address(&self) -> Result<IpAddr, String> {
        let to = self.target.resolve().map_err(|error| error.to_string())?;
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // A datagram socket is connected without a packet: the system only looks the route up.
        let socket = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(to)?;
            socket.local_addr()
        });
        socket.map(|address| address.ip()).map_err(|error| plain(&error))
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Vec<u8>, String> {
        let mut out = Vec::new();
        let host = self.target.host_header();
        let mut head =
            RequestHead::start(&mut out, method, path, &host).map_err(|e| e.to_string())?;
        let body = body.map(Value::to_string);
        let token = self.token.as_ref().map(|token| format!("Bearer {token}"));
        let fields = [
            ("Connection", Some("close")),
            ("Content-Type", body.is_some().then_some("application/json")),
            ("Authorization", token.as_deref()),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                let wrong =
                    |_| format!("{name} cannot be sent: it has a line break or worse in it");
                head = head.header(name, value).map_err(wrong)?;
            }
        }
        match &body {
            Some(body) => head.content_length(body.len() as u64).finish(),
            None => head.finish(),
        }
        out.extend_from_slice(body.unwrap_or_default().as_bytes());
        Ok(out)
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.target.host_header())
    }
}

fn example() -> &'static str {
    "for example http://127.0.0.1:8081"
}

/// Status and body of the answer on `stream`.
fn read(stream: &mut TcpStream, until: Instant) -> Result<(u16, Vec<u8>), String> {
    let mut decoder = ResponseDecoder::new();
    let (mut status, mut body) = (0, Vec::new());
    let mut buffer = [0; 16 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err("it does not answer in time".to_owned());
        }
        let failed = |error| format!("it does not answer: {}", plain(&error));
        stream.set_read_timeout(Some(left)).map_err(failed)?;
        let count = match stream.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        let garbage = |error| format!("its answer is no HTTP: {error}");
        if count == 0 {
            return match decoder.handle_end_of_stream().map_err(garbage)? {
                Some(_) => Ok((status, body)),
                None => Err("it closed the connection without an answer".to_owned()),
            };
        }
        let mut input = Input::new(&mut buffer[..count]);
        while let Some(event) = decoder.next_event(&mut input, &LIMITS).map_err(garbage)? {
            match event {
                ResponseEvent::Head(head) => status = head.status(),
                ResponseEvent::Body(bytes) => body.extend_from_slice(bytes),
                ResponseEvent::End => return Ok((status, body)),
            }
        }
    }
}

/// An error in words, without the number of the operating system.
fn plain(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use serde_json::json;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Returns the request, where the answer is `answer` in two chunks.
    fn exchange(
        answer: &'static str,
        ask: impl FnOnce(Peer) -> Result<Answer, String>,
    ) -> (String, Result<Answer, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).unwrap();
            let (first, second) = answer.split_at(answer.len() / 2);
            for piece in [first, second] {
                stream.write_all(piece.as_bytes()).unwrap();
                stream.flush().unwrap();
            }
            String::from_utf8(buffer[..count].to_vec()).unwrap()
        });
        let answer = ask(Peer::parse(&address.to_string()).unwrap());
        (server.join().unwrap(), answer)
    }

    #[test]
    fn a_request_has_a_token_and_json_and_the_answer_a_body_of_any_framing() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\n{\"a\":1}",
        ] {
            let (request, answer) = exchange(answer, |peer| {
                peer.with_token(Some("secret".to_owned())).ask(
                    "POST",
                    "/register",
                    Some(&json!({"weight": 2})),
                    TIMEOUT,
                )
            });
            let answer = answer.unwrap();
            assert!(answer.is_success());
            assert_eq!(answer.json(), json!({"a": 1}));
            assert!(
                request.starts_with("POST /register HTTP/1.1\r\nHost: 127.0.0.1:"),
                "{request}"
            );
            assert!(request.contains("Authorization: Bearer secret\r\n"), "{request}");
            assert!(request.ends_with("Content-Length: 12\r\n\r\n{\"weight\":2}"), "{request}");
        }
    }

    #[test]
    fn a_malformed_answer_is_an_error() {
        let get = |peer: Peer| peer.ask("GET", "/", None, TIMEOUT);
        for (answer, expected) in [
            ("", "without an answer"),
            ("SSH-2.0-OpenSSH\r\n\r\n", "no HTTP"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "no HTTP"),
        ] {
            let error = exchange(answer, get).1.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let error = get(Peer::parse("127.0.0.1:1").unwrap()).unwrap_err();
        assert_eq!(error, "cannot connect: connection refused");
    }

    #[test]
    fn a_refusal_has_its_reason() {
        let (_, answer) = exchange(
            "HTTP/1.1 403 Forbidden\r\nContent-Length: 23\r\n\r\n{\"error\":\"not\\tto you\"}",
            |peer| peer.ask("GET", "/", None, TIMEOUT),
        );
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.reason().as_str()), (403, "not\tto you"));
    }

    #[test]
    fn only_addresses_are_peers() {
        assert_eq!(Peer::parse("127.0.0.1:8081").unwrap().to_string(), "http://127.0.0.1:8081");
        for text in ["https://127.0.0.1:1", "http://127.0.0.1:1/x", "ws://a", ""] {
            assert!(Peer::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_cannot_split_a_request() {
        let peer = Peer::parse("127.0.0.1:1").unwrap();
        assert_eq!(peer.own_address().unwrap(), Ipv4Addr::LOCALHOST);
        let peer = peer.with_token(Some("a\r\nB: c".to_owned()));
        let error = peer.ask("GET", "/", None, TIMEOUT).unwrap_err();
        assert!(error.contains("Authorization"), "{error}");
    }
}
