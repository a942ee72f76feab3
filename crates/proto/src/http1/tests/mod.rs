//! Tables of bytes and their events, compared as a flat list of text, so that failures are
//! readable.

mod accidents;
mod bodies;
mod cutting;
mod encoding;
mod heads;
mod oracle;
mod responses;
mod smuggling;
mod trailers;

use super::{Decoder, Error, Event, HeaderLines, Limits, ResponseDecoder, ResponseEvent};
use crate::input::Input;

/// An event, or its consequence, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Head(String),
    Body(Vec<u8>),
    /// `name=value|...`, before the end of a message that has trailers.
    Trailers(String),
    End,
    Failed(Error),
}

/// Records the end of a message and, before it, its trailers.
fn note_end(seen: &mut Vec<Seen>, trailers: HeaderLines<'_>) {
    let lines: Vec<_> = trailers
        .iter()
        .map(|line| format!("{}={}", line.name, String::from_utf8_lossy(line.value)))
        .collect();
    if !lines.is_empty() {
        seen.push(Seen::Trailers(lines.join("|")));
    }
    seen.push(Seen::End);
}

/// Joins data that was split differently.
fn note_body(seen: &mut Vec<Seen>, data: &[u8]) {
    assert!(!data.is_empty(), "a piece is never empty");
    match seen.last_mut() {
        Some(Seen::Body(body)) => body.extend_from_slice(data),
        _ => seen.push(Seen::Body(data.to_vec())),
    }
}

/// Feeds `pieces` one after the other to a server's decoder.
pub(super) fn requests<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
    limits: &Limits,
) -> Vec<Seen> {
    let mut decoder = Decoder::new();
    let mut seen = Vec::new();
    for piece in pieces {
        let mut bytes = piece.to_vec();
        let most = seen.len() + 2 * bytes.len() + 3;
        let mut input = Input::new(&mut bytes);
        loop {
            assert!(seen.len() <= most, "events without end");
            match decoder.next_event(&mut input, limits) {
                Ok(None) => break,
                Ok(Some(Event::Head(request))) => {
                    assert!(request.raw().ends_with(b"\r\n\r\n"), "a head is exactly a head");
                    let headers = request.headers().map(|header| {
                        format!("{}={}", header.name, String::from_utf8_lossy(header.value))
                    });
                    seen.push(Seen::Head(format!(
                        "{} {} {:?} {:?} 1.{} {:?} keep={} {}",
                        request.method(),
                        request.path(),
                        request.query(),
                        request.host(),
                        request.minor_version(),
                        request.body_length(),
                        request.keep_alive(),
                        headers.collect::<Vec<_>>().join("|"),
                    )));
                }
                Ok(Some(Event::Body(data))) => note_body(&mut seen, data),
                Ok(Some(Event::End)) => note_end(&mut seen, decoder.trailers()),
                Err(error) => {
                    seen.push(Seen::Failed(error));
                    let mut more = *b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
                    let again = decoder.next_event(&mut Input::new(&mut more), limits);
                    assert_eq!(again.err(), Some(error), "a failure is final");
                    assert_eq!(decoder.buffered(), 0, "a failure frees its memory");
                    return seen;
                }
            }
            assert!(decoder.buffered() <= limits.max_header_bytes);
        }
        assert!(input.is_empty(), "no event means that everything was taken");
    }
    seen
}

/// Feeds `pieces` to a client's decoder; then closes the server's side if `ends`.
pub(super) fn responses<'p>(
    pieces: impl IntoIterator<Item = &'p [u8]>,
    answers_head: bool,
    ends: bool,
    limits: &Limits,
) -> Vec<Seen> {
    let mut decoder = ResponseDecoder::new();
    if answers_head {
        decoder.expect_answer_to_head();
    }
    let mut seen = Vec::new();
    for piece in pieces {
        let mut bytes = piece.to_vec();
        let most = seen.len() + 2 * bytes.len() + 3;
        let mut input = Input::new(&mut bytes);
        loop {
            assert!(seen.len() <= most, "events without end");
            match decoder.next_event(&mut input, limits) {
                Ok(None) => break,
                Ok(Some(ResponseEvent::End)) => note_end(&mut seen, decoder.trailers()),
                Ok(Some(event)) => note_response(&mut seen, event),
                Err(error) => {
                    seen.push(Seen::Failed(error));
                    return seen;
                }
            }
        }
    }
    if ends {
        match decoder.handle_end_of_stream() {
            Ok(None) => {}
            Ok(Some(event)) => note_response(&mut seen, event),
            Err(error) => seen.push(Seen::Failed(error)),
        }
    }
    seen
}

fn note_response(seen: &mut Vec<Seen>, event: ResponseEvent<'_>) {
    match event {
        ResponseEvent::Head(response) => seen.push(Seen::Head(format!(
            "{} {} {:?} keep={}",
            response.status(),
            response.reason(),
            response.body_length(),
            response.keep_alive()
        ))),
        ResponseEvent::Body(data) => note_body(seen, data),
        ResponseEvent::End => seen.push(Seen::End),
    }
}

/// Decodes `bytes` on a server in one read, with the default limits.
pub(super) fn whole(bytes: impl AsRef<[u8]>) -> Vec<Seen> {
    requests([bytes.as_ref()], &Limits::default())
}

/// Returns the error that ends `bytes`, if one does.
pub(super) fn failure(bytes: impl AsRef<[u8]>) -> Option<Error> {
    match whole(bytes).last() {
        Some(Seen::Failed(error)) => Some(*error),
        _ => None,
    }
}

/// Returns a GET with these header lines (each with its line end) after Host.
pub(super) fn with_lines(lines: &str) -> String {
    format!("GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n")
}

/// Returns how many requests were decoded to their end.
pub(super) fn ends(seen: &[Seen]) -> usize {
    seen.iter().filter(|seen| **seen == Seen::End).count()
}
