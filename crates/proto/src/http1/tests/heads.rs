//! Start lines and field lines:
//! [RFC 9112 section 2](https://www.rfc-editor.org/rfc/rfc9112#section-2),
//! [RFC 9112 section 3](https://www.rfc-editor.org/rfc/rfc9112#section-3) and
//! [RFC 9112 section 5](https://www.rfc-editor.org/rfc/rfc9112#section-5).

use super::*;
use crate::http1::head::{HeadScan, PartialHead};
use crate::http1::target::RequestLine;
use crate::http1::{BodyLength, Request, SavedRequest, TargetForm};

/// Passes the first request of `bytes` to `check`.
fn with_request(bytes: &str, check: impl FnOnce(Request<'_>)) {
    let mut bytes = bytes.as_bytes().to_vec();
    let mut decoder = Decoder::new();
    let mut input = Input::new(&mut bytes);
    match decoder.next_event(&mut input, &Limits::default()) {
        Ok(Some(Event::Head(request))) => check(request),
        other => panic!("{other:?}"),
    };
}

#[test]
fn an_idle_decoder_is_small() {
    assert!(size_of::<Decoder>() <= 40, "{}", size_of::<Decoder>());
    assert!(size_of::<ResponseDecoder>() <= 40, "{}", size_of::<ResponseDecoder>());
}

#[test]
fn rfc9112_2_2_lines_end_in_crlf() {
    for text in [
        "GET / HTTP/1.1\nHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\n",
        "GET / HTTP/1.1\nHost: a\n\n",
        "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(failure(text), Some(Error::BareLineFeed), "{text:?}");
    }
}

#[test]
fn rfc9112_2_2_a_bare_cr_is_refused() {
    for text in [
        "GET / HTTP/1.1\rHost: a\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\rY: b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n\r\r\n\r\n",
        "\rGET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET\r/ HTTP/1.1\r\nHost: a\r\n\r\n",
    ] {
        assert_eq!(failure(text).map(Error::status), Some(400), "{text:?}");
    }
}

#[test]
fn rfc9112_2_2_one_empty_line_before_a_request_is_ignored() {
    assert_eq!(ends(&whole("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n")), 1);
    let twice = "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(failure(twice), Some(Error::BadRequestLine));
    // Each request of a connection may have one.
    let after = "GET / HTTP/1.1\r\nHost: a\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(ends(&whole(after)), 2);
}

#[test]
fn rfc9112_2_2_white_space_between_the_start_line_and_the_first_field_is_refused() {
    let text = "GET / HTTP/1.1\r\n Host: a\r\n\r\n";
    assert_eq!(failure(text), Some(Error::FoldedLine));
}

#[test]
fn rfc9112_2_3_versions() {
    let line = |version: &str| format!("GET / {version}\r\nHost: a\r\n\r\n");
    for version in ["HTTP/1.1", "HTTP/1.0", "HTTP/1.2", "HTTP/1.9"] {
        assert_eq!(ends(&whole(line(version))), 1, "{version}");
    }
    for version in ["HTTP/2.0", "HTTP/0.9", "HTTP/3.0", "HTTP/9.9"] {
        assert_eq!(failure(line(version)), Some(Error::UnsupportedVersion), "{version}");
    }
    for version in [
        "http/1.1",
        "HTTP/1",
        "HTTP/11",
        "HTTP/1.10",
        "HTTP/1.",
        "HTTP/.1",
        "HTTP/1,1",
        "HTTP 1.1",
        "HTTP/a.b",
        "HTTPS/1.1",
        "ICY/1.1",
    ] {
        assert_eq!(failure(line(version)).map(Error::status), Some(400), "{version}");
    }
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    assert_eq!(failure(preface).map(Error::status), Some(505));
}

#[test]
fn rfc9112_3_the_request_line_has_three_parts_and_single_spaces() {
    for line in [
        "GET /",
        "GET",
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        "GET / HTTP/1.1 ",
        " GET / HTTP/1.1",
        "GET\t/ HTTP/1.1",
        "GET /\tHTTP/1.1",
        "GET /a b HTTP/1.1",
        "GET HTTP/1.1",
        "GET / ",
        "G@T / HTTP/1.1",
        "GET: / HTTP/1.1",
        "G\u{e9}T / HTTP/1.1",
    ] {
        let status = failure(format!("{line}\r\nHost: a\r\n\r\n")).map(Error::status);
        assert_eq!(status, Some(400), "{line:?}");
    }
}

#[test]
fn another_protocol_is_refused_at_its_first_byte() {
    for bytes in [&b"\x16\x03\x01"[..], b"\0", b"{\"a\":1}", b" "] {
        assert_eq!(failure(bytes), Some(Error::BadRequestLine), "{bytes:?}");
    }
}

#[test]
fn rfc9112_3_2_the_forms_of_a_target() {
    type Case =
        (&'static str, &'static str, TargetForm, &'static str, Option<&'static str>, &'static str);
    let cases: [Case; 15] = [
        ("GET", "/", TargetForm::Origin, "/", None, "h"),
        ("GET", "/a/b?c=d", TargetForm::Origin, "/a/b", Some("c=d"), "h"),
        ("GET", "/?", TargetForm::Origin, "/", Some(""), "h"),
        ("GET", "/a?b?c", TargetForm::Origin, "/a", Some("b?c"), "h"),
        ("GET", "//x/y", TargetForm::Origin, "//x/y", None, "h"),
        ("GET", "/q?{|}\"^`\\", TargetForm::Origin, "/q", Some("{|}\"^`\\"), "h"),
        ("GET", "http://o/p?q", TargetForm::Absolute, "/p", Some("q"), "o"),
        ("GET", "HTTPS://o:8/", TargetForm::Absolute, "/", None, "o:8"),
        ("GET", "ws://o", TargetForm::Absolute, "/", None, "o"),
        ("GET", "http://o?q", TargetForm::Absolute, "/", Some("q"), "o"),
        ("GET", "http://[::1]:80/p", TargetForm::Absolute, "/p", None, "[::1]:80"),
        ("OPTIONS", "*", TargetForm::Asterisk, "*", None, "h"),
        ("OPTIONS", "http://o", TargetForm::Absolute, "*", None, "o"),
        ("CONNECT", "o:443", TargetForm::Authority, "", None, "o:443"),
        ("CONNECT", "[::1]:443", TargetForm::Authority, "", None, "[::1]:443"),
    ];
    for (method, target, form, path, query, host) in cases {
        with_request(&format!("{method} {target} HTTP/1.1\r\nHost: h\r\n\r\n"), |request| {
            assert_eq!(request.method(), method);
            assert_eq!(request.target(), target);
            assert_eq!(request.target_form(), form, "{target}");
            assert_eq!((request.path(), request.query()), (path, query), "{target}");
            assert_eq!(request.host(), Some(host), "{target}");
        });
    }
}

#[test]
fn rfc9112_3_2_invalid_targets_are_refused() {
    for line in [
        "GET * HTTP/1.1",
        "GET o:443 HTTP/1.1",
        "GET a/b HTTP/1.1",
        "GET ?q HTTP/1.1",
        "GET ftp://o/ HTTP/1.1",
        "GET http:///p HTTP/1.1",
        "GET http://:80/p HTTP/1.1",
        "GET http://user@o/p HTTP/1.1",
        "GET http://user:pass@o/p HTTP/1.1",
        "GET http:o/p HTTP/1.1",
        "GET /a#b HTTP/1.1",
        "GET /\u{e9} HTTP/1.1",
        "GET /\u{7f} HTTP/1.1",
        "GET /\u{1} HTTP/1.1",
        "CONNECT / HTTP/1.1",
        "CONNECT o HTTP/1.1",
        "CONNECT o: HTTP/1.1",
        "CONNECT :443 HTTP/1.1",
        "CONNECT [::1] HTTP/1.1",
        "CONNECT http://o:443/ HTTP/1.1",
        "OPTIONS ** HTTP/1.1",
    ] {
        let text = format!("{line}\r\nHost: a\r\n\r\n");
        assert_eq!(failure(text), Some(Error::BadTarget), "{line:?}");
    }
}

#[test]
fn rfc9112_3_2_host_is_needed_exactly_once() {
    assert_eq!(failure("GET / HTTP/1.1\r\n\r\n"), Some(Error::MissingHost));
    assert_eq!(failure("GET http://o/ HTTP/1.1\r\n\r\n"), Some(Error::MissingHost));
    assert_eq!(failure(with_lines("Host: a\r\n")), Some(Error::RepeatedHost));
    assert_eq!(failure(with_lines("hOST: b\r\n")), Some(Error::RepeatedHost));
    assert_eq!(ends(&whole("GET / HTTP/1.0\r\n\r\n")), 1);
    let twice = "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n";
    assert_eq!(failure(twice), Some(Error::RepeatedHost));
}

#[test]
fn rfc9112_3_2_host_is_a_host_with_an_optional_port() {
    let line = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    for host in [
        "",
        "a",
        "example.com",
        "example.com:80",
        "a:",
        "127.0.0.1:9001",
        "[::1]",
        "[2001:db8::1]:8080",
        "x_y.example",
        "%41",
    ] {
        with_request(&line(host), |request| assert_eq!(request.host(), Some(host)));
    }
    for host in [
        "a b",
        "a/b",
        "a?b",
        "a#b",
        "u@a",
        "a:b",
        "a:80:80",
        "a:123456",
        "[::1",
        "::1",
        "[::1]x",
        "[]",
        "[g::1]",
        "a\\b",
        "a, b",
        "\u{e9}.example",
        "http://a",
    ] {
        assert_eq!(failure(line(host)), Some(Error::BadHost), "{host:?}");
    }
}

#[test]
fn rfc9112_5_1_no_white_space_between_name_and_colon() {
    for lines in
        ["X : a\r\n", "X\t: a\r\n", "Content-Length : 5\r\n", "Transfer-Encoding : chunked\r\n"]
    {
        assert_eq!(failure(with_lines(lines)), Some(Error::SpaceBeforeColon), "{lines:?}");
    }
}

#[test]
fn rfc9112_5_1_a_name_is_a_token() {
    for lines in [
        ": a\r\n",
        "X\r\n",
        "X(a): b\r\n",
        "X\0: b\r\n",
        "X\u{e9}: b\r\n",
        "\u{7f}: b\r\n",
        "@: b\r\n",
    ] {
        assert_eq!(failure(with_lines(lines)), Some(Error::BadFieldName), "{lines:?}");
    }
}

#[test]
fn rfc9112_5_2_line_folding_is_refused() {
    for lines in ["X: a\r\n b\r\n", "X: a\r\n\tb\r\n", "X: a\r\n \r\n", "X:\r\n Y: b\r\n"] {
        assert_eq!(failure(with_lines(lines)), Some(Error::FoldedLine), "{lines:?}");
    }
}

#[test]
fn rfc9110_5_5_control_characters_in_values_are_refused() {
    for byte in (0u8..0x20).chain([0x7f]).filter(|byte| !matches!(byte, b'\t' | b'\n')) {
        for padding in 0..9 {
            let padding = "x".repeat(padding);
            let lines = format!("X: {padding}{}{padding}\r\n", byte as char);
            assert_eq!(failure(with_lines(&lines)), Some(Error::BadFieldValue), "{lines:?}");
        }
    }
    let mut bytes = with_lines("X: ").into_bytes();
    bytes.truncate(bytes.len() - 2);
    bytes.extend_from_slice(b"\x80\xff\tz\r\n\r\n");
    assert_eq!(ends(&whole(bytes)), 1, "tabs and bytes beyond ASCII may stand in a value");
}

#[test]
fn headers_are_found_case_insensitively_and_trimmed() {
    let text =
        with_lines("X-One:1\r\nx-two: \t two words \t\r\nX-ONE: again\r\nEmpty:\r\nXX-One: no\r\n");
    with_request(&text, |request| {
        assert_eq!(request.header("x-one"), Some("1"));
        assert_eq!(request.header("X-TWO"), Some("two words"));
        assert_eq!(request.header("empty"), Some(""));
        assert_eq!(request.header("x-on"), None);
        assert_eq!(request.header(""), None);
        assert_eq!(request.values("X-One").collect::<Vec<_>>(), ["1", "again"]);
        let names: Vec<_> = request.headers().map(|header| header.name).collect();
        assert_eq!(names, ["Host", "X-One", "x-two", "X-ONE", "Empty", "XX-One"]);
    });
}

#[test]
fn a_value_that_is_not_utf8_is_available_as_bytes_only() {
    let mut bytes = b"GET / HTTP/1.1\r\nHost: a\r\nX: \xff\r\nX: b\r\n\r\n".to_vec();
    let mut decoder = Decoder::new();
    let event = decoder.next_event(&mut Input::new(&mut bytes), &Limits::default());
    let Ok(Some(Event::Head(request))) = event else { panic!() };
    assert_eq!(request.header("x"), None);
    assert_eq!(request.header_bytes("x"), Some(&b"\xff"[..]));
    assert_eq!(request.values("x").collect::<Vec<_>>(), ["b"]);
}

#[test]
fn rfc9112_9_3_persistence() {
    for (minor, connection, expected) in [
        (1, "", true),
        (1, "Connection: close\r\n", false),
        (1, "Connection: CLOSE\r\n", false),
        (1, "Connection: keep-alive, close\r\n", false),
        (1, "Connection: keep-alive\r\nConnection: x, close\r\n", false),
        (1, "Connection: closed\r\n", true),
        (0, "", false),
        (0, "Connection: keep-alive\r\n", true),
        (0, "Connection: Keep-Alive, Upgrade\r\n", true),
        (0, "Connection: keep-alive, close\r\n", false),
        (1, "Connection: ,, \tcLoSe\t,\r\n", false),
        (1, "connection:Upgrade,close\r\n", false),
        (1, "Connection: close\r\nConnection: keep-alive\r\n", false),
        (1, "Connection: \"close\"\r\n", true),
        (1, "Connection: close x\r\n", true),
        (1, "Proxy-Connection: close\r\n", true),
        (0, "Connection: x\r\nCONNECTION: KEEP-ALIVE\r\n", true),
        (0, "Keep-Alive: timeout=5\r\n", false),
        (2, "", true),
    ] {
        let text = format!("GET / HTTP/1.{minor}\r\nHost: a\r\n{connection}\r\n");
        with_request(&text, |request| assert_eq!(request.keep_alive(), expected, "{text:?}"));
    }
}

#[test]
fn rfc9112_9_6_input_after_a_last_request_is_discarded() {
    let first = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    for after in ["GET / HTTP/1.1\r\nHost: a\r\n\r\n", "garbage\n\n", "\0"] {
        let seen = whole(format!("{first}{after}"));
        assert_eq!(seen.len(), 2, "{seen:?}");
        assert_eq!(seen[1], Seen::End);
    }
}

#[test]
fn rfc9110_7_8_upgrade_leaves_the_next_protocols_bytes() {
    let head = with_lines("Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n").into_bytes();
    for cut in 0..head.len() {
        let mut decoder = Decoder::new();
        let limits = Limits::default();
        let mut first = head[..cut].to_vec();
        let mut input = Input::new(&mut first);
        assert!(matches!(decoder.next_event(&mut input, &limits), Ok(None)), "cut at {cut}");
        let mut second = [&head[cut..], b"\x81\x85frame"].concat();
        let mut input = Input::new(&mut second);
        match decoder.next_event(&mut input, &limits) {
            Ok(Some(Event::Head(request))) => assert!(request.wants_upgrade()),
            other => panic!("{other:?}, cut at {cut}"),
        }
        assert_eq!(input.as_slice(), b"\x81\x85frame", "at the head, cut at {cut}");
        assert!(matches!(decoder.next_event(&mut input, &limits), Ok(Some(Event::End))));
        assert_eq!(input.as_slice(), b"\x81\x85frame", "at the end, cut at {cut}");
        assert_eq!(decoder.buffered(), 0);
    }
    with_request("GET / HTTP/1.0\r\nConnection: upgrade\r\n\r\n", |request| {
        assert!(!request.wants_upgrade(), "HTTP/1.0 has no upgrades");
    });
}

#[test]
fn rfc9110_10_1_1_expect_100_continue() {
    let post = |minor: u8, expect: &str, framing: &str| {
        format!("POST / HTTP/1.{minor}\r\nHost: a\r\n{expect}{framing}\r\n\r\n")
    };
    let chunked = "Transfer-Encoding: chunked";
    for (minor, expect, framing, expected) in [
        (1, "Expect: 100-continue\r\n", "Content-Length: 1", true),
        (1, "expect:100-Continue \r\n", chunked, true),
        (1, "Expect: 100-CONTINUE\r\nExpect: 100-continue\r\n", chunked, true),
        (1, "Expect: , 100-continue ,\r\n", chunked, true),
        (1, "Expect: 100-continue\r\n", "Content-Length: 0", false),
        (1, "Expect:\r\n", "Content-Length: 1", false),
        (1, "", "Content-Length: 1", false),
        // HTTP/1.0 has no expectations, and there none is refused.
        (0, "Expect: 100-continue\r\n", "Content-Length: 1", false),
        (0, "Expect: more\r\n", "Content-Length: 1", false),
    ] {
        let text = post(minor, expect, framing);
        with_request(&text, |request| assert_eq!(request.expects_continue(), expected, "{text:?}"));
    }
    for expect in
        ["100-continued", "200-ok", "100-continue, more", "100-continue;q=1", "\"100-continue\""]
    {
        let text = post(1, &format!("Expect: {expect}\r\n"), "Content-Length: 1");
        assert_eq!(failure(&text), Some(Error::UnknownExpectation), "{expect}");
    }
    assert_eq!(Error::UnknownExpectation.status(), 417);
}

/// Every byte, in a method, a target, a name, a value and a host.
#[test]
fn every_byte_is_accepted_only_where_it_is_valid() {
    let accepts = |parts: [&[u8]; 3]| failure(parts.concat()).is_none();
    for byte in 0..=255u8 {
        let token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        let after = b"/ HTTP/1.1\r\nHost: a\r\n\r\n";
        for padding in ["", "0123456789abcdefgh"] {
            let case = format!("{byte:#x} after {padding:?}");
            let method = format!("GET{padding}");
            let line = accepts([method.as_bytes(), &[byte], &[b"X ", &after[..]].concat()]);
            // A space ends the method, and `X` is not a target.
            assert_eq!(line, token, "in a method: {case}");
            let target = format!("GET /{padding}");
            let line = accepts([target.as_bytes(), &[byte], b" HTTP/1.1\r\nHost: a\r\n\r\n"]);
            assert_eq!(line, byte.is_ascii_graphic() && byte != b'#', "in a target: {case}");
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX{padding}");
            let name = accepts([head.as_bytes(), &[byte], b"X: y\r\n\r\n"]);
            // A second colon is part of the value.
            assert_eq!(name, token || byte == b':', "in a name: {case}");
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\nX: {padding}");
            let value = accepts([head.as_bytes(), &[byte], b"y\r\n\r\n"]);
            assert_eq!(
                value,
                byte == b'\t' || (byte >= b' ' && byte != 0x7f),
                "in a value: {case}"
            );
            let head = format!("GET / HTTP/1.1\r\nHost: a{padding}");
            let host = accepts([head.as_bytes(), &[byte], b"1\r\n\r\n"]);
            let allowed = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%:".contains(&byte);
            assert_eq!(host, allowed, "in a host: {case}");
        }
    }
}

/// RFC 9112 section 3.2.2: the target's authority wins over Host; Host must still be valid.
#[test]
fn rfc9112_3_2_2_an_absolute_target_overrides_host() {
    let absolute = |host: &str| format!("GET http://target:81/p HTTP/1.1\r\nHost:{host}\r\n\r\n");
    for host in ["", " other", " target:81", " other:1"] {
        with_request(&absolute(host), |request| {
            assert_eq!(request.host(), Some("target:81"));
            assert_eq!(request.header("host"), Some(host.trim()), "the line stays as sent");
            let mut saved = SavedRequest::new();
            saved.save(&request);
            assert_eq!(saved.request().and_then(|request| request.host()), Some("target:81"));
        });
    }
    assert_eq!(failure(absolute(" a/b")), Some(Error::BadHost));
    with_request("GET http://target/p HTTP/1.0\r\n\r\n", |request| {
        assert_eq!((request.host(), request.path()), (Some("target"), "/p"));
    });
}

#[test]
fn rfc9110_9_3_6_connect_names_a_host_and_a_port() {
    with_request("CONNECT example.com:443 HTTP/1.1\r\nHost: other\r\n\r\n", |request| {
        assert_eq!(request.target_form(), TargetForm::Authority);
        assert_eq!(
            (request.host(), request.path(), request.query()),
            (Some("example.com:443"), "", None)
        );
    });
    // A method is case-sensitive: this one is different, and has no authority-form.
    let lower = "connect example.com:443 HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(failure(lower), Some(Error::BadTarget));
}

/// RFC 9110 section 9.3.2 and RFC 9110 section 9.3.7: to the decoder they are ordinary methods,
/// with or without a body.
#[test]
fn rfc9110_9_3_head_and_options_are_ordinary_methods() {
    for (line, path) in
        [("HEAD /x", "/x"), ("OPTIONS *", "*"), ("OPTIONS /x", "/x"), ("TRACE /x", "/x")]
    {
        let text = format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n");
        with_request(&text, |request| {
            assert_eq!(request.path(), path);
            assert!(line.starts_with(request.method()) && !request.has_body());
        });
    }
}

#[test]
fn a_saved_head_is_the_same_request() {
    let mut saved = SavedRequest::new();
    assert!(saved.request().is_none());
    for _ in 0..2 {
        with_request(
            "POST /p?q HTTP/1.1\r\nHost: a\r\nX: y\r\nContent-Length: 3\r\n\r\n",
            |request| {
                saved.save(&request);
            },
        );
        let request = saved.request().expect("saved");
        assert_eq!((request.method(), request.path(), request.query()), ("POST", "/p", Some("q")));
        assert_eq!((request.header("x"), request.host()), (Some("y"), Some("a")));
        assert_eq!(request.body_length(), BodyLength::Known(3));
    }
    saved.clear();
    assert!(saved.request().is_none());
}

#[test]
fn max_header_bytes_is_414_in_the_first_line_and_431_after_it() {
    let limits = Limits { max_header_bytes: 64, ..Limits::default() };
    let fits = |text: &str| requests([text.as_bytes()], &limits);
    let head = |target: usize, value: usize| {
        format!(
            "GET /{} HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "t".repeat(target),
            "v".repeat(value)
        )
    };
    // 16 + 9 + 5 + 2 bytes around the two lengths.
    let frame = head(0, 0).len();
    assert_eq!(ends(&fits(&head(0, 64 - frame))), 1);
    assert_eq!(fits(&head(0, 65 - frame)), [Seen::Failed(Error::HeadTooLarge)]);
    assert_eq!(ends(&fits(&head(64 - frame, 0))), 1);
    assert_eq!(fits(&head(65 - frame, 0)), [Seen::Failed(Error::HeadTooLarge)]);
    assert_eq!(fits(&head(100, 0)), [Seen::Failed(Error::TargetTooLong)]);
    assert_eq!((Error::TargetTooLong.status(), Error::HeadTooLarge.status()), (414, 431));
    // The limit applies to each request of a connection.
    assert_eq!(ends(&fits(&head(0, 64 - frame).repeat(3))), 3);
}

#[test]
fn max_headers_is_431() {
    let limits = Limits { max_headers: 3, ..Limits::default() };
    let text =
        |count: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(count));
    assert_eq!(ends(&requests([text(2).as_bytes()], &limits)), 1);
    let over = requests([text(3).as_bytes()], &limits);
    assert_eq!(over, [Seen::Failed(Error::TooManyHeaders)]);
    assert_eq!(Error::TooManyHeaders.status(), 431);
}

/// ws CVE-2024-37890 and tungstenite CVE-2023-43669: many headers or a long one, sent slowly,
/// exhausted the CPU. Work is counted, not timed: each byte of a slow head may be copied and
/// scanned once.
#[test]
fn a_head_sent_byte_by_byte_is_scanned_once_within_its_limit() {
    for head in [
        format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "v".repeat(16_000)),
        format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "t".repeat(16_000)),
        format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X:y\r\n".repeat(99)),
    ] {
        let limits = Limits::default();
        let mut scanned = 0;
        let mut scan = HeadScan::<RequestLine>::new();
        for length in 1..=head.len() {
            let before = scan.scanned_bytes();
            let complete = scan.advance(&head.as_bytes()[..length], &limits).expect("valid");
            assert_eq!(complete.is_some(), length == head.len());
            assert!(scan.scanned_bytes() >= before);
            scanned += length - before;
        }
        // The CR before each LF is examined twice, since it waits for the LF.
        assert!(scanned <= head.len() + 2 * 102, "each byte once, not once per byte that follows");

        let seen = requests(head.as_bytes().chunks(1), &limits);
        assert_eq!(ends(&seen), 1);
    }
    // An endless head: memory stays at the limit, which `requests` asserts after each byte.
    let limits = Limits { max_header_bytes: 300, ..Limits::default() };
    let endless = format!("GET / HTTP/1.1\r\nX: {}", "v".repeat(1000));
    let seen = requests(endless.as_bytes().chunks(1), &limits);
    assert_eq!(seen, [Seen::Failed(Error::HeadTooLarge)]);
}

#[test]
fn the_decoder_reports_its_position_for_deadlines() {
    let limits = Limits::default();
    let mut decoder = Decoder::new();
    assert!(decoder.is_between_requests() && !decoder.is_in_head());
    let feed = |decoder: &mut Decoder, text: &str| {
        let mut bytes = text.as_bytes().to_vec();
        let mut input = Input::new(&mut bytes);
        while let Ok(Some(_)) = decoder.next_event(&mut input, &limits) {}
    };
    feed(&mut decoder, "POST / HT");
    assert!(!decoder.is_between_requests() && decoder.is_in_head());
    assert_eq!(decoder.buffered(), 9);
    feed(&mut decoder, "TP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n");
    assert!(!decoder.is_between_requests() && !decoder.is_in_head());
    assert_eq!(decoder.buffered(), 0);
    feed(&mut decoder, "ab");
    assert!(decoder.is_between_requests() && !decoder.is_closed());
    feed(&mut decoder, "GET / HTTP/1.0\r\n\r\n");
    assert!(decoder.is_closed() && !decoder.is_between_requests());
}

#[test]
fn an_unfinished_head_uses_no_more_memory_than_its_limit() {
    let limits = Limits { max_header_bytes: 300, ..Limits::default() };
    let mut partial = PartialHead::<RequestLine>::new(HeadScan::new());
    for read in [&b"GET / HTTP/1.1\r\n"[..], &[b'x'; 284], &[b'y'; 100_000]] {
        let advanced = partial.advance(read, &limits);
        assert!(partial.bytes.len() <= 300 && partial.bytes.capacity() <= 512, "{partial:?}");
        assert!(advanced.is_ok() || partial.bytes.len() == 300);
    }
}
