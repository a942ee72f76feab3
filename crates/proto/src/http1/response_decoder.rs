//! The client side: bytes to responses.

use super::head::HeadScan;
use super::message::{After, Head, MessageDecoder, MessageEvent};
use super::target::StatusLine;
use super::{BodyLength, Error, HeaderLines, Limits, Response};
use crate::input::Input;

/// An event of a server's response.
pub type ResponseEvent<'a> = MessageEvent<'a, Response<'a>>;

/// Decodes the responses on one connection, in order.
///
/// As strict as the server's [`Decoder`](super::Decoder), and it takes no byte that is not its own:
/// none after the `End` of a `101 Switching Protocols`.
#[derive(Debug)]
pub struct ResponseDecoder(MessageDecoder<StatusLine>);

impl ResponseDecoder {
    /// Creates a decoder for a new connection. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(MessageDecoder::new())
    }

    /// Declares that the next response answers a HEAD request: it has no body, regardless of
    /// Content-Length.
    ///
    /// Applies until the `Head` of that response. With pipelined requests, call it after each
    /// `End`.
    pub const fn expect_answer_to_head(&mut self) {
        self.0.answers_head = true;
    }

    /// Returns the next event, or `None` if more bytes are needed or if no more HTTP follows.
    ///
    /// # Errors
    ///
    /// The server violated the protocol or a limit; the connection can no longer be used.
    #[inline]
    pub fn next_event<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<ResponseEvent<'a>>, Error> {
        self.0.next_event(input, limits)
    }

    /// Returns the trailers of the response whose [`ResponseEvent::End`] was the last event, like
    /// [`Decoder::trailers`](super::Decoder::trailers).
    #[must_use]
    pub fn trailers(&self) -> HeaderLines<'_> {
        self.0.trailers()
    }

    /// Handles the end of the server's stream: `End` if that ends this response, `None` between
    /// responses.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] inside a response:
    /// [RFC 9112 section 8](https://www.rfc-editor.org/rfc/rfc9112#section-8).
    pub fn handle_end_of_stream(&mut self) -> Result<Option<ResponseEvent<'static>>, Error> {
        Ok(self.0.handle_end_of_stream()?.then_some(ResponseEvent::End))
    }

    /// Returns whether no byte of a response has arrived since the last one's end.
    #[must_use]
    pub const fn is_between_responses(&self) -> bool {
        self.0.is_between_messages()
    }

    /// Returns whether no further response can come: the last one announced it, or a rule was
    /// violated.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl<'a> Head<'a> for Response<'a> {
    type Line = StatusLine;

    #[inline]
    fn new(head: &'a [u8], scan: &HeadScan<StatusLine>, answers_head: bool) -> Result<Self, Error> {
        Response::new(head, scan, answers_head)
    }

    #[inline]
    fn body_length(&self) -> BodyLength {
        Response::body_length(self)
    }

    #[inline]
    fn after(&self) -> Option<After> {
        match self.status() {
            101 => Some(After::Switch),
            _ if self.is_interim() => None,
            _ if self.keep_alive() => Some(After::Next),
            _ => Some(After::Close),
        }
    }
}

impl Default for ResponseDecoder {
    fn default() -> Self {
        Self::new()
    }
}
