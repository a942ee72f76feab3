//! `throng serve --register` against a balancer that is part of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command, Stdio};

use throng_testkit::TempFolder;

use crate::support::TIMEOUT;

const TOKEN: &str = "0123456789abcdef-token";

/// A server that registers, and its lines on both outputs.
struct Backend {
    process: Child,
    log: BufReader<ChildStderr>,
    address: SocketAddr,
    _folder: TempFolder,
}

impl Backend {
    fn start(name: &str, balancer: SocketAddr, words: &[&str]) -> Self {
        let folder = TempFolder::new(name);
        let token_file = folder.write("token", format!("{TOKEN}\n"));
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
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let log = BufReader::new(process.stderr.take().unwrap());
        let address = line.split(' ').find_map(|word| word.strip_prefix("http://")).unwrap();
        Self { address: address.parse().unwrap(), process, log, _folder: folder }
    }

    /// The next event of this name in the log.
    fn event(&mut self, name: &str) -> serde_json::Value {
        loop {
            let mut line = String::new();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "no event {name}");
            let event: serde_json::Value = serde_json::from_str(&line).unwrap();
            if event["event"] == name {
                return event;
            }
        }
    }

    /// Sends SIGTERM; returns the exit code and the rest of the log, after `meanwhile` has run.
    fn end(mut self, meanwhile: impl FnOnce()) -> (Option<i32>, String) {
        let kill = format!("kill -TERM {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        meanwhile();
        let code = self.process.wait().unwrap().code();
        let mut errors = String::new();
        self.log.read_to_string(&mut errors).unwrap();
        (code, errors)
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Answers the next request with `status` and `body`; returns its method and path, and its body.
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
    let event = backend.event("registered");
    assert!(event["balancer"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{event}");
    assert_eq!(event["address"], address.to_string());
    assert_eq!(
        (&event["weight"], &event["message"]),
        (&7.into(), &"registered, renewed every 0.1 s".into())
    );
    assert_eq!(serve_one(&balancer, "200 OK", HOLDS), renewed);
    // The balancer was restarted.
    assert_eq!(serve_one(&balancer, "404 Not Found", "{}"), renewed);
    assert_eq!(serve_one(&balancer, "200 OK", HOLDS), registered);
    let again = "registered again, renewed every 0.1 s";
    assert_eq!(backend.event("registered")["message"], again);
    let (code, log) = backend.end(|| {
        // Heartbeats may come before it, but no other request.
        let goes = (format!("DELETE /register/{address}"), String::new());
        while serve_one(&balancer, "200 OK", HOLDS) != goes {}
    });
    assert_eq!(code, Some(0), "{log}");
    assert!(
        log.contains(r#""event":"deregistered""#) && !log.contains(r#""level":"warn""#),
        "{log}"
    );
}

#[test]
fn a_balancer_that_is_away_or_refuses_is_reported_once_and_asked_again() {
    let balancer = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = balancer.local_addr().unwrap();
    let mut backend = Backend::start("away", address, &["--register-address", "127.0.0.9:81"]);
    for _ in 0..3 {
        let (_, body) = serve_one(&balancer, "401 Unauthorized", r#"{"error":"another token"}"#);
        assert!(body.contains("127.0.0.9:81"), "{body}");
    }
    // Still serving.
    assert!(
        crate::support::exchange(
            &mut crate::support::dial(backend.address),
            "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
        )
        .head
        .starts_with("HTTP/1.1 200 ")
    );
    serve_one(&balancer, "200 OK", HOLDS);
    let mut line = || backend.event("register.failed")["reason"].as_str().unwrap().to_owned();
    let refused = line();
    assert!(refused.contains("refuses this backend: 401 another token"), "{refused}");
    drop(balancer);
    // It prints this line after the system has refused it at least once. Before that, a heartbeat
    // may have been in flight when the listener closed.
    let mut away = line();
    if !away.contains("connection refused") {
        assert!(away.contains(" is away: "), "{away}");
        away = line();
    }
    assert!(away.contains("is away: cannot connect: connection refused"), "{away}");
}

#[test]
fn missing_or_wrong_flags_are_reported_before_anything_is_served_and_by_the_check() {
    let run = |command: &[&str], words: &[&str]| {
        let listen: &[_] =
            if words.contains(&"--listen") { &[] } else { &["--listen", "127.0.0.1:0"] };
        let output = Command::new(env!("CARGO_BIN_EXE_throng"))
            .args(command)
            .args(listen)
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let folder = TempFolder::new("register-tokens");
    // No balancer can have these.
    let [short, other] = [("short", "a\n"), ("other", "0123456789abcdé\n")]
        .map(|(name, text)| folder.write(name, text).to_str().unwrap().to_owned());
    let token = folder.write("token", TOKEN).to_str().unwrap().to_owned();
    let (short, other, token, balancer) = (&*short, &*other, &*token, "http://127.0.0.1:1");
    let right = ["--register", balancer, "--register-token-file", token];
    let (unix, both) = (["--listen", "unix:a"], ["--listen", "127.0.0.1:0", "--listen", "unix:a"]);
    for (words, part) in [
        (&["--register", balancer, "--register-token-file", short][..], "16 visible ASCII"),
        (&["--register", balancer, "--register-token-file", other], "16 visible ASCII"),
        (&[&right[..], &unix].concat(), "--register-address"),
        (&["--register", "http://127.0.0.1:1"], "--register-token-file"),
        (&["--register-weight", "2"], "--register"),
        (&["--register", "http://127.0.0.1:1", "--register-token-file", "/nowhere"], "/nowhere"),
        (
            &["--register", "https://127.0.0.1:1", "--register-token-file", "Cargo.toml"],
            "Cargo.toml",
        ),
    ] {
        // A missing file may exist at the next start.
        let expected = if words.contains(&"/nowhere") { 1 } else { 2 };
        for command in [&["serve"][..], &["config", "check", "serve"], &["config", "check"]] {
            let (code, errors) = run(command, words);
            assert_eq!(code, Some(expected), "{command:?} {words:?}: {errors}");
            assert!(errors.contains(part), "{command:?} {words:?}: {errors}");
        }
    }
    for listen in [&[][..], &both] {
        let (code, errors) = run(&["config", "check", "serve"], &[&right[..], listen].concat());
        assert_eq!(code, Some(0), "{listen:?}: {errors}");
    }
}
