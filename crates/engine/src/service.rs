//! Callbacks that a user of the engine supplies: the server, the load generator.

use std::net::SocketAddr;

use throng_io::{Closed, ConnId, Instant, Traffic};
use throng_proto::http1::{HeaderLines, Request, Response};
use throng_proto::ws::{Close, Message};

use crate::context::{Core, Cx};
use crate::message::{EndReason, Fault, Notice, Refusal, UserEvent};
use crate::ws::messages::{Messages, Receive};

/// Result of a callback for an HTTP message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answered; more may follow on the connection if both sides keep it alive.
    Done {
        /// Whether the connection stays open; if false, it is flushed and closed.
        keep_alive: bool,
    },
    /// The 101 is queued (server) or was accepted (client): the connection is a WebSocket now.
    Upgraded,
    /// Not answered yet: the engine collects the body and calls [`Service::on_body`], which
    /// answers.
    Body {
        /// Largest body in bytes, see [`Core::max_body`]; a larger one is refused with 413.
        max_body: u64,
    },
    /// Not answered yet: the body is passed to [`Service::on_body_chunk`] in chunks as it comes.
    Chunks {
        /// Largest body in bytes; a larger one is refused with 413.
        max_body: u64,
    },
    /// Not answered yet, or not completely: no further request is read before
    /// [`Core::finish_answer`].
    Later,
    /// An upgrade that the service decides on later, within the handshake timeout: see
    /// [`Core::accept_upgrade`]. It refuses it with an answer and [`Core::finish_answer`].
    Upgrading,
    /// The head of a `text/event-stream` is queued, and [`Cx::start_events`] made the connection a
    /// stream.
    Events,
}

/// Flow control for a request body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Continue as data comes.
    More,
    /// Pause until [`Core::resume_reading`].
    Stop,
}

/// The callbacks of one shard. Calls for one connection come in order and never overlap; a panic in
/// one ends that connection with 1011 and nothing else.
pub trait Service {
    /// Called when a request's head is complete. The answer is written with [`Cx::write`].
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer;

    /// Called when the body requested with [`Answer::Body`] is complete and within the limits. The
    /// answer is written with [`Cx::write`].
    fn on_body(&mut self, cx: &mut Cx<'_>, request: &Request<'_>, body: &[u8]) -> Answer {
        let _ = (cx, request, body);
        Answer::Done { keep_alive: false }
    }

    /// Called with the next bytes of a body requested with [`Answer::Chunks`].
    fn on_body_chunk(&mut self, cx: &mut Cx<'_>, bytes: &[u8]) -> Flow {
        let _ = (cx, bytes);
        Flow::More
    }

    /// Called when that body is complete.
    fn on_body_end(&mut self, cx: &mut Cx<'_>, trailers: HeaderLines<'_>) -> Answer {
        let _ = (cx, trailers);
        Answer::Done { keep_alive: false }
    }

    /// Called with a value that another thread posted to this connection, which is still open.
    fn on_user_event(&mut self, cx: &mut Cx<'_>, event: UserEvent) {
        let _ = (cx, event);
    }

    /// Called with a value for the shard, which any thread sent. The service must catch panics of
    /// the program in it: no connection could be ended for them.
    fn on_call(&mut self, core: &mut Core, event: UserEvent) {
        let _ = (core, event);
    }

    /// Called with a value that another thread sent to several connections, including this open
    /// session or event stream.
    fn on_notice(&mut self, cx: &mut Cx<'_>, notice: &Notice) {
        let _ = (cx, notice);
    }

    /// Server side: called when a connection ended without becoming a session. The service can drop
    /// its state.
    fn on_gone(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// Server side: called when the client has ended its side of the stream while its request is
    /// being answered. It may still read the answer, or have left.
    fn on_half_closed(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// Called when the peer violated HTTP, or a callback panicked; writes an answer with this
    /// status. The connection closes after it.
    fn on_bad_request(&mut self, cx: &mut Cx<'_>, status: u16, reason: &str);

    /// Called when a rule or limit of the server ends an unanswered request; writes an answer with
    /// this status. The connection closes after it.
    fn on_request_ended(&mut self, cx: &mut Cx<'_>, status: u16, reason: EndReason) {
        self.on_bad_request(cx, status, reason.text());
    }

    /// Called when a connection is closed because its peer is not a trusted proxy, or its PROXY
    /// header is wrong or late.
    fn on_proxy_refused(&mut self, peer: Option<SocketAddr>, reason: &str) {
        let _ = (peer, reason);
    }

    /// Called when a connection is refused; writes the answer. The connection closes after it.
    fn on_refused(&mut self, cx: &mut Cx<'_>, why: Refusal);

    /// Called in place of [`Service::on_request`] for the one request of a connection beyond the
    /// caps. Answers requests that must work when the server is full, such as health checks;
    /// otherwise acts as [`Service::on_refused`] does.
    fn on_request_refused(&mut self, cx: &mut Cx<'_>, request: &Request<'_>, why: Refusal) {
        let _ = request;
        self.on_refused(cx, why);
    }

    /// Client side: called when the TCP connection is established; writes the upgrade request.
    fn on_connected(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// Client side: called with the head of the answer to the upgrade request.
    fn on_response(&mut self, cx: &mut Cx<'_>, response: &Response<'_>) -> Answer {
        let _ = (cx, response);
        Answer::Done { keep_alive: false }
    }

    /// Client side: called when the connection failed or ended before it was a session.
    fn on_failed(&mut self, cx: &mut Cx<'_>, why: Closed) {
        let _ = (cx, why);
    }

    /// Called exactly once when a session opens, before any other callback of the session.
    fn on_open(&mut self, cx: &mut Cx<'_>);

    /// Called when bytes arrive in an open session. [`Messages::deliver`] decodes the messages in
    /// them; by default each is passed to [`Service::on_message`].
    #[inline(always)]
    fn on_read(&mut self, messages: &mut Messages<'_, '_>)
    where
        Self: Sized,
    {
        messages.deliver(&mut EachMessage(self));
    }

    /// Called with each whole message where [`Service::on_read`] is the default.
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let _ = (cx, message);
    }

    /// Called when the backlog has fallen to its low-water mark, after a send returned
    /// [`Sent::Queued`](crate::Sent::Queued) or `Dropped`, or after [`Core::await_drain`].
    fn on_drain(&mut self, cx: &mut Cx<'_>);

    /// Called once when a drain reaches an open session, which is closed then, or as soon as
    /// [`Service::has_work`] returns false.
    fn on_shutdown(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// Returns whether a session has work that a drain should wait for. Called from time to time
    /// until it returns false, or until the time of the drain is almost up.
    fn has_work(&mut self, cx: &mut Cx<'_>) -> bool {
        let _ = cx;
        false
    }

    /// Called exactly once for each `on_open`, last, when the session has ended.
    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>);

    /// Called last, with the bytes that a connection has carried, if [`Core::count_traffic`] was
    /// called; `None` if the system does not count them.
    fn on_traffic(&mut self, id: ConnId, traffic: Option<Traffic>) {
        let _ = (id, traffic);
    }

    /// Called with the event of [`Core::move_upgrade`] when its connection is gone, here or at the
    /// shard that it has moved to: no callback for the connection follows.
    fn on_move_failed(&mut self, core: &mut Core, event: UserEvent) {
        let _ = (core, event);
    }

    /// Called with a fault of this connection, which is being closed, or has ended. A failure
    /// of TLS that ends a session is reported before its [`Service::on_close`]; other faults may
    /// follow that. [`Cx::peer`] has the address, unless the socket is gone.
    fn on_fault(&mut self, cx: &mut Cx<'_>, fault: Fault) {
        let _ = (cx, fault);
    }

    /// Returns when [`Service::on_deadline`] is due, if at all. Queried once a turn.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Called when that deadline has passed.
    fn on_deadline(&mut self, core: &mut Core, now: Instant) {
        let _ = (core, now);
    }
}

/// Passes messages to the service's own callback.
struct EachMessage<'a, S>(&'a mut S);

impl<S: Service> Receive for EachMessage<'_, S> {
    #[inline(always)]
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        self.0.on_message(cx, message);
    }
}
