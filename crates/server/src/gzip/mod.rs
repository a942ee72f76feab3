//! Compression of HTTP responses.
//!
//! Short bodies are compressed at once ([`Compressor`]), all others by workers while they are sent
//! (`stream.rs`).

mod encoder;
mod stream;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use throng_http::{Body, Response, Status};

use self::encoder::Encoder;
pub(crate) use self::stream::Destination;
use self::stream::{CompressedSource, WholeSource};

/// Maximum bytes of a whole body that the shard compresses itself, which takes less than a
/// millisecond.
const AT_ONCE: usize = 16 << 10;

/// Compression of the responses of an app's routes with gzip, for clients that accept it
/// ([RFC 9110 section 8.4.1.3](https://www.rfc-editor.org/rfc/rfc9110#section-8.4.1.3)); see
/// [`App::gzip`](crate::App::gzip).
///
/// It compresses bodies of text, JSON, XML, fonts and other types that are not compressed already,
/// from [`min_size`](Self::min_size) on, including files and streams. It does not compress ranges,
/// responses with a `Content-Encoding` (such as precompressed files) or a digest of their content,
/// responses with `Cache-Control: no-transform`, streams of events, and responses to HEAD and
/// HTTP/1.0. A response that is, or could be, compressed has `Vary: Accept-Encoding`; the entity
/// tag of a compressed response is weak.
///
/// Bodies of up to 16 KiB are compressed on the connection's shard, larger bodies and streams on
/// the server's workers, 64 KiB at a time, while they are sent.
///
/// Do not compress pages that contain both a secret and text from the request: the length of such a
/// response depends on the secret ([BREACH](https://breachattack.com)).
///
/// ```
/// use throng::http::Gzip;
/// use throng::prelude::*;
///
/// let app = App::new().get("/report", |_| "a line\n".repeat(1000)).gzip(Gzip::new().level(4));
/// ```
#[derive(Clone)]
#[must_use]
pub struct Gzip {
    pub(crate) level: u8,
    min_size: u64,
    max_streams: usize,
    /// Bodies that are being compressed while they are sent.
    streams: Arc<AtomicUsize>,
}

impl Default for Gzip {
    fn default() -> Self {
        Self { level: 5, min_size: 1024, max_streams: 128, streams: Arc::default() }
    }
}

impl Gzip {
    /// Creates the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the effort, 1 (fast) to 9 (small). Default: 5. Another number is an error of
    /// [`Server::bind`](crate::Server::bind).
    pub fn level(mut self, level: u8) -> Self {
        self.level = level;
        self
    }

    /// Sets the minimum size of bodies that are compressed, in bytes. Default: 1024. Bodies of
    /// unknown length are always compressed.
    pub fn min_size(mut self, bytes: u64) -> Self {
        self.min_size = bytes;
        self
    }

    /// Sets how many bodies may be compressed while they are sent, for all routes together; further
    /// bodies are sent uncompressed. Each compressed body takes about 300 KB until its client has
    /// received it. Default: 128.
    pub fn max_streams(mut self, bodies: usize) -> Self {
        self.max_streams = bodies;
        self
    }

    /// Counts another body, unless there are too many.
    fn begin_stream(&self) -> Option<Permit> {
        let mut count = self.streams.load(Ordering::Relaxed);
        while count < self.max_streams {
            let next = count + 1;
            let counted = (Ordering::Relaxed, Ordering::Relaxed);
            match self.streams.compare_exchange_weak(count, next, counted.0, counted.1) {
                Ok(_) => return Some(Permit(Arc::clone(&self.streams))),
                Err(now) => count = now,
            }
        }
        None
    }
}

impl fmt::Debug for Gzip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, min_size, max_streams, .. } = self;
        f.debug_struct("Gzip")
            .field("level", level)
            .field("min_size", min_size)
            .field("max_streams", max_streams)
            .finish_non_exhaustive()
    }
}

/// The right to compress one body while it is sent.
struct Permit(Arc<AtomicUsize>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A shard's compressor, with an encoder for short bodies.
#[derive(Default)]
pub(crate) struct Compressor {
    encoder: Option<Encoder>,
}

impl Compressor {
    /// Compresses a response by the settings of its route, if that saves bytes and the client
    /// `accepts` it. `destination` returns where a long body is compressed.
    pub(crate) fn compress(
        &mut self,
        gzip: &Gzip,
        accepts: bool,
        response: Response,
        destination: impl FnOnce() -> Destination,
    ) -> Response {
        if response.status() == Status::NOT_MODIFIED {
            // RFC 9110 section 15.4.5: a 304 has the same Vary as the 200 response.
            return response.varying_by("Accept-Encoding");
        }
        if !response.is_compressible(gzip.min_size) {
            return response;
        }
        let mut response = response.varying_by("Accept-Encoding");
        if !accepts {
            return response;
        }
        let body = match response.take_body() {
            Body::Whole(bytes) if bytes.len() <= AT_ONCE => match self.at_once(gzip, &bytes) {
                Some(coded) => Body::Whole(coded.into()),
                None => return response.replacing_body(Body::Whole(bytes)),
            },
            body => {
                let Some(permit) = gzip.begin_stream() else {
                    return response.replacing_body(body);
                };
                let (source, length) = match body {
                    Body::Whole(bytes) => WholeSource::boxed(bytes),
                    Body::Stream(stream) => (stream.source, stream.length),
                };
                CompressedSource::new(source, length, gzip.level, permit, destination()).into_body()
            }
        };
        response.coded("gzip", body)
    }

    /// Compresses a short body; `None` if that does not make it shorter.
    fn at_once(&mut self, gzip: &Gzip, bytes: &[u8]) -> Option<Vec<u8>> {
        if self.encoder.as_ref().is_none_or(|encoder| encoder.level() != gzip.level) {
            self.encoder = Some(Encoder::new(gzip.level));
        }
        let encoder = self.encoder.as_mut()?;
        encoder.restart();
        let mut coded = Vec::new();
        match encoder.encode(bytes, true, &mut coded) {
            Ok(()) => (coded.len() < bytes.len()).then_some(coded),
            Err(_) => {
                self.encoder = None;
                None
            }
        }
    }
}
