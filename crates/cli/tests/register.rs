//! `throng serve --register` against a balancer that the test plays.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use support::TIMEOUT;

const TOKEN: &str = "0123456789abcdef-token";

/// A server that registers, and its lines on both outputs.
struct Backend {
    process: Child,
    lines: BufReader<Box<dyn Read + Send>>,
    address: SocketAddr,
    token_file: PathBuf,
}

impl Backend {
    fn start(name: &str, balancer: SocketAddr, words: &[&str]) -> Self {
        let token_file =
            std::env::temp_dir().join(format!("throng-register-{name}-{}", std::process::id()));
        std::fs::write(&token_file, format!("{TOKEN}\n")).unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(["serve", "--shards", "1", "--listen", "127.0.0.1:0"])
            .args(["--set", "drain.window=0s", "--register"])
            .arg(format!("http://{balancer}"))
            .arg("--register-token-file")
            .arg(&token_file)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines =
            BufReader::new(Box::new(process.stdout.take().unwrap()) as Box<dyn Read + Send>);
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let address = line.split(' ').find_map(|word| word.strip_prefix("http://")).unwrap();
        Self { address: address.parse().unwrap(), process, lines, token_file }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line
    }

    /// SIGTERM; returns the exit code and what was said on standard error, when `meanwhile` has
    /// run.
    fn end(mut self, meanwhile: impl FnOnce()) -> (Option<i32>, String) {
        let kill = format!("kill -TERM {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        meanwhile();
        let code = self.process.wait().unwrap().code();
        let mut errors = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        (code, errors)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.token_file);
    }
}

/// The next request, to which `status` and `body` are the answer: method and path, and its body.
fn serve_one(listener: &TcpListener, status: &str, body: &str) -> (String, String) {
    let (mut stream, _) = listener.accept().unwrap();
    let request = read_request(&mut stream);
    let length = body.len();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
    let (head, sent) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("\r\nAuthorization: Bearer {TOKEN}")), "{head}");
    (head.split(" HTTP/").next().unwrap().to_owned(), sent.to_owned())
}

fn read_request(stream: &mut TcpStream) -> String {
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut text = String::new();
    loop {
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return text;
            }
        }
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).unwrap();
        assert!(count > 0, "it hung up: {text}");
        text.push_str(str::from_utf8(&buffer[..count]).unwrap());
    }
}

const HOLDS: &str = r#"{"ttl_seconds": 0.3}"#;

#[test]
fn it_registers_renews_comes_back_and_goes() {
    let balancer = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut backend =
        Backend::start("life", balancer.local_addr().unwrap(), &["--register-weight", "7"]);
    let address = backend.address;
    let registered =
        ("POST /register".to_owned(), format!(r#"{{"address":"{address}","weight":7}}"#));
    let renewed = (format!("POST /register/{address}/heartbeat"), "{}".to_owned());
    assert_eq!(serve_one(&balancer, "200 OK", HOLDS), registered);
    let line = backend.line();
    assert!(line.starts_with("registered with http://127.0.0.1:"), "{line}");
    assert!(line.contains(&format!("as {address}, weight 7; renewed every 0.1 s")), "{line}");
    assert_eq!(serve_one(&balancer, "200 OK", HOLDS), renewed);
    // The balancer was started anew.
    assert_eq!(serve_one(&balancer, "404 Not Found", "{}"), renewed);
    assert_eq!(serve_one(&balancer, "200 OK", HOLDS), registered);
    assert!(backend.line().starts_with("registered again with "));
    let (code, errors) = backend.end(|| {
        // Heartbeats may come before it, but it is told to go first of all.
        let goes = (format!("DELETE /register/{address}"), String::new());
        while serve_one(&balancer, "200 OK", HOLDS) != goes {}
    });
    assert_eq!((code, errors.as_str()), (Some(0), ""));
}

#[test]
fn a_balancer_that_is_away_or_refuses_is_told_once_and_asked_again() {
    let balancer = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = balancer.local_addr().unwrap();
    let mut backend = Backend::start("away", address, &["--register-address", "127.0.0.9:81"]);
    for _ in 0..3 {
        let (_, body) = serve_one(&balancer, "401 Unauthorized", r#"{"error":"another token"}"#);
        assert!(body.contains("127.0.0.9:81"), "{body}");
    }
    // Serving meanwhile.
    assert!(
        support::exchange(
            &mut support::dial(backend.address),
            "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        .head
        .starts_with("HTTP/1.1 200 ")
    );
    serve_one(&balancer, "200 OK", HOLDS);
    assert!(backend.line().starts_with("registered again with "));
    drop(balancer);
    let mut errors = backend.process.stderr.take().map(BufReader::new).unwrap();
    let mut line = || {
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        line
    };
    let refused = line();
    assert!(refused.contains("refuses this backend: 401 another token"), "{refused}");
    // Its words come when it has been refused by the system at least once. Before that, a heartbeat
    // may have been on its way when the listener went.
    let mut away = line();
    if !away.contains("connection refused") {
        assert!(away.contains(" is away: "), "{away}");
        away = line();
    }
    assert!(away.contains("is away: cannot connect: connection refused"), "{away}");
}

#[test]
fn what_is_missing_or_wrong_is_told_before_anything_is_served() {
    let run = |words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (words, part) in [
        (&["--register", "http://127.0.0.1:1"][..], "--register-token-file"),
        (&["--register-weight", "2"], "--register"),
        (&["--register", "http://127.0.0.1:1", "--register-token-file", "/nowhere"], "/nowhere"),
        (
            &["--register", "https://127.0.0.1:1", "--register-token-file", "Cargo.toml"],
            "Cargo.toml",
        ),
    ] {
        let (code, errors) = run(words);
        assert_eq!(code, Some(2), "{words:?}: {errors}");
        assert!(errors.contains(part), "{words:?}: {errors}");
    }
}
