//! Names that Windows gives another meaning, asked of its own file system.

use crate::site::{SECRET, Site, ask};

/// Requests for files by names that are not theirs, and for what is not a file of the root. `root`
/// is the name of the root's folder.
const ATTACKS: &[(&str, &[&str])] = &[
    (
        "devices",
        &["con", "NUL", "sub/prn", "Aux", "COM1", "lpt9", "CONIN$", "conout$", "COM%C2%B9"],
    ),
    ("devices with an extension or a space", &["NUL.txt", "con.tar.gz", "nul%20.txt", "aux%20"]),
    (
        "streams",
        &["a.txt::$DATA", "a.txt:b", "a.txt%3A%3A$DATA", "sub:$I30:$INDEX_ALLOCATION/b.txt"],
    ),
    (
        "final dots and spaces",
        &["a.txt.", "a.txt...", "a.txt%20", "a.txt%20.", "sub./b.txt", "sub%20/b.txt"],
    ),
    ("backslashes", &["sub\\b.txt", "sub%5Cb.txt", "..\\secret.txt", "sub%5C..%5C..%5Csecret.txt"]),
    ("short names", &["ALONGN~1.TXT", "GIT~1/config", "A~1.TXT", "WEB~1.CON"]),
    (
        "drives",
        &["C:/windows/win.ini", "c:secret.txt", "c%3A%5Cwindows%5Cwin.ini", "Z:/etc/passwd"],
    ),
    (
        "shares and device paths",
        &[
            "//localhost/c$/windows/win.ini",
            "%5C%5Clocalhost%5Cc$%5Cwindows%5Cwin.ini",
            "//?/C:/windows/win.ini",
            "%5C%5C?%5CC:%5Cwindows%5Cwin.ini",
            "%5C%5C.%5CC:",
            "//./pipe/a",
            "%5C??%5CC:%5Cwindows%5Cwin.ini",
        ],
    ),
    ("files of NTFS", &["$MFT", "$Extend/$Quota", "sub/$Boot"]),
    ("wildcards", &["a.tx%3F", "*.txt", "a.%3C", "a%22txt"]),
    ("steps up", &["../secret.txt", "%2e%2e/secret.txt", "sub/../../secret.txt"]),
    ("control characters", &["a.txt%00", "a.txt%0A", "a.txt%1F"]),
];

#[test]
fn no_file_has_a_second_name_and_none_outside_has_any() {
    let site = Site::new(&[
        ("a.txt", b"public"),
        ("a long name.txt", b"public"),
        ("sub/b.txt", b"public"),
        (".git/config", SECRET.as_bytes()),
    ]);
    for files in
        [site.files(), site.files().hidden_files(true), site.files().follow_symlinks(false)]
    {
        for (kind, paths) in ATTACKS {
            for path in *paths {
                let answer = ask(&files, "GET", &format!("/assets/{path}"), "");
                assert!(matches!(answer.status, 400 | 404), "{kind}: {path}: {}", answer.status);
                assert!(answer.body.is_empty() || !answer.text().contains(SECRET), "{path}");
            }
        }
        for path in ["a.txt", "a%20long%20name.txt", "sub/b.txt"] {
            assert_eq!(ask(&files, "GET", &format!("/assets/{path}"), "").text(), "public");
        }
    }
    assert_eq!(site.get(".git/config", "").status, 404);
}
