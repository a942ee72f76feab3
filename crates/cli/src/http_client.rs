//! A blocking client of JSON APIs over HTTP, for admin APIs, registrations and health checks.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::Value;
use throng_http::blocking_client::{self, exchange};
use throng_load::Target;
use throng_proto::http1::RequestHead;

pub(crate) use throng_http::blocking_client::{ClientResponse, Unanswered, plain};

/// A client of one server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    target: Target,
    token: Option<String>,
}

/// The JSON in the body of a response.
pub(crate) trait JsonBody {
    /// Parses the body as JSON; null if it is not JSON.
    fn json(&self) -> Value;

    /// Returns the reason of a refusal, from the body.
    fn reason(&self) -> String;
}

impl JsonBody for ClientResponse {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn reason(&self) -> String {
        match self.json()["error"].as_str() {
            Some(error) => error.to_owned(),
            None => String::from_utf8_lossy(&self.body).trim().chars().take(300).collect(),
        }
    }
}

impl Client {
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

    /// Adds a bearer token to each request.
    pub(crate) fn with_token(mut self, token: Option<String>) -> Self {
        self.token = token;
        self
    }

    /// Sends one request, and gives up after `timeout`.
    ///
    /// # Errors
    /// The server is away, does not answer in time, or does not speak HTTP.
    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<ClientResponse, String> {
        let request = self.encode(method, path, body)?;
        exchange(self.address()?, &request, timeout)
    }

    /// Looks the server's address up.
    ///
    /// # Errors
    /// It has none.
    pub(crate) fn address(&self) -> Result<SocketAddr, String> {
        self.target.resolve().map_err(|error| error.to_string())
    }

    /// Returns the address of this machine on the route to the server: the address at which the
    /// server can reach a process that listens on all addresses.
    ///
    /// # Errors
    /// There is no route to it.
    pub(crate) fn own_address(&self) -> Result<IpAddr, String> {
        let to = self.address()?;
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Connecting a datagram socket sends no packet: the system only looks up the route.
        let socket = UdpSocket::bind(any).and_then(|socket| {
            socket.connect(to)?;
            socket.local_addr()
        });
        socket.map(|address| address.ip()).map_err(|error| plain(&error))
    }

    fn encode(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Vec<u8>, String> {
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

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "http://{}", self.target.host_header())
    }
}

fn example() -> &'static str {
    "for example http://127.0.0.1:8081"
}

/// A connection whose reads and writes can have a time limit.
pub(crate) trait Stream: Read + Write {
    fn limit(&mut self, time: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit(&mut self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

#[cfg(feature = "tls")]
impl Stream for throng_load::TlsStream {
    fn limit(&mut self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time)).and_then(|()| self.set_write_timeout(Some(time)))
    }
}

/// Sends `request`, which is already encoded, and reads the response.
///
/// # Errors
/// The error names the reason why there is no complete response before `until`.
pub(crate) fn converse(
    stream: impl Stream,
    request: &[u8],
    until: Instant,
) -> Result<ClientResponse, Unanswered> {
    blocking_client::converse(stream, Stream::limit, request, until)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use serde_json::json;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    /// Returns the request, where the answer is `answer` in two chunks.
    fn answered(
        answer: &'static str,
        request: impl FnOnce(Client) -> Result<ClientResponse, String>,
    ) -> (String, Result<ClientResponse, String>) {
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
        let response = request(Client::parse(&address.to_string()).unwrap());
        (server.join().unwrap(), response)
    }

    #[test]
    fn a_request_has_a_token_and_json_and_the_answer_a_body_of_any_framing() {
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
             3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\n\r\n{\"a\":1}",
        ] {
            let (request, answer) = answered(answer, |client| {
                client.with_token(Some("secret".to_owned())).request(
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
        let get = |client: Client| client.request("GET", "/", None, TIMEOUT);
        for (answer, expected) in [
            ("", "without an answer"),
            ("SSH-2.0-OpenSSH\r\n\r\n", "no HTTP"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "no HTTP"),
        ] {
            let error = answered(answer, get).1.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let error = get(Client::parse("127.0.0.1:1").unwrap()).unwrap_err();
        assert_eq!(error, "cannot connect: connection refused");
    }

    #[test]
    fn a_refusal_has_its_reason() {
        let (_, answer) = answered(
            "HTTP/1.1 403 Forbidden\r\nContent-Type: application/json\r\nContent-Length: 23\r\n\r\n\
             {\"error\":\"not\\tto you\"}",
            |client| client.request("GET", "/", None, TIMEOUT),
        );
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.reason().as_str()), (403, "not\tto you"));
        assert_eq!(answer.content_type.as_deref(), Some("application/json"));
    }

    #[test]
    fn only_addresses_are_servers() {
        assert_eq!(Client::parse("127.0.0.1:8081").unwrap().to_string(), "http://127.0.0.1:8081");
        for text in ["https://127.0.0.1:1", "http://127.0.0.1:1/x", "ws://a", ""] {
            assert!(Client::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_cannot_split_a_request() {
        let client = Client::parse("127.0.0.1:1").unwrap();
        assert_eq!(client.own_address().unwrap(), Ipv4Addr::LOCALHOST);
        let client = client.with_token(Some("a\r\nB: c".to_owned()));
        let error = client.request("GET", "/", None, TIMEOUT).unwrap_err();
        assert!(error.contains("Authorization"), "{error}");
    }
}
