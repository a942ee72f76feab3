//! The decoder of one direction's messages, generic over their start line.

use super::body::{Body, Progress};
use super::buffered::{self, BufferedBox};
use super::head::{HeadScan, StartLine};
use super::state::{DecodeStep, Http1State};
use super::{BodyLength, Error, HeaderLines, Limits};
use crate::input::Input;

/// Decodes the messages on one connection, in order: heads, content, ends.
///
/// The request and the response decoder differ in their start lines, in the checks on a whole head,
/// and in the messages that may end with the connection or switch protocols.
#[derive(Debug)]
pub(crate) struct MessageDecoder<S> {
    buffered: BufferedBox<S>,
    body: Body,
    state: Http1State,
    after: After,
    /// Whether the next response answers a HEAD request; false for requests.
    pub(crate) answers_head: bool,
}

/// The protocol state after the current message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    Next,
    Close,
    Switch,
}

/// A valid head, and the messages or protocol after it.
pub(crate) trait Head<'a>: Sized {
    /// The parsed start line.
    type Line: StartLine;

    /// Validates the bytes of a whole head.
    fn new(head: &'a [u8], scan: &HeadScan<Self::Line>, answers_head: bool) -> Result<Self, Error>;

    /// Returns the framing of the content.
    fn body_length(&self) -> BodyLength;

    /// Returns the protocol state after the message; `None` for an interim head, which another head
    /// follows.
    fn after(&self) -> Option<After>;
}

/// An event of a message with a head of type `H`, a request's or a response's.
#[derive(Clone, Copy, Debug)]
pub enum MessageEvent<'a, H> {
    /// The head of a message. A request without a body, if
    /// [`Request::has_body`](super::Request::has_body) is false, has `End` next, which takes no
    /// byte. After the head of an interim response
    /// ([`Response::is_interim`](super::Response::is_interim)) the next event is another `Head`,
    /// with no `End` between.
    Head(H),
    /// The next bytes of the body, never empty: as received, split at the ends of chunks.
    Body(&'a [u8]),
    /// The end of the message. Until the next call the decoder has its trailers.
    End,
}

impl<S: StartLine> MessageDecoder<S> {
    pub(crate) const fn new() -> Self {
        Self {
            buffered: None,
            body: Body::NONE,
            state: Http1State::Head,
            after: After::Next,
            answers_head: false,
        }
    }

    /// Returns the next event, or `None` when more bytes are needed.
    #[inline]
    pub(crate) fn next_event<'a, 'b: 'a, H: Head<'a, Line = S>>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<MessageEvent<'a, H>>, Error> {
        match self.state {
            Http1State::Head => self.next_head(input, limits),
            Http1State::Failed(error) => {
                buffered::clear(&mut self.buffered);
                Err(error)
            }
            _ => self.next_content(input, limits),
        }
    }

    /// Returns the trailers of the message whose end was the last event.
    pub(crate) fn trailers(&self) -> HeaderLines<'_> {
        match self.state {
            Http1State::Head | Http1State::Closed => buffered::trailers(&self.buffered),
            _ => HeaderLines::default(),
        }
    }

    /// Returns whether no byte of a message has arrived since the last one's end.
    #[inline]
    pub(crate) const fn is_between_messages(&self) -> bool {
        matches!(self.state, Http1State::Head) && buffered::head(&self.buffered).is_none()
    }

    /// Returns whether the head of a message has arrived in part.
    pub(crate) const fn is_in_head(&self) -> bool {
        matches!(self.state, Http1State::Head) && buffered::head(&self.buffered).is_some()
    }

    /// Returns whether no further message can come.
    pub(crate) const fn is_closed(&self) -> bool {
        matches!(self.state, Http1State::Closed | Http1State::Failed(_))
    }

    /// Returns the number of bytes buffered.
    pub(crate) fn buffered(&self) -> usize {
        buffered::len(&self.buffered)
    }

    /// Handles the end of the stream; returns whether it ends the current message.
    pub(crate) fn handle_end_of_stream(&mut self) -> Result<bool, Error> {
        match self.state {
            Http1State::UntilClose => {
                self.state = self.state.after(DecodeStep::ContentDone).after(DecodeStep::EndClose);
                Ok(true)
            }
            Http1State::Head if buffered::head(&self.buffered).is_none() => Ok(false),
            Http1State::Closed | Http1State::Foreign => Ok(false),
            Http1State::Failed(error) => Err(error),
            Http1State::Head | Http1State::Length | Http1State::Chunked | Http1State::Complete => {
                self.state = self.state.after(DecodeStep::Fail(Error::Truncated));
                Err(Error::Truncated)
            }
        }
    }

    /// Decodes a head in the state [`Http1State::Head`].
    fn next_head<'a, 'b: 'a, H: Head<'a, Line = S>>(
        &'a mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<MessageEvent<'a, H>>, Error> {
        // A complete buffered head in this state is an interim one: its borrow ended with this
        // call.
        if buffered::head(&self.buffered).is_none_or(|partial| partial.complete) {
            // The trailers of the last message are no longer readable.
            buffered::clear(&mut self.buffered);
            if input.is_empty() {
                return Ok(None);
            }
            let mut scan = HeadScan::new();
            let found = scan.advance(input.as_slice(), limits);
            match self.record_error(found)? {
                Some(length) => {
                    let head = H::new(input.take(length), &scan, self.answers_head);
                    let Self { body, state, after, answers_head, .. } = self;
                    return start(head, body, state, after, answers_head, limits);
                }
                // Scanned already: the partial head continues where the scan stopped.
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
                let head = H::new(&partial.bytes, &partial.scan, *answers_head);
                start(head, body, state, after, answers_head, limits)
            }
            _ => Ok(None),
        }
    }

    /// Decodes content in any state except `Head` and [`Http1State::Failed`].
    #[inline]
    fn next_content<'b, H>(
        &mut self,
        input: &mut Input<'b>,
        limits: &Limits,
    ) -> Result<Option<MessageEvent<'b, H>>, Error> {
        // The borrow of a buffered head ended with this call.
        buffered::clear_head(&mut self.buffered);
        let progress = match self.state {
            Http1State::Length => Ok(self.body.next_counted(input)),
            Http1State::Chunked => {
                buffered::next_chunk(&mut self.buffered, &mut self.body, input, limits)
            }
            Http1State::UntilClose => self.body.next_until_close(input, limits),
            Http1State::Complete => Ok(Progress::Done),
            Http1State::Foreign => return Ok(None),
            _ => {
                buffered::clear(&mut self.buffered);
                input.take(input.len());
                return Ok(None);
            }
        };
        match self.record_error(progress)? {
            Progress::Data(data) => Ok(Some(MessageEvent::Body(data))),
            Progress::NeedsInput => Ok(None),
            Progress::Done => {
                let end = match self.after {
                    After::Next => DecodeStep::EndKeepAlive,
                    After::Close => DecodeStep::EndClose,
                    After::Switch => DecodeStep::EndSwitch,
                };
                self.state = self.state.after(DecodeStep::ContentDone).after(end);
                Ok(Some(MessageEvent::End))
            }
        }
    }

    /// Records a failure.
    #[inline]
    fn record_error<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = result {
            self.state = self.state.after(DecodeStep::Fail(error));
            buffered::clear(&mut self.buffered);
        }
        result
    }
}

/// Performs the transition after a complete head. Not a method, because the head borrows a part of
/// the decoder.
#[inline]
fn start<'a, H: Head<'a>>(
    head: Result<H, Error>,
    body: &mut Body,
    state: &mut Http1State,
    after: &mut After,
    answers_head: &mut bool,
    limits: &Limits,
) -> Result<Option<MessageEvent<'a, H>>, Error> {
    let framed = head.and_then(|head| Ok((Body::new(head.body_length(), limits)?, head)));
    match framed {
        Ok((framed, head)) => {
            *state = match head.after() {
                Some(next) => {
                    (*body, *after, *answers_head) = (framed, next, false);
                    state.after(DecodeStep::Head(head.body_length()))
                }
                None => state.after(DecodeStep::Interim),
            };
            Ok(Some(MessageEvent::Head(head)))
        }
        Err(error) => {
            *state = state.after(DecodeStep::Fail(error));
            Err(error)
        }
    }
}
