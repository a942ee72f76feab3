//! Compression: one per shard.

use std::fmt;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Status};

use super::{History, Policy};

/// The compressor of a shard, for all its connections.
///
/// It holds nothing of a connection between two messages: each begins with the connection's [`History`], or
/// with nothing. Its memory, about 300 KB for each window size in use, is allocated by the first message
/// that needs it.
pub struct Deflater {
    level: u8,
    mem_level: u8,
    /// By window bits, 9 to 15.
    windows: [Option<Box<Deflate>>; 7],
    /// Where a history is put together.
    dictionary: Vec<u8>,
}

/// What ends the output of a sync flush, and is not sent (RFC 7692 section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// More than `len` bytes can become: 9 bits a byte by the fixed code, or a few bytes for each block.
///
/// Room for what is worth sending would do, were it not for zlib-rs 0.6: once output did not fit, the
/// space for it stays smaller, and later messages find none.
const fn most(len: usize) -> usize {
    len + len / 8 + 64
}

impl Deflater {
    /// A compressor with the policy's effort. Allocates nothing yet.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            level: policy.level,
            mem_level: policy.mem_level,
            windows: [const { None }; 7],
            dictionary: Vec::new(),
        }
    }

    /// Appends to `out` what `payload` compresses to; false, and nothing appended, if that is not shorter:
    /// then it is to be sent as it is.
    ///
    /// No distance exceeds 2^`window_bits` bytes: [`our_window_bits`](super::Agreed::our_window_bits).
    /// `history` is what earlier messages of the connection left; with `None` the result is good on every
    /// connection whose window is as large. If it is sent on a connection with a history, `payload` must be
    /// appended to that, also when it was compressed without it.
    pub fn deflate(
        &mut self,
        payload: &[u8],
        window_bits: u8,
        history: Option<&History>,
        out: &mut Vec<u8>,
    ) -> bool {
        if payload.is_empty() {
            return false;
        }
        let dictionary = match history {
            Some(history) => history.dictionary(&mut self.dictionary),
            None => &[],
        };
        // No distance can be longer than all there is, so most messages need no smaller window; and zlib
        // uses 262 bytes less of a window than there are.
        let bits = match dictionary.len() + payload.len() <= 1 << window_bits {
            true => 15,
            false => window_bits.clamp(9, 15),
        };
        let window = &mut self.windows[usize::from(bits - 9)];
        let (level, mem_level) = (self.level, self.mem_level);
        let deflate = window.get_or_insert_with(|| Box::new(new_deflate(level, mem_level, bits)));
        deflate.reset();
        if !dictionary.is_empty() && deflate.set_dictionary(dictionary).is_err() {
            return false;
        }
        let start = out.len();
        out.resize(start + most(payload.len()), 0);
        let status = deflate.compress(payload, &mut out[start..], DeflateFlush::SyncFlush);
        let len = deflate.total_out() as usize;
        let is_whole = status == Ok(Status::Ok)
            && deflate.total_in() == payload.len() as u64
            && start + len < out.len();
        if !is_whole {
            // It holds output that nobody takes, which zlib-rs 0.6 does not quite forget on a reset.
            *window = None;
        }
        let shrank = is_whole
            && len < payload.len() + TAIL.len()
            && out[start..start + len].ends_with(&TAIL);
        out.truncate(if shrank { start + len - TAIL.len() } else { start });
        shrank
    }

    /// The window bits of the compressed form, made without history, of a message of `len` bytes that
    /// connections of `window_bits` can read: the same for connections that can share it.
    #[must_use]
    pub fn shared_window_bits(window_bits: u8, len: usize) -> u8 {
        if len <= 1 << window_bits { 15 } else { window_bits }
    }
}

fn new_deflate(level: u8, mem_level: u8, bits: u8) -> Deflate {
    Deflate::new_with_config(DeflateConfig {
        level: level.into(),
        // Negative: no header and no checksum.
        window_bits: -i32::from(bits),
        mem_level: mem_level.into(),
        ..DeflateConfig::default()
    })
}

impl fmt::Debug for Deflater {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let windows: Vec<usize> =
            (9..=15).filter(|bits| self.windows[bits - 9].is_some()).collect();
        f.debug_struct("Deflater")
            .field("level", &self.level)
            .field("mem_level", &self.mem_level)
            .field("windows", &windows)
            .finish_non_exhaustive()
    }
}
