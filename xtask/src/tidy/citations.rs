//! Checks RFC citations: always `RFC 6455 section 5.4`, and a link leads to the cited number and
//! section.

use super::Source;

/// Returns every citation in Rust or Markdown with another form, or whose link leads elsewhere.
pub(super) fn problems(files: &[Source]) -> Vec<String> {
    let cited = files.iter().filter(|file| file.is_rust() || file.path.ends_with(".md"));
    // The examples of errors in this file are exempt.
    let cited = cited.filter(|file| !file.path.ends_with("tidy/citations.rs"));
    cited
        .flat_map(|file| {
            of_file(&file.text)
                .into_iter()
                .map(|(line, what)| format!("{}:{line}: {what}", file.path))
        })
        .collect()
}

fn of_file(text: &str) -> Vec<(usize, String)> {
    let lines = text.lines().enumerate();
    lines
        .flat_map(|(index, line)| of_line(line).into_iter().map(move |what| (index + 1, what)))
        .collect()
}

fn of_line(line: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, _) in line.match_indices("RFC") {
        let rest = &line[at + 3..];
        let number = digits(rest.trim_start_matches(['-', '_', ' ', '#']));
        if number.len() < 3 || line[..at].ends_with(char::is_alphanumeric) {
            continue;
        }
        // A name of code, such as `GeneralName::RFC822Name`.
        let behind = rest.strip_prefix(number).and_then(|behind| behind.chars().next());
        if behind.is_some_and(char::is_alphabetic) {
            continue;
        }
        if !rest.starts_with(&format!(" {number}")) {
            problems.push(format!("write `RFC {number}`, with one space"));
        }
        let after =
            rest.split_once(number).map_or("", |(_, after)| after).trim_start_matches([',', ' ']);
        if after.starts_with('§')
            || after.starts_with("sec.")
            || after.starts_with("Section")
            || after.starts_with("s.")
        {
            problems.push(format!("write `RFC {number} section ...`"));
        }
    }
    for (at, marker) in line.match_indices("/rfc/rfc") {
        let link = &line[at + marker.len()..];
        let number = digits(link);
        let section = link[number.len()..].strip_prefix("#section-").map(section_number);
        // The link target of the text before it, on the same line:
        // `[RFC 6455 section 5.4](https://...)`.
        let Some(text) = line[..at]
            .rsplit_once("](")
            .and_then(|(before, _)| before.rsplit_once('['))
            .map(|(_, text)| text)
        else {
            continue;
        };
        let cited = text.split_once("RFC ").map(|(_, cited)| digits(cited));
        if cited.is_some_and(|cited| cited != number) {
            problems.push(format!("`{text}` links to RFC {number}"));
        }
        let cited = text.split_once("section ").map(|(_, cited)| section_number(cited));
        if cited.is_some() && cited != section {
            problems.push(format!("`{text}` links to section {}", section.unwrap_or("none")));
        }
    }
    problems
}

fn digits(text: &str) -> &str {
    &text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())]
}

/// Returns `5.4` of `5.4, the rest`. Appendix letters are not section numbers.
fn section_number(text: &str) -> &str {
    text[..text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len())]
        .trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_citations_pass() {
        for line in [
            "// RFC 6455 section 5.5: at most 125 bytes",
            "/// [RFC 6455 section 5.4](https://www.rfc-editor.org/rfc/rfc6455#section-5.4).",
            "[RFC 7692](https://www.rfc-editor.org/rfc/rfc7692)",
            "fn rfc6455_5_5_control_frame_over_125_is_refused() {",
            "the RFC says so",
            "GeneralName::RFC822Name(name)",
        ] {
            assert_eq!(of_line(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn other_forms_and_wrong_links_are_named() {
        for line in [
            "// RFC6455 section 5.5",
            "// RFC-6455",
            "// RFC 6455 §5.5",
            "// RFC 6455, Section 5.5",
            "/// [RFC 6455 section 5.4](https://www.rfc-editor.org/rfc/rfc7692#section-5.4)",
            "/// [RFC 6455 section 5.4](https://www.rfc-editor.org/rfc/rfc6455#section-5.5)",
            "/// [RFC 6455 section 5.4](https://www.rfc-editor.org/rfc/rfc6455)",
        ] {
            assert_eq!(of_line(line).len(), 1, "{line}: {:?}", of_line(line));
        }
    }
}
