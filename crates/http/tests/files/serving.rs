//! Which files are served, and with which headers.

use crate::site::{MODIFIED, Site, ask, ask_at, later, receive, send};
use std::fs;
#[cfg(unix)]
use std::os::unix::fs::PermissionsExt as _;
#[cfg(unix)]
use std::process::Command;
use std::time::{Duration, SystemTime};
#[cfg(unix)]
use std::{env, iter};
use throng_http::{Files, HeaderError, ReplyTo, Request, Response};

#[test]
fn a_file_is_served_with_its_metadata() {
    let site = Site::new(&[("dir/a.html", b"<p>hello")]);
    let answer = site.get("dir/a.html", "");
    assert_eq!((answer.status, answer.text()), (200, "<p>hello"));
    assert_eq!(answer.header("Content-Type"), Some("text/html; charset=utf-8"));
    assert_eq!(answer.header("Last-Modified"), Some(MODIFIED));
    assert_eq!(answer.header("Accept-Ranges"), Some("bytes"));
    assert_eq!(answer.header("X-Content-Type-Options"), Some("nosniff"));
    assert_eq!((answer.header("Cache-Control"), answer.header("Vary")), (None, None));
    let etag = answer.expect("ETag");
    assert!(etag.starts_with('"') && etag.ends_with('"') && etag.len() == 18, "{etag}");
}

#[test]
fn files_of_every_size_are_the_same_on_the_wire() {
    let content: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    let site = Site::new(&[]);
    for size in [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, 65_537, 131_072, 300_000] {
        site.write("a.bin", &content[..size]);
        let answer = site.get("a.bin", "");
        assert!(answer.status == 200 && answer.body == content[..size], "{size}");
        assert_eq!(answer.header("Content-Type"), Some("application/octet-stream"));
    }
}

#[test]
fn rfc9110_9_3_2_head_is_answered_as_get_without_the_body() {
    let site = Site::new(&[("a.txt", b"hello"), ("big.txt", &[b'x'; 100_000])]);
    for path in ["/assets/a.txt", "/assets/big.txt"] {
        let (get, head) =
            (ask(&site.files(), "GET", path, ""), ask(&site.files(), "HEAD", path, ""));
        assert_eq!((head.status, head.body.len()), (200, 0));
        let sorted = |head: &str| {
            let mut lines: Vec<String> = head.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(sorted(&head.head), sorted(&get.head));
    }
}

#[test]
fn rfc9110_15_5_6_other_methods_get_405_with_allow() {
    let site = Site::new(&[("a.txt", b"hello")]);
    for method in ["POST", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "get"] {
        let answer = ask(&site.files(), method, "/assets/a.txt", "");
        assert_eq!(
            (answer.status, answer.expect("Allow")),
            (405, "GET, HEAD, OPTIONS"),
            "{method}"
        );
    }
    let options = ask(&site.files(), "OPTIONS", "/assets/a.txt", "");
    assert_eq!((options.status, options.expect("Allow")), (204, "GET, HEAD, OPTIONS"));
}

#[test]
fn a_directory_is_its_index() {
    let site =
        Site::new(&[("index.html", b"top"), ("sub/index.html", b"sub"), ("none/a.txt", b"a")]);
    for (path, expected) in [("", "top"), ("sub/", "sub"), ("sub/index.html", "sub")] {
        let answer = site.get(path, "");
        assert_eq!((answer.status, answer.text()), (200, expected), "{path}");
        assert_eq!(answer.header("Content-Type"), Some("text/html; charset=utf-8"));
    }
    for path in ["none", "none/", "a.txt/", "sub/index.html/"] {
        assert_eq!(site.get(path, "").status, 404, "{path}");
    }
    let files = site.files().index("a.txt");
    assert_eq!(ask(&files, "GET", "/assets/none/", "").text(), "a");
    assert_eq!(ask(&files, "GET", "/assets/sub/", "").status, 404);
    let files = site.files().without_index();
    for path in ["/assets/", "/assets/sub", "/assets/sub/"] {
        assert_eq!(ask(&files, "GET", path, "").status, 404, "{path}");
    }
}

#[test]
fn an_index_that_is_a_directory_is_ignored() {
    let site = Site::new(&[("index.html/index.html", b"deep")]);
    assert_eq!(site.get("", "").status, 404);
    assert_eq!(site.get("index.html/", "").text(), "deep");
}

#[test]
fn rfc9110_10_2_2_a_directory_without_its_slash_is_redirected_to_itself() {
    // Windows has no such name.
    let (name, location) = match cfg!(windows) {
        true => ("x;y", "./x%3By/"),
        false => ("x:y", "./x%3Ay/"),
    };
    let site = Site::new(&[
        ("sub/index.html", b""),
        ("a b/c\u{e9}/index.html", b""),
        (&format!("{name}/index.html"), b""),
    ]);
    for (path, expected) in [
        ("sub", "./sub/"),
        ("sub?a=1&b=//evil.example/", "./sub/?a=1&b=//evil.example/"),
        ("sub?", "./sub/?"),
        ("%73ub", "./sub/"),
        ("a%20b/c%C3%A9", "./c%C3%A9/"),
        (name, location),
    ] {
        let answer = site.get(path, "");
        assert_eq!((answer.status, answer.expect("Location")), (301, expected), "{path}");
    }
}

#[test]
fn a_missing_file_is_404_and_an_unreadable_one_403() {
    let site = Site::new(&[("a.txt", b"a"), ("closed.txt", b"x")]);
    #[cfg(unix)]
    fs::set_permissions(site.path("closed.txt"), fs::Permissions::from_mode(0o000)).unwrap();
    for path in ["b.txt", "a.txt/b", "sub/", "sub/a.txt", &"x".repeat(300), &"x/".repeat(3000)] {
        assert_eq!(site.get(path, "").status, 404, "{path}");
    }
    // A privileged user can read this too.
    let expected = if fs::read(site.path("closed.txt")).is_ok() { 200 } else { 403 };
    assert_eq!(site.get("closed.txt", "").status, expected);
    assert_eq!(ask(&Files::new(site.base().join("gone")), "GET", "/assets/a.txt", "").status, 404);
}

#[test]
fn hidden_files_are_not_found_except_well_known() {
    let site = Site::new(&[
        (".env", b"x"),
        (".git/config", b"x"),
        ("a/.b", b"x"),
        (".well-known/acme-challenge/token", b"token"),
        (".well-known/.x", b"x"),
    ]);
    for path in [".env", ".git/config", "a/.b", "%2Eenv", ".well-known/.x", "a/.well-known/x"] {
        assert_eq!(site.get(path, "").status, 404, "{path}");
    }
    assert_eq!(site.get(".well-known/acme-challenge/token", "").text(), "token");
    let files = site.files().hidden_files(true);
    for path in [".env", ".git/config", "a/.b"] {
        assert_eq!(ask(&files, "GET", &format!("/assets/{path}"), "").text(), "x", "{path}");
    }
}

#[cfg(unix)]
#[test]
fn special_files_are_not_found_and_never_block() {
    let site = Site::new(&[("a.txt", b"a")]);
    let made = Command::new("mkfifo").arg(site.path("fifo")).status().expect("mkfifo");
    assert!(made.success());
    let _socket = std::os::unix::net::UnixListener::bind(site.path("socket")).expect("a socket");
    for path in ["fifo", "socket", "fifo/"] {
        assert_eq!(site.get(path, "").status, 404, "{path}");
    }
}

/// In a process of its own: the tests beside it need descriptors too.
#[cfg(unix)]
#[test]
fn without_descriptors_the_response_is_503_until_some_are_free() {
    const CHILD: &str = "THRONG_FILES_WITHOUT_DESCRIPTORS";
    if env::var_os(CHILD).is_none() {
        let command = "ulimit -n 64 && exec \"$0\" --exact --test-threads 1 \
                       serving::without_descriptors_the_response_is_503_until_some_are_free";
        let mut child = Command::new("sh");
        child.args(["-c", command]).arg(env::current_exe().expect("this program")).env(CHILD, "1");
        let output = child.output().expect("a child");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let site = Site::new(&[("a.txt", b"a"), ("index.html", b"i")]);
    let mut held: Vec<fs::File> = iter::from_fn(|| fs::File::open("/dev/null").ok()).collect();
    // None left, and then one: enough for the root, not for the file.
    for _ in 0..2 {
        for path in ["a.txt", "", "none.txt"] {
            let answer = site.get(path, "");
            assert_eq!((answer.status, answer.expect("Retry-After")), (503, "1"), "{path}");
        }
        held.pop();
    }
    assert_eq!(site.get("a.txt", "").text(), "a");
}

#[test]
fn a_file_that_shrinks_while_sent_fails_and_one_that_grows_is_truncated() {
    let site = Site::new(&[("a.bin", &[1; 200_000])]);
    let to = ReplyTo { is_head: false, is_http11: true, keep_alive: true, date: "", hsts: None };
    let files = site.files();
    for (size, is_broken) in [(250_000, false), (100_000, true), (0, true)] {
        site.write("a.bin", &[1; 200_000]);
        let mut response = None;
        let look = |request: &Request<'_>| {
            response = Some(files.respond_at(request, later()));
            Response::text("")
        };
        send("GET", "/assets/a.bin", "", look).expect("routed");
        fs::OpenOptions::new().write(true).open(site.path("a.bin")).unwrap().set_len(size).unwrap();
        let answer = receive(response.expect("an answer"), &to);
        assert_eq!(answer.is_broken, is_broken, "{size}");
        assert!(answer.body.len() <= 200_000 && answer.expect("Content-Length") == "200000");
    }
}

#[test]
fn a_file_is_streamed_in_chunks() {
    let site = Site::new(&[("a.bin", &[7; 1_000_000])]);
    let files = site.files();
    let look = |request: &Request<'_>| {
        let throng_http::Body::Stream(mut stream) = files.respond_at(request, later()).into_body()
        else {
            panic!("whole")
        };
        assert_eq!(stream.length, Some(1_000_000));
        for (room, most) in [(1, 1), (1000, 1000), (65_536, 65_536), (10_000_000, 65_536), (0, 1)] {
            let mut out = Vec::new();
            stream.source.pull(room, &mut out).expect("read");
            assert_eq!(out.len(), most, "{room}");
        }
        Response::text("")
    };
    send("GET", "/assets/a.bin", "", look).expect("routed");
}

/// Returns the response to `request` below /assets, before it is sent.
fn begin(files: &Files, method: &str, request: &str) -> Response {
    let mut response = None;
    let look = |request: &Request<'_>| {
        response = Some(files.respond_at(request, later()));
        Response::text("")
    };
    let (path, lines) = request.split_once('\n').unwrap_or((request, ""));
    send(method, &format!("/assets/{path}"), lines, look).expect("routed");
    response.expect("an answer")
}

#[test]
fn no_more_files_are_open_for_streaming_than_allowed() {
    let site = Site::new(&[("small.txt", &[b'x'; 16_384]), ("big.txt", &[b'x'; 100_000])]);
    let files = site.files().max_open(2);
    let status = |response: &Response| response.status().code();
    let whole = begin(&files, "GET", "big.txt");
    // A clone has the same limit and count.
    let part = begin(&files.clone(), "GET", "big.txt\nRange: bytes=0-20000\r\n");
    assert_eq!((status(&whole), status(&part)), (200, 206));
    assert!(whole.is_streamed() && part.is_streamed());
    for request in
        ["big.txt", "big.txt\nRange: bytes=0-20000\r\n", "big.txt\nRange: bytes=0-20000,-1\r\n"]
    {
        let refused = begin(&files, "GET", request);
        assert_eq!(status(&refused), 503, "{request}");
        assert!(refused.headers().any(|field| field == ("Retry-After", "1")), "{request}");
    }
    // A complete response holds no file, nor does one without a body.
    let small: Vec<Response> = (0..5).map(|_| begin(&files, "GET", "small.txt")).collect();
    assert!(small.iter().all(|response| status(response) == 200 && !response.is_streamed()));
    let piece = begin(&files, "GET", "big.txt\nRange: bytes=5-9,90000-99999\r\n");
    assert_eq!((status(&piece), piece.is_streamed()), (206, false));
    let heads: Vec<Response> = (0..5).map(|_| begin(&files, "HEAD", "big.txt")).collect();
    assert!(heads.iter().all(|response| status(response) == 200));
    drop(part);
    let next = begin(&files, "GET", "big.txt");
    assert_eq!((status(&next), status(&begin(&files, "GET", "big.txt"))), (200, 503));
    // Sent to its end and not only dropped.
    let to = ReplyTo { is_head: false, is_http11: true, keep_alive: true, date: "", hsts: None };
    assert_eq!(receive(next, &to).body.len(), 100_000);
    assert_eq!(status(&begin(&files, "GET", "big.txt")), 200);
    // Lowered while files are open: they stay open.
    files.lower_max_open(1);
    files.lower_max_open(7);
    assert_eq!(files.open_limit(), 1);
    assert_eq!(status(&begin(&files, "GET", "big.txt")), 503);
    drop(whole);
    assert_eq!(status(&begin(&files, "GET", "big.txt")), 200);
}

#[test]
fn cache_control_is_checked_and_sent() {
    let site = Site::new(&[("a.txt", b"a")]);
    let files = site.files().cache_control("public, max-age=60").expect("valid");
    assert_eq!(
        ask(&files, "GET", "/assets/a.txt", "").expect("Cache-Control"),
        "public, max-age=60"
    );
    assert_eq!(ask(&files, "GET", "/assets/b.txt", "").header("Cache-Control"), None);
    let refused = site.files().cache_control("a\r\nX: y").map(drop);
    assert!(matches!(refused, Err(HeaderError::Invalid(_))));
}

/// Windows has no time of a change that programs cannot set.
#[cfg(unix)]
#[test]
fn rfc9110_8_8_1_every_change_changes_the_tag() {
    let site = Site::new(&[("a.txt", b"one"), ("b.txt", b"two")]);
    let etag = |path: &str| site.get(path, "").expect("ETag").to_owned();
    let first = etag("a.txt");
    assert_eq!(etag("a.txt"), first);
    // The same time and length, as in archives and reproducible builds.
    assert_ne!(etag("b.txt"), first);
    fs::rename(site.path("b.txt"), site.path("a.txt")).unwrap();
    let second = etag("a.txt");
    assert_ne!(second, first);
    site.write("a.txt", b"more");
    assert!(![first, second].contains(&etag("a.txt")));
}

#[test]
fn rfc9110_8_8_2_2_a_recently_changed_file_has_a_weak_tag() {
    let site = Site::new(&[("a.txt", b"a")]);
    let files = site.files();
    let etag = |now| ask_at(&files, "GET", "/assets/a.txt", "", now).expect("ETag").to_owned();
    let (fresh, settled) = (etag(SystemTime::UNIX_EPOCH), etag(later()));
    assert_eq!(fresh, format!("W/{settled}"));
    let range = ask_at(&files, "GET", "/assets/a.txt", "If-Match: *\r\n", SystemTime::UNIX_EPOCH);
    assert_eq!(range.status, 200);
}

#[test]
fn rfc9110_8_8_2_1_last_modified_is_never_in_the_future() {
    let site = Site::new(&[("a.txt", b"a")]);
    let file = fs::File::options().write(true).open(site.path("a.txt")).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(1_000_000)).unwrap();
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
    let answer = ask_at(&site.files(), "GET", "/assets/a.txt", "", now);
    assert_eq!(answer.expect("Last-Modified"), MODIFIED);
    // Before 1970 there is no Last-Modified.
    file.set_modified(SystemTime::UNIX_EPOCH - Duration::from_secs(1)).unwrap();
    let old = site.get("a.txt", "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n");
    assert_eq!((old.status, old.header("Last-Modified")), (200, None));
}

#[test]
fn check_names_the_missing_directory() {
    let site = Site::new(&[("a.txt", b"")]);
    site.files().check().expect("a directory");
    for path in [site.path("none"), site.path("a.txt")] {
        let error = Files::new(&path).check().expect_err("none").to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn rfc9110_12_5_3_a_precompressed_file_is_sent_to_clients_that_accept_it() {
    let site = Site::new(&[
        ("a.js", b"plain"),
        ("a.js.br", b"brotli"),
        ("a.js.gz", b"gzip"),
        ("b.js", b"plain"),
        ("b.js.gz", b"gzip"),
    ]);
    let files = site.files().precompressed(true);
    for (path, accept, expected) in [
        ("a.js", None, "plain"),
        ("a.js", Some(""), "plain"),
        ("a.js", Some("identity"), "plain"),
        ("a.js", Some("gzip, deflate, br, zstd"), "brotli"),
        ("a.js", Some("gzip;q=1.0, BR;q=0.1"), "brotli"),
        ("a.js", Some("gzip, br;q=0"), "gzip"),
        ("a.js", Some("*"), "brotli"),
        ("a.js", Some("*, br;q=0.0"), "gzip"),
        ("a.js", Some("*;q=0"), "plain"),
        ("a.js", Some("*;q=0, gzip"), "gzip"),
        ("a.js", Some("x-gzip"), "gzip"),
        ("a.js", Some("br ; Q=0.000, gzip ; q=0"), "plain"),
        ("a.js", Some("brotli"), "plain"),
        ("b.js", Some("gzip, br"), "gzip"),
        ("b.js", Some("br"), "plain"),
    ] {
        let lines = accept.map_or(String::new(), |value| format!("Accept-Encoding: {value}\r\n"));
        let answer = ask(&files, "GET", &format!("/assets/{path}"), &lines);
        assert_eq!(answer.text(), expected, "{accept:?}");
        assert_eq!(answer.expect("Content-Type"), "text/javascript; charset=utf-8");
        assert_eq!(answer.expect("Vary"), "Accept-Encoding");
        let coding = match expected {
            "brotli" => Some("br"),
            "gzip" => Some("gzip"),
            _ => None,
        };
        assert_eq!(answer.header("Content-Encoding"), coding);
        let plain = ask(&files, "GET", &format!("/assets/{path}"), "");
        assert_eq!(plain.expect("ETag") == answer.expect("ETag"), expected == "plain");
        // RFC 9110 section 15.4.5: a 304 has the Vary of its 200.
        let lines = format!("{lines}If-None-Match: {}\r\n", answer.expect("ETag"));
        let known = ask(&files, "GET", &format!("/assets/{path}"), &lines);
        assert_eq!((known.status, known.expect("Vary")), (304, "Accept-Encoding"));
        assert_eq!(known.header("Content-Encoding"), None);
    }
    assert_eq!(site.get("a.js", "Accept-Encoding: br\r\n").text(), "plain", "off by default");
    // An outdated one: older than the original file.
    let file = fs::File::options().write(true).open(site.path("b.js")).unwrap();
    file.set_modified(SystemTime::now()).unwrap();
    let answer = ask(&files, "GET", "/assets/b.js", "Accept-Encoding: gzip\r\n");
    assert_eq!(answer.text(), "plain");
}
