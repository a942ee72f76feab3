//! A directory, served.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use throng::prelude::*;

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
    let scratch = std::env::temp_dir().join(format!("throng-files-{}", std::process::id()));
    let public = scratch.join("public");
    std::fs::create_dir_all(public.join("sub")).unwrap();
    std::fs::write(scratch.join("secret"), "secret").unwrap();
    std::fs::write(public.join("index.html"), "<p>home").unwrap();
    std::fs::write(public.join("sub/page.txt"), "0123456789").unwrap();
    std::fs::write(public.join("large"), vec![b'x'; 3_000_000]).unwrap();
    let bound = Server::new(
        App::new()
            .get("/hello", |_: &Request<'_>| "hello")
            .dir("/", public.as_path())
            .dir("/again", Files::new(&public).without_index()),
    )
    .shards(1)
    .bind("127.0.0.1:0")
    .unwrap();
    let address = bound.local_addr();
    let running = bound.spawn().unwrap();

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

    running.drain(DrainPlan::default()).unwrap();
    std::fs::remove_dir_all(scratch).unwrap();
}

#[test]
fn a_missing_directory_is_an_error_before_anything_listens() {
    let error =
        Server::new(App::new().dir("/", "/no/such/directory")).bind("127.0.0.1:0").unwrap_err();
    assert!(error.to_string().contains("/no/such/directory"), "{error}");
}
