//! One HTTP request of a simulated client, and the requested behaviour of the service. The request
//! target encodes everything, so that the service needs no plan and the checkers need not inspect
//! the service.

use throng_proto::http1::Request;

/// Treatment of a request's body by the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// Ignores the body, which is read and dropped.
    Drop = 0,
    /// Waits for the whole body.
    Whole = 1,
    /// Processes pieces of the body as they arrive.
    Pieces = 2,
}

/// The moment at which the service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceStart {
    /// In the callback that receives the last required input.
    AtOnce = 0,
    /// By a delivery, a delay after that callback.
    Later = 1,
    /// By a delivery, a delay after the head, whether or not the body has arrived.
    AfterHead = 2,
    /// When the next request, or the end of a body in pieces, arrives at its shard; otherwise like
    /// `Later`.
    Parked = 3,
}

/// A request of a simulated client. Times are in milliseconds of virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The number of the peer that asks.
    pub peer: u32,
    /// The number of this request among the peer's requests, from 0.
    pub number: u32,
    /// Treatment of the body.
    pub take: Take,
    /// Bytes of the request's body.
    pub upload: usize,
    /// Maximum bytes of the body for each piece that the service takes.
    pub most: usize,
    /// The service stops reading for a while after one in this many pieces (0 = never).
    pub stops: usize,
    /// The duration for which the service stops reading.
    pub room_after: u64,
    /// When the answer begins.
    pub start: ServiceStart,
    /// Its delay.
    pub delay: u64,
    /// Bytes of the answer's body.
    pub length: usize,
    /// Whether the answer is sent in chunks; otherwise it has a length.
    pub chunked: bool,
    /// Bytes of an answer's chunk that are written at once (0 = the whole answer).
    pub chunk: usize,
    /// After one chunk in so many there is nothing to send for a while (0 = never).
    pub waits: usize,
    /// The duration of the pause.
    pub wait: u64,
    /// The answer's source fails after this many bytes.
    pub fails_at: Option<usize>,
    /// The service panics instead of answering.
    pub panics: bool,
    /// Whether this is the last request on its connection.
    pub close: bool,
    /// Whether the request expects `100-continue` but does not wait for it.
    pub expects: bool,
}

/// The direction of a body, which makes the bodies of request and answer differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// A request's.
    Up = 0,
    /// An answer's.
    Down = 1,
}

const TARGET: &str = "/x?";

impl Ask {
    /// A request without a body, answered at once with `length` bytes.
    #[must_use]
    pub fn new(peer: u32, number: u32, length: usize) -> Self {
        Self {
            peer,
            number,
            take: Take::Drop,
            upload: 0,
            most: usize::MAX >> 1,
            stops: 0,
            room_after: 0,
            start: ServiceStart::AtOnce,
            delay: 0,
            length,
            chunked: false,
            chunk: 0,
            waits: 0,
            wait: 0,
            fails_at: None,
            panics: false,
            close: false,
            expects: false,
        }
    }

    /// Returns the request's target.
    #[must_use]
    pub fn target(&self) -> String {
        let numbers = [
            u64::from(self.peer),
            u64::from(self.number),
            self.take as u64,
            self.upload as u64,
            self.most as u64,
            self.stops as u64,
            self.room_after,
            self.start as u64,
            self.delay,
            self.length as u64,
            u64::from(self.chunked),
            self.chunk as u64,
            self.waits as u64,
            self.wait,
            self.fails_at.map_or(0, |at| at as u64 + 1),
            u64::from(self.panics),
            u64::from(self.close),
            u64::from(self.expects),
        ];
        TARGET.to_owned() + &numbers.map(|number| number.to_string()).join(",")
    }

    /// Parses a request into an ask; `None` for other requests.
    #[must_use]
    pub fn of(request: &Request<'_>) -> Option<Self> {
        let numbers: Vec<u64> = request
            .target()
            .strip_prefix(TARGET)?
            .split(',')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let numbers: [u64; 18] = numbers.try_into().ok()?;
        let [peer, number, take, upload, most, stops, room_after, start, delay, length, ..] =
            numbers;
        let [.., chunked, chunk, waits, wait, fails, panics, close, expects] = numbers;
        Some(Self {
            peer: peer as u32,
            number: number as u32,
            take: [Take::Drop, Take::Whole, Take::Pieces][take as usize],
            upload: upload as usize,
            most: most as usize,
            stops: stops as usize,
            room_after,
            start: [
                ServiceStart::AtOnce,
                ServiceStart::Later,
                ServiceStart::AfterHead,
                ServiceStart::Parked,
            ][start as usize],
            delay,
            length: length as usize,
            chunked: chunked == 1,
            chunk: chunk as usize,
            waits: waits as usize,
            wait,
            fails_at: (fails as usize).checked_sub(1),
            panics: panics == 1,
            close: close == 1,
            expects: expects == 1,
        })
    }

    /// The request's head; its body has a length, or comes in chunks.
    #[must_use]
    pub fn head(&self, chunks: bool) -> Vec<u8> {
        let method = if self.upload > 0 { "POST" } else { "GET" };
        let mut head = format!("{method} {} HTTP/1.1\r\nHost: sim\r\n", self.target());
        match (self.upload, chunks) {
            (0, _) => {}
            (_, true) => head.push_str("Transfer-Encoding: chunked\r\n"),
            (length, false) => head.push_str(&format!("Content-Length: {length}\r\n")),
        }
        if self.expects {
            head.push_str("Expect: 100-continue\r\n");
        }
        if self.close {
            head.push_str("Connection: close\r\n");
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// Returns the whole request; in chunks of this many bytes, unless `chunk` is 0.
    #[must_use]
    pub fn request(&self, chunk: usize) -> Vec<u8> {
        let mut out = self.head(chunk > 0);
        let body: Vec<u8> = (0..self.upload).map(|at| self.byte(Direction::Up, at)).collect();
        if chunk == 0 || body.is_empty() {
            out.extend_from_slice(&body);
            return out;
        }
        for data in body.chunks(chunk) {
            throng_proto::http1::encode::encode_chunk(data, &mut out);
        }
        throng_proto::http1::encode::encode_last_chunk(&[], &mut out);
        out
    }

    /// Returns the byte at a position of the body.
    #[must_use]
    pub fn byte(&self, direction: Direction, at: usize) -> u8 {
        byte(self.peer, self.number, direction, at)
    }

    /// Returns whether these are the bytes at a position of the body.
    #[must_use]
    pub fn is_at(&self, direction: Direction, from: usize, bytes: &[u8]) -> bool {
        bytes.iter().enumerate().all(|(at, byte)| *byte == self.byte(direction, from + at))
    }

    /// Returns whether it may be answered before its body has come.
    #[must_use]
    pub fn is_early(&self) -> bool {
        self.take == Take::Pieces && self.start == ServiceStart::AfterHead && self.upload > 0
    }

    /// Returns whether the answer never completes.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.fails_at.is_some()
    }

    /// Returns the maximum bytes of the answer that the service writes in one callback.
    #[must_use]
    pub fn largest_write(&self) -> usize {
        if self.chunk == 0 { self.length } else { self.chunk }
    }
}

/// Returns the byte at a position of the body of one peer's request or answer. Any two bodies soon
/// differ.
#[must_use]
pub fn byte(peer: u32, number: u32, direction: Direction, at: usize) -> u8 {
    let body = (number * 2 + direction as u32).wrapping_mul(0x85eb_ca6b);
    let salt = peer.wrapping_mul(0x9e37_79b1) ^ body;
    let mixed = ((at as u32) ^ salt).wrapping_mul(0xc2b2_ae35);
    (mixed >> 21) as u8
}
