//! Encoding followed by decoding returns the original.

use throng_testkit::Random;

use super::cutting::cut;
use super::*;
use crate::http1::encode::{encode_chunk, encode_continue, encode_last_chunk, push_decimal};
use crate::http1::{HeaderName, HeaderValue, InvalidHeader, RequestHead, ResponseHead};

#[test]
fn headers_that_would_split_the_message_are_refused() {
    for value in ["a\r\nSet-Cookie: b", "a\nb", "a\rb", "a\0b", "\u{7f}", "\u{b}"] {
        assert_eq!(HeaderValue::new(value), Err(InvalidHeader::Value), "{value:?}");
        let mut out = Vec::new();
        let head = ResponseHead::start(&mut out, 200, "OK").header("X", value);
        assert_eq!(head.err(), Some(InvalidHeader::Value));
        assert_eq!(out, b"HTTP/1.1 200 OK\r\n", "nothing of it was written");
    }
    for name in ["", "a b", "a:", "a\r\n", "\u{e9}", "a\0"] {
        assert_eq!(HeaderName::new(name), Err(InvalidHeader::Name), "{name:?}");
    }
    assert!(HeaderValue::new("").is_ok());
    assert!(HeaderValue::new("tab\tand \u{e9}").is_ok());
}

#[test]
fn a_reason_that_would_split_the_message_is_omitted() {
    let mut out = Vec::new();
    ResponseHead::start(&mut out, 200, "OK\r\nX: y").finish();
    assert_eq!(out, b"HTTP/1.1 200 \r\n\r\n");
    out.clear();
    ResponseHead::start(&mut out, 1000, "x").finish();
    assert_eq!(out, b"HTTP/1.1 500 x\r\n\r\n");
}

/// Status lines that are written whole equal those that are assembled.
#[test]
fn every_status_line_has_the_same_shape() {
    for (status, reason) in [
        (200, "OK"),
        (200, "Okay"),
        (204, "No Content"),
        (304, "Not Modified"),
        (404, "Not Found"),
        (404, ""),
        (503, "Service Unavailable"),
    ] {
        let mut out = b"before".to_vec();
        ResponseHead::start(&mut out, status, reason).content_length(u64::MAX).finish();
        let expected = format!(
            "beforeHTTP/1.1 {status} {reason}\r\nContent-Length: 18446744073709551615\r\n\r\n"
        );
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}

#[test]
fn an_encoded_request_follows_the_grammar_of_the_decoder() {
    let mut out = b"before".to_vec();
    for (method, target, host, expected) in [
        ("GET", "/a b", "h", Error::BadTarget),
        ("GET", "/\r\nX:y", "h", Error::BadTarget),
        ("G ET", "/", "h", Error::BadRequestLine),
        ("GET", "", "h", Error::BadRequestLine),
        ("GET", "/", "h\r\nX: y", Error::BadHost),
        ("GET", "a", "h", Error::BadTarget),
    ] {
        let head = RequestHead::start(&mut out, method, target, host);
        assert_eq!(head.err(), Some(expected), "{method} {target:?} {host:?}");
        assert_eq!(out, b"before");
    }
}

#[test]
fn encode_then_decode_is_identity_for_requests() {
    let mut random = Random::new(0x5eed_1234_9876_0003);
    for round in 0..500 {
        let body: Vec<u8> = (0..random.below(300)).map(|_| random.bits() as u8).collect();
        let target = format!("/{round}?x={}", random.bits());
        let value = format!("v{}", random.bits());
        let mut out = Vec::new();
        let head = RequestHead::start(&mut out, "POST", &target, "h:1")
            .and_then(|head| head.header("X-Value", &value).map_err(|_| Error::BadFieldValue));
        let head = head.expect("valid");
        let has_trailers = random.below(2) == 0;
        if !has_trailers {
            head.content_length(body.len() as u64).finish();
            out.extend_from_slice(&body);
        } else {
            head.chunked().finish();
            for piece in cut(&mut random, &body) {
                encode_chunk(piece, &mut out);
            }
            encode_chunk(b"", &mut out);
            encode_last_chunk(&[(HeaderName::literal("T"), HeaderValue::literal("v"))], &mut out);
        }
        let seen = requests(cut(&mut random, &out), &Limits::default());
        let Some((Seen::Head(head), rest)) = seen.split_first() else { panic!("{seen:?}") };
        assert!(head.starts_with(&format!("POST /{round} ")), "{head}");
        assert!(head.contains(&value), "{head}");
        let mut expected = Vec::new();
        expected.extend((!body.is_empty()).then_some(Seen::Body(body)));
        expected.extend(has_trailers.then(|| Seen::Trailers("T=v".into())));
        expected.push(Seen::End);
        assert_eq!(rest, expected);
    }
}

#[test]
fn encode_then_decode_is_identity_for_responses() {
    let mut out = Vec::new();
    encode_continue(&mut out);
    ResponseHead::start(&mut out, 200, "OK").content_length(3).finish();
    out.extend_from_slice(b"abc");
    ResponseHead::start(&mut out, 404, "Not Found").chunked().finish();
    encode_chunk(&[b'x'; 0x1234], &mut out);
    encode_last_chunk(&[], &mut out);
    assert_eq!(
        responses([&out[..]], false, true, &Limits::default()),
        [
            Seen::Head("100 Continue Known(0) keep=true".into()),
            Seen::Head("200 OK Known(3) keep=true".into()),
            Seen::Body(b"abc".to_vec()),
            Seen::End,
            Seen::Head("404 Not Found Chunked keep=true".into()),
            Seen::Body(vec![b'x'; 0x1234]),
            Seen::End,
        ]
    );
}

#[test]
fn chunk_sizes_are_written_without_leading_zeros() {
    for (length, size) in
        [(1, "1"), (15, "f"), (16, "10"), (255, "ff"), (256, "100"), (65_536, "10000")]
    {
        let mut out = Vec::new();
        encode_chunk(&vec![b'x'; length], &mut out);
        assert!(out.starts_with(format!("{size}\r\n").as_bytes()), "{length}");
        assert_eq!(out.len(), size.len() + 4 + length);
    }
}

#[test]
fn decimals() {
    for number in [0, 1, 9, 10, 99, 100, 12_345, u64::MAX] {
        let mut out = Vec::new();
        push_decimal(number, &mut out);
        assert_eq!(out, number.to_string().into_bytes());
    }
}
