//! Checks that commit subjects are `area: effect` and short.

/// The last commit before the rule.
pub(super) const SINCE: &str = "427e3b3";

/// The longest subject.
const MAX_LENGTH: usize = 72;

/// Returns every problem of `log`, which has one hash and subject per line.
pub(super) fn problems(log: &str) -> Vec<String> {
    log.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(hash, subject)| Some(format!("{hash} {subject}: {}", problem(subject)?)))
        .collect()
}

fn problem(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > MAX_LENGTH {
        return Some(format!("{length} characters; at most {MAX_LENGTH}"));
    }
    let has_form = subject.split_once(": ").is_some_and(|(areas, effect)| {
        areas.split(", ").all(is_area) && effect.starts_with(char::is_alphanumeric)
    });
    if !has_form {
        return Some("write `area: effect`, for example `io: report a full socket once`".into());
    }
    subject.ends_with('.').then(|| "no full stop at the end".into())
}

/// Returns whether this is a lower-case name of a crate, folder or document.
fn is_area(area: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_/.".contains(c);
    area.starts_with(|c: char| c.is_ascii_lowercase() || c == '.') && area.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_subjects_pass() {
        for subject in [
            "balance: bound what is held of a pipelining client",
            "io, proto: use standard names",
            "docs/http: describe trailers",
            ".ci: run the repository checks first",
        ] {
            assert_eq!(problem(subject), None, "{subject}");
        }
    }

    #[test]
    fn other_forms_are_named_with_their_hash() {
        let long = format!("io: {}", "x".repeat(69));
        for subject in ["Fix it", "io fix", "IO: fix", "io:fix", "io: ", "io: fix it.", &long] {
            assert!(problem(subject).is_some(), "{subject}");
        }
        let log = "abc1234 io: use standard names\ndef5678 Give it a name\n";
        let found = problems(log);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("def5678 Give it a name: write "), "{found:?}");
    }
}
