//! A tunnel's messages allocate nothing, either way: the production shard over its driver and real sockets, turned by hand
//! on the test's own thread, whose allocations are counted.

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use support::{Peer, Scripted, upgrade};
use throng_balance::shard_over_driver::{Shard, Start};
use throng_balance::{Backend, Configuration, Figures, Settings, Target};
use throng_engine::mailbox::mailbox;
use throng_io::{Driver, ListenOptions, Options, listen};
use throng_proto::ws::{Opcode, encode, encode_masked};

#[cfg(target_os = "linux")]
type Sockets = throng_io::Epoll;
#[cfg(not(target_os = "linux"))]
type Sockets = throng_io::Portable;

/// Passes `frame` on from one end to the other. Neither end blocks, so the shard is turned as long as it takes.
fn pass(
    shard: &mut Shard<Sockets>,
    from: &mut TcpStream,
    to: &mut TcpStream,
    frame: &[u8],
    got: &mut [u8],
) {
    let got = &mut got[..frame.len()];
    let (mut sent, mut received) = (0, 0);
    while received < frame.len() {
        match from.write(&frame[sent..]) {
            Ok(count) => sent += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        shard.turn().unwrap();
        match to.read(&mut got[received..]) {
            Ok(count) => received += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
    assert!(got == frame, "another frame came");
}

#[test]
fn messages_through_a_tunnel_allocate_nothing() {
    let backend = Scripted::bind();
    let (listener, address) =
        listen("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
    // As the balancer itself starts its shards.
    let options = Options {
        receive_buffer: 64 << 10,
        unsent_low_water: Some(128 << 10),
        ..Options::default()
    };
    let mut driver = Sockets::new(options).unwrap();
    driver.add_listener(listener).unwrap();
    let (_mailbox, letters) = mailbox(16, driver.waker());
    let (reports, _received) = channel();
    let target = Target { backend: Arc::new(Backend::new(backend.address, 1)), send_proxy: false };
    let configuration = Configuration { settings: Settings::default(), backends: vec![target] };
    let start = Start {
        configuration: Arc::new(configuration),
        letters,
        reports,
        published: Arc::new(Mutex::new(Figures::default())),
        shard: 0,
        shards: 1,
        descriptors_for: 100,
        open: Arc::default(),
        seed: 1,
    };
    let mut shard = Shard::new(driver, start);
    let opening = std::thread::spawn(move || {
        let mut client = Peer::new(TcpStream::connect(address).unwrap());
        client.send(&upgrade("/"));
        let server = backend.open();
        client.head();
        [client.stream, server.stream]
    });
    let counted = allocation_counter::measure(|| {
        while !opening.is_finished() {
            shard.turn().unwrap();
        }
    });
    assert!(counted.count_total > 0, "nothing is counted");
    let [mut client, mut server] = opening.join().unwrap();
    for stream in [&client, &server] {
        stream.set_nonblocking(true).unwrap();
    }
    let frames: Vec<[Vec<u8>; 2]> = [0, 10, 125, 126, 1000, 4096, 4097, 16 << 10, 60_000]
        .map(|size| {
            let payload = vec![7; size];
            let (mut up, mut down) = (Vec::new(), Vec::new());
            encode_masked(Opcode::Binary, &payload, [1, 2, 3, 4], &mut up);
            encode(Opcode::Binary, &payload, &mut down);
            [up, down]
        })
        .into();
    let mut got = vec![0; 64 << 10];
    let mut rounds = |count| {
        for _ in 0..count {
            for [up, down] in &frames {
                pass(&mut shard, &mut client, &mut server, up, &mut got);
                pass(&mut shard, &mut server, &mut client, down, &mut got);
            }
        }
    };
    rounds(3);
    assert_eq!(allocation_counter::measure(|| rounds(200)).count_total, 0);
}
