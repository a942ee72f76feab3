//! The client side: bytes to responses.

use super::body::{Body, Progress};
use super::buffered::{self, BufferedBox};
use super::head::HeadScan;
use super::state::{State, Step};
use super::target::StatusLine;
use super::{Error, HeaderLines, Limits, Response};
use crate::Input;

/// An event of a server's response.
#[derive(Clone, Copy, Debug)]
pub enum ResponseEvent<'a> {
    /// The head of a response. After an interim one ([`Response::is_interim`]) the next event is
    /// another `Head`, with no `End` between.
    Head(Response<'a>),
    /// The next bytes of the body, never empty.
    Body(&'a [u8]),
    /// The end of the response. Until the next call [`ResponseDecoder::trailers`] has the fields
    /// after its body.
    End,
}

/// Decodes the responses on one connection, in order.
///
/// As strict as the server's [`Decoder`](super::Decoder), and it takes no byte that is not its own:
/// none after the `End` of a `101 Switching Protocols`.
#[derive(Debug)]
pub struct ResponseDecoder {
    buffered: BufferedBox<StatusLine>,
    body: Body,
    state: State,
    after: After,
    answers_head: bool,
}

/// The protocol state after the current response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Next,
    Close,
    Switch,
}

impl ResponseDecoder {
    /// Creates a decoder for a new connection. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            buffered: None,
            body: Body::NONE,
            state: State::Head,
            after: After::Next,
            answers_head: false,
        }
    }

    /// Declares that the next response answers a HEAD request: it has no body, whatever its
    /// Content-Length.
    ///
    /// Applies until the `Head` of that response. With pipelined requests, call it after each
    /// `End`.
    pub const fn expect_answer_to_head(&mut self) {
        self.answers_head = true;
    }

    /// Returns the next event, or `None` when more bytes are needed, or when nothing follows in
    /// HTTP.
    ///
    /// # Errors
    ///
    /// The server violated the protocol or a limit; the connection cannot be used any more.
    #[inline]
    pub fn next_event<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<ResponseEvent<'a>>, Error> {
        match self.state {
            State::Head => self.next_head(input, limits),
            State::Failed(error) => {
                buffered::clear(&mut self.buffered);
                Err(error)
            }
            _ => self.next_content(input, limits),
        }
    }

    /// Returns the trailers of the response whose [`ResponseEvent::End`] was the last event, like
    /// [`Decoder::trailers`](super::Decoder::trailers).
    #[must_use]
    pub fn trailers(&self) -> HeaderLines<'_> {
        match self.state {
            State::Head | State::Closed => buffered::trailers(&self.buffered),
            _ => HeaderLines::default(),
        }
    }

    /// Handles the end of the server's stream: `End` if that ends this response, `None` between
    /// responses.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] inside a response:
    /// [RFC 9112 section 8](https://www.rfc-editor.org/rfc/rfc9112#section-8).
    pub fn handle_end_of_stream(&mut self) -> Result<Option<ResponseEvent<'static>>, Error> {
        match self.state {
            State::UntilClose => {
                self.state = self.state.after(Step::ContentDone).after(Step::EndClose);
                Ok(Some(ResponseEvent::End))
            }
            State::Head if buffered::head(&self.buffered).is_none() => Ok(None),
            State::Closed | State::Foreign => Ok(None),
            State::Failed(error) => Err(error),
            State::Head | State::Length | State::Chunked | State::Complete => {
                self.state = self.state.after(Step::Fail(Error::Truncated));
                Err(Error::Truncated)
            }
        }
    }

    /// Returns whether no byte of a response has arrived since the last one's end.
    #[must_use]
    pub const fn is_between_responses(&self) -> bool {
        matches!(self.state, State::Head) && buffered::head(&self.buffered).is_none()
    }

    /// Returns whether no further response can come: the last one announced it, or a rule was
    /// violated.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Failed(_))
    }

    fn next_head<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<ResponseEvent<'a>>, Error> {
        // A buffered interim head leaves the state at Head: its scan is complete, and its borrow
        // ended with this call.
        if buffered::head(&self.buffered).is_some_and(|partial| partial.complete) {
            buffered::clear(&mut self.buffered);
        }
        if buffered::head(&self.buffered).is_none() {
            // The trailers of the last response are no longer readable.
            buffered::clear(&mut self.buffered);
            if input.is_empty() {
                return Ok(None);
            }
            let mut scan = HeadScan::new();
            let found = scan.advance(input.as_slice(), limits);
            match self.record_error(found)? {
                Some(length) => {
                    let head: &'b [u8] = input.take(length);
                    return self.head_transition().begin(head, &scan, limits).map(Some);
                }
                None => buffered::start_head(&mut self.buffered, scan),
            }
        }
        let Some(partial) = buffered::head_mut(&mut self.buffered) else { return Ok(None) };
        let advanced = partial.advance(input.as_slice(), limits);
        let used = self.record_error(advanced)?;
        input.take(used);
        let Self { buffered, body, state, after, answers_head } = self;
        match buffered::head(buffered) {
            Some(partial) if partial.complete => {
                HeadTransition { body, state, after, answers_head }
                    .begin(&partial.bytes, &partial.scan, limits)
                    .map(Some)
            }
            _ => Ok(None),
        }
    }

    fn head_transition(&mut self) -> HeadTransition<'_> {
        let Self { body, state, after, answers_head, .. } = self;
        HeadTransition { body, state, after, answers_head }
    }

    fn next_content<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<ResponseEvent<'a>>, Error> {
        buffered::clear_head(&mut self.buffered);
        let piece = match self.state {
            State::Length => Ok(self.body.next_counted(input)),
            State::Chunked => {
                buffered::next_chunk(&mut self.buffered, &mut self.body, input, limits)
            }
            State::UntilClose => self.body.next_until_close(input, limits),
            State::Complete => Ok(Progress::Done),
            State::Foreign => return Ok(None),
            _ => {
                buffered::clear(&mut self.buffered);
                input.take(input.len());
                return Ok(None);
            }
        };
        match self.record_error(piece)? {
            Progress::Data(data) => Ok(Some(ResponseEvent::Body(data))),
            Progress::NeedsInput => Ok(None),
            Progress::Done => {
                let end = match self.after {
                    After::Next => Step::EndKeepAlive,
                    After::Close => Step::EndClose,
                    After::Switch => Step::EndSwitch,
                };
                self.state = self.state.after(Step::ContentDone).after(end);
                Ok(Some(ResponseEvent::End))
            }
        }
    }

    /// Records a failure.
    fn record_error<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = result {
            self.state = self.state.after(Step::Fail(error));
            buffered::clear(&mut self.buffered);
        }
        result
    }
}

impl Default for ResponseDecoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The decoder without its buffered head, which the response borrows.
struct HeadTransition<'d> {
    body: &'d mut Body,
    state: &'d mut State,
    after: &'d mut After,
    answers_head: &'d mut bool,
}

impl HeadTransition<'_> {
    /// Performs the transition after a complete head.
    fn begin<'a>(
        self,
        head: &'a [u8],
        scan: &HeadScan<StatusLine>,
        limits: &Limits,
    ) -> Result<ResponseEvent<'a>, Error> {
        let framed = Response::new(head, scan, *self.answers_head)
            .and_then(|response| Ok((response, Body::new(response.body_length(), limits)?)));
        let (response, body) = match framed {
            Ok(framed) => framed,
            Err(error) => {
                *self.state = self.state.after(Step::Fail(error));
                return Err(error);
            }
        };
        if response.is_interim() {
            *self.state = self.state.after(Step::Interim);
            return Ok(ResponseEvent::Head(response));
        }
        *self.answers_head = false;
        *self.body = body;
        *self.after = match response.status() {
            101 => After::Switch,
            _ if response.keep_alive() => After::Next,
            _ => After::Close,
        };
        *self.state = self.state.after(Step::Head(response.body_length()));
        Ok(ResponseEvent::Head(response))
    }
}
