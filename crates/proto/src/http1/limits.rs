//! How much of a message is accepted.

/// What one HTTP message may cost; all limits are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a head, from its first line to its empty line, and of a trailer section. A head that
    /// arrives in pieces holds at most this much memory. Default 16 KiB; over it 431, or 414 when
    /// the request line alone is longer.
    pub max_header_bytes: usize,
    /// Field lines in a head or a trailer section. Default 100; over it 431.
    pub max_headers: usize,
    /// Bytes of content, without the framing of chunks. Default 1 MiB; over it 413. A response whose
    /// end is the end of the connection is counted too.
    pub max_body: u64,
}

impl Limits {
    /// Heads are addressed with 32-bit offsets, so no setting may go beyond this.
    const MAX_HEADER_BYTES: usize = 1 << 30;

    pub(crate) fn header_bytes(&self) -> usize {
        self.max_header_bytes.min(Self::MAX_HEADER_BYTES)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_header_bytes: 16 << 10, max_headers: 100, max_body: 1 << 20 }
    }
}
