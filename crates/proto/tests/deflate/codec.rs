//! Our codec and histories against plain streams.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use throng_proto::ws::deflate::{Deflater, History, Inflater};
use throng_proto::ws::{Deflated, Event, ProtocolError};

use crate::peer::{self, Peer, deflater, inflate, noise, trade};
use crate::puff::Puff;

/// One message of a conversation.
#[derive(Clone, Debug)]
struct Sent {
    text: Vec<u8>,
    how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// To one connection, with its history.
    Private,
    /// To many connections: compressed once, without history; appended to histories by reference.
    Broadcast,
    /// Not compressed, so not part of the history either.
    Plain,
}

fn text() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0..1000u64).prop_map(|n| trade(n).into_bytes()),
        1 => (0..1000u64, 1..60usize).prop_map(|(n, times)| trade(n).repeat(times).into_bytes()),
        1 => vec(any::<u8>(), 0..200),
        1 => (0..3000usize, any::<u64>()).prop_map(|(len, seed)| noise(len, seed)),
        1 => (0..70_000usize).prop_map(|len| vec![b'a'; len]),
    ]
}

fn sent() -> impl Strategy<Value = Sent> {
    let how =
        prop_oneof![4 => Just(How::Private), 2 => Just(How::Broadcast), 1 => Just(How::Plain)];
    (text(), how).prop_map(|(text, how)| Sent { text, how })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// The central property: for any order of private and broadcast messages, a plain stream with
    /// the negotiated window reads all of them.
    #[test]
    fn private_and_broadcast_messages_in_any_order(
        window_bits in 9..=15u8,
        kept_bits in 9..=15u8,
        level in prop_oneof![Just(1u8), Just(2), Just(3), Just(6), Just(9)],
        mem_level in 1..=9u8,
        sent in vec(sent(), 1..25),
    ) {
        let mut deflater = deflater(level, mem_level);
        let mut history = History::new(kept_bits.min(window_bits));
        let mut peer = Puff::new(window_bits);
        for Sent { text, how } in &sent {
            let mut out = b"before".to_vec();
            let deflated = match how {
                How::Private => deflater.deflate(text, window_bits, Some(&history), &mut out),
                How::Broadcast => {
                    let bits = Deflater::shared_window_bits(window_bits, text.len());
                    deflater.deflate(text, bits, None, &mut out)
                }
                How::Plain => false,
            };
            let payload = out.strip_prefix(b"before").unwrap();
            if !deflated {
                prop_assert_eq!(payload, b"");
                continue;
            }
            prop_assert!(payload.len() < text.len());
            prop_assert_eq!(&peer.inflate(payload), text);
            match how {
                How::Private => history.append(text),
                _ => {
                    let frame: Arc<[u8]> = [b"head", &text[..]].concat().into();
                    history.append_shared(&frame, 4..frame.len());
                }
            }
        }
    }

    /// A peer's stream is read with the history alone, on an inflater that serves others in
    /// between.
    #[test]
    fn a_peers_stream_with_any_window_is_read(
        bits in 9..=15u8,
        level in prop_oneof![Just(1), Just(2), Just(6), Just(9)],
        sent in vec((text(), any::<bool>()), 1..25),
    ) {
        let mut inflater = Inflater::new();
        let (mut stream, mut alone) = (Peer::new(level, bits), Peer::new(level, bits));
        let mut history = History::new(bits);
        for (text, fresh) in &sent {
            let payload = &stream.deflate(text);
            let message = Deflated { text: false, payload };
            let got = peer::event(&mut inflater, message, Some(&mut history), text.len());
            prop_assert_eq!(got, Ok(Event::Binary(text)));
            if *fresh {
                let payload = &alone.deflate_alone(text);
                let message = Deflated { text: false, payload };
                let got = peer::event(&mut inflater, message, None, text.len());
                prop_assert_eq!(got, Ok(Event::Binary(text)));
            }
        }
    }

    /// A relayed message is valid on every connection that could be sent a broadcast.
    #[test]
    fn a_relayable_message_is_read_without_a_context(
        level in prop_oneof![Just(1), Just(2), Just(6), Just(9)],
        first in text(),
        text in text(),
        before in text(),
    ) {
        let mut inflater = Inflater::new();
        let mut peer = Peer::new(level, 15);
        let alone = peer.deflate(&first);
        let message = Deflated { text: false, payload: &alone };
        let inflated = inflater.inflate(message, None, first.len()).unwrap();
        prop_assert_eq!(inflated.relayable, alone.len() < first.len());
        let mut reader = Puff::new(15);
        if deflater(1, 5).deflate(&before, 15, None, &mut Vec::new()) {
            let mut out = Vec::new();
            deflater(1, 5).deflate(&before, 15, None, &mut out);
            reader.inflate(&out);
        }
        prop_assert_eq!(reader.inflate(&alone), first.clone());
        // With a context it may refer to data that others never received.
        let mut history = History::new(15);
        history.append(&first);
        let payload = &peer.deflate(&text);
        let message = Deflated { text: false, payload };
        let inflated = inflater.inflate(message, Some(&mut history), text.len()).unwrap();
        prop_assert!(!inflated.relayable);
    }

    #[test]
    fn the_limit_is_inclusive(
        text in text(),
        level in prop_oneof![Just(1), Just(6)],
        larger in 0..5000usize,
    ) {
        let deflated = Peer::new(level, 15).deflate(&text);
        // With memory that fits, and with memory left by a longer message.
        let mut inflater = Inflater::new();
        for _ in 0..2 {
            let message = Deflated { text: false, payload: &deflated };
            let got = peer::event(&mut inflater, message, None, text.len());
            prop_assert_eq!(got, Ok(Event::Binary(&text)));
            if let Some(less) = text.len().checked_sub(1) {
                let refused = peer::event(&mut inflater, message, None, less);
                prop_assert_eq!(refused, Err(ProtocolError::MessageTooBig));
            }
            let got = peer::event(&mut inflater, message, None, text.len() + larger);
            prop_assert_eq!(got, Ok(Event::Binary(&text)));
        }
    }

    /// Hostile bytes end in a message within the limit or in an error, and do not affect the next
    /// message.
    #[test]
    fn any_bytes_are_handled(
        bytes in vec(any::<u8>(), 0..300),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        max in 0..3000usize,
    ) {
        let mut damaged = Peer::new(6, 15).deflate(trade(7).repeat(3).as_bytes());
        for (at, byte) in damage {
            let at = at.index(damaged.len());
            damaged[at] = byte;
        }
        let mut inflater = Inflater::new();
        let good = Peer::new(1, 15).deflate(b"good, good");
        for payload in [&bytes, &damaged] {
            let mut history = History::new(9);
            history.append(&bytes);
            let message = Deflated { text: false, payload };
            match peer::event(&mut inflater, message, Some(&mut history), max) {
                Ok(Event::Binary(plaintext)) => prop_assert!(plaintext.len() <= max),
                Ok(other) => panic!("{other:?}"),
                Err(error) => prop_assert!(matches!(error.close_code(), 1007 | 1009)),
            }
            let message = Deflated { text: true, payload: &good };
            let got = peer::event(&mut inflater, message, None, 10);
            prop_assert_eq!(got, Ok(Event::Text("good, good")));
        }
    }
}

/// Every message of a feed with one history, at each level, as in window mode.
#[test]
fn a_feed_shrinks_to_a_fraction_with_a_kilobyte_of_history() {
    for level in [1, 2, 6] {
        let mut deflater = deflater(level, 7);
        let mut history = History::new(10);
        let mut peer = Puff::new(15);
        let (mut plain, mut sent) = (0, 0);
        for n in 0..200 {
            let text = trade(n);
            let mut out = Vec::new();
            assert!(deflater.deflate(text.as_bytes(), 15, Some(&history), &mut out));
            assert_eq!(peer.inflate(&out), text.as_bytes());
            history.append(text.as_bytes());
            (plain, sent) = (plain + text.len(), sent + out.len());
        }
        assert!(sent * 100 / plain < 35, "level {level}: {sent} of {plain}");
    }
}

#[test]
fn incompressible_messages_are_sent_uncompressed() {
    for level in [1, 2, 6, 9] {
        let mut deflater = deflater(level, 1);
        for len in [0, 1, 10, 300, 5000, 70_000] {
            let mut out = vec![7; 3];
            assert!(!deflater.deflate(&noise(len, 3), 15, None, &mut out));
            assert_eq!(out, [7; 3]);
        }
        // The compressor is unaffected.
        let mut out = Vec::new();
        assert!(deflater.deflate(&[b'a'; 100], 15, None, &mut out));
        assert_eq!(inflate(&out, 100), Ok(vec![b'a'; 100]));
    }
}

/// Connections whose window holds the whole message can be sent the same bytes.
#[test]
fn one_compression_serves_all_windows_it_can() {
    let text = trade(1).repeat(3);
    for bits in 9..=15 {
        assert_eq!(Deflater::shared_window_bits(bits, 1 << bits), 15);
        assert_eq!(Deflater::shared_window_bits(bits, (1 << bits) + 1), bits);
        let mut out = Vec::new();
        assert!(text.len() <= 512);
        assert!(deflater(1, 7).deflate(text.as_bytes(), 15, None, &mut out));
        assert_eq!(Puff::new(bits).inflate(&out), text.as_bytes());
    }
}
