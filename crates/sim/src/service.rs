//! The service under test: echoes, channels, and whatever a message asks for; it records every callback.
//!
//! A rule that it sees broken becomes a line in the record, never a panic: the engine would catch it.

use std::panic::panic_any;
use std::time::Duration;

use throng_engine::{Answer, Close, Cx, Frame, Message, Refusal, Sent, Service};
use throng_io::{ConnId, Instant};
use throng_proto::http1::{Request, ResponseHead};
use throng_proto::ws::handshake::{check_request, encode_response};

use crate::record::{Letter, Session, SharedRecord};
use crate::rng::message_hash;

/// The payload of a panic that a peer has asked for; the harness keeps the panic hook quiet about it.
pub struct Planned;

/// See the module's documentation.
pub struct Probe {
    record: SharedRecord,
    shard: usize,
    shards: usize,
    /// Something happens by time alone, too.
    ticks_at: Instant,
    live: usize,
}

impl Probe {
    /// The service of one shard.
    #[must_use]
    pub fn new(record: SharedRecord, shard: usize, shards: usize) -> Self {
        Self { record, shard, shards, ticks_at: Instant(0), live: 0 }
    }

    fn panic(&self) -> ! {
        self.record.borrow_mut().planned_panics += 1;
        panic_any(Planned)
    }

    fn answer(&self, cx: &mut Cx<'_>, message: Message<'_>) -> Sent {
        let sent = cx.send(message);
        let mut record = self.record.borrow_mut();
        if let Some(session) = record.session(cx.data(), cx.id(), "send") {
            if matches!(sent, Sent::Written | Sent::Queued) {
                let text = matches!(message, Message::Text(_));
                session.answered.push(message_hash(text, message.as_bytes()));
            }
            session.behind |= matches!(sent, Sent::Queued | Sent::Dropped);
        }
        sent
    }

    fn publish(&self, cx: &mut Cx<'_>, channel: &str, fill: &str) {
        let peer = cx.data();
        let (sequence, here) = {
            let mut record = self.record.borrow_mut();
            let published = record.published.entry(peer).or_default();
            *published += 1;
            (*published, record.members_of(self.shard, channel))
        };
        let frame = Frame::text(format!("c|{channel}|{peer}|{sequence}|{fill}"));
        let delivery = cx.publish(channel, &frame);
        let mut record = self.record.borrow_mut();
        let what = (channel.to_owned(), peer, sequence);
        let receivers: Vec<u32> = here.iter().copied().filter(|member| *member != peer).collect();
        let told = delivery.delivered + delivery.queued + delivery.dropped + delivery.closed;
        if told != receivers.len() as u64 {
            let count = receivers.len();
            record.violation(format!("a publish to {count} members counted {delivery:?}"));
        }
        let all = delivery.dropped + delivery.closed == 0;
        for member in receivers {
            if let Some(session) = record.sessions.get_mut(&member) {
                session.possible.insert(what.clone());
                if all {
                    session.due.push(what.clone());
                }
            }
        }
        for shard in (0..self.shards).filter(|shard| *shard != self.shard) {
            record.letters.push(Letter { shard, what: what.clone() });
        }
    }

    /// To any connection there ever was: most are gone, and some slots have a new owner.
    fn send_private(&self, cx: &mut Cx<'_>, to: u32, fill: &str) {
        let by = cx.data();
        let (id, sequence) = {
            let mut record = self.record.borrow_mut();
            let sequence = record.private_sent.entry(by).or_default();
            *sequence += 1;
            let sequence = *sequence;
            let Some(session) = record.sessions.get_mut(&to) else { return };
            session.private.insert((by, sequence));
            (session.id, sequence)
        };
        let frame = Frame::text(format!("p|{to}|{by}|{sequence}|{fill}"));
        if id.shard() == self.shard {
            let sent = cx.core().send_frame(id, &frame);
            let mut record = self.record.borrow_mut();
            let gone = record.sessions.get(&to).is_some_and(|session| session.closed.is_some());
            if gone && sent != Sent::Closed {
                record.violation(format!("a send to a closed session said {sent:?}"));
            }
        } else {
            let _ = cx.core_ref().remote().send(id, &frame);
        }
    }

    fn obey(&self, cx: &mut Cx<'_>, command: &str) {
        let mut words = command.split(' ');
        let verb = words.next().unwrap_or_default();
        let mut word = || words.next().unwrap_or_default();
        match verb {
            "!panic" => self.panic(),
            "!close" => cx.close(word().parse().unwrap_or(4000), "as you wish"),
            "!abort" => cx.abort(),
            "!flood" => {
                let (count, len) = (word().parse().unwrap_or(0), word().parse().unwrap_or(0));
                let bytes = vec![b'f'; len];
                for _ in 0..count {
                    if !matches!(
                        self.answer(cx, Message::Binary(&bytes)),
                        Sent::Written | Sent::Queued
                    ) {
                        break;
                    }
                }
            }
            "!sub" => {
                let channel = word();
                let new = cx.subscribe(channel);
                let mut record = self.record.borrow_mut();
                let key = (self.shard, channel.to_owned());
                if new != record.members.entry(key).or_default().insert(cx.data()) {
                    record.violation(format!("subscribe said {new}"));
                }
            }
            "!unsub" => {
                let channel = word();
                let ended = cx.unsubscribe(channel);
                let mut record = self.record.borrow_mut();
                let key = (self.shard, channel.to_owned());
                if ended != record.members.entry(key).or_default().remove(&cx.data()) {
                    record.violation(format!("unsubscribe said {ended}"));
                }
            }
            "!pub" => self.publish(cx, word(), word()),
            "!to" => self.send_private(cx, word().parse().unwrap_or(0), word()),
            _ => {}
        }
    }

    fn plain(&self, cx: &mut Cx<'_>, status: u16, body: &str, keep_alive: bool) {
        cx.write(|out| {
            let head = ResponseHead::start(out, status, "Simulated");
            let head = if keep_alive { Ok(head) } else { head.header("Connection", "close") };
            if let Ok(head) = head {
                head.content_length(body.len() as u64).finish();
            }
            out.extend_from_slice(body.as_bytes());
        });
    }

    fn note(&self, call: &str, id: ConnId) {
        let mut record = self.record.borrow_mut();
        record.say(call, id);
        record.trace.mix_bytes(call.as_bytes());
        record.trace.mix(id.to_bits());
    }
}

impl Service for Probe {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        self.note("on_request", cx.id());
        let keep_alive = request.keep_alive();
        match request.path() {
            "/ws" | "/ws-panic" => {}
            "/panic" => self.panic(),
            "/large" => {
                self.plain(cx, 200, &"x".repeat(2000), keep_alive);
                return Answer::Done { keep_alive };
            }
            _ => {
                self.plain(cx, 200, "hello", keep_alive);
                return Answer::Done { keep_alive };
            }
        }
        let peer = request.query().and_then(|query| query.strip_prefix("peer=")?.parse().ok());
        let Some(peer) = peer else {
            self.plain(cx, 404, "who are you?", keep_alive);
            return Answer::Done { keep_alive };
        };
        match check_request(request.method(), request.is_http11(), request) {
            Ok(key) => {
                cx.set_route(u16::from(request.path() == "/ws-panic"), peer);
                cx.write(|out| {
                    let _ = encode_response(&key.accept(), None, out);
                });
                Answer::Upgraded
            }
            Err(refusal) => {
                self.plain(cx, refusal.status(), "no", keep_alive);
                Answer::Done { keep_alive }
            }
        }
    }

    fn on_bad_request(&mut self, cx: &mut Cx<'_>, status: u16, reason: &str) {
        self.note("on_bad_request", cx.id());
        self.plain(cx, status, reason, false);
    }

    fn on_refused(&mut self, cx: &mut Cx<'_>, why: Refusal) {
        self.note("on_refused", cx.id());
        self.record.borrow_mut().refused += 1;
        self.plain(cx, if why == Refusal::FullForAddress { 429 } else { 503 }, "full", false);
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        let (peer, id) = (cx.data(), cx.id());
        self.note("on_open", id);
        self.live += 1;
        let panics = cx.route() == 1;
        {
            let mut record = self.record.borrow_mut();
            record.opened += 1;
            let session = Session {
                id,
                closed: None,
                handled: Vec::new(),
                answered: Vec::new(),
                due: Vec::new(),
                possible: Default::default(),
                private: Default::default(),
                behind: false,
            };
            if record.sessions.insert(peer, session).is_some() {
                record.violation(format!("on_open of peer {peer}, twice"));
            }
        }
        if panics {
            self.panic();
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let text = matches!(message, Message::Text(_));
        {
            let mut record = self.record.borrow_mut();
            let hash = message_hash(text, message.as_bytes());
            record.trace.mix(hash);
            let Some(session) = record.session(cx.data(), cx.id(), "on_message") else { return };
            session.handled.push(hash);
        }
        match message {
            Message::Text(command) if command.starts_with('!') => self.obey(cx, command),
            _ => {
                let _ = self.answer(cx, message);
            }
        }
    }

    fn on_drain(&mut self, cx: &mut Cx<'_>) {
        let mut record = self.record.borrow_mut();
        if let Some(session) = record.session(cx.data(), cx.id(), "on_drain") {
            session.behind = false;
        }
    }

    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>) {
        self.live -= 1;
        let (peer, id) = (cx.data(), cx.id());
        {
            let mut record = self.record.borrow_mut();
            record.closed += 1;
            record.trace.mix(u64::from(close.code));
            if let Some(session) = record.session(peer, id, "on_close") {
                session.closed = Some(close.code);
            }
            record.forget_member(self.shard, peer);
        }
        if cx.subscriptions().next().is_some() {
            self.record.borrow_mut().violation(format!("peer {peer} is a member after its end"));
        }
        let sent = cx.send(Message::Text("too late"));
        if sent != Sent::Closed {
            self.record
                .borrow_mut()
                .violation(format!("a send in on_close of peer {peer} said {sent:?}"));
        }
        if cx.route() == 2 {
            self.panic();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        (self.live > 0).then_some(self.ticks_at)
    }

    fn on_deadline(&mut self, _core: &mut throng_engine::Core, now: Instant) {
        if now < self.ticks_at {
            self.record.borrow_mut().violation("a deadline came early".to_owned());
        }
        self.ticks_at = now.after(Duration::from_secs(5));
    }
}
