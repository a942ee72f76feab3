//! The server side: bytes to requests.

use super::body::{Body, Progress};
use super::buffered::{self, BufferedBox};
use super::head::HeadScan;
use super::state::{State, Step};
use super::target::RequestLine;
use super::{Error, HeaderLines, Limits, Request};
use crate::Input;

/// An event of a client's request.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The head of a request. If [`Request::has_body`] is false, `End` comes next and takes no
    /// byte.
    Head(Request<'a>),
    /// The next bytes of the body, never empty: as received, split at the ends of chunks.
    Body(&'a [u8]),
    /// The end of the request. Until the next call [`Decoder::trailers`] has the fields after its
    /// body.
    End,
}

/// Decodes the requests on one connection, in order.
///
/// It takes exactly the bytes of a request from the [`Input`] and not one more, so the bytes that
/// follow an upgrade request's `End` are left for the next protocol's decoder. A head that arrives
/// in one read is decoded in place, without an allocation. One that arrives in several reads is
/// buffered, up to [`Limits::max_header_bytes`], and the buffer is freed by the call after the one
/// that returned `Head`.
///
/// After a request that does not keep the connection alive, all input is discarded
/// ([RFC 9112 section 9.6](https://www.rfc-editor.org/rfc/rfc9112#section-9.6)). After an error,
/// every call fails with that error.
///
/// ```
/// use throng_proto::{Input, http1::{Decoder, Event, Limits}};
///
/// let mut bytes = *b"GET /chat?room=7 HTTP/1.1\r\nHost: example.com\r\n\r\n";
/// let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut bytes));
/// let Ok(Some(Event::Head(request))) = decoder.next_event(&mut input, &Limits::default()) else {
///     panic!("a whole head is decoded at once");
/// };
/// assert_eq!((request.method(), request.path()), ("GET", "/chat"));
/// assert_eq!(request.query(), Some("room=7"));
/// assert_eq!(request.header("host"), Some("example.com"));
/// let end = decoder.next_event(&mut input, &Limits::default());
/// assert!(matches!(end, Ok(Some(Event::End))));
/// ```
#[derive(Debug)]
pub struct Decoder {
    buffered: BufferedBox<RequestLine>,
    body: Body,
    state: State,
    keep_alive: bool,
}

impl Decoder {
    /// Creates a decoder for a new connection. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { buffered: None, body: Body::NONE, state: State::Head, keep_alive: true }
    }

    /// Returns the next event, or `None` when more bytes are needed.
    ///
    /// Call it until it returns `None`: the last event of a request takes no bytes.
    ///
    /// # Errors
    ///
    /// The peer violated the protocol or a limit. Answer with [`Error::status`] and close the
    /// connection.
    #[inline]
    pub fn next_event<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<Event<'a>>, Error> {
        match self.state {
            State::Head => self.next_head(input, limits),
            State::Failed(error) => {
                buffered::clear(&mut self.buffered);
                Err(error)
            }
            _ => self.next_content(input, limits),
        }
    }

    /// Returns the trailers of the request whose [`Event::End`] was the last event: field lines
    /// that came after a chunked body, such as a checksum of it.
    ///
    /// Empty at any other time, and for most requests. They hold at most
    /// [`Limits::max_header_bytes`] bytes and [`Limits::max_headers`] lines.
    ///
    /// Never treat a trailer as a header: it was not there when the headers were checked. A name
    /// that would matter there (Content-Length, Host, Authorization and others) is refused.
    /// [RFC 9110 section 6.5.1](https://www.rfc-editor.org/rfc/rfc9110#section-6.5.1).
    ///
    /// ```
    /// use throng_proto::{Input, http1::{Decoder, Event, Limits}};
    ///
    /// let mut bytes = *b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
    ///     2\r\nhi\r\n0\r\nChecksum: 7\r\n\r\n";
    /// let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut bytes));
    /// while let Ok(Some(event)) = decoder.next_event(&mut input, &Limits::default()) {
    ///     if let Event::End = event {
    ///         assert_eq!(decoder.trailers().first("checksum"), Some("7"));
    ///         break;
    ///     }
    /// }
    /// ```
    #[must_use]
    pub fn trailers(&self) -> HeaderLines<'_> {
        match self.state {
            State::Head | State::Closed => buffered::trailers(&self.buffered),
            _ => HeaderLines::default(),
        }
    }

    /// Returns whether the connection is idle: no byte of a request has arrived, and the `End` of
    /// the last one was returned. The handshake and keep-alive deadlines depend on it.
    #[inline]
    #[must_use]
    pub const fn is_between_requests(&self) -> bool {
        matches!(self.state, State::Head) && buffered::head(&self.buffered).is_none()
    }

    /// Returns whether the head of a request has arrived in part.
    #[must_use]
    pub const fn is_in_head(&self) -> bool {
        matches!(self.state, State::Head) && buffered::head(&self.buffered).is_some()
    }

    /// Returns whether the last request was the final one, so that the connection is to be closed
    /// after the response.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Failed(_))
    }

    /// Returns the number of bytes buffered for an unfinished head, or for trailers.
    #[must_use]
    pub fn buffered(&self) -> usize {
        buffered::len(&self.buffered)
    }

    fn next_head<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<Event<'a>>, Error> {
        if buffered::head(&self.buffered).is_none() {
            // The trailers of the last request are no longer readable.
            buffered::clear(&mut self.buffered);
            if input.is_empty() {
                return Ok(None);
            }
            let mut scan = HeadScan::new();
            let found = scan.advance(input.as_slice(), limits);
            match self.record_error(found)? {
                Some(length) => {
                    let request = Request::new(input.take(length), &scan);
                    let Self { body, state, keep_alive, .. } = self;
                    return begin(request, body, state, keep_alive, limits);
                }
                // Scanned already: the partial head continues where the scan stopped.
                None => buffered::start_head(&mut self.buffered, scan),
            }
        }
        let Some(partial) = buffered::head_mut(&mut self.buffered) else { return Ok(None) };
        let advanced = partial.advance(input.as_slice(), limits);
        let used = self.record_error(advanced)?;
        input.take(used);
        let Self { buffered, body, state, keep_alive } = self;
        match buffered::head(buffered) {
            Some(partial) if partial.complete => {
                let request = Request::new(&partial.bytes, &partial.scan);
                begin(request, body, state, keep_alive, limits)
            }
            _ => Ok(None),
        }
    }

    fn next_content<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<Event<'a>>, Error> {
        // The borrow of a buffered head ended with this call.
        buffered::clear_head(&mut self.buffered);
        let piece = match self.state {
            State::Length => Ok(self.body.next_counted(input)),
            State::Chunked => {
                buffered::next_chunk(&mut self.buffered, &mut self.body, input, limits)
            }
            State::Complete => Ok(Progress::Done),
            _ => {
                buffered::clear(&mut self.buffered);
                input.take(input.len());
                return Ok(None);
            }
        };
        match self.record_error(piece)? {
            Progress::Data(data) => Ok(Some(Event::Body(data))),
            Progress::NeedsInput => Ok(None),
            Progress::Done => {
                let end = if self.keep_alive { Step::EndKeepAlive } else { Step::EndClose };
                self.state = self.state.after(Step::ContentDone).after(end);
                Ok(Some(Event::End))
            }
        }
    }

    /// Records a failure.
    #[inline]
    fn record_error<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = result {
            self.state = self.state.after(Step::Fail(error));
            buffered::clear(&mut self.buffered);
        }
        result
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// Performs the transition after a complete head. Not a method, because the request borrows a part
/// of the decoder.
#[inline]
fn begin<'a>(
    request: Result<Request<'a>, Error>,
    body: &mut Body,
    state: &mut State,
    keep_alive: &mut bool,
    limits: &Limits,
) -> Result<Option<Event<'a>>, Error> {
    let framed =
        request.and_then(|request| Ok((request, Body::new(request.body_length(), limits)?)));
    match framed {
        Ok((request, framed)) => {
            *body = framed;
            *keep_alive = request.keep_alive();
            *state = state.after(Step::Head(request.body_length()));
            Ok(Some(Event::Head(request)))
        }
        Err(error) => {
            *state = state.after(Step::Fail(error));
            Err(error)
        }
    }
}
