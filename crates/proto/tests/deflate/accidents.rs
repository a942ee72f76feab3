//! Bugs of other implementations.

use throng_proto::ws::deflate::{History, Inflater};
use throng_proto::ws::{Deflated, ProtocolError};
use zlib_rs::DeflateFlush;

use crate::peer::{self, Peer, inflate, noise};

/// autobahn-python, undici CVE-2026-1526, websocketpp, Centrifugo #1162: the limit was checked on
/// the compressed bytes. For the memory see `memory.rs`.
#[test]
fn accident_the_limit_applies_to_the_inflated_size() {
    let bomb = Peer::new(9, 15).deflate(&vec![0; 10 << 20]);
    assert!(bomb.len() < 11_000);
    assert_eq!(inflate(&bomb, 10 << 20).map(|bytes| bytes.len()), Ok(10 << 20));
    for max in [0, 1, bomb.len(), 1 << 20, (10 << 20) - 1] {
        assert_eq!(inflate(&bomb, max), Err(ProtocolError::MessageTooBig), "{max}");
    }
    assert_eq!(ProtocolError::MessageTooBig.close_code(), 1009);
}

/// bun: a client that ends every message's stream (BFINAL, RFC 7692 section 7.2.3.4) was
/// disconnected where the server kept a context.
#[test]
fn accident_every_message_a_last_block_on_a_connection_with_context() {
    let mut inflater = Inflater::new();
    let mut history = History::new(15);
    let mut peer = Peer::new(6, 15);
    for n in 0..20 {
        let text = format!("message {n}, {n}, {n}");
        let payload = &[&peer.flush(text.as_bytes(), DeflateFlush::Finish)[..], &[0]].concat();
        let got =
            peer::event(&mut inflater, Deflated { text: true, payload }, Some(&mut history), 100)
                .unwrap();
        assert_eq!(got, throng_proto::ws::Event::Text(&text));
        peer = Peer::new(6, 15);
    }
}

/// Each end of a stream costs the receiver a window; a message that consists of ends is refused
/// early.
#[test]
fn accident_a_message_of_nothing_but_last_blocks() {
    let ends = b"\x03\x00".repeat(500_000);
    assert_eq!(inflate(&ends, 1 << 20), Err(ProtocolError::InvalidDeflate));
    // A few are valid, in long messages more.
    let ends = [&b"\x03\x00".repeat(10)[..], b"\x00"].concat();
    assert_eq!(inflate(&ends, 1 << 20), Ok(vec![]));
    let mut peer = Peer::new(6, 15);
    let piece = noise(4096, 5);
    let long: Vec<u8> = (0..100)
        .flat_map(|_| {
            let bytes = peer.flush(&piece, DeflateFlush::Finish);
            peer = Peer::new(6, 15);
            bytes
        })
        .collect();
    assert_eq!(inflate(&long, 1 << 20).map(|bytes| bytes == piece.repeat(100)), Ok(true));
}

/// python-websockets #1637: one client's invalid data raised an unhandled exception. Here it is an
/// error, and the next connection's message is inflated normally.
#[test]
fn accident_bad_data_does_not_spoil_the_next_connection() {
    let mut inflater = Inflater::new();
    let good = Peer::new(6, 15).deflate(b"good good good");
    let half = &Peer::new(6, 15).deflate(&noise(3000, 9))[..1500];
    for bad in [&b"\x07"[..], half, &[0xff; 100], b"", &good[..good.len() - 1]] {
        let refused =
            peer::event(&mut inflater, Deflated { text: false, payload: bad }, None, 5000);
        assert_eq!(refused, Err(ProtocolError::InvalidDeflate));
        let got = peer::event(&mut inflater, Deflated { text: true, payload: &good }, None, 5000);
        assert_eq!(got, Ok(throng_proto::ws::Event::Text("good good good")));
    }
}
