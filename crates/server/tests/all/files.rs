//! A directory, served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use throng::http::Files;
use throng::prelude::*;
use throng_testkit::TempFolder;

use crate::support::TIMEOUT;

/// The whole answer to one request.
fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "{request}\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_directory_is_served_beside_routes_and_nothing_outside_of_it() {
    let scratch = TempFolder::new("files");
    let public = scratch.join("public");
    std::fs::create_dir_all(public.join("sub")).unwrap();
    scratch.write("secret", "secret");
    std::fs::write(public.join("index.html"), "<p>home").unwrap();
    std::fs::write(public.join("sub/page.txt"), "0123456789").unwrap();
    std::fs::write(public.join("large"), vec![b'x'; 3_000_000]).unwrap();
    let bound = Server::new(
        App::new()
            .get("/hello", |_: &Request<'_>| "hello")
            .ws("/talk/{to}", Ws::new().on_message(|ws, (), message| ws.send(message)))
            .dir("/", public.as_path())
            .dir("/again", Files::new(&public).without_index()),
    )
    .shards(1)
    .bind("127.0.0.1:0")
    .unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();

    assert!(ask(address, "GET / HTTP/1.1").ends_with("\r\n\r\n<p>home"));
    assert!(ask(address, "GET /hello HTTP/1.1").ends_with("hello"));
    assert!(ask(address, "GET /again HTTP/1.1").contains("Location: ./again/\r\n"));
    assert!(ask(address, "GET /again/ HTTP/1.1").starts_with("HTTP/1.1 404 "));
    let page = ask(address, "GET /again/sub/page.txt HTTP/1.1\r\nRange: bytes=2-4");
    assert!(page.starts_with("HTTP/1.1 206 ") && page.ends_with("\r\n\r\n234"), "{page}");
    let large = ask(address, "GET /large HTTP/1.1");
    assert!(large.contains("Content-Length: 3000000\r\n"));
    assert_eq!(large.len() - large.find("\r\n\r\n").unwrap() - 4, 3_000_000);
    let head = ask(address, "HEAD /large HTTP/1.1");
    assert!(head.contains("Content-Length: 3000000\r\n") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(ask(address, "POST / HTTP/1.1").starts_with("HTTP/1.1 405 "));
    assert!(ask(address, "OPTIONS / HTTP/1.1").contains("Allow: GET, HEAD, OPTIONS\r\n"));
    for path in ["/../secret", "/%2e%2e/secret", "/sub/..%2f..%2fsecret", "/..%5csecret"] {
        let answer = ask(address, &format!("GET {path} HTTP/1.1"));
        assert!(!answer.ends_with("secret"), "{path}: {answer}");
    }

    // RFC 6455 sections 4.2.1 and 4.4: a WebSocket route names the fault of an upgrade request even
    // if the directory also serves the path, and even if no file matches.
    std::fs::create_dir_all(public.join("talk")).unwrap();
    std::fs::write(public.join("talk/file"), "a file").unwrap();
    let key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    for (path, version, lines, status) in [
        ("/talk/me", "1.1", "", "426"),
        ("/talk/me", "1.1", "Connection: close\r\nUpgrade: websocket", "400"),
        ("/talk/me", "1.0", "Connection: close\r\nUpgrade: websocket", "400"),
        ("/talk/file", "1.1", "", "200"),
        ("/talk/file", "1.1", "Connection: close\r\nUpgrade: websocket", "400"),
        ("/talk", "1.1", "", "404"),
        ("/nothing", "1.1", "Connection: close\r\nUpgrade: websocket", "404"),
    ] {
        let lines =
            if lines.is_empty() { lines.to_owned() } else { format!("\r\n{lines}\r\n{key}") };
        let answer = ask(address, &format!("GET {path} HTTP/{version}{lines}"));
        let expected = match lines.is_empty() {
            true => status.to_owned(),
            // As without a directory.
            false if status == "400" => refused_without_a_directory(version, &lines),
            false => status.to_owned(),
        };
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{path} {lines}: {answer}");
    }

    running.shutdown(DrainPlan::default()).wait().unwrap();
}

/// The status of the refusal of a wrong upgrade: 400 or 426.
fn refused_without_a_directory(version: &str, lines: &str) -> String {
    let app = App::new().ws("/talk/{to}", Ws::new().on_message(|ws, (), message| ws.send(message)));
    let bound = Server::new(app).shards(1).bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();
    let answer = ask(address, &format!("GET /talk/me HTTP/{version}{lines}"));
    running.shutdown(DrainPlan::default()).wait().unwrap();
    let status = answer.split(' ').nth(1).unwrap().to_owned();
    assert!(["400", "426"].contains(&&*status), "{answer}");
    status
}

#[test]
fn files_have_the_media_types_of_the_program_before_the_known_ones() {
    let root = TempFolder::new("types");
    for name in ["a.GLB", "b.md", "c.txt"] {
        root.write(name, "x");
    }
    let files = Files::new(&root);
    let files = files.media_type("glb", "model/gltf-binary").unwrap();
    let files = files.media_type("md", "text/html; charset=utf-8").unwrap();
    assert!(files.clone().media_type("x", "no type").is_err());
    let bound = Server::new(App::new().dir("/", files)).shards(1).bind("127.0.0.1:0").unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();
    for (name, media_type) in [
        ("a.GLB", "model/gltf-binary"),
        ("b.md", "text/html; charset=utf-8"),
        ("c.txt", "text/plain; charset=utf-8"),
    ] {
        let answer = ask(address, &format!("GET /{name} HTTP/1.1"));
        assert!(answer.contains(&format!("Content-Type: {media_type}\r\n")), "{answer}");
    }
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

#[test]
fn a_missing_directory_is_an_error_before_anything_listens() {
    let server = Server::new(App::new().dir("/", "/no-such-directory"));
    let error = server.bind("127.0.0.1:0").unwrap_err();
    assert!(error.to_string().contains("no-such-directory"), "{error}");
}
