//! Bugs of other implementations.

use throng_proto::Input;
use throng_proto::ws::{Decoder, Event, Limits, ProtocolError, Role};

use crate::peer::{Got, binary, converse, feed, frame, head_64, server, text};

/// NATS CVE-2026-27889, swift-nio CVE-2026-43678, undici CVE-2026-1528: a negative length.
#[test]
fn accident_64_bit_length_with_the_top_bit_set() {
    let unlimited = Limits { max_frame_size: usize::MAX, max_message_size: usize::MAX };
    for len in [1 << 63, u64::MAX, u64::MAX - 13, (1 << 63) + 5] {
        for limits in [Limits::default(), unlimited] {
            let bytes = [head_64(0x82, len), vec![0]].concat();
            let outcome = converse(Role::Server, &limits, [&bytes[..]]);
            assert_eq!(outcome, (vec![], Some(ProtocolError::LengthTopBit)));
        }
    }
    assert_eq!(ProtocolError::LengthTopBit.close_code(), 1002);
}

/// The largest valid length does not overflow, with or without a limit.
#[test]
fn accident_largest_length() {
    let unlimited = Limits { max_frame_size: usize::MAX, max_message_size: usize::MAX };
    let bytes = [frame(0x02, b"begun"), head_64(0x80, (1 << 63) - 1), vec![0; 100]].concat();
    let mut decoder = Decoder::new(Role::Server);
    assert_eq!(feed(&mut decoder, &bytes, &unlimited), Ok(vec![]));
    assert_eq!(decoder.buffered(), 105);
    let outcome = converse(Role::Server, &Limits::default(), [&bytes[..]]);
    assert_eq!(outcome, (vec![], Some(ProtocolError::FrameTooBig)));
}

/// ws CVE-2026-48779: 131,072 fragments of one byte pinned memory. Autobahn sends 65,536 and
/// requires that they are accepted, so bytes are limited and their number is not. For the memory
/// see `ws_memory.rs`.
#[test]
fn accident_131072_one_byte_fragments() {
    const COUNT: usize = 131_072;
    let mut bytes = frame(0x01, b"a");
    for _ in 1..COUNT {
        bytes.extend(frame(0x00, b"a"));
    }
    let mut decoder = Decoder::new(Role::Server);
    assert_eq!(feed(&mut decoder, &bytes, &Limits::default()), Ok(vec![]));
    assert_eq!(decoder.buffered(), COUNT);
    let got = feed(&mut decoder, &frame(0x80, b""), &Limits::default());
    assert_eq!(got, Ok(vec![text(&"a".repeat(COUNT))]));
    assert_eq!(decoder.buffered(), 0);
}

/// sgcWebSockets 2026.6: a header split at each byte boundary.
#[test]
fn accident_header_split_at_each_byte_boundary() {
    for len in [0, 3, 125, 126, 1000, 65_536] {
        let frames = [frame(0x82, &vec![7; len]), frame(0x89, b"ping")].concat();
        for cut in 0..30.min(frames.len()) {
            let outcome =
                converse(Role::Server, &Limits::default(), [&frames[..cut], &frames[cut..]]);
            let expected = vec![binary(&vec![7; len]), Got::Ping(b"ping".to_vec())];
            assert_eq!(outcome, (expected, None), "{len} bytes cut at {cut}");
        }
    }
}

/// fastwebsockets #64: header bytes were lost when a read ended. Here no byte has to be read again.
#[test]
fn accident_empty_reads_between_bytes() {
    let bytes = [frame(0x01, b"ab"), frame(0x89, b"p"), frame(0x80, b"c")].concat();
    let reads = bytes.chunks(1).flat_map(|byte| [&[][..], byte, &[]]);
    let outcome = converse(Role::Server, &Limits::default(), reads);
    assert_eq!(outcome, (vec![Got::Ping(b"p".to_vec()), text("abc")], None));
}

/// fastwebsockets and uWebSockets accept them: the mask bit is never verified.
#[test]
fn accident_unmasked_client_frames() {
    for bytes in [&b"\x82\x00"[..], b"\x82\x03abc", b"\x81\x7e\x01\x00", b"\x88\x00", b"\x8a\x01x"]
    {
        assert_eq!(server(bytes), (vec![], Some(ProtocolError::NotMasked)));
    }
}

/// The first version of this decoder: a split ping inside a fragmented message emptied the message.
#[test]
fn accident_split_ping_inside_a_fragmented_message() {
    let frames = [frame(0x02, b"first "), frame(0x89, b"are you there"), frame(0x80, b"second")];
    let bytes = frames.concat();
    for cut in 0..=bytes.len() {
        let outcome = converse(Role::Server, &Limits::default(), [&bytes[..cut], &bytes[cut..]]);
        let expected = vec![Got::Ping(b"are you there".to_vec()), binary(b"first second")];
        assert_eq!(outcome, (expected, None), "cut at {cut}");
    }
}

/// Many whole frames and the start of one more in the same read, the usual end of a full buffer.
#[test]
fn accident_partial_frame_after_many() {
    let one = frame(0x81, "pipelined κόσμε".as_bytes());
    let many = one.repeat(20);
    for cut in 1..one.len() {
        let reads = [&many[..many.len() - cut], &many[many.len() - cut..], &many[..]];
        let outcome = converse(Role::Server, &Limits::default(), reads);
        assert_eq!(outcome, (vec![text("pipelined κόσμε"); 40], None), "{cut} bytes late");
    }
}

/// The reassembly deadline runs exactly while a frame or a message has arrived in part.
#[test]
fn accident_slow_peer_is_detected() {
    let limits = Limits::default();
    let bytes = [frame(0x01, b"a"), frame(0x80, b"b")].concat();
    let mut decoder = Decoder::new(Role::Server);
    assert!(decoder.is_between_messages());
    for byte in bytes[..bytes.len() - 1].chunks(1) {
        assert_eq!(feed(&mut decoder, byte, &limits), Ok(vec![]));
        assert!(!decoder.is_between_messages());
    }
    assert_eq!(feed(&mut decoder, &bytes[bytes.len() - 1..], &limits), Ok(vec![text("ab")]));
    assert!(decoder.is_between_messages());
    // A returned message does not count as partly received.
    let mut lent = frame(0x81, b"cd");
    let (first, second) = lent.split_at_mut(3);
    assert_eq!(decoder.next_event(&mut Input::new(first), &limits), Ok(None));
    assert!(!decoder.is_between_messages());
    let mut input = Input::new(second);
    assert_eq!(decoder.next_event(&mut input, &limits), Ok(Some(Event::Text("cd"))));
    assert!(decoder.is_between_messages());
    assert_eq!(decoder.buffered(), 0);
}

/// Close inside a message that will never end: the decoder waits for nothing more.
#[test]
fn accident_close_inside_a_message() {
    let limits = Limits::default();
    let mut decoder = Decoder::new(Role::Server);
    let bytes = [frame(0x01, b"begun"), frame(0x88, b"")].concat();
    assert_eq!(feed(&mut decoder, &bytes, &limits), Ok(vec![Got::Close(None)]));
    assert!(decoder.is_between_messages());
    assert_eq!(decoder.buffered(), 0);
    let split = [frame(0x01, b"begun"), frame(0x88, b"\x03\xe8bye")].concat();
    let outcome = converse(Role::Server, &limits, split.chunks(2));
    assert_eq!(outcome, (vec![Got::Close(Some((1000, "bye".to_owned())))], None));
}
