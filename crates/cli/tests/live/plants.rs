//! One planted cause for each rule.

use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};
use throng_doctor::Finding;
use throng_proto::ws::{self, Opcode};
use throng_testkit::{Client, Got, eventually, noise};

use crate::planted::Planted;
use crate::support::Served;
use crate::{Reading, clients, compressing, read};

const LISTEN: [&str; 2] = ["--listen", "127.0.0.1:0"];

/// Returns a client's frames, each a message of one byte.
fn frames(number: usize) -> Vec<u8> {
    let mut frames = Vec::new();
    (0..number).for_each(|_| ws::encode_masked(Opcode::Text, b"x", [1, 2, 3, 4], &mut frames));
    frames
}

fn echoed(client: &mut Client, number: usize) {
    for _ in 0..number {
        client.send_text("x");
        assert_eq!(client.next(), Got::Text("x".to_owned()));
    }
}

#[test]
fn compressing_random_bytes_is_found() {
    let served = Served::start(&[&LISTEN[..], &["--deflate=shared"]].concat());
    let reading = Reading::of(served.addresses[0]);
    let mut client = compressing(served.addresses[0], "/echo");
    for seed in 0..24 {
        let bytes = noise(4096, seed);
        client.send(Opcode::Binary, &bytes);
        assert_eq!(client.next(), Got::Binary(bytes));
    }
    let found = reading.until_found("live-deflate", &[]);
    assert_eq!(found.found, "96 KiB shrink to 100 %");
}

#[test]
fn blocking_handlers_are_found_by_their_route() {
    let planted = Planted::start("blocking");
    let reading = Reading::of(planted.address);
    echoed(&mut Client::connect(planted.address, "/"), 3);
    // Turns of 70 ms may be longer than 134 ms on a busy machine.
    let found = reading.until_found("live-stalls", &["live-lag"]);
    assert!(found.found.starts_with("/ 3 times, at most "), "{found:?}");
}

#[test]
fn long_turns_are_found_where_stalls_are_not_watched() {
    let planted = Planted::start("unwatched");
    let reading = Reading::of(planted.address);
    echoed(&mut Client::connect(planted.address, "/"), 3);
    reading.until_found("live-lag", &[]);
}

#[test]
fn a_pool_that_is_too_small_for_jobs_that_block_is_found() {
    let planted = Planted::start("workers");
    let mut all = clients(planted.address, "/", 12);
    all.iter_mut().for_each(|client| client.send_text("first"));
    let waiting = || read(planted.address, "/stats.json")["workers"]["queue_depth"].as_u64();
    eventually("jobs wait", || waiting() > Some(0));
    let reading = Reading::of(planted.address);
    let stopped = all.iter().map(|client| client.stream.try_clone().unwrap()).collect();
    let load = Load::start(stopped);
    let found = reading.until_found("live-workers", &[]);
    drop(load);
    assert!(found.found.contains("2 workers at "), "{found:?}");
}

/// Threads that send messages as fast as their connections take them, until it is dropped.
struct Load {
    streams: Vec<TcpStream>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(streams: Vec<TcpStream>) -> Self {
        let send = |stream: &TcpStream| {
            let mut stream = stream.try_clone().unwrap();
            thread::spawn(move || {
                let frames = frames(64);
                while std::io::Write::write_all(&mut stream, &frames).is_ok() {}
            })
        };
        let threads = streams.iter().map(send).collect();
        Self { streams, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn one_busy_event_loop_is_found() {
    let planted = Planted::start("computing");
    let client = Client::connect(planted.address, "/");
    let load = Load::start(vec![client.stream.try_clone().unwrap()]);
    let reading = Reading::of(planted.address);
    let found = reading.until_found("live-shards", &["live-stalls", "live-lag"]);
    drop(load);
    assert!(found.found.contains(" of a CPU, the others use "), "{found:?}");
}

#[test]
fn the_same_message_to_each_client_is_found() {
    let planted = Planted::start("loop");
    let mut all = clients(planted.address, "/", 30);
    let reading = Reading::of(planted.address);
    for _ in 0..5 {
        all[0].send_text("now");
        for client in &mut all {
            assert_eq!(client.next(), Got::Text("the news of the day".to_owned()));
        }
    }
    let found = reading.until_found("live-sends", &[]);
    assert_eq!(found.found, "149 messages sent again");
}

#[test]
fn a_client_that_does_not_read_is_found() {
    let planted = Planted::start("flood");
    let _silent = Client::connect(planted.address, "/");
    let mut publisher = Client::connect(planted.address, "/");
    let reading = Reading::of(planted.address);
    eventually("a client is too slow", || {
        publisher.send_text("more");
        read(planted.address, "/stats.json")["slow_consumers"] == 1
    });
    let found = reading.until_found("live-slow", &["live-lag"]);
    assert!(found.found.starts_with("1 session closed"), "{found:?}");
}

#[test]
fn an_accept_queue_that_overflows_is_found() {
    let served = Served::start(&LISTEN);
    let reading = Reading::of(served.addresses[0]);
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    listener.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    listener.listen(1).unwrap();
    let to = listener.local_addr().unwrap();
    let connect = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = socket.connect(&to);
        socket
    };
    let _waiting: Vec<Socket> = (0..16).map(|_| connect()).collect();
    reading.until_found("live-overflows", &[]);
}

#[test]
fn clients_lost_after_the_same_silence_are_found() {
    let served = Served::start(&LISTEN);
    let address = served.addresses[0];
    let reading = Reading::of(address);
    let all = clients(address, "/echo", 16);
    let from = Instant::now();
    eventually("a proxy's idle time", || from.elapsed() > Duration::from_millis(2500));
    drop(all);
    let found = reading.until_found("live-heartbeat", &[]);
    assert!(found.found.starts_with("16 of 16 lost sessions were silent for "), "{found:?}");
    assert!(found.remedies[0].text().starts_with("heartbeat.interval="), "{found:?}");
}

#[test]
fn clients_that_are_closed_for_a_fault_are_found_with_the_code() {
    let served = Served::start(&[&LISTEN[..], &["--set", "max_message_size=100"]].concat());
    let reading = Reading::of(served.addresses[0]);
    for mut client in clients(served.addresses[0], "/echo", 25) {
        client.send(Opcode::Binary, &[0; 200]);
        assert_eq!(client.next().close_code(), Some(1009));
    }
    let Finding { found, remedies, .. } = reading.until_found("live-closes", &[]);
    assert!(found.starts_with("25 of 25 sessions ended badly: code 1009 25"), "{found}");
    assert!(remedies[0].text().contains("max_message_size"), "{remedies:?}");
}

#[test]
fn descriptors_that_are_nearly_used_up_are_found() {
    let served = Served::start_with_descriptors(120, &LISTEN);
    let reading = Reading::of(served.addresses[0]);
    let most = reading.stats["max_connections"].as_u64().unwrap();
    let _open = clients(served.addresses[0], "/echo", (most * 95 / 100) as usize);
    let found = reading.until_found("live-descriptors", &[]);
    assert!(found.remedies.iter().any(|it| it.kind() == "systemd"), "{found:?}");
}
