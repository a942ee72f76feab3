//! Conditional requests. [RFC 9110 section 13](https://www.rfc-editor.org/rfc/rfc9110#section-13).

use super::http_date;
use super::validators::{EntityTag, Validators};
use throng_proto::http1::HeaderLines;

/// The outcome of the conditions of a GET or HEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The request is answered normally.
    Proceed,
    /// 304: the client has the current version.
    NotModified,
    /// 412: the client expects another version.
    Failed,
}

/// Evaluates the conditions in the order of RFC 9110 section 13.2.2, steps 1 to 4. `now` is Unix
/// time in seconds.
pub(super) fn evaluate(lines: HeaderLines<'_>, validators: &Validators, now: u64) -> Verdict {
    let if_match = any(lines, "if-match", |tag| tag.matches_strongly(validators));
    let is_as_expected = if_match.or_else(|| {
        let (date, modified) = (date(lines, "if-unmodified-since", now)?, modified(validators)?);
        Some(modified <= date)
    });
    if is_as_expected == Some(false) {
        return Verdict::Failed;
    }
    let if_none_match = any(lines, "if-none-match", |tag| tag.matches_weakly(validators));
    let is_known = if_none_match.or_else(|| {
        let (date, modified) = (date(lines, "if-modified-since", now)?, modified(validators)?);
        Some(modified <= date)
    });
    if is_known == Some(true) { Verdict::NotModified } else { Verdict::Proceed }
}

/// Evaluates step 5: whether a Range may be answered with a part.
///
/// Without If-Range it may. The validator in If-Range must identify identical bytes: a weak tag
/// never does, and a date only does when no other change can get the same date any longer (RFC 9110
/// section 8.8.2.2).
pub(super) fn allows_range(lines: HeaderLines<'_>, validators: &Validators, now: u64) -> bool {
    let mut values = lines.all_bytes("if-range");
    let Some(value) = values.next() else { return true };
    if values.next().is_some() {
        return false;
    }
    if let Some(tag) = EntityTag::parse(value) {
        return tag.matches_strongly(validators);
    }
    let is_same =
        http_date::parse(value, now).is_some_and(|date| modified(validators) == Some(date));
    is_same && validators.are_strong && validators.last_modified.is_some_and(|time| time < now)
}

fn modified(validators: &Validators) -> Option<i64> {
    validators.last_modified.and_then(|seconds| i64::try_from(seconds).ok())
}

/// Returns whether the field is `*`, or one of its tags matches; `None` without the field.
fn any(
    lines: HeaderLines<'_>,
    name: &str,
    matches: impl Fn(EntityTag<'_>) -> bool,
) -> Option<bool> {
    lines.all_bytes(name).fold(None, |found, value| {
        let matches = value == b"*" || EntityTag::list(value).any(&matches);
        Some(matches || found == Some(true))
    })
}

/// Returns the date of a field; `None` if the field is missing, invalid or repeated (RFC 9110
/// section 13.1.3 and RFC 9110 section 13.1.4).
fn date(lines: HeaderLines<'_>, name: &str, now: u64) -> Option<i64> {
    let mut values = lines.all_bytes(name);
    let date = http_date::parse(values.next()?, now)?;
    values.next().is_none().then_some(date)
}
