//! Selection of a precompressed file.
//! [RFC 9110 section 12.5.3](https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3).

use throng_proto::http1::HeaderLines;

/// The encoding of a compressed file that may exist beside a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    Brotli,
    Gzip,
}

impl Encoding {
    /// Returns the encodings that the client accepts. The smaller first, whatever the client's
    /// preference: size matters to both sides.
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

    /// Returns whether the encoding is listed with a weight above zero, or not listed and covered
    /// by `*`.
    fn is_accepted(self, lines: HeaderLines<'_>) -> bool {
        let (mut named, mut any) = (None, None);
        let members = lines.all("accept-encoding").flat_map(|value| value.split(','));
        for member in members {
            let (coding, weight) = member.split_once(';').unwrap_or((member, ""));
            let (coding, is_wanted) = (coding.trim(), !is_zero(weight));
            let is_x_gzip = self == Self::Gzip && coding.eq_ignore_ascii_case("x-gzip");
            if coding.eq_ignore_ascii_case(self.name()) || is_x_gzip {
                named = named.or(Some(is_wanted));
            } else if coding == "*" {
                any = any.or(Some(is_wanted));
            }
        }
        named.or(any).unwrap_or(false)
    }
}

/// Returns whether a weight is `q=0`, `q=0.000` and so on; an invalid weight is not zero.
fn is_zero(weight: &str) -> bool {
    let value = weight.trim().strip_prefix(['q', 'Q']).map(str::trim_start);
    let value = value.and_then(|value| value.strip_prefix('=')).map(str::trim);
    value.is_some_and(|value| {
        let mut bytes = value.bytes();
        bytes.next() == Some(b'0') && bytes.all(|byte| matches!(byte, b'.' | b'0'))
    })
}
