//! Protocol errors.

use std::fmt;

/// The rule that a peer violated, or the limit that it exceeded.
///
/// After an error the decoder returns no more events, because the start of the next message is no
/// longer known. Respond with [`status`] and close the connection.
///
/// [`status`]: Error::status
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// The request line is not `method SP target SP version`.
    /// [RFC 9112 section 3](https://www.rfc-editor.org/rfc/rfc9112#section-3).
    BadRequestLine,
    /// The target has no form that the method allows.
    /// [RFC 9112 section 3.2](https://www.rfc-editor.org/rfc/rfc9112#section-3.2).
    BadTarget,
    /// The status line is not `version SP 3DIGIT SP reason`.
    /// [RFC 9112 section 4](https://www.rfc-editor.org/rfc/rfc9112#section-4).
    BadStatusLine,
    /// The version is not `HTTP/` digit `.` digit.
    /// [RFC 9112 section 2.3](https://www.rfc-editor.org/rfc/rfc9112#section-2.3).
    BadVersion,
    /// The major version is not 1.
    /// [RFC 9110 section 15.6.6](https://www.rfc-editor.org/rfc/rfc9110#section-15.6.6).
    UnsupportedVersion,
    /// A line ends in LF without CR.
    /// [RFC 9112 section 2.2](https://www.rfc-editor.org/rfc/rfc9112#section-2.2).
    BareLineFeed,
    /// A field line starts with white space (obsolete line folding).
    /// [RFC 9112 section 5.2](https://www.rfc-editor.org/rfc/rfc9112#section-5.2).
    FoldedLine,
    /// White space between a field name and its colon.
    /// [RFC 9112 section 5.1](https://www.rfc-editor.org/rfc/rfc9112#section-5.1).
    SpaceBeforeColon,
    /// A field name is empty or contains a byte that is not a token character.
    /// [RFC 9110 section 5.1](https://www.rfc-editor.org/rfc/rfc9110#section-5.1).
    BadFieldName,
    /// A field value contains a control character, such as a CR without LF.
    /// [RFC 9110 section 5.5](https://www.rfc-editor.org/rfc/rfc9110#section-5.5).
    BadFieldValue,
    /// An HTTP/1.1 request has no Host.
    /// [RFC 9112 section 3.2](https://www.rfc-editor.org/rfc/rfc9112#section-3.2).
    MissingHost,
    /// There is more than one Host.
    /// [RFC 9112 section 3.2](https://www.rfc-editor.org/rfc/rfc9112#section-3.2).
    RepeatedHost,
    /// Host is not a host with an optional port.
    /// [RFC 9112 section 3.2](https://www.rfc-editor.org/rfc/rfc9112#section-3.2).
    BadHost,
    /// Expect contains an expectation other than 100-continue.
    /// [RFC 9110 section 10.1.1](https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1).
    UnknownExpectation,
    /// Content-Length is not a sequence of digits that fits 64 bits.
    /// [RFC 9112 section 6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3).
    BadContentLength,
    /// There is more than one Content-Length, equal or not.
    /// [RFC 9112 section 6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3).
    RepeatedContentLength,
    /// Content-Length and Transfer-Encoding in one message.
    /// [RFC 9112 section 6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3).
    LengthWithEncoding,
    /// Transfer-Encoding does not end in one `chunked`, or is repeated.
    /// [RFC 9112 section 6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3).
    BadTransferEncoding,
    /// Transfer-Encoding contains a coding other than `chunked`.
    /// [RFC 9112 section 6.1](https://www.rfc-editor.org/rfc/rfc9112#section-6.1).
    UnsupportedTransferEncoding,
    /// Transfer-Encoding in an HTTP/1.0 message.
    /// [RFC 9112 section 6.1](https://www.rfc-editor.org/rfc/rfc9112#section-6.1).
    EncodingInHttp10,
    /// A chunk size is not hexadecimal digits followed by `;` or CRLF, or does not fit 64 bits.
    /// [RFC 9112 section 7.1](https://www.rfc-editor.org/rfc/rfc9112#section-7.1).
    BadChunkSize,
    /// A chunk extension has a control character.
    /// [RFC 9112 section 7.1.1](https://www.rfc-editor.org/rfc/rfc9112#section-7.1.1).
    BadChunkExtension,
    /// Chunk extensions are long in relation to the content.
    /// [RFC 9112 section 7.1.1](https://www.rfc-editor.org/rfc/rfc9112#section-7.1.1).
    ChunkExtensionTooLong,
    /// The data of a chunk is not followed by CRLF.
    /// [RFC 9112 section 7.1](https://www.rfc-editor.org/rfc/rfc9112#section-7.1).
    BadChunkEnd,
    /// A trailer line is not a valid field line.
    /// [RFC 9112 section 7.1.2](https://www.rfc-editor.org/rfc/rfc9112#section-7.1.2).
    BadTrailer,
    /// A trailer has a name that only a header may have, such as Content-Length or Host.
    /// [RFC 9110 section 6.5.1](https://www.rfc-editor.org/rfc/rfc9110#section-6.5.1).
    ForbiddenTrailer,
    /// The request line alone exceeds `max_header_bytes`.
    TargetTooLong,
    /// A head or a trailer section exceeds `max_header_bytes`.
    HeadTooLarge,
    /// A head or a trailer section has more than `max_headers` lines.
    TooManyHeaders,
    /// The content exceeds `max_body`.
    BodyTooLarge,
    /// The connection ended inside a response.
    Truncated,
}

impl Error {
    /// Returns the status of the response: 400, 413, 414, 417, 431, 501 or 505.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::BodyTooLarge => 413,
            Self::TargetTooLong => 414,
            Self::UnknownExpectation => 417,
            Self::HeadTooLarge | Self::TooManyHeaders => 431,
            Self::UnsupportedTransferEncoding => 501,
            Self::UnsupportedVersion => 505,
            _ => 400,
        }
    }

    /// Returns one sentence for the peer, with the violated rule and the expected form.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BadRequestLine => {
                "the request line must be: method, space, target, space, version"
            }
            Self::BadTarget => {
                "the request target has a character that it cannot have, such as #, or a form \
                 that is not for this method"
            }
            Self::BadStatusLine => "the status line must be: version, space, three digits, reason",
            Self::BadVersion => "the version must be written HTTP/1.1 or HTTP/1.0",
            Self::UnsupportedVersion => "only HTTP/1.1 and HTTP/1.0 are supported",
            Self::BareLineFeed => "lines must end in CR LF, not in LF alone",
            Self::FoldedLine => "a header line must not start with white space (line folding)",
            Self::SpaceBeforeColon => {
                "no white space is allowed between a header name and its colon"
            }
            Self::BadFieldName => "a header name is empty or has a character that is not allowed",
            Self::BadFieldValue => "a header value has a control character",
            Self::MissingHost => "an HTTP/1.1 request needs a Host header",
            Self::RepeatedHost => "a request must have one Host header, not several",
            Self::BadHost => "Host must be a host name or address with an optional port",
            Self::UnknownExpectation => "no expectation besides 100-continue is supported",
            Self::BadContentLength => "Content-Length must be a sequence of digits",
            Self::RepeatedContentLength => "a message must have one Content-Length, not several",
            Self::LengthWithEncoding => {
                "a message must not have both Content-Length and Transfer-Encoding"
            }
            Self::BadTransferEncoding => "Transfer-Encoding must be chunked, once",
            Self::UnsupportedTransferEncoding => "no transfer coding besides chunked is supported",
            Self::EncodingInHttp10 => "HTTP/1.0 has no Transfer-Encoding",
            Self::BadChunkSize => "a chunk size must be hexadecimal digits, then CR LF",
            Self::BadChunkExtension => "a chunk extension has a control character",
            Self::ChunkExtensionTooLong => "the chunk extensions are too long",
            Self::BadChunkEnd => "the data of a chunk must be followed by CR LF",
            Self::BadTrailer => "a trailer line is not a valid header line",
            Self::ForbiddenTrailer => "a trailer has a name that is allowed for headers only",
            Self::TargetTooLong => "the request line is too long",
            Self::HeadTooLarge => "the header section is too large",
            Self::TooManyHeaders => "there are too many header lines",
            Self::BodyTooLarge => "the body is too large",
            Self::Truncated => "the connection ended inside a message",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

impl std::error::Error for Error {}
