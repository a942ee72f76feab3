//! `throng serve --dir` under a descriptor limit: the real binary in a separate process.

use std::io::{Read as _, Write as _};
use std::time::Instant;

use crate::support::{Served, TIMEOUT, exchange};

/// Each stalled download uses two descriptors, its socket and its file; later clients are still
/// answered.
#[test]
fn stalled_downloads_leave_descriptors_for_other_clients() {
    let directory = throng_testkit::TempFolder::new("stalled");
    directory.write("large", vec![b'x'; 16 << 20]);
    directory.write("small", "small");
    let server = Served::start_with_descriptors(300, &["--dir", directory.to_str().unwrap()]);
    let mut stalled = Vec::new();
    let (mut served, mut busy) = (0, 0);
    for _ in 0..145 {
        let mut client = server.dial();
        let _ = client.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let mut status = [0; 12];
        client.read_exact(&mut status).expect("an answer, whatever it is");
        match &status {
            b"HTTP/1.1 200" => served += 1,
            b"HTTP/1.1 503" => busy += 1,
            _ => panic!("{}", String::from_utf8_lossy(&status)),
        }
        stalled.push(client);
    }
    // A quarter of 300.
    assert_eq!((served, busy), (75, 70));
    let ask = |path: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        exchange(&mut server.dial(), request)
    };
    assert_eq!(ask("/small").text(), "small");
    assert_eq!(ask("/large").header("Retry-After"), Some("1"));
    // The places are free again, once their holders have left.
    drop(stalled);
    let until = Instant::now() + TIMEOUT;
    while ask("/large").status() != 200 {
        assert!(Instant::now() < until, "still taken");
    }
}
