//! Boxed storage that few messages need: a head that came in several reads, or trailers.

use super::body::{Body, Progress};
use super::head::{HeadScan, PartialHead, StartLine, append_within};
use super::{Error, HeaderLines, Limits};
use crate::input::Input;

/// The buffer of a decoder, boxed so that most connections do not carry it. A message uses one of
/// the two at a time: its head is dropped before its content is read.
#[derive(Debug)]
pub(crate) enum Buffered<S> {
    Head(PartialHead<S>),
    /// The field lines of a trailer section, each with its CRLF; the last one may be unfinished.
    Trailers(Vec<u8>),
}

/// An optional buffer; a null pointer if there is none.
pub(crate) type BufferedBox<S> = Option<Box<Buffered<S>>>;

/// Returns the partial head, if there is one.
#[inline]
pub(crate) const fn head<S>(buffered: &BufferedBox<S>) -> Option<&PartialHead<S>> {
    if let Some(buffered) = buffered
        && let Buffered::Head(partial) = &**buffered
    {
        return Some(partial);
    }
    None
}

/// Returns the partial head, if there is one, mutably.
#[inline]
pub(crate) fn head_mut<S>(buffered: &mut BufferedBox<S>) -> Option<&mut PartialHead<S>> {
    match buffered.as_deref_mut() {
        Some(Buffered::Head(partial)) => Some(partial),
        _ => None,
    }
}

/// Starts buffering a head whose beginning `scan` has examined.
#[cold]
pub(crate) fn start_head<S: StartLine>(buffered: &mut BufferedBox<S>, scan: HeadScan<S>) {
    *buffered = Some(Box::new(Buffered::Head(PartialHead::new(scan))));
}

/// Drops a buffered head, and the trailers of the message before.
#[inline]
pub(crate) fn clear<S>(buffered: &mut BufferedBox<S>) {
    if buffered.is_some() {
        *buffered = None;
    }
}

/// Drops a buffered head only: trailers are still being collected, or can still be read.
#[inline]
pub(crate) fn clear_head<S>(buffered: &mut BufferedBox<S>) {
    if head(buffered).is_some() {
        *buffered = None;
    }
}

/// Returns the trailers; complete once the content is.
#[inline]
pub(crate) fn trailers<S>(buffered: &BufferedBox<S>) -> HeaderLines<'_> {
    match buffered.as_deref() {
        Some(Buffered::Trailers(lines)) => HeaderLines::new(lines),
        _ => HeaderLines::default(),
    }
}

/// Takes the next bytes of chunked content; at its end the trailers have been validated.
pub(crate) fn next_chunk<'b, S>(
    buffered: &mut BufferedBox<S>,
    body: &mut Body,
    input: &mut Input<'b>,
    limits: &Limits,
) -> Result<Progress<'b>, Error> {
    let piece =
        body.next_chunked(input, limits, |lines| append_trailers(buffered, lines, limits))?;
    if piece == Progress::Done {
        check_trailers(trailers(buffered))?;
    }
    Ok(piece)
}

/// Appends `bytes` of a trailer section, whose length the caller has checked.
fn append_trailers<S>(buffered: &mut BufferedBox<S>, bytes: &[u8], limits: &Limits) {
    if bytes.is_empty() {
        return;
    }
    match buffered.as_deref_mut() {
        Some(Buffered::Trailers(lines)) => append_within(lines, bytes, limits.header_bytes()),
        _ => *buffered = Some(Box::new(Buffered::Trailers(bytes.to_vec()))),
    }
}

/// Returns the number of buffered bytes.
pub(crate) fn len<S>(buffered: &BufferedBox<S>) -> usize {
    match buffered.as_deref() {
        Some(Buffered::Head(partial)) => partial.bytes.len(),
        Some(Buffered::Trailers(lines)) => lines.len(),
        None => 0,
    }
}

/// Validates complete trailers by their names.
///
/// RFC 9110 section 6.5.1 forbids fields that are needed before the content: for framing, routing,
/// authentication, modifying the request or understanding the content. A recipient may ignore such
/// a field. We refuse it, as we refuse everything that two parsers could interpret differently: its
/// sender hopes that a recipient merges it into the head.
fn check_trailers(lines: HeaderLines<'_>) -> Result<(), Error> {
    let is_forbidden = |name: &str| FORBIDDEN.iter().any(|one| one.eq_ignore_ascii_case(name));
    match lines.iter().any(|trailer| is_forbidden(trailer.name)) {
        true => Err(Error::ForbiddenTrailer),
        false => Ok(()),
    }
}

const FORBIDDEN: [&str; 20] = [
    // Framing.
    "Content-Length",
    "Transfer-Encoding",
    "Trailer",
    "TE",
    // The connection.
    "Connection",
    "Keep-Alive",
    "Proxy-Connection",
    "Upgrade",
    // Routing.
    "Host",
    "Max-Forwards",
    "Forwarded",
    // Request modifiers.
    "Expect",
    // Authentication.
    "Authorization",
    "Proxy-Authorization",
    "Cookie",
    "Set-Cookie",
    // Content interpretation.
    "Content-Encoding",
    "Content-Type",
    "Content-Range",
    "Content-Location",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::scan;

    #[test]
    fn forbidden_trailers_are_valid_header_names() {
        for name in FORBIDDEN {
            assert!(scan::is_token(name.as_bytes()), "{name}");
            let line = format!("X: y\r\n{}: z\r\n", name.to_ascii_uppercase());
            let checked = check_trailers(HeaderLines::new(line.as_bytes()));
            assert_eq!(checked, Err(Error::ForbiddenTrailer), "{name}");
        }
        let fine = b"X-Content-Length: 1\r\nHosts: a\r\nETag: \"x\"\r\nServer-Timing: a\r\n";
        assert_eq!(check_trailers(HeaderLines::new(fine)), Ok(()));
    }
}
