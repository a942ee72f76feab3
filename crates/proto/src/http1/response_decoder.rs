//! The client's side: bytes to responses.

use super::body::{Body, Piece};
use super::head::HeadScan;
use super::rare::{self, RareBox};
use super::state::{State, Step};
use super::target::StatusLine;
use super::{Error, HeaderLines, Limits, Response};
use crate::Input;

/// What a server sent.
#[derive(Clone, Copy, Debug)]
pub enum ResponseEvent<'a> {
    /// A response begins. After an interim one ([`Response::is_interim`]) the next event is another
    /// `Head`, with no `End` between.
    Head(Response<'a>),
    /// The next bytes of its body, never empty.
    Body(&'a [u8]),
    /// The response is complete. Until the next call [`ResponseDecoder::trailers`] has what came after its body.
    End,
}

/// Decodes the responses on one connection, in order.
///
/// As strict as the server's [`Decoder`](super::Decoder), and as careful with what is not its own:
/// after the `End` of a `101 Switching Protocols` it takes no byte any more.
#[derive(Debug)]
pub struct ResponseDecoder {
    rare: RareBox<StatusLine>,
    body: Body,
    state: State,
    after: After,
    answers_head: bool,
}

/// What comes after the current response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    Next,
    Close,
    Switch,
}

impl ResponseDecoder {
    /// Before the first response. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            rare: None,
            body: Body::NONE,
            state: State::Head,
            after: After::Next,
            answers_head: false,
        }
    }

    /// Says that the next response answers a HEAD: it has no body, whatever its Content-Length.
    /// Holds until the `Head` of that response. With pipelined requests, set it after each `End`.
    pub const fn expect_answer_to_head(&mut self) {
        self.answers_head = true;
    }

    /// The next event, or `None` when more bytes are needed, or when nothing follows in HTTP.
    ///
    /// # Errors
    ///
    /// The server's fault, always; the connection is of no more use.
    #[inline]
    pub fn next_event<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<ResponseEvent<'a>>, Error> {
        match self.state {
            State::Head => self.next_head(input, limits),
            State::Failed(error) => {
                rare::forget(&mut self.rare);
                Err(error)
            }
            _ => self.next_content(input, limits),
        }
    }

    /// The trailers of the response whose [`ResponseEvent::End`] was the last event, as those of a
    /// [`Decoder`](super::Decoder::trailers).
    #[must_use]
    pub fn trailers(&self) -> HeaderLines<'_> {
        match self.state {
            State::Head | State::Closed => rare::trailers(&self.rare),
            _ => HeaderLines::default(),
        }
    }

    /// The server closed its side. `End` if that is how this response ends, `None` between responses.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`] inside a response: RFC 9112 section 8.
    pub fn handle_end_of_stream(&mut self) -> Result<Option<ResponseEvent<'static>>, Error> {
        match self.state {
            State::UntilClose => {
                self.state = self.state.after(Step::ContentDone).after(Step::EndClose);
                Ok(Some(ResponseEvent::End))
            }
            State::Head if rare::head(&self.rare).is_none() => Ok(None),
            State::Closed | State::Foreign => Ok(None),
            State::Failed(error) => Err(error),
            State::Head | State::Length | State::Chunked | State::Complete => {
                self.state = self.state.after(Step::Fail(Error::Truncated));
                Err(Error::Truncated)
            }
        }
    }

    /// No byte of a response has come since the last one's end.
    #[must_use]
    pub const fn is_between_responses(&self) -> bool {
        matches!(self.state, State::Head) && rare::head(&self.rare).is_none()
    }

    /// No further response comes: the last one said so, or a rule was broken.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed | State::Failed(_))
    }

    fn next_head<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<ResponseEvent<'a>>, Error> {
        // An interim head that was gathered leaves the state at Head: its scan is complete, and its
        // borrow ended with this call.
        if rare::head(&self.rare).is_some_and(|partial| partial.complete) {
            rare::forget(&mut self.rare);
        }
        if rare::head(&self.rare).is_none() {
            // Those of the last response can be read no more.
            rare::forget(&mut self.rare);
            if input.is_empty() {
                return Ok(None);
            }
            let mut scan = HeadScan::new();
            let found = scan.advance(input.as_slice(), limits);
            match self.noted(found)? {
                Some(length) => {
                    let head: &'b [u8] = input.take(length);
                    return self.turn().begin(head, &scan, limits).map(Some);
                }
                None => rare::begin_head(&mut self.rare, scan),
            }
        }
        let Some(partial) = rare::head_mut(&mut self.rare) else { return Ok(None) };
        let advanced = partial.advance(input.as_slice(), limits);
        let used = self.noted(advanced)?;
        input.take(used);
        let Self { rare, body, state, after, answers_head } = self;
        match rare::head(rare) {
            Some(partial) if partial.complete => Turn { body, state, after, answers_head }
                .begin(&partial.bytes, &partial.scan, limits)
                .map(Some),
            _ => Ok(None),
        }
    }

    fn turn(&mut self) -> Turn<'_> {
        let Self { body, state, after, answers_head, .. } = self;
        Turn { body, state, after, answers_head }
    }

    fn next_content<'a, 'b: 'a>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<ResponseEvent<'a>>, Error> {
        rare::forget_head(&mut self.rare);
        let piece = match self.state {
            State::Length => Ok(self.body.next_counted(input)),
            State::Chunked => rare::next_chunk(&mut self.rare, &mut self.body, input, limits),
            State::UntilClose => self.body.next_until_close(input, limits),
            State::Complete => Ok(Piece::Done),
            State::Foreign => return Ok(None),
            _ => {
                rare::forget(&mut self.rare);
                input.take(input.len());
                return Ok(None);
            }
        };
        match self.noted(piece)? {
            Piece::Data(data) => Ok(Some(ResponseEvent::Body(data))),
            Piece::Starved => Ok(None),
            Piece::Done => {
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

    /// Remembers a failure.
    fn noted<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = result {
            self.state = self.state.after(Step::Fail(error));
            rare::forget(&mut self.rare);
        }
        result
    }
}

impl Default for ResponseDecoder {
    fn default() -> Self {
        Self::new()
    }
}

/// The decoder without its gathered head, which the response borrows.
struct Turn<'d> {
    body: &'d mut Body,
    state: &'d mut State,
    after: &'d mut After,
    answers_head: &'d mut bool,
}

impl Turn<'_> {
    /// The transition out of a complete head.
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
