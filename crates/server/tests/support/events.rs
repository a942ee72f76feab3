//! Server-sent events, raw.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::{dial, read_head};

/// A stream of server-sent events, byte by byte as it comes.
pub(crate) struct Events {
    pub(crate) stream: TcpStream,
    pub(crate) head: String,
    received: Vec<u8>,
}

impl Events {
    pub(crate) fn open(address: SocketAddr, path: &str) -> Self {
        Self::request(dial(address), "GET", path, &[])
    }

    pub(crate) fn request(
        mut stream: TcpStream,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Self {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        stream.write_all((request + "\r\n").as_bytes()).unwrap();
        let head = read_head(&mut stream);
        Self { stream, head, received: Vec::new() }
    }

    /// Reads up to the next empty line, without it; `None` at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.received.windows(2).position(|pair| pair == b"\n\n") {
                let event = self.received.drain(..end + 2).take(end).collect();
                return Some(String::from_utf8(event).unwrap());
            }
            let mut buffer = [0; 16_384];
            match self.stream.read(&mut buffer) {
                Ok(0) => return None,
                Ok(n) => self.received.extend_from_slice(&buffer[..n]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("nothing came: {error}"),
            }
        }
    }

    /// Returns the next event that is not a comment.
    pub(crate) fn next_event(&mut self) -> Option<String> {
        loop {
            match self.next() {
                Some(comment) if comment.starts_with(':') => {}
                other => return other,
            }
        }
    }
}
