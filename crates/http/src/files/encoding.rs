//! Selection of a precompressed file.

use throng_proto::http1::HeaderLines;

use crate::coding;

/// The encoding of a compressed file that may exist beside a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Brotli,
    Gzip,
}

impl Encoding {
    /// Returns the encodings that the client accepts. The smaller encoding comes first, regardless
    /// of the client's preference: size matters to both sides.
    pub(super) fn accepted(lines: HeaderLines<'_>) -> impl Iterator<Item = Self> {
        [Self::Brotli, Self::Gzip].into_iter().filter(move |encoding| encoding.is_accepted(lines))
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gzip",
        }
    }

    pub(super) const fn extension(self) -> &'static str {
        match self {
            Self::Brotli => "br",
            Self::Gzip => "gz",
        }
    }

    fn is_accepted(self, lines: HeaderLines<'_>) -> bool {
        match self {
            Self::Brotli => coding::is_accepted(lines, &["br"]),
            Self::Gzip => coding::accepts_gzip(lines),
        }
    }
}
