//! A client that sends requests without waiting for answers: it is slowed down, and costs no more
//! than a client that waits. Runs the production shard over real sockets; the test turns it by hand
//! so that it can inspect every turn.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use throng_balance::Settings;

use crate::support::ByHand;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// The limit above which the balancer stops reading a client, and one read of the driver.
const HIGH_WATER: usize = 64 << 10;
const READ: usize = 64 << 10;

fn get(padding: usize) -> Vec<u8> {
    let padding = "x".repeat(padding);
    format!("GET / HTTP/1.1\r\nHost: a\r\nX-Padding: {padding}\r\n\r\n").into_bytes()
}

/// A backend's end of the balancer's connection. It never blocks, and answers one request at a
/// time.
struct Server {
    listener: TcpListener,
    stream: Option<TcpStream>,
    asked: usize,
    /// The last bytes received, for the case that the end of a head is split.
    tail: Vec<u8>,
    buffer: Vec<u8>,
}

impl Server {
    fn bind() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (tail, buffer) = (Vec::with_capacity(8), vec![0; 64 << 10]);
        Self { listener, stream: None, asked: 0, tail, buffer }
    }

    /// Answers all received requests and returns their number.
    fn serve(&mut self) -> usize {
        if self.stream.is_none() {
            let Ok((stream, _)) = self.listener.accept() else { return 0 };
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
            self.stream = Some(stream);
        }
        let stream = self.stream.as_mut().unwrap();
        match stream.read(&mut self.buffer) {
            Ok(count) => {
                for &byte in &self.buffer[..count] {
                    if self.tail.len() == 4 {
                        self.tail.remove(0);
                    }
                    self.tail.push(byte);
                    if self.tail == b"\r\n\r\n" {
                        self.asked += 1;
                        stream.write_all(OK).unwrap();
                    }
                }
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        self.asked
    }
}

/// Writes `bytes` over and over until the socket takes no more.
fn write_on(client: &mut TcpStream, bytes: &[u8], at: &mut usize) {
    loop {
        match client.write(&bytes[*at..]) {
            Ok(count) => *at = (*at + count) % bytes.len(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads all available bytes and returns their number.
fn read_all(client: &mut TcpStream, buffer: &mut [u8]) -> usize {
    let mut sum = 0;
    loop {
        match client.read(buffer) {
            Ok(0) => panic!("the balancer ended the connection"),
            Ok(count) => sum += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return sum,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_client_that_pipelines_without_end_is_held_to_the_pace_of_its_answers() {
    for padding in [0, 1000, 10_000] {
        let mut server = Server::bind();
        let address = server.listener.local_addr().unwrap();
        let mut balancer = ByHand::new(&[address], Settings::default());
        let mut client = TcpStream::connect(balancer.address).unwrap();
        client.set_nonblocking(true).unwrap();
        let requests = get(padding).repeat(200);
        let (mut at, mut most, mut buffer) = (0, 0, vec![0; 64 << 10]);
        balancer.turn_until("300 requests are answered", |balancer| {
            write_on(&mut client, &requests, &mut at);
            read_all(&mut client, &mut buffer);
            most = most.max(balancer.shard.audit().most.client_input);
            server.serve() >= 300
        });
        // This includes the used part of the buffer, which never exceeds the rest at the time it
        // last grew.
        assert!(most <= 2 * HIGH_WATER + READ, "padding {padding}: {most} bytes were held");
    }
}

/// The client is paused and resumed at every step, and every request is answered, including the
/// last.
#[test]
fn every_pipelined_request_is_answered_however_far_ahead_the_client_is() {
    let mut server = Server::bind();
    let address = server.listener.local_addr().unwrap();
    let mut balancer = ByHand::new(&[address], Settings::default());
    let mut client = TcpStream::connect(balancer.address).unwrap();
    client.set_nonblocking(true).unwrap();
    let requests = get(5000).repeat(400);
    let (mut written, mut buffer, mut got) = (0, vec![0; 64 << 10], Vec::new());
    balancer.turn_until("all are answered", |_| {
        while written < requests.len() {
            match client.write(&requests[written..]) {
                Ok(count) => written += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        server.serve();
        while let Ok(count) = client.read(&mut buffer) {
            got.extend_from_slice(&buffer[..count]);
        }
        got.windows(6).filter(|six| six == b"\r\n\r\nok").count() == 400
    });
    assert_eq!(server.asked, 400);
}

#[test]
fn a_request_costs_no_more_with_a_thousand_behind_it() {
    const COUNT: usize = 1000;
    let mut server = Server::bind();
    let address = server.listener.local_addr().unwrap();
    let mut balancer = ByHand::new(&[address], Settings::default());
    let mut client = TcpStream::connect(balancer.address).unwrap();
    client.set_nonblocking(true).unwrap();
    // All of them fit into the allowed memory.
    let requests = get(10).repeat(COUNT);
    assert!(requests.len() < HIGH_WATER);
    client.write_all(&requests).unwrap();
    let mut buffer = vec![0; 64 << 10];
    let counted = allocation_counter::measure(|| {
        balancer.turn_until("all are answered", |_| {
            read_all(&mut client, &mut buffer);
            server.serve() == COUNT
        });
    });
    let each = counted.bytes_total / COUNT as u64;
    assert!(each < 4096, "{each} bytes were allocated for a request of {}", requests.len() / COUNT);
}
