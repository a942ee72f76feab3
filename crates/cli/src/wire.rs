//! Blocking connections of attackers, and of clients that account for every message.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use throng_proto::Input;
use throng_proto::ws::{self, Decoder, Event, Limits, Opcode, Role};

/// Longer than a server under attack needs, unless it has stopped serving.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Opens a connection.
pub(crate) fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Reads the head of a response; returns its status.
fn read_status(stream: &mut TcpStream) -> io::Result<u16> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let status = head.get(9..12).and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    status.ok_or_else(|| io::Error::from(ErrorKind::InvalidData))
}

/// Sends a request on a connection of its own.
///
/// # Errors
/// No response came, or a response with another status than 200.
pub(crate) fn request(address: SocketAddr, request: &[u8]) -> io::Result<()> {
    let mut stream = dial(address)?;
    stream.write_all(request)?;
    match read_status(&mut stream)? {
        200 => Ok(()),
        status => Err(io::Error::other(format!("status {status}"))),
    }
}

/// A WebSocket.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    decoder: Decoder,
    received: Vec<u8>,
}

impl Client {
    /// Opens a WebSocket at `path`; `extensions` is empty or a header line.
    ///
    /// # Errors
    /// No response came, or a response with another status than 101.
    pub(crate) fn open(address: SocketAddr, path: &str, extensions: &str) -> io::Result<Self> {
        let mut stream = dial(address)?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: {address}\r\n\
             Upgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
             {extensions}\r\n"
        )?;
        match read_status(&mut stream)? {
            101 => Ok(Self { stream, decoder: Decoder::new(Role::Client), received: Vec::new() }),
            status => Err(io::Error::other(format!("status {status}"))),
        }
    }

    /// Sends a text and waits until it comes back.
    ///
    /// # Errors
    /// The session has ended.
    pub(crate) fn echo(&mut self, text: &str) -> io::Result<()> {
        self.send(text)?;
        while self.next_text()? != text {}
        Ok(())
    }

    /// Sends a text.
    ///
    /// # Errors
    /// The connection is lost.
    pub(crate) fn send(&mut self, text: &str) -> io::Result<()> {
        self.send_frame(Opcode::Text, text.as_bytes())
    }

    /// Begins the closing handshake.
    ///
    /// # Errors
    /// The connection is lost.
    #[cfg(all(unix, feature = "redis"))]
    pub(crate) fn close(&mut self) -> io::Result<()> {
        self.send_frame(Opcode::Close, &1000u16.to_be_bytes())
    }

    fn send_frame(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        let mut frame = Vec::new();
        ws::encode_masked(opcode, payload, [1, 2, 3, 4], &mut frame);
        self.stream.write_all(&frame)
    }

    /// Waits for the next text, up to the stream's time limit; a partial text is kept.
    ///
    /// # Errors
    /// None came in time, or the session has ended.
    pub(crate) fn next_text(&mut self) -> io::Result<String> {
        let limits = Limits { max_frame_size: 1 << 20, max_message_size: 1 << 20 };
        let mut buffer = [0; 4096];
        loop {
            let mut pong = None;
            let mut input = Input::new(&mut self.received);
            let event = self.decoder.next_event(&mut input, &limits);
            let text = match event.map_err(|error| io::Error::other(error.to_string()))? {
                Some(Event::Text(text)) => Some(text.to_owned()),
                Some(Event::Close(_)) => return Err(ErrorKind::ConnectionAborted.into()),
                Some(Event::Ping(payload)) => {
                    pong = Some(payload.to_vec());
                    Some(String::new())
                }
                Some(_) => Some(String::new()),
                None => None,
            };
            let left = input.len();
            self.received.drain(..self.received.len() - left);
            if let Some(payload) = pong {
                self.send_frame(Opcode::Pong, &payload)?;
            }
            if let Some(text) = text {
                return Ok(text);
            }
            match self.stream.read(&mut buffer)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                n => self.received.extend_from_slice(&buffer[..n]),
            }
        }
    }
}
