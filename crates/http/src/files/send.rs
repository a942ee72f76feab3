//! The bytes of a file, read while they are sent.

use crate::body::Pull;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;

/// How much is read at a time, at most: a disk that is slow holds up the shard for that long.
const CHUNK: u64 = 64 * 1024;

/// What is sent, in order.
#[derive(Debug)]
pub(super) enum Piece {
    Text(String),
    Bytes(Range<u64>),
}

/// Pieces of a file, with text between them.
///
/// Exactly the bytes announced: of a file that grew no more, and a file that shrank is an error, which resets the
/// connection. What is changed in place meanwhile is sent as it is found.
#[derive(Debug)]
pub(super) struct Pieces {
    file: File,
    pieces: VecDeque<Piece>,
}

impl Pieces {
    pub(super) fn new(file: File, pieces: impl IntoIterator<Item = Piece>) -> Self {
        Self { file, pieces: pieces.into_iter().collect() }
    }

    /// How many bytes there are still.
    pub(super) fn length(&self) -> u64 {
        let length = |piece: &Piece| match piece {
            Piece::Text(text) => text.len() as u64,
            Piece::Bytes(range) => range.end - range.start,
        };
        self.pieces.iter().map(length).sum()
    }

    /// All of it at once.
    pub(super) fn read(mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(usize::try_from(self.length()).unwrap_or_default());
        while self.pull(usize::MAX, &mut bytes)? == Pull::More {}
        Ok(bytes)
    }

    /// See [`Source::pull`](crate::Source::pull).
    pub(super) fn pull(&mut self, room: usize, out: &mut Vec<u8>) -> io::Result<Pull> {
        while let Some(piece) = self.pieces.front_mut() {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Bytes(range) => {
                    let wanted = (range.end - range.start).min(CHUNK).min(room.max(1) as u64);
                    let read = append(&self.file, range.start, wanted, out)?;
                    if read == 0 && wanted > 0 {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    range.start += read;
                    if range.start < range.end {
                        return Ok(Pull::More);
                    }
                }
            }
            self.pieces.pop_front();
            if !self.pieces.is_empty() && out.len() >= room {
                return Ok(Pull::More);
            }
        }
        Ok(Pull::End)
    }
}

/// Reads up to `wanted` bytes from `start` to the end of `out`, without writing zeros there first.
#[cfg(unix)]
fn append(file: &File, start: u64, wanted: u64, out: &mut Vec<u8>) -> io::Result<u64> {
    use rustix::buffer::spare_capacity;
    let (before, wanted) = (out.len(), wanted as usize);
    if wanted == 0 {
        return Ok(0);
    }
    out.reserve(wanted);
    rustix::io::retry_on_intr(|| rustix::io::pread(file, spare_capacity(out), start))?;
    // There may have been more room, and more in the file.
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
