//! A blocking client with nothing behind its back, for tests of real servers over real sockets.
#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod deflating;
pub(crate) mod events;
pub(crate) mod served;
pub(crate) mod wire;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use throng_proto::Input;
use throng_proto::ws::{self, Decoder, Event, Limits, Opcode, Role, handshake};

/// A message or event from the server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    /// 1005 if the frame had no code.
    Close(u16, String),
    /// The stream ended, or was reset.
    End,
}

pub(crate) struct Client<S = TcpStream> {
    pub(crate) stream: S,
    decoder: Decoder,
    received: Vec<u8>,
}

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

impl Client {
    pub(crate) fn connect(address: SocketAddr, target: &str) -> Self {
        Self::request(address, target, &[]).unwrap_or_else(|head| panic!("refused: {head}"))
    }

    /// Upgrades; the answer's head if it is no 101.
    pub(crate) fn request(
        address: SocketAddr,
        target: &str,
        headers: &[(&str, &str)],
    ) -> Result<Self, String> {
        Self::upgrade(dial(address), target, &[], headers)
    }
}

impl<S: Read + Write> Client<S> {
    /// Connects over an existing connection, offering these subprotocols.
    pub(crate) fn upgrade(
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
    pub(crate) fn opened(stream: S) -> Self {
        Self { stream, decoder: Decoder::new(Role::Client), received: Vec::new() }
    }

    pub(crate) fn send(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut frame = Vec::new();
        ws::encode_masked(opcode, payload, [1, 2, 3, 4], &mut frame);
        self.stream.write_all(&frame).unwrap();
    }

    /// Sends to a server that may have closed the connection meanwhile.
    pub(crate) fn try_send(&mut self, opcode: Opcode, payload: &[u8]) {
        let mut frame = Vec::new();
        ws::encode_masked(opcode, payload, [1, 2, 3, 4], &mut frame);
        let _ = self.stream.write_all(&frame);
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        self.send(Opcode::Text, text.as_bytes());
    }

    /// The next thing that is not a ping of the heartbeat.
    pub(crate) fn next(&mut self) -> Got {
        loop {
            match self.next_of_any_kind() {
                Got::Ping(_) => {}
                other => return other,
            }
        }
    }

    pub(crate) fn next_of_any_kind(&mut self) -> Got {
        let limits = Limits { max_frame_size: 64 << 20, max_message_size: 64 << 20 };
        loop {
            let mut input = Input::new(&mut self.received);
            let got =
                self.decoder.next_event(&mut input, &limits).unwrap().map(|event| match event {
                    Event::Text(text) => Got::Text(text.to_owned()),
                    Event::Binary(bytes) => Got::Binary(bytes.to_vec()),
                    Event::Ping(bytes) => Got::Ping(bytes.to_vec()),
                    Event::Pong(bytes) => Got::Pong(bytes.to_vec()),
                    Event::Compressed(_) | Event::Chunk(_) => panic!("not asked for: {event:?}"),
                    Event::Close(None) => Got::Close(1005, String::new()),
                    Event::Close(Some(close)) => Got::Close(close.code, close.reason.to_owned()),
                });
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
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Got::End,
                Err(error) => panic!("nothing came for {TIMEOUT:?}: {error}"),
            }
        }
    }
}

/// A session that answers a drain's Close frame, on a thread of its own.
pub(crate) fn polite(address: SocketAddr, path: &str) -> JoinHandle<()> {
    let mut client = Client::connect(address, path);
    thread::spawn(move || {
        assert_eq!(client.next(), Got::Close(1001, "going away".into()));
        client.try_send(Opcode::Close, &1001u16.to_be_bytes());
        assert_eq!(client.next(), Got::End);
    })
}

/// A connection with a time limit on everything.
pub(crate) fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// The head of a response; nothing behind it is taken.
pub(crate) fn read_head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
            Err(error) => {
                panic!("no whole head came: {error}; so far {:?}", String::from_utf8_lossy(&head))
            }
        }
    }
    String::from_utf8(head).unwrap()
}

/// Sends raw bytes and reads until the server ends the stream.
pub(crate) fn exchange(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = dial(address);
    stream.write_all(request).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the server did not end the stream: {error}"),
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < until, "never came true: {what}");
        // A poll a millisecond: who waits is not to take the processor from what is waited for.
        thread::sleep(Duration::from_millis(1));
    }
}

/// The counts of a publication.
pub(crate) fn counts_of(set: impl FnOnce(&mut throng::Delivery)) -> throng::Delivery {
    let mut counts = throng::Delivery::default();
    set(&mut counts);
    counts
}
