//! What a user of the engine supplies: the server, the load generator, later the balancer.

use std::any::Any;
use std::fmt;

use throng_io::Instant;
use throng_proto::http1::{HeaderLines, Request, Response};

use crate::core::{Core, Cx};
use crate::messages::{Messages, Receive};

/// A whole WebSocket message, borrowed from the memory it was received in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// UTF-8, checked.
    Text(&'a str),
    /// Any bytes.
    Binary(&'a [u8]),
}

impl<'a> Message<'a> {
    /// The payload, whichever kind it is.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Close<'a> {
    /// The close code (RFC 6455 section 7.4): the peer's if it closed, ours if we did, 1005 if a Close frame
    /// carried none, 1006 if the connection ended without a closing handshake.
    pub code: u16,
    /// The reason that came with the code; empty for most.
    pub reason: &'a str,
}

/// What to do after an HTTP message was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Answered; more may follow on the connection if both sides keep it alive.
    Done {
        /// False: flush, then close.
        keep_alive: bool,
    },
    /// The 101 is queued (server) or was accepted (client): the connection is a WebSocket now.
    Upgraded,
    /// Not answered yet: the body is wanted, and [`Service::on_body`] answers when it is here.
    Body {
        /// Bytes of body that are taken, see [`Core::max_body`]; more are refused with 413.
        max_body: u64,
    },
    /// Not answered yet: the body is wanted in chunks, as it comes, by [`Service::on_body_chunk`].
    Chunks {
        /// Bytes of body that are taken; more are refused with 413.
        max_body: u64,
    },
    /// Not answered yet, or not wholly: no further request is read before [`Core::finish_answer`].
    Later,
    /// The head of a `text/event-stream` is queued and the connection was made a stream by
    /// [`Cx::start_events`].
    Events,
}

/// Whether more of a body is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// As it comes.
    More,
    /// Not before [`Core::resume_reading`].
    Stop,
}

/// What another thread sends to the service of one connection, through [`Remote::deliver`](crate::Remote::deliver).
pub struct UserEvent(pub Box<dyn Any + Send>);

impl fmt::Debug for UserEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserEvent")
    }
}

/// Why a connection is turned away before it said anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The process holds as many connections as it may, or as many pending handshakes.
    Full,
    /// This address holds as many as it may.
    FullForAddress,
    /// The server is shutting down.
    Draining,
}

/// The callbacks of one shard. Calls for one connection come in order and never overlap; a panic in one ends
/// that connection with 1011 and nothing else.
pub trait Service {
    /// A request came, whole up to its head. The answer is written with [`Cx::write`].
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer;

    /// The body that [`Answer::Body`] asked for is here, whole and within the limits. The answer is written with
    /// [`Cx::write`].
    fn on_body(&mut self, cx: &mut Cx<'_>, request: &Request<'_>, body: &[u8]) -> Answer {
        let _ = (cx, request, body);
        Answer::Done { keep_alive: false }
    }

    /// The next bytes of a body that [`Answer::Chunks`] asked for.
    fn on_body_chunk(&mut self, cx: &mut Cx<'_>, bytes: &[u8]) -> Flow {
        let _ = (cx, bytes);
        Flow::More
    }

    /// That body is complete.
    fn on_body_end(&mut self, cx: &mut Cx<'_>, trailers: HeaderLines<'_>) -> Answer {
        let _ = (cx, trailers);
        Answer::Done { keep_alive: false }
    }

    /// Another thread has sent something to this connection's service, which is still here.
    fn on_user_event(&mut self, cx: &mut Cx<'_>, event: UserEvent) {
        let _ = (cx, event);
    }

    /// Server side: the connection has ended without becoming a session. Whatever is known of it may go.
    fn on_gone(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// The peer broke HTTP, or was too slow; write an answer of this status. The connection closes after it.
    fn on_bad_request(&mut self, cx: &mut Cx<'_>, status: u16, reason: &str);

    /// The connection is turned away; write the answer. It closes after it.
    fn on_refused(&mut self, cx: &mut Cx<'_>, why: Refusal);

    /// Client side: the TCP connection stands; write the upgrade request.
    fn on_connected(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// Client side: the head of the answer to the upgrade request.
    fn on_response(&mut self, cx: &mut Cx<'_>, response: &Response<'_>) -> Answer {
        let _ = (cx, response);
        Answer::Done { keep_alive: false }
    }

    /// Client side: the connection failed, or ended, before it was a session.
    fn on_failed(&mut self, cx: &mut Cx<'_>) {
        let _ = cx;
    }

    /// The session is open. Exactly once, before anything else of the session.
    fn on_open(&mut self, cx: &mut Cx<'_>);

    /// Bytes came in an open session. The messages in them are taken out by [`Messages::deliver`]; by default each
    /// is passed to [`Service::on_message`].
    #[inline(always)]
    fn on_read(&mut self, messages: &mut Messages<'_, '_>)
    where
        Self: Sized,
    {
        messages.deliver(&mut EachMessage(self));
    }

    /// A whole message came, where [`Service::on_read`] is the default.
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let _ = (cx, message);
    }

    /// After a send said [`Sent::Queued`](crate::Sent::Queued) or `Dropped`, or [`Core::await_drain`] was called, the
    /// backlog has fallen to its low-water mark.
    fn on_drain(&mut self, cx: &mut Cx<'_>);

    /// The session has ended. Exactly once for each `on_open`, and last.
    fn on_close(&mut self, cx: &mut Cx<'_>, close: Close<'_>);

    /// When the service wants [`Service::on_deadline`], if it does. Asked once a turn.
    fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// The time asked for has come.
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
