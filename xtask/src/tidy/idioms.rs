//! Counts idioms in comments that readers must untangle, and docs that begin with "Most".

use super::Source;
use super::counts::Count;

/// The words of each idiom, and its replacement in good text. `*` is any word.
const IDIOMS: [(&[&str], &str); 26] = [
    (&["is", "no", "*"], "is not a"),
    (&["are", "no", "*"], "are not"),
    (&["that", "of"], "the noun again"),
    (&["those", "of"], "the noun again"),
    (&["one", "that"], "the noun"),
    (&["is", "none"], "there is no, is not valid"),
    (&["are", "none"], "there are no"),
    (&["whatever"], "any"),
    (&["however"], "even if, of any size"),
    (&["ours"], "the server's, sent by us"),
    (&["says", "what"], "names"),
    (&["says", "that"], "states"),
    (&["what", "it"], "name the thing"),
    (&["what", "they"], "name the thing"),
    (&["of", "which"], "whose, or two sentences"),
    (&["meanwhile"], "until then, or nothing"),
    (&["any", "more"], "no longer"),
    (&[",", "too."], "also, or nothing"),
    (&["on", "its", "way"], "queued, in flight"),
    (&["behind", "it"], "after it"),
    (&["by", "then"], "at that time"),
    (&["is", "to", "*"], "must"),
    (&["are", "to", "*"], "must"),
    (&["notes", "that"], "records"),
    (&["but", "those"], "except"),
    (&["^", "most"], "Maximum, as the first word of a doc"),
];

/// Counts each idiom in the comments of all Rust files.
pub(super) fn counts(files: &[Source]) -> Vec<Count> {
    let sources = files.iter().filter(|file| file.is_rust() && file.is_in_workspace());
    let words: Vec<(&str, Vec<Word>)> =
        sources.map(|file| (file.path.as_str(), comment_words(&file.text))).collect();
    let count = |(idiom, instead): (&[&str], &str)| {
        let places = words.iter().flat_map(|(path, words)| {
            let found = found(idiom, words);
            found.map(move |line| format!("{path}:{line}"))
        });
        Count::of(format!("`{}` in comments: write {instead}", idiom.join(" ")), places.collect())
    };
    IDIOMS.into_iter().map(count).collect()
}

/// A word of a comment, in lower case.
struct Word {
    text: String,
    line: usize,
}

/// Returns the words of all comments. A comma is a separate word, `^` begins a doc, and an empty
/// word ends each comment and each sentence.
fn comment_words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut previous = "";
    for (index, line) in text.lines().enumerate() {
        let mut add = |text: &str| words.push(Word { text: text.to_lowercase(), line: index + 1 });
        let Some((kind, comment)) = comment(line) else {
            previous = "";
            continue;
        };
        if kind != previous {
            add("");
            if kind != "//" {
                add("^");
            }
        }
        previous = kind;
        for word in comment.split_whitespace() {
            let word = word.trim_start_matches(['(', '"']);
            match word.strip_suffix(',') {
                Some(word) => {
                    add(word);
                    add(",");
                }
                None => match word.strip_suffix([':', ';', '.', ')']) {
                    Some("too") => add("too."),
                    Some(word) => {
                        add(word);
                        add("");
                    }
                    None => add(word),
                },
            }
        }
    }
    words
}

/// Returns the kind and the text of a line that is a comment, or ends with one.
fn comment(line: &str) -> Option<(&'static str, &str)> {
    let trimmed = line.trim_start();
    for kind in ["///", "//!", "//"] {
        if let Some(text) = trimmed.strip_prefix(kind) {
            return Some((kind, text));
        }
    }
    line.split_once(" // ").map(|(_, text)| ("//", text))
}

/// Returns the lines on which an idiom begins. Exceptions: after "there", and before "longer".
fn found<'w>(idiom: &'w [&str], words: &'w [Word]) -> impl Iterator<Item = usize> + 'w {
    let matches = |(wanted, word): (&&str, &Word)| match *wanted {
        "*" => !word.text.is_empty() && word.text != "longer" && word.text != ",",
        wanted => word.text == wanted,
    };
    (0..words.len())
        .filter(move |&at| {
            let follows_there = at > 0 && words[at - 1].text == "there";
            let is_allowed =
                follows_there && idiom.get(1).is_some_and(|word| word.starts_with("no"));
            let rest = &words[at..];
            rest.len() >= idiom.len() && !is_allowed && idiom.iter().zip(rest).all(matches)
        })
        .map(|at| words[at].line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<(String, Vec<String>)> {
        let file = Source { path: "crates/a/src/a.rs".into(), text: text.into() };
        let counts = counts(&[file]).into_iter().filter(|count| count.number > 0);
        counts.map(|count| (count.name, count.places)).collect()
    }

    #[test]
    fn an_idiom_counts_across_the_lines_of_a_comment() {
        let found =
            of("/// A client that is\n/// no longer here. It is\n/// no server.\nfn f() {}\n");
        assert_eq!(
            found,
            [(
                "`is no *` in comments: write is not a".to_owned(),
                vec!["crates/a/src/a.rs:2".into()]
            )]
        );
        assert!(of("// it is\nlet a = 1;\n// no server\n").is_empty(), "two comments");
        assert!(of("let a = \"is no server\";\n").is_empty(), "no comment");
        assert_eq!(
            of("// One of two. That of course.\n// there is no server, there is none\n").len(),
            1
        );
    }

    #[test]
    fn words_are_compared_without_their_punctuation() {
        assert_eq!(of("let a = 1; // (Meanwhile, it waits.)\n").len(), 1);
        assert_eq!(of("// It waits, too.\n").len(), 1);
        assert_eq!(of("// Far too.\n").len(), 0);
    }

    #[test]
    fn most_counts_as_the_first_word_of_a_doc() {
        assert_eq!(of("/// Most bytes of a read.\nconst A: u8 = 0;\n").len(), 1);
        assert_eq!(of("/// Bytes.\n/// Most bytes.\n// Most.\n").len(), 0);
    }
}
