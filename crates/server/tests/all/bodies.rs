//! Request bodies reach their handlers, whole, with any framing and cut at any point.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc;

use throng::prelude::*;
use throng::server::{IoBackend, Shards};

use crate::support::TIMEOUT;

/// Answers with the method, the body's length and the body.
fn served() -> (SocketAddr, Running) {
    let echo = |request: &Request<'_>| {
        let body = String::from_utf8_lossy(request.body()).into_owned();
        format!("{} {} {body}", request.method(), body.len())
    };
    let mut limits = Limits::default();
    limits.http.max_body = 100_000;
    let bound =
        Server::new(App::new().any("/echo/{*rest}", echo).post("/post", echo).get("/get", echo))
            .shards(1)
            .limits(limits)
            .bind("127.0.0.1:0")
            .unwrap();
    (bound.local_addr(), bound.start().unwrap())
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The next answer: its head and its body.
fn answer(stream: &mut TcpStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "{:?}", String::from_utf8_lossy(&head));
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    (head, String::from_utf8(body).unwrap())
}

#[test]
fn bodies_of_any_method_and_framing_are_whole() {
    let (address, running) = served();
    let requests = [
        ("POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello", "POST 5 hello"),
        ("GET /get HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi", "GET 2 hi"),
        ("GET /get HTTP/1.1\r\nHost: h\r\n\r\n", "GET 0 "),
        ("POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "POST 0 "),
        (
            "PATCH /echo/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
             3;x=y\r\nabc\r\n4\r\ndefg\r\n0\r\nChecksum: ignored\r\n\r\n",
            "PATCH 7 abcdefg",
        ),
        ("DELETE /echo/x HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nd", "DELETE 1 d"),
    ];
    // All of them in one write, in pieces of every size, byte by byte: the answers come in order.
    let all: String = requests.iter().map(|(request, _)| *request).collect();
    for size in [all.len(), 1, 7, 50] {
        let mut stream = dial(address);
        stream.set_nodelay(true).unwrap();
        for piece in all.as_bytes().chunks(size) {
            stream.write_all(piece).unwrap();
        }
        for (request, expected) in requests {
            let (head, body) = answer(&mut stream);
            assert!(head.starts_with("HTTP/1.1 200 "), "{request}: {head}");
            assert_eq!(body, expected, "{request}, {size} bytes at a time");
        }
    }
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

#[test]
fn a_handler_finds_the_whole_body_in_its_request() {
    let app = App::new().post("/", |request| request.body().len().to_string());
    let bound = Server::new(app).bind("127.0.0.1:0").unwrap();
    let (address, running) = (bound.local_addr(), bound.start().unwrap());
    let mut stream = dial(address);
    let head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&[b'x'; 100_000]).unwrap();
    assert_eq!(answer(&mut stream).1, "100000");
    drop(stream);
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

#[test]
fn expect_100_continue_is_answered_and_the_connection_stays_open() {
    let (address, running) = served();
    let mut stream = dial(address);
    for _ in 0..2 {
        let head =
            "POST /post HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(answer(&mut stream).0, "HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(b"abc").unwrap();
        let (head, body) = answer(&mut stream);
        assert!(!head.contains("Connection: close"), "{head}");
        assert_eq!(body, "POST 3 abc");
    }
    // If the handler refuses the body, the final answer comes instead, and the body may never
    // follow.
    let head =
        "POST /nowhere HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let (head, _) = answer(&mut stream);
    assert!(head.starts_with("HTTP/1.1 404 ") && head.contains("Connection: close"), "{head}");
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

#[test]
fn a_body_of_the_limit_passes_and_one_byte_more_does_not() {
    let (address, running) = served();
    let post = |length: usize, chunked: bool| {
        let mut stream = dial(address);
        let body = vec![b'x'; length];
        if chunked {
            stream
                .write_all(b"POST /post HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
                .unwrap();
            for chunk in body.chunks(9_999) {
                let head = format!("{:x}\r\n", chunk.len());
                let _ = stream.write_all(&[head.as_bytes(), chunk, b"\r\n"].concat());
            }
            let _ = stream.write_all(b"0\r\n\r\n");
        } else {
            let head =
                format!("POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
            let _ = stream.write_all(&body);
        }
        answer(&mut stream)
    };
    for chunked in [false, true] {
        assert!(post(100_000, chunked).1.starts_with("POST 100000 xxx"));
        let (head, _) = post(100_001, chunked);
        assert!(head.starts_with("HTTP/1.1 413 ") && head.contains("Connection: close"), "{head}");
    }
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

/// More than fits in all sockets' buffers, so that its sender blocks unless the server reads on.
#[test]
fn a_client_that_sends_a_whole_body_before_it_reads_gets_its_413() {
    let (address, running) = served();
    let body = vec![b'x'; 32 << 20];
    for path in ["post", "nowhere"] {
        let mut stream = dial(address);
        let length = body.len();
        write!(stream, "POST /{path} HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n")
            .unwrap();
        stream.write_all(&body).unwrap();
        let (head, _) = answer(&mut stream);
        let status = if path == "post" { "413" } else { "404" };
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
    }
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

/// RFC 9112 section 8 leaves the answer to the server; see docs/http.md.
#[test]
fn rfc9112_8_a_request_that_ends_in_its_middle_ends_the_connection_without_an_answer() {
    let (address, running) = served();
    let parts = [
        "GET /get HTTP/1.1\r\nHo",
        "POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nhalf",
        "POST /post HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ];
    for part in parts {
        let mut stream = dial(address);
        stream.write_all(part.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert_eq!(all, "", "{part}");
    }
    // Complete requests are answered.
    let mut stream = dial(address);
    stream.write_all(b"GET /get HTTP/1.1\r\nHost: h\r\n\r\nGET /ge").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut all = String::new();
    stream.read_to_string(&mut all).unwrap();
    assert!(all.starts_with("HTTP/1.1 200 ") && all.matches("HTTP/1.1 ").count() == 1, "{all}");
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

#[test]
fn a_client_that_goes_away_in_its_body_leaves_nothing() {
    let (address, running) = served();
    for _ in 0..50 {
        let mut stream = dial(address);
        stream
            .write_all(b"POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\nabc")
            .unwrap();
    }
    let mut stream = dial(address);
    stream.write_all(b"POST /post HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok").unwrap();
    assert_eq!(answer(&mut stream).1, "POST 2 ok");
    drop(stream);
    let drained = running.shutdown(DrainPlan::default()).wait().unwrap();
    assert_eq!(drained.forced, 0);
}

#[test]
fn rfc9110_15_a_request_has_one_answer_whatever_becomes_of_a_body_that_is_not_read() {
    let (address, running) = served();
    let failing = [
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        "Transfer-Encoding: chunked\r\n\r\nfffff\r\n",
    ];
    for body in failing {
        let mut stream = dial(address);
        write!(stream, "POST /nowhere HTTP/1.1\r\nHost: h\r\n{body}").unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).unwrap();
        assert!(all.starts_with("HTTP/1.1 404 "), "{body}: {all}");
        assert_eq!(all.matches("HTTP/1.1 ").count(), 1, "{body}: {all}");
    }
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

#[test]
fn bodies_on_their_way_have_a_limit_together() {
    let limits = Limits::default().max_body_memory(150_000);
    let bound =
        Server::new(App::new().post("/", |request: &Request<'_>| request.body().len().to_string()))
            .shards(1)
            .limits(limits)
            .bind("127.0.0.1:0")
            .unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();
    let half = |stream: &mut TcpStream| {
        write!(stream, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 120000\r\n\r\n").unwrap();
        stream.write_all(&[b'x'; 100_000]).unwrap();
    };
    let mut first = dial(address);
    half(&mut first);
    crate::support::eventually("it has come", || running.stats().bytes_in >= 100_000);
    let mut second = dial(address);
    half(&mut second);
    let refused = answer(&mut second).0;
    assert!(refused.contains(" 503 ") && refused.contains("Retry-After"), "{refused}");
    // The first client is served, and its memory is released.
    first.write_all(&[b'x'; 20_000]).unwrap();
    assert_eq!(answer(&mut first).1, "120000");
    let mut third = dial(address);
    half(&mut third);
    third.write_all(&[b'x'; 20_000]).unwrap();
    assert_eq!(answer(&mut third).1, "120000");
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

/// Each has its own shard, and a part of the memory would be useless.
#[test]
fn connections_with_threads_of_their_own_have_one_memory_for_bodies() {
    const CLIENTS: usize = 6;
    let limits = Limits::default().max_body_memory(150_000);
    let bound =
        Server::new(App::new().post("/", |request: &Request<'_>| request.body().len().to_string()))
            .shards(Shards::new().io(IoBackend::Threads))
            .limits(limits)
            .bind("127.0.0.1:0")
            .unwrap();
    let address = bound.local_addr();
    let running = bound.start().unwrap();
    let head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 120000\r\n\r\n";
    let begin = || {
        let mut stream = dial(address);
        stream.write_all(head).unwrap();
        stream.write_all(&[b'x'; 100_000]).unwrap();
        stream
    };
    // A refused client may find its connection closed before it finishes.
    let finish = |stream: &mut TcpStream| drop(stream.write_all(&[b'x'; 20_000]));
    let (say, hear) = mpsc::channel();
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| begin()).collect();
    let readers: Vec<_> = clients
        .iter()
        .map(|client| (client.try_clone().unwrap(), say.clone()))
        .map(|(mut client, say)| std::thread::spawn(move || say.send(answer(&mut client).0)))
        .collect();
    for _ in 1..CLIENTS {
        let head = hear.recv_timeout(TIMEOUT).expect("there is room for one");
        assert!(head.contains(" 503 ") && head.contains("Retry-After"), "{head}");
    }
    clients.iter_mut().for_each(finish);
    readers.into_iter().for_each(|reader| drop(reader.join().unwrap()));
    drop(clients);
    // The room is released, for any outcome of its users.
    crate::support::eventually("a body is taken", || {
        let mut stream = begin();
        finish(&mut stream);
        answer(&mut stream).0.contains(" 200 ")
    });
    running.shutdown(DrainPlan::default()).wait().unwrap();
}
