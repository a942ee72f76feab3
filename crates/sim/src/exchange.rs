//! The service's HTTP: each request encodes the answer that it wants, see [`Ask`].

use std::collections::{HashMap, VecDeque};
use std::panic::panic_any;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{Admission, Answer, Cx, Flow, UserEvent};
use throng_io::ConnId;
use throng_proto::http1::ResponseHead;
use throng_proto::http1::encode::{encode_chunk, encode_last_chunk};

use crate::ask::{Ask, Direction, ServiceStart, Take};
use crate::record::{Note, ServiceAction, SharedRecord};

/// The payload of a panic that a peer has requested. The test suppresses the panic hook for it.
pub struct Planned;

/// One request, from its head to the end of its answer.
#[derive(Debug)]
struct Exchange {
    ask: Ask,
    /// Received bytes of the request's body.
    took: usize,
    pieces: usize,
    has_ended: bool,
    /// Whether reading is stopped, because no more of the body is wanted now.
    stopped: bool,
    answering: bool,
    keep_alive: bool,
    sent: usize,
    chunks: usize,
    /// There is nothing to send now.
    waiting: bool,
}

/// A connection that has sent requests.
#[derive(Debug, Default)]
struct Conn {
    next: u32,
    current: Option<Exchange>,
    /// Its last answer was begun.
    closing: bool,
}

/// The exchanges of one shard.
pub(crate) struct Exchanges {
    record: SharedRecord,
    admission: Arc<Admission>,
    conns: HashMap<ConnId, Conn>,
    /// Connections whose answers wait for the next request.
    parked: VecDeque<ConnId>,
}

impl Exchanges {
    pub(crate) fn new(record: SharedRecord, admission: Arc<Admission>) -> Self {
        Self { record, admission, conns: HashMap::new(), parked: VecDeque::new() }
    }

    /// Returns the number of connections that have sent a request and still exist.
    pub(crate) fn conns(&self) -> usize {
        self.conns.len()
    }

    fn violation(&self, ask: &Ask, what: &str) {
        let what = format!("request {} of peer {}: {what}", ask.number, ask.peer);
        self.record.borrow_mut().violation(what);
    }

    pub(crate) fn on_request(&mut self, cx: &mut Cx<'_>, ask: Ask) -> Answer {
        let id = cx.id();
        let conn = self.conns.entry(id).or_default();
        let (expected, is_busy, closing) = (conn.next, conn.current.is_some(), conn.closing);
        conn.next += 1;
        conn.current = Some(Exchange {
            ask,
            took: 0,
            pieces: 0,
            has_ended: false,
            stopped: false,
            answering: false,
            keep_alive: true,
            sent: 0,
            chunks: 0,
            waiting: false,
        });
        if is_busy {
            self.violation(&ask, "it comes before the one before it was answered");
        }
        if closing {
            self.violation(&ask, "it comes after the last one");
        }
        if expected != ask.number {
            self.violation(&ask, &format!("number {expected} was due"));
        }
        let high = self.record.borrow().max_backlog / 2;
        if cx.backlog() > high {
            self.violation(&ask, "it comes though the answers before it pile up");
        }
        self.answer_parked(cx);
        match (ask.take, ask.start) {
            (Take::Drop, ServiceStart::AtOnce) => self.begin(cx),
            (Take::Drop, start) => {
                if start == ServiceStart::Parked {
                    self.parked.push_back(id);
                }
                self.schedule(cx, ask.delay, ServiceAction::Answer);
                Answer::Later
            }
            (Take::Whole, _) if ask.upload > 0 => {
                Answer::Body { max_body: cx.core_ref().max_body() }
            }
            (Take::Whole, _) => self.on_whole(cx),
            (Take::Pieces, start) => {
                if start == ServiceStart::AfterHead {
                    self.schedule(cx, ask.delay, ServiceAction::Answer);
                }
                Answer::Chunks { max_body: ask.most as u64 }
            }
        }
    }

    pub(crate) fn on_body(&mut self, cx: &mut Cx<'_>, ask: Ask, body: &[u8]) -> Answer {
        let current = self.conns.get(&cx.id()).and_then(|conn| conn.current.as_ref());
        if current.map(|exchange| exchange.ask) != Some(ask) || ask.take != Take::Whole {
            self.violation(&ask, "on_body without having been asked for");
        }
        if body.len() != ask.upload || !ask.is_at(Direction::Up, 0, body) {
            self.violation(&ask, &format!("a wrong body of {} bytes", body.len()));
        }
        self.on_whole(cx)
    }

    /// Handles the moment when the service has received all the input that it waits for.
    fn on_whole(&mut self, cx: &mut Cx<'_>) -> Answer {
        let Some(exchange) = self.current(cx.id()) else {
            return Answer::Done { keep_alive: false };
        };
        exchange.has_ended = true;
        let ask = exchange.ask;
        match ask.start {
            ServiceStart::AtOnce => self.begin(cx),
            ServiceStart::AfterHead if ask.take == Take::Pieces => Answer::Later,
            ServiceStart::Later | ServiceStart::AfterHead | ServiceStart::Parked => {
                self.schedule(cx, ask.delay, ServiceAction::Answer);
                Answer::Later
            }
        }
    }

    pub(crate) fn on_body_chunk(&mut self, cx: &mut Cx<'_>, bytes: &[u8]) -> Flow {
        let Some(exchange) = self.current(cx.id()) else {
            self.record.borrow_mut().violation("a piece of an unknown body".to_owned());
            return Flow::More;
        };
        let (ask, from) = (exchange.ask, exchange.took);
        exchange.took += bytes.len();
        exchange.pieces += 1;
        let wrong = exchange.has_ended || exchange.stopped || ask.take != Take::Pieces;
        let too_much = exchange.took > ask.most.min(ask.upload);
        let stops =
            ask.stops > 0 && (exchange.pieces + ask.number as usize).is_multiple_of(ask.stops);
        exchange.stopped |= stops;
        if wrong {
            self.violation(&ask, "a piece though none was wanted");
        }
        if bytes.is_empty() || too_much || !ask.is_at(Direction::Up, from, bytes) {
            self.violation(&ask, &format!("a wrong piece of {} bytes at {from}", bytes.len()));
        }
        if stops {
            self.schedule(cx, ask.room_after, ServiceAction::Room);
            return Flow::Stop;
        }
        Flow::More
    }

    pub(crate) fn on_body_end(&mut self, cx: &mut Cx<'_>) -> Answer {
        let Some(exchange) = self.current(cx.id()) else {
            self.record.borrow_mut().violation("the end of an unknown body".to_owned());
            return Answer::Done { keep_alive: false };
        };
        let (ask, took) = (exchange.ask, exchange.took);
        if exchange.has_ended || exchange.stopped || took != ask.upload {
            let state = format!("{exchange:?}");
            self.violation(&ask, &format!("the end of its body: {state}"));
        }
        self.answer_parked(cx);
        self.on_whole(cx)
    }

    pub(crate) fn on_user_event(&mut self, cx: &mut Cx<'_>, event: UserEvent) {
        let Ok(note) = event.0.downcast::<Note>() else { return };
        let id = cx.id();
        if note.to != id || !self.conns.contains_key(&id) {
            let fault = format!("{note:?} was delivered to {id:?}");
            return self.record.borrow_mut().violation(fault);
        }
        let Some(exchange) = self.current(id) else { return };
        if exchange.ask.number != note.number {
            return;
        }
        match note.what {
            ServiceAction::Answer => self.answer(cx),
            ServiceAction::Room if exchange.stopped && !exchange.has_ended => {
                exchange.stopped = false;
                cx.core().resume_reading(id);
            }
            ServiceAction::More if exchange.waiting => {
                exchange.waiting = false;
                match note.number.is_multiple_of(2) {
                    // The queue may be empty at this time, but `on_drain` must still be called.
                    true => cx.core().await_drain(id),
                    false => self.resume(cx),
                }
            }
            _ => {}
        }
    }

    /// Returns true if the event concerned an exchange.
    pub(crate) fn on_drain(&mut self, cx: &mut Cx<'_>) -> bool {
        let id = cx.id();
        if !self.conns.contains_key(&id) {
            return false;
        }
        let low = self.record.borrow().max_backlog / 4;
        match self.current(id).filter(|exchange| exchange.answering && !exchange.waiting) {
            None => {
                let fault = format!("on_drain of {id:?} without having been asked for");
                self.record.borrow_mut().violation(fault);
            }
            Some(exchange) => {
                let ask = exchange.ask;
                if cx.backlog() > low {
                    self.violation(&ask, &format!("on_drain at a backlog of {}", cx.backlog()));
                }
                self.resume(cx);
            }
        }
        true
    }

    /// Returns whether a request of this connection has come.
    pub(crate) fn knows(&self, id: ConnId) -> bool {
        self.conns.contains_key(&id)
    }

    /// Handles a fault of the connection. Returns whether the caller may answer it.
    pub(crate) fn on_fault(&mut self, cx: &mut Cx<'_>) -> bool {
        let Some(conn) = self.conns.get_mut(&cx.id()) else { return true };
        conn.closing = true;
        let is_answering = conn.current.take().is_some_and(|exchange| exchange.answering);
        if is_answering {
            // In the middle of another answer the client could not parse this one.
            cx.abort();
        }
        !is_answering
    }

    pub(crate) fn on_gone(&mut self, id: ConnId) {
        self.parked.retain(|parked| *parked != id);
        self.conns.remove(&id);
    }

    fn current(&mut self, id: ConnId) -> Option<&mut Exchange> {
        self.conns.get_mut(&id)?.current.as_mut()
    }

    fn schedule(&mut self, cx: &mut Cx<'_>, millis: u64, what: ServiceAction) {
        let id = cx.id();
        let Some(exchange) = self.current(id) else { return };
        let note = Note { to: id, number: exchange.ask.number, what };
        let at = cx.core_ref().now().after(Duration::from_millis(millis)).0;
        self.record.borrow_mut().deliver_at(at, note);
    }

    /// Answers after the callbacks of a request, unless it was already answered.
    fn answer(&mut self, cx: &mut Cx<'_>) {
        let id = cx.id();
        if self.current(id).is_some_and(|exchange| !exchange.answering)
            && let Answer::Done { keep_alive } = self.begin(cx)
        {
            cx.core().finish_answer(id, keep_alive);
        }
    }

    /// Answers a parked request.
    fn answer_parked(&mut self, cx: &mut Cx<'_>) {
        let id = cx.id();
        if let Some(parked) = self.parked.pop_front().filter(|parked| *parked != id) {
            self.answer(&mut Cx::new(cx.core(), parked));
        }
    }

    fn begin(&mut self, cx: &mut Cx<'_>) -> Answer {
        let is_ready = self.admission.is_ready();
        let Some(exchange) = self.current(cx.id()) else {
            return Answer::Done { keep_alive: false };
        };
        let ask = exchange.ask;
        if ask.panics {
            self.record.borrow_mut().planned_panics += 1;
            panic_any(Planned);
        }
        exchange.answering = true;
        // A service that answers before the end of the body will not read the rest.
        let early = ask.take == Take::Pieces && !exchange.has_ended;
        // A client that expects `100-continue` may not send a body at all.
        let is_last = ask.close || early || (ask.expects && ask.take == Take::Drop);
        let keep_alive = is_ready && !is_last;
        exchange.keep_alive = keep_alive;
        cx.write(|out| {
            let head = ResponseHead::start(out, 200, "OK");
            let name = format!("{}.{}", ask.peer, ask.number);
            let head = head.header("X-Ask", &name).expect("digits and a dot");
            let head = match keep_alive {
                true => head,
                false => head.header("Connection", "close").expect("a word"),
            };
            match ask.chunked {
                true => head.chunked().finish(),
                false => head.content_length(ask.length as u64).finish(),
            }
        });
        self.send_more(cx).map_or(Answer::Later, |keep_alive| Answer::Done { keep_alive })
    }

    fn resume(&mut self, cx: &mut Cx<'_>) {
        if let Some(keep_alive) = self.send_more(cx) {
            let id = cx.id();
            cx.core().finish_answer(id, keep_alive);
        }
    }

    /// Sends the next chunk. After the last one, returns whether the connection is kept alive.
    fn send_more(&mut self, cx: &mut Cx<'_>) -> Option<bool> {
        let id = cx.id();
        let is_ready = self.admission.is_ready();
        let conn = self.conns.get_mut(&id)?;
        let exchange = conn.current.as_mut()?;
        let ask = exchange.ask;
        if ask.fails_at.is_some_and(|at| exchange.sent >= at) {
            (conn.closing, conn.current) = (true, None);
            cx.abort();
            return None;
        }
        let left = ask.fails_at.unwrap_or(ask.length) - exchange.sent;
        let count = if ask.chunk == 0 { left } else { left.min(ask.chunk) };
        let from = exchange.sent;
        exchange.sent += count;
        exchange.chunks += 1;
        let is_over = exchange.sent == ask.length && !ask.fails();
        cx.write(|out| {
            let bytes: Vec<u8> =
                (from..from + count).map(|at| ask.byte(Direction::Down, at)).collect();
            match ask.chunked {
                true => encode_chunk(&bytes, out),
                false => out.extend_from_slice(&bytes),
            }
            if is_over && ask.chunked {
                encode_last_chunk(&[], out);
            }
        });
        if is_over {
            let keep_alive = exchange.keep_alive && is_ready;
            (conn.closing, conn.current) = (!keep_alive, None);
            return Some(keep_alive);
        }
        if ask.waits > 0 && exchange.chunks.is_multiple_of(ask.waits) {
            exchange.waiting = true;
            self.schedule(cx, ask.wait, ServiceAction::More);
        } else {
            cx.core().await_drain(id);
        }
        None
    }
}
