//! Simulated clients that speak HTTP: a tunnel, or requests one after the other.

use throng_proto::Input;
use throng_proto::http1::{Limits, ResponseDecoder, ResponseEvent};

use super::frames::{self, Scan};
use super::plan::{ClientClose, SessionPlan};
use super::wire::{Over, Then, Wire};
use crate::plan::SECOND;
use crate::rng::Rng;

/// The key of all handshakes.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A received answer.
#[derive(Clone, Debug, Default)]
pub(super) struct SimAnswer {
    pub(super) status: u16,
    /// The backend's mark; `None` for the balancer's own answer.
    pub(super) id: Option<u32>,
    sum: usize,
    len: usize,
    pub(super) is_whole: bool,
}

/// A client's side of a tunnel, or of requests.
pub(super) struct HttpClient {
    id: u32,
    pub(super) plan: SessionPlan,
    rng: Rng,
    decoder: ResponseDecoder,
    read: usize,
    pub(super) answers: Vec<SimAnswer>,
    asked: usize,
    pub(super) refused: bool,
    /// Whether a backend sent more than requested, and the excess was treated as an answer.
    is_out_of_step: bool,
    /// The beginning of the tunnel's bytes in [`Wire::log`] and [`Wire::got`].
    pub(super) out_from: usize,
    pub(super) in_from: Option<usize>,
    received: Scan,
    frames_left: usize,
    at: Option<u64>,
    leave_at: Option<u64>,
    pub(super) has_closed: bool,
    /// Whether the client itself began the end, without a Close frame.
    pub(super) broke_off: bool,
}

impl HttpClient {
    pub(super) fn new(id: u32, plan: &SessionPlan, rng: Rng) -> Self {
        Self {
            id,
            plan: plan.clone(),
            rng,
            decoder: ResponseDecoder::new(),
            read: 0,
            answers: Vec::new(),
            asked: 0,
            refused: false,
            is_out_of_step: false,
            out_from: 0,
            in_from: None,
            received: Scan::default(),
            frames_left: 0,
            at: None,
            leave_at: None,
            has_closed: false,
            broke_off: false,
        }
    }

    /// Returns its state, for reports.
    pub(super) fn describe(&self) -> String {
        let (tunnel, answers) = (self.in_from.is_some(), &self.answers);
        format!("tunnel {tunnel}, {answers:?}, ")
    }

    /// Returns when the client next sends something on its own.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.at.into_iter().chain(self.leave_at).min()
    }

    /// Returns the written bytes of the tunnel.
    pub(super) fn said<'a>(&self, wire: &'a Wire) -> &'a [u8] {
        wire.said().get(self.out_from..).unwrap_or_default()
    }

    /// Returns the received bytes of the tunnel.
    pub(super) fn received<'a>(&self, wire: &'a Wire) -> &'a [u8] {
        self.in_from.map_or(&[], |from| &wire.got[from..])
    }

    /// Starts it on its link.
    pub(super) fn begin(&mut self, wire: &mut Wire) {
        match self.plan.clone() {
            SessionPlan::Tunnel { frames, early, largest, .. } => {
                let id = self.id;
                let head = format!(
                    "GET /t/{id}?k={id} HTTP/1.1\r\nHost: example.com\r\nX-Key: {id}\r\n\
                     Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                     Sec-WebSocket-Key: {KEY}\r\n\r\n"
                );
                wire.put(head.as_bytes());
                self.out_from = wire.log.len();
                for _ in 0..early {
                    wire.put(&frames::any(&mut self.rng, largest, true));
                }
                self.frames_left = frames - early;
            }
            SessionPlan::Http { asks, pipelined, finish } => {
                let count = if pipelined { asks.len() } else { 1 };
                for _ in 0..count {
                    self.ask(wire);
                }
                if finish && count == asks.len() {
                    wire.then(Then::Finish);
                }
            }
        }
    }

    fn ask(&mut self, wire: &mut Wire) {
        let SessionPlan::Http { asks, .. } = &self.plan else { return };
        let Some(ask) = asks.get(self.asked) else { return };
        self.asked += 1;
        let (id, method, len) = (ask.id, ask.method, ask.len);
        let version = if ask.http10 { "1.0" } else { "1.1" };
        let mut head = format!(
            "{method} /r/{id}?k={id} HTTP/{version}\r\nHost: example.com\r\nX-Key: {id}\r\n\
             X-Sum: {len}\r\n"
        );
        if ask.padding > 0 {
            head += &format!("X-Padding: {}\r\n", "x".repeat(ask.padding));
        }
        let body = frames::body(id, len);
        if ask.chunked {
            wire.put((head + "Transfer-Encoding: chunked\r\n\r\n").as_bytes());
            wire.put(&frames::chunked(&mut self.rng, &body));
        } else {
            if len > 0 || method == "POST" {
                head += &format!("Content-Length: {len}\r\n");
            }
            wire.put((head + "\r\n").as_bytes());
            wire.put(&body);
        }
    }

    /// Acts after a read.
    pub(super) fn step(&mut self, now: u64, wire: &mut Wire) {
        match self.plan {
            SessionPlan::Tunnel { gap, parting, largest, .. } => {
                self.step_tunnel(now, wire, gap, parting, largest);
            }
            SessionPlan::Http { pipelined, finish, ref asks } => {
                let count = asks.len();
                self.step_http(wire, pipelined, finish, count);
            }
        }
    }

    fn step_http(&mut self, wire: &mut Wire, pipelined: bool, finish: bool, count: usize) {
        let before = self.whole();
        self.read_answers(wire);
        if wire.over.is_some() && !wire.vanished {
            if wire.over == Some(Over::Finished)
                && let Ok(Some(ResponseEvent::End)) = self.decoder.handle_end_of_stream()
            {
                self.end_answer(wire);
            }
            return wire.leave(false);
        }
        if !pipelined && self.whole() > before && !self.refused {
            self.ask(wire);
            if finish && self.asked == count {
                wire.then(Then::Finish);
            }
        }
        if self.whole() == count && !finish {
            wire.then(Then::Close);
        }
    }

    fn whole(&self) -> usize {
        self.answers.iter().filter(|answer| answer.is_whole).count()
    }

    fn read_answers(&mut self, wire: &mut Wire) {
        let limits = Limits::default();
        let mut fresh = wire.got[self.read..].to_vec();
        let mut input = Input::new(&mut fresh);
        loop {
            let number = self.answers.iter().filter(|answer| answer.is_whole).count();
            let SessionPlan::Http { asks, .. } = &self.plan else { return };
            if self.decoder.is_between_responses()
                && asks.get(number).is_some_and(|ask| ask.method == "HEAD")
            {
                self.decoder.expect_answer_to_head();
            }
            match self.decoder.next_event(&mut input, &limits) {
                Ok(None) => break,
                Ok(Some(ResponseEvent::Head(response))) if response.is_interim() => {
                    if asks.get(number).is_none_or(|ask| ask.http10) {
                        wire.faults.push("an interim answer to HTTP/1.0, or to nothing".to_owned());
                    }
                }
                Ok(Some(ResponseEvent::Head(response))) => {
                    let parse = |name| response.header(name).and_then(|value| value.parse().ok());
                    let answer = SimAnswer {
                        status: response.status(),
                        id: parse("X-Id"),
                        sum: parse("X-Sum").unwrap_or(0) as usize,
                        len: 0,
                        is_whole: false,
                    };
                    // Bytes that a backend sends after an answer cannot always be distinguished
                    // from the next answer.
                    self.is_out_of_step |= answer.id == Some(0);
                    match asks.get(number).filter(|_| number < self.asked) {
                        None => wire.faults.push(format!("an answer to nothing: {answer:?}")),
                        Some(ask)
                            if !self.is_out_of_step && answer.id.is_some_and(|id| id != ask.id) =>
                        {
                            wire.faults.push(format!("the answer to {} is {answer:?}", ask.id));
                        }
                        Some(_) => {}
                    }
                    if self.refused {
                        wire.faults
                            .push("an answer behind one that said it was the last".to_owned());
                    }
                    if answer.id.is_none() {
                        self.refused = true;
                        if answer.status < 400 || response.keep_alive() {
                            wire.faults.push(format!("an odd refusal: {answer:?}"));
                        }
                    }
                    self.answers.push(answer);
                }
                Ok(Some(ResponseEvent::Body(piece))) => {
                    let Some(answer) = self.answers.last_mut() else { break };
                    if let Some(id) = answer.id.filter(|_| !self.is_out_of_step) {
                        let right = |(at, byte): (usize, &u8)| {
                            frames::pattern(id ^ 0x55, answer.len + at) == *byte
                        };
                        if !piece.iter().enumerate().all(right) {
                            wire.faults.push(format!("the body of the answer to {id} is wrong"));
                        }
                    }
                    answer.len += piece.len();
                }
                Ok(Some(ResponseEvent::End)) => {
                    // An interim answer also ends, but does not count as an answer.
                    if self.answers.last().is_some_and(|answer| !answer.is_whole) {
                        self.end_answer(wire);
                    }
                }
                Err(error) => {
                    wire.faults.push(format!("a client cannot read its answer: {error:?}"));
                    break;
                }
            }
        }
        self.read = wire.got.len() - input.len();
    }

    fn end_answer(&mut self, wire: &mut Wire) {
        let number = self.answers.len() - 1;
        let SessionPlan::Http { asks, .. } = &self.plan else { return };
        let is_head = asks.get(number).is_some_and(|ask| ask.method == "HEAD");
        let Some(answer) = self.answers.last_mut() else { return };
        answer.is_whole = true;
        if answer.id.is_some() && !self.is_out_of_step && !is_head && answer.len != answer.sum {
            wire.faults.push(format!("an answer that looks whole and is not: {answer:?}"));
        }
    }

    fn step_tunnel(
        &mut self,
        now: u64,
        wire: &mut Wire,
        gap: u64,
        parting: ClientClose,
        largest: usize,
    ) {
        if self.in_from.is_none() {
            self.read_head(now, wire);
        }
        let Some(in_from) = self.in_from else {
            if wire.over.is_some() {
                wire.leave(false);
            }
            return;
        };
        let mut answer = None;
        while let Some((first, payload)) = self.received.next(&wire.got[in_from..]) {
            if first & 0x0f == 8 {
                answer = Some(payload);
            }
        }
        if let Some(payload) = answer
            && !self.has_closed
        {
            self.has_closed = true;
            self.at = None;
            if !matches!(parting, ClientClose::Silent | ClientClose::NoFrame) {
                let mut out = Vec::new();
                frames::frame(0x88, &payload, Some([4, 3, 2, 1]), &mut out);
                wire.put(&out);
            } else {
                self.leave_at = Some(now + 60 * SECOND);
            }
        }
        if self.at.is_some_and(|at| at <= now) {
            self.at = None;
            if self.frames_left > 0 {
                self.frames_left -= 1;
                self.at = Some(now + self.rng.between(0, gap));
                wire.put(&frames::any(&mut self.rng, largest, true));
            } else {
                self.part(now, wire, parting);
            }
        }
        if self.leave_at.is_some_and(|at| at <= now) {
            self.leave_at = None;
            match self.has_closed || self.broke_off {
                true => wire.leave(true),
                false => self.part(now, wire, ClientClose::Close),
            }
        }
        if wire.over.is_some() {
            wire.leave(false);
        }
    }

    fn part(&mut self, now: u64, wire: &mut Wire, parting: ClientClose) {
        match parting {
            ClientClose::Close => {
                self.has_closed = true;
                wire.put(&frames::close(1000, "", Some([9, 9, 9, 9])));
            }
            ClientClose::Finish => {
                self.broke_off = true;
                wire.then(Then::Finish);
            }
            ClientClose::Stay | ClientClose::Silent => self.leave_at = Some(now + 30 * SECOND),
            ClientClose::NoFrame => {
                self.broke_off = true;
                wire.put(&[0x82, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
                self.leave_at = Some(now + 30 * SECOND);
            }
        }
    }

    fn read_head(&mut self, now: u64, wire: &mut Wire) {
        let Some(end) = wire.got[self.read..].windows(4).position(|four| four == b"\r\n\r\n")
        else {
            return;
        };
        let end = self.read + end + 4;
        let head = String::from_utf8_lossy(&wire.got[self.read..end]).into_owned();
        let status: u16 = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
        self.read = end;
        match status {
            101 => {
                if !head.contains(ACCEPT) {
                    wire.faults.push(format!("a 101 that is not ours: {head}"));
                }
                self.in_from = Some(end);
                self.at = Some(now);
            }
            100..=199 => self.read_head(now, wire),
            _ => {
                self.answers.push(SimAnswer { status, ..SimAnswer::default() });
                self.refused = true;
                wire.then(Then::Close);
            }
        }
    }
}
