//! The server side: bytes to requests.

use super::head::HeadScan;
use super::message::{After, Head, MessageDecoder, MessageEvent};
use super::target::RequestLine;
use super::{BodyLength, Error, HeaderLines, Limits, Request};
use crate::input::Input;

/// An event of a client's request.
pub type Event<'a> = MessageEvent<'a, Request<'a>>;

/// Decodes the requests on one connection, in order.
///
/// It takes exactly the bytes of a request from the [`Input`] and not one more, so the bytes after
/// an upgrade request's `End` remain for the next protocol's decoder. A head that arrives in one
/// read is decoded in place, without an allocation. A head that arrives in several reads is
/// buffered, up to [`Limits::max_header_bytes`], and the buffer is freed by the next call after
/// `Head` was returned.
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
pub struct Decoder(MessageDecoder<RequestLine>);

impl Decoder {
    /// Creates a decoder for a new connection. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(MessageDecoder::new())
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
        self.0.next_event(input, limits)
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
        self.0.trailers()
    }

    /// Returns whether the connection is idle: no byte of a request has arrived, and the `End` of
    /// the last one was returned. The handshake and keep-alive deadlines depend on it.
    #[inline]
    #[must_use]
    pub const fn is_between_requests(&self) -> bool {
        self.0.is_between_messages()
    }

    /// Returns whether the head of a request has arrived in part.
    #[must_use]
    pub const fn is_in_head(&self) -> bool {
        self.0.is_in_head()
    }

    /// Returns whether the last request was the final one, so that the connection must be closed
    /// after the response.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Returns the number of bytes buffered for an unfinished head, or for trailers.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.0.buffered()
    }
}

impl<'a> Head<'a> for Request<'a> {
    type Line = RequestLine;

    #[inline]
    fn new(head: &'a [u8], scan: &HeadScan<RequestLine>, _: bool) -> Result<Self, Error> {
        Request::new(head, scan)
    }

    #[inline]
    fn body_length(&self) -> BodyLength {
        Request::body_length(self)
    }

    #[inline]
    fn after(&self) -> Option<After> {
        Some(if self.keep_alive() { After::Next } else { After::Close })
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}
