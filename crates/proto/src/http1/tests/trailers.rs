//! The trailer section:
//! [RFC 9112 section 7.1.2](https://www.rfc-editor.org/rfc/rfc9112#section-7.1.2) and
//! [RFC 9110 section 6.5](https://www.rfc-editor.org/rfc/rfc9110#section-6.5).

use super::bodies::chunked;
use super::*;

fn with_trailers(lines: &str) -> String {
    chunked(&format!("1\r\nx\r\n0\r\n{lines}\r\n"))
}

#[test]
fn rfc9112_7_1_2_trailers_are_available_at_the_end_apart_from_the_headers() {
    for (lines, expected) in [
        ("X: y\r\n", "X=y"),
        ("X:\r\nY: \t z \r\n", "X=|Y=z"),
        ("X: 1\r\nx: 2\r\n", "X=1|x=2"),
        ("X: \u{e9}\r\n", "X=\u{e9}"),
    ] {
        let text = with_trailers(lines);
        // Twice, so that the second request has none of the first one's.
        let seen = whole(format!("{text}{}{text}", chunked("0\r\n\r\n")));
        let trailers: Vec<_> = seen
            .iter()
            .filter_map(|seen| match seen {
                Seen::Trailers(lines) => Some(lines.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(trailers, [expected, expected], "{lines:?}");
        assert_eq!(ends(&seen), 3);
        let in_a_head = |seen: &Seen| matches!(seen, Seen::Head(head) if head.contains(expected));
        assert!(!seen.iter().any(in_a_head), "{seen:?}");
    }
}

#[test]
fn rfc9112_7_1_2_a_trailer_follows_the_grammar_of_a_header() {
    for trailer in [
        " X: y\r\n",
        "X : y\r\n",
        "X\r\n",
        ": y\r\n",
        "X: y\n",
        "X: y\r\n z\r\n",
        "X: \0\r\n",
        "X: y\rz\r\n",
        "X\u{e9}: y\r\n",
        "(: y\r\n",
        "\r",
        "\n",
    ] {
        let text = with_trailers(trailer);
        assert_eq!(failure(&text), Some(Error::BadTrailer), "{trailer:?}");
    }
}

#[test]
fn rfc9110_6_5_1_fields_needed_before_the_content_are_refused_as_trailers() {
    for name in [
        "Content-Length",
        "content-length",
        "Transfer-Encoding",
        "Host",
        "Connection",
        "Authorization",
        "Cookie",
        "Content-Type",
        "Content-Encoding",
        "Expect",
        "TRAILER",
    ] {
        let text = with_trailers(&format!("X: y\r\n{name}: 5\r\n"));
        let seen = whole(format!("{text}GET /next HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(seen.last(), Some(&Seen::Failed(Error::ForbiddenTrailer)), "{name}");
        assert_eq!(ends(&seen), 0, "{name}");
        let answer =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{name}: 5\r\n\r\n");
        let seen = responses([answer.as_bytes()], false, true, &Limits::default());
        assert_eq!(seen.last(), Some(&Seen::Failed(Error::ForbiddenTrailer)), "{name}");
    }
    assert_eq!(Error::ForbiddenTrailer.status(), 400);
}

#[test]
fn trailers_have_the_limits_of_a_head() {
    let limits = Limits { max_header_bytes: 80, max_headers: 3, ..Limits::default() };
    let fails = |trailers: &str| {
        let text = chunked(&format!("0\r\n{trailers}"));
        match requests([text.as_bytes()], &limits).pop() {
            Some(Seen::Failed(error)) => error.status(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(fails(&"X: y\r\n".repeat(4)), 431);
    // Neither the digits nor the extension of the last chunk count as trailers.
    let most = format!("0;{}\r\n{}\r\n", "e".repeat(60), "X: y\r\n".repeat(3));
    assert_eq!(ends(&requests([chunked(&most).as_bytes()], &limits)), 1);
    assert_eq!(fails(&format!("X: {}", "y".repeat(100))), 431);
    // For any split of the input: `requests` asserts after each chunk that the limit is not
    // exceeded.
    let endless = chunked(&format!("0\r\nX: {}", "y".repeat(1000)));
    let seen = requests(endless.as_bytes().chunks(1), &limits);
    assert_eq!(seen.last(), Some(&Seen::Failed(Error::HeadTooLarge)));
}

#[test]
fn trailers_last_until_the_next_call_and_are_free_if_absent() {
    let limits = Limits::default();
    for (close, rest) in [("", "GET / HTTP/1.1\r\nHost: a\r\n\r\n"), ("Connection: close\r\n", "x")]
    {
        let mut bytes = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n{close}\r\n0\r\n\
                A: b\r\n\r\n{rest}"
        )
        .into_bytes();
        let mut input = Input::new(&mut bytes);
        let mut decoder = Decoder::new();
        assert!(matches!(decoder.next_event(&mut input, &limits), Ok(Some(Event::Head(_)))));
        assert_eq!(decoder.trailers().first("a"), None);
        assert!(matches!(decoder.next_event(&mut input, &limits), Ok(Some(Event::End))));
        assert_eq!(decoder.trailers().first("a"), Some("b"));
        assert_eq!(decoder.trailers().raw(), b"A: b\r\n");
        assert_eq!((decoder.buffered(), decoder.is_in_head()), (6, false));
        assert_eq!(decoder.is_between_requests(), close.is_empty());
        let next = decoder.next_event(&mut input, &limits).expect("valid");
        assert_eq!(next.is_some(), close.is_empty());
        assert!(decoder.trailers().raw().is_empty());
        assert_eq!(decoder.buffered(), 0);
    }
    // Idle after trailers: the call that finds no event frees them.
    let mut bytes = with_trailers("A: b\r\n").into_bytes();
    let mut input = Input::new(&mut bytes);
    let mut decoder = Decoder::new();
    while let Ok(Some(_)) = decoder.next_event(&mut input, &limits) {}
    assert!(decoder.is_between_requests() && decoder.buffered() == 0);

    let mut bytes = chunked("1\r\nx\r\n0\r\n\r\n").into_bytes();
    let counted = allocation_counter::measure(|| {
        let mut input = Input::new(&mut bytes);
        let mut decoder = Decoder::new();
        while let Ok(Some(_)) = decoder.next_event(&mut input, &limits) {}
    });
    assert_eq!(counted.count_total, 0);
}

/// A trailer section that is almost valid, split at every position: the same trailers, the same
/// error.
#[test]
fn every_split_gives_the_same_trailers() {
    for lines in ["", "A: b\r\n", "A: b\r\nCd:\r\n", "Host: x\r\n", "A\r\n"] {
        let text = format!("{}{}", with_trailers(lines), with_lines(""));
        let expected = whole(&text);
        for at in 0..=text.len() {
            let (first, second) = text.as_bytes().split_at(at);
            let seen = requests([first, second], &Limits::default());
            assert_eq!(seen, expected, "{lines:?} cut at {at}");
        }
        assert_eq!(requests(text.as_bytes().chunks(1), &Limits::default()), expected, "{lines:?}");
    }
}

#[test]
fn rfc9112_7_1_2_a_response_has_trailers_too() {
    let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\
        Server-Timing: a\r\n\r\n";
    for answers in [[text].concat(), [text, text].concat()] {
        let expected = responses([answers.as_bytes()], false, true, &Limits::default());
        let trailers = Seen::Trailers("Server-Timing=a".into());
        let count = answers.len() / text.len();
        assert_eq!(expected.iter().filter(|seen| **seen == trailers).count(), count);
        let dripped = responses(answers.as_bytes().chunks(1), false, true, &Limits::default());
        assert_eq!(dripped, expected);
    }
}
