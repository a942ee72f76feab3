//! Compression, one compressor per shard.

use std::fmt;

use zlib_rs::{Deflate, DeflateConfig, DeflateFlush, Status};

use super::{History, Policy};

/// Evidence that this build has a codec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Codec(());

impl Codec {
    pub(super) fn available() -> Option<Self> {
        Some(Self(()))
    }
}

/// The compressor of a shard, shared by all its connections.
///
/// It keeps no connection's state between two messages: each message starts with the connection's
/// [`History`], or with nothing. Its memory, about 300 KB for each window size in use, is allocated
/// by the first message that needs it.
pub struct Deflater {
    level: u8,
    mem_level: u8,
    /// One per window size: 9 to 15 bits.
    windows: [Option<Box<Deflate>>; 7],
    /// Buffer for assembling a history.
    dictionary: Vec<u8>,
}

/// The end of the output of a sync flush, which is not sent (RFC 7692 section 7.2.1).
const TAIL: [u8; 4] = [0, 0, 0xff, 0xff];

/// Returns an upper bound for the compressed size of `len` bytes: 9 bits per byte with the fixed
/// code, or a few bytes for each block.
///
/// Space for output that is worth sending would suffice, except with zlib-rs 0.6: once output did
/// not fit, its internal buffer stays smaller, and later messages find no space.
const fn max_deflated_len(len: usize) -> usize {
    len + len / 8 + 64
}

impl Deflater {
    /// Creates a compressor with the policy's effort. Allocates nothing yet.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            level: policy.level,
            mem_level: policy.mem_level,
            windows: [const { None }; 7],
            dictionary: Vec::new(),
        }
    }

    /// Compresses `payload` and appends it to `out`. Returns false, and appends nothing, if the
    /// result is not shorter: the message must then be sent uncompressed.
    ///
    /// No distance exceeds 2^`window_bits` bytes, the connection's
    /// [`our_window_bits`](super::Agreed::our_window_bits). `history` has earlier messages of the
    /// connection. With `None` the result is valid on every connection with at least this window.
    /// If it is sent on a connection with a history, `payload` must be appended to that history,
    /// even if it was compressed without it.
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
        // No distance can be longer than the data, so most messages need no larger window; and zlib
        // uses 262 bytes less of a window than it has.
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
        out.resize(start + max_deflated_len(payload.len()), 0);
        let status = deflate.compress(payload, &mut out[start..], DeflateFlush::SyncFlush);
        let len = deflate.total_out() as usize;
        let is_whole = status == Ok(Status::Ok)
            && deflate.total_in() == payload.len() as u64
            && start + len < out.len();
        if !is_whole {
            // It holds unread output, which zlib-rs 0.6 does not completely drop on a reset.
            *window = None;
        }
        let shrank = is_whole
            && len < payload.len() + TAIL.len()
            && out[start..start + len].ends_with(&TAIL);
        out.truncate(if shrank { start + len - TAIL.len() } else { start });
        shrank
    }

    /// Returns the window bits for compressing a message of `len` bytes without history for
    /// connections of `window_bits`: equal for connections that can share the result.
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
