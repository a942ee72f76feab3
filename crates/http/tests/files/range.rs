//! [RFC 9110 section 14](https://www.rfc-editor.org/rfc/rfc9110#section-14), on the wire.

use crate::site::{Answer, Site, ask};
use proptest::prelude::*;

const CONTENT: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

fn site() -> Site {
    Site::new(&[("a.txt", CONTENT), ("empty.txt", b"")])
}

/// Returns the parts of a multipart body: Content-Range and bytes. Parsed strictly: RFC 2046
/// section 5.1.1.
fn parts(answer: &Answer) -> Vec<(String, Vec<u8>)> {
    let boundary = answer.expect("Content-Type").strip_prefix("multipart/byteranges; boundary=");
    let boundary = boundary.unwrap_or_else(|| panic!("{}", answer.head));
    let text = String::from_utf8(answer.body.clone()).expect("text");
    let text = format!("\r\n{text}");
    let (body, end) = text.split_once(&format!("\r\n--{boundary}--")).expect("an end");
    assert_eq!(end, "\r\n");
    let delimiter = format!("\r\n--{boundary}\r\n");
    let mut pieces = body.split(&delimiter);
    assert_eq!(pieces.next(), Some(""));
    let parts = pieces.map(|piece| {
        let (head, bytes) = piece.split_once("\r\n\r\n").expect("a head");
        let (media_type, range) = head.split_once("\r\n").expect("two lines");
        assert_eq!(media_type, "Content-Type: text/plain; charset=utf-8");
        let range = range.strip_prefix("Content-Range: bytes ").expect("a range");
        (range.to_owned(), bytes.as_bytes().to_vec())
    });
    parts.collect()
}

#[test]
fn rfc9110_15_3_7_1_one_part() {
    let site = site();
    for (range, expected, content_range) in [
        ("0-0", "0", "bytes 0-0/36"),
        ("0-4", "01234", "bytes 0-4/36"),
        ("10-12", "abc", "bytes 10-12/36"),
        ("30-", "uvwxyz", "bytes 30-35/36"),
        ("-3", "xyz", "bytes 33-35/36"),
        ("-99", str::from_utf8(CONTENT).unwrap(), "bytes 0-35/36"),
        ("35-99", "z", "bytes 35-35/36"),
    ] {
        let answer = site.get("a.txt", &format!("Range: bytes={range}\r\n"));
        assert_eq!((answer.status, answer.text()), (206, expected), "{range}");
        assert_eq!(answer.expect("Content-Range"), content_range);
        assert_eq!(answer.expect("Content-Type"), "text/plain; charset=utf-8");
        // RFC 9110 section 15.3.7: the headers that a 200 would have.
        let full = site.get("a.txt", "");
        for name in ["ETag", "Last-Modified", "Date"] {
            assert_eq!(answer.expect(name), full.expect(name));
        }
    }
}

#[test]
fn rfc9110_14_4_a_range_beyond_the_end_is_416_with_the_length() {
    let site = site();
    for range in ["36-", "36-40", "99-", "-0", "99-100, 200-"] {
        let answer = site.get("a.txt", &format!("Range: bytes={range}\r\n"));
        assert_eq!((answer.status, answer.expect("Content-Range")), (416, "bytes */36"), "{range}");
    }
}

#[test]
fn rfc9110_14_2_head_and_invalid_ranges_get_the_whole_file() {
    let site = site();
    let head = ask(&site.files(), "HEAD", "/assets/a.txt", "Range: bytes=0-1\r\n");
    assert_eq!((head.status, head.expect("Content-Length")), (200, "36"));
    for lines in [
        "Range: items=0-1",
        "Range: bytes=1-0",
        "Range: bytes",
        "Range: ",
        "Range: bytes=0-1\r\nRange: bytes=2-3",
        "Range: bytes=0-0,2-2,4-4,6-6,8-8,10-10,12-12,14-14,16-16",
    ] {
        let answer = site.get("a.txt", &format!("{lines}\r\n"));
        assert_eq!((answer.status, &*answer.body), (200, CONTENT), "{lines}");
        assert_eq!(answer.header("Content-Range"), None);
    }
}

#[test]
fn an_empty_file_is_sent_whole() {
    let site = site();
    for range in ["0-", "0-0", "-1", "5-", "0-0,1-1"] {
        let answer = site.get("empty.txt", &format!("Range: bytes={range}\r\n"));
        assert_eq!((answer.status, answer.expect("Content-Length")), (200, "0"), "{range}");
    }
}

#[test]
fn rfc9110_15_3_7_2_several_parts() {
    let site = site();
    let answer = site.get("a.txt", "Range: bytes=0-1, 10-12, -2, 99-\r\n");
    assert_eq!((answer.status, answer.header("Content-Range")), (206, None));
    let expected = [("0-1/36", "01"), ("10-12/36", "abc"), ("34-35/36", "yz")];
    let expected = expected.map(|(range, bytes)| (range.to_owned(), bytes.as_bytes().to_vec()));
    assert_eq!(parts(&answer), expected);
    // In the order requested.
    let answer = site.get("a.txt", "Range: bytes=-2, 0-1\r\n");
    assert_eq!(parts(&answer)[0].0, "34-35/36");
    // A single remaining range is not multipart.
    for range in ["0-1, 99-", "0-1, 2-3", "1-3, 0-2", "0-, 5-6, -1"] {
        let answer = site.get("a.txt", &format!("Range: bytes={range}\r\n"));
        assert_eq!(answer.status, 206);
        assert!(answer.expect("Content-Range").starts_with("bytes 0-"), "{range}");
    }
    // A different boundary each time: it cannot be put into a file.
    let again = site.get("a.txt", "Range: bytes=-2, 0-1\r\n");
    assert_ne!(again.header("Content-Type"), answer.header("Content-Type"));
}

#[test]
fn parts_of_a_large_file() {
    let content: Vec<u8> = (0..500_000u32).map(|number| b'a' + (number % 26) as u8).collect();
    let site = Site::new(&[("a.txt", &content)]);
    let answer = site.get("a.txt", "Range: bytes=1-200000,300000-499998\r\n");
    let parts = parts(&answer);
    assert!(parts[0].1 == content[1..=200_000] && parts[1].1 == content[300_000..=499_998]);
    assert_eq!(parts.len(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any set of ranges, the sent bytes are the file's bytes at the requested positions.
    #[test]
    fn every_range_has_the_bytes_of_the_file(specs in "(([0-9]{1,2})?-([0-9]{1,2})?, ?){1,9}") {
        let site = site();
        let answer = site.get("a.txt", &format!("Range: bytes={specs}\r\n"));
        match answer.status {
            200 => prop_assert_eq!(&*answer.body, CONTENT),
            206 => {
                let parts = match answer.header("Content-Range") {
                    Some(range) => {
                        let range = range.strip_prefix("bytes ").expect("bytes");
                        vec![(range.to_owned(), answer.body.clone())]
                    }
                    None => parts(&answer),
                };
                for (range, bytes) in parts {
                    let (first, rest) = range.split_once('-').expect("a dash");
                    let (last, length) = rest.split_once('/').expect("a slash");
                    let first: usize = first.parse().unwrap();
                    let last: usize = last.parse().unwrap();
                    prop_assert_eq!(length, "36");
                    prop_assert_eq!(&*bytes, &CONTENT[first..=last]);
                }
            }
            status => prop_assert_eq!(status, 416),
        }
    }
}
