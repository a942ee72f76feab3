//! Content: [RFC 9112 section 6](https://www.rfc-editor.org/rfc/rfc9112#section-6) and
//! [RFC 9112 section 7](https://www.rfc-editor.org/rfc/rfc9112#section-7).

use super::*;

pub(super) fn post(lines: &str, body: &str) -> String {
    format!("POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\n{body}")
}

pub(super) fn chunked(body: &str) -> String {
    post("Transfer-Encoding: chunked\r\n", body)
}

/// Returns the body of the only request, after checking that it ended.
fn body_of(text: &str) -> Vec<u8> {
    match whole(text).as_slice() {
        [Seen::Head(_), Seen::End] => Vec::new(),
        [Seen::Head(_), Seen::Body(body), Seen::End] => body.clone(),
        other => panic!("{text:?} gave {other:?}"),
    }
}

#[test]
fn rfc9112_6_content_length_counts_the_body() {
    assert_eq!(body_of(&post("Content-Length: 5\r\n", "hello")), b"hello");
    assert_eq!(body_of(&post("content-length:0005\r\n", "hello")), b"hello");
    assert_eq!(body_of(&post("Content-Length: 0\r\n", "")), b"");
    assert_eq!(body_of(&post("", "")), b"", "no framing is no body");
}

#[test]
fn rfc9112_6_a_body_on_any_method_is_read() {
    for method in ["GET", "HEAD", "DELETE", "OPTIONS", "BREW"] {
        let one = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nGET");
        assert_eq!(ends(&whole(one.repeat(2))), 2, "{method}");
    }
}

#[test]
fn rfc9112_7_1_chunks_are_joined() {
    for (body, expected) in [
        ("0\r\n\r\n", ""),
        ("5\r\nhello\r\n0\r\n\r\n", "hello"),
        ("1\r\nh\r\n4\r\nello\r\n0\r\n\r\n", "hello"),
        ("A\r\n0123456789\r\na\r\n0123456789\r\n00\r\n\r\n", "01234567890123456789"),
        ("0000000000000005\r\nhello\r\n0000000000000000\r\n\r\n", "hello"),
        ("2\r\n\r\n\r\n0\r\n\r\n", "\r\n"),
    ] {
        assert_eq!(body_of(&chunked(body)), expected.as_bytes(), "{body:?}");
    }
    let named_otherwise = post("transfer-ENCODING: \tChunked \r\n", "1\r\nx\r\n0\r\n\r\n");
    assert_eq!(body_of(&named_otherwise), b"x");
}

#[test]
fn rfc9112_7_1_bad_chunk_sizes_are_refused() {
    for size in [
        "",
        " ",
        "5 ",
        " 5",
        "5\t",
        "+5",
        "-5",
        "0x5",
        "5h",
        "5_0",
        "_5",
        "5,5",
        "5.0",
        "\u{ff15}",
        "\0",
        "g",
        "'5'",
        "00000000000000005",
        "10000000000000000",
        "ffffffffffffffff0",
        "5\r",
        ";a",
        ";",
    ] {
        let text = chunked(&format!("{size}\r\nhello\r\n0\r\n\r\n"));
        assert_eq!(failure(&text), Some(Error::BadChunkSize), "{size:?}");
    }
    assert_eq!(failure(chunked("5\nhello\r\n0\r\n\r\n")), Some(Error::BadChunkSize));
    assert_eq!(failure(chunked("5\r\nhello\r\n0\n\n")), Some(Error::BadChunkSize));
}

#[test]
fn rfc9112_7_1_data_is_followed_by_crlf() {
    for body in [
        "5\r\nhello0\r\n\r\n",
        "5\r\nhello\n0\r\n\r\n",
        "5\r\nhello\rx0\r\n\r\n",
        "4\r\nhello\r\n0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "5\r\nhelloX\n0\r\n\r\n",
    ] {
        assert_eq!(failure(chunked(body)), Some(Error::BadChunkEnd), "{body:?}");
    }
}

/// Every byte at every position of a chunk size.
#[test]
fn rfc9112_7_1_a_size_is_hexadecimal_digits_and_nothing_else() {
    for byte in 0..=255u8 {
        for (place, size) in [[byte, b'1'], [b'1', byte]].into_iter().enumerate() {
            let mut text = chunked("").into_bytes();
            text.extend_from_slice(&size);
            text.extend_from_slice(b"\r\n");
            let error = failure(&text);
            let is_digit = byte.is_ascii_hexdigit();
            // A semicolon after a digit begins an extension, a CR the end of the line.
            let fine = is_digit || (place == 1 && byte == b';');
            assert_eq!(error.is_none(), fine, "{size:?} gave {error:?}");
            assert!(error.is_none_or(|error| error.status() == 400), "{size:?}");
        }
    }
}

#[test]
fn rfc9112_7_1_1_extensions_are_skipped() {
    for extension in [";a", ";a=b", ";a=\"b c\"", ";a;b=1", "; a = b", ";"] {
        let text = chunked(&format!("5{extension}\r\nhello\r\n0{extension}\r\n\r\n"));
        assert_eq!(body_of(&text), b"hello", "{extension:?}");
    }
    for extension in [";a\rb", ";a\nb", ";a\0", ";\u{7f}", ";a\n"] {
        let text = chunked(&format!("5{extension}\r\nhello\r\n0\r\n\r\n"));
        assert_eq!(failure(&text).map(Error::status), Some(400), "{extension:?}");
    }
}

#[test]
fn chunk_extensions_must_not_outweigh_the_data() {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(5000));
    assert_eq!(failure(chunked(&long)), Some(Error::ChunkExtensionTooLong));
    let many = format!("1;{}\r\nx\r\n", "x".repeat(100)).repeat(100);
    assert_eq!(failure(chunked(&many)), Some(Error::ChunkExtensionTooLong));
    // A signature on each chunk of a realistic size, as some clients send it, is accepted without
    // end.
    let signed = format!("{:x};chunk-signature={}\r\n{}\r\n", 500, "f".repeat(64), "d".repeat(500));
    assert_eq!(body_of(&chunked(&(signed.repeat(400) + "0\r\n\r\n"))).len(), 200_000);
}

#[test]
fn max_body_is_413_as_soon_as_it_is_known() {
    let limits = Limits { max_body: 5, ..Limits::default() };
    let seen = |text: &str| requests([text.as_bytes()], &limits);
    assert_eq!(ends(&seen(&post("Content-Length: 5\r\n", "hello"))), 1);
    // Before any of it arrived, and before the handler is called.
    assert_eq!(seen(&post("Content-Length: 6\r\n", "")), [Seen::Failed(Error::BodyTooLarge)]);
    let huge = post("Content-Length: 18446744073709551615\r\n", "");
    assert_eq!(seen(&huge), [Seen::Failed(Error::BodyTooLarge)]);
    assert_eq!(ends(&seen(&chunked("2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"))), 1);
    for over in [
        "6\r\n",
        "2\r\nhe\r\n4\r\n",
        "ffffffffffffffff\r\n",
        "2\r\nhe\r\nffffffffffffffff\r\n",
        "6;",
    ] {
        let last = seen(&chunked(over)).pop();
        assert_eq!(last, Some(Seen::Failed(Error::BodyTooLarge)), "{over:?}");
    }
    assert_eq!(Error::BodyTooLarge.status(), 413);
}

/// Returns the pieces of the only request's body.
fn pieces_of(body: &str) -> Vec<Vec<u8>> {
    let mut bytes = chunked(body).into_bytes();
    let (mut decoder, mut input) = (Decoder::new(), Input::new(&mut bytes));
    let mut pieces = Vec::new();
    while let Ok(Some(event)) = decoder.next_event(&mut input, &Limits::default()) {
        if let Event::Body(piece) = event {
            pieces.push(piece.to_vec());
        }
    }
    pieces
}

#[test]
fn small_chunks_are_one_piece_and_large_ones_are_not_moved() {
    let single: String = (b'a'..=b'z').map(|byte| format!("1;x\r\n{}\r\n", byte as char)).collect();
    assert_eq!(pieces_of(&(single.repeat(400) + "0\r\n\r\n")), [alphabet(400)]);
    let large = format!("{:x}\r\n{}\r\n", 4096, "x".repeat(4096));
    let lengths = |body: &str| pieces_of(body).iter().map(Vec::len).collect::<Vec<_>>();
    assert_eq!(lengths(&large.repeat(3)), [4096; 3]);
    assert_eq!(lengths(&format!("{single}{large}{single}")), [26, 4096 + 26]);
    // An error does not take what came before it.
    assert_eq!(pieces_of(&format!("{single}1\r\nx!")), [[alphabet(1), b"x".to_vec()].concat()]);
}

fn alphabet(times: usize) -> Vec<u8> {
    (b'a'..=b'z').collect::<Vec<_>>().repeat(times)
}

#[test]
fn a_body_is_lent_in_place() {
    let mut bytes = post("Content-Length: 5\r\n", "hello").into_bytes();
    let place = bytes.as_ptr() as usize + bytes.len() - 5;
    let mut decoder = Decoder::new();
    let mut input = Input::new(&mut bytes);
    let limits = Limits::default();
    assert!(matches!(decoder.next_event(&mut input, &limits), Ok(Some(Event::Head(_)))));
    let Ok(Some(Event::Body(body))) = decoder.next_event(&mut input, &limits) else { panic!() };
    assert_eq!(body.as_ptr() as usize, place);
}

#[test]
fn pipelined_requests_come_in_order() {
    let mut text = String::new();
    for index in 0..50 {
        text += &match index % 3 {
            0 => format!("GET /{index} HTTP/1.1\r\nHost: a\r\n\r\n"),
            1 => format!("POST /{index} HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab"),
            _ => format!(
                "PUT /{index} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n\
                    cd\r\n0\r\n\r\n"
            ),
        };
    }
    let seen = whole(&text);
    let heads = seen.iter().filter_map(|seen| match seen {
        Seen::Head(head) => head.split(' ').nth(1),
        _ => None,
    });
    let expected: Vec<_> = (0..50).map(|index| format!("/{index}")).collect();
    assert_eq!(heads.collect::<Vec<_>>(), expected);
    assert_eq!(ends(&seen), 50);
}
