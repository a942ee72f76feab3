//! The service under test. It offers echoes, channels, streams, and other commands in messages, and
//! records every callback.
//!
//! A broken rule becomes an entry in the record and never a panic, which the engine would catch.

use std::panic::panic_any;
use std::sync::Arc;
use std::time::Duration;

use throng_engine::{
    Admission, Answer, Close, Core, Cx, Filter, Flow, Frame, Message, Refusal, Sent, Service,
    UserEvent,
};
use throng_io::{ConnId, Instant};
use throng_proto::http1::{HeaderLines, Request, ResponseHead};
use throng_proto::ws::handshake::{check_request, encode_response};

use crate::ask::Ask;
use crate::exchange::{Exchanges, Planned};
use crate::net::SharedNet;
use crate::placing;
use crate::reader::Received;
use crate::record::{Audience, PendingCommand, Record, SentCommand, SharedRecord, SimSession};
use crate::rng::message_hash;
use crate::stops::Stops;

/// The route of `/feed`, which is the same as `/ws` with other rules.
pub const FEED: u16 = 3;

/// The route of `/sse/{channel}`.
pub const STREAMS: u16 = 4;

/// Returns the subprotocol of a peer: every third peer uses one, by its number.
#[must_use]
pub fn subprotocol_of(peer: u32) -> Option<&'static str> {
    [None, Some("chat"), Some("feed")][peer as usize % 3]
}

/// The frame of a message; its fill may be anything without spaces.
#[must_use]
pub fn frame_of(what: &Received, key: &str, fill: &str) -> Frame {
    let frame = Frame::text(match what {
        Received::Published { channel, by, sequence } => {
            format!("c|{channel}|{by}|{sequence}|{fill}")
        }
        Received::Private { to, by, sequence } => format!("p|{to}|{by}|{sequence}|{fill}"),
        Received::Direct(_) => fill.to_owned(),
    });
    if key.is_empty() { frame } else { frame.keyed(key) }
}

/// `c=red;s=chat;i=1,2;x=3` of a command: any of channel, subprotocol, include, exclude.
fn audience(words: &str) -> Audience {
    let mut audience = Audience::default();
    for word in words.split(';') {
        let (kind, value) = word.split_once('=').unwrap_or((word, ""));
        let peers = || value.split(',').filter_map(|peer| peer.parse::<u32>().ok());
        match kind {
            "c" => audience.channel = Some(value.to_owned()),
            "s" => audience.subprotocol = Some(value.to_owned()),
            "i" => audience.include.get_or_insert_default().extend(peers()),
            "x" => audience.exclude.extend(peers()),
            _ => {}
        }
    }
    audience
}

/// Returns the engine's filter for an audience. Removes peers that have not connected, because they
/// have no id.
#[must_use]
pub fn filter_of(record: &Record, audience: &mut Audience) -> Arc<Filter> {
    let known = |peer: &u32| record.sessions.contains_key(peer);
    audience.exclude.retain(known);
    if let Some(include) = &mut audience.include {
        include.retain(known);
    }
    let id = |peer: &u32| record.sessions.get(peer).map(|session| session.id);
    let mut filter = Filter::default();
    if let Some(channel) = &audience.channel {
        filter.set_channel(channel);
    }
    if let Some(subprotocol) = &audience.subprotocol {
        filter.set_subprotocol(subprotocol);
    }
    if let Some(include) = &audience.include {
        filter.include(include.iter().filter_map(id));
    }
    filter.exclude(audience.exclude.iter().filter_map(id));
    Arc::new(filter)
}

/// The service of one shard.
pub struct Probe {
    record: SharedRecord,
    shard: usize,
    shards: usize,
    /// The next timer, for actions that depend only on time.
    ticks_at: Instant,
    live: usize,
    exchanges: Exchanges,
    stops: Stops,
}

impl Probe {
    /// The service of one shard.
    #[must_use]
    pub fn new(
        record: SharedRecord,
        admission: Arc<Admission>,
        shard: usize,
        shards: usize,
    ) -> Self {
        let exchanges = Exchanges::new(SharedRecord::clone(&record), admission);
        let stops = Stops::new(SharedRecord::clone(&record));
        Self { record, shard, shards, ticks_at: Instant(0), live: 0, exchanges, stops }
    }

    /// Returns the number of connections with unfinished requests.
    #[must_use]
    pub fn conns(&self) -> usize {
        self.exchanges.conns()
    }

    fn panic(&self) -> ! {
        self.record.borrow_mut().planned_panics += 1;
        panic_any(Planned)
    }

    fn answer(&self, cx: &mut Cx<'_>, message: Message<'_>) -> Sent {
        let sent = cx.send(message);
        let mut record = self.record.borrow_mut();
        let (peer, id) = (cx.data(), cx.id());
        if let Some(session) = record.session(peer, id, "send") {
            session.behind |= matches!(sent, Sent::Queued | Sent::Dropped);
            let text = matches!(message, Message::Text(_));
            let what = Received::Direct(message_hash(text, message.as_bytes()));
            match sent {
                // The message has no name, so it is a value of the key that all such messages
                // share.
                Sent::Accepted | Sent::Queued => record.offer_in_order(peer, what, "direct"),
                Sent::Dropped => record.refuse(peer),
                Sent::Closed => {}
            }
        }
        sent
    }

    /// Publishes to the members of a channel. `key` is empty for a message without a key.
    fn publish(&self, cx: &mut Cx<'_>, channel: &str, key: &str, fill: &str) {
        let by = cx.data();
        let what = self.published(channel, by);
        let frame = frame_of(&what, key, fill);
        let delivery = cx.publish_unordered(channel, &frame);
        let mut record = self.record.borrow_mut();
        let receivers = record.publish(self.shard, channel, key, Some(by), &what);
        record.check_delivery(delivery, (receivers, receivers));
        let (channel, key) = (channel.to_owned(), key.to_owned());
        let command = SentCommand::Publish { channel, key, except: Some(by), what };
        record.send_to_others(self.shard, self.shards, &command);
    }

    /// Publishes this many line breaks. Each takes seven bytes in an event.
    fn publish_line_breaks(&self, cx: &mut Cx<'_>, channel: &str, count: usize) {
        let by = cx.data();
        {
            let mut record = self.record.borrow_mut();
            let sequence = record.made.get(&by).map_or(1, |made| made + 1);
            record.too_large.insert((by, sequence));
        }
        self.publish(cx, channel, "", &"\n".repeat(count));
    }

    fn published(&self, channel: &str, by: u32) -> Received {
        let sequence = self.record.borrow_mut().next_of(by);
        Received::Published { channel: channel.to_owned(), by, sequence }
    }

    /// Broadcasts to the connections that a filter lets through.
    fn broadcast(&self, cx: &mut Cx<'_>, words: &str, fill: &str) {
        let mut audience = audience(words);
        let what = self.published("all", cx.data());
        let filter = filter_of(&self.record.borrow(), &mut audience);
        let waits = cx.core_ref().has_commands();
        let receipt = cx.broadcast(&filter, &frame_of(&what, "", fill));
        let shard = (self.shard, self.shards);
        let mut record = self.record.borrow_mut();
        record.broadcast_in_order(shard, waits, (cx.data(), audience, what), receipt);
    }

    /// Publishes through the mailboxes, as another thread would.
    fn post(&self, cx: &Cx<'_>, channel: &str, key: &str, fill: &str) {
        let what = self.published(channel, cx.data());
        let frame = frame_of(&what, key, fill);
        let command = cx.core_ref().remote().publish(channel, &frame, Some(cx.id()));
        let mut record = self.record.borrow_mut();
        let Ok(receipt) = command else {
            record.violation("a mailbox is full".to_owned());
            return;
        };
        let (channel, key) = (channel.to_owned(), key.to_owned());
        let command = SentCommand::Publish { channel, key, except: Some(cx.data()), what };
        record.send_to_all(self.shards, &command, receipt);
    }

    /// Sends to any connection that ever existed: most have ended, and some slots have a new owner.
    fn send_private(&self, cx: &mut Cx<'_>, to: u32, fill: &str) {
        let by = cx.data();
        let (id, sequence) = {
            let mut record = self.record.borrow_mut();
            record.note_ended_streams();
            let sequence = record.next_of(by);
            let Some(session) = record.sessions.get_mut(&to) else { return };
            (session.id, sequence)
        };
        let what = Received::Private { to, by, sequence };
        let frame = frame_of(&what, "", fill);
        let mut record = self.record.borrow_mut();
        if id.shard() == self.shard {
            let sent = cx.core().send_frame(id, &frame);
            let gone = record.sessions.get(&to).is_some_and(|session| session.closed.is_some());
            match sent {
                Sent::Accepted | Sent::Queued if gone => {
                    record.violation(format!("a send to a closed session said {sent:?}"));
                }
                Sent::Accepted | Sent::Queued => record.offer_in_order(to, what, ""),
                Sent::Dropped => record.refuse(to),
                Sent::Closed => {}
            }
        } else if cx.core_ref().remote().send(id, &frame).is_ok() {
            let command = SentCommand::Send { to, what };
            record.commands.push(PendingCommand {
                shard: id.shard(),
                command,
                receipt: None,
                held_back: false,
            });
        }
    }

    /// Ends a stream of events, here or on another shard.
    fn dismiss(&self, cx: &mut Cx<'_>, peer: u32) {
        let mut record = self.record.borrow_mut();
        record.note_ended_streams();
        let Some(session) = record.sessions.get(&peer).filter(|session| session.stream) else {
            return;
        };
        let id = session.id;
        if id.shard() == self.shard {
            cx.core().close(id, 1000, "");
            record.dismiss(peer);
        } else if cx.core_ref().remote().close(id, 1000, "").is_ok() {
            let command = SentCommand::Dismiss(peer);
            record.commands.push(PendingCommand {
                shard: id.shard(),
                command,
                receipt: None,
                held_back: false,
            });
        }
    }

    fn subscribe(&self, cx: &mut Cx<'_>, channel: &str) {
        let wildcards = self.record.borrow().wildcards;
        let waits = cx.core_ref().has_commands();
        let new = match wildcards {
            true => cx.subscribe_pattern(channel).unwrap_or(false),
            false => cx.subscribe(channel),
        };
        let mut record = self.record.borrow_mut();
        let key = (self.shard, channel.to_owned());
        if new != record.members.entry(key).or_default().insert(cx.data()) {
            record.violation(format!("subscribe said {new}"));
        }
        if new && waits {
            record.join_behind(self.shard, channel, cx.data());
        }
        self.check_subscribers(cx, &mut record, channel);
    }

    fn check_subscribers(&self, cx: &Cx<'_>, record: &mut Record, channel: &str) {
        record.note_ended_streams();
        let (counted, known) = (cx.core_ref().subscribers(channel), record.subscribers(channel));
        if counted != known {
            record.violation(format!("{counted} subscribers of {channel:?} instead of {known}"));
        }
    }

    fn obey(&mut self, cx: &mut Cx<'_>, command: &str) {
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
                        Sent::Accepted | Sent::Queued
                    ) {
                        break;
                    }
                }
            }
            "!sub" => self.subscribe(cx, word()),
            "!unsub" => {
                let channel = word();
                let wildcards = self.record.borrow().wildcards;
                let ended = match wildcards {
                    true => cx.unsubscribe_pattern(channel),
                    false => cx.unsubscribe(channel),
                };
                let mut record = self.record.borrow_mut();
                let key = (self.shard, channel.to_owned());
                if ended != record.members.entry(key).or_default().remove(&cx.data()) {
                    record.violation(format!("unsubscribe said {ended}"));
                }
                self.check_subscribers(cx, &mut record, channel);
            }
            "!pub" => self.publish(cx, word(), "", word()),
            "!breaks" => self.publish_line_breaks(cx, word(), word().parse().unwrap_or(0)),
            "!set" => self.publish(cx, word(), word(), word()),
            "!post" => self.post(cx, word(), word(), word()),
            "!all" => self.broadcast(cx, word(), word()),
            "!to" => self.send_private(cx, word().parse().unwrap_or(0), word()),
            "!stop" => self.stops.stop(cx, word().parse().unwrap_or(0), word() == "mail"),
            "!end" => self.dismiss(cx, word().parse().unwrap_or(0)),
            _ => {}
        }
    }

    /// Begins a stream of events of a channel.
    fn stream(&self, cx: &mut Cx<'_>, channel: &str, peer: u32) -> Answer {
        cx.set_route(STREAMS, peer);
        cx.write(|out| {
            out.extend_from_slice(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n",
            );
        });
        cx.start_events();
        self.record.borrow_mut().lifecycle.upgrade(cx.id());
        let id = cx.id();
        let session = SimSession::new(id, STREAMS, true);
        let before = self.record.borrow_mut().sessions.insert(peer, session);
        if before.is_some() {
            self.record.borrow_mut().violation(format!("a stream of peer {peer}, twice"));
        }
        self.subscribe(cx, channel);
        Answer::Events
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

    /// Records that the mailbox was taken. Every callback calls this first: after a turn's events,
    /// the first callback follows the mailbox.
    fn note_mailbox(&self) {
        let mut record = self.record.borrow_mut();
        let net = record.net.clone();
        let is_over =
            |net: &SharedNet| net.borrow_mut().after_events.take_if(|at| *at == self.shard);
        if net.as_ref().and_then(is_over).is_some() {
            record.take_commands(self.shard);
        }
    }

    fn take_time(&self) {
        let record = self.record.borrow();
        if let Some(net) = record.net.as_ref().filter(|_| record.opening_takes > 0) {
            let now = net.borrow().now();
            net.borrow_mut().advance_to(now + record.opening_takes);
        }
    }

    fn note(&self, call: &str, id: ConnId) {
        self.note_mailbox();
        let mut record = self.record.borrow_mut();
        record.say(call, id);
        record.trace.mix_bytes(call.as_bytes());
        record.trace.mix(id.to_bits());
    }
}

impl Service for Probe {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        self.note("on_request", cx.id());
        if let Some(ask) = Ask::of(request) {
            return self.exchanges.on_request(cx, ask);
        }
        let keep_alive = request.keep_alive();
        match request.path() {
            "/ws" | "/ws-panic" | "/feed" | "/placed" => {}
            "/panic" => self.panic(),
            "/large" => {
                self.plain(cx, 200, &"x".repeat(2000), keep_alive);
                return Answer::Done { keep_alive };
            }
            path if path.starts_with("/sse/") => {}
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
        if let Some(channel) = request.path().strip_prefix("/sse/") {
            return self.stream(cx, channel, peer);
        }
        match check_request(request.method(), request.is_http11(), request) {
            Ok(key) => {
                let home = placing::shard_of(peer, self.shards);
                if request.path() == "/placed" && home != self.shard {
                    return placing::leave(&self.record, cx, home, peer, key.accept());
                }
                let route = match request.path() {
                    "/ws-panic" => 1,
                    "/feed" => FEED,
                    _ => 0,
                };
                cx.set_route(route, peer);
                if let Some(name) = subprotocol_of(peer) {
                    cx.set_subprotocol(name);
                }
                cx.write(|out| {
                    let _ = encode_response(&key.accept(), None, out);
                });
                self.record.borrow_mut().lifecycle.upgrade(cx.id());
                Answer::Upgraded
            }
            Err(refusal) => {
                self.plain(cx, refusal.status(), "no", keep_alive);
                Answer::Done { keep_alive }
            }
        }
    }

    fn on_body(&mut self, cx: &mut Cx<'_>, request: &Request<'_>, body: &[u8]) -> Answer {
        self.note("on_body", cx.id());
        match Ask::of(request) {
            Some(ask) => self.exchanges.on_body(cx, ask, body),
            None => {
                self.record.borrow_mut().violation("a body without a request for it".to_owned());
                Answer::Done { keep_alive: false }
            }
        }
    }

    fn on_body_chunk(&mut self, cx: &mut Cx<'_>, bytes: &[u8]) -> Flow {
        self.note("on_body_chunk", cx.id());
        self.exchanges.on_body_chunk(cx, bytes)
    }

    fn on_body_end(&mut self, cx: &mut Cx<'_>, _: HeaderLines<'_>) -> Answer {
        self.note("on_body_end", cx.id());
        self.exchanges.on_body_end(cx)
    }

    fn on_user_event(&mut self, cx: &mut Cx<'_>, event: UserEvent) {
        self.note("on_user_event", cx.id());
        let event = placing::on_user_event(&self.record, cx, event, self.shards, subprotocol_of);
        if let Some(event) = event.and_then(|event| self.stops.on_user_event(cx, event)) {
            self.exchanges.on_user_event(cx, event);
        }
    }

    fn on_move_failed(&mut self, core: &mut Core, event: UserEvent) {
        self.note_mailbox();
        placing::on_failed(&self.record, core, event);
    }

    fn on_gone(&mut self, cx: &mut Cx<'_>) {
        self.note("on_gone", cx.id());
        self.exchanges.on_gone(cx.id());
        let mut record = self.record.borrow_mut();
        if let Err(fault) = record.lifecycle.go(cx.id()) {
            record.violation(fault);
        }
    }

    fn on_bad_request(&mut self, cx: &mut Cx<'_>, status: u16, reason: &str) {
        self.note("on_bad_request", cx.id());
        if self.exchanges.on_fault(cx) {
            self.plain(cx, status, reason, false);
        }
    }

    fn on_refused(&mut self, cx: &mut Cx<'_>, why: Refusal) {
        self.note("on_refused", cx.id());
        // A later refusal has another cause, such as a lack of memory for the body.
        let at_the_door = why != Refusal::Draining && !self.exchanges.knows(cx.id());
        {
            let mut record = self.record.borrow_mut();
            record.refused += 1;
            record.lifecycle.turn_away(cx.id(), at_the_door);
        }
        if self.exchanges.on_fault(cx) {
            let status = if why == Refusal::FullForAddress { 429 } else { 503 };
            self.plain(cx, status, "full", false);
        }
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        let (peer, id) = (cx.data(), cx.id());
        self.note("on_open", id);
        self.live += 1;
        let panics = cx.route() == 1;
        {
            let mut record = self.record.borrow_mut();
            record.opened += 1;
            let mut session = SimSession::new(id, cx.route(), false);
            session.subprotocol = subprotocol_of(peer);
            if record.sessions.insert(peer, session).is_some() {
                record.violation(format!("on_open of peer {peer}, twice"));
            }
        }
        self.take_time();
        if panics {
            self.panic();
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        self.note_mailbox();
        let text = matches!(message, Message::Text(_));
        {
            let mut record = self.record.borrow_mut();
            let hash = message_hash(text, message.as_bytes());
            record.trace.mix(hash);
            let Some(session) = record.session(cx.data(), cx.id(), "on_message") else { return };
            session.handled.push(hash);
            if session.stopped {
                let peer = cx.data();
                record.violation(format!("a message of peer {peer} that is stopped"));
            }
        }
        match message {
            Message::Text(command) if command.starts_with('!') => self.obey(cx, command),
            _ => {
                let _ = self.answer(cx, message);
            }
        }
    }

    fn on_drain(&mut self, cx: &mut Cx<'_>) {
        self.note_mailbox();
        if self.exchanges.on_drain(cx) {
            return;
        }
        let mut record = self.record.borrow_mut();
        if let Some(session) = record.session(cx.data(), cx.id(), "on_drain") {
            session.behind = false;
        }
    }

    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>) {
        self.note_mailbox();
        self.live -= 1;
        let (peer, id) = (cx.data(), cx.id());
        {
            let mut record = self.record.borrow_mut();
            record.closed += 1;
            record.trace.mix(u64::from(close.code.get()));
            if let Some(session) = record.session(peer, id, "on_close") {
                session.closed = Some(close.code.get());
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
        self.note_mailbox();
        let ticks_at = (self.live > 0).then_some(self.ticks_at);
        ticks_at.into_iter().chain(self.stops.next_deadline()).min()
    }

    fn on_deadline(&mut self, core: &mut Core, now: Instant) {
        let stops_at = self.stops.next_deadline();
        if now < stops_at.map_or(self.ticks_at, |at| at.min(self.ticks_at)) {
            self.record.borrow_mut().violation("a deadline came early".to_owned());
        }
        self.stops.on_deadline(core, now);
        if now >= self.ticks_at {
            self.ticks_at = now.after(Duration::from_secs(5));
        }
    }
}
