//! One shard's side of a server, which the engine calls.
//!
//! Start reading at [`ShardService`]. Requests are routed in `request.rs` and answered in
//! `response.rs`; `upgrade.rs` is where HTTP becomes WebSocket, `sse.rs` where it becomes a stream
//! of events.

mod request;
mod response;
mod routed;
mod shared;
mod sse;
mod upgrade;

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use throng_engine::{
    Admission, Answer, Chunk, Close, CloseCode, ConnMap, Core, Cx, EndReason, Fault, Flow, Frame,
    Joined, Message, Messages, Notice, Receive, Refusal, Service, UserEvent,
};
use throng_http::{LiveDate, Request, Response, Status};
use throng_io::{ConnId, Instant, Traffic};
use throng_proto::http1::{self, HeaderLines};

pub(crate) use shared::{BoundRoute, RouteShared};

use self::request::AwaitedBody;
use crate::access::{AccessEntry, PendingAccess, count_body};
use crate::app::RequestId;
use crate::events::{ServerEvent, Subject};
use crate::exchanges::ExchangeEvent;
use crate::exchanges::exchange::Exchange;
use crate::handle::Handle;
use crate::hub::SessionNotice;
use crate::middleware::Pending;
use crate::readiness::RETRY_AFTER;
use crate::shard::ShardCall;
use crate::ticks::Ticks;
use crate::ws::sessions::Sessions;
use crate::ws::timers::Timers;
use crate::ws::{SessionEvent, SessionMail};

/// The status code of a handshake's response; handlers do not return it.
const SWITCHING_PROTOCOLS: u16 = 101;

/// The service of one shard.
pub(crate) struct ShardService {
    shared: Arc<RouteShared>,
    admission: Arc<Admission>,
    /// By route: the sessions of WebSocket routes that have had one, and
    /// [`NoSessions`](crate::ws::sessions::NoSessions) for the others.
    sessions: Vec<Box<dyn Sessions>>,
    /// Requests whose body is read before their handler is called.
    awaited: ConnMap<AwaitedBody>,
    /// Sessions that a drain closes when their work is done.
    ending: ConnMap<()>,
    /// The request that is being routed or handled now, and middleware's changes to its response.
    /// If a handler panics, the answer to the panic uses them.
    calling: (Option<ConnId>, Pending),
    /// Whether the app's form of refusals is being called; a panic in the form leaves this set.
    is_forming: bool,
    /// Requests whose answer comes later, or is still being sent.
    exchanges: ConnMap<Exchange>,
    /// The data of requests and sessions that the access log will record.
    entries: ConnMap<Box<PendingAccess>>,
    timers: Timers,
    ticks: Ticks,
    date: LiveDate,
    /// The output of a source before it is queued.
    scratch: Vec<u8>,
    #[cfg(feature = "gzip")]
    compressor: crate::gzip::Compressor,
}

impl ShardService {
    pub(crate) fn new(shared: Arc<RouteShared>, admission: Arc<Admission>) -> Self {
        let ticks = shared.ticks.take();
        Self {
            shared,
            admission,
            sessions: Vec::new(),
            awaited: ConnMap::default(),
            ending: ConnMap::default(),
            calling: (None, Pending::default()),
            is_forming: false,
            exchanges: ConnMap::default(),
            entries: ConnMap::default(),
            timers: Timers::default(),
            ticks,
            date: LiveDate::default(),
            scratch: Vec::new(),
            #[cfg(feature = "gzip")]
            compressor: crate::gzip::Compressor::default(),
        }
    }

    /// Updates the cached date, at most once per second by the turn's clock.
    fn refresh_date(&mut self, now: Instant) {
        self.date.at(now.0);
    }

    /// Returns the sessions of the connection's route, before one of their callbacks.
    fn sessions_of(&mut self, cx: &mut Cx<'_>) -> Option<&mut Box<dyn Sessions>> {
        cx.enter_route(cx.route().into());
        self.sessions.get_mut(usize::from(cx.route()))
    }

    /// Returns the subject for events of this connection, from the data known now.
    pub(super) fn subject(&self, cx: &Cx<'_>) -> Subject {
        let peer = cx.peer();
        let is_proxy = |peer: SocketAddr| {
            let address = peer.ip().to_canonical();
            self.shared.trusted_proxies.iter().any(|network| network.contains(address))
        };
        let noted = self.entries.get(&cx.id()).and_then(|entry| entry.client());
        let own = peer.filter(|peer| !is_proxy(*peer)).map(|peer| peer.ip().to_canonical());
        Subject { handle: Some(Handle::of(cx.id())), peer, client: noted.or(own) }
    }

    /// Records the status code of a response that begins.
    pub(super) fn note_status(&mut self, cx: &mut Cx<'_>, status: u16) {
        if status >= 500 {
            cx.count_server_error();
        }
        if !self.entries.is_empty()
            && let Some(entry) = self.entries.get_mut(&cx.id())
        {
            entry.status = Some(status);
        }
    }

    /// Records the route of a request, and its id, for its record.
    fn note_route(&mut self, cx: &Cx<'_>, route: Option<&Arc<str>>, request: &Request<'_>) {
        if !self.entries.is_empty()
            && let Some(entry) = self.entries.get_mut(&cx.id())
        {
            let id = request.extension().map(RequestId::as_str);
            entry.set_route(route, id);
        }
    }

    /// Records a request that has ended.
    fn record(&mut self, cx: &Cx<'_>, edit: impl FnOnce(&mut AccessEntry<'_>)) {
        if !self.entries.is_empty()
            && let Some(entry) = self.entries.remove(&cx.id())
        {
            let mut access = entry.access(cx.core_ref().now());
            edit(&mut access);
            self.shared.access.record(&access, &self.shared.events);
        }
    }

    /// Records a request that is answered.
    fn record_if_done(&mut self, cx: &mut Cx<'_>, answer: Answer) -> Answer {
        match answer {
            Answer::Done { .. } => self.record(cx, |_| {}),
            // The engine does not report the end of a stream.
            Answer::Events => {
                self.note_status(cx, Status::OK.code());
                self.record(cx, |_| {});
            }
            Answer::Upgraded => self.note_status(cx, SWITCHING_PROTOCOLS),
            Answer::Body { .. } | Answer::Chunks { .. } | Answer::Upgrading | Answer::Later => {}
        }
        answer
    }

    /// Drops the work of this connection that workers have not begun.
    fn cancel_work(&self, id: ConnId) {
        if let Some(pool) = self.shared.pool.get() {
            pool.cancel(id);
        }
    }

    /// Continues a session or stream whose place in a channel was pending.
    fn joined(&mut self, cx: &mut Cx<'_>, joined: Joined) {
        if !cx.is_open() {
            return sse::joined(cx, &joined);
        }
        let Joined { channel, recovery, .. } = joined;
        if let Some(sessions) = self.sessions_of(cx) {
            let event = SessionEvent::Recovered { channel: &channel, recovery };
            sessions.on_event(cx.reborrow(), event);
        }
    }

    fn on_exchange_event(&mut self, cx: &mut Cx<'_>, event: ExchangeEvent) {
        match event {
            ExchangeEvent::Answer(response) => self.reply_later(cx, response),
            ExchangeEvent::RequestPanicked(notice) => self.request_panicked(cx, notice),
            ExchangeEvent::Upgrade(decision) => self.upgrade_decided(cx, decision),
            ExchangeEvent::Moved(moved) => self.upgrade_moved(cx, *moved),
            ExchangeEvent::More => self.source_woke(cx),
            // After the end of the body the connection can wait with another request.
            ExchangeEvent::Capacity => {
                let id = cx.id();
                if self.exchanges.get(&id).is_some_and(|exchange| exchange.body_sender.is_some()) {
                    cx.core().resume_reading(id);
                }
            }
        }
    }

    fn on_session_mail(&mut self, cx: &mut Cx<'_>, mail: SessionMail) {
        match mail {
            SessionMail::Continue(continuation, credits) => {
                self.resume_session(cx, continuation);
                if self.shared.pool.get().is_some_and(|pool| pool.release_credits(cx.id(), credits))
                {
                    cx.resume_reading();
                }
            }
            SessionMail::SetTimer(at, timer, then) => self.timers.set(cx.id(), at, timer, then),
            SessionMail::CancelTimer(timer) => self.timers.cancel(cx.id(), timer),
            SessionMail::Due(continuation) => self.resume_session(cx, continuation),
            SessionMail::WorkPanicked(notice) => {
                notice.answer();
                let id = cx.id();
                self.cancel_work(id);
                let route = Some(cx.route().into());
                cx.core().note_fault(id, Fault::Panic { route });
                cx.close(CloseCode::INTERNAL_ERROR.get(), "internal error");
            }
            // Another job may wait by now, submitted by a continuation, or many results may be
            // pending.
            SessionMail::QueueCapacity => {
                if self.shared.pool.get().is_some_and(|pool| pool.wants_more(cx.id())) {
                    cx.resume_reading();
                }
            }
            SessionMail::Unpublished(lost) => {
                if let Some(sessions) = self.sessions_of(cx) {
                    sessions.on_unpublished(cx.reborrow(), lost);
                }
            }
        }
    }

    /// Continues a session after offloaded work, or at a timer.
    fn resume_session(&mut self, cx: &mut Cx<'_>, continuation: Box<dyn Any + Send>) {
        if let Some(sessions) = self.sessions_of(cx) {
            sessions.resume(cx.reborrow(), continuation);
        }
    }
}

/// Drops the messages of a session that is about to close, so that its work does not grow.
struct Discard;

impl Receive for Discard {
    fn on_message(&mut self, _: &mut Cx<'_>, _: Message<'_>) {}

    fn on_chunk(&mut self, _: &mut Cx<'_>, _: Chunk<'_>) {}
}

impl Service for ShardService {
    fn on_request(&mut self, cx: &mut Cx<'_>, head: &http1::Request<'_>) -> Answer {
        let proxies = &self.shared.trusted_proxies;
        if let Some(entry) = self.shared.access.entry(cx, head, proxies) {
            self.entries.insert(cx.id(), entry);
        }
        let answer = self.route_request(cx, head);
        self.record_if_done(cx, answer)
    }

    fn on_body(&mut self, cx: &mut Cx<'_>, head: &http1::Request<'_>, body: &[u8]) -> Answer {
        count_body(&mut self.entries, cx.id(), body.len(), 0);
        let answer = self.request_with_body(cx, head, body);
        self.record_if_done(cx, answer)
    }

    fn on_body_chunk(&mut self, cx: &mut Cx<'_>, bytes: &[u8]) -> Flow {
        count_body(&mut self.entries, cx.id(), bytes.len(), 0);
        let exchange = self.exchanges.get(&cx.id());
        let flow = match exchange.and_then(|exchange| exchange.body_sender.as_ref()) {
            Some(body_sender) => body_sender.push(bytes),
            None => Flow::More,
        };
        if flow == Flow::Stop {
            let id = cx.id();
            cx.core().watch_client(id);
        }
        flow
    }

    fn on_body_end(&mut self, cx: &mut Cx<'_>, trailers: HeaderLines<'_>) -> Answer {
        let Some(exchange) = self.exchanges.get_mut(&cx.id()) else {
            return Answer::Done { keep_alive: false };
        };
        if let Some(body_sender) = exchange.body_sender.take() {
            let text = |field: http1::Header<'_>| {
                Some((field.name.to_owned(), str::from_utf8(field.value).ok()?.to_owned()))
            };
            body_sender.end(trailers.iter().filter_map(text).collect());
        }
        let id = cx.id();
        cx.core().watch_client(id);
        Answer::Later
    }

    fn on_user_event(&mut self, cx: &mut Cx<'_>, event: UserEvent) {
        let event = match event.0.downcast::<ExchangeEvent>() {
            Ok(event) => return self.on_exchange_event(cx, *event),
            Err(other) => other,
        };
        let event = match event.downcast::<SessionMail>() {
            Ok(mail) if cx.is_open() => return self.on_session_mail(cx, *mail),
            Ok(mail) if matches!(&*mail, SessionMail::Due(timer) if sse::is_end(&**timer)) => {
                let id = cx.id();
                cx.core().note_fault(id, Fault::Ended(EndReason::Token));
                return cx.close(EndReason::Token.code().get(), "");
            }
            // The session has already ended.
            Ok(_) => return,
            Err(other) => other,
        };
        match event.downcast::<Joined>() {
            Ok(joined) => self.joined(cx, *joined),
            #[cfg(feature = "tokio")]
            Err(other) => {
                cx.enter_route(cx.route().into());
                crate::asynchronous::on_delivery(cx, other);
            }
            #[cfg(not(feature = "tokio"))]
            Err(_) => {}
        }
    }

    fn on_notice(&mut self, cx: &mut Cx<'_>, notice: &Notice) {
        let Some(notice) = notice.content.downcast_ref::<SessionNotice>() else { return };
        match notice {
            SessionNotice::Unsubscribe(channel) if cx.unsubscribe(channel) => {
                // A stream has nothing else to do.
                if !cx.is_open() {
                    cx.close(CloseCode::NORMAL.get(), "unsubscribed");
                } else if let Some(sessions) = self.sessions_of(cx) {
                    sessions.on_event(cx.reborrow(), SessionEvent::Unsubscribed { channel });
                }
            }
            SessionNotice::Unsubscribe(_) => {}
            SessionNotice::Missed(channel) if !cx.is_open() => {
                cx.send_frame(&Frame::text(&**channel).event_name("lost"));
            }
            SessionNotice::Missed(channel) => {
                if let Some(sessions) = self.sessions_of(cx) {
                    sessions.on_event(cx.reborrow(), SessionEvent::Missed { channel });
                }
            }
            SessionNotice::Refresh(data) => {
                if cx.is_open()
                    && let Some(sessions) = self.sessions_of(cx)
                {
                    sessions.on_event(cx.reborrow(), SessionEvent::Refresh(data));
                }
            }
        }
    }

    fn on_gone(&mut self, cx: &mut Cx<'_>) {
        // Its response is not whole.
        self.record(cx, |access| access.is_complete = false);
        if !self.awaited.is_empty() {
            self.awaited.remove(&cx.id());
        }
        if !self.exchanges.is_empty() && self.exchanges.remove(&cx.id()).is_some() {
            self.cancel_work(cx.id());
        }
    }

    fn on_half_closed(&mut self, cx: &mut Cx<'_>) {
        let Some(exchange) = self.exchanges.get(&cx.id()) else { return };
        if let Some(client) = &exchange.client {
            client.close();
        }
        if exchange.ends_with_client() {
            self.end_with_client(cx);
        }
    }

    fn on_bad_request(&mut self, cx: &mut Cx<'_>, status: u16, reason: &str) {
        let setting = match status {
            413 => "; max_body",
            414 => "; max_header_bytes",
            431 => "; max_header_bytes, max_headers",
            _ => "",
        };
        let status = Status::new(status);
        self.report_refused(cx, status, &format!("{reason}{setting}"));
        self.refuse_request(cx, Response::error(status, reason));
    }

    fn on_request_ended(&mut self, cx: &mut Cx<'_>, status: u16, reason: EndReason) {
        let status = Status::new(status);
        self.report_refused(cx, status, &reason.to_string());
        self.refuse_request(cx, Response::error(status, reason.text()));
    }

    fn on_proxy_refused(&mut self, peer: Option<SocketAddr>, reason: &str) {
        let client = peer.map(|peer| peer.ip().to_canonical());
        let subject = Subject { peer, client, ..Subject::default() };
        self.shared.events.report(ServerEvent::ProxyRefused { subject, reason });
    }

    fn on_refused(&mut self, cx: &mut Cx<'_>, why: Refusal) {
        let full = Status::SERVICE_UNAVAILABLE;
        let unavailable = |reason| Response::unavailable(RETRY_AFTER, reason);
        let (status, setting, response) = match why {
            Refusal::Full => {
                (full, "the server is full; max_connections", unavailable("the server is full"))
            }
            Refusal::FullForAddress => {
                let status = Status::TOO_MANY_REQUESTS;
                let response = Response::error(status, "too many connections from this address");
                let setting = "too many connections from this address; max_connections_per_address";
                (status, setting, response)
            }
            Refusal::Draining => {
                let reason = "the server is shutting down";
                (full, reason, unavailable(reason))
            }
            Refusal::Memory => {
                let setting = "the server is out of memory; max_memory";
                (full, setting, unavailable("the server is out of memory"))
            }
            Refusal::BodyMemory => {
                let setting = "memory for bodies is short; max_body_memory";
                (full, setting, unavailable("the server is full"))
            }
        };
        self.report_refused(cx, status, setting);
        self.refuse_request(cx, response);
    }

    fn on_request_refused(&mut self, cx: &mut Cx<'_>, request: &http1::Request<'_>, why: Refusal) {
        if !self.answer_health_check(cx, request) {
            self.on_refused(cx, why);
        }
    }

    fn on_open(&mut self, cx: &mut Cx<'_>) {
        let id = cx.id();
        if !self.entries.is_empty() && self.entries.contains_key(&id) {
            cx.core().count_traffic(id);
        }
        if let Some(sessions) = self.sessions_of(cx) {
            sessions.on_event(cx.reborrow(), SessionEvent::Open);
        }
    }

    #[inline(always)]
    fn on_read(&mut self, messages: &mut Messages<'_, '_>) {
        if !self.ending.is_empty() && self.ending.contains_key(&messages.id()) {
            return messages.deliver(&mut Discard);
        }
        let route = messages.route();
        messages.enter_route(route.into());
        match self.sessions.get_mut(usize::from(route)) {
            Some(sessions) => sessions.on_read(messages),
            None => messages.discard(),
        }
    }

    fn on_drain(&mut self, cx: &mut Cx<'_>) {
        if !self.exchanges.is_empty() && self.exchanges.contains_key(&cx.id()) {
            return self.continue_response(cx);
        }
        if let Some(sessions) = self.sessions_of(cx) {
            sessions.on_event(cx.reborrow(), SessionEvent::Drained);
        }
    }

    fn on_call(&mut self, core: &mut Core, event: UserEvent) {
        if let Ok(call) = event.0.downcast::<ShardCall>() {
            call.run(core, &self.shared.shards);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.timers.next().into_iter().chain(self.ticks.next()).min()
    }

    fn on_deadline(&mut self, core: &mut Core, now: Instant) {
        while let Some((id, then)) = self.timers.pop(now) {
            // A separate event, so that a panic ends only this session, and many due timers share
            // turns with other events.
            core.remote().post(id, Box::new(SessionMail::Due(then)));
        }
        self.ticks.run(core, now, &self.shared.shards);
    }

    fn on_move_failed(&mut self, core: &mut Core, event: UserEvent) {
        if let Ok(event) = event.0.downcast::<ExchangeEvent>()
            && let ExchangeEvent::Moved(moved) = *event
            && let Some(entry) = &moved.entry
        {
            let access = entry.access(core.now());
            let access = AccessEntry { is_complete: false, ..access };
            self.shared.access.record(&access, &self.shared.events);
        }
    }

    fn on_fault(&mut self, cx: &mut Cx<'_>, fault: Fault) {
        let shared = &self.shared;
        let subject = self.subject(cx);
        let route = shared.stalls.path(cx.route().into());
        match fault {
            Fault::Protocol(error) => {
                let code = error.close_code().into();
                let setting = match code {
                    CloseCode::MESSAGE_TOO_BIG => "; max_message_size, max_frame_size",
                    _ => "",
                };
                let reason = &*format!("{error}{setting}");
                shared.events.report(ServerEvent::ProtocolError { subject, route, code, reason });
            }
            Fault::Tls(why) => {
                let reason = &*why.to_string();
                shared.events.report(ServerEvent::TlsSessionFailed { subject, reason });
            }
            Fault::SlowConsumer => {
                shared.events.report(ServerEvent::SlowConsumer { subject, route })
            }
            Fault::Panic { route } => {
                let route = route.map(|route| shared.stalls.path(route));
                shared.events.report(ServerEvent::Panicked { subject, route });
            }
            Fault::Ended(reason) => {
                let route = Some(route).filter(|_| !cx.is_http());
                shared.events.report(ServerEvent::Ended { subject, route, reason });
            }
        }
    }

    fn on_shutdown(&mut self, cx: &mut Cx<'_>) {
        if let Some(sessions) = self.sessions_of(cx) {
            sessions.on_event(cx.reborrow(), SessionEvent::Shutdown);
        }
        if cx.is_open() && self.has_work(cx) {
            self.ending.insert(cx.id(), ());
        }
    }

    fn has_work(&mut self, cx: &mut Cx<'_>) -> bool {
        let has_jobs = self.shared.pool.get().is_some_and(|pool| pool.has_pending(cx.id()));
        let sessions = self.sessions.get_mut(usize::from(cx.route()));
        has_jobs || sessions.is_some_and(|sessions| sessions.has_work(cx.reborrow()))
    }

    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>) {
        if !self.ending.is_empty() {
            self.ending.remove(&cx.id());
        }
        if !self.entries.is_empty()
            && let Some(entry) = self.entries.get_mut(&cx.id())
        {
            entry.closed = Some((close.code, cx.core_ref().now()));
        }
        self.timers.end_session(cx.id());
        // Before the callback, whose own last work may still run.
        self.cancel_work(cx.id());
        if let Some(sessions) = self.sessions_of(cx) {
            sessions.on_event(cx.reborrow(), SessionEvent::Closed(close));
        }
    }

    fn on_traffic(&mut self, id: ConnId, traffic: Option<Traffic>) {
        let entry = self.entries.remove(&id);
        if let Some(access) = entry.as_ref().and_then(|entry| entry.session_access(traffic)) {
            self.shared.access.record(&access, &self.shared.events);
        }
    }
}
