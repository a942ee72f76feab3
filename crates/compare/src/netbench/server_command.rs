//! The command that starts a server: words, as a shell would split them, and what is filled in.

use std::path::Path;

use throng_load::Error;

use crate::blank_work::Mode;

/// Stands for the mode, `0` or `1`.
const MODE: &str = "{mode}";
/// Stands for the port that is asked.
const PORT: &str = "{port}";
/// Characters that only a shell understands outside quotes.
const SHELL: &[char] = &['|', '&', ';', '<', '>', '(', ')', '$', '`', '*', '?', '~'];

/// A program and its arguments. No shell reads them, so nothing in them is expanded.
///
/// `{mode}` in a word becomes `0` (blank) or `1` (work), and `{port}` the port. Without any
/// `{mode}` the mode follows as the last argument, as the suite starts its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerCommand {
    /// Never empty.
    words: Vec<String>,
}

impl ServerCommand {
    /// Splits a line: words end at white space; `'...'`, `"..."` and a backslash keep it.
    ///
    /// # Errors
    /// [`Error::Usage`] for an empty line, an open quote, or what only a shell would understand.
    pub(crate) fn parse(line: &str) -> Result<Self, Error> {
        let words = split(line)
            .map_err(|what| Error::Usage(format!("cannot use the command {line:?}: {what}")))?;
        Self::of(words)
    }

    /// These words as they are.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no program among them.
    pub(crate) fn of(words: Vec<String>) -> Result<Self, Error> {
        match words.first() {
            Some(program) if !program.is_empty() => Ok(Self { words }),
            _ => Err(Error::Usage(
                "the server's command is empty: write the program and its arguments, such as \
                 'node server.js'"
                    .to_owned(),
            )),
        }
    }

    /// The words as they were written.
    #[must_use]
    pub(crate) fn words(&self) -> &[String] {
        &self.words
    }

    /// A name for a table: the program's, or of an interpreter the script's; without directories
    /// and ending.
    #[must_use]
    pub(crate) fn name(&self) -> String {
        let file = |word: &String| {
            Path::new(word).file_stem().map(|name| name.to_string_lossy().into_owned())
        };
        let program = self.words.first().and_then(file).unwrap_or_default();
        let runs_others = ["node", "bun", "deno", "python", "python3", "ruby", "php", "java", "go"];
        let script = self.words.iter().skip(1).find(|word| {
            !word.starts_with('-') && Path::new(word).extension().is_some() && !word.contains(' ')
        });
        match script.and_then(file) {
            Some(script) if runs_others.contains(&program.as_str()) => script,
            _ => program,
        }
    }

    /// The words for one start.
    pub(super) fn filled(&self, mode: Mode, port: u16) -> Vec<String> {
        let fill =
            |word: &String| word.replace(MODE, mode.argument()).replace(PORT, &port.to_string());
        let mut words: Vec<String> = self.words.iter().map(fill).collect();
        if !self.words.iter().any(|word| word.contains(MODE)) {
            words.push(mode.argument().to_owned());
        }
        words
    }
}

fn split(line: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word): (Vec<String>, Option<String>) = (Vec::new(), None);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        if c.is_whitespace() {
            words.extend(word.take());
            continue;
        }
        let text = word.get_or_insert_default();
        match c {
            '\'' | '"' => read_quoted(c, &mut chars, text)?,
            '\\' => text.push(chars.next().ok_or("it ends in a backslash")?),
            c if SHELL.contains(&c) => {
                return Err(format!(
                    "{c} means something to a shell, and none reads this: quote it, or write \
                     sh -c 'exec ...'"
                ));
            }
            c => text.push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Reads to the closing `quote`; within `"` a backslash keeps a `"` or a backslash.
fn read_quoted(
    quote: char,
    chars: &mut std::str::Chars<'_>,
    text: &mut String,
) -> Result<(), String> {
    loop {
        match chars.next() {
            None => return Err(format!("the quote {quote} is not closed")),
            Some(c) if c == quote => return Ok(()),
            Some('\\') if quote == '"' => match chars.next() {
                Some(c @ ('"' | '\\')) => text.push(c),
                Some(c) => text.extend(['\\', c]),
                None => return Err(format!("the quote {quote} is not closed")),
            },
            Some(c) => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        ServerCommand::parse(line).unwrap().words
    }

    #[test]
    fn a_line_is_split_as_a_shell_does() {
        assert_eq!(words("  node  server.js "), ["node", "server.js"]);
        assert_eq!(
            words(r#"a 'b c' "d \" \\ \n $x" e\ f'' ''"#),
            ["a", "b c", r#"d " \ \n $x"#, "e f", ""]
        );
        assert_eq!(words("sh -c 'exec ./x {mode} | cat'"), ["sh", "-c", "exec ./x {mode} | cat"]);
    }

    #[test]
    fn a_command_that_needs_a_shell_is_refused_with_the_remedy() {
        for (line, hint) in [
            ("", "is empty"),
            ("   ", "is empty"),
            ("'' x", "is empty"),
            ("a 'b", "quote ' is not closed"),
            ("a \"b\\", "quote \" is not closed"),
            ("a \\", "ends in a backslash"),
            ("a | b", "sh -c 'exec ...'"),
            ("$HOME/server", "sh -c"),
            ("server &", "sh -c"),
        ] {
            let error = ServerCommand::parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(hint), "{line}: {error}");
        }
    }

    #[test]
    fn the_mode_comes_last_or_where_it_is_asked_for() {
        let filled = |line: &str, mode| ServerCommand::parse(line).unwrap().filled(mode, 1234);
        assert_eq!(filled("./server", Mode::Blank), ["./server", "0"]);
        assert_eq!(filled("./server -x", Mode::Work), ["./server", "-x", "1"]);
        assert_eq!(filled("s -m={mode} -p {port}", Mode::Work), ["s", "-m=1", "-p", "1234"]);
        assert_eq!(filled("s {port}", Mode::Blank), ["s", "1234", "0"]);
    }

    #[test]
    fn names_are_short() {
        for (line, name) in [
            ("/usr/local/bin/throng serve --netbench", "throng"),
            ("node ./source/Node.HTTP.js", "Node.HTTP"),
            ("node", "node"),
            ("bin/Golang.HTTP.exe", "Golang.HTTP"),
            ("python3 -u 'a b/s.py'", "python3"),
        ] {
            assert_eq!(ServerCommand::parse(line).unwrap().name(), name);
        }
    }
}
