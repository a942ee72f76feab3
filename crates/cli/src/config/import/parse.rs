//! The syntax of nginx's files: directives with arguments, a semicolon or a block.

use std::iter::Peekable;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::Chars;

use super::Left;

/// A directive.
#[derive(Clone, Debug)]
pub(super) struct Directive {
    /// The file, if it is not the first one.
    pub(super) file: Option<Rc<str>>,
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) args: Vec<String>,
    pub(super) block: Option<Vec<Self>>,
}

impl Directive {
    /// Returns the file and the line.
    pub(super) fn place(&self) -> String {
        match &self.file {
            Some(file) => format!("{file} line {}", self.line),
            None => format!("line {}", self.line),
        }
    }

    /// Returns the directive as it is written, on one line, without its block.
    pub(super) fn written(&self) -> String {
        let mut text = self.name.clone();
        for arg in &self.args {
            text.push(' ');
            text.push_str(arg);
        }
        let is_long = text.chars().count() > 80;
        let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        match is_long {
            true => text.chars().take(80).chain("...".chars()).collect(),
            false => text,
        }
    }

    pub(super) fn arg(&self) -> &str {
        self.args.first().map_or("", String::as_str)
    }

    /// Returns that it is not translated.
    pub(super) fn left(&self, why: impl Into<String>) -> Left {
        Left { place: self.place(), directive: self.written(), why: why.into() }
    }
}

/// Maximum bytes of all files, depth of blocks, and number of files.
const MAX_BYTES: usize = 4 << 20;
const MAX_DEPTH: usize = 32;
const MAX_FILES: usize = 1_000;

/// Reads a file and the files that it includes, except what is not below its folder.
///
/// # Errors
/// A file cannot be read, or is malformed.
pub(super) fn read(path: &Path) -> Result<(Vec<Directive>, Vec<Left>), String> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    let folder = folder.map_err(|error| format!("{}: {error}", path.display()))?;
    let mut reader = Reader { folder, left: Vec::new(), bytes: 0, files: 0 };
    let tree = reader.file(path, None, 0)?;
    Ok((tree, reader.left))
}

struct Reader {
    /// Without links.
    folder: PathBuf,
    left: Vec<Left>,
    bytes: usize,
    files: usize,
}

impl Reader {
    fn file(
        &mut self,
        path: &Path,
        name: Option<Rc<str>>,
        depth: usize,
    ) -> Result<Vec<Directive>, String> {
        let most = (MAX_BYTES - self.bytes) as u64;
        let text = throng_io::file::read_text_once(path, most)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        (self.bytes, self.files) = (self.bytes + text.len(), self.files + 1);
        if self.files > MAX_FILES {
            return Err(format!("more than {MAX_FILES} files are included"));
        }
        let mut words = Words { chars: text.chars().peekable(), line: 1 };
        let tree = directives(&mut words, name.as_ref(), 0)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        self.included(tree, depth)
    }

    /// Puts the content of files in the place of the directives that include them.
    fn included(&mut self, tree: Vec<Directive>, depth: usize) -> Result<Vec<Directive>, String> {
        let mut all = Vec::new();
        for mut directive in tree {
            if directive.name != "include" {
                if let Some(block) = directive.block.take() {
                    directive.block = Some(self.included(block, depth)?);
                }
                all.push(directive);
                continue;
            }
            if depth >= MAX_DEPTH {
                return Err(format!("{}: files include each other", directive.place()));
            }
            match self.paths(directive.arg()) {
                Some(paths) => {
                    for (path, name) in paths {
                        all.extend(self.file(&path, Some(name.into()), depth + 1)?);
                    }
                }
                None if is_harmless(directive.arg()) => {}
                None => all.push(directive),
            }
        }
        Ok(all)
    }

    /// Returns the files of an `include` with their names; `None` if one is not below the folder.
    fn paths(&self, pattern: &str) -> Option<Vec<(PathBuf, String)>> {
        let path = self.folder.join(pattern);
        let (parent, last) = (path.parent()?, path.file_name()?.to_str()?);
        let parent = parent.canonicalize().ok()?;
        let mut names = match last.split_once('*') {
            None => vec![last.to_owned()],
            Some((before, after)) => {
                let entries = parent.read_dir().ok()?.filter_map(|entry| entry.ok());
                let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
                let is_one = |name: &String| {
                    name.len() >= before.len() + after.len()
                        && name.starts_with(before)
                        && name.ends_with(after)
                        && !name.starts_with('.')
                };
                names.filter(is_one).collect()
            }
        };
        names.sort_unstable();
        let of_one = |name: String| {
            let path = parent.join(&name).canonicalize().ok()?;
            let inside = path.strip_prefix(&self.folder).ok()?.display().to_string();
            Some((path, inside))
        };
        names.into_iter().map(of_one).collect()
    }
}

/// Returns whether a file that is not read restricts nothing: types of files, parameters of
/// gateways, modules.
fn is_harmless(pattern: &str) -> bool {
    let name = pattern.rsplit('/').next().unwrap_or_default();
    name == "mime.types" || name.ends_with("_params") || pattern.contains("modules-enabled/")
}

enum Word {
    Text(String),
    End,
    Open,
    Close,
}

struct Words<'t> {
    chars: Peekable<Chars<'t>>,
    line: usize,
}

impl Words<'_> {
    fn take(&mut self) -> Option<char> {
        let next = self.chars.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    /// Returns the next word and its line.
    fn word(&mut self) -> Result<Option<(Word, usize)>, String> {
        loop {
            match self.chars.peek() {
                None => return Ok(None),
                Some('#') => {
                    while self.chars.peek().is_some_and(|c| *c != '\n') {
                        self.take();
                    }
                }
                Some(c) if c.is_whitespace() => drop(self.take()),
                Some(_) => break,
            }
        }
        let line = self.line;
        let word = match self.chars.peek() {
            Some(';') => Word::End,
            Some('{') => Word::Open,
            Some('}') => Word::Close,
            Some(quote @ ('"' | '\'')) => {
                let quote = *quote;
                self.take();
                return Ok(Some((Word::Text(self.quoted(quote, line)?), line)));
            }
            _ => return Ok(Some((Word::Text(self.plain()), line))),
        };
        self.take();
        Ok(Some((word, line)))
    }

    fn quoted(&mut self, quote: char, line: usize) -> Result<String, String> {
        let mut text = String::new();
        while let Some(c) = self.take() {
            match c {
                '\\' => match self.take() {
                    Some('n') => text.push('\n'),
                    Some('r') => text.push('\r'),
                    Some('t') => text.push('\t'),
                    Some(c @ ('"' | '\'' | '\\')) => text.push(c),
                    Some(c) => text.extend(['\\', c]),
                    None => break,
                },
                c if c == quote => return Ok(text),
                c => text.push(c),
            }
        }
        Err(format!("line {line}: the text has no end"))
    }

    fn plain(&mut self) -> String {
        let mut text = String::new();
        while let Some(c) = self.chars.peek().copied() {
            // `${name}` is a part of the word.
            let is_variable = c == '{' && text.ends_with('$');
            if is_variable {
                while let Some(c) = self.take() {
                    text.push(c);
                    if c == '}' {
                        break;
                    }
                }
                continue;
            }
            if c.is_whitespace() || matches!(c, ';' | '{' | '}') {
                break;
            }
            self.take();
            text.push(c);
            if c == '\\'
                && let Some(next) = self.take()
            {
                text.push(next);
            }
        }
        text
    }
}

/// Reads directives up to the end of a block, or of the file if `depth` is 0.
fn directives(
    words: &mut Words<'_>,
    file: Option<&Rc<str>>,
    depth: usize,
) -> Result<Vec<Directive>, String> {
    let mut all = Vec::new();
    loop {
        let (name, line) = match words.word()? {
            None if depth == 0 => return Ok(all),
            None => return Err("a block has no end".to_owned()),
            Some((Word::Close, _)) if depth > 0 => return Ok(all),
            Some((Word::Text(name), line)) => (name, line),
            Some((_, line)) => return Err(format!("line {line}: a directive is missing")),
        };
        let mut args = Vec::new();
        let block = loop {
            match words.word()? {
                Some((Word::Text(arg), _)) => args.push(arg),
                Some((Word::End, _)) => break None,
                Some((Word::Open, line)) if depth == MAX_DEPTH => {
                    return Err(format!("line {line}: blocks are nested too deep"));
                }
                Some((Word::Open, _)) => break Some(directives(words, file, depth + 1)?),
                Some((Word::Close, line)) => {
                    return Err(format!("line {line}: a semicolon is missing before it"));
                }
                None => return Err(format!("line {line}: {name} has no end")),
            }
        };
        all.push(Directive { file: file.cloned(), line, name, args, block });
    }
}
