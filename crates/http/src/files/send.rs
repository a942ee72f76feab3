//! The bytes of a file, read while they are sent.

use crate::body::SourcePull;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;

/// Maximum bytes per read: a slow disk blocks the shard for that long.
const CHUNK: u64 = 64 * 1024;

/// A part of a response body, in order.
#[derive(Debug)]
pub(super) enum Segment {
    Text(String),
    Bytes(Range<u64>),
}

/// Ranges of a file, with text between them.
///
/// Sends exactly as many bytes as announced: ignores growth of the file, and resets the connection
/// if the file shrinks. Changes in place are sent as found.
#[derive(Debug)]
pub(super) struct FileSegments {
    file: File,
    segments: VecDeque<Segment>,
}

impl FileSegments {
    pub(super) fn new(file: File, segments: impl IntoIterator<Item = Segment>) -> Self {
        Self { file, segments: segments.into_iter().collect() }
    }

    /// Returns the number of bytes left.
    pub(super) fn length(&self) -> u64 {
        let length = |segment: &Segment| match segment {
            Segment::Text(text) => text.len() as u64,
            Segment::Bytes(range) => range.end - range.start,
        };
        self.segments.iter().map(length).sum()
    }

    /// Reads the whole content at once.
    pub(super) fn read(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.length()).unwrap_or_default());
        while self.pull(usize::MAX, &mut bytes)? == SourcePull::More {}
        Ok(bytes)
    }

    /// Implements [`StreamSource::pull`](crate::StreamSource::pull).
    pub(super) fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<SourcePull> {
        while let Some(segment) = self.segments.front_mut() {
            match segment {
                Segment::Text(text) => out.extend_from_slice(text.as_bytes()),
                Segment::Bytes(range) => {
                    let wanted = (range.end - range.start).min(CHUNK).min(room.max(1) as u64);
                    let read = append(&self.file, range.start, wanted, out)?;
                    if read == 0 && wanted > 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    range.start += read;
                    if range.start < range.end {
                        return Ok(SourcePull::More);
                    }
                }
            }
            self.segments.pop_front();
            if !self.segments.is_empty() && out.len() >= room {
                return Ok(SourcePull::More);
            }
        }
        Ok(SourcePull::End)
    }
}

/// Reads up to `wanted` bytes from `start` to the end of `out`, without zeroing them first.
#[cfg(unix)]
fn append(file: &File, start: u64, wanted: u64, out: &mut Vec<u8>) -> io::Result<u64> {
    use rustix::buffer::spare_capacity;
    let (before, wanted) = (out.len(), wanted as usize);
    if wanted == 0 {
        return Ok(0);
    }
    out.reserve(wanted);
    rustix::io::retry_on_intr(|| rustix::io::pread(file, spare_capacity(out), start))?;
    // There may have been more capacity, and more in the file.
    out.truncate(before + wanted);
    Ok((out.len() - before) as u64)
}

#[cfg(not(unix))]
fn append(mut file: &File, start: u64, wanted: u64, out: &mut Vec<u8>) -> io::Result<u64> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    let before = out.len();
    file.seek(SeekFrom::Start(start))?;
    out.reserve(wanted as usize);
    file.take(wanted).read_to_end(out)?;
    Ok((out.len() - before) as u64)
}
