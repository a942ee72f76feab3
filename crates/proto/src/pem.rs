//! PEM (RFC 7468): blocks of base64 between two lines, `-----BEGIN` and `-----END`.
//!
//! A file has as many blocks as such lines; otherwise it is refused with the line at fault. Common
//! parsers treat an unknown line as a comment: if two files were joined without a line break, or a
//! file was saved with a byte-order mark, they silently omit an authority or a list of revoked
//! certificates.
//!
//! White space around lines, all three kinds of line breaks, byte-order marks, and text between
//! blocks are accepted.

use std::fmt;

/// The expected contents of a PEM file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A certificate and the certificates that lead to its root. The file may also contain its
    /// private key.
    Chain,
    /// Certificates of authorities.
    Authorities,
    /// One private key. The file may also contain its certificates.
    Key,
    /// Lists of revoked certificates.
    Revoked,
}

/// A PEM block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Block<'t> {
    /// The block's kind, such as `CERTIFICATE`.
    pub label: &'t str,
    /// The line at which the block begins, counted from 1.
    pub line: usize,
    /// Header lines (RFC 1421) and base64 data.
    body: &'t [u8],
    has_headers: bool,
}

/// A mistake in a PEM file, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PemError {
    /// The line at fault, counted from 1; `None` if the whole file is at fault.
    pub line: Option<usize>,
    what: String,
}

impl PemError {
    /// Creates an error for a line.
    #[must_use]
    pub fn at(line: usize, what: impl Into<String>) -> Self {
        Self { line: Some(line), what: what.into() }
    }

    fn of_file(what: impl Into<String>) -> Self {
        Self { line: None, what: what.into() }
    }
}

impl fmt::Display for PemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for PemError {}

/// Omits the body, which may be a key.
impl fmt::Debug for Block<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { label, line, .. } = self;
        f.debug_struct("Block").field("label", label).field("line", line).finish_non_exhaustive()
    }
}

impl Block<'_> {
    /// Returns the block in a form that all PEM parsers read in the same way.
    #[must_use]
    pub fn to_pem(&self) -> Vec<u8> {
        // Reserves enough capacity: a growing vector leaves copies behind, and the block may be a
        // key.
        let mut pem = Vec::with_capacity(self.body.len() + 2 * self.label.len() + 40);
        let line = |pem: &mut Vec<u8>, parts: [&[u8]; 3]| {
            parts.iter().for_each(|part| pem.extend_from_slice(part));
        };
        line(&mut pem, [b"-----BEGIN ", self.label.as_bytes(), b"-----\n"]);
        for (_, text) in lines(self.body).filter(|(_, text)| !text.is_empty()) {
            line(&mut pem, [text, b"\n", b""]);
        }
        line(&mut pem, [b"-----END ", self.label.as_bytes(), b"-----\n"]);
        pem
    }

    fn is_private_key(&self) -> bool {
        self.label == "PRIVATE KEY" || self.label.ends_with(" PRIVATE KEY")
    }
}

impl Wanted {
    /// Returns the blocks of the wanted kind in a file, at least one.
    ///
    /// # Errors
    /// A line is at fault, a block has a kind that is meaningless in such a file, or there is no
    /// block of the wanted kind. No block is dropped silently.
    pub fn blocks(self, text: &[u8]) -> Result<Vec<Block<'_>>, PemError> {
        let all = blocks(text)?;
        let mut wanted = Vec::new();
        for block in &all {
            match (self, block.label) {
                (Self::Chain | Self::Authorities, "CERTIFICATE") | (Self::Revoked, "X509 CRL") => {
                    wanted.push(*block);
                }
                (Self::Chain, _) if block.is_private_key() => continue,
                (Self::Key, "PRIVATE KEY" | "RSA PRIVATE KEY" | "EC PRIVATE KEY") => {
                    wanted.push(*block);
                }
                // OpenSSL writes these parameters before an EC key.
                (Self::Chain | Self::Key, "EC PARAMETERS") | (Self::Key, "CERTIFICATE") => {}
                _ => return Err(self.refusal(block, &all)),
            }
            if block.has_headers {
                return Err(match block.is_private_key() {
                    true => encrypted(block.line),
                    false => PemError::at(
                        block.line,
                        "the block has header lines, which are not read here; convert it with \
                         `openssl x509 -in FILE -out NEW_FILE`",
                    ),
                });
            }
        }
        if let (Self::Key, [_, second, ..]) = (self, &wanted[..]) {
            let what = "there is a second private key, and one is read; keep the key of the first \
                        certificate";
            return Err(PemError::at(second.line, what));
        }
        match wanted.is_empty() {
            true => Err(PemError::of_file(self.nothing(text, &all))),
            false => Ok(wanted),
        }
    }

    /// Returns the error for a block that is meaningless in such a file.
    fn refusal(self, block: &Block<'_>, all: &[Block<'_>]) -> PemError {
        let label = block.label;
        if self == Self::Key && (label == "ENCRYPTED PRIVATE KEY" || block.has_headers) {
            return encrypted(block.line);
        }
        // If all blocks are of another kind, the whole file is the wrong one.
        let is_other = |wanted: Self| all.iter().all(|block| wanted.reads(block));
        let remedy = match (label, self) {
            ("CERTIFICATE", Self::Revoked) if is_other(Self::Authorities) => {
                return PemError::of_file(self.nothing(b"", all));
            }
            ("TRUSTED CERTIFICATE" | "X509 CERTIFICATE", _) => {
                "convert it with `openssl x509 -in FILE -out NEW_FILE`"
            }
            ("CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST", _) => {
                "it is a request for a certificate: put the certificate there that the authority \
                 has made of it"
            }
            ("PKCS7" | "CMS", _) => {
                "convert it with `openssl pkcs7 -print_certs -in FILE -out NEW_FILE`"
            }
            ("OPENSSH PRIVATE KEY", Self::Key) => {
                "convert it with `ssh-keygen -p -m PEM -f FILE`, or make a new key"
            }
            ("X509 CRL", _) => {
                "lists of revoked certificates have a file of their own (client_crl)"
            }
            ("CERTIFICATE", _) => "certificates have a file of their own",
            _ if block.is_private_key() && self == Self::Authorities && is_other(Self::Key) => {
                return PemError::of_file(self.nothing(b"", all));
            }
            _ if block.is_private_key() && self != Self::Key => {
                "a private key is not needed here: remove it from the file"
            }
            _ => "remove it from the file",
        };
        let what = format!("a block {label} is not read {}; {remedy}", self.place());
        PemError::at(block.line, what)
    }

    fn reads(self, block: &Block<'_>) -> bool {
        match self {
            Self::Chain | Self::Authorities => block.label == "CERTIFICATE",
            Self::Key => block.is_private_key() || block.label == "EC PARAMETERS",
            Self::Revoked => block.label == "X509 CRL",
        }
    }

    fn place(self) -> &'static str {
        match self {
            Self::Chain => "from a file of certificates",
            Self::Authorities => "from a file of authorities",
            Self::Key => "from the file of a private key",
            Self::Revoked => "from a file of revoked certificates",
        }
    }

    /// Returns the error for a file without a block of the wanted kind.
    fn nothing(self, text: &[u8], all: &[Block<'_>]) -> String {
        let is_der = text.starts_with(&[0x30, 0x82]) || text.starts_with(&[0x30, 0x81]);
        let is_pkcs12 = is_pkcs12(text);
        let has = |wanted: Self| all.iter().any(|block| wanted.reads(block));
        let (what, hint) = match self {
            Self::Chain | Self::Authorities => (
                "certificate",
                match () {
                    () if has(Self::Key) => {
                        "it has a private key; are certificate and key swapped?"
                    }
                    () if is_pkcs12 => {
                        "it is a PKCS#12 file (.p12 or .pfx): take them out with `openssl pkcs12 \
                         -in FILE -nokeys -out NEW_FILE`"
                    }
                    () if is_der => {
                        "convert one in DER with `openssl x509 -inform der -in FILE -out NEW_FILE`"
                    }
                    () => "a certificate begins with -----BEGIN CERTIFICATE-----",
                },
            ),
            Self::Key => (
                "private key",
                match () {
                    () if has(Self::Chain) => {
                        "it has a certificate; are certificate and key swapped?"
                    }
                    () if is_pkcs12 => {
                        "it is a PKCS#12 file (.p12 or .pfx): take it out with `openssl pkcs12 -in \
                         FILE -nocerts -nodes -out NEW_FILE`, and protect the new file with its \
                         permissions"
                    }
                    () if is_der => {
                        "convert one in DER with `openssl pkey -inform der -in FILE -out NEW_FILE`"
                    }
                    () => "a private key begins with -----BEGIN PRIVATE KEY-----",
                },
            ),
            Self::Revoked => (
                "list of revoked certificates",
                "which begins with -----BEGIN X509 CRL-----; convert one in DER with \
                 `openssl crl -inform der -in FILE -out NEW_FILE`",
            ),
        };
        match text.trim_ascii().is_empty() && all.is_empty() {
            true => format!("is empty: there is no {what} in PEM; {hint}"),
            false => format!("there is no {what} in PEM; {hint}"),
        }
    }
}

/// Returns whether this is a PKCS#12 file: a sequence that begins with version 3 (RFC 7292 section
/// 4). Certificates begin with a sequence, and private keys with another number.
fn is_pkcs12(text: &[u8]) -> bool {
    let content = match text {
        [0x30, 0x82, _, _, content @ ..] => content,
        [0x30, 0x81, _, content @ ..] | [0x30, 0x80, content @ ..] => content,
        _ => return false,
    };
    content.starts_with(&[2, 1, 3])
}

fn encrypted(line: usize) -> PemError {
    PemError::at(
        line,
        "the private key is encrypted; decrypt it with `openssl pkey -in FILE -out NEW_FILE` and \
         protect the new file with its permissions",
    )
}

/// A block whose end has not yet arrived.
struct Begun<'t> {
    label: &'t str,
    line: usize,
    /// The offset of the body in the text.
    start: usize,
    headers: Headers,
}

/// The header lines at the start of a block (RFC 1421), which end with an empty line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Headers {
    None,
    Begun,
    Over,
}

/// Returns all blocks of a text.
///
/// # Errors
/// A line looks like the beginning or end of a block but is not valid, or the content of a block is
/// not base64.
pub fn blocks(text: &[u8]) -> Result<Vec<Block<'_>>, PemError> {
    if text.starts_with(b"\xff\xfe") || text.starts_with(b"\xfe\xff") {
        return Err(PemError::of_file("is UTF-16 text; save it as ASCII or UTF-8"));
    }
    let mut all = Vec::new();
    let mut begun: Option<Begun<'_>> = None;
    for (number, line) in lines(text) {
        let boundary = match Boundary::of(line) {
            Ok(boundary) => boundary,
            Err(why) => {
                let what = format!("is not valid PEM: {why}");
                return Err(PemError::at(number, what));
            }
        };
        match (boundary, &mut begun) {
            (Some(Boundary::Begin(label)), None) => {
                let start = offset(text, line) + line.len();
                begun = Some(Begun { label, line: number, start, headers: Headers::None });
            }
            (Some(Boundary::Begin(_)), Some(open)) => return Err(open.without_end()),
            (Some(Boundary::End(label)), None) => {
                let what = format!(
                    "is not valid PEM: a block {label} ends here, and its line \
                     -----BEGIN {label}----- is missing; copy the file again"
                );
                return Err(PemError::at(number, what));
            }
            (Some(Boundary::End(label)), Some(open)) => {
                if open.label != label {
                    let what = format!(
                        "is not valid PEM: a block {label} ends here, and the one that begins in \
                         line {} is a {}; copy the file again",
                        open.line, open.label
                    );
                    return Err(PemError::at(number, what));
                }
                let body = &text[open.start..offset(text, line)];
                if lines(body).all(|(_, line)| line.is_empty()) {
                    let what = "the block is not valid PEM: it is empty; copy the file again";
                    return Err(PemError::at(open.line, what));
                }
                let has_headers = open.headers != Headers::None;
                all.push(Block { label: open.label, line: open.line, body, has_headers });
                begun = None;
            }
            (None, Some(open)) => open.take(number, line)?,
            (None, None) => {}
        }
    }
    match begun {
        Some(open) => Err(open.without_end()),
        None => Ok(all),
    }
}

impl Begun<'_> {
    fn without_end(&self) -> PemError {
        let what = format!(
            "the block is not valid PEM: the line -----END {}----- is missing; copy the file again",
            self.label
        );
        PemError::at(self.line, what)
    }

    /// Checks a line between the first and the last line of a block.
    fn take(&mut self, number: usize, line: &[u8]) -> Result<(), PemError> {
        let is_header = line.contains(&b':') && self.headers != Headers::Over;
        match self.headers {
            Headers::None if is_header => self.headers = Headers::Begun,
            Headers::Begun if line.is_empty() => self.headers = Headers::Over,
            // A further header line, or the continuation of one.
            Headers::Begun => {}
            Headers::None | Headers::Over => {
                let is_base64 =
                    |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
                if !line.iter().all(is_base64) {
                    // Omits the text, which may belong to a key.
                    let what = format!(
                        "the block is not valid PEM: line {number} is not base64; copy the file \
                         again"
                    );
                    return Err(PemError::at(self.line, what));
                }
            }
        }
        Ok(())
    }
}

/// The first or last line of a block, with its label.
#[derive(Debug, PartialEq, Eq)]
enum Boundary<'t> {
    Begin(&'t str),
    End(&'t str),
}

impl<'t> Boundary<'t> {
    /// Parses a line; `None` if it does not look like the beginning or end of a block. The error is
    /// the remedy.
    fn of(line: &'t [u8]) -> Result<Option<Self>, String> {
        if !seems_boundary(line) {
            return Ok(None);
        }
        let label = |word: &[u8]| {
            let label = line.strip_prefix(b"-----")?.strip_prefix(word)?.strip_suffix(b"-----")?;
            let is_plain = |byte: &u8| matches!(byte, b' '..=b'~');
            let is_label = !label.is_empty() && label.trim_ascii() == label;
            let is_label = is_label && label.iter().all(is_plain);
            std::str::from_utf8(label).ok().filter(|label| is_label && !label.contains("--"))
        };
        match (label(b"BEGIN "), label(b"END ")) {
            (Some(label), _) => return Ok(Some(Self::Begin(label))),
            (_, Some(label)) => return Ok(Some(Self::End(label))),
            _ => {}
        }
        let count = |word: &[u8]| line.windows(word.len()).filter(|it| *it == word).count();
        let (begins, ends) = (count(b"-----BEGIN "), count(b"-----END "));
        let at_start = line.starts_with(b"-----BEGIN ") || line.starts_with(b"-----END ");
        Err(match (begins, ends) {
            (1.., 1..) if line.starts_with(b"-----END ") => {
                "a block ends and the next begins in this line; put a line break before \
                 -----BEGIN"
                    .to_owned()
            }
            (1.., 1..) => "the line breaks of the block are lost; copy the file again".to_owned(),
            (0, 0) | (1, 0) | (0, 1) if at_start || (begins, ends) == (0, 0) => {
                // Hides text that may belong to a key.
                let is_shown = line.first().is_some_and(|byte| *byte == b'-' || *byte >= 0x80);
                let shown: String = String::from_utf8_lossy(line).chars().take(32).collect();
                format!(
                    "the line {}is incomplete, or more than that; a block begins with for example \
                     -----BEGIN CERTIFICATE----- and nothing else in that line",
                    if is_shown { format!("{shown:?} ") } else { String::new() }
                )
            }
            (0, _) => "-----END does not begin its line; put a line break before it".to_owned(),
            _ => "-----BEGIN does not begin its line; put a line break before it, or remove the \
                  block if it is not to be used"
                .to_owned(),
        })
    }
}

/// Returns whether a line looks like the beginning or end of a block, even if it was mistyped or
/// changed by a word processor.
fn seems_boundary(line: &[u8]) -> bool {
    [&b"BEGIN"[..], b"END"].iter().any(|word| {
        line.windows(word.len()).enumerate().any(|(at, found)| {
            if !found.eq_ignore_ascii_case(word) {
                return false;
            }
            let before = line[..at].trim_ascii_end();
            let after = &line[at + word.len()..];
            let is_dashed = before.ends_with(b"--");
            let is_dash = before.last().is_some_and(|byte| *byte == b'-' || *byte >= 0x80);
            after.first().is_none_or(|byte| !byte.is_ascii_alphanumeric())
                && (is_dashed || (is_dash && found == *word))
        })
    })
}

/// Returns the lines of a text with their numbers, without surrounding white space and byte-order
/// marks. A line ends with LF, CR LF or CR.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut rest = Some(text);
    let mut number = 0;
    std::iter::from_fn(move || {
        let text = rest?;
        number += 1;
        let end = text.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
        let line = end.map_or(text, |end| &text[..end]);
        rest = end.map(|end| match text[end..].starts_with(b"\r\n") {
            true => &text[end + 2..],
            false => &text[end + 1..],
        });
        Some((number, trimmed(line)))
    })
}

fn trimmed(line: &[u8]) -> &[u8] {
    let line = line.trim_ascii();
    match line.strip_prefix(b"\xef\xbb\xbf") {
        Some(rest) => trimmed(rest),
        None => line,
    }
}

/// Returns the offset of `part` in `text`, which contains it.
fn offset(text: &[u8], part: &[u8]) -> usize {
    part.as_ptr().addr() - text.as_ptr().addr()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const A: &str = "-----BEGIN CERTIFICATE-----\nAAAA\nBBBB\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nCCCC\n-----END PRIVATE KEY-----\n";
    const EC: &str = "-----BEGIN EC PARAMETERS-----\nBggq\n-----END EC PARAMETERS-----\n\
                      -----BEGIN EC PRIVATE KEY-----\nCCCC\n-----END EC PRIVATE KEY-----\n";
    const CRL: &str = "-----BEGIN X509 CRL-----\nDDDD\n-----END X509 CRL-----\n";

    fn labels(wanted: Wanted, text: impl AsRef<[u8]>) -> Result<Vec<(usize, String)>, String> {
        let blocks = wanted.blocks(text.as_ref()).map_err(|error| error.to_string())?;
        Ok(blocks.iter().map(|block| (block.line, block.label.to_owned())).collect())
    }

    fn certificates(text: impl AsRef<[u8]>) -> Result<usize, String> {
        labels(Wanted::Authorities, text).map(|blocks| blocks.len())
    }

    #[test]
    fn additions_of_editors_and_systems_are_accepted() {
        let indented = A.replace('\n', "\n  ");
        for (name, text) in [
            ("plain", format!("{A}{A}")),
            ("carriage returns", format!("{A}{A}").replace('\n', "\r\n")),
            ("carriage returns alone", format!("{A}{A}").replace('\n', "\r")),
            ("a byte-order mark", format!("\u{feff}{A}{A}")),
            ("two", format!("\u{feff}{A}\u{feff}{A}")),
            ("white space behind", format!("{A}{A}").replace('\n', " \t\n")),
            ("indented", format!("  {indented}{A}")),
            ("empty lines", format!("{A}{A}").replace('\n', "\n\n")),
            ("text between", format!("subject=CN = a\n{A}\n# the end: next - or last\n{A}bye")),
            ("no line break at the end", format!("{A}{}", A.trim_end())),
        ] {
            assert_eq!(certificates(&text), Ok(2), "{name}");
            for block in blocks(text.as_bytes()).unwrap() {
                assert_eq!(String::from_utf8(block.to_pem()).unwrap(), A, "{name}");
            }
        }
    }

    #[test]
    fn no_block_is_dropped_in_silence() {
        let glued = A.trim_end();
        for (name, text, line, words) in [
            ("glued", format!("{glued}{A}"), 4, "put a line break before -----BEGIN"),
            ("one line", A.replace('\n', " ") + "\n" + A, 1, "line breaks of the block are lost"),
            ("\\n", A.replace('\n', "\\n"), 1, "line breaks of the block are lost"),
            ("four dashes", format!("{A}{}", A.replacen("-----B", "----B", 1)), 5, "is incomplete"),
            ("an em dash", format!("{A}{}", A.replace("-----", "\u{2014}")), 5, "is incomplete"),
            ("small", format!("{A}{}", A.to_lowercase()), 5, "is incomplete"),
            ("a comment", format!("{A}# {A}"), 5, "does not begin its line"),
            ("SSH", format!("{A}---- BEGIN SSH2 KEY ----\n"), 5, "is incomplete"),
            (
                "no end",
                format!("{}{A}", A.replace("-----END CERTIFICATE-----\n", "")),
                1,
                "-----END CERTIFICATE----- is missing",
            ),
            ("cut off", format!("{A}{}", &A[..33]), 5, "-----END CERTIFICATE----- is missing"),
            ("no begin", format!("{A}AAAA\n-----END CERTIFICATE-----\n"), 6, "is missing"),
            ("another end", A.replace("END C", "END X"), 4, "begins in line 1 is a CERTIFICATE"),
            ("no base64", A.replace("BBBB", "B!BB"), 1, "line 3 is not base64"),
            ("empty", A.replace("AAAA\nBBBB\n", ""), 1, "it is empty"),
            ("trusted", A.replace("CERT", "TRUSTED CERT") + A, 1, "openssl x509 -in"),
            ("old", format!("{A}{}", A.replace("CERT", "X509 CERT")), 5, "openssl x509 -in"),
            ("unknown", format!("{A}{}", A.replace("CERTIFICATE", "THING")), 5, "a block THING"),
            ("a list", format!("{A}{CRL}"), 5, "client_crl"),
            ("a key", format!("{A}{KEY}"), 5, "remove it"),
            ("headers", A.replace("AAAA", "Proc-Type: 4\n\nAAAA"), 1, "header lines"),
        ] {
            let error = certificates(&text).unwrap_err();
            assert!(error.starts_with(&format!("line {line}: ")), "{name}: {error}");
            assert!(error.contains(words), "{name}: {error}");
            assert!(!error.contains("AAAA"), "{name}: it may be a key: {error}");
        }
        let utf16: Vec<u8> =
            format!("\u{feff}{A}").encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(certificates(utf16).unwrap_err().contains("UTF-16"));
    }

    #[test]
    fn a_file_without_what_is_wanted_names_the_remedy() {
        use Wanted::{Authorities, Chain, Key, Revoked};
        for (wanted, text, words) in [
            (Chain, "", "is empty: there is no certificate"),
            (Key, " \n", "is empty: there is no private key"),
            (Chain, "text", "begins with -----BEGIN CERTIFICATE-----"),
            (Chain, KEY, "are certificate and key swapped?"),
            (Authorities, KEY, "are certificate and key swapped?"),
            (Key, A, "are certificate and key swapped?"),
            (Revoked, A, "openssl crl -inform der"),
            (Chain, "0\u{82}", "begins with"),
        ] {
            let error = labels(wanted, text).unwrap_err();
            assert!(error.contains(words), "{wanted:?}: {error}");
        }
        let der = [0x30, 0x82, 1, 2];
        assert!(labels(Chain, der).unwrap_err().contains("openssl x509 -inform der"));
        assert!(labels(Key, der).unwrap_err().contains("openssl pkey -inform der"));
        let pkcs12 = [0x30, 0x82, 9, 1, 2, 1, 3, 0x30, 0x82, 8, 0xc7];
        for (wanted, words) in [
            (Chain, "openssl pkcs12 -in FILE -nokeys"),
            (Authorities, "openssl pkcs12 -in FILE -nokeys"),
            (Key, "openssl pkcs12 -in FILE -nocerts"),
        ] {
            let error = labels(wanted, pkcs12).unwrap_err();
            assert!(error.contains(words) && error.contains("PKCS#12"), "{wanted:?}: {error}");
        }
    }

    #[test]
    fn a_certificate_and_its_key_may_be_in_one_file() {
        let both = format!("{A}{EC}");
        assert_eq!(labels(Wanted::Chain, &both), Ok(vec![(1, "CERTIFICATE".to_owned())]));
        assert_eq!(labels(Wanted::Key, &both), Ok(vec![(8, "EC PRIVATE KEY".to_owned())]));
        assert_eq!(labels(Wanted::Key, EC), Ok(vec![(4, "EC PRIVATE KEY".to_owned())]));
        assert_eq!(labels(Wanted::Revoked, CRL), Ok(vec![(1, "X509 CRL".to_owned())]));
        let error = labels(Wanted::Key, format!("{KEY}{EC}")).unwrap_err();
        assert!(error.starts_with("line 7: there is a second private key"), "{error}");
        for locked in [
            KEY.replace("PRIVATE", "ENCRYPTED PRIVATE"),
            KEY.replace("PRIVATE", "RSA PRIVATE")
                .replace("CCCC", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB\n\nCCCC"),
        ] {
            let error = labels(Wanted::Key, locked).unwrap_err();
            assert!(error.contains("encrypted") && error.contains("openssl pkey"), "{error}");
        }
        let ssh = KEY.replace("PRIVATE", "OPENSSH PRIVATE");
        assert!(labels(Wanted::Key, ssh).unwrap_err().contains("ssh-keygen"));
    }

    proptest! {
        /// Each -----BEGIN in a text is a block, or the text is refused.
        #[test]
        fn there_are_as_many_blocks_as_beginnings(
            parts in prop::collection::vec(prop_oneof![
                Just("-----BEGIN CERTIFICATE-----"), Just("-----END CERTIFICATE-----"),
                Just("-----BEGIN X-----"), Just("\n"), Just("\r\n"), Just("AAAA"), Just(" "),
                Just("\u{feff}"), Just("#"), Just("-"), Just("a: b"),
            ], 0..40)
        ) {
            let text = parts.concat();
            if let Ok(blocks) = blocks(text.as_bytes()) {
                prop_assert_eq!(blocks.len(), text.matches("-----BEGIN ").count());
                prop_assert_eq!(blocks.len(), text.matches("-----END ").count());
            }
        }
    }
}
