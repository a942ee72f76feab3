use super::*;
use crate::forward::validate;

/// Requests that two servers could read differently are never written.
#[test]
fn ambiguous_requests_are_refused() {
    for (name, head) in [
        ("CL and TE", "Host: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n"),
        ("TE and CL", "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n"),
        ("two equal lengths", "Host: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n"),
        ("two lengths", "Host: a\r\nContent-Length: 4\r\nContent-Length: 5\r\n"),
        ("a list of lengths", "Host: a\r\nContent-Length: 4, 4\r\n"),
        ("a signed length", "Host: a\r\nContent-Length: +4\r\n"),
        ("a length in hex", "Host: a\r\nContent-Length: 0x4\r\n"),
        ("a length too large", "Host: a\r\nContent-Length: 18446744073709551616\r\n"),
        ("an empty length", "Host: a\r\nContent-Length:\r\n"),
        ("TE gzip", "Host: a\r\nTransfer-Encoding: gzip\r\n"),
        ("TE gzip, chunked", "Host: a\r\nTransfer-Encoding: gzip, chunked\r\n"),
        ("TE chunked, identity", "Host: a\r\nTransfer-Encoding: chunked, identity\r\n"),
        ("TE twice", "Host: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"),
        ("TE xchunked", "Host: a\r\nTransfer-Encoding: xchunked\r\n"),
        ("TE quoted", "Host: a\r\nTransfer-Encoding: \"chunked\"\r\n"),
        ("TE with VT", "Host: a\r\nTransfer-Encoding: \x0bchunked\r\n"),
        ("obs-fold", "Host: a\r\nX: y\r\n z\r\n"),
        ("obs-fold of TE", "Host: a\r\nTransfer-Encoding:\r\n chunked\r\n"),
        ("space first", " Host: a\r\n"),
        ("space before colon", "Host: a\r\nContent-Length : 4\r\n"),
        ("tab before colon", "Host: a\r\nTransfer-Encoding\t: chunked\r\n"),
        ("bare LF", "Host: a\nX: y\r\n"),
        ("bare CR", "Host: a\r\nX: y\rTransfer-Encoding: chunked\r\n"),
        ("NUL", "Host: a\r\nX: y\0\r\n"),
        ("no colon", "Host: a\r\nX\r\n"),
        ("no name", "Host: a\r\n: y\r\n"),
        ("no Host", "X: y\r\n"),
        ("two Hosts", "Host: a\r\nHost: a\r\n"),
        ("Host with a space", "Host: a b\r\n"),
        ("Host with a path", "Host: a/b\r\n"),
        ("Host with user information", "Host: u@a\r\n"),
    ] {
        let head = format!("POST / HTTP/1.1\r\n{head}\r\n");
        assert!(with_request(&head, |_| ()).is_err(), "{name}");
    }
    for line in [
        "GET /\tHTTP/1.1",
        "GET  / HTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / HTTP/2.0",
        "GET / http/1.1",
        "GET a HTTP/1.1",
        "GET /#a HTTP/1.1",
        "GET /\u{e4} HTTP/1.1",
        "GET * HTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET /",
    ] {
        assert!(with_request(&format!("{line}\r\nHost: a\r\n\r\n"), |_| ()).is_err(), "{line}");
    }
    let old = "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(with_request(old, |_| ()), Err(Error::EncodingInHttp10));
}

/// Odd requests that are not refused: the backend reads exactly one framing.
#[test]
fn accepted_requests_are_framed_once() {
    for head in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0004\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\t ,chunked, \r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nConnection: Content-Length\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
                 Connection: Transfer-Encoding\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\
                 Connection: Host\r\nTransfer_Encoding: chunked\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\
                 Content_Length: 40\r\nX-Content-Length: 5\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\
                 TE: chunked\r\nX-Transfer-Encoding: gzip\r\n",
        "GET http://b:8/x?y HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nUpgrade: h2c\r\n\
                 Connection: Upgrade, HTTP2-Settings\r\n",
        "POST /%0d%0aX:y HTTP/1.0\r\nContent-Length: 4\r\n",
        "POST //evil/ HTTP/1.1\r\nHost: a,b;c=\"d\r\nContent-Length: 4\r\n",
    ] {
        let head = format!("{head}\r\n");
        let Ok((sent, refused)) =
            with_request(&head, |request| (meaning(request), validate(request).is_ok()))
        else {
            continue; // refused is as good
        };
        assert!(refused, "{head}");
        let text = forwarded_by(&head, &hop("192.0.2.1", false));
        let read = with_request(&text, meaning).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(read, sent, "{head}");
        assert_eq!(framings(&text), 1, "{text}");
        assert_eq!(lines_of(&text, "Host").len(), 1, "{text}");
        assert!(!text.to_ascii_lowercase().contains("transfer_encoding"), "{text}");
    }
}
