//! [RFC 9110 section 13](https://www.rfc-editor.org/rfc/rfc9110#section-13).

use crate::site::{Answer, MODIFIED, Site, ask, ask_at};
use std::time::{Duration, SystemTime};

const BEFORE: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const AFTER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

/// Checks the status for the header lines of each row, in which `$` is the file's entity tag.
fn check(rows: &[(&str, u16)]) {
    let site = Site::new(&[("a.txt", b"0123456789")]);
    let etag = site.get("a.txt", "").expect("ETag").to_owned();
    for (lines, expected) in rows {
        let lines = lines.replace('$', &etag).replace('|', "\r\n") + "\r\n";
        for method in ["GET", "HEAD"] {
            let answer = ask(&site.files(), method, "/assets/a.txt", &lines);
            // A Range does not apply to HEAD.
            let is_part = matches!(*expected, 206 | 416) && method == "HEAD";
            let expected = if is_part { 200 } else { *expected };
            assert_eq!(answer.status, expected, "{method} {lines}");
        }
        // RFC 9110 section 13.2.1: conditions are ignored where the response is an error anyway.
        assert_eq!(site.get("none.txt", &lines).status, 404);
        assert_eq!(ask(&site.files(), "PUT", "/assets/a.txt", &lines).status, 405);
    }
}

fn dated(line: &str, date: &str) -> String {
    format!("{line}: {date}")
}

#[test]
fn rfc9110_13_1_1_if_match() {
    check(&[
        ("If-Match: $", 200),
        ("If-Match: *", 200),
        (r#"If-Match: "x", $"#, 200),
        (r#"If-Match: "x"|If-Match: $"#, 200),
        (r#"If-Match: "x""#, 412),
        (r#"If-Match: "x"|If-Match: "y""#, 412),
        // Strong comparison.
        ("If-Match: W/$", 412),
        ("If-Match: ", 412),
        ("If-Match: x", 412),
        (r#"If-Match: "*""#, 412),
    ]);
}

#[test]
fn rfc9110_13_1_2_if_none_match() {
    check(&[
        ("If-None-Match: $", 304),
        // Weak comparison.
        ("If-None-Match: W/$", 304),
        ("If-None-Match: *", 304),
        (r#"If-None-Match: "x", W/"y" , W/$"#, 304),
        (r#"If-None-Match: "x"|If-None-Match: $"#, 304),
        (r#"If-None-Match: $|If-None-Match: "x""#, 304),
        (r#"If-None-Match: "x""#, 200),
        ("If-None-Match: ", 200),
        ("If-None-Match: x", 200),
        (r#"If-None-Match: "x" $"#, 200),
    ]);
}

#[test]
fn rfc9110_13_1_3_if_modified_since() {
    check(&[
        (&dated("If-Modified-Since", MODIFIED), 304),
        (&dated("If-Modified-Since", AFTER), 304),
        (&dated("If-Modified-Since", BEFORE), 200),
        ("If-Modified-Since: Sunday, 06-Nov-94 08:49:37 GMT", 304),
        ("If-Modified-Since: Sun Nov  6 08:49:37 1994", 304),
        ("If-Modified-Since: Sun Nov  6 08:49:36 1994", 200),
        ("If-Modified-Since: Wed, 31 Dec 1969 23:59:59 GMT", 200),
        ("If-Modified-Since: tomorrow", 200),
        ("If-Modified-Since: ", 200),
        // Several are not a date.
        (&format!("If-Modified-Since: {AFTER}|If-Modified-Since: {AFTER}"), 200),
    ]);
}

#[test]
fn rfc9110_13_1_4_if_unmodified_since() {
    check(&[
        (&dated("If-Unmodified-Since", MODIFIED), 200),
        (&dated("If-Unmodified-Since", AFTER), 200),
        (&dated("If-Unmodified-Since", BEFORE), 412),
        ("If-Unmodified-Since: Sun Nov  6 08:49:36 1994", 412),
        ("If-Unmodified-Since: Wed, 31 Dec 1969 23:59:59 GMT", 412),
        ("If-Unmodified-Since: yesterday", 200),
        (&format!("If-Unmodified-Since: {BEFORE}|If-Unmodified-Since: {BEFORE}"), 200),
    ]);
}

#[test]
fn rfc9110_13_2_2_conditions_are_evaluated_in_order() {
    check(&[
        // If-Unmodified-Since is ignored beside If-Match.
        (&format!("If-Match: $|If-Unmodified-Since: {BEFORE}"), 200),
        (&format!("If-Unmodified-Since: {AFTER}|If-Match: \"x\""), 412),
        // If-Modified-Since is ignored beside If-None-Match.
        (&format!("If-None-Match: \"x\"|If-Modified-Since: {AFTER}"), 200),
        (&format!("If-Modified-Since: {BEFORE}|If-None-Match: $"), 304),
        // A failed precondition wins over a cached version.
        ("If-None-Match: $|If-Match: \"x\"", 412),
        ("If-None-Match: $|If-Match: $", 304),
        (&format!("If-None-Match: $|If-Unmodified-Since: {BEFORE}"), 412),
        (&format!("If-Modified-Since: {AFTER}|If-Unmodified-Since: {BEFORE}"), 412),
        (&format!("If-Modified-Since: {AFTER}|If-Unmodified-Since: {AFTER}"), 304),
        // Both are evaluated before the range.
        ("If-None-Match: $|Range: bytes=0-1", 304),
        ("If-None-Match: $|Range: bytes=99-", 304),
        ("If-Match: \"x\"|Range: bytes=99-", 412),
        ("If-None-Match: \"x\"|If-Match: $|Range: bytes=0-1", 206),
        ("If-None-Match: \"x\"|Range: bytes=99-", 416),
    ]);
}

#[test]
fn rfc9110_13_1_5_if_range() {
    check(&[
        ("Range: bytes=0-1|If-Range: $", 206),
        ("Range: bytes=0-1|If-Range: \"x\"", 200),
        // A weak tag never identifies identical bytes.
        ("Range: bytes=0-1|If-Range: W/$", 200),
        (&format!("Range: bytes=0-1|If-Range: {MODIFIED}"), 206),
        ("Range: bytes=0-1|If-Range: Sunday, 06-Nov-94 08:49:37 GMT", 206),
        // An exact match, not "not modified since".
        (&format!("Range: bytes=0-1|If-Range: {AFTER}"), 200),
        (&format!("Range: bytes=0-1|If-Range: {BEFORE}"), 200),
        ("Range: bytes=0-1|If-Range: ", 200),
        ("Range: bytes=0-1|If-Range: x", 200),
        ("Range: bytes=0-1|If-Range: *", 200),
        ("Range: bytes=0-1|If-Range: $, $", 200),
        ("Range: bytes=0-1|If-Range: $|If-Range: $", 200),
        // Without a match the range is ignored, so it cannot be unsatisfiable.
        ("Range: bytes=99-|If-Range: \"x\"", 200),
        ("Range: bytes=99-|If-Range: $", 416),
        // Without a Range it has no effect.
        ("If-Range: \"x\"", 200),
        ("If-Range: $", 200),
    ]);
}

/// Windows has no time of a change that programs cannot set.
#[cfg(unix)]
#[test]
fn rfc9110_8_8_2_2_a_recently_changed_file_is_not_resumed() {
    let site = Site::new(&[("a.txt", b"0123456789")]);
    let status = |lines: &str| -> u16 {
        let lines = format!("{lines}\r\n");
        ask_at(
            &site.files(),
            "GET",
            "/assets/a.txt",
            &lines,
            SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_800),
        )
        .status
    };
    let etag = site.get("a.txt", "").expect("ETag").to_owned();
    assert_eq!(status(&format!("Range: bytes=0-1\r\nIf-Range: {etag}")), 200);
    assert_eq!(status(&format!("Range: bytes=0-1\r\nIf-Range: {MODIFIED}")), 200);
    assert_eq!(status(&format!("If-Match: {etag}")), 412);
    assert_eq!(status(&format!("If-None-Match: {etag}")), 304);
    assert_eq!(status("Range: bytes=0-1"), 206);
}

#[test]
fn rfc9110_15_4_5_a_304_has_the_headers_of_its_200() {
    let site = Site::new(&[("a.txt", b"0123456789")]);
    let files = site.files().cache_control("max-age=5").expect("valid");
    let get = |lines: &str| -> Answer { ask(&files, "GET", "/assets/a.txt", lines) };
    let full = get("");
    let known = get(&format!("If-None-Match: {}\r\n", full.expect("ETag")));
    assert_eq!((known.status, known.body.len()), (304, 0));
    for name in ["ETag", "Last-Modified", "Cache-Control", "Date"] {
        assert_eq!(known.expect(name), full.expect(name));
    }
    for name in ["Content-Length", "Content-Type", "Content-Range"] {
        assert_eq!(known.header(name), None, "{name}");
    }
}
