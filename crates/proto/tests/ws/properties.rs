//! Properties that hold for all inputs.

use proptest::collection::vec;
use proptest::prelude::*;
use throng_proto::Input;
use throng_proto::ws::{
    Decoder, Limits, Opcode, ProtocolError, Role, Spare, encode, encode_header, encode_masked,
};
use throng_simd::mask;

use crate::peer::{Got, Outcome, converse, converse_in_pieces};

/// Small limits, so that random conversations reach them.
const LIMITS: Limits = Limits { max_frame_size: 700, max_message_size: 900 };

/// A message in fragments, or a control frame.
#[derive(Clone, Debug)]
enum Sent {
    Message { text: bool, payload: Vec<u8>, cuts: Vec<usize>, ping: Option<Vec<u8>> },
    Control { opcode: Opcode, payload: Vec<u8> },
}

fn payload() -> impl Strategy<Value = (bool, Vec<u8>)> {
    prop_oneof![
        vec(any::<u8>(), 0..300).prop_map(|bytes| (false, bytes)),
        "[a-zé🦀]{0,60}".prop_map(|text| (true, text.into_bytes())),
        "[ -~]{0,200}".prop_map(|text| (true, text.into_bytes())),
        // Sometimes invalid text, sometimes a length of another form, sometimes too big.
        vec(any::<u8>(), 0..4).prop_map(|bytes| (true, bytes)),
        (120..135usize).prop_map(|len| (false, vec![7; len])),
        (690..950usize).prop_map(|len| (false, vec![9; len])),
    ]
}

fn sent() -> impl Strategy<Value = Sent> {
    let control = vec(any::<u8>(), 0..=125);
    let message = (payload(), vec(0..1000usize, 0..4), proptest::option::of(control.clone()))
        .prop_map(|((text, payload), cuts, ping)| Sent::Message { text, payload, cuts, ping });
    let control = (prop_oneof![Just(Opcode::Ping), Just(Opcode::Pong)], control)
        .prop_map(|(opcode, payload)| Sent::Control { opcode, payload });
    prop_oneof![4 => message, 1 => control]
}

/// Returns the bytes of one frame to a receiver in `role`.
fn frame(role: Role, opcode: Opcode, fin: bool, payload: &[u8], key: [u8; 4], out: &mut Vec<u8>) {
    let key = (role == Role::Server).then_some(key);
    out.extend_from_slice(&encode_header(opcode, fin, payload.len() as u64, key));
    match key {
        Some(key) => mask::append(payload, key, out),
        None => out.extend_from_slice(payload),
    }
}

/// Returns the bytes of a conversation, and its outcome by RFC 6455 and the limits.
fn write(role: Role, sent: &[Sent], key: [u8; 4]) -> (Vec<u8>, Outcome) {
    let (mut bytes, mut got) = (Vec::new(), Vec::new());
    for sent in sent {
        let (text, payload, cuts, ping) = match sent {
            Sent::Control { opcode, payload } => {
                frame(role, *opcode, true, payload, key, &mut bytes);
                got.push(match opcode {
                    Opcode::Ping => Got::Ping(payload.clone()),
                    _ => Got::Pong(payload.clone()),
                });
                continue;
            }
            Sent::Message { text, payload, cuts, ping } => (*text, payload, cuts, ping),
        };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (payload.len() + 1)).collect();
        cuts.extend([0, payload.len()]);
        cuts.sort_unstable();
        let mut opcode = if text { Opcode::Text } else { Opcode::Binary };
        let last = cuts.len() - 2;
        for (index, cut) in cuts.windows(2).enumerate() {
            if let (1, Some(ping)) = (index, ping) {
                frame(role, Opcode::Ping, true, ping, key, &mut bytes);
                got.push(Got::Ping(ping.clone()));
            }
            frame(role, opcode, index == last, &payload[cut[0]..cut[1]], key, &mut bytes);
            opcode = Opcode::Continuation;
            if cut[1] - cut[0] > LIMITS.max_frame_size {
                return (bytes, (got, Some(ProtocolError::FrameTooBig)));
            }
            if cut[1] > LIMITS.max_message_size {
                return (bytes, (got, Some(ProtocolError::MessageTooBig)));
            }
            let broken = match str::from_utf8(&payload[..cut[1]]) {
                Ok(_) => false,
                Err(error) => index == last || error.error_len().is_some(),
            };
            if text && broken {
                return (bytes, (got, Some(ProtocolError::InvalidText)));
            }
        }
        got.push(match text {
            true => Got::Text(String::from_utf8(payload.clone()).unwrap()),
            false => Got::Binary(payload.clone()),
        });
    }
    (bytes, (got, None))
}

/// Splits the bytes into reads of these sizes, repeatedly.
fn cut<'b>(mut bytes: &'b [u8], sizes: &[usize]) -> Vec<&'b [u8]> {
    let mut reads = Vec::new();
    for size in sizes.iter().cycle() {
        if bytes.is_empty() {
            break;
        }
        let (read, rest) = bytes.split_at((*size).min(bytes.len()));
        reads.push(read);
        bytes = rest;
    }
    reads
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Server), Just(Role::Client)]
}

proptest! {
    #[test]
    fn an_encoded_header_decodes_however_it_is_split(
        role in role(),
        sent in vec(sent(), 0..8),
        key in any::<[u8; 4]>(),
        sizes in vec(1..200usize, 1..6),
    ) {
        let (bytes, expected) = write(role, &sent, key);
        prop_assert_eq!(&converse(role, &LIMITS, [&bytes[..]]), &expected);
        prop_assert_eq!(&converse(role, &LIMITS, cut(&bytes, &sizes)), &expected);
        prop_assert_eq!(&converse(role, &LIMITS, bytes.chunks(1)), &expected);
        for sizes in [&sizes[..], &[1], &[usize::MAX]] {
            let pieces = converse_in_pieces(role, &LIMITS, cut(&bytes, sizes));
            prop_assert_eq!(&pieces, &expected);
        }
    }

    #[test]
    fn any_bytes_decode_equally_however_they_are_split(
        role in role(),
        bytes in vec(any::<u8>(), 0..400),
        sizes in vec(1..50usize, 1..6),
    ) {
        let whole = converse(role, &LIMITS, [&bytes[..]]);
        prop_assert_eq!(&converse(role, &LIMITS, cut(&bytes, &sizes)), &whole);
        prop_assert_eq!(&converse(role, &LIMITS, bytes.chunks(1)), &whole);
        prop_assert_eq!(&converse_in_pieces(role, &LIMITS, cut(&bytes, &sizes)), &whole);
    }

    /// Almost valid bytes reach deeper states than random ones.
    #[test]
    fn damaged_frames_decode_equally_however_they_are_split(
        role in role(),
        sent in vec(sent(), 1..5),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        sizes in vec(1..50usize, 1..6),
    ) {
        let (mut bytes, _) = write(role, &sent, [1, 2, 3, 4]);
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let whole = converse(role, &LIMITS, [&bytes[..]]);
        prop_assert_eq!(&converse(role, &LIMITS, cut(&bytes, &sizes)), &whole);
        prop_assert_eq!(&converse(role, &LIMITS, bytes.chunks(1)), &whole);
    }

    /// A spare buffer passes memory from one connection to another, and nothing else.
    #[test]
    fn connections_that_share_a_spare_are_isolated(
        conversations in vec(vec(sent(), 0..5), 2..4),
        size in 1..100usize,
    ) {
        let mut spare = Spare::new();
        let written: Vec<_> =
            conversations.iter().map(|sent| write(Role::Server, sent, [9, 8, 7, 6])).collect();
        let mut readers: Vec<_> = written
            .iter()
            .map(|(bytes, _)| (Decoder::new(Role::Server), bytes.chunks(size), (vec![], None)))
            .collect();
        let mut busy = true;
        while busy {
            busy = false;
            for (decoder, reads, outcome) in &mut readers {
                let Some(read) = reads.next().filter(|_| outcome.1.is_none()) else { continue };
                busy = true;
                let mut lent = read.to_vec();
                let mut input = Input::new(&mut lent);
                loop {
                    match decoder.next_event_with(&mut input, &LIMITS, &mut spare) {
                        Ok(Some(event)) => outcome.0.push(event.into()),
                        Ok(None) => break,
                        Err(error) => {
                            outcome.1 = Some(error);
                            break;
                        }
                    }
                }
            }
        }
        for ((_, expected), (_, _, outcome)) in written.iter().zip(&readers) {
            prop_assert_eq!(outcome, expected);
        }
    }

    #[test]
    fn both_encoders_write_the_same_message(
        payload in vec(any::<u8>(), 0..600),
        key in any::<[u8; 4]>(),
    ) {
        let (mut plain, mut masked) = (vec![1], vec![1]);
        encode(Opcode::Binary, &payload, &mut plain);
        encode_masked(Opcode::Binary, &payload, key, &mut masked);
        let limits = Limits::default();
        let expected = (vec![Got::Binary(payload)], None);
        prop_assert_eq!(&converse(Role::Client, &limits, [&plain[1..]]), &expected);
        prop_assert_eq!(&converse(Role::Server, &limits, [&masked[1..]]), &expected);
    }
}

#[test]
fn a_whole_message_is_announced_exactly_when_it_can_be_taken() {
    for frame in [&b"\x81\x03abc"[..], b"\x82\x00", b"\x82\x7e\x00\x7e", b"\x01\x01a", b"\x89\x00"]
    {
        let mut bytes = frame.to_vec();
        bytes.resize(200, b'x');
        for len in 0..bytes.len() {
            let mut decoder = Decoder::new(Role::Client);
            let announced = decoder.has_whole_message(&bytes[..len], 100_000);
            let mut part = bytes[..len].to_vec();
            let taken = decoder.whole_message(&mut Input::new(&mut part), 100_000).is_some();
            assert_eq!(announced, taken, "{len} bytes of {frame:?}");
        }
        assert!(!Decoder::new(Role::Client).has_whole_message(b"\x81\x03abc", 2), "too long");
    }
}
