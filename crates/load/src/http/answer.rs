//! Decodes answers with the strict decoder, or with a shortcut for an answer that equals the
//! previous one.

use throng_proto::Input;
use throng_proto::http1::{BodyLength, Error, Limits, ResponseDecoder, ResponseEvent};

/// Limits of a server's head, which may be longer than a client's. A head beyond them is an error.
const LIMITS: Limits = Limits { max_header_bytes: 64 << 10, max_headers: 256, max_body: 1 << 50 };
/// Maximum length of a remembered head.
const LONGEST_REMEMBERED: usize = 4096;

/// A complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HttpAnswer {
    pub(super) status: u16,
    /// Whether the connection can carry another request.
    pub(super) keep_alive: bool,
}

/// Progress of reading the answers of one connection.
#[derive(Debug)]
pub(super) struct Reading {
    decoder: ResponseDecoder,
    /// The state of the current answer, once its head is known.
    answer: HttpAnswer,
}

impl Reading {
    /// Before the first answer.
    pub(super) fn new(answers_head: bool) -> Self {
        let mut decoder = ResponseDecoder::new();
        if answers_head {
            decoder.expect_answer_to_head();
        }
        Self { decoder, answer: HttpAnswer { status: 0, keep_alive: true } }
    }

    /// Returns whether no byte has arrived since the end of the last answer.
    pub(super) fn is_between(&self) -> bool {
        self.decoder.is_between_responses() || self.decoder.is_closed()
    }

    /// Handles the end of the server's stream, and returns the answer that it completes, if any.
    ///
    /// # Errors
    /// The stream ended in the middle of an answer; or, with `was_cut`, only the end of the stream
    /// would complete the answer.
    pub(super) fn end_of_stream(&mut self, was_cut: bool) -> Result<Option<HttpAnswer>, Error> {
        match self.decoder.handle_end_of_stream()? {
            // RFC 9112 section 9.8.
            Some(_) if was_cut => Err(Error::Truncated),
            ended => Ok(ended.map(|_| self.answer)),
        }
    }
}

/// Reads the answers of all connections of a thread.
///
/// Servers repeat the same head except for the date, which changes once a second. A head that
/// equals the last one byte for byte has the same meaning, and a body with a Content-Length does
/// not affect the framing. So one comparison recognises such an answer.
#[derive(Debug)]
pub(super) struct Reader {
    /// Whether the requests use HEAD, so that no answer has a body.
    answers_head: bool,
    /// The head of the last answer, if the shortcut applies to it; otherwise empty.
    head: Vec<u8>,
    /// Bytes of that answer with its body.
    length: usize,
    status: u16,
    /// Bytes that become `head` if the answer has an expected head.
    candidate: Vec<u8>,
}

impl Reader {
    /// For answers to requests of one method.
    pub(super) fn new(answers_head: bool) -> Self {
        let memory = || Vec::with_capacity(LONGEST_REMEMBERED);
        Self { answers_head, head: memory(), length: 0, status: 0, candidate: memory() }
    }

    /// Reads `bytes` received on the connection of `reading`, and reports each completed answer.
    ///
    /// # Errors
    /// The bytes are not HTTP; the connection can no longer be used.
    #[inline]
    pub(super) fn read(
        &mut self,
        reading: &mut Reading,
        bytes: &mut [u8],
        mut each: impl FnMut(HttpAnswer),
    ) -> Result<(), Error> {
        let mut input = Input::new(bytes);
        if reading.decoder.is_between_responses() {
            self.read_known(&mut input, &mut each);
        }
        if input.is_empty() { Ok(()) } else { self.read_any(reading, &mut input, &mut each) }
    }

    /// Consumes answers that equal the last one.
    #[inline]
    fn read_known(&self, input: &mut Input<'_>, each: &mut impl FnMut(HttpAnswer)) {
        if self.head.is_empty() {
            return;
        }
        while input.len() >= self.length && input.as_slice().starts_with(&self.head) {
            input.take(self.length);
            each(HttpAnswer { status: self.status, keep_alive: true });
        }
    }

    #[inline(never)]
    fn read_any(
        &mut self,
        reading: &mut Reading,
        input: &mut Input<'_>,
        each: &mut impl FnMut(HttpAnswer),
    ) -> Result<(), Error> {
        loop {
            let before = input.len();
            let is_fresh = reading.decoder.is_between_responses();
            if is_fresh {
                self.candidate.clear();
                let likely = before.min(LONGEST_REMEMBERED);
                self.candidate.extend_from_slice(&input.as_slice()[..likely]);
            }
            match reading.decoder.next_event(input, &LIMITS)? {
                None => return Ok(()),
                Some(ResponseEvent::Body(_)) => {}
                Some(ResponseEvent::Head(head)) if head.is_interim() => {}
                Some(ResponseEvent::Head(head)) => {
                    let (status, keep_alive) = (head.status(), head.keep_alive());
                    let length = head.body_length();
                    reading.answer = HttpAnswer { status, keep_alive: keep_alive && status != 101 };
                    if let BodyLength::Known(body) = length
                        && is_fresh
                        && reading.answer.keep_alive
                    {
                        self.remember(before - input.len(), body, status);
                    }
                }
                Some(ResponseEvent::End) => {
                    each(reading.answer);
                    if self.answers_head {
                        reading.decoder.expect_answer_to_head();
                    }
                    if reading.decoder.is_between_responses() {
                        self.read_known(input, each);
                    }
                }
            }
        }
    }

    /// The candidate begins with a head of `head` bytes.
    fn remember(&mut self, head: usize, body: u64, status: u16) {
        if head > self.candidate.len() {
            return;
        }
        self.candidate.truncate(head);
        std::mem::swap(&mut self.head, &mut self.candidate);
        self.length = head + body as usize;
        self.status = status;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK";

    /// The statuses of `text`, cut into pieces of `size` bytes.
    fn read(text: &str, size: usize, answers_head: bool) -> Result<Vec<u16>, Error> {
        let (mut reader, mut reading) = (Reader::new(answers_head), Reading::new(answers_head));
        let mut statuses = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            reader
                .read(&mut reading, &mut piece.to_vec(), |answer| statuses.push(answer.status))?;
        }
        Ok(statuses)
    }

    #[test]
    fn answers_are_the_same_however_they_are_cut() {
        let other = "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nsorry";
        let longer = SMALL.replace("Length: 2", "Length: 3").replace("OK\r\n", "Ok\r\n") + "!";
        let chunked =
            "HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        let interim = format!("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n{SMALL}");
        let empty = "HTTP/1.1 204 No Content\r\n\r\n";
        let all =
            [SMALL, SMALL, SMALL, other, SMALL, chunked, &interim, &longer, empty, SMALL].concat();
        let expected = [200, 200, 200, 404, 200, 201, 200, 200, 204, 200];
        for size in 1..=all.len() {
            assert_eq!(read(&all, size, false).as_deref(), Ok(&expected[..]), "pieces of {size}");
        }
    }

    #[test]
    fn answers_to_head_have_no_body() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n";
        for size in 1..=3 * head.len() {
            assert_eq!(read(&head.repeat(3), size, true), Ok(vec![200; 3]), "pieces of {size}");
        }
    }

    #[test]
    fn garbage_is_an_error_also_after_a_known_answer() {
        for garbage in ["garbage\r\n\r\n", "HTTP/1.1 2OO OK\r\n\r\n", "\0\0\0\0"] {
            assert!(read(&[SMALL, SMALL, garbage].concat(), 4096, false).is_err(), "{garbage:?}");
        }
        // Bytes after a body's Content-Length begin the next answer, which is invalid here.
        assert!(read(&format!("{SMALL}{SMALL}x"), 4096, false).is_ok(), "not known yet");
        assert!(read(&format!("{SMALL}{SMALL}x{SMALL}"), 4096, false).is_err());
    }

    #[test]
    fn the_end_of_the_stream_ends_an_answer_only_where_it_may() {
        let ending_of = |text: &str, was_cut| {
            let (mut reader, mut reading) = (Reader::new(false), Reading::new(false));
            let mut count = 0;
            reader.read(&mut reading, &mut text.as_bytes().to_vec(), |_| count += 1).unwrap();
            reading.end_of_stream(was_cut).map(|answer| count + usize::from(answer.is_some()))
        };
        let ending = |text| ending_of(text, false);
        let until_close = "HTTP/1.1 200 OK\r\n\r\nuntil close";
        assert_eq!(ending(until_close), Ok(1));
        assert_eq!(ending_of(until_close, true), Err(Error::Truncated));
        assert_eq!(ending_of(SMALL, true), Ok(1), "it was complete before");
        assert_eq!(ending(SMALL), Ok(1));
        assert_eq!(ending(""), Ok(0));
        assert_eq!(ending(&SMALL[..30]), Err(Error::Truncated));
        assert_eq!(ending(&[SMALL, &SMALL[..SMALL.len() - 1]].concat()), Err(Error::Truncated));
    }

    #[test]
    fn a_last_answer_says_so() {
        let (mut reader, mut reading) = (Reader::new(false), Reading::new(false));
        let last = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
        let mut answers = Vec::new();
        let mut bytes = [SMALL, last].concat().into_bytes();
        reader.read(&mut reading, &mut bytes, |answer| answers.push(answer.keep_alive)).unwrap();
        assert_eq!(answers, [true, false]);
        assert!(reading.is_between());
    }
}
