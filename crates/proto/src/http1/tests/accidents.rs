//! Vulnerabilities of other servers: each input is refused here, or read in the one way that the
//! RFC defines.

use super::bodies::chunked;
use super::*;

/// The text after the request line of a message that is refused as a whole.
const HEADS: &[(&str, &str)] = &[
    (
        "llhttp CVE-2022-32213: a coding that only looks like chunked",
        "Transfer-Encoding: chunkedchunked\r\n",
    ),
    ("llhttp CVE-2022-32214: LF alone ends a line", "Host: a\nTransfer-Encoding: chunked\r\n"),
    (
        "llhttp CVE-2022-32215: codings over several lines",
        "Transfer-Encoding: chunked\r\n , identity\r\n",
    ),
    ("llhttp CVE-2022-35256: CR alone ends a line", "X: y\rTransfer-Encoding: chunked\r\n"),
    ("llhttp CVE-2023-30589: CR alone ends the head", "X: y\r\n\rGET / HTTP/1.1\r\n"),
    ("llhttp CVE-2024-27982: space before Content-Length", " Content-Length: 5\r\n"),
    ("llhttp CVE-2025-23167: CR LF CR and any byte end the head", "X: y\r\n\rX"),
    ("hyper CVE-2021-32715: a plus before the length", "Content-Length: +5\r\n"),
    (
        "hyper CVE-2021-21299: several lines of codings",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n",
    ),
    ("Go CVE-2019-16276: space before the colon", "Transfer-Encoding : chunked\r\n"),
    ("length and coding at once", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"),
    ("HAProxy CVE-2023-25725: an empty name", ": x\r\nContent-Length: 5\r\n"),
    ("HAProxy CVE-2023-40225: an empty length", "Content-Length:\r\n"),
    ("a NUL after a length", "Content-Length: 5\0\r\n"),
    ("digits that are not ASCII, which Python's int() takes", "Content-Length: \u{661}\r\n"),
    (
        "gunicorn CVE-2024-1135: chunked is not the last coding",
        "Transfer-Encoding: chunked, xchunked\r\n",
    ),
    ("Tomcat CVE-2022-42252: an invalid length", "Content-Length: 5, 5\r\n"),
    ("Node CVE-2021-22959: space between name and colon", "Content-Length : 5\r\n"),
    (
        "a vertical tab, which isspace() skips, before the coding",
        "Transfer-Encoding: \u{b}chunked\r\n",
    ),
    ("waitress CVE-2019-16792: repeated lengths", "Content-Length: 5\r\nContent-Length: 5\r\n"),
];

#[test]
fn heads_that_other_servers_accepted_are_refused() {
    for (accident, lines) in HEADS {
        let text = format!(
            "POST / HTTP/1.1\r\nHost: a\r\n{lines}\r\nhelloGET /smuggled HTTP/1.1\r\n\
                Host: a\r\n\r\n"
        );
        let seen = whole(&text);
        assert!(matches!(seen[..], [Seen::Failed(_)]), "{accident}: {seen:?}");
        let status = failure(&text).map(Error::status);
        assert!(matches!(status, Some(400 | 501)), "{accident}: {status:?}");
    }
}

/// The text after the head of a chunked request.
const CHUNKS: &[(&str, &str)] = &[
    ("hyper CVE-2021-32714: a size that overflows", "f0000000000000003\r\nabc\r\n0\r\n\r\n"),
    ("Go CVE-2025-22871: LF alone after a size", "3\nabc\r\n0\r\n\r\n"),
    ("Go CVE-2023-39326: endless extensions", "ENDLESS"),
    ("funky chunks, TERM.EXT: LF alone in an extension", "3;\nabc\r\n0\r\n\r\n"),
    ("funky chunks, EXT.TERM: CR alone in an extension", "3;a\rb\r\nabc\r\n0\r\n\r\n"),
    ("funky chunks, SPILL: two bytes of any kind after the data", "3\r\nabcXX0\r\n\r\n"),
    ("funky chunks: a line break in a quoted extension", "3;a=\"\r\n\"\r\nabc\r\n0\r\n\r\n"),
    ("llhttp CVE-2024-22019: endless extension of the first chunk", "3;ENDLESS"),
    ("underscores, which Python's int() takes, in a size", "1_0\r\nabc\r\n0\r\n\r\n"),
    ("a prefix, which strtol() takes, before a size", "0x3\r\nabc\r\n0\r\n\r\n"),
    (
        "Puma CVE-2023-40175: no CRLF after the trailers",
        "0\r\nX: y\r\nGET /smuggled HTTP/1.1\r\n\r\n",
    ),
    ("a sign, which strtol() takes, before a size", "-3\r\nabc\r\n0\r\n\r\n"),
    ("a space after a size", "3 \r\nabc\r\n0\r\n\r\n"),
    ("CR alone ends the body", "0\r\n\r0\r\n"),
    ("LF alone ends the body", "0\r\n\n"),
];

#[test]
fn chunks_that_other_servers_accepted_are_refused() {
    for (accident, body) in CHUNKS {
        let body =
            body.replace("ENDLESS", &"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\nx\r\n".repeat(1000));
        let text = chunked(&format!("{body}GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"));
        let seen = whole(&text);
        assert!(matches!(seen.last(), Some(Seen::Failed(_))), "{accident}");
        assert_eq!(ends(&seen), 0, "{accident}: {seen:?}");
        assert_eq!(failure(&text).map(Error::status), Some(400), "{accident}");
    }
}

/// A request line that one parser reads as two, or as another one.
#[test]
fn request_lines_that_other_servers_accepted_are_refused() {
    for line in [
        "GET / HTTP/1.1\rX",
        "GET /\r HTTP/1.1",
        "GET /\u{b}HTTP/1.1",
        "GET / HTTP/1.1 X",
        "GET / HTTP/1.1\t",
        "GET\u{a0}/ HTTP/1.1",
        "GET /\u{85}x HTTP/1.1",
        "GET / HTTP/1.\u{661}",
        "GET / HTTP/1.1\0",
        "\u{feff}GET / HTTP/1.1",
    ] {
        let text = format!("{line}\r\nHost: a\r\n\r\n");
        assert_eq!(failure(&text).map(Error::status), Some(400), "{line:?}");
    }
}
