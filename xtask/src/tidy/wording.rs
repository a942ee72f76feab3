//! Checks the wording of docs, comments, texts and names: standard words, and docs that describe an
//! item without its context.

use super::Source;

/// Words that have a standard replacement, in two parts so that this file does not contain them.
const BANNED: [(&str, &str, &str); 28] = [
    ("an", "ew", "again"),
    ("be", "ll", "wake fd"),
    ("cr", "ew", "client pool"),
    ("de", "af", "paused, unresponsive"),
    ("fare", "well", "close, unregister"),
    ("good", "bye", "close"),
    ("good", "byes", "closes"),
    ("gue", "sts", "clients"),
    ("hea", "rers", "receivers"),
    ("help", "ing", "chunk"),
    ("help", "ings", "chunks"),
    ("ho", "use", "repository"),
    ("ki", "n", "process statistics"),
    ("new", "comers", "unregistered connections"),
    ("no", "body", "no one, or name it"),
    ("par", "cel", "user event"),
    ("patient", "ly", "again, with a timeout"),
    ("pat", "ience", "timeout, overflow policy"),
    ("se", "at", "thread number, slot"),
    ("se", "ats", "thread registry, slots"),
    ("some", "body", "name it"),
    ("te", "lls", "reports, returns"),
    ("to", "ld", "reported, given"),
    ("where", "abouts", "progress"),
    ("who", "ever", "name it"),
    ("who", "mever", "name it"),
    ("trou", "bles", "failures, problems"),
    ("vis", "itor", "client"),
];

/// The trait of serde whose name is a banned word.
const SERDE_TRAIT: &str = concat!("Vis", "itor");

/// First words of docs that do not stand on their own in an index.
const OPENINGS: [&str; 11] = [
    "What ",
    "How ",
    "Has ",
    "Those ",
    "Of ",
    "The same",
    "See the module",
    "Who ",
    "Whom ",
    "As [",
    "Says ",
];

/// Starts of functions whose names are clauses without a statement.
const NAMES: [&str; 3] = ["fn what_", "fn who_", "fn whom_"];

/// Returns every problem of a Rust or Markdown file.
pub(super) fn problems(file: &Source) -> Vec<String> {
    let mut problems = Vec::new();
    if !(file.is_rust() || file.is_markdown()) {
        return problems;
    }
    let banned = BANNED.map(|(first, second, instead)| (format!("{first}{second}"), instead));
    let mut previous = "";
    for (index, line) in file.text.lines().enumerate() {
        let mut add = |what: String| problems.push(format!("{}:{}: {what}", file.path, index + 1));
        for (word, instead) in &banned {
            if has_word(line, word) {
                add(format!("`{word}`; use a standard word: {instead}"));
            }
        }
        if file.is_rust()
            && let Some(opening) = bad_opening(line, previous)
        {
            add(format!("doc opens with `{}`; use a noun phrase or a verb", opening.trim_end()));
        }
        if file.is_rust() && NAMES.iter().any(|start| line.trim_start().starts_with(start)) {
            add("a function's name is a statement or a verb, not a clause".into());
        }
        previous = line;
    }
    problems
}

/// Returns whether the line has the word, alone or as a part of a snake_case name, in any case.
/// The name of serde's trait is not one.
fn has_word(line: &str, word: &str) -> bool {
    line.split(|c: char| !c.is_alphabetic())
        .any(|part| part.eq_ignore_ascii_case(word) && part != SERDE_TRAIT)
}

/// Returns the bad opening of a doc comment that begins on this line.
fn bad_opening(line: &str, previous: &str) -> Option<&'static str> {
    let doc = doc_text(line)?;
    let begins = doc_text(previous).is_none();
    OPENINGS.into_iter().find(|opening| begins && doc.starts_with(opening))
}

/// Returns the text of a line of documentation.
fn doc_text(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
    (!text.starts_with('/')).then(|| text.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        problems(&Source { path: path.into(), text: text.into() })
    }

    fn word(index: usize) -> String {
        format!("{}{}", BANNED[index].0, BANNED[index].1)
    }

    #[test]
    fn banned_words_are_found_in_comments_texts_and_names() {
        let word = word(11);
        for line in [
            format!("// heard by {word}, ever"),
            format!("    \"{word} listens\""),
            format!("fn {word}_listens() {{"),
            word.to_uppercase(),
        ] {
            assert_eq!(found("src/a.rs", &line).len(), 1, "{line}");
            assert_eq!(found("docs/a.md", &line).len(), 1, "{line}");
            assert_eq!(found("a.toml", &line).len(), 0, "{line}");
        }
        let problems = found("src/a.rs", &format!("\n// {word}"));
        assert!(problems[0].starts_with(&format!("src/a.rs:2: `{word}`")), "{problems:?}");
    }

    #[test]
    fn names_that_are_clauses_are_found() {
        for line in ["fn what_is_left() {", "    fn who_listens() {"] {
            assert_eq!(found("src/a.rs", line).len(), 1, "{line}");
        }
        assert_eq!(found("src/a.rs", "fn nothing_is_left() {}").len(), 0);
    }

    #[test]
    fn parts_of_other_words_are_not_banned_words() {
        for index in 0..BANNED.len() {
            let word = word(index);
            assert_eq!(found("src/a.rs", &format!("// x{word} {word}x")).len(), 0, "{word}");
        }
    }

    #[test]
    fn the_trait_of_serde_keeps_its_name() {
        let line = format!("impl {SERDE_TRAIT}<'_> for Text {{");
        assert_eq!(found("src/a.rs", &line).len(), 0);
        assert_eq!(found("src/a.rs", &line.to_lowercase()).len(), 1);
    }

    #[test]
    fn docs_that_need_their_context_are_found() {
        for line in
            ["/// What is left.", "    //! The same, without waiting.", "/// Who sits where."]
        {
            assert_eq!(found("src/a.rs", line).len(), 1, "{line}");
        }
        for text in [
            "/// Returns the rest.\n/// What follows is left alone.",
            "// What is left is sent next.",
            "let text = \"What is left\";",
            "//// What is left.",
        ] {
            assert_eq!(found("src/a.rs", text).len(), 0, "{text}");
        }
        assert_eq!(found("docs/a.md", "What is left").len(), 0);
    }
}
