//! What a shard knows of a request whose answer comes later, or is still being sent.

use throng_engine::Cx;
use throng_http::{Pull, ReplyTo, Response, Source, Stream};
use throng_proto::http1::{self, HeaderName, HeaderValue};

use super::reader::Inlet;
use crate::app::Pending;

/// Bytes a source is asked for at a time: few enough that ten thousand slow readers fit in memory, many enough that a
/// fast one costs little.
const HELPING: usize = 64 << 10;

/// One request, from its head to the end of its answer. At most one a connection.
pub(crate) struct Exchange {
    /// The request was HEAD.
    pub(crate) is_head: bool,
    /// It was HTTP/1.1.
    pub(crate) is_http11: bool,
    /// The client said `TE: trailers`.
    pub(crate) wants_trailers: bool,
    /// Whose it is, as the engine calls it.
    pub(crate) route: Option<u32>,
    /// The connection may go on after the answer.
    pub(crate) keep_alive: bool,
    /// Where its body goes, while more of it may come.
    pub(crate) inlet: Option<Inlet>,
    /// What is left of its answer, once that has begun.
    pub(crate) outgoing: Option<Outgoing>,
    /// What middleware does to its answer.
    pub(crate) pending: Pending,
}

impl Exchange {
    /// For a request with this head to this route.
    pub(crate) fn new(head: &http1::Request<'_>, route: Option<u32>, pending: Pending) -> Self {
        Self {
            is_head: head.method() == "HEAD",
            is_http11: head.is_http11(),
            wants_trailers: head.values("te").any(|value| {
                value.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("trailers"))
            }),
            route,
            keep_alive: head.keep_alive(),
            inlet: None,
            outgoing: None,
            pending,
        }
    }

    /// How it is to be answered.
    pub(crate) fn reply_to<'d>(&self, date: &'d str) -> ReplyTo<'d> {
        ReplyTo {
            is_head: self.is_head,
            is_http11: self.is_http11,
            // Whoever answers before the body is read to its end will not read it.
            keep_alive: self.keep_alive && self.inlet.is_none(),
            date,
        }
    }
}

/// The rest of a body that is made while it is sent.
pub(crate) struct Outgoing {
    source: Box<dyn Source>,
    /// Bytes to the end of what was announced.
    left: Option<u64>,
    is_chunked: bool,
    wants_trailers: bool,
    pub(crate) keep_alive: bool,
}

impl Outgoing {
    /// Whether the client can tell a body that ends too early from a whole one.
    pub(crate) fn is_delimited(&self) -> bool {
        self.is_chunked || self.left.is_some()
    }
}

/// How sending went on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// There is more when this has left.
    Sending,
    /// There may be more when the source's maker says so.
    Waiting,
    /// That was all.
    Ended,
    /// The source failed, or its length was not what it said: the peer must not take what it has for the whole.
    Broken,
}

impl Outgoing {
    /// The body of `response` after its head, if it is made while it is sent.
    pub(crate) fn of(response: Response, to: &ReplyTo<'_>, wants_trailers: bool) -> Option<Self> {
        if !response.has_body_bytes(to) {
            return None;
        }
        let (is_chunked, keep_alive) = (response.is_chunked(to), response.keeps_alive(to));
        let throng_http::Body::Stream(Stream { source, length }) = response.into_body() else {
            return None;
        };
        Some(Self { source, left: length, is_chunked, wants_trailers, keep_alive })
    }

    /// Writes the next helping. `scratch` is anybody's.
    pub(crate) fn send(&mut self, cx: &mut Cx<'_>, scratch: &mut Vec<u8>) -> Progress {
        scratch.clear();
        let Ok(pull) = self.source.pull(HELPING, scratch) else { return Progress::Broken };
        if let Some(left) = &mut self.left {
            match left.checked_sub(scratch.len() as u64) {
                Some(rest) if rest == 0 || pull != Pull::End => *left = rest,
                _ => return Progress::Broken,
            }
        }
        cx.write(|out| match self.is_chunked {
            true => http1::encode::encode_chunk(scratch, out),
            false => out.extend_from_slice(scratch),
        });
        match pull {
            // Nothing more is needed to be whole, whether the source knows it or not.
            _ if self.left == Some(0) => Progress::Ended,
            Pull::More => Progress::Sending,
            Pull::Wait => Progress::Waiting,
            Pull::End => {
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
