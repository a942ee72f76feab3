//! Paths that backends are known to read in several ways.
//!
//! A route is chosen before a backend reads the path. If it reads another path, it may serve what
//! another route is for: `/public/..%2fadmin` is below `/public` for a balancer that keeps `%2f`,
//! and `/admin` for a backend that decodes it. So a path is served only if all readings lead to one
//! route.

use std::ops::ControlFlow;

use throng_http::percent;

/// The reason of a refusal: a segment that leads up.
pub(super) const DOTS: &str = "the path has a segment \".\" or \"..\", in one of its readings";
/// The reason of a refusal: more ways to read the path than are compared.
pub(super) const MIXED: &str = "the path has slashes in several notations";

/// Returns whether all backends read a path alike: it has no encoding, no empty segment, no segment
/// that begins with a dot, no backslash and no parameter. One pass without branches.
pub(super) fn is_plain(path: &str) -> bool {
    let is = |byte: &u8, wanted: u8| u8::from(*byte == wanted);
    let marks = path.as_bytes().iter().map(|it| is(it, b'%') | is(it, b'\\') | is(it, b';'));
    let (first, second) = (path.as_bytes(), path.as_bytes().get(1..).unwrap_or_default());
    let pairs = first.iter().zip(second);
    let pairs = pairs.map(|(one, next)| is(one, b'/') & (is(next, b'/') | is(next, b'.')));
    marks.fold(0, |found, mark| found | mark) | pairs.fold(0, |found, pair| found | pair) == 0
}

/// The treatment of `%2F`, `%5C` and `\`: kept, or as a slash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slashes {
    Kept,
    Split,
}

/// The treatment of `;` and what follows it in a segment: kept, or dropped before or after other
/// notations of the slash are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parameters {
    Kept,
    DroppedFirst,
    DroppedLast,
}

/// Calls `visit` with each reading of a path, first with the path as it is; at most 15 times.
/// `scratch`: memory for them.
///
/// # Errors
/// The reason why the path is refused: a segment leads up in one of its readings, or there are too
/// many.
pub(super) fn for_each_reading<B>(
    path: &str,
    scratch: &mut Vec<u8>,
    mut visit: impl FnMut(&str) -> ControlFlow<B>,
) -> Result<Option<B>, &'static str> {
    let has_encoded = |digits: &[u8; 2]| {
        path.as_bytes().windows(3).any(|it| it[0] == b'%' && it[1..].eq_ignore_ascii_case(digits))
    };
    let notations = [has_encoded(b"2f"), has_encoded(b"5c"), path.contains('\\')];
    let has_parameters = path.contains(';');
    write_reading(path, Slashes::Split, Parameters::DroppedLast, scratch);
    if scratch.split(|byte| *byte == b'/').any(is_dots) {
        return Err(DOTS);
    }
    if notations.into_iter().filter(|has| *has).count() > 1 {
        return Err(MIXED);
    }
    let splits = notations.contains(&true);
    for (slashes, parameters) in [
        (Slashes::Kept, Parameters::Kept),
        (Slashes::Split, Parameters::Kept),
        (Slashes::Kept, Parameters::DroppedFirst),
        (Slashes::Split, Parameters::DroppedFirst),
        (Slashes::Split, Parameters::DroppedLast),
    ] {
        let is_due = (slashes == Slashes::Kept || splits)
            && (parameters == Parameters::Kept || has_parameters);
        if !is_due {
            continue;
        }
        write_reading(path, slashes, parameters, scratch);
        if let ControlFlow::Break(found) = visit_with_slashes(scratch, &mut visit) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Visits a reading; if it has empty segments, also without them, and without an authority that
/// `//` at its beginning may stand before.
fn visit_with_slashes<B>(
    reading: &mut Vec<u8>,
    visit: &mut impl FnMut(&str) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let mut visit = |bytes: &[u8]| match str::from_utf8(bytes) {
        Ok(text) => visit(text),
        Err(_) => ControlFlow::Continue(()),
    };
    visit(reading)?;
    if !reading.windows(2).any(|pair| pair == b"//") {
        return ControlFlow::Continue(());
    }
    if reading.starts_with(b"//") {
        let authority = reading.iter().position(|byte| *byte != b'/').unwrap_or(reading.len());
        let slash = reading[authority..].iter().position(|byte| *byte == b'/');
        visit(slash.map_or(b"/", |slash| &reading[authority + slash..]))?;
    }
    reading.dedup_by(|next, one| *next == b'/' && *one == b'/');
    visit(reading)
}

/// Writes a reading of a path, without its first text.
fn write_reading(path: &str, slashes: Slashes, parameters: Parameters, out: &mut Vec<u8>) {
    out.clear();
    let mut rest = path.as_bytes();
    let mut is_dropped = false;
    loop {
        let (byte, is_as_sent);
        (byte, is_as_sent, rest) = match rest {
            [] => return,
            [b'%', b'2', b'f' | b'F', rest @ ..] | [b'%', b'5', b'c' | b'C', rest @ ..]
                if slashes == Slashes::Split =>
            {
                (b'/', false, rest)
            }
            [b'\\', rest @ ..] if slashes == Slashes::Split => (b'/', false, rest),
            [byte, rest @ ..] => (*byte, true, rest),
        };
        is_dropped = match byte {
            b';' => parameters != Parameters::Kept,
            b'/' => is_dropped && !is_as_sent && parameters == Parameters::DroppedFirst,
            _ => is_dropped,
        };
        if !is_dropped {
            out.push(byte);
        }
    }
}

/// Returns whether a segment is `.` or `..` when it is decoded, also with a parameter.
fn is_dots(segment: &[u8]) -> bool {
    let Ok(segment) = str::from_utf8(segment) else { return false };
    let mut decoded = percent::decoded_bytes(segment).take_while(|byte| *byte != b';');
    decoded.next() == Some(b'.')
        && matches!((decoded.next(), decoded.next()), (None | Some(b'.'), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(path: &str) -> Result<Vec<String>, &'static str> {
        let mut readings = Vec::new();
        let all = for_each_reading(path, &mut Vec::new(), |reading| {
            readings.push(reading.to_owned());
            ControlFlow::<()>::Continue(())
        });
        all.map(|_| readings)
    }

    #[test]
    fn usual_paths_are_plain() {
        for path in ["/", "/a", "/a/b.c/", "/a.b/c", "/~a/b=c&d", "/a/b..", "*", ""] {
            assert!(is_plain(path), "{path}");
        }
        for path in ["/%61", "//", "/a//b", "/.a", "/a/.", "/a/..", "/a;b", "/a\\b"] {
            assert!(!is_plain(path), "{path}");
        }
    }

    #[test]
    fn each_way_to_read_a_path_is_a_reading() {
        for (path, expected) in [
            ("/a", &["/a"][..]),
            ("/a%20b", &["/a%20b"]),
            ("/.well-known/x", &["/.well-known/x"]),
            ("/...", &["/..."]),
            ("/a%2Fb", &["/a%2Fb", "/a/b"]),
            ("/a%5cb", &["/a%5cb", "/a/b"]),
            ("/a\\b", &["/a\\b", "/a/b"]),
            ("/a//b", &["/a//b", "/a/b"]),
            ("//a/b", &["//a/b", "/b", "/a/b"]),
            ("///a", &["///a", "/", "/a"]),
            ("//", &["//", "/", "/"]),
            ("/%2Fa/b", &["/%2Fa/b", "//a/b", "/b", "/a/b"]),
            ("/a;x/b", &["/a;x/b", "/a/b"]),
            ("/a/;x/b", &["/a/;x/b", "/a//b", "/a/b"]),
            // The parameter ends at the slash itself, or at its encoding.
            ("/a;x%2Fb/c%2Fd", &["/a;x%2Fb/c%2Fd", "/a;x/b/c/d", "/a/c%2Fd", "/a/c/d", "/a/b/c/d"]),
        ] {
            assert_eq!(readings(path).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn a_segment_that_leads_up_is_refused_in_each_notation() {
        for path in [
            "/a/..",
            "/a/../b",
            "/./a",
            "/.",
            "/%2e",
            "/%2E%2e/a",
            "/.%2e",
            "/a/..;x/b",
            "/a/..%3Bx/b",
            "/a/.;/b",
            "/a%2F..%2Fb",
            "/a%2f%2e%2e",
            "/a\\..\\b",
            "/a%5c..",
            "/..;%2Fa",
            "/a;x%2F..%2Fb",
        ] {
            assert_eq!(readings(path), Err(DOTS), "{path}");
        }
        for path in ["/a%2Fb%5Cc", "/a%2Fb\\c", "/a\\b%5cc"] {
            assert_eq!(readings(path), Err(MIXED), "{path}");
        }
    }

    /// The time of a long path grows with its length.
    #[test]
    fn a_long_path_has_as_many_readings_as_a_short_one() {
        let long = "/;%2F".repeat(3000) + &"/".repeat(16 << 10);
        assert_eq!(readings(&long).unwrap().len(), readings("/;%2F//").unwrap().len());
        assert!(readings(&"/a;b%2f//".repeat(8000)).unwrap().len() <= 15);
    }
}
