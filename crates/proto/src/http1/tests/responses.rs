//! The client side: [RFC 9112 section 4](https://www.rfc-editor.org/rfc/rfc9112#section-4),
//! [RFC 9112 section 6.3](https://www.rfc-editor.org/rfc/rfc9112#section-6.3) and
//! [RFC 9112 section 8](https://www.rfc-editor.org/rfc/rfc9112#section-8).

use super::*;

fn seen(text: &str, answers_head: bool, ends: bool) -> Vec<Seen> {
    responses([text.as_bytes()], answers_head, ends, &Limits::default())
}

fn head(text: &str) -> Seen {
    Seen::Head(text.to_owned())
}

fn body(text: &str) -> Seen {
    Seen::Body(text.as_bytes().to_vec())
}

#[test]
fn rfc9112_4_status_lines() {
    let with = |line: &str| seen(&format!("{line}\r\nContent-Length: 0\r\n\r\n"), false, false);
    assert_eq!(with("HTTP/1.1 200 OK")[0], head("200 OK Known(0) keep=true"));
    assert_eq!(with("HTTP/1.1 200 ")[0], head("200  Known(0) keep=true"));
    assert_eq!(with("HTTP/1.1 200")[0], head("200  Known(0) keep=true"));
    assert_eq!(
        with("HTTP/1.1 404 Not\tFound at all")[0],
        head("404 Not\tFound at all Known(0) keep=true")
    );
    assert_eq!(with("HTTP/1.0 200 OK")[0], head("200 OK Known(0) keep=false"));
    assert_eq!(with("HTTP/1.1 999 X")[0], head("999 X Known(0) keep=true"));
    for line in [
        "HTTP/1.1",
        "HTTP/1.1 ",
        "HTTP/1.1 20",
        "HTTP/1.1 2000",
        "HTTP/1.1 2x0 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 +20 OK",
        "HTTP/1.1 099 OK",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1\t200 OK",
        "200 OK",
    ] {
        assert!(matches!(with(line)[..], [Seen::Failed(_)]), "{line:?}");
    }
    assert_eq!(with("HTTP/2.0 200 OK"), [Seen::Failed(Error::UnsupportedVersion)]);
    assert_eq!(with("ICY 200 OK stream"), [Seen::Failed(Error::BadVersion)]);
}

#[test]
fn rfc9112_6_3_how_a_response_ends() {
    assert_eq!(
        seen("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", false, false),
        [head("200 OK Known(2) keep=true"), body("hi"), Seen::End]
    );
    assert_eq!(
        seen(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            false,
            false
        ),
        [head("200 OK Chunked keep=true"), body("hi"), Seen::End]
    );
    assert_eq!(
        seen("HTTP/1.1 200 OK\r\n\r\nhi", false, true),
        [head("200 OK UntilClose keep=false"), body("hi"), Seen::End]
    );
    for status in ["204 No Content", "304 Not Modified"] {
        let text = format!("HTTP/1.1 {status}\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\n\r\n");
        let seen = seen(&text, false, false);
        assert_eq!(seen[1], Seen::End, "{status} has no body");
        assert_eq!(seen[2], head("200 OK UntilClose keep=false"));
    }
}

#[test]
fn rfc9110_9_3_2_a_response_to_head_has_no_body() {
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\n\
        Content-Length: 2\r\n\r\nhi";
    assert_eq!(
        seen(text, true, false),
        [
            head("200 OK Known(0) keep=true"),
            Seen::End,
            head("200 OK Known(2) keep=true"),
            body("hi"),
            Seen::End
        ]
    );
    // Through an interim response too.
    let text =
        "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    assert_eq!(
        seen(text, true, false),
        [head("103 Early Hints Known(0) keep=true"), head("200 OK Known(0) keep=true"), Seen::End]
    );
}

#[test]
fn rfc9110_15_2_interim_responses_precede_the_real_one() {
    let text = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n\
        HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(
        seen(text, false, false),
        [
            head("100 Continue Known(0) keep=true"),
            head("103 Early Hints Known(0) keep=true"),
            head("200 OK Known(0) keep=true"),
            Seen::End
        ]
    );
}

#[test]
fn rfc9110_15_2_2_bytes_after_101_are_left_for_another_protocol() {
    let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n";
    for cut in 0..=answer.len() {
        let mut decoder = ResponseDecoder::new();
        let mut first = answer[..cut].to_vec();
        let mut second = [&answer[cut..], b"\x81\x02hi"].concat();
        for (bytes, left) in [(&mut first, &b""[..]), (&mut second, b"\x81\x02hi")] {
            let mut input = Input::new(bytes);
            // A head and an end are the only events; a decoder that repeats itself must not loop
            // here.
            for _ in 0..4 {
                let event = decoder.next_event(&mut input, &Limits::default());
                assert!(event.is_ok(), "cut at {cut}");
            }
            assert_eq!(input.as_slice(), left, "cut at {cut}");
        }
        assert!(matches!(decoder.handle_end_of_stream(), Ok(None)));
    }
}

#[test]
fn rfc9112_8_a_response_that_was_cut_off_is_an_error() {
    for text in [
        "HTTP/1.1 200",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n",
    ] {
        assert_eq!(seen(text, false, true).pop(), Some(Seen::Failed(Error::Truncated)), "{text:?}");
    }
    assert_eq!(seen("", false, true), []);
    let complete = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(seen(complete, false, true).pop(), Some(Seen::End));
}

#[test]
fn rfc9112_9_6_input_after_a_last_response_is_discarded() {
    let text =
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n";
    let seen = seen(text, false, true);
    assert_eq!(seen, [head("200 OK Known(1) keep=false"), body("x"), Seen::End]);
}

#[test]
fn ambiguous_responses_are_refused_too() {
    for (lines, expected) in [
        ("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", Error::LengthWithEncoding),
        ("Content-Length: 1\r\nContent-Length: 1\r\n", Error::RepeatedContentLength),
        ("Transfer-Encoding: gzip\r\n", Error::BadTransferEncoding),
        ("X: a\r\n b\r\n", Error::FoldedLine),
        ("X: a\n", Error::BareLineFeed),
    ] {
        let text = format!("HTTP/1.1 200 OK\r\n{lines}\r\n");
        assert_eq!(seen(&text, false, false), [Seen::Failed(expected)], "{lines:?}");
    }
}

#[test]
fn limits_hold_for_responses() {
    let limits = Limits { max_header_bytes: 64, max_headers: 2, max_body: 3 };
    let fails = |text: &str| responses([text.as_bytes()], false, false, &limits).pop();
    let long = format!("HTTP/1.1 200 {}", "x".repeat(64));
    assert_eq!(fails(&long), Some(Seen::Failed(Error::HeadTooLarge)));
    let many = "HTTP/1.1 200 OK\r\nA: 1\r\nB: 2\r\nC: 3\r\n\r\n";
    assert_eq!(fails(many), Some(Seen::Failed(Error::TooManyHeaders)));
    let large = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n";
    assert_eq!(fails(large), Some(Seen::Failed(Error::BodyTooLarge)));
    let endless = "HTTP/1.1 200 OK\r\n\r\nmore";
    assert_eq!(fails(endless), Some(Seen::Failed(Error::BodyTooLarge)));
}
