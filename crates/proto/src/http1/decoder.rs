//! The server's side: bytes to requests.

use super::body::{Body, Piece};
use super::head::HeadScan;
use super::rare::{self, RareBox};
use super::state::{State, Step};
use super::target::RequestLine;
use super::{Error, HeaderLines, Limits, Request};
use crate::Input;

/// What a client sent.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A request begins. If [`Request::has_body`] says no, `End` is next and takes no byte.
    Head(Request<'a>),
    /// The next bytes of its body, never empty: what one read brought, cut where a chunk ends.
    Body(&'a [u8]),
    /// The request is complete. Until the next call [`Decoder::trailers`] has what came after its body.
    End,
}

/// Decodes the requests on one connection, in order.
///
/// It takes exactly the bytes of a request from the [`Input`] and not one more, so what follows an
/// upgrade request's `End` is still there for the next protocol's decoder. A head that arrives in one
/// read is decoded where it lies, without an allocation; one that arrives in pieces is gathered, up to
/// [`Limits::max_header_bytes`], and let go of when the call after its `Head` is made.
///
/// After a request that does not keep the connection alive, everything is thrown away (RFC 9112 section
/// 9.6). After an error, every call fails with the same error.
///
/// ```
/// use throng_proto::{Input, http1::{Decoder, Event, Limits}};
///
/// let mut bytes = *b"GET /chat?room=7 HTTP/1.1\r\nHost: example.com\r\n\r\n";
/// let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut bytes));
/// let Ok(Some(Event::Head(request))) = decoder.next_event(&mut input, &Limits::default()) else {
///     panic!("a whole head gives a head");
/// };
/// assert_eq!((request.method(), request.path(), request.query()), ("GET", "/chat", Some("room=7")));
/// assert_eq!(request.header("host"), Some("example.com"));
/// let end = decoder.next_event(&mut input, &Limits::default());
/// assert!(matches!(end, Ok(Some(Event::End))));
/// ```
#[derive(Debug)]
pub struct Decoder {
    rare: RareBox<RequestLine>,
    body: Body,
    state: State,
    keep_alive: bool,
}

impl Decoder {
    /// Before the first request. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { rare: None, body: Body::NONE, state: State::Head, keep_alive: true }
    }

    /// The next event, or `None` when more bytes are needed. Call it until it says `None`: the last
    /// event of a request takes no bytes.
    ///
    /// # Errors
    ///
    /// The peer's fault, always. Answer with [`Error::status`] and close the connection.
    #[inline]
    pub fn next_event<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<Event<'a>>, Error> {
        match self.state {
            State::Head => self.next_head(input, limits),
            State::Failed(error) => {
                rare::forget(&mut self.rare);
                Err(error)
            }
            _ => self.next_content(input, limits),
        }
    }

    /// The trailers of the request whose [`Event::End`] was the last event: field lines that came after a chunked body,
    /// such as a checksum of it. Empty at any other time, and mostly then. They hold at most
    /// [`Limits::max_header_bytes`] and [`Limits::max_headers`] lines.
    ///
    /// Never take one for a header: whoever checked the headers did not see it. A name that would matter
    /// there (Content-Length, Host, Authorization and others) is refused. RFC 9110 section 6.5.1.
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
            State::Head | State::Closed => rare::trailers(&self.rare),
            _ => HeaderLines::default(),
        }
    }

    /// No byte of a request has come, and the last one was told to its end: the connection is idle.
    /// The handshake and keep-alive deadlines hang on it.
    #[inline]
    #[must_use]
    pub const fn is_between_requests(&self) -> bool {
        matches!(self.state, State::Head) && rare::head(&self.rare).is_none()
    }

    /// The head of a request is partly here.
    #[must_use]
    pub const fn is_in_head(&self) -> bool {
        matches!(self.state, State::Head) && rare::head(&self.rare).is_some()
    }

    /// The last request was the last: the connection is to be closed once it is answered.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Failed(_))
    }

    /// Bytes held for an unfinished head, or for trailers.
    #[must_use]
    pub fn buffered(&self) -> usize {
        rare::held(&self.rare)
    }

    fn next_head<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<Event<'a>>, Error> {
        if rare::head(&self.rare).is_none() {
            // Those of the last request can be read no more.
            rare::forget(&mut self.rare);
            if input.is_empty() {
                return Ok(None);
            }
            let mut scan = HeadScan::new();
            let found = scan.advance(input.as_slice(), limits);
            match self.noted(found)? {
                Some(length) => {
                    let request = Request::new(input.take(length), &scan);
                    let Self { body, state, keep_alive, .. } = self;
                    return begin(request, body, state, keep_alive, limits);
                }
                // Scanned already: the partial head takes over where the scan stopped.
                None => rare::begin_head(&mut self.rare, scan),
            }
        }
        let Some(partial) = rare::head_mut(&mut self.rare) else { return Ok(None) };
        let advanced = partial.advance(input.as_slice(), limits);
        let used = self.noted(advanced)?;
        input.take(used);
        let Self { rare, body, state, keep_alive } = self;
        match rare::head(rare) {
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
        // The borrow of a gathered head ended with this call.
        rare::forget_head(&mut self.rare);
        let piece = match self.state {
            State::Length => Ok(self.body.next_counted(input)),
            State::Chunked => rare::next_chunk(&mut self.rare, &mut self.body, input, limits),
            State::Complete => Ok(Piece::Done),
            _ => {
                rare::forget(&mut self.rare);
                input.take(input.len());
                return Ok(None);
            }
        };
        match self.noted(piece)? {
            Piece::Data(data) => Ok(Some(Event::Body(data))),
            Piece::Starved => Ok(None),
            Piece::Done => {
                let end = if self.keep_alive { Step::EndKeepAlive } else { Step::EndClose };
                self.state = self.state.after(Step::ContentDone).after(end);
                Ok(Some(Event::End))
            }
        }
    }

    /// Remembers a failure.
    #[inline]
    fn noted<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = result {
            self.state = self.state.after(Step::Fail(error));
            rare::forget(&mut self.rare);
        }
        result
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The transition out of a complete head. Beside the decoder, because the request borrows a part of it.
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
