//! Responses that are compressed for clients that accept it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use throng::http::{Files, Gzip, SourcePull};
use throng::prelude::*;
use throng::server::Shards;

use crate::support::served::{start, stop};
use crate::support::{BACKENDS, dial};

/// A response, with its body without chunks.
struct Got {
    head: String,
    body: Vec<u8>,
}

impl Got {
    fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    /// The body as gzip, another program, decompresses it.
    fn unpacked(&self) -> Vec<u8> {
        assert_eq!(self.field("Content-Encoding"), Some("gzip"), "{}", self.head);
        let mut gzip = Command::new("gzip")
            .args(["-dc"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = gzip.stdin.take().unwrap();
        let body = self.body.clone();
        let writer = std::thread::spawn(move || input.write_all(&body).unwrap());
        let output = gzip.wait_with_output().unwrap();
        writer.join().unwrap();
        assert!(output.status.success());
        output.stdout
    }
}

struct Client(BufReader<TcpStream>);

impl Client {
    fn dial(address: SocketAddr) -> Self {
        Self(BufReader::new(dial(address)))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    fn ask(&mut self, line: &str, fields: &str) -> Got {
        let request = format!("{line}\r\nHost: x\r\n{fields}\r\n");
        self.0.get_mut().write_all(request.as_bytes()).unwrap();
        let mut got = Got { head: String::new(), body: Vec::new() };
        loop {
            match self.line().as_str() {
                "\r\n" | "" => break,
                line => got.head += line,
            }
        }
        let length = got.field("Content-Length").map(|length| length.parse::<usize>().unwrap());
        if line.starts_with("HEAD") {
            return got;
        }
        if let Some(length) = length {
            got.body.resize(length, 0);
            self.0.read_exact(&mut got.body).unwrap();
        } else if got.field("Transfer-Encoding").is_some() {
            loop {
                let size = usize::from_str_radix(self.line().trim_end(), 16).unwrap();
                let at = got.body.len();
                got.body.resize(at + size, 0);
                self.0.read_exact(&mut got.body[at..]).unwrap();
                assert_eq!(self.line(), "\r\n");
                if size == 0 {
                    break;
                }
            }
        }
        got
    }

    fn get(&mut self, path: &str) -> Got {
        self.ask(&format!("GET {path} HTTP/1.1"), "Accept-Encoding: br, gzip\r\n")
    }
}

/// Text that is a third as long when it is compressed, or so.
fn text(len: usize) -> String {
    let mut state = 7_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'a' + (state >> 28) as u8)
    };
    (0..len).map(|_| next()).collect()
}

/// A body of `len` bytes that is made while it is sent.
fn streamed(len: usize, announced: Option<usize>) -> Response {
    let (text, mut at) = (text(len), 0);
    let source = move |room: usize, out: &mut Vec<u8>| {
        let end = text.len().min(at + room.min(10_000));
        out.extend_from_slice(&text.as_bytes()[at..end]);
        at = end;
        Ok(if end == text.len() { SourcePull::End } else { SourcePull::More })
    };
    Response::new(Status::OK)
        .header("Content-Type", "text/plain")
        .unwrap()
        .with_stream(announced.map(|length| length as u64), source)
}

fn app() -> App {
    App::new()
        .get("/whole/{len}", |request| {
            let len = request.param("len")?.parse().ok()?;
            Response::text(text(len)).header("ETag", "\"tag\"").ok()
        })
        .route("/blocking", Route::on(Method::Get, |_| text(5000)).blocking())
        .route(
            "/deferred",
            Route::deferred(Method::Get, |_, responder| responder.send(text(300_000))),
        )
        .get("/chunked", |_| streamed(1_000_000, None))
        .get("/sized", |_| streamed(1_000_000, Some(1_000_000)))
        .get("/short", |_| streamed(100_000, Some(200_000)))
        .get("/image", |_| Response::new(Status::OK).with_body("image/png", text(5000)))
        .route(
            "/written",
            Route::streaming(Method::Get, |_, _, responder| {
                std::thread::spawn(move || {
                    let response = Response::new(Status::OK).header("Content-Type", "text/csv");
                    let mut writer = responder.stream(response.unwrap(), None);
                    writer.write_all(text(2_000_000).as_bytes()).unwrap();
                    writer.finish();
                });
            })
            .max_body(0),
        )
}

#[test]
fn every_kind_of_body_is_compressed() {
    for io in BACKENDS {
        let (address, running) =
            start(Server::new(app().gzip(Gzip::new())).shards(Shards::new().io(io)));
        let mut client = Client::dial(address);
        for (path, len) in [
            ("/whole/1024", 1024),
            ("/whole/16384", 16_384),
            ("/whole/16385", 16_385),
            ("/whole/1000000", 1_000_000),
            ("/blocking", 5000),
            ("/deferred", 300_000),
            ("/chunked", 1_000_000),
            ("/sized", 1_000_000),
            ("/written", 2_000_000),
        ] {
            let got = client.get(path);
            assert!(got.unpacked() == text(len).into_bytes(), "{io:?} {path}");
            assert!(got.body.len() < len * 3 / 4, "{io:?} {path}: {}", got.body.len());
            assert_eq!(got.field("Vary"), Some("Accept-Encoding"), "{path}");
        }
        assert_eq!(client.get("/whole/2000").field("ETag"), Some("W/\"tag\""));
        stop(running);
    }
}

#[test]
fn data_that_cannot_be_compressed_is_sent_as_it_is() {
    let closed = App::new().get("/plain", |_| text(5000));
    let app = app().gzip(Gzip::new().min_size(2000)).merge(closed);
    let (address, running) = start(Server::new(app));
    let mut client = Client::dial(address);
    // Too short, of another type, of a route without gzip, and for clients that do not accept it.
    for (line, fields, vary) in [
        ("GET /whole/1999 HTTP/1.1", "Accept-Encoding: gzip\r\n", None),
        ("GET /image HTTP/1.1", "Accept-Encoding: gzip\r\n", None),
        ("GET /plain HTTP/1.1", "Accept-Encoding: gzip\r\n", None),
        ("GET /nothing HTTP/1.1", "Accept-Encoding: gzip\r\n", None),
        ("GET /whole/5000 HTTP/1.1", "", Some("Accept-Encoding")),
        ("GET /whole/5000 HTTP/1.1", "Accept-Encoding: br\r\n", Some("Accept-Encoding")),
        ("GET /whole/5000 HTTP/1.1", "Accept-Encoding: gzip;q=0, *\r\n", Some("Accept-Encoding")),
        ("HEAD /whole/5000 HTTP/1.1", "Accept-Encoding: gzip\r\n", Some("Accept-Encoding")),
        ("GET /deferred HTTP/1.1", "", Some("Accept-Encoding")),
    ] {
        let got = client.ask(line, fields);
        assert_eq!((got.field("Content-Encoding"), got.field("Vary")), (None, vary), "{line}");
    }
    let got = client
        .ask("GET /whole/5000 HTTP/1.0", "Connection: keep-alive\r\nAccept-Encoding: gzip\r\n");
    assert_eq!(got.body, text(5000).as_bytes());
    stop(running);
}

#[test]
fn a_body_that_is_shorter_than_announced_has_no_end() {
    let (address, running) = start(Server::new(app().gzip(Gzip::new())));
    let mut client = Client::dial(address);
    client
        .0
        .get_mut()
        .write_all(b"GET /short HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n")
        .unwrap();
    let mut rest = Vec::new();
    client.0.read_to_end(&mut rest).unwrap();
    assert!(rest.starts_with(b"HTTP/1.1 200 ") && !rest.ends_with(b"\r\n0\r\n\r\n"));
    stop(running);
}

#[test]
fn files_are_compressed_and_their_ranges_are_not() {
    let folder = throng_testkit::TempFolder::new("gzip");
    folder.write("page.html", text(100_000));
    folder.write("small.txt", text(3000));
    folder.write("photo.png", text(3000));
    folder.write("ready.css", text(3000));
    folder.write("ready.css.gz", b"made before");
    let files = Files::new(&folder).precompressed(true);
    let (address, running) = start(Server::new(App::new().dir("/", files).gzip(Gzip::new())));
    let mut client = Client::dial(address);
    for (path, len) in [("/page.html", 100_000), ("/small.txt", 3000)] {
        let got = client.get(path);
        assert!(got.unpacked() == text(len).into_bytes(), "{path}");
        assert_eq!(got.field("Accept-Ranges"), None);
        let tag = got.field("ETag").unwrap();
        assert!(tag.starts_with("W/\""), "{tag}");
        let again = format!("Accept-Encoding: gzip\r\nIf-None-Match: {tag}\r\n");
        let again = client.ask(&format!("GET {path} HTTP/1.1"), &again);
        assert!(again.head.starts_with("HTTP/1.1 304 "), "{}", again.head);
        assert_eq!(again.field("Vary"), Some("Accept-Encoding"));
        // A weak tag does not guarantee equal bytes.
        let part = format!("Accept-Encoding: gzip\r\nRange: bytes=0-9\r\nIf-Range: {tag}\r\n");
        let part = client.ask(&format!("GET {path} HTTP/1.1"), &part);
        assert!(part.head.starts_with("HTTP/1.1 200 "), "{}", part.head);
    }
    let range = "Accept-Encoding: gzip\r\nRange: bytes=10-19\r\n";
    let part = client.ask("GET /page.html HTTP/1.1", range);
    assert!(part.head.starts_with("HTTP/1.1 206 "), "{}", part.head);
    assert_eq!(
        (part.field("Content-Encoding"), &part.body[..]),
        (None, &text(20).as_bytes()[10..])
    );
    assert_eq!(client.get("/photo.png").body, text(3000).as_bytes());
    let ready = client.get("/ready.css");
    assert_eq!(
        (ready.field("Content-Encoding"), &ready.body[..]),
        (Some("gzip"), &b"made before"[..])
    );
    stop(running);
}

#[test]
fn bodies_that_are_not_taken_do_not_hold_encoders_without_bound() {
    let app = App::new().get("/", |_| text(4_000_000)).gzip(Gzip::new().max_streams(2));
    let (address, running) = start(Server::new(app));
    let head = |client: &mut Client| {
        let request = b"GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n";
        client.0.get_mut().write_all(request).unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head += &client.line();
        }
        head.contains("Content-Encoding: gzip")
    };
    let dial =
        |_| Client(BufReader::with_capacity(1, crate::support::served::dial_narrow(address)));
    let mut clients: Vec<Client> = (0..3).map(dial).collect();
    let coded: Vec<bool> = clients.iter_mut().map(head).collect();
    assert_eq!(coded, [true, true, false]);
    // A client that leaves makes room.
    drop(clients);
    crate::support::eventually("there is room", || head(&mut Client::dial(address)));
    stop(running);
}

#[test]
fn a_level_that_does_not_exist_is_refused_by_name() {
    for level in [0, 10] {
        let error = Server::new(app().gzip(Gzip::new().level(level))).check().unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("level of gzip is {level}")), "{text}");
    }
}

#[test]
fn a_client_that_leaves_ends_the_work_for_it() {
    let made = Arc::new(());
    let its = Arc::clone(&made);
    let app = App::new().get("/", move |_| {
        let its = Arc::clone(&its);
        let endless = move |room: usize, out: &mut Vec<u8>| {
            let _ = &its;
            out.resize(room, b'x');
            Ok(SourcePull::More)
        };
        Response::new(Status::OK)
            .header("Content-Type", "text/plain")
            .unwrap()
            .with_stream(None, endless)
    });
    let (address, running) = start(Server::new(app.gzip(Gzip::new())));
    let mut client = Client::dial(address);
    client
        .0
        .get_mut()
        .write_all(b"GET / HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n")
        .unwrap();
    assert!(client.line().starts_with("HTTP/1.1 200 "));
    drop(client);
    crate::support::eventually("the source is dropped", || Arc::strong_count(&made) == 2);
    running.shutdown(DrainPlan::default().window(Duration::ZERO)).wait().unwrap();
}
