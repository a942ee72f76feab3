//! Validators: entity tags and modification dates.
//! [RFC 9110 section 8.8](https://www.rfc-editor.org/rfc/rfc9110#section-8.8).

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, SystemTime};

/// Time after a change within which another change may be undetected: file systems stamp with the
/// clock's tick (4 ms on ext4, 2 s on FAT), and Last-Modified with whole seconds.
const SETTLING: Duration = Duration::from_secs(2);

/// The validators of one version of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Validators {
    /// The tag without quotes: hexadecimal digits.
    pub(super) opaque: String,
    /// Whether the file has not changed for [`SETTLING`], so that equal validators mean equal
    /// bytes.
    pub(super) are_strong: bool,
    /// Unix time in seconds; `None` before 1970. Never later than the response (RFC 9110 section
    /// 8.8.2.1).
    pub(super) last_modified: Option<u64>,
}

impl Validators {
    /// Computes the validators of a file examined at `now`.
    ///
    /// The tag is strong, so that downloads can be resumed; weak only for the first two seconds
    /// after a change (RFC 9110 section 8.8.1). It depends on more than time and length, which two
    /// files often share: archives, container images and reproducible builds set all times to the
    /// same value. The inode's change time and number cannot be set. The cost: two servers with
    /// copies of a file give it different tags, which costs a client that changes servers one
    /// download. It is hashed, because inode numbers should not be disclosed; the hash may differ
    /// in another build of the program, at the same cost.
    pub(super) fn of(metadata: &Metadata, now: SystemTime) -> Self {
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let mut hasher = DefaultHasher::new();
        (modified, metadata.len()).hash(&mut hasher);
        #[cfg(unix)]
        let changed = {
            use std::os::unix::fs::MetadataExt as _;
            let (seconds, nanoseconds) = (metadata.ctime(), metadata.ctime_nsec());
            (metadata.dev(), metadata.ino(), seconds, nanoseconds).hash(&mut hasher);
            let since_1970 = Duration::new(
                u64::try_from(seconds).unwrap_or(0),
                u32::try_from(nanoseconds).unwrap_or(0),
            );
            SystemTime::UNIX_EPOCH.checked_add(since_1970).unwrap_or(modified)
        };
        #[cfg(not(unix))]
        let changed = {
            metadata.created().ok().hash(&mut hasher);
            modified
        };
        // If the clock was set back, the change is in the future, and changes until then could have
        // the same stamp.
        let are_strong = now.duration_since(changed).is_ok_and(|age| age >= SETTLING);
        let unix_seconds = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).ok();
        let last_modified = unix_seconds(modified.min(now)).map(|since_1970| since_1970.as_secs());
        Self { opaque: format!("{:016x}", hasher.finish()), are_strong, last_modified }
    }

    /// Formats the value of the ETag field.
    pub(super) fn etag(&self) -> String {
        let prefix = if self.are_strong { "" } else { "W/" };
        format!("{prefix}\"{}\"", self.opaque)
    }
}

/// An entity tag of a request. RFC 9110 section 8.8.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntityTag<'a> {
    pub(super) is_weak: bool,
    pub(super) opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Parses the tag at the start of `text`, and returns it with the rest.
    fn take(text: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (is_weak, quoted) = match text.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, text),
        };
        let inner = quoted.strip_prefix(b"\"")?;
        let length = inner.iter().position(|byte| *byte == b'"')?;
        let (opaque, rest) = inner.split_at(length);
        // Any visible character except the quote, and bytes beyond ASCII.
        let is_valid = opaque.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        is_valid.then_some((Self { is_weak, opaque }, &rest[1..]))
    }

    /// Parses `text` as exactly one tag.
    pub(super) fn parse(text: &'a [u8]) -> Option<Self> {
        Self::take(text).filter(|(_, rest)| rest.is_empty()).map(|(tag, _)| tag)
    }

    /// Returns the tags of a list; a comma inside quotes does not separate. Ends at the first
    /// invalid element.
    pub(super) fn list(mut text: &'a [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b','))?;
            let (tag, rest) = Self::take(&text[start..])?;
            let end = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t'));
            if end.is_some_and(|end| rest[end] != b',') {
                return None;
            }
            text = rest;
            Some(tag)
        })
    }

    /// Compares strongly: both are strong and equal. RFC 9110 section 8.8.3.2.
    pub(super) fn matches_strongly(&self, validators: &Validators) -> bool {
        !self.is_weak && validators.are_strong && self.matches_weakly(validators)
    }

    /// Compares weakly: they are equal except for `W/`. RFC 9110 section 8.8.3.2.
    pub(super) fn matches_weakly(&self, validators: &Validators) -> bool {
        self.opaque == validators.opaque.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        let show = |tag: EntityTag<'_>| {
            format!("{}{}", if tag.is_weak { "W/" } else { "" }, tag.opaque.escape_ascii())
        };
        EntityTag::list(text.as_bytes()).map(show).collect()
    }

    #[test]
    fn rfc9110_8_8_3_tags_of_a_list() {
        for (text, expected) in [
            (r#""a""#, &["a"][..]),
            (r#""a", W/"b","c""#, &["a", "W/b", "c"]),
            (r#" , "a",, ,"b" , "#, &["a", "b"]),
            (r#""a,b", "c""#, &["a,b", "c"]),
            (r#""""#, &[""]),
            ("\"\u{e9}\"", &["\\xc3\\xa9"]),
            ("", &[]),
            ("a", &[]),
            (r#"w/"a""#, &[]),
            (r#"W/ "a""#, &[]),
            (r#""a"#, &[]),
            (r#""a" "b""#, &[]),
            (r#""a", b, "c""#, &["a"]),
            (r#""a b""#, &[]),
        ] {
            assert_eq!(list(text), expected, "{text}");
        }
        assert_eq!(EntityTag::parse(br#""a", "b""#), None);
        assert_eq!(EntityTag::parse(br#""a""#).map(|tag| tag.opaque), Some(&b"a"[..]));
    }

    #[test]
    fn rfc9110_8_8_3_2_strong_and_weak_comparison() {
        let validators =
            |are_strong| Validators { opaque: "1".into(), are_strong, last_modified: None };
        // The table in that section: the server's tag, the client's tag, strong, weak.
        for (are_strong, theirs, strongly, weakly) in [
            (false, r#"W/"1""#, false, true),
            (false, r#"W/"2""#, false, false),
            (false, r#""1""#, false, true),
            (true, r#"W/"1""#, false, true),
            (true, r#""1""#, true, true),
            (true, r#""2""#, false, false),
        ] {
            let tag = EntityTag::parse(theirs.as_bytes()).unwrap();
            let ours = validators(are_strong);
            let found = (tag.matches_strongly(&ours), tag.matches_weakly(&ours));
            assert_eq!(found, (strongly, weakly), "{are_strong} {theirs}");
        }
    }
}
