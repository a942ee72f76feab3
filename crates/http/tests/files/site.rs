//! A directory to serve, and a client for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use throng_http::{Body, Files, Match, ReplyTo, Request, Response, Router, SourcePull};
use throng_proto::Input;
use throng_proto::http1::{Decoder, Event, Limits};
use throng_testkit::TempFolder;

/// Content that must never be served.
pub(crate) const SECRET: &str = "THE-SECRET";

/// The modification time of all files of a site: 6 November 1994, 08:49:37 and a half.
pub(crate) const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

/// A directory with `root` to serve and a secret beside it; removed when dropped.
pub(crate) struct Site {
    base: TempFolder,
}

impl Site {
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Self {
        let base = TempFolder::new("files");
        fs::create_dir_all(base.join("root")).expect("a directory");
        base.write("secret.txt", SECRET);
        let site = Self { base };
        for (path, content) in files {
            site.write(path, content);
        }
        site
    }

    /// Writes a file with an old modification time.
    pub(crate) fn write(&self, path: &str, content: &[u8]) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(&path, content).expect("a file");
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(784_111_777_500);
        let file = fs::File::options().write(true).open(&path).expect("a file");
        file.set_modified(time).expect("a time");
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.base.join("root")
    }

    /// Returns the directory that contains the root and the secret.
    pub(crate) fn base(&self) -> &Path {
        &self.base
    }

    pub(crate) fn files(&self) -> Files {
        Files::new(self.root())
    }

    /// Sends a GET of `/assets/` and `path` with default settings.
    pub(crate) fn get(&self, path: &str, lines: &str) -> Answer {
        ask(&self.files(), "GET", &format!("/assets/{path}"), lines)
    }
}

/// Returns a time long enough after the files were written that they count as settled, without
/// waiting.
pub(crate) fn later() -> SystemTime {
    SystemTime::now() + Duration::from_secs(60)
}

/// A response as it is on the wire.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// Whether the body failed in transit: the connection is reset.
    pub(crate) is_broken: bool,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.head.lines().filter_map(|line| {
            let (known, value) = line.split_once(": ")?;
            known.eq_ignore_ascii_case(name).then_some(value)
        });
        let value = values.next();
        assert_eq!(values.next(), None, "{name} twice: {}", self.head);
        value
    }

    /// Returns a required header.
    pub(crate) fn expect(&self, name: &str) -> &str {
        self.header(name).unwrap_or_else(|| panic!("no {name}: {}", self.head))
    }

    pub(crate) fn text(&self) -> &str {
        str::from_utf8(&self.body).expect("text")
    }
}

/// Sends a request to `files`, routed at `/assets/{*rest}` for every method, a minute after now.
pub(crate) fn ask(files: &Files, method: &str, target: &str, lines: &str) -> Answer {
    ask_at(files, method, target, lines, later())
}

pub(crate) fn ask_at(
    files: &Files,
    method: &str,
    target: &str,
    lines: &str,
    now: SystemTime,
) -> Answer {
    let response = |request: &Request<'_>| files.respond_at(request, now);
    send(method, target, lines, response).unwrap_or_else(|status| Answer {
        status,
        head: String::new(),
        body: Vec::new(),
        is_broken: false,
    })
}

/// Passes a request through decoder and router to `respond`; the error is the status of a refusal.
pub(crate) fn send(
    method: &str,
    target: &str,
    lines: &str,
    respond: impl FnOnce(&Request<'_>) -> Response,
) -> Result<Answer, u16> {
    let mut router = Router::new();
    router.add_any("/assets/{*rest}", ()).expect("a valid pattern");
    let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: h\r\n{lines}\r\n").into_bytes();
    let mut decoder = Decoder::new();
    let mut input = Input::new(&mut bytes);
    let Ok(Some(Event::Head(head))) = decoder.next_event(&mut input, &Limits::default()) else {
        return Err(400);
    };
    let to = ReplyTo::request(&head, "Fri, 20 Nov 2026 13:00:00 GMT");
    let params = match router.find(head.method(), head.path()) {
        Match::Found { params, .. } => params,
        Match::BadPath => return Err(400),
        _ => return Err(404),
    };
    Ok(receive(respond(&Request::new(head, params, b"", None)), &to))
}

/// Encodes `response` and pulls its body to the end, in chunks as the server does.
pub(crate) fn receive(response: Response, to: &ReplyTo<'_>) -> Answer {
    let mut head = Vec::new();
    response.encode_head(to, &mut head);
    let head = String::from_utf8(head).expect("a head is text");
    let (status, has_body) = (response.status().code(), response.has_body_bytes(to));
    let (mut body, mut is_broken) = (Vec::new(), false);
    if has_body {
        match response.into_body() {
            Body::Whole(bytes) => body.extend_from_slice(&bytes),
            Body::Stream(mut stream) => loop {
                let before = body.len();
                let mut chunk = Vec::new();
                match stream.source.pull(64 * 1024, &mut chunk) {
                    Ok(pull) => {
                        body.append(&mut chunk);
                        assert_ne!(pull, SourcePull::Wait);
                        if pull == SourcePull::End {
                            break;
                        }
                        assert!(body.len() > before, "no progress");
                    }
                    Err(_) => {
                        is_broken = true;
                        break;
                    }
                }
            },
        }
    }
    let answer = Answer { status, head, body, is_broken };
    if has_body && !answer.is_broken {
        assert_eq!(answer.expect("Content-Length"), answer.body.len().to_string());
    }
    answer
}
