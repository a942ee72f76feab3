//! The body of an answer: here as a whole, or made while it is sent.

use std::borrow::Cow;
use std::{fmt, io};

/// Where the bytes of a body come from that is made while it is sent.
///
/// It is asked for more when what it gave before has left, so a peer that reads slowly holds no more than one helping
/// in memory. It is asked on the thread that serves the connection: it must not block for long.
pub trait Source: Send {
    /// Appends about `room` bytes to `out`, which is empty, or fewer.
    ///
    /// # Errors
    /// The body cannot be finished. Its head is out, so the connection ends before the body does: the peer must not take
    /// what it has for the whole.
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<Pull>;

    /// Fields that follow a body sent in chunks (RFC 9112 section 7.1.2); asked for after [`Pull::End`], and dropped where
    /// the body is not sent in chunks or the request did not say `TE: trailers`. What is not valid as a header, or
    /// [may not trail](may_trail), is left out.
    fn trailers(&mut self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// Whether a field of this name may follow a body: not one that frames the message, routes it, describes its content, or
/// decides about it (RFC 9110 section 6.5.1).
#[must_use]
pub fn may_trail(name: &str) -> bool {
    const NEVER: [&str; 16] = [
        "authorization",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "date",
        "host",
        "location",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "vary",
    ];
    !NEVER.iter().any(|never| name.eq_ignore_ascii_case(never))
}

/// What a [`Source`] has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// There is more to come: ask again.
    More,
    /// Nothing to add now; whoever makes the body wakes the connection when there is.
    Wait,
    /// That was all.
    End,
}

impl<F: FnMut(usize, &mut Vec<u8>) -> io::Result<Pull> + Send> Source for F {
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<Pull> {
        self(room, out)
    }
}

/// The body of a [`Response`](crate::Response).
pub enum Body {
    /// All of it.
    Whole(Cow<'static, [u8]>),
    /// Made while it is sent.
    Stream(Stream),
}

/// A body that is made while it is sent.
pub struct Stream {
    /// Where it comes from.
    pub source: Box<dyn Source>,
    /// Its length in bytes, if that is known; it is then the Content-Length, and the source is held to it. Otherwise
    /// the body is sent in chunks, and to an HTTP/1.0 client up to the end of the connection.
    pub length: Option<u64>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Stream(Stream { length: Some(length), .. }) => {
                write!(f, "stream of {length} bytes")
            }
            Self::Stream(_) => f.write_str("stream"),
        }
    }
}
