//! A backend answers before it has the whole request, and closes. Its reset reacts to bytes that
//! the balancer still sends, and must not overtake the answer (C9 of the driver contract).

use std::net::Shutdown;

use throng_balance::Settings;

use crate::support::{Balancer, Scripted};

/// More than any socket buffers, so that part of the body is always still in flight.
const BODY: usize = 8 << 20;

/// Sends a whole body before it reads, `tries` times. The backend sends `answer` after it has read
/// the head, and closes.
fn refuse(tries: usize, answer: &'static [u8], finishes: bool) {
    let backend = Scripted::bind();
    let balancer = Balancer::start(&[backend.address], Settings::default());
    let body = vec![b'x'; BODY];
    for number in 0..tries {
        std::thread::scope(|scope| {
            let server = scope.spawn(|| {
                let mut server = backend.accept();
                server.head();
                server.send(answer);
                if finishes {
                    server.stream.shutdown(Shutdown::Write).unwrap();
                }
                // The socket has unread input, so this close is a reset.
            });
            let mut client = balancer.connect();
            client.send(
                format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {BODY}\r\n\r\n").as_bytes(),
            );
            client.send(&body);
            let (head, _) = client.answer();
            assert!(head.starts_with("HTTP/1.1 413 "), "try {number}: {head}");
            let rest = client.rest();
            let whole = if finishes { rest.windows(4).any(|four| four == b"much") } else { true };
            assert!(whole, "try {number}: {rest:?}");
            server.join().unwrap();
        });
    }
    balancer.assert_nothing_is_held();
}

#[test]
fn an_early_answer_reaches_the_client_though_a_reset_follows_it() {
    refuse(100, b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n", false);
}

#[test]
fn an_early_answer_that_ends_with_its_stream_reaches_the_client_whole() {
    refuse(100, b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\n\r\ntoo much", true);
}
