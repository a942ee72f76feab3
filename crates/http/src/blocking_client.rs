//! A blocking HTTP client: one request on a new connection, and its complete response.
//!
//! Suitable for requests that occur a few times a minute: between two of them a kept connection may
//! have died.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use throng_proto::Input;
use throng_proto::http1::{Error, Limits, ResponseDecoder, ResponseEvent};

/// An admin API's list of a thousand backends takes half a mebibyte.
const LIMITS: Limits = Limits { max_header_bytes: 16 << 10, max_headers: 100, max_body: 16 << 20 };

/// A complete response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientResponse {
    /// The status code.
    pub status: u16,
    /// The value of `Content-Type`, if it is valid text.
    pub content_type: Option<String>,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl ClientResponse {
    /// Returns whether the status is 2xx.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

/// The reason why a connection has no complete response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unanswered {
    /// The reason, in words.
    pub why: String,
    /// Whether the server has ended the connection: it is reachable, and refuses to answer.
    pub is_ended: bool,
}

impl Unanswered {
    /// Describes an error of the connection; `what` names the failed step.
    #[must_use]
    pub fn of(error: &io::Error, what: &str) -> Self {
        let is_late = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        Self { why: format!("{what}: {}", plain(error)), is_ended: !is_late }
    }
}

impl From<String> for Unanswered {
    fn from(why: String) -> Self {
        Self { why, is_ended: false }
    }
}

/// Sends an encoded `request` on a new connection, and reads the response.
///
/// # Errors
/// The error names the reason why there is no complete response within `timeout`.
pub fn exchange(
    address: SocketAddr,
    request: &[u8],
    timeout: Duration,
) -> Result<ClientResponse, String> {
    let until = Instant::now() + timeout;
    let stream = TcpStream::connect_timeout(&address, timeout)
        .map_err(|error| format!("cannot connect: {}", plain(&error)))?;
    let limit = |stream: &mut TcpStream, time| {
        stream.set_read_timeout(Some(time)).and_then(|()| stream.set_write_timeout(Some(time)))
    };
    converse(stream, limit, request, until).map_err(|error| error.why)
}

/// Sends an encoded `request`, and reads the response. `limit` sets the maximum time of each read
/// or write of the stream.
///
/// # Errors
/// The error names the reason why there is no complete response before `until`.
pub fn converse<S: Read + Write>(
    mut stream: S,
    limit: impl Fn(&mut S, Duration) -> io::Result<()>,
    request: &[u8],
    until: Instant,
) -> Result<ClientResponse, Unanswered> {
    let failed = |error| Unanswered::of(&error, "it does not answer");
    let left = || {
        let left = until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(Unanswered::from("it does not answer in time".to_owned())),
            false => Ok(left),
        }
    };
    limit(&mut stream, left()?).map_err(failed)?;
    stream.write_all(request).map_err(failed)?;
    let mut receiving = Receiving::default();
    let mut buffer = [0; 16 << 10];
    loop {
        limit(&mut stream, left()?).map_err(failed)?;
        let is_complete = match stream.read(&mut buffer) {
            Ok(0) => receiving
                .end_of_stream()
                .map_err(|why| Unanswered { is_ended: true, ..why.into() })?,
            Ok(count) => receiving.receive(&mut buffer[..count])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        if is_complete {
            return Ok(receiving.response);
        }
    }
}

/// A response that is being received.
#[derive(Default)]
struct Receiving {
    decoder: ResponseDecoder,
    response: ClientResponse,
}

impl Receiving {
    /// Returns whether the response is complete.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<bool, String> {
        let mut input = Input::new(bytes);
        while let Some(event) = self.decoder.next_event(&mut input, &LIMITS).map_err(not_http)? {
            match event {
                ResponseEvent::Head(head) => {
                    self.response.status = head.status();
                    self.response.content_type = head.header("content-type").map(str::to_owned);
                }
                ResponseEvent::Body(bytes) => self.response.body.extend_from_slice(bytes),
                ResponseEvent::End => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Returns true if the end of the stream completes the response; otherwise returns an error.
    fn end_of_stream(&mut self) -> Result<bool, String> {
        match self.decoder.handle_end_of_stream().map_err(not_http)? {
            Some(_) => Ok(true),
            None => Err("it closed the connection without an answer".to_owned()),
        }
    }
}

fn not_http(error: Error) -> String {
    format!("its answer is no HTTP: {error}")
}

/// Returns an error as text, without the operating system's number.
#[must_use]
pub fn plain(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}
