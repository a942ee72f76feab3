//! Paths that try to leave the root.

use crate::site::{SECRET, Site, ask, later, send};
use proptest::prelude::*;
use std::fs;
#[cfg(unix)]
use std::os::unix::fs::symlink;
#[cfg(not(unix))]
use std::path::Path;
#[cfg(unix)]
use std::sync::atomic::{AtomicBool, Ordering};
use throng_http::Files;

/// Windows makes links for administrators alone.
#[cfg(not(unix))]
fn symlink(_: impl AsRef<Path>, _: impl AsRef<Path>) -> std::io::Result<()> {
    Ok(())
}

/// A site with the secret beside it, and links that lead to it.
fn site() -> Site {
    let site =
        Site::new(&[("a.txt", b"public"), ("sub/b.txt", b"public"), ("index.html", b"public")]);
    for (target, link) in [
        ("../secret.txt", "link.txt"),
        ("..", "up"),
        ("../..", "sub/upup"),
        ("/", "slash"),
        ("/proc/self", "proc"),
        ("../secret.txt", "linked.txt.gz"),
    ] {
        symlink(target, site.path(link)).expect("a link");
    }
    symlink(site.base().join("secret.txt"), site.path("absolute.txt")).expect("a link");
    site.write("linked.txt", b"public");
    site
}

/// Returns whether the body contains the secret.
fn leaks(body: &[u8]) -> bool {
    body.windows(SECRET.len()).any(|bytes| bytes == SECRET.as_bytes())
        || body.windows(5).any(|bytes| bytes == b"root:")
}

const PATHS: [&str; 100] = [
    // Plain.
    "../secret.txt",
    "../../secret.txt",
    "../../../../../../../../etc/passwd",
    "..",
    "../",
    ".",
    "./",
    "./../secret.txt",
    "sub/../../secret.txt",
    "sub/../a.txt",
    "sub/..",
    "sub/.",
    "a.txt/../../secret.txt",
    "none/../../secret.txt",
    ".../secret.txt",
    "....//secret.txt",
    "..../secret.txt",
    "..;/secret.txt",
    "..;a=b/secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "//secret.txt",
    "sub//../../secret.txt",
    "file:///etc/passwd",
    "~/secret.txt",
    "~root/",
    // Encoded.
    "%2e%2e/secret.txt",
    "%2E%2E/secret.txt",
    ".%2e/secret.txt",
    "%2e./secret.txt",
    "%2e%2e%2fsecret.txt",
    "..%2fsecret.txt",
    "..%2Fsecret.txt",
    "..%2f..%2f..%2f..%2fetc%2fpasswd",
    "sub%2f..%2f..%2fsecret.txt",
    "sub%2Fb.txt",
    "%2fetc%2fpasswd",
    "%2Fetc/passwd",
    "%2e",
    "%2e/",
    "%2e%2e",
    "%2e%2e/",
    "sub/%2e%2e/%2e%2e/secret.txt",
    // Encoded twice, or more.
    "%252e%252e/secret.txt",
    "%252e%252e%252fsecret.txt",
    "..%252fsecret.txt",
    "%25252e%25252e/secret.txt",
    "%25%32%65%25%32%65/secret.txt",
    "%%32%65%%32%65/secret.txt",
    // Backslashes, drives, devices.
    "..\\secret.txt",
    "..\\..\\secret.txt",
    "..%5csecret.txt",
    "..%5C..%5Csecret.txt",
    "sub\\..\\..\\secret.txt",
    "%2e%2e%5csecret.txt",
    "..%255csecret.txt",
    "\\\\host\\share\\secret.txt",
    "C:\\secret.txt",
    "C:/secret.txt",
    "c:secret.txt",
    "c%3a%2fsecret.txt",
    "\\\\?\\C:\\secret.txt",
    "CON",
    "NUL.txt",
    "a.txt::$DATA",
    "a.txt:stream",
    // NUL and other control characters.
    "%00",
    "..%00/secret.txt",
    "../secret.txt%00.html",
    "a.txt%00.png",
    "%00../secret.txt",
    "..%0a/secret.txt",
    "..%0d%0a/secret.txt",
    "%7f../secret.txt",
    "..%09/secret.txt",
    "..%20/secret.txt",
    "%20../secret.txt",
    // Overlong and otherwise invalid UTF-8.
    "%c0%ae%c0%ae/secret.txt",
    "%c0%ae%c0%ae%c0%afsecret.txt",
    "..%c0%afsecret.txt",
    "..%c1%9csecret.txt",
    "%e0%80%ae%e0%80%ae/secret.txt",
    "..%e0%80%afsecret.txt",
    "%f0%80%80%ae%f0%80%80%ae/secret.txt",
    "%u002e%u002e/secret.txt",
    "..%u2215secret.txt",
    "%ff../secret.txt",
    "%",
    "%2",
    "%zz/../secret.txt",
    // Characters that look like dots and slashes.
    "%e2%80%a5/secret.txt",
    "%ef%bc%8e%ef%bc%8e/secret.txt",
    "..%e2%88%95secret.txt",
    "..%ef%bc%8fsecret.txt",
    "%e2%80%8c../secret.txt",
    ".%e2%80%8b./secret.txt",
    // Links that lead outside.
    "link.txt",
    "up/secret.txt",
    "absolute.txt",
    "slash/etc/passwd",
];

const MORE_PATHS: [&str; 8] = [
    "sub/upup/secret.txt",
    "up/root/up/secret.txt",
    "proc/root/etc/passwd",
    "proc/cwd/Cargo.toml",
    "proc/self/environ",
    "link.txt/",
    "up/",
    "up",
];

fn every_kind(site: &Site) -> [Files; 4] {
    [
        site.files(),
        site.files().hidden_files(true).without_index(),
        site.files().follow_symlinks(false),
        site.files().hidden_files(true).index("secret.txt").precompressed(true),
    ]
}

#[test]
fn no_path_leaves_the_root() {
    let site = site();
    for files in every_kind(&site) {
        for path in PATHS.iter().chain(&MORE_PATHS) {
            for lines in ["", "Accept-Encoding: gzip, br\r\n", "Range: bytes=0-\r\n"] {
                for target in [format!("/assets/{path}"), format!("http://h/assets/{path}")] {
                    let answer = ask(&files, "GET", &target, lines);
                    assert!(!leaks(&answer.body), "{target}: {:?}", answer.text());
                    // Browsers normalise such paths before they send them; here they are refused,
                    // not resolved.
                    assert!(matches!(answer.status, 400 | 404), "{target}: {}", answer.status);
                }
            }
        }
    }
    // The test would detect it if it were served.
    assert!(leaks(&ask(&Files::new(site.base()), "GET", "/assets/secret.txt", "").body));
    assert_eq!(ask(&site.files(), "GET", "/assets/a.txt", "").text(), "public");
}

#[test]
fn no_path_before_the_route_leaves_the_root() {
    let site = site();
    for target in [
        "/assets/../secret.txt",
        "/../secret.txt",
        "/assets%2f..%2fsecret.txt",
        "/assets/..",
        "//assets/../secret.txt",
        "/./assets/../secret.txt",
        "/assets",
        "/%61ssets/../secret.txt",
        "http://h/assets/../secret.txt",
        "http://h/../secret.txt",
        "http://h",
        "*",
    ] {
        let answer = ask(&site.files(), "GET", target, "");
        assert!(matches!(answer.status, 400 | 404) && !leaks(&answer.body), "{target}");
    }
}

#[test]
fn a_precompressed_file_does_not_lead_outside_either() {
    let site = site();
    let files = site.files().precompressed(true);
    let answer = ask(&files, "GET", "/assets/linked.txt", "Accept-Encoding: gzip\r\n");
    assert_eq!((answer.status, answer.text()), (200, "public"));
}

#[cfg(unix)]
#[test]
fn links_within_the_root_are_followed_unless_disabled() {
    let site = Site::new(&[("dir/a.txt", b"public")]);
    symlink("dir", site.path("link")).expect("a link");
    symlink(site.path("dir/a.txt"), site.path("absolute.txt")).expect("a link");
    for path in ["/assets/link/a.txt", "/assets/absolute.txt"] {
        assert_eq!(ask(&site.files(), "GET", path, "").text(), "public");
        assert_eq!(ask(&site.files().follow_symlinks(false), "GET", path, "").status, 404);
    }
}

/// A second thread exchanges a directory for a link to the secret's directory, and back, as fast as
/// possible, while it is read.
#[cfg(unix)]
#[test]
fn no_race_leaves_the_root() {
    let site = Site::new(&[("dir/secret.txt", b"public")]);
    symlink("..", site.path("evil")).expect("a link");
    let (dir, evil, spare) = (site.path("dir"), site.path("evil"), site.path("spare"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for (from, to) in [(&dir, &spare), (&evil, &dir), (&dir, &evil), (&spare, &dir)] {
                    fs::rename(from, to).expect("renamed");
                }
            }
        });
        let mut found = [0u32; 2];
        for round in 0..1_000_000 {
            // Repeats until both outcomes of the race have occurred, under any scheduling of the
            // threads.
            if round > 4000 && found.iter().all(|count| *count > 0) {
                break;
            }
            let files = site.files().follow_symlinks(round % 2 == 0);
            let answer = ask(&files, "GET", "/assets/dir/secret.txt", "");
            if leaks(&answer.body) || !matches!(answer.status, 200 | 404 | 503) {
                is_over.store(true, Ordering::Relaxed);
                panic!("{}: {:?}", answer.status, answer.text());
            }
            found[usize::from(answer.status == 200)] += 1;
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(found.iter().all(|count| *count > 0), "there was no race: {found:?}");
    });
}

/// Paths made of dangerous parts, and of existing ones.
fn path() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        prop::sample::select(vec![
            "..",
            ".",
            "/",
            "//",
            "\\",
            "%2e",
            "%2E",
            "%2f",
            "%5c",
            "%00",
            "%25",
            "%",
            "%c0%ae",
            "secret.txt",
            "a.txt",
            "sub",
            "up",
            "upup",
            "link.txt",
            "slash",
            "etc/passwd",
            "proc",
            "root",
            "self",
            ";",
            ":",
            "~",
            "?",
            "%20",
        ])
        .prop_map(str::to_owned),
        "[!-~]{1,6}",
    ];
    prop::collection::vec(piece, 0..10).prop_map(|pieces| pieces.concat())
}

#[test]
fn no_string_leaves_the_root() {
    let site = site();
    let files = every_kind(&site);
    let config = ProptestConfig::with_cases(2000);
    proptest!(config, |(path in path(), kind in 0usize..4)| {
        let answer = ask(&files[kind], "GET", &format!("/assets/{path}"), "");
        prop_assert!(!leaks(&answer.body), "{}", path);
        prop_assert!(matches!(answer.status, 200 | 301 | 400 | 404), "{}: {}", path, answer.status);
        if answer.status == 301 {
            let location = answer.expect("Location");
            prop_assert!(location.starts_with("./"), "{}", location);
        }
        if answer.status == 200 {
            prop_assert_eq!(answer.text(), "public", "{}", path);
        }
    });
}

/// A route without `{*rest}` uses the whole path, under the same rules.
#[test]
fn a_route_with_another_pattern_does_not_leave_the_root_either() {
    use throng_http::{Params, Request};
    let site = site();
    let files = site.files();
    for (target, expected) in
        [("/assets/a.txt", 404), ("/assets/../a.txt", 404), ("/assets/%2e%2e/", 404)]
    {
        let respond = |request: &Request<'_>| {
            let bare = Request::new(*request.head(), Params::NONE, b"", None);
            files.respond_at(&bare, later())
        };
        assert_eq!(send("GET", target, "", respond).expect("routed").status, expected);
    }
    site.write("assets/a.txt", b"public");
    let respond = |request: &Request<'_>| {
        let bare = Request::new(*request.head(), Params::NONE, b"", None);
        files.respond_at(&bare, later())
    };
    assert_eq!(send("GET", "/assets/a.txt", "", respond).expect("routed").text(), "public");
}
