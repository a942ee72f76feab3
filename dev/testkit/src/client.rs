//! A blocking WebSocket client that does nothing by itself: no pong, no Close.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use throng_proto::Input;
use throng_proto::ws::{self, Decoder, Event, Limits, Opcode, Role, handshake};

use crate::wire::{TIMEOUT, dial, read_head};

/// A message or event from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Vec<u8>),
    /// A ping, with its payload.
    Ping(Vec<u8>),
    /// A pong, with its payload.
    Pong(Vec<u8>),
    /// A Close frame, with 1005 if it had no code.
    Close(u16, String),
    /// The stream ended, or was reset.
    End,
}

impl Got {
    /// Returns the code of a Close frame.
    #[must_use]
    pub fn close_code(&self) -> Option<u16> {
        match self {
            Self::Close(code, _) => Some(*code),
            _ => None,
        }
    }
}

impl From<Event<'_>> for Got {
    fn from(event: Event<'_>) -> Self {
        match event {
            Event::Text(text) => Self::Text(text.to_owned()),
            Event::Binary(bytes) => Self::Binary(bytes.to_vec()),
            Event::Ping(bytes) => Self::Ping(bytes.to_vec()),
            Event::Pong(bytes) => Self::Pong(bytes.to_vec()),
            Event::Close(None) => Self::Close(1005, String::new()),
            Event::Close(Some(close)) => Self::Close(close.code, close.reason.to_owned()),
            Event::Compressed(_) | Event::Chunk(_) => panic!("not asked for: {event:?}"),
        }
    }
}

/// An open WebSocket session, over TCP or over any other stream.
#[derive(Debug)]
pub struct Client<S = TcpStream> {
    /// The connection, for tests that send raw bytes.
    pub stream: S,
    decoder: Decoder,
    received: Vec<u8>,
}

impl Client {
    /// Connects and upgrades.
    ///
    /// # Panics
    /// The server refuses.
    #[must_use]
    pub fn connect(address: SocketAddr, target: &str) -> Self {
        Self::request(address, target, &[]).unwrap_or_else(|head| panic!("refused: {head}"))
    }

    /// Connects and upgrades.
    ///
    /// # Errors
    /// The head of an answer that is not 101.
    pub fn request(
        address: SocketAddr,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, String> {
        Self::upgrade(dial(address), target, &[], headers)
    }
}

impl<S: Read + Write> Client<S> {
    /// Upgrades an existing connection, offering these subprotocols.
    ///
    /// # Errors
    /// The head of an answer that is not 101.
    ///
    /// # Panics
    /// The connection fails.
    pub fn upgrade(
        mut stream: S,
        target: &str,
        subprotocols: &[&str],
        headers: &[(&str, &str)],
    ) -> Result<Self, String> {
        let key = handshake::Key::new(*b"0123456789abcdef");
        let mut request = Vec::new();
        handshake::encode_request("localhost", target, &key, subprotocols, headers, &mut request)
            .unwrap();
        stream.write_all(&request).unwrap();
        let head = read_head(&mut stream);
        if !head.starts_with("HTTP/1.1 101 ") {
            return Err(head);
        }
        Ok(Self::opened(stream))
    }

    /// Continues after a handshake.
    pub fn opened(stream: S) -> Self {
        Self { stream, decoder: Decoder::new(Role::Client), received: Vec::new() }
    }

    /// Sends a frame.
    ///
    /// # Panics
    /// The connection fails.
    pub fn send(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut frame = Vec::new();
        ws::encode_masked(opcode, payload, [1, 2, 3, 4], &mut frame);
        self.stream.write_all(&frame).unwrap();
    }

    /// Sends to a server that may already have closed the connection.
    pub fn try_send(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut frame = Vec::new();
        ws::encode_masked(opcode, payload, [1, 2, 3, 4], &mut frame);
        let _ = self.stream.write_all(&frame);
    }

    /// Sends a text message.
    pub fn send_text(&mut self, text: &str) {
        self.send(Opcode::Text, text.as_bytes());
    }

    /// Returns the next message or event that is not a ping of the heartbeat.
    #[allow(clippy::should_implement_trait, reason = "it never ends, but panics")]
    pub fn next(&mut self) -> Got {
        loop {
            match self.next_of_any_kind() {
                Got::Ping(_) => {}
                other => return other,
            }
        }
    }

    /// Returns the next message or event.
    ///
    /// # Panics
    /// Nothing arrived for [`TIMEOUT`], or the server violates RFC 6455.
    pub fn next_of_any_kind(&mut self) -> Got {
        let limits = Limits { max_frame_size: 64 << 20, max_message_size: 64 << 20 };
        loop {
            let mut input = Input::new(&mut self.received);
            let got = self.decoder.next_event(&mut input, &limits).unwrap().map(Got::from);
            let left = input.len();
            let taken = self.received.len() - left;
            self.received.drain(..taken);
            if let Some(got) = got {
                return got;
            }
            let mut buffer = [0; 65536];
            match self.stream.read(&mut buffer) {
                Ok(0) => return Got::End,
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Got::End,
                // A read with a timeout ends with it when the process was stopped for a moment.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => panic!("nothing came for {TIMEOUT:?}: {error}"),
            }
        }
    }
}
