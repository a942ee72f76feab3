//! What few messages need, in a box: a head that came in pieces, or trailers.

use super::body::{Body, Piece};
use super::head::{HeadScan, PartialHead, StartLine};
use super::{Error, HeaderLines, Limits};
use crate::Input;

/// The rare part of a decoder, so that the usual connection does not carry it. A message has one of the
/// two at a time: its head is let go of before its content is read.
#[derive(Debug)]
pub(crate) enum Rare<S> {
    Head(PartialHead<S>),
    /// The field lines of a trailer section, each with its CRLF; the last one may be unfinished.
    Trailers(Vec<u8>),
}

/// Nothing rare is a null pointer.
pub(crate) type RareBox<S> = Option<Box<Rare<S>>>;

/// The partial head, if that is what there is.
#[inline]
pub(crate) const fn head<S>(rare: &RareBox<S>) -> Option<&PartialHead<S>> {
    if let Some(rare) = rare
        && let Rare::Head(partial) = &**rare
    {
        return Some(partial);
    }
    None
}

/// As [`head`], to go on with.
#[inline]
pub(crate) fn head_mut<S>(rare: &mut RareBox<S>) -> Option<&mut PartialHead<S>> {
    match rare.as_deref_mut() {
        Some(Rare::Head(partial)) => Some(partial),
        _ => None,
    }
}

/// Begins to gather a head of which `scan` saw the beginning.
#[cold]
pub(crate) fn begin_head<S: StartLine>(rare: &mut RareBox<S>, scan: HeadScan<S>) {
    *rare = Some(Box::new(Rare::Head(PartialHead::new(scan))));
}

/// Lets go of a gathered head, and of the trailers of the message before.
#[inline]
pub(crate) fn forget<S>(rare: &mut RareBox<S>) {
    if rare.is_some() {
        *rare = None;
    }
}

/// As [`forget`], of a head only: trailers are still being gathered, or can still be read.
#[inline]
pub(crate) fn forget_head<S>(rare: &mut RareBox<S>) {
    if head(rare).is_some() {
        *rare = None;
    }
}

/// The trailers there are; complete once the content is.
#[inline]
pub(crate) fn trailers<S>(rare: &RareBox<S>) -> HeaderLines<'_> {
    match rare.as_deref() {
        Some(Rare::Trailers(lines)) => HeaderLines::new(lines),
        _ => HeaderLines::default(),
    }
}

/// The next piece of chunked content; at its end the trailers were judged.
pub(crate) fn next_chunk<'b, S>(
    rare: &mut RareBox<S>,
    body: &mut Body,
    input: &mut Input<'b>,
    limits: &Limits,
) -> Result<Piece<'b>, Error> {
    let piece = body.next_chunked(input, limits, |lines| gather_trailers(rare, lines, limits))?;
    if piece == Piece::Done {
        check_trailers(trailers(rare))?;
    }
    Ok(piece)
}

/// Appends `bytes` of a trailer section, which the caller holds within the limits.
fn gather_trailers<S>(rare: &mut RareBox<S>, bytes: &[u8], limits: &Limits) {
    if bytes.is_empty() {
        return;
    }
    match rare.as_deref_mut() {
        Some(Rare::Trailers(lines)) => append_within(lines, bytes, limits.header_bytes()),
        _ => *rare = Some(Box::new(Rare::Trailers(bytes.to_vec()))),
    }
}

/// Appends, and lets memory grow by doubling but not past `max`: that is what a peer may make us hold.
pub(crate) fn append_within(held: &mut Vec<u8>, bytes: &[u8], max: usize) {
    let (before, needed) = (held.len(), held.len() + bytes.len());
    if needed > held.capacity() {
        held.reserve_exact(needed.next_power_of_two().max(256).min(max.max(needed)) - before);
    }
    held.extend_from_slice(bytes);
}

/// Bytes held.
pub(crate) fn held<S>(rare: &RareBox<S>) -> usize {
    match rare.as_deref() {
        Some(Rare::Head(partial)) => partial.bytes.len(),
        Some(Rare::Trailers(lines)) => lines.len(),
        None => 0,
    }
}

/// Judges complete trailers by their names.
///
/// RFC 9110 section 6.5.1: a field that is needed before the content, for framing, routing, authentication,
/// modifying the request or understanding the content, is not allowed here. A recipient may ignore it; we refuse it,
/// as whatever two parsers could take differently: who sends it hopes that somebody merges it into the head.
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
    // What is asked.
    "Expect",
    // Who asks.
    "Authorization",
    "Proxy-Authorization",
    "Cookie",
    "Set-Cookie",
    // How the content is read.
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
    fn the_forbidden_are_header_names() {
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
