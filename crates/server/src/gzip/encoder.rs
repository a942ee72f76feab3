//! A stream in the format of gzip ([RFC 1952](https://www.rfc-editor.org/rfc/rfc1952)).

use std::io;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Status};

/// The window of 32 KiB, with gzip's header and checksum around the stream.
const WINDOW_BITS: i32 = 15 + 16;

/// Returns an upper bound for the output of `len` bytes: 9 bits per byte with the fixed code, block
/// headers, and the wrapper of the stream.
const fn max_encoded_len(len: usize) -> usize {
    len + len / 8 + 128
}

/// An encoder of one stream after the other. It takes about 300 KB.
pub(super) struct Encoder {
    deflate: Deflate,
    level: u8,
}

impl Encoder {
    pub(super) fn new(level: u8) -> Self {
        let config = DeflateConfig {
            level: i32::from(level),
            window_bits: WINDOW_BITS,
            ..DeflateConfig::default()
        };
        Self { deflate: Deflate::new_with_config(config), level }
    }

    pub(super) const fn level(&self) -> u8 {
        self.level
    }

    /// Begins another stream.
    pub(super) fn restart(&mut self) {
        self.deflate.reset();
    }

    /// Appends `input` to `out`, so that the client can decode all of it, and with `is_end` the end
    /// of the stream.
    pub(super) fn encode(
        &mut self,
        mut input: &[u8],
        is_end: bool,
        out: &mut Vec<u8>,
    ) -> io::Result<()> {
        let flush = if is_end { DeflateFlush::Finish } else { DeflateFlush::SyncFlush };
        loop {
            let at = out.len();
            let (taken, given) = (self.deflate.total_in(), self.deflate.total_out());
            out.resize(at + max_encoded_len(input.len()), 0);
            let status = self.deflate.compress(input, &mut out[at..], flush);
            let taken = (self.deflate.total_in() - taken) as usize;
            let given = (self.deflate.total_out() - given) as usize;
            let has_room = at + given < out.len();
            out.truncate(at + given);
            input = &input[taken..];
            match status {
                Ok(Status::StreamEnd) => return Ok(()),
                Ok(Status::Ok) if !is_end && input.is_empty() && has_room => return Ok(()),
                Ok(Status::Ok) if taken > 0 || given > 0 => {}
                // The library has failed: the stream cannot continue.
                _ => return Err(io::Error::other("the body cannot be compressed")),
            }
        }
    }
}
