//! Limits on the size of a message.

/// Limits on one HTTP message; all are inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of a head, from its first line to its empty line, and of a trailer section.
    /// Default 16 KiB. A head that arrives in several reads uses at most this much memory.
    /// Exceeding it is answered with 431, or 414 when the request line alone is longer.
    pub max_header_bytes: usize,
    /// Maximum field lines in a head or a trailer section. Default 100; exceeding it is answered
    /// with 431.
    pub max_headers: usize,
    /// Maximum bytes of content, without the framing of chunks. Default 1 MiB; exceeding it is
    /// answered with 413. It also applies to a response that ends with the connection.
    pub max_body: u64,
}

impl Limits {
    /// Upper bound of every setting, because heads are addressed with 32-bit offsets.
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
