//! Response bodies: complete, or streamed.

use std::borrow::Cow;
use std::task::Waker;
use std::{fmt, io};

/// The producer of a streamed body.
///
/// The server pulls again after the earlier bytes have been sent, so a slow reader never causes
/// more than one chunk in memory. The call runs on the thread that serves the connection, and must
/// not block for long.
pub trait StreamSource: Send {
    /// Appends about `room` bytes to `out`, which is empty, or fewer.
    ///
    /// # Errors
    /// The body cannot be completed. Its head is already sent, so the connection is closed before
    /// the end of the body: the peer must not mistake the part for the whole.
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<SourcePull>;

    /// Receives the waker of the connection, before the first [`pull`](Self::pull).
    ///
    /// A source that returns [`SourcePull::Wait`] keeps the waker, and calls [`Waker::wake_by_ref`]
    /// from any thread when there is more to pull or the body ends. If the waker is dropped while
    /// the source waits, the connection closes before the end of the body.
    fn set_waker(&mut self, waker: Waker) {
        drop(waker);
    }

    /// Returns whether the body stops, incomplete, when the client closes its side of the
    /// connection. Meant for endless bodies that may be silent for long: only the closing shows
    /// that the client has left. Default: false, so that a client that has closed only its side
    /// gets the whole body.
    fn ends_with_client(&self) -> bool {
        false
    }

    /// Returns the trailers of a body sent in chunks (RFC 9112 section 7.1.2).
    ///
    /// The server calls this after [`SourcePull::End`]. The trailers are dropped if the body is not
    /// sent in chunks or the request did not contain `TE: trailers`. A field that is not a valid
    /// header, or [must not trail](may_trail), is omitted.
    fn trailers(&mut self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// Returns whether a field of this name may follow a body: not if it frames the message, routes it,
/// describes its content, or influences its processing
/// ([RFC 9110 section 6.5.1](https://www.rfc-editor.org/rfc/rfc9110#section-6.5.1)).
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

/// The result of [`StreamSource::pull`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourcePull {
    /// There is more to come: pull again.
    More,
    /// There are no bytes to add now. The server pulls again after the source has woken the
    /// connection: see [`StreamSource::set_waker`]. A closure has no waker, so it cannot wait.
    Wait,
    /// The body is complete.
    End,
}

impl<F: FnMut(usize, &mut Vec<u8>) -> io::Result<SourcePull> + Send> StreamSource for F {
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<SourcePull> {
        self(room, out)
    }
}

/// The body of a [`Response`](crate::Response).
pub enum Body {
    /// A complete body.
    Whole(Cow<'static, [u8]>),
    /// A streamed body.
    Stream(Stream),
}

/// A body that is produced while it is sent.
pub struct Stream {
    /// The producer.
    pub source: Box<dyn StreamSource>,
    /// The length in bytes, if known; it becomes the Content-Length, and the source must produce
    /// exactly that many. Otherwise the body is sent in chunks, and to an HTTP/1.0 client until the
    /// end of the connection.
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
