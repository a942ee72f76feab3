//! Messages that two parsers may frame differently:
//! [RFC 9112 section 11.2](https://www.rfc-editor.org/rfc/rfc9112#section-11.2). Each is refused,
//! and nothing after it is decoded as a request.

use super::*;

/// The head lines, and the error that refuses them.
const TABLE: &[(&str, Error)] = &[
    // Both framings, in either order and in unusual spellings.
    ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", Error::LengthWithEncoding),
    ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", Error::LengthWithEncoding),
    ("Transfer-Encoding: chunked\r\ncontent-length:0\r\n", Error::LengthWithEncoding),
    ("Transfer-Encoding: gzip, chunked\r\nContent-Length: 4\r\n", Error::LengthWithEncoding),
    // Invalid lengths.
    ("Content-Length: +4\r\n", Error::BadContentLength),
    ("Content-Length: -4\r\n", Error::BadContentLength),
    ("Content-Length: 4 4\r\n", Error::BadContentLength),
    ("Content-Length: 4, 4\r\n", Error::BadContentLength),
    ("Content-Length: 4,\r\n", Error::BadContentLength),
    ("Content-Length: 0x4\r\n", Error::BadContentLength),
    ("Content-Length: 4_0\r\n", Error::BadContentLength),
    ("Content-Length: 4.0\r\n", Error::BadContentLength),
    ("Content-Length: 4;a\r\n", Error::BadContentLength),
    ("Content-Length: \"4\"\r\n", Error::BadContentLength),
    ("Content-Length: ٤\r\n", Error::BadContentLength),
    ("Content-Length:\r\n", Error::BadContentLength),
    ("Content-Length: four\r\n", Error::BadContentLength),
    ("Content-Length: 18446744073709551616\r\n", Error::BadContentLength),
    ("Content-Length: 99999999999999999999999999\r\n", Error::BadContentLength),
    // More than one length, equal or not.
    ("Content-Length: 4\r\nContent-Length: 4\r\n", Error::RepeatedContentLength),
    ("Content-Length: 4\r\nContent-Length: 5\r\n", Error::RepeatedContentLength),
    ("Content-Length: 0\r\nX: y\r\ncontent-length: 0\r\n", Error::RepeatedContentLength),
    // Encodings that are not exactly chunked.
    ("Transfer-Encoding: chunked, chunked\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: chunked, gzip\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: identity\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: gzip\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: xchunked\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: chunkedx\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: chunked;q=1\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: \"chunked\"\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: ,chunked\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: chunked,\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: chun ked\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding:\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: gzip, chunked\r\n", Error::UnsupportedTransferEncoding),
    // Hidden from one of two parsers.
    ("Transfer-Encoding : chunked\r\n", Error::SpaceBeforeColon),
    ("Transfer-Encoding\t: chunked\r\n", Error::SpaceBeforeColon),
    (" Transfer-Encoding: chunked\r\n", Error::FoldedLine),
    ("X: y\r\n Transfer-Encoding: chunked\r\n", Error::FoldedLine),
    ("Transfer-Encoding:\r\n chunked\r\n", Error::BadTransferEncoding),
    ("Transfer-Encoding: chunked\n", Error::BareLineFeed),
    ("X: y\nTransfer-Encoding: chunked\r\n", Error::BareLineFeed),
    ("X: y\rTransfer-Encoding: chunked\r\n", Error::BadFieldValue),
    ("Transfer-Encoding: \x0bchunked\r\n", Error::BadFieldValue),
    ("Transfer-Encoding: chunked\0\r\n", Error::BadFieldValue),
    ("Transfer-Encoding\0: chunked\r\n", Error::BadFieldName),
    ("\x0bTransfer-Encoding: chunked\r\n", Error::BadFieldName),
    ("Content-Length\u{a0}: 4\r\n", Error::BadFieldName),
    ("Host: b\r\n", Error::RepeatedHost),
];

#[test]
fn rfc9112_11_2_every_ambiguity_is_refused() {
    for (lines, expected) in TABLE {
        let text = format!(
            "POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\
                Host: a\r\n\r\n"
        );
        assert_eq!(whole(&text), [Seen::Failed(*expected)], "{lines:?}");
        let status = expected.status();
        assert!(status == 400 || status == 501, "{lines:?} gave {status}");
    }
}

#[test]
fn rfc9112_6_1_http10_has_no_transfer_encoding() {
    let text =
        "POST / HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(whole(text), [Seen::Failed(Error::EncodingInHttp10)]);
}

#[test]
fn a_name_similar_to_a_framing_header_is_ignored() {
    for lines in
        ["Content_Length: 4\r\n", "Transfer_Encoding: chunked\r\n", "X-Content-Length: 4\r\n"]
    {
        assert_eq!(ends(&whole(with_lines(lines))), 1, "{lines:?}");
    }
}

#[test]
fn every_error_has_a_status_and_a_sentence() {
    for (_, error) in TABLE {
        assert!(!error.to_string().is_empty());
        assert!(!error.to_string().ends_with('.'), "{error}");
    }
}
