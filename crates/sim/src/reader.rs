//! A client's reader: decodes everything from the server with the client's decoders, and keeps it
//! for the checkers.

use throng_proto::http1::{self, ResponseDecoder, ResponseEvent};
use throng_proto::ws::handshake::{Key, check_response};
use throng_proto::ws::{self, Role};
use throng_proto::{Input, ws::Event};

use crate::ask::{Direction, byte};
use crate::rng::message_hash;

/// One message from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    /// An answer meant only for this client.
    Direct(u64),
    /// A publication.
    Published {
        /// The channel.
        channel: String,
        /// The number of the peer that published.
        by: u32,
        /// Its number among that peer's publications.
        sequence: u32,
    },
    /// A message sent to one connection by its id, from another connection's callback.
    Private {
        /// The peer for which the message was meant.
        to: u32,
        /// The peer whose callback sent it.
        by: u32,
        /// Its number among that sender's.
        sequence: u32,
    },
}

/// One HTTP answer, as far as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answered {
    /// Its status.
    pub status: u16,
    /// The peer and the number of the request that the answer claims to answer.
    pub ask: Option<(u32, u32)>,
    /// Bytes of its body.
    pub got: usize,
    /// Some of them are wrong.
    pub wrong: bool,
    /// Whether the answer claims to be the last one.
    pub close: bool,
    /// Whether the answer arrived completely.
    pub whole: bool,
    /// When its last byte came.
    pub at: u64,
}

/// A reply that a peer owes the server after reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A pong with this payload.
    Pong(Vec<u8>),
    /// An answer to the server's Close.
    Close(u16),
}

#[derive(Debug)]
enum ReaderStage {
    Http(ResponseDecoder),
    Ws(ws::Decoder),
    /// The bytes of an event that is not yet complete.
    Events(Vec<u8>),
}

/// The reader of one client.
#[derive(Debug)]
pub struct Reader {
    stage: ReaderStage,
    key: Key,
    /// Statuses of the HTTP answers, in order, including the 101.
    pub statuses: Vec<u16>,
    /// Number of complete HTTP answers.
    pub answered: usize,
    /// HTTP answers, one by one, except the 101.
    pub answers: Vec<Answered>,
    /// Interim answers.
    pub interim: usize,
    /// Messages.
    pub received: Vec<Received>,
    /// When each came, in nanoseconds.
    pub received_at: Vec<u64>,
    /// Comments in a stream of events, which show that the stream is alive.
    pub comments: usize,
    /// Events that report a message that was not sent.
    pub lost: usize,
    /// When the server's pings came.
    pub pings: Vec<u64>,
    /// Payloads of pongs.
    pub pongs: Vec<Vec<u8>>,
    /// The server's Close: code and reason.
    pub closed: Option<(u16, String)>,
    /// Violations by the server.
    pub violations: Vec<String>,
}

const LIMITS: ws::Limits = ws::Limits { max_frame_size: 1 << 30, max_message_size: 1 << 30 };

impl Reader {
    /// The reader of a client that asks for an upgrade with `key`.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self {
            stage: ReaderStage::Http(ResponseDecoder::new()),
            key,
            statuses: Vec::new(),
            answered: 0,
            answers: Vec::new(),
            interim: 0,
            received: Vec::new(),
            received_at: Vec::new(),
            comments: 0,
            lost: 0,
            pings: Vec::new(),
            pongs: Vec::new(),
            closed: None,
            violations: Vec::new(),
        }
    }

    /// The upgrade was accepted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(self.stage, ReaderStage::Ws(_) | ReaderStage::Events(_))
    }

    /// Returns whether nothing is incomplete, so that the stream may end.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        match &self.stage {
            ReaderStage::Http(decoder) => decoder.is_between_responses() || decoder.is_closed(),
            ReaderStage::Ws(decoder) => decoder.is_between_messages(),
            ReaderStage::Events(partial) => partial.is_empty(),
        }
    }

    /// Reads data received at `now`.
    pub fn take(&mut self, mut bytes: Vec<u8>, now: u64) -> Vec<Reply> {
        let mut replies = Vec::new();
        let mut input = Input::new(&mut bytes);
        while !input.is_empty() {
            let before = input.len();
            match &mut self.stage {
                ReaderStage::Http(_) => self.take_http(&mut input, now),
                ReaderStage::Ws(_) => self.take_ws(&mut input, now, &mut replies),
                ReaderStage::Events(_) => self.take_events(&mut input),
            }
            self.received_at.resize(self.received.len(), now);
            if input.len() == before {
                self.violations.push(format!("{before} bytes make no sense"));
                break;
            }
        }
        replies
    }

    fn take_http(&mut self, input: &mut Input<'_>, now: u64) {
        let ReaderStage::Http(decoder) = &mut self.stage else { return };
        let mut switched = false;
        let mut streams = false;
        loop {
            match decoder.next_event(input, &http1::Limits::default()) {
                Ok(None) => break,
                Ok(Some(ResponseEvent::Head(response))) if response.status() == 100 => {
                    self.interim += 1;
                }
                Ok(Some(ResponseEvent::Head(response))) => {
                    self.statuses.push(response.status());
                    let ask = response.header("x-ask").and_then(|name| {
                        let (peer, number) = name.split_once('.')?;
                        Some((peer.parse().ok()?, number.parse().ok()?))
                    });
                    if response.status() != 101 {
                        self.answers.push(Answered {
                            status: response.status(),
                            ask,
                            close: !response.keep_alive(),
                            at: now,
                            ..Answered::default()
                        });
                    }
                    if response.status() == 101 {
                        switched = true;
                        if let Err(error) = check_response(101, &response, &self.key, &[]) {
                            self.violations.push(format!("a wrong 101: {error}"));
                        }
                    } else if response.header("content-type") == Some("text/event-stream") {
                        streams = true;
                        break;
                    }
                }
                Ok(Some(ResponseEvent::Body(bytes))) => {
                    let Some(answer) = self.answers.last_mut() else { continue };
                    if let Some((peer, number)) = answer.ask {
                        let right = |at| byte(peer, number, Direction::Down, answer.got + at);
                        let mut bytes = bytes.iter().enumerate();
                        answer.wrong |= bytes.any(|(at, byte)| *byte != right(at));
                    }
                    answer.got += bytes.len();
                    answer.at = now;
                }
                Ok(Some(ResponseEvent::End)) => {
                    self.answered += 1;
                    if switched {
                        break;
                    }
                    if let Some(answer) = self.answers.last_mut() {
                        answer.whole = true;
                        answer.at = now;
                    }
                }
                Err(error) => {
                    let start = String::from_utf8_lossy(&input.as_slice()[..input.len().min(40)])
                        .into_owned();
                    self.violations.push(format!("a broken answer: {error}: {start:?}"));
                    input.take(usize::MAX);
                    return;
                }
            }
        }
        if streams {
            self.stage = ReaderStage::Events(Vec::new());
        } else if switched {
            self.stage = ReaderStage::Ws(ws::Decoder::new(Role::Client));
        } else if !input.is_empty() && decoder.is_closed() {
            self.violations.push(format!("{} bytes after the last answer", input.len()));
            input.take(usize::MAX);
        }
    }

    /// Decodes events as in WHATWG HTML section 9.2, as far as our server uses it.
    fn take_events(&mut self, input: &mut Input<'_>) {
        let ReaderStage::Events(partial) = &mut self.stage else { return };
        partial.extend_from_slice(input.as_slice());
        input.take(usize::MAX);
        while let Some(end) = partial.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = partial.drain(..end + 2).collect();
            let Ok(event) = std::str::from_utf8(&event[..end]) else {
                self.violations.push("an event that is no text".to_owned());
                continue;
            };
            if event.starts_with(':') {
                self.comments += 1;
                continue;
            }
            if event.split('\n').any(|line| field(line) == ("event", "lost")) {
                self.lost += 1;
                continue;
            }
            let (mut data, mut binary) = (Vec::new(), false);
            for line in event.split('\n') {
                match field(line) {
                    ("data", value) => data.push(value),
                    ("event", "binary") => binary = true,
                    _ => self.violations.push(format!("a line of an event: {line:?}")),
                }
            }
            let data = data.join("\n");
            self.received.push(match binary {
                true => Received::Direct(message_hash(false, data.as_bytes())),
                false => received(&data),
            });
        }
    }

    fn take_ws(&mut self, input: &mut Input<'_>, now: u64, replies: &mut Vec<Reply>) {
        let ReaderStage::Ws(decoder) = &mut self.stage else { return };
        if self.closed.is_some() {
            self.violations.push(format!("{} bytes after the Close frame", input.len()));
            input.take(usize::MAX);
            return;
        }
        loop {
            match decoder.next_event(input, &LIMITS) {
                Ok(None) => return,
                Ok(Some(Event::Text(text))) => self.received.push(received(text)),
                Ok(Some(Event::Binary(bytes))) => {
                    self.received.push(Received::Direct(message_hash(false, bytes)));
                }
                Ok(Some(Event::Ping(payload))) => {
                    self.pings.push(now);
                    replies.push(Reply::Pong(payload.to_vec()));
                }
                Ok(Some(Event::Pong(payload))) => self.pongs.push(payload.to_vec()),
                Ok(Some(event @ (Event::Compressed(_) | Event::Chunk(_)))) => {
                    self.violations.push(format!("not asked for: {event:?}"));
                }
                Ok(Some(Event::Close(reason))) => {
                    let (code, text) =
                        reason.map_or((1005, ""), |close| (close.code, close.reason));
                    self.closed = Some((code, text.to_owned()));
                    replies.push(Reply::Close(code));
                    if !input.is_empty() {
                        self.violations
                            .push(format!("{} bytes behind the Close frame", input.len()));
                    }
                    input.take(usize::MAX);
                    return;
                }
                Err(error) => {
                    self.violations.push(format!("a broken frame: {error}"));
                    input.take(usize::MAX);
                    return;
                }
            }
        }
    }
}

/// `name: value`, with or without the space (WHATWG HTML section 9.2).
fn field(line: &str) -> (&str, &str) {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    (name, value.strip_prefix(' ').unwrap_or(value))
}

/// `c|channel|by|sequence|...` is a publication, `p|to|by|sequence|...` a private message.
fn received(text: &str) -> Received {
    let mut parts = text.split('|');
    let kind = parts.next();
    let parsed = (|| {
        let first = parts.next()?;
        let by = parts.next()?.parse().ok()?;
        let sequence = parts.next()?.parse().ok()?;
        match kind? {
            "c" => Some(Received::Published { channel: first.to_owned(), by, sequence }),
            "p" => Some(Received::Private { to: first.parse().ok()?, by, sequence }),
            _ => None,
        }
    })();
    parsed.unwrap_or_else(|| Received::Direct(message_hash(true, text.as_bytes())))
}
