//! Connections of simulated backends that speak HTTP: requests, a handshake, a tunnel.

use throng_proto::Input;
use throng_proto::http1::{Decoder, Event, Limits};
use throng_proto::ws::handshake::accept_key;

use super::frames::{self, Scan};
use super::plan::{BackendClose, Behaviour};
use super::wire::{Over, Then, Wire};
use crate::plan::SECOND;
use crate::rng::Rng;

/// A request, as far as it has arrived.
struct Delivery {
    id: u32,
    method: String,
    len: usize,
    expected: usize,
}

/// A tunnel, and the state of its backend.
#[derive(Debug, Default)]
pub(super) struct Tunnelled {
    pub(super) id: u32,
    /// The beginning of the tunnel's bytes in [`Wire::log`] and [`Wire::got`].
    pub(super) out_from: usize,
    pub(super) in_from: usize,
    received: Scan,
    /// When the backend next sends something on its own, and how often it has done so.
    at: u64,
    rounds: usize,
    gap: u64,
    largest: usize,
    /// Whether the backend's Close frame was sent.
    pub(super) has_closed: bool,
    pub(super) leaving: Option<BackendClose>,
}

/// A backend's side of a connection.
pub(super) struct HttpBackend {
    pub(super) way: Behaviour,
    leaving: BackendClose,
    decoder: Decoder,
    read: usize,
    deliveries: Vec<Delivery>,
    key: Option<String>,
    /// Whether a handshake has arrived and its answer is still due.
    pub(super) is_shaking: bool,
    answer_at: Option<u64>,
    pub(super) tunnel: Option<Tunnelled>,
    largest: usize,
    rng: Rng,
}

impl HttpBackend {
    /// Returns the id and method of each received request.
    pub(super) fn requests(&self) -> impl Iterator<Item = (u32, &str)> {
        self.deliveries.iter().map(|delivery| (delivery.id, delivery.method.as_str()))
    }

    pub(super) fn new(way: Behaviour, leaving: BackendClose, largest: usize, rng: Rng) -> Self {
        Self {
            way,
            leaving,
            decoder: Decoder::new(),
            read: 0,
            deliveries: Vec::new(),
            key: None,
            is_shaking: false,
            answer_at: None,
            tunnel: None,
            largest,
            rng,
        }
    }

    /// Returns when the backend next sends something on its own.
    pub(super) fn next_at(&self) -> Option<u64> {
        let own = self.tunnel.as_ref().filter(|tunnel| tunnel.at > 0).map(|tunnel| tunnel.at);
        own.into_iter().chain(self.answer_at).min()
    }

    /// Returns the written bytes of the tunnel.
    pub(super) fn said<'a>(&self, wire: &'a Wire) -> &'a [u8] {
        let from = self.tunnel.as_ref().map_or(0, |tunnel| tunnel.out_from);
        wire.said().get(from..).unwrap_or_default()
    }

    /// Returns the received bytes of the tunnel.
    pub(super) fn received<'a>(&self, wire: &'a Wire) -> &'a [u8] {
        let from = self.tunnel.as_ref().map_or(0, |tunnel| tunnel.in_from);
        wire.got.get(from..).unwrap_or_default()
    }

    /// Acts after a read. The requests begin at `from`.
    pub(super) fn step(&mut self, now: u64, wire: &mut Wire, from: Option<usize>) {
        match self.way {
            Behaviour::CloseAtOnce => return wire.leave(false),
            Behaviour::ResetAfter(bytes) if wire.got.len() >= bytes => return wire.leave(true),
            _ => {}
        }
        if let Some(from) = from
            && self.tunnel.is_none()
        {
            self.read = self.read.max(from);
            self.read_requests(now, wire);
        }
        if self.answer_at.is_some_and(|at| at <= now) {
            self.answer_at = None;
            self.answer(now, wire);
            if self.tunnel.is_none() {
                self.read_requests(now, wire);
            }
        }
        if self.tunnel.is_some() {
            self.go_on(now, wire);
        } else if wire.over == Some(Over::Finished) && self.answer_at.is_none() {
            wire.then(Then::Close);
        }
    }

    fn read_requests(&mut self, now: u64, wire: &mut Wire) {
        let limits = Limits::default();
        let mut fresh = wire.got[self.read..].to_vec();
        let mut input = Input::new(&mut fresh);
        while self.answer_at.is_none() && !self.is_shaking {
            match self.decoder.next_event(&mut input, &limits) {
                Ok(None) => break,
                Ok(Some(Event::Head(request))) => {
                    let mut parts = request.path().split('/').skip(1);
                    let kind = parts.next().unwrap_or_default();
                    let id = parts.next().and_then(|id| id.parse().ok()).unwrap_or(0);
                    let expected = request.header("X-Sum").and_then(|sum| sum.parse().ok());
                    let method = request.method().to_owned();
                    self.key = request.header("Sec-WebSocket-Key").map(str::to_owned);
                    self.is_shaking = kind == "t" && request.wants_upgrade();
                    if (kind == "t") != self.is_shaking
                        || request.header("X-Forwarded-For").is_none()
                    {
                        wire.faults.push(format!("the head of {id} is not as it should be"));
                    }
                    let expected = expected.unwrap_or(0);
                    self.deliveries.push(Delivery { id, method, len: 0, expected });
                    if self.is_shaking {
                        // The decoder's End follows the head; nothing else may come before our
                        // answer.
                        continue;
                    }
                    if self.way == Behaviour::Early {
                        self.answer_at = Some(now);
                    }
                }
                Ok(Some(Event::Body(piece))) => {
                    let Some(delivery) = self.deliveries.last_mut() else { break };
                    let right = |(at, byte): (usize, &u8)| {
                        frames::pattern(delivery.id, delivery.len + at) == *byte
                    };
                    if !piece.iter().enumerate().all(right) {
                        wire.faults.push(format!("the body of request {} is wrong", delivery.id));
                    }
                    delivery.len += piece.len();
                }
                Ok(Some(Event::End)) => {
                    let Some(delivery) = self.deliveries.last_mut() else { break };
                    if delivery.len != delivery.expected {
                        let Delivery { id, len, expected, .. } = delivery;
                        wire.faults.push(format!("{len} of {expected} bytes of request {id}"));
                    }
                    let wait = self.rng.pick(&[0, 1_000, 3_000_000, SECOND / 2]);
                    self.answer_at = Some(now + wait);
                }
                Err(error) => {
                    wire.faults.push(format!("a backend cannot read its request: {error:?}"));
                    return wire.leave(true);
                }
            }
        }
        // The end of a handshake, which needs no further bytes.
        if self.is_shaking && self.answer_at.is_none() {
            let _ = self.decoder.next_event(&mut input, &limits);
            self.answer_at = Some(now + self.rng.pick(&[1, 1_000, 3_000_000, SECOND / 2]));
        }
        self.read = wire.got.len() - input.len();
    }

    fn answer(&mut self, now: u64, wire: &mut Wire) {
        let Some(delivery) = self.deliveries.last() else { return };
        let (id, method) = (delivery.id, delivery.method.clone());
        match self.way {
            Behaviour::Mute => return,
            Behaviour::Garbage => {
                let garbage = self.rng.bytes(200);
                return wire.put(&garbage);
            }
            Behaviour::HalfHead => {
                wire.put(b"HTTP/1.1 200 OK\r\nContent-Le");
                let then = self.rng.pick(&[Then::Close, Then::Reset, Then::Stay]);
                return wire.then(then);
            }
            _ => {}
        }
        if std::mem::take(&mut self.is_shaking) {
            return self.shake(now, wire, id);
        }
        let rng = &mut self.rng;
        if rng.one_in(6) {
            wire.put(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n");
        }
        let len = rng.pick(&[0, 10, 300, self.largest, 2 * self.largest]);
        let body = frames::body(id ^ 0x55, len);
        let mut head = format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\nX-Sum: {len}\r\n");
        let mut out = Vec::new();
        let is_head = method == "HEAD";
        let kind = if is_head { 0 } else { rng.below(4) };
        // Some backends end a connection without announcing it.
        let quietly = self.way == Behaviour::EndIdle && rng.one_in(2);
        let mut ends = quietly || self.way == Behaviour::Early || rng.one_in(10);
        if ends && kind != 2 && !quietly {
            head += "Connection: close\r\n";
        }
        match kind {
            1 => {
                out.extend_from_slice((head + "Transfer-Encoding: chunked\r\n\r\n").as_bytes());
                out.extend_from_slice(&frames::chunked(rng, &body));
            }
            2 => {
                ends = true;
                out.extend_from_slice((head + "Connection: close\r\n\r\n").as_bytes());
                out.extend_from_slice(&body);
            }
            _ => {
                out.extend_from_slice(
                    (head + &format!("Content-Length: {len}\r\n\r\n")).as_bytes(),
                );
                if !is_head {
                    out.extend_from_slice(&body);
                }
            }
        }
        match self.way {
            Behaviour::Surplus if kind != 2 => {
                out.extend_from_slice(b"HTTP/1.1 200 OK\r\nX-Id: 0\r\nContent-Length: 0\r\n\r\n");
            }
            Behaviour::CutBody if !is_head && len > 20 => {
                out.truncate(out.len() - 10);
                // Otherwise the end of a body without a length would look like its completion.
                wire.put(&out);
                let then =
                    if kind == 2 { Then::Reset } else { rng.pick(&[Then::Reset, Then::Close]) };
                return wire.then(then);
            }
            _ => {}
        }
        wire.put(&out);
        if ends {
            wire.then(Then::Finish);
        }
    }

    fn shake(&mut self, now: u64, wire: &mut Wire, id: u32) {
        if wire.got.len() > self.read {
            wire.faults.push(format!("frames of {id} came before its 101"));
        }
        let key = self.key.clone().unwrap_or_default();
        let accept = match self.way {
            Behaviour::WrongAccept => accept_key("AAAAAAAAAAAAAAAAAAAAAA=="),
            _ => accept_key(&key),
        };
        let accept = String::from_utf8_lossy(&accept).into_owned();
        match self.way {
            Behaviour::Deny => {
                let no =
                    format!("HTTP/1.1 403 Forbidden\r\nX-Id: {id}\r\nContent-Length: 2\r\n\r\nno");
                return wire.put(no.as_bytes());
            }
            Behaviour::Plain => {
                let no = format!("HTTP/1.1 200 OK\r\nX-Id: {id}\r\nContent-Length: 2\r\n\r\nno");
                return wire.put(no.as_bytes());
            }
            _ => {}
        }
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        wire.put(head.as_bytes());
        let gap = self.rng.pick(&[100_000, SECOND / 3]);
        let rounds = self.rng.below(6);
        self.tunnel = Some(Tunnelled {
            id,
            out_from: wire.log.len(),
            in_from: self.read,
            at: if self.rng.one_in(2) { now } else { now + gap },
            rounds,
            gap,
            largest: self.largest,
            ..Tunnelled::default()
        });
    }

    fn go_on(&mut self, now: u64, wire: &mut Wire) {
        let Some(tunnel) = self.tunnel.as_mut() else { return };
        while let Some((first, payload)) = tunnel.received.next(&wire.got[tunnel.in_from..]) {
            if tunnel.has_closed || tunnel.leaving.is_some() {
                continue;
            }
            let mut out = Vec::new();
            match first & 0x0f {
                8 => {
                    frames::frame(0x88, &payload, None, &mut out);
                    tunnel.has_closed = true;
                }
                9 => frames::frame(0x8a, &payload, None, &mut out),
                _ if payload.len() % 2 == 0 => frames::frame(first, &payload, None, &mut out),
                _ => {}
            }
            wire.put(&out);
        }
        let client_closed = tunnel.received.close.is_some();
        if tunnel.at > 0 && tunnel.at <= now && !wire.gone {
            tunnel.at = 0;
            if tunnel.has_closed || tunnel.leaving.is_some() {
                // The backend has sent its last frame.
            } else if tunnel.rounds > 0 {
                tunnel.rounds -= 1;
                tunnel.at = now + 1 + self.rng.between(0, tunnel.gap);
                wire.put(&frames::any(&mut self.rng, tunnel.largest, false));
            } else {
                tunnel.leaving = Some(self.leaving);
                match self.leaving {
                    BackendClose::Stay => tunnel.leaving = None,
                    BackendClose::Close | BackendClose::CloseAndFinish => {
                        tunnel.has_closed = true;
                        wire.put(&frames::close(1000, "that was all", None));
                        if self.leaving == BackendClose::CloseAndFinish {
                            wire.then(Then::Finish);
                        }
                    }
                    BackendClose::Finish => wire.then(self.rng.pick(&[Then::Finish, Then::Close])),
                    BackendClose::Reset => wire.then(Then::Reset),
                    BackendClose::MidFrame => {
                        wire.put(&[0x82, 20, 1, 2, 3]);
                        wire.then(self.rng.pick(&[Then::Close, Then::Reset]));
                    }
                    BackendClose::NoFrame => {
                        wire.put(&[0x82, 0x7f, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 2])
                    }
                }
            }
        }
        if wire.over == Some(Over::Finished) {
            wire.then(Then::Close);
        } else if client_closed && tunnel.has_closed {
            // A server closes first, RFC 6455 section 7.1.1.
            wire.then(Then::Finish);
        }
    }
}
