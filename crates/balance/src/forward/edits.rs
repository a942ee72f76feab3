//! Changes of heads by rules of a configuration.

use std::io::Write;

use throng_io::PeerAddress;

use super::names::{self, Kind};

/// The name of the header with the beginning that was taken off the path.
pub(super) const PREFIX: &str = "X-Forwarded-Prefix";

/// The place of the backend's address in the lines of [`AnswerEdits`]. No header has this byte.
pub(crate) const BACKEND: u8 = 0;

/// Appends a part of a head.
pub(crate) type WritePart<'a> = &'a dyn Fn(&mut Vec<u8>);

/// Changes of the head of a request.
#[derive(Clone, Copy)]
pub(crate) struct RequestEdits<'a> {
    /// The names of headers that are dropped.
    pub(crate) removed: &'a [String],
    /// Appends the target, if it is another one.
    pub(crate) target: Option<WritePart<'a>>,
    /// The Host.
    pub(crate) host: Option<ForwardedHost<'a>>,
    /// The beginning that was taken off the path.
    pub(crate) prefix: Option<&'a str>,
    /// Appends whole lines.
    pub(crate) lines: WritePart<'a>,
}

/// The Host of a request for a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardedHost<'a> {
    /// The backend's name, otherwise its address.
    Backend,
    Fixed(&'a str),
}

/// Changes of the head of an answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerEdits<'a> {
    /// The names of headers that are dropped.
    pub(crate) removed: &'a [String],
    /// Whole lines that are added, with [`BACKEND`] for the backend's address.
    pub(crate) lines: &'a [u8],
    /// The backend, if one answers.
    pub(crate) backend: Option<PeerAddress>,
}

impl RequestEdits<'_> {
    /// Returns whether a header of the request is dropped.
    pub(super) fn drops(&self, name: &[u8]) -> bool {
        let is_prefix = || name.eq_ignore_ascii_case(PREFIX.as_bytes());
        self.removes(name) || self.prefix.is_some() && is_prefix()
    }

    pub(super) fn removes(&self, name: &[u8]) -> bool {
        !self.removed.is_empty() && names::is_one_of(name, self.removed)
    }
}

impl AnswerEdits<'_> {
    pub(super) fn removes(&self, name: &[u8]) -> bool {
        !self.removed.is_empty() && names::is_one_of(name, self.removed)
    }

    /// Appends the lines. Without a backend, lines with nothing else are left out.
    pub(super) fn write_lines(&self, out: &mut Vec<u8>) {
        if !self.lines.contains(&BACKEND) {
            return out.extend_from_slice(self.lines);
        }
        for line in self.lines.split_inclusive(|byte| *byte == b'\n') {
            if self.backend.is_none() && line.ends_with(b": \0\r\n") {
                continue;
            }
            for (at, part) in line.split(|byte| *byte == BACKEND).enumerate() {
                if at > 0
                    && let Some(backend) = &self.backend
                {
                    // Writing to a vector cannot fail.
                    drop(write!(out, "{backend}"));
                }
                out.extend_from_slice(part);
            }
        }
    }

    /// Applies the changes to an answer of the balancer's own, which begins at `from` in `out`.
    pub(crate) fn apply(&self, out: &mut Vec<u8>, from: usize) {
        if self.removed.is_empty() && self.lines.is_empty() {
            return;
        }
        let answer = out.split_off(from);
        let mut rest = &answer[..];
        let mut is_first = true;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            if line == b"\r\n" {
                break;
            }
            let name = line.split(|byte| *byte == b':').next().unwrap_or_default();
            if is_first || !self.removes(name) {
                out.extend_from_slice(line);
            }
            (rest, is_first) = (after, false);
        }
        self.write_lines(out);
        out.extend_from_slice(rest);
    }
}

/// Returns whether the balancer writes a header itself in each message: the framing, the fields of
/// a connection and of an upgrade, and the balancer's own mark.
pub(crate) fn is_written_by_balancer(name: &str) -> bool {
    let is_of_handshake =
        name.get(..14).is_some_and(|it| it.eq_ignore_ascii_case("Sec-WebSocket-"));
    is_of_handshake
        || matches!(
            names::kind(name.as_bytes()),
            Kind::Hop
                | Kind::ContentLength
                | Kind::Expect
                | Kind::Te
                | Kind::Trailer
                | Kind::Upgrade
                | Kind::Loop
        )
}
