//! Conversion of a request's path to the path of a file below the root.

use crate::percent;
use std::fmt::Write as _;

/// A path below the root: names joined by `/`, each validated. It contains no `..`, so that only a
/// symbolic link could lead outside.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Subpath {
    names: String,
    /// Whether it ended with a slash, or was empty.
    is_directory: bool,
}

/// The reason why a path is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BadPath {
    /// Invalid percent-encoding: 400.
    Encoding,
    /// A name that no served file can have: 404.
    Name,
}

/// The system that has the files. It decides which names have a special meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    #[cfg_attr(all(windows, not(test)), allow(dead_code, reason = "the other system"))]
    Unix,
    #[cfg_attr(not(any(windows, test)), allow(dead_code, reason = "the other system"))]
    Windows,
}

impl System {
    const HERE: Self = if cfg!(windows) { Self::Windows } else { Self::Unix };
}

impl Subpath {
    /// Parses `raw`, which is percent-encoded and has no slash at the start. It is split before it
    /// is decoded, so that a `%2F` never becomes a separator (RFC 3986 section 2.2).
    pub(super) fn parse(raw: &str, with_hidden: bool) -> Result<Self, BadPath> {
        Self::parse_for(System::HERE, raw, with_hidden)
    }

    /// Parses `raw` for files of a system, which may be another one.
    fn parse_for(system: System, raw: &str, with_hidden: bool) -> Result<Self, BadPath> {
        let is_directory = raw.is_empty() || raw.ends_with('/');
        let mut names = String::with_capacity(raw.len());
        for (index, segment) in raw.strip_suffix('/').unwrap_or(raw).split('/').enumerate() {
            if raw.is_empty() {
                break;
            }
            let name = percent::decode_path(segment).map_err(|_| BadPath::Encoding)?;
            // RFC 8615 puts `.well-known` at the top.
            let is_open = with_hidden || (index == 0 && name == ".well-known");
            if !is_name(&name, system) || (!is_open && is_hidden(&name)) {
                return Err(BadPath::Name);
            }
            if index > 0 {
                names.push('/');
            }
            names.push_str(&name);
        }
        Ok(Self { names, is_directory })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.names
    }

    pub(super) const fn is_directory(&self) -> bool {
        self.is_directory
    }

    /// Returns the path of the file called `name` in this directory.
    pub(super) fn join(&self, name: &str) -> String {
        if self.names.is_empty() { name.to_owned() } else { format!("{}/{name}", self.names) }
    }

    /// Returns the location of this directory, relative to a request for it without its slash:
    /// `./name/`.
    ///
    /// Relative, so that no path can turn it into another host (`//evil.example`) or scheme
    /// (`javascript:`), and so that it is correct behind a proxy that strips a prefix. Encoded
    /// again, so that nothing that the peer sent is returned except the name.
    pub(super) fn location(&self) -> String {
        let mut location = String::from("./");
        for byte in self.names.rsplit('/').next().unwrap_or_default().bytes() {
            match byte {
                b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~' => {
                    location.push(byte as char);
                }
                // Writing to a string cannot fail.
                byte => drop(write!(location, "%{byte:02X}")),
            }
        }
        location.push('/');
        location
    }
}

/// Returns whether `name` names an entry of a directory and nothing else, on every system.
/// Windows has more names with a special meaning, such as `a:b`.
fn is_name(name: &str, system: System) -> bool {
    let is_plain = !matches!(name, "" | "." | "..")
        && !name.contains(['/', '\\'])
        && !name.contains(|character: char| character.is_control());
    is_plain && !(system == System::Windows && is_special_on_windows(name))
}

/// Returns whether a name begins with a dot: `.git`, `.env`. HFS+ ignores some characters when it
/// compares names, so they are ignored here too.
fn is_hidden(name: &str) -> bool {
    let is_ignored = |character: char| {
        let code = u32::from(character);
        matches!(code, 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff)
    };
    name.trim_start_matches(is_ignored).starts_with('.')
}

/// Returns whether Windows gives the name another meaning: streams and drives (`:`), wildcards, a
/// final dot or space (dropped), short names (`GIT~1` for `.git`), devices, also with an extension,
/// and the file system's own files at the top of a drive.
fn is_special_on_windows(name: &str) -> bool {
    const DEVICES: [&str; 7] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$"];
    const OF_NTFS: [&str; 12] = [
        "$MFT", "$MFTMIRR", "$LOGFILE", "$VOLUME", "$ATTRDEF", "$BITMAP", "$BOOT", "$BADCLUS",
        "$SECURE", "$UPCASE", "$EXTEND", "$TXF",
    ];
    let stem = name.split('.').next().unwrap_or_default().trim_end().to_uppercase();
    let port = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    let is_port = port.is_some_and(|number| {
        let mut characters = number.chars();
        let is_number = |c: char| c.is_ascii_digit() || matches!(c, '¹' | '²' | '³');
        characters.next().is_some_and(is_number) && characters.next().is_none()
    });
    let bytes = name.as_bytes();
    let is_short = bytes.windows(2).any(|pair| pair[0] == b'~' && pair[1].is_ascii_digit());
    name.contains([':', '<', '>', '"', '|', '?', '*'])
        || name.ends_with(['.', ' '])
        || is_short
        || is_port
        || DEVICES.contains(&stem.as_str())
        || OF_NTFS.contains(&stem.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(raw: &str) -> Result<(String, bool), BadPath> {
        Subpath::parse_for(System::Unix, raw, false)
            .map(|path| (path.as_str().to_owned(), path.is_directory()))
    }

    #[test]
    fn path_segments_are_decoded_one_by_one() {
        for (raw, names, is_directory) in [
            ("", "", true),
            ("a", "a", false),
            ("a/", "a", true),
            ("a/b.txt", "a/b.txt", false),
            ("a%20b/%C3%A9+", "a b/\u{e9}+", false),
            ("..a/b..", "..a/b..", false),
            ("...a/%25", "...a/%", false),
            (".well-known/acme-challenge/x", ".well-known/acme-challenge/x", false),
            ("%2ewell-known/x", ".well-known/x", false),
        ] {
            let expected = if names.starts_with("..") {
                Err(BadPath::Name) // hidden
            } else {
                Ok((names.to_owned(), is_directory))
            };
            assert_eq!(parse(raw), expected, "{raw}");
            let with_hidden = Subpath::parse_for(System::Unix, raw, true).map(|path| path.names);
            assert_eq!(with_hidden.as_deref(), Ok(names), "{raw}");
        }
    }

    #[test]
    fn invalid_names_are_refused() {
        for raw in [
            "/", "//", "/a", "a//b", "a//", ".", "..", "a/..", "a/../b", "%2e%2E/b", "a/.%2e",
            "./a", "a/./b", "a%2Fb", "%2fetc", "a%5Cb", "a\\b", "a%0Ab", "%7F", "%C2%85",
        ] {
            assert_eq!(Subpath::parse(raw, true), Err(BadPath::Name), "{raw}");
        }
        for raw in ["%00", "a%", "a%zz", "%ff", "%c0%ae%c0%ae"] {
            assert_eq!(Subpath::parse(raw, true), Err(BadPath::Encoding), "{raw}");
        }
        for raw in [
            ".git/config",
            "a/.env",
            "%2egit",
            "a/.well-known/x",
            ".well-known/.x",
            "%E2%80%8C.git",
        ] {
            assert_eq!(Subpath::parse(raw, false), Err(BadPath::Name), "{raw}");
        }
    }

    /// Requests that would leave the directory, or reach a device or a stream, if Windows opened
    /// their names.
    const ATTACKS_ON_WINDOWS: &[(&str, &[&str])] = &[
        (
            "devices",
            &[
                "con",
                "NUL",
                "a/prn",
                "Aux",
                "COM1",
                "com9",
                "LPT1",
                "lpt0",
                "com0",
                "CONIN$",
                "conout$",
                "COM%C2%B9",
                "LPT%C2%B3",
                "%6Eul",
                "clock$",
            ],
        ),
        (
            "devices with an extension, or a space, which Windows ignores",
            &["NUL.txt", "con.tar.gz", "nul%20.txt", "aux%20%20", "com1.", "lpt9 .x", "CON/x"],
        ),
        (
            "streams",
            &[
                "a.txt::$DATA",
                "a.txt:b",
                "a.php%3A%3A$DATA",
                "a:$I30:$INDEX_ALLOCATION/b",
                "a/:b",
                "%3a",
            ],
        ),
        ("drives", &["C:", "c:a", "C:/Windows/win.ini", "c%3A/a", "a/C:/b", "file:///c:/a"]),
        (
            "final dots and spaces, which Windows drops",
            &["a.txt.", "a.txt...", "a%20", "a.php%20.", "a/b./c", "a%20/b", ".%20", "..%20/a"],
        ),
        (
            "separators of Windows",
            &["..\\a", "a\\..\\..\\b", "..%5ca", "a%5Cb", "%5Cwindows", "..%5C..%5Cboot.ini"],
        ),
        ("short names", &["GIT~1", "PROGRA~1/a", "a/WEB~1.CON", "~1", "HTACCE~9.TXT"]),
        ("shares", &["//host/share", "/host/share", "%5C%5Chost%5Cshare", "\\\\host\\c$"]),
        (
            "device paths",
            &[
                "//?/C:/a",
                "//./C:/a",
                "%5C%5C.%5CC:",
                "\\\\?\\GLOBALROOT\\Device",
                "%5C??%5CC:",
                "./COM1",
                "//./pipe/a",
            ],
        ),
        ("files of NTFS", &["$MFT", "$mft/a", "$Extend/$Quota", "$LogFile", "a/$Boot"]),
        ("wildcards", &["*", "a?", "a%3Fb", "a%3Cb", "a%3E", "a%22b", "a%7Cb"]),
        ("steps up", &["..", "a/../..", "%2e%2e/a", "a/.%2E/b", ".%2e%5Ca"]),
        ("control characters", &["a%0Ab", "a%1F", "%7F", "con%01"]),
    ];

    #[test]
    fn attacks_by_names_of_windows_are_refused() {
        for (kind, attacks) in ATTACKS_ON_WINDOWS {
            for raw in *attacks {
                // They are also refused where hidden files are served.
                for with_hidden in [false, true] {
                    let parsed = Subpath::parse_for(System::Windows, raw, with_hidden);
                    assert_eq!(parsed, Err(BadPath::Name), "{kind}: {raw}");
                }
            }
        }
    }

    #[test]
    fn names_without_a_special_meaning_on_windows_are_served() {
        for name in [
            "console",
            "com",
            "com10",
            "a~b",
            "nulls.txt",
            "a.b",
            "lpt",
            "a b",
            "com1a.txt",
            "$a.js",
            "mft",
            "a$",
            "xcon",
            "a.con",
        ] {
            assert!(is_name(name, System::Windows), "{name}");
        }
    }

    #[test]
    fn names_with_a_meaning_on_windows_alone_are_served_by_other_systems() {
        for name in [
            "C:",
            "a.txt::$DATA",
            "a.txt.",
            "a ",
            "GIT~1",
            "con",
            "NUL.txt",
            "aux .c",
            "COM²",
            "a?b",
            "a*",
            "$MFT",
        ] {
            assert!(is_name(name, System::Unix), "{name}");
        }
    }

    #[test]
    fn rfc3986_4_2_the_location_of_a_directory_is_a_relative_path() {
        for (raw, expected) in [
            ("a", "./a/"),
            ("x/a%20b", "./a%20b/"),
            ("javascript:alert(1)", "./javascript%3Aalert%281%29/"),
            ("a%3Fb%23c%25", "./a%3Fb%23c%25/"),
            ("\u{e9}", "./%C3%A9/"),
        ] {
            let path = Subpath::parse_for(System::Unix, raw, false);
            assert_eq!(path.map(|path| path.location()), Ok(expected.into()));
        }
    }
}
