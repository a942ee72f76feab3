//! A client over a real socket that speaks permessage-deflate as [`wire`](super::wire) does.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::wire::{Reader, Received, Terms, Writer};
use super::{TIMEOUT, dial, read_head};

pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) head: String,
    pub(crate) terms: Option<Terms>,
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

impl Peer {
    /// With this `Sec-WebSocket-Extensions`; without the header if it is empty.
    pub(crate) fn connect(address: SocketAddr, target: &str, offer: &str) -> Self {
        Self::over(dial(address), target, offer)
    }

    pub(crate) fn over(stream: TcpStream, target: &str, offer: &str) -> Self {
        Self::upgrade(stream, target, offer).unwrap_or_else(|head| panic!("refused: {head}"))
    }

    /// Returns the head of the answer if it is not a 101.
    pub(crate) fn upgrade(
        mut stream: TcpStream,
        target: &str,
        offer: &str,
    ) -> Result<Self, String> {
        let offer = match offer {
            "" => String::new(),
            offer => format!("Sec-WebSocket-Extensions: {offer}\r\n"),
        };
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n{offer}\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let head = read_head(&mut stream);
        if !head.starts_with("HTTP/1.1 101 ") {
            return Err(head);
        }
        let terms = Terms::of_head(&head);
        let (reader, writer) = (Reader::of_server(terms), Writer::of_client(terms));
        Ok(Self { stream, head, terms, reader, writer })
    }

    /// Compressed, if that was negotiated.
    pub(crate) fn say(&mut self, text: bool, payload: &[u8]) {
        let compress = self.writer.can_deflate();
        let bytes = self.writer.message(text, payload, compress);
        self.stream.write_all(&bytes).unwrap();
    }

    pub(crate) fn write_frame(&mut self, first: u8, payload: &[u8]) {
        let mut bytes = Vec::new();
        self.writer.frame(first, payload, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    pub(crate) fn ping(&mut self, payload: &[u8]) {
        self.write_frame(0x89, payload);
    }

    /// Returns the next frame that is not a ping; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Received> {
        loop {
            match self.reader.next() {
                Ok(Some(Received::Ping(_))) => {}
                Ok(Some(heard)) => return Some(heard),
                Ok(None) if !self.read(65_536) => return None,
                Ok(None) => {}
                Err(error) => panic!("{error}; terms {:?}", self.terms),
            }
        }
    }

    /// Reads at most `max` bytes once; false at the end of the stream.
    pub(crate) fn read(&mut self, max: usize) -> bool {
        let mut buffer = vec![0; max];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                self.reader.push(&buffer[..n]);
                true
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("nothing came for {TIMEOUT:?}: {error}"),
        }
    }

    pub(crate) fn expect_message(&mut self, payload: &[u8]) -> (bool, Vec<usize>) {
        match self.next() {
            Some(Received::Message { payload: got, deflated, frames, .. }) => {
                assert!(got == payload, "{} bytes came, {} were due", got.len(), payload.len());
                (deflated, frames)
            }
            other => panic!("{other:?} instead of a message of {} bytes", payload.len()),
        }
    }

    pub(crate) fn expect_close(&mut self) -> (u16, String) {
        loop {
            match self.next() {
                Some(Received::Close { code, reason, .. }) => return (code, reason),
                Some(Received::Message { .. } | Received::Pong { .. }) => {}
                other => panic!("{other:?} instead of a Close frame"),
            }
        }
    }
}
