//! One check of one backend, over a blocking socket.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use throng_io::PeerAddress;

use throng_proto::Input;
use throng_proto::http1::{self, ResponseDecoder, ResponseEvent};
use throng_proto::ws::handshake::{Key, check_response, encode_request};
use throng_proto::ws::{self, CloseCode, Event, Opcode, Role};
use throng_tls::{TlsClient, TlsStream};

use super::CheckFailure;
use crate::report::Failure;
use crate::settings::{Check, CheckKind, Target, host_of};

/// The LOCAL command of PROXY v2: the connection is the proxy's own, not on behalf of a client.
const PROXY_LOCAL: [u8; 16] = *b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// Checks the backend from `source`; the error has the reason for a failure.
pub(super) fn probe(
    target: &Target,
    source: Option<SocketAddr>,
    check: &Check,
) -> Result<(), CheckFailure> {
    let address = target.backend.address();
    let host = || check.host.clone().unwrap_or_else(|| host_of(address));
    let mut peer = Peer::connect(address, source, check.timeout)?;
    if target.send_proxy {
        peer.send(&PROXY_LOCAL)?;
    }
    if let Some(tls) = &target.tls {
        peer = peer.secured(tls)?;
    }
    match &check.kind {
        CheckKind::Tcp => {}
        CheckKind::Http(path) => peer.get(&host(), path)?,
        CheckKind::WebSocket(path) => peer.ping(&host(), path)?,
    }
    Ok(())
}

/// A backend that is being checked.
struct Peer {
    stream: Stream,
    timeout: Duration,
    /// The deadline of the whole check: a backend that sends a byte a second is not alive.
    deadline: Instant,
    buffer: [u8; 4096],
}

/// A connection, with TLS or without.
enum Stream {
    Plain(TcpStream),
    Secured(Box<TlsStream>),
}

impl Stream {
    fn set_read_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.set_read_timeout(Some(timeout)),
            Self::Secured(stream) => stream.set_read_timeout(Some(timeout)),
        }
    }

    fn set_write_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.set_write_timeout(Some(timeout)),
            Self::Secured(stream) => stream.set_write_timeout(Some(timeout)),
        }
    }
}

impl Peer {
    fn connect(
        address: PeerAddress,
        source: Option<SocketAddr>,
        timeout: Duration,
    ) -> Result<Self, CheckFailure> {
        let deadline = Instant::now() + timeout;
        let stream = throng_io::connect_timeout(address, source, timeout).map_err(|error| {
            let failure = Failure::of_connect(&error);
            match error.kind() {
                _ if failure.is_ours() => CheckFailure::Ours(failure),
                ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                    format!("no connection within {timeout:?}").into()
                }
                _ => format!("cannot connect: {error}").into(),
            }
        })?;
        let stream = Stream::Plain(stream);
        Ok(Self { stream, timeout, deadline, buffer: [0; 4096] })
    }

    /// Executes the TLS handshake.
    fn secured(self, tls: &TlsClient) -> Result<Self, String> {
        let left = self.left()?;
        let Stream::Plain(socket) = self.stream else { return Ok(self) };
        let timeouts = socket.set_read_timeout(Some(left));
        timeouts
            .and_then(|()| socket.set_write_timeout(Some(left)))
            .and_then(|()| tls.handshake_on(socket))
            .map(|stream| Self { stream: Stream::Secured(Box::new(stream)), ..self })
            .map_err(|error| match error.kind() {
                ErrorKind::TimedOut | ErrorKind::WouldBlock => {
                    format!("no TLS handshake within {:?}", self.timeout)
                }
                _ => format!("TLS: {error}"),
            })
    }

    /// Returns the time that is left.
    fn left(&self) -> Result<Duration, String> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.late()) } else { Ok(left) }
    }

    fn late(&self) -> String {
        format!("no answer within {:?}", self.timeout)
    }

    fn broken(&self, error: &io::Error) -> String {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => self.late(),
            _ => format!("the connection broke: {error}"),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let left = self.left()?;
        let timeout = self.stream.set_write_timeout(left);
        let sent = timeout.and_then(|()| match &mut self.stream {
            Stream::Plain(socket) => socket.write_all(bytes),
            Stream::Secured(stream) => stream.write_all(bytes),
        });
        sent.map_err(|error| self.broken(&error))
    }

    /// Receives at least one byte into the front of the buffer.
    fn receive(&mut self) -> Result<usize, String> {
        loop {
            let left = self.left()?;
            let timeout = self.stream.set_read_timeout(left);
            let received = timeout.and_then(|()| match &mut self.stream {
                Stream::Plain(socket) => socket.read(&mut self.buffer),
                Stream::Secured(stream) => stream.read(&mut self.buffer),
            });
            return match received {
                Ok(0) => Err("it ended the connection before its answer".to_owned()),
                Ok(count) => Ok(count),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Err(self.broken(&error)),
            };
        }
    }

    fn get(&mut self, host: &str, path: &str) -> Result<(), String> {
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: throng-balance\r\n\
             Connection: close\r\n\r\n"
        );
        self.send(request.as_bytes())?;
        let mut decoder = ResponseDecoder::new();
        let limits = http1::Limits::default();
        loop {
            let count = self.receive()?;
            let mut input = Input::new(&mut self.buffer[..count]);
            while let Some(event) = decoder.next_event(&mut input, &limits).map_err(not_http)? {
                let ResponseEvent::Head(response) = event else { continue };
                if response.is_interim() {
                    continue;
                }
                let status = response.status();
                return match status {
                    200..=399 => Ok(()),
                    _ => Err(format!("GET {path} was answered {status} instead of 2xx or 3xx")),
                };
            }
        }
    }

    /// Opens a WebSocket and waits for the pong to a ping.
    fn ping(&mut self, host: &str, path: &str) -> Result<(), String> {
        let key = Key::new(random().to_ne_bytes());
        let mut out = Vec::new();
        encode_request(host, path, &key, &[], &[], &mut out).map_err(|error| error.to_string())?;
        self.send(&out)?;
        let payload = (random() as u64).to_ne_bytes();
        let mut opening = Some(ResponseDecoder::new());
        let mut frames = ws::Decoder::new(Role::Client);
        loop {
            let count = self.receive()?;
            let mut input = Input::new(&mut self.buffer[..count]);
            let mut has_opened = false;
            if let Some(decoder) = &mut opening {
                while let Some(event) =
                    decoder.next_event(&mut input, &http1::Limits::default()).map_err(not_http)?
                {
                    match event {
                        ResponseEvent::Head(response)
                            if response.status() != 101 && response.is_interim() => {}
                        ResponseEvent::Head(response) => {
                            check_response(response.status(), &response, &key, &[])
                                .map_err(|error| error.to_string())?;
                        }
                        ResponseEvent::Body(_) => {}
                        ResponseEvent::End => has_opened = true,
                    }
                }
            }
            // Bytes after the 101 are frames already, and were read before the ping was sent: none
            // of them can be the pong.
            if opening.is_none() || has_opened {
                while let Some(event) = frames
                    .next_event(&mut input, &ws::Limits::default())
                    .map_err(|error| format!("it broke a rule of WebSocket: {error}"))?
                {
                    match event {
                        Event::Pong(answer) if answer == payload => {
                            return self.close();
                        }
                        Event::Close(_) => {
                            return Err(
                                "it closed the WebSocket instead of answering the ping".to_owned()
                            );
                        }
                        _ => {}
                    }
                }
            }
            if has_opened {
                opening = None;
                let mut ping = Vec::new();
                ws::encode_masked(Opcode::Ping, &payload, mask(), &mut ping);
                self.send(&ping)?;
            }
        }
    }

    /// Closes the WebSocket after the check has passed. A Close frame keeps a lost client out of
    /// the backend's log.
    fn close(&mut self) -> Result<(), String> {
        let mut out = Vec::new();
        ws::encode_close(CloseCode::NORMAL.get(), "", Some(mask()), &mut out);
        let _ = self.send(&out);
        Ok(())
    }
}

fn not_http(error: http1::Error) -> String {
    format!("its answer is not valid HTTP: {error}")
}

fn mask() -> [u8; 4] {
    (random() as u32).to_ne_bytes()
}

/// Returns a value that differs each time and cannot be guessed: the keys of std's hash maps are
/// drawn by the system.
fn random() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(Instant::now()));
    half() << 64 | half()
}
