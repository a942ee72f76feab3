//! `lab serve-probe` over real sockets.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{Client, Got, Served, exchange};

fn serve() -> Served {
    let words = ["serve-probe", "--shards", "1", "--listen", "127.0.0.1:0"];
    Served::spawn(Command::new(env!("CARGO_BIN_EXE_lab")).args(words))
}

fn request(method: &str, target: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("{method} {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

#[test]
fn bodies_come_back() {
    let served = serve();
    let mut stream = served.dial();
    let answer = exchange(&mut stream, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!((answer.status(), answer.body.len()), (200, 0));
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n * 7 + n / 256) as u8).collect();
    for method in ["GET", "POST", "PUT", "DELETE", "BREW"] {
        for size in [0, 1, 1000, 70_000, 1 << 20] {
            let answer = exchange(&mut stream, request(method, "/", &bytes[..size]));
            assert_eq!(answer.status(), 200);
            assert!(answer.body == bytes[..size], "{method} {size}");
        }
    }
    let chunked = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nX-Sum: t\r\n\r\n";
    assert_eq!(exchange(&mut stream, chunked).text(), "abcde");
    assert_eq!(exchange(&mut stream, request("GET", "/nowhere", b"")).status(), 404);
}

#[test]
fn header_lines_come_back_as_they_were_received() {
    let served = serve();
    let lines = "hOST: x\r\nX-A:1\r\nX-A: \t two  words \t\r\nAccept:\r\nX-Latin: caf\u{e9}\r\n";
    let answer = exchange(&mut served.dial(), format!("GET /echo?q HTTP/1.1\r\n{lines}\r\n"));
    assert_eq!((answer.status(), answer.text()), (200, lines));
    assert!(answer.header("content-type").unwrap().starts_with("text/plain"));
}

/// Reads the stream itself: frames of 1,024 bytes have heads of four.
fn read_some(stream: &mut TcpStream, messages: usize) {
    stream.read_exact(&mut vec![0; messages * 1028]).unwrap();
}

#[test]
fn the_push_is_endless_and_made_of_whole_messages() {
    let served = serve();
    let mut client = Client::connect(served.addresses[0], "/push");
    for n in 0..10_000 {
        assert!(client.next() == Got::Binary(vec![b'.'; 1024]), "{n}");
    }
}

#[test]
fn a_client_that_does_not_read_costs_little_and_goes_on_later() {
    let served = serve();
    let before = served.resident();
    let mut sleepers: Vec<_> =
        (0..100).map(|_| Client::connect(served.addresses[0], "/push").stream).collect();
    // The kernel's buffers fill while this one is served.
    let mut reader = Client::connect(served.addresses[0], "/push").stream;
    read_some(&mut reader, 100_000);
    let grown = served.resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown} bytes for 100 sessions that do not read");
    for sleeper in &mut sleepers {
        // More than waited anywhere: it is pushed to again.
        read_some(sleeper, 10_000);
    }
}

#[test]
fn others_are_served_while_the_push_goes_on() {
    let served = serve();
    let readers: Vec<TcpStream> =
        (0..4).map(|_| Client::connect(served.addresses[0], "/push").stream).collect();
    let others = served.dial();
    let until = Instant::now() + Duration::from_secs(1);
    std::thread::scope(|scope| {
        for mut reader in readers {
            scope.spawn(move || {
                while Instant::now() < until {
                    read_some(&mut reader, 100);
                }
            });
        }
        // A push that kept its shard would never let this end: its readers take all there is.
        let mut stream = others;
        for _ in 0..50 {
            stream.write_all(&request("POST", "/", b"still there?")).unwrap();
            assert_eq!(crate::support::Answer::read(&mut stream).text(), "still there?");
        }
    });
}
