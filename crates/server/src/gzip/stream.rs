//! Bodies that workers compress while they are sent.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::task::Waker;

use throng_engine::workers::OverflowPolicy;
use throng_http::{Body, SourcePull, Stream, StreamSource};
use throng_io::ConnId;

use super::Permit;
use super::encoder::Encoder;
use crate::workers::WorkerPool;

/// Bytes that a worker compresses at a time.
const INPUT: usize = 64 << 10;

/// The connection that a body belongs to, and the workers that compress it.
pub(crate) struct Destination {
    pub(crate) pool: WorkerPool,
    pub(crate) id: ConnId,
    /// The path of the route.
    pub(crate) path: Arc<str>,
}

/// A whole body as a source.
pub(super) struct WholeSource {
    bytes: Cow<'static, [u8]>,
    at: usize,
}

impl WholeSource {
    pub(super) fn boxed(bytes: Cow<'static, [u8]>) -> (Box<dyn StreamSource>, Option<u64>) {
        let length = bytes.len() as u64;
        (Box::new(Self { bytes, at: 0 }), Some(length))
    }
}

impl StreamSource for WholeSource {
    fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<SourcePull> {
        let end = self.bytes.len().min(self.at + room);
        out.extend_from_slice(&self.bytes[self.at..end]);
        self.at = end;
        Ok(if end == self.bytes.len() { SourcePull::End } else { SourcePull::More })
    }
}

/// Compresses the output of another source.
pub(super) struct CompressedSource {
    source: Box<dyn StreamSource>,
    /// Bytes left of the length that was announced for the source.
    left: Option<u64>,
    level: u8,
    /// `None` before the first job, and while one runs.
    encoder: Option<Encoder>,
    job: Option<Receiver<Done>>,
    waker: Option<Waker>,
    destination: Destination,
    _permit: Permit,
}

/// The result of a job.
struct Done {
    encoder: Encoder,
    bytes: Vec<u8>,
    is_end: bool,
}

/// Wakes the connection when it is dropped.
struct WakeOnDrop(Waker);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake_by_ref();
    }
}

/// Returns the result of a job. A job that is dropped before it runs, or panics, also wakes the
/// connection, which then finds that the sender is gone; so the order of the fields matters.
struct GzipReport {
    sender: Sender<Done>,
    _wake: WakeOnDrop,
}

impl CompressedSource {
    pub(super) fn new(
        source: Box<dyn StreamSource>,
        length: Option<u64>,
        level: u8,
        permit: Permit,
        destination: Destination,
    ) -> Self {
        Self {
            source,
            left: length,
            level,
            encoder: None,
            job: None,
            waker: None,
            destination,
            _permit: permit,
        }
    }

    pub(super) fn into_body(self) -> Body {
        Body::Stream(Stream { source: Box::new(self), length: None })
    }

    /// Checks bytes of the source against its length. Returns whether they are the last.
    fn count(&mut self, len: usize, pull: SourcePull) -> io::Result<bool> {
        let Some(left) = &mut self.left else { return Ok(pull == SourcePull::End) };
        match left.checked_sub(len as u64) {
            Some(rest) if rest == 0 || pull != SourcePull::End => *left = rest,
            _ => return Err(io::Error::other("the body has another length than was announced")),
        }
        Ok(*left == 0)
    }

    /// Lets a worker compress the next bytes.
    fn submit(&mut self, input: Vec<u8>, is_end: bool) -> io::Result<()> {
        let Some(waker) = self.waker.clone() else {
            return Err(io::Error::other("the body has no connection"));
        };
        let (sender, job) = channel();
        let report = GzipReport { sender, _wake: WakeOnDrop(waker) };
        let (encoder, level) = (self.encoder.take(), self.level);
        let work = move || {
            // The closure captures the report as a whole, so that its fields are dropped in their
            // order.
            let report = report;
            let mut encoder = encoder.unwrap_or_else(|| Encoder::new(level));
            let mut bytes = Vec::new();
            if encoder.encode(&input, is_end, &mut bytes).is_ok() {
                // The client may have gone.
                let _ = report.sender.send(Done { encoder, bytes, is_end });
            }
        };
        let busy = || io::Error::other("the workers are busy");
        let workers = self.destination.pool.get().ok_or_else(busy)?;
        let Destination { id, path, .. } = &self.destination;
        workers.submit(*id, path, OverflowPolicy::Wait, Box::new(work)).map_err(|_| busy())?;
        self.job = Some(job);
        Ok(())
    }
}

impl StreamSource for CompressedSource {
    fn pull(&mut self, _: usize, out: &mut Vec<u8>) -> io::Result<SourcePull> {
        if let Some(job) = &self.job {
            let done = match job.try_recv() {
                Ok(done) => done,
                Err(TryRecvError::Empty) => return Ok(SourcePull::Wait),
                Err(TryRecvError::Disconnected) => {
                    return Err(io::Error::other("the body was not compressed to its end"));
                }
            };
            self.job = None;
            self.encoder = Some(done.encoder);
            out.extend_from_slice(&done.bytes);
            return Ok(if done.is_end { SourcePull::End } else { SourcePull::More });
        }
        let mut input = Vec::new();
        let pull = self.source.pull(INPUT, &mut input)?;
        let is_end = self.count(input.len(), pull)?;
        if input.is_empty() && !is_end {
            return Ok(pull);
        }
        self.submit(input, is_end)?;
        Ok(SourcePull::Wait)
    }

    fn set_waker(&mut self, waker: Waker) {
        self.source.set_waker(waker.clone());
        self.waker = Some(waker);
    }

    fn ends_with_client(&self) -> bool {
        self.source.ends_with_client()
    }

    fn trailers(&mut self) -> Vec<(String, String)> {
        self.source.trailers()
    }
}
