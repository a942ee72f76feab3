//! The state of requests whose response comes later, or is still being sent.

use std::any::Any;
use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use throng_engine::{Cx, Remote};
use throng_http::{ReplyTo, Response, SourcePull, Stream, StreamSource};
use throng_io::ConnId;
use throng_proto::http1::{self, HeaderName, HeaderValue};
use throng_proto::ws::deflate;

use super::reader::BodySender;
use super::{ClientGuard, ExchangeEvent};
use crate::middleware::Pending;

/// Maximum bytes to pull from a source at a time: few enough that ten thousand slow readers fit in
/// memory, many enough that a fast reader costs little.
const CHUNK: usize = 64 << 10;

/// One request, from its head to the end of its response. A connection has at most one.
pub(crate) struct Exchange {
    /// The request was HEAD.
    pub(crate) is_head: bool,
    /// It was HTTP/1.1.
    pub(crate) is_http11: bool,
    /// The client sent `TE: trailers`.
    pub(crate) wants_trailers: bool,
    /// The client can be sent a body in gzip.
    #[cfg(feature = "gzip")]
    pub(crate) accepts_gzip: bool,
    /// The engine's index of its route.
    pub(crate) route: Option<u32>,
    /// The connection may be kept open after the response.
    pub(crate) keep_alive: bool,
    /// The sender of its body to the handler, while more of it may come.
    pub(crate) body_sender: Option<BodySender>,
    /// The rest of its response's body, once sending has begun.
    pub(crate) outgoing: Option<Outgoing>,
    /// The upgrade that is being decided on.
    pub(crate) upgrade: Option<Box<PendingUpgrade>>,
    /// Middleware's changes to the response.
    pub(crate) pending: Pending,
    /// Notifies the handler when its client leaves.
    pub(crate) client: Option<ClientGuard>,
}

/// Returns whether the response to a request can be sent in gzip.
#[cfg(feature = "gzip")]
pub(crate) fn accepts_gzip(head: &http1::Request<'_>) -> bool {
    // In HTTP/1.0 a client cannot distinguish the end of a body of unknown length from a failure.
    head.is_http11() && head.method() != "HEAD" && throng_http::accepts_gzip(head.lines())
}

impl Exchange {
    /// Creates the state of a request with this head to this route.
    pub(crate) fn new(head: &http1::Request<'_>, route: Option<u32>, pending: Pending) -> Self {
        Self {
            is_head: head.method() == "HEAD",
            is_http11: head.is_http11(),
            wants_trailers: head.values("te").any(|value| {
                value.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
            }),
            #[cfg(feature = "gzip")]
            accepts_gzip: accepts_gzip(head),
            route,
            keep_alive: head.keep_alive(),
            body_sender: None,
            outgoing: None,
            upgrade: None,
            pending,
            client: None,
        }
    }

    /// Returns whether the request ends when its client ends its side of the connection.
    pub(crate) fn ends_with_client(&self) -> bool {
        self.client.as_ref().is_some_and(ClientGuard::ends_request)
            || self.outgoing.as_ref().is_some_and(|outgoing| outgoing.source.ends_with_client())
    }

    /// Returns whether the request has ended with its client, which left before the response.
    pub(crate) fn has_lost_client(&self) -> bool {
        self.client.as_ref().is_some_and(ClientGuard::is_closed) && self.ends_with_client()
    }

    /// Returns how the response must be encoded.
    pub(crate) fn reply_to<'d>(&self, date: &'d str, hsts: Option<&'d str>) -> ReplyTo<'d> {
        ReplyTo {
            is_head: self.is_head,
            is_http11: self.is_http11,
            // A handler that answers before the end of the body will not read the rest.
            keep_alive: self.keep_alive && self.body_sender.is_none(),
            date,
            hsts,
        }
    }
}

/// An undecided upgrade, with the options negotiated with the client.
pub(crate) struct PendingUpgrade {
    pub(crate) route: u16,
    /// The address of the client, set when another thread makes the decision.
    pub(crate) client: Option<IpAddr>,
    pub(crate) accept: [u8; 28],
    pub(crate) subprotocol: Option<Box<str>>,
    pub(crate) deflate: Option<(deflate::Policy, deflate::Accepted)>,
    /// Whether another shard makes the decision.
    pub(crate) has_moved: bool,
    /// Cancels the decision when it is dropped, where that is possible.
    pub(crate) cancel: Option<Box<dyn Any + Send>>,
}

/// The rest of a body that is produced while it is sent.
pub(crate) struct Outgoing {
    source: Box<dyn StreamSource>,
    waker: Arc<BodyWaker>,
    /// The source has nothing to send until it wakes the connection.
    pub(crate) is_waiting: bool,
    /// Bytes left of the announced length.
    left: Option<u64>,
    is_chunked: bool,
    wants_trailers: bool,
    pub(crate) keep_alive: bool,
}

/// The waker of a connection whose body's source may wait.
struct BodyWaker {
    remote: Remote,
    id: ConnId,
    /// Whether the source was pulled since the last event: a source that wakes repeatedly causes
    /// one event for each pull.
    is_armed: AtomicBool,
}

impl Wake for BodyWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.is_armed.swap(false, Ordering::AcqRel) {
            self.remote.post(self.id, Box::new(ExchangeEvent::More));
        }
    }
}

impl Outgoing {
    /// Returns whether the client can distinguish a truncated body from a whole one.
    pub(crate) fn is_delimited(&self) -> bool {
        self.is_chunked || self.left.is_some()
    }
}

/// The state of sending a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// More follows when this has been sent.
    Sending,
    /// The source has no bytes now, and wakes the connection when it has some.
    Waiting,
    /// The body is complete.
    Ended,
    /// The source failed or its length was wrong, for this reason: the peer must not take the body
    /// for complete.
    Broken(Cow<'static, str>),
}

impl Outgoing {
    /// Returns the body of `response`, if it is produced while it is sent.
    pub(crate) fn of(
        cx: &Cx<'_>,
        response: Response,
        to: &ReplyTo<'_>,
        wants_trailers: bool,
    ) -> Option<Self> {
        if !response.has_body_bytes(to) {
            return None;
        }
        let (is_chunked, keep_alive) = (response.is_chunked(to), response.keeps_alive(to));
        let throng_http::Body::Stream(Stream { mut source, length }) = response.into_body() else {
            return None;
        };
        let (remote, is_armed) = (cx.core_ref().remote().clone(), AtomicBool::new(false));
        let waker = Arc::new(BodyWaker { remote, id: cx.id(), is_armed });
        source.set_waker(Waker::from(Arc::clone(&waker)));
        let is_waiting = false;
        Some(Self {
            source,
            waker,
            is_waiting,
            left: length,
            is_chunked,
            wants_trailers,
            keep_alive,
        })
    }

    /// Writes the next chunk. `scratch` is any buffer; its content is dropped.
    pub(crate) fn send(&mut self, cx: &mut Cx<'_>, scratch: &mut Vec<u8>) -> Progress {
        scratch.clear();
        // Set this before the source checks for data: a wake after its check then causes an event.
        self.waker.is_armed.store(true, Ordering::Release);
        self.is_waiting = false;
        let pull = match self.source.pull(CHUNK, scratch) {
            Ok(pull) => pull,
            Err(error) => return Progress::Broken(error.to_string().into()),
        };
        if let Some(left) = &mut self.left {
            match left.checked_sub(scratch.len() as u64) {
                Some(rest) if rest == 0 || pull != SourcePull::End => *left = rest,
                _ => return Progress::Broken("its length is not the announced one".into()),
            }
        }
        cx.write(|out| match self.is_chunked {
            true => http1::encode::encode_chunk(scratch, out),
            false => out.extend_from_slice(scratch),
        });
        match pull {
            // The announced length is reached, even if the source has not reported its end.
            _ if self.left == Some(0) => Progress::Ended,
            SourcePull::More => Progress::Sending,
            // Nothing would ever wake the connection.
            SourcePull::Wait if Arc::strong_count(&self.waker) == 1 => {
                Progress::Broken("its source waits and has dropped its waker".into())
            }
            SourcePull::Wait => {
                self.is_waiting = true;
                Progress::Waiting
            }
            SourcePull::End => {
                self.end_chunks(cx);
                Progress::Ended
            }
        }
    }

    fn end_chunks(&mut self, cx: &mut Cx<'_>) {
        if !self.is_chunked {
            return;
        }
        let trailers = if self.wants_trailers { self.source.trailers() } else { Vec::new() };
        let fields: Vec<_> = trailers
            .iter()
            .filter(|(name, _)| throng_http::may_trail(name))
            .filter_map(|(name, value)| {
                Some((HeaderName::new(name).ok()?, HeaderValue::new(value).ok()?))
            })
            .collect();
        cx.write(|out| http1::encode::encode_last_chunk(&fields, out));
    }
}
