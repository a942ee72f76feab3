//! Messages of a tunnel allocate nothing in either direction. Runs the production shard over its
//! driver and real sockets, turned by hand on the test's own thread, whose allocations are counted.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use throng_balance::Settings;
use throng_balance::shard_over_driver::Shard;
use throng_proto::ws::{Opcode, encode, encode_masked};

use crate::support::{ByHand, Peer, Scripted, Sockets, upgrade};

/// Passes `frame` from one end to the other. Neither end blocks, so the shard is turned until it
/// arrives.
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
    let ByHand { mut shard, address, .. } = ByHand::new(&[backend.address], Settings::default());
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
