use throng_proto::ws::handshake::Key;

use super::*;
use crate::forward::{BadUpgrade, check_upgrade, write_chunk, write_error, write_last_chunk};

const HTTP10: Client = Client { http11: false, ..HTTP11 };
const HEAD: Client = Client { is_head: true, ..HTTP11 };
const LAST: Client = Client { keep_alive: false, ..HTTP11 };

#[test]
fn rfc9110_7_6_1_the_framing_and_the_connection_are_the_clients_hops() {
    use Framing::{Chunked, Empty, Length, UntilClose};
    let chunked = "Transfer-Encoding: chunked\r\n";
    let close = "Connection: close\r\n";
    let keep = "Connection: keep-alive\r\n";
    // Status and lines of the backend; the client; the forwarded lines; the framing of the body.
    let table: [(&str, &str, Client, String, Framing); 26] = [
        (
            "200 OK",
            "Content-Length: 05\r\nX: y\r\n",
            HTTP11,
            "X: y\r\nContent-Length: 5\r\n".into(),
            Length(5),
        ),
        ("200 OK", "Content-Length: 0\r\n", HTTP11, "Content-Length: 0\r\n".into(), Length(0)),
        (
            "200 OK",
            "Content-Length: 5\r\n",
            LAST,
            format!("Content-Length: 5\r\n{close}"),
            Length(5),
        ),
        (
            "200 OK",
            "Content-Length: 5\r\n",
            HTTP10,
            format!("Content-Length: 5\r\n{keep}"),
            Length(5),
        ),
        (
            "200 OK",
            "Content-Length: 5\r\nConnection: close\r\n",
            HTTP11,
            "Content-Length: 5\r\n".into(),
            Length(5),
        ),
        ("200 OK", "Transfer-Encoding: CHUNKED\r\n", HTTP11, chunked.into(), Chunked),
        ("200 OK", chunked, LAST, format!("{chunked}{close}"), Chunked),
        ("200 OK", chunked, HTTP10, close.into(), UntilClose),
        ("200 OK", "", HTTP11, chunked.into(), Chunked),
        ("200 OK", "", HTTP10, close.into(), UntilClose),
        (
            "200 OK",
            "Trailer: ETag\r\nTransfer-Encoding: chunked\r\n",
            HTTP11,
            format!("Trailer: ETag\r\n{chunked}"),
            Chunked,
        ),
        (
            "200 OK",
            "Trailer: ETag\r\nTransfer-Encoding: chunked\r\n",
            HTTP10,
            close.into(),
            UntilClose,
        ),
        ("200 OK", "Content-Length: 5\r\n", HEAD, "Content-Length: 5\r\n".into(), Empty),
        ("200 OK", chunked, HEAD, String::new(), Empty),
        ("200 OK", "", HEAD, String::new(), Empty),
        (
            "304 Not Modified",
            "Content-Length: 5\r\nETag: x\r\n",
            HTTP11,
            "Content-Length: 5\r\nETag: x\r\n".into(),
            Empty,
        ),
        ("204 No Content", "Content-Length: 5\r\n", HTTP11, String::new(), Empty),
        ("204 No Content", "Content-Length: 5\r\n", HEAD, String::new(), Empty),
        (
            "103 Early Hints",
            "Link: a\r\nConnection: close\r\nContent-Length: 1\r\n",
            HTTP11,
            "Link: a\r\n".into(),
            Empty,
        ),
        ("100 Continue", "", LAST, String::new(), Empty),
        (
            "200 OK",
            "Keep-Alive: timeout=5\r\nProxy-Authenticate: x\r\n\
                 Proxy-Connection: x\r\nUpgrade: h2c\r\nContent-Length: 1\r\n",
            HTTP11,
            "Content-Length: 1\r\n".into(),
            Length(1),
        ),
        (
            "200 OK",
            "Connection: X-Own, Set-Cookie, Content-Length, ETag\r\nX-Own: 1\r\n\
                 Set-Cookie: a=b\r\nETag: c\r\nContent-Length: 1\r\n",
            HTTP11,
            "Set-Cookie: a=b\r\nETag: c\r\nContent-Length: 1\r\n".into(),
            Length(1),
        ),
        (
            "426 Upgrade Required",
            "Upgrade: h2c, WebSocket\r\nConnection: Upgrade\r\n\
                 Content-Length: 0\r\n",
            HTTP11,
            "Content-Length: 0\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n".into(),
            Length(0),
        ),
        (
            "426 Upgrade Required",
            "Upgrade: websocket\r\nContent-Length: 0\r\n",
            LAST,
            "Content-Length: 0\r\nConnection: Upgrade, close\r\n\
                 Upgrade: websocket\r\n"
                .into(),
            Length(0),
        ),
        (
            "426 Upgrade Required",
            "Upgrade: websocket\r\nContent-Length: 0\r\n",
            HTTP10,
            format!("Content-Length: 0\r\n{keep}"),
            Length(0),
        ),
        (
            "101 Switching Protocols",
            "Upgrade: WebSocket\r\nConnection: upgrade\r\n\
                 Sec-WebSocket-Accept: x\r\nSec-WebSocket-Extensions: y\r\n\
                 Content-Length: 7\r\n",
            LAST,
            "Sec-WebSocket-Accept: x\r\nSec-WebSocket-Extensions: y\r\n\
                 Connection: Upgrade\r\nUpgrade: websocket\r\n"
                .into(),
            Empty,
        ),
    ];
    for (status, lines, to, left, framing) in table {
        for version in ["HTTP/1.1", "HTTP/1.0"] {
            if version == "HTTP/1.0" && lines.contains("Transfer-Encoding") {
                continue; // refused by the decoder
            }
            let (text, framed) = answered(&format!("{version} {status}\r\n{lines}\r\n"), &to, None);
            assert_eq!(
                text,
                format!("HTTP/1.1 {status}\r\n{left}\r\n"),
                "{status} {lines:?} {to:?}"
            );
            assert_eq!(framed, framing, "{status} {lines:?} {to:?}");
        }
    }
}

#[test]
fn an_interim_answer_is_not_for_http10_and_a_cookie_not_for_an_interim_one() {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n";
    assert_eq!(answered(hints, &HTTP10, Some("a=b")).0, "");
    assert_eq!(answered(hints, &HTTP11, Some("a=b")).0, hints);
    for status in ["200 OK", "101 Switching Protocols", "502 Bad Gateway"] {
        let head = format!("HTTP/1.1 {status}\r\nSet-Cookie: c=d\r\n\r\n");
        let (text, _) = answered(&head, &HTTP11, Some("a=b; Path=/"));
        assert_eq!(lines_of(&text, "Set-Cookie"), ["Set-Cookie: c=d", "Set-Cookie: a=b; Path=/"]);
    }
}

#[test]
fn a_header_that_is_no_utf8_passes_as_it_is() {
    let mut bytes =
        b"HTTP/1.1 200 \xff\r\nDate: d\r\nX: \xe9t\xe9\r\nContent-Length: 0\r\n\r\n".to_vec();
    let (mut decoder, mut input) = (ResponseDecoder::new(), Input::new(&mut bytes));
    let event = decoder.next_event(&mut input, &Limits::default());
    let Ok(Some(ResponseEvent::Head(response))) = event else { panic!("{event:?}") };
    let mut out = Vec::new();
    write_response(&mut out, &response, &HTTP11, None);
    assert_eq!(out, b"HTTP/1.1 200 \r\nDate: d\r\nX: \xe9t\xe9\r\nContent-Length: 0\r\n\r\n");
}

#[test]
fn rfc6455_4_1_a_101_must_answer_the_clients_key() {
    let key = Key::parse(b"dGhlIHNhbXBsZSBub25jZQ==").unwrap();
    let good = "Upgrade: WebSocket\r\nConnection: keep-alive, upgrade\r\n\
        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n";
    let check = |version: &str, lines: &str, key| {
        let head = format!("{version} 101 S\r\n{lines}\r\n");
        with_response(&head, false, |response| check_upgrade(response, key)).unwrap()
    };
    let change = |from: &str, to: &str| {
        assert!(good.contains(from));
        check("HTTP/1.1", &good.replace(from, to), Some(&key))
    };
    assert_eq!(check("HTTP/1.1", good, Some(&key)), Ok(()));
    assert_eq!(check("HTTP/1.1", good, None), Err(BadUpgrade::Unasked));
    assert_eq!(check("HTTP/1.0", good, Some(&key)), Err(BadUpgrade::Version));
    assert_eq!(change(": WebSocket", ": h2c"), Err(BadUpgrade::Upgrade));
    assert_eq!(change(": WebSocket", ": websocket, h2c"), Err(BadUpgrade::Upgrade));
    assert_eq!(change("Upgrade: WebSocket\r\n", ""), Err(BadUpgrade::Upgrade));
    assert_eq!(change(", upgrade", ""), Err(BadUpgrade::Connection));
    assert_eq!(change("s3p", "S3p"), Err(BadUpgrade::Accept));
    assert_eq!(change("Sec-WebSocket-Accept", "X"), Err(BadUpgrade::Accept));
    let twice = format!("{good}Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n");
    assert_eq!(check("HTTP/1.1", &twice, Some(&key)), Err(BadUpgrade::Accept));
    // The terms of the two ends are forwarded unchanged.
    let more = format!("{good}Sec-WebSocket-Extensions: x\r\nSec-WebSocket-Protocol: y\r\n");
    assert_eq!(check("HTTP/1.1", &more, Some(&key)), Ok(()));
}

#[test]
fn a_body_in_chunks_is_chunked_again_with_its_trailers() {
    let mut bytes =
        b"HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n\
        00011;x\r\n, this is a world\r\n0\r\nETag: \"z\"\r\nChecksum: 7\r\n\
        X-Forwarded-For: 6.6.6.6\r\nX_Real_IP: 6.6.6.6\r\nSec-WebSocket-Key: x\r\n\r\n"
            .to_vec();
    let (mut decoder, mut input) = (ResponseDecoder::new(), Input::new(&mut bytes));
    let mut out = Vec::new();
    loop {
        match decoder.next_event(&mut input, &Limits::default()).unwrap() {
            Some(ResponseEvent::Head(response)) => {
                write_response(&mut out, &response, &HTTP11, None);
            }
            Some(ResponseEvent::Body(piece)) => write_chunk(&mut out, piece),
            Some(ResponseEvent::End) => break,
            None => panic!("it is all there"),
        }
    }
    write_chunk(&mut out, b"");
    write_last_chunk(&mut out, decoder.trailers());
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "HTTP/1.1 200 OK\r\nDate: d\r\nTransfer-Encoding: chunked\r\n\r\n\
         16\r\nhello, this is a world\r\n0\r\nETag: \"z\"\r\nChecksum: 7\r\n\r\n"
    );
}

#[test]
fn rfc9110_6_6_1_an_answer_without_a_date_gets_that_of_now() {
    let added = format!("Date: {DATE}");
    for head in [
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.0 404 Not Found\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\n\r\n",
    ] {
        let (text, _) = answer_written(head, &HTTP11, None);
        assert_eq!(lines_of(&text, "Date"), [&*added], "{text}");
    }
    let dated = "HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n";
    let (text, _) = answer_written(dated, &HTTP11, None);
    assert_eq!(lines_of(&text, "Date"), ["date: Thu, 01 Jan 1970 00:00:00 GMT"]);
    let (text, _) = answer_written("HTTP/1.1 103 Early Hints\r\n\r\n", &HTTP11, None);
    assert_eq!(lines_of(&text, "Date"), [""; 0]);
}

#[test]
fn own_answers_name_the_reason() {
    let text = "the backend refused the connection";
    let said = |status, to: &Client| {
        let mut out = Vec::new();
        write_error(&mut out, status, text, to);
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        said(502, &LAST),
        format!(
            "HTTP/1.1 502 Bad Gateway\r\nDate: {DATE}\r\n\
             Content-Type: text/plain; charset=utf-8\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{text}\n",
            text.len() + 1
        )
    );
    assert!(said(503, &HTTP11).contains("Retry-After: 1\r\n"));
    assert!(!said(504, &HTTP11).contains("Retry-After"));
    assert!(said(504, &HTTP10).contains("Connection: keep-alive\r\n"));
    assert!(said(502, &HEAD).ends_with("\r\n\r\n"), "no body for HEAD");
    for status in [400, 408, 413, 414, 417, 431, 500, 501, 502, 503, 504, 505] {
        let whole = said(status, &HTTP11);
        assert!(!whole.starts_with(&format!("HTTP/1.1 {status} Error")), "{whole}");
        let length = with_response(&whole, false, |response| response.body_length());
        assert_eq!(length, Ok(BodyLength::Known(text.len() as u64 + 1)));
    }
}
