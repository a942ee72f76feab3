//! The decoder's part of compression: RSV1, fragments, limits
//! ([RFC 7692 section 6](https://www.rfc-editor.org/rfc/rfc7692#section-6)).

use proptest::collection::vec;
use proptest::prelude::*;
use throng_proto::Input;
use throng_proto::ws::{
    Decoder, Deflated, Event, Limits, Opcode, ProtocolError, Role, Spare, encode_deflated,
    encode_header, encode_masked,
};

const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];
const LIMITS: Limits = Limits { max_frame_size: 1600, max_message_size: 3200 };

#[derive(Clone, Debug, PartialEq, Eq)]
enum Got {
    Message { text: bool, deflated: bool, payload: Vec<u8> },
    Ping(Vec<u8>),
    Other,
}

impl From<Event<'_>> for Got {
    fn from(event: Event<'_>) -> Self {
        let (text, deflated, payload) = match event {
            Event::Compressed(Deflated { text, payload }) => (text, true, payload),
            Event::Text(text) => (true, false, text.as_bytes()),
            Event::Binary(payload) => (false, false, payload),
            Event::Ping(payload) => return Self::Ping(payload.to_vec()),
            _ => return Self::Other,
        };
        Self::Message { text, deflated, payload: payload.to_vec() }
    }
}

fn deflated(text: bool, payload: &[u8]) -> Got {
    Got::Message { text, deflated: true, payload: payload.to_vec() }
}

fn pull<'r>(
    mut decoder: Decoder,
    reads: impl IntoIterator<Item = &'r [u8]>,
) -> (Vec<Got>, Option<ProtocolError>) {
    let mut got = Vec::new();
    let mut spare = Spare::new();
    for read in reads {
        let mut lent = read.to_vec();
        let mut input = Input::new(&mut lent);
        loop {
            match decoder.next_event_with(&mut input, &LIMITS, &mut spare) {
                Ok(Some(event)) => {
                    if matches!(event, Event::Compressed(_)) {
                        assert!(spare.joined().is_none(), "what is compressed is not sent on");
                    }
                    got.push(event.into());
                }
                Ok(None) => break,
                Err(error) => {
                    let again = decoder.next_event_with(&mut input, &LIMITS, &mut spare);
                    assert_eq!(again, Err(error), "an error stays");
                    return (got, Some(error));
                }
            }
        }
        assert!(input.is_empty());
    }
    (got, None)
}

/// Decodes the bytes in one read. Decoding byte by byte must give the same result.
fn server(bytes: &[u8]) -> (Vec<Got>, Option<ProtocolError>) {
    let outcome = pull(Decoder::with_deflate(Role::Server), [bytes]);
    assert_eq!(outcome, pull(Decoder::with_deflate(Role::Server), bytes.chunks(1)));
    outcome
}

/// Returns a masked frame with this first byte.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = encode_header(Opcode::Text, true, payload.len() as u64, Some(KEY)).to_vec();
    bytes[0] = first;
    bytes.extend(payload.iter().enumerate().map(|(at, byte)| byte ^ KEY[at % 4]));
    bytes
}

#[test]
fn rfc7692_6_rsv1_marks_a_compressed_message() {
    let bytes = [frame(0xc1, b"\xff\xfe"), frame(0x81, b"plain"), frame(0xc2, b"")].concat();
    let plain = Got::Message { text: true, deflated: false, payload: b"plain".to_vec() };
    let expected = vec![deflated(true, b"\xff\xfe"), plain, deflated(false, b"")];
    assert_eq!(server(&bytes), (expected, None), "text is not checked before it is inflated");
}

#[test]
fn rfc7692_6_rsv1_only_where_it_was_negotiated() {
    for bytes in [frame(0xc1, b"x"), frame(0xc2, b"x"), frame(0x41, b"x")] {
        let outcome = pull(Decoder::new(Role::Server), [&bytes[..]]);
        assert_eq!(outcome, (vec![], Some(ProtocolError::ReservedBits)));
    }
}

#[test]
fn rfc7692_6_rsv1_only_in_the_first_frame_of_a_message() {
    let refused =
        |bytes: &[u8]| assert_eq!(server(bytes), (vec![], Some(ProtocolError::ReservedBits)));
    for opcode in [8, 9, 10] {
        refused(&frame(0xc0 | opcode, b""));
    }
    for begun in [0x01, 0x41, 0x42] {
        refused(&[frame(begun, b"a"), frame(0x40, b"b")].concat());
        refused(&[frame(begun, b"a"), frame(0xc0, b"b")].concat());
    }
    refused(&frame(0xc0, b"a"));
    // The other two bits are undefined.
    for bit in [0x20, 0x10, 0x30, 0x60, 0x50, 0x70] {
        refused(&frame(0x81 | bit, b"a"));
    }
    for opcode in [3, 7, 11, 15] {
        refused(&frame(0xc0 | opcode, b"a"));
    }
    assert_eq!(ProtocolError::ReservedBits.close_code(), 1002);
}

#[test]
fn rfc7692_6_1_fragments_with_a_ping_between() {
    let frames = [
        frame(0x41, b"\xf2\x48\xcd"),
        frame(0x89, b"?"),
        frame(0x00, b""),
        frame(0x80, b"\xc9\xc9\x07\x00"),
        frame(0x01, b"a"),
        frame(0x80, b"b"),
    ];
    let plain = Got::Message { text: true, deflated: false, payload: b"ab".to_vec() };
    let hello = deflated(true, b"\xf2\x48\xcd\xc9\xc9\x07\x00");
    let expected = (vec![Got::Ping(b"?".to_vec()), hello, plain], None);
    assert_eq!(server(&frames.concat()), expected);
}

/// The limits apply to the inflated size; the compressed size may be a little larger.
#[test]
fn compressed_bytes_are_bounded_too() {
    let overhead = |size: usize| size + size / 16 + 64;
    let max = overhead(LIMITS.max_frame_size);
    let (got, error) = server(&frame(0xc2, &vec![7; max]));
    assert_eq!((got.len(), error), (1, None));
    assert_eq!(server(&frame(0xc2, &vec![7; max + 1])), (vec![], Some(ProtocolError::FrameTooBig)));
    let all = overhead(LIMITS.max_message_size);
    let begun = [frame(0x42, &[7; 1600]), frame(0x00, &[7; 1600])].concat();
    let (got, error) = server(&[&begun[..], &frame(0x80, &vec![7; all - 3200])].concat());
    assert_eq!((got.len(), error), (1, None));
    let outcome = server(&[&begun[..], &frame(0x80, &vec![7; all - 3199])].concat());
    assert_eq!(outcome, (vec![], Some(ProtocolError::MessageTooBig)));
    // Uncompressed messages have no such allowance.
    assert_eq!(server(&frame(0x82, &[7; 1601])), (vec![], Some(ProtocolError::FrameTooBig)));
    let plain = [frame(0x02, &[7; 1600]), frame(0x00, &[7; 1600]), frame(0x80, b"7")].concat();
    assert_eq!(server(&plain), (vec![], Some(ProtocolError::MessageTooBig)));
}

proptest! {
    #[test]
    fn an_encoded_header_decodes_however_it_is_split(
        messages in vec((any::<bool>(), any::<bool>(), vec(any::<u8>(), 0..700)), 1..6),
        sizes in vec(1..200usize, 1..6),
        client in any::<bool>(),
    ) {
        let role = if client { Role::Client } else { Role::Server };
        let mask = (!client).then_some(KEY);
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for (text, compressed, payload) in &messages {
            if *compressed {
                encode_deflated(*text, payload, mask, &mut bytes);
                expected.push(deflated(*text, payload));
            } else {
                match mask {
                    Some(key) => encode_masked(Opcode::Binary, payload, key, &mut bytes),
                    None => throng_proto::ws::encode(Opcode::Binary, payload, &mut bytes),
                }
                let payload = payload.clone();
                expected.push(Got::Message { text: false, deflated: false, payload });
            }
        }
        let expected = (expected, None);
        prop_assert_eq!(&pull(Decoder::with_deflate(role), [&bytes[..]]), &expected);
        prop_assert_eq!(&pull(Decoder::with_deflate(role), bytes.chunks(1)), &expected);
        let mut rest = &bytes[..];
        let mut sizes = sizes.iter().cycle();
        let cut = std::iter::from_fn(|| {
            let size = (*sizes.next()?).min(rest.len());
            let (read, after) = rest.split_at(size);
            rest = after;
            (!read.is_empty()).then_some(read)
        });
        prop_assert_eq!(&pull(Decoder::with_deflate(role), cut), &expected);
    }
}
