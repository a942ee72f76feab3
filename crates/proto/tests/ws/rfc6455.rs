//! One test for each rule of RFC 6455, named by its section.

use throng_proto::ws::{
    Decoder, Limits, Opcode, ProtocolError, Role, encode, encode_close, encode_header,
    encode_masked,
};

use crate::peer::{Got, KEY, binary, client, converse, feed, frame, head_64, server, text};

/// Expects this error and no event.
fn refused(error: ProtocolError) -> (Vec<Got>, Option<ProtocolError>) {
    (Vec::new(), Some(error))
}

fn all(got: impl Into<Vec<Got>>) -> (Vec<Got>, Option<ProtocolError>) {
    (got.into(), None)
}

#[test]
fn rfc6455_5_1_client_frame_without_mask_is_refused() {
    assert_eq!(server(b"\x81\x05Hello"), refused(ProtocolError::NotMasked));
    assert_eq!(server(b"\x89\x00"), refused(ProtocolError::NotMasked));
    assert_eq!(ProtocolError::NotMasked.close_code(), 1002);
}

#[test]
fn rfc6455_5_1_server_frame_with_mask_is_refused() {
    assert_eq!(client(&frame(0x81, b"Hello")), refused(ProtocolError::Masked));
    assert_eq!(ProtocolError::Masked.close_code(), 1002);
}

#[test]
fn rfc6455_5_2_reserved_bits_are_refused() {
    for bit in [0x40, 0x20, 0x10, 0x70] {
        for opcode in [0x81, 0x82, 0x88, 0x89, 0x8a, 0x01] {
            assert_eq!(server(&frame(opcode | bit, b"x")), refused(ProtocolError::ReservedBits));
        }
    }
}

#[test]
fn rfc6455_5_2_reserved_opcodes_are_refused() {
    for opcode in (3..=7).chain(11..=15) {
        for fin in [0x80, 0] {
            let error = ProtocolError::ReservedOpcode(opcode);
            assert_eq!(server(&frame(fin | opcode, b"x")), refused(error));
            assert_eq!(error.close_code(), 1002);
        }
    }
}

#[test]
fn rfc6455_5_2_lengths_around_every_form() {
    for len in [0, 1, 124, 125, 126, 127, 255, 256, 65_534, 65_535, 65_536, 65_537, 200_000] {
        let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
        let (mut masked, mut plain) = (Vec::new(), Vec::new());
        encode_masked(Opcode::Binary, &payload, KEY, &mut masked);
        encode(Opcode::Binary, &payload, &mut plain);
        assert_eq!(masked, frame(0x82, &payload), "{len}");
        assert_eq!(plain.len() + 4, masked.len(), "{len}");
        assert_eq!(server(&masked), all([binary(&payload)]), "{len}");
        assert_eq!(client(&plain), all([binary(&payload)]), "{len}");
    }
}

#[test]
fn rfc6455_5_2_length_in_more_bytes_than_needed_is_refused() {
    for len in [0, 125] {
        let head = [&[0x82, 0x80 | 126, 0, len][..], &KEY, &vec![0; usize::from(len)]].concat();
        assert_eq!(server(&head), refused(ProtocolError::LongLength));
    }
    for len in [0, 125, 126, 65_535] {
        assert_eq!(server(&head_64(0x82, len)), refused(ProtocolError::LongLength));
    }
    assert_eq!(ProtocolError::LongLength.close_code(), 1002);
}

#[test]
fn rfc6455_5_3_every_frame_has_its_own_key() {
    let mut bytes = Vec::new();
    for key in [[0; 4], [0xff; 4], [1, 2, 3, 4]] {
        encode_masked(Opcode::Text, "κόσμε".as_bytes(), key, &mut bytes);
    }
    assert_eq!(server(&bytes), all([text("κόσμε"), text("κόσμε"), text("κόσμε")]));
}

#[test]
fn rfc6455_5_4_fragments_are_joined() {
    let bytes = [frame(0x01, b"Hel"), frame(0x00, b""), frame(0x00, b"l"), frame(0x80, b"o")];
    assert_eq!(server(&bytes.concat()), all([text("Hello")]));
    let bytes = [frame(0x02, b"ab"), frame(0x80, b"cd"), frame(0x82, b"e")];
    assert_eq!(server(&bytes.concat()), all([binary(b"abcd"), binary(b"e")]));
}

#[test]
fn rfc6455_5_4_fragments_may_all_be_empty() {
    let bytes = [frame(0x01, b""), frame(0x00, b""), frame(0x80, b"")];
    assert_eq!(server(&bytes.concat()), all([text("")]));
    let bytes = [frame(0x02, b""), frame(0x80, b"")];
    assert_eq!(server(&bytes.concat()), all([binary(b"")]));
}

#[test]
fn rfc6455_5_4_control_frames_may_come_between_fragments() {
    let bytes = [
        frame(0x01, b"frag"),
        frame(0x89, b"in the middle"),
        frame(0x00, b"men"),
        frame(0x8a, b""),
        frame(0x89, b""),
        frame(0x80, b"ted"),
        frame(0x81, b"next"),
    ];
    let expected = [
        Got::Ping(b"in the middle".to_vec()),
        Got::Pong(Vec::new()),
        Got::Ping(Vec::new()),
        text("fragmented"),
        text("next"),
    ];
    assert_eq!(server(&bytes.concat()), all(expected));
}

#[test]
fn rfc6455_5_4_continuation_without_a_beginning_is_refused() {
    for first in [0x00, 0x80] {
        let error = ProtocolError::UnexpectedContinuation;
        assert_eq!(server(&frame(first, b"x")), refused(error));
        let after = [frame(0x81, b"whole"), frame(first, b"x")].concat();
        assert_eq!(server(&after), (vec![text("whole")], Some(error)));
    }
    let after = [frame(0x01, b"a"), frame(0x80, b"b"), frame(0x80, b"c")].concat();
    assert_eq!(server(&after), (vec![text("ab")], Some(ProtocolError::UnexpectedContinuation)));
}

#[test]
fn rfc6455_5_4_new_message_inside_another_is_refused() {
    for first in [0x81, 0x82, 0x01, 0x02] {
        let bytes = [frame(0x01, b"begun"), frame(first, b"x")].concat();
        assert_eq!(server(&bytes), refused(ProtocolError::UnfinishedMessage));
    }
}

#[test]
fn rfc6455_5_5_control_frame_over_125_is_refused() {
    for first in [0x88, 0x89, 0x8a] {
        assert_eq!(server(&frame(first, &[b'x'; 126])), refused(ProtocolError::LongControl));
        assert_eq!(server(&head_64(first, 1 << 62)), refused(ProtocolError::LongControl));
    }
    assert_eq!(server(&frame(0x89, &[7; 125])), all([Got::Ping(vec![7; 125])]));
}

#[test]
fn rfc6455_5_5_fragmented_control_frame_is_refused() {
    for first in [0x08, 0x09, 0x0a] {
        assert_eq!(server(&frame(first, b"x")), refused(ProtocolError::FragmentedControl));
    }
}

#[test]
fn rfc6455_5_5_1_close_with_and_without_reason() {
    assert_eq!(server(&frame(0x88, b"")), all([Got::Close(None)]));
    let close = frame(0x88, b"\x03\xe8");
    assert_eq!(server(&close), all([Got::Close(Some((1000, String::new())))]));
    let close = frame(0x88, "\u{3}\u{f}good bye".as_bytes());
    assert_eq!(server(&close), refused(ProtocolError::InvalidCloseCode(783)));
    let long = [&b"\x0b\xb8"[..], &[b'r'; 123]].concat();
    let expected = Got::Close(Some((3000, "r".repeat(123))));
    assert_eq!(server(&frame(0x88, &long)), all([expected]));
}

#[test]
fn rfc6455_5_5_1_close_of_one_byte_is_refused() {
    assert_eq!(server(&frame(0x88, b"\x03")), refused(ProtocolError::ShortClose));
    assert_eq!(ProtocolError::ShortClose.close_code(), 1002);
}

#[test]
fn rfc6455_5_5_1_close_reason_must_be_utf8() {
    let close = frame(0x88, b"\x03\xe8\xce\xba\xe1\xbd\xb9\xcf\x83\xed\xa0\x80edited");
    assert_eq!(server(&close), refused(ProtocolError::InvalidCloseReason));
    assert_eq!(ProtocolError::InvalidCloseReason.close_code(), 1007);
}

#[test]
fn rfc6455_1_4_input_after_a_close_is_discarded() {
    let bytes = [frame(0x88, b""), frame(0x81, b"late"), vec![0xff; 50]].concat();
    assert_eq!(server(&bytes), all([Got::Close(None)]));
    let inside = [frame(0x01, b"begun"), frame(0x88, b""), frame(0x80, b"late")].concat();
    assert_eq!(server(&inside), all([Got::Close(None)]));
}

#[test]
fn rfc6455_7_4_close_codes() {
    for code in [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1014, 3000, 4999] {
        let got = Got::Close(Some((code, String::new())));
        assert_eq!(server(&frame(0x88, &code.to_be_bytes())), all([got]));
    }
    for code in [0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
        let error = ProtocolError::InvalidCloseCode(code);
        assert_eq!(server(&frame(0x88, &code.to_be_bytes())), refused(error));
        assert_eq!(error.close_code(), 1002);
    }
}

#[test]
fn rfc6455_7_1_7_after_an_error_there_is_only_that_error() {
    let mut decoder = Decoder::new(Role::Server);
    let limits = Limits::default();
    let error = Err(ProtocolError::ReservedBits);
    assert_eq!(feed(&mut decoder, &frame(0xc1, b"x"), &limits), error);
    assert_eq!(feed(&mut decoder, &frame(0x81, b"good"), &limits), error);
    assert_eq!(feed(&mut decoder, b"", &limits), error);
    assert!(decoder.is_between_messages());
}

#[test]
fn rfc6455_8_1_text_must_be_utf8() {
    let bad: [&[u8]; 8] = [
        b"\xff",
        b"\xc0\xaf",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\x80",
        b"good until here \xce",
        b"\xf0\x9f\xa6",
        b"long enough for the wide vectors, long enough for the wide vectors, long enough \xf8",
    ];
    for bad in bad {
        assert_eq!(server(&frame(0x81, bad)), refused(ProtocolError::InvalidText), "{bad:x?}");
        let mut plain = Vec::new();
        encode(Opcode::Text, bad, &mut plain);
        assert_eq!(client(&plain), refused(ProtocolError::InvalidText), "{bad:x?}");
        for cut in 0..bad.len() {
            let pieces = [frame(0x01, &bad[..cut]), frame(0x80, &bad[cut..])].concat();
            assert_eq!(server(&pieces), refused(ProtocolError::InvalidText), "{bad:x?}");
        }
        assert_eq!(server(&frame(0x82, bad)), all([binary(bad)]), "binary is not looked at");
    }
    assert_eq!(ProtocolError::InvalidText.close_code(), 1007);
}

#[test]
fn rfc6455_8_1_a_character_may_be_split_over_fragments() {
    let whole = "κόσμε 🦀";
    for first in 0..=whole.len() {
        for second in first..=whole.len() {
            let bytes = whole.as_bytes();
            let pieces = [
                frame(0x01, &bytes[..first]),
                frame(0x00, &bytes[first..second]),
                frame(0x80, &bytes[second..]),
            ];
            assert_eq!(server(&pieces.concat()), all([text(whole)]));
        }
    }
}

/// Autobahn's 6.4.1 to 6.4.4: a server that waits for the end of the message, or of the frame, is
/// slow.
#[test]
fn rfc6455_8_1_bad_utf8_is_refused_at_the_first_invalid_byte() {
    let good = b"\xce\xba\xe1\xbd\xb9\xcf\x83\xce\xbc\xce\xb5\xf4";
    let limits = Limits::default();
    // In the middle of a frame that has arrived in part.
    let bytes = frame(0x81, &[&good[..], b"\x90\x80\x80edited"].concat());
    let mut decoder = Decoder::new(Role::Server);
    let until = bytes.len() - b"\x90\x80\x80edited".len();
    assert_eq!(feed(&mut decoder, &bytes[..until], &limits), Ok(vec![]));
    let broken = feed(&mut decoder, &bytes[until..=until], &limits);
    assert_eq!(broken, Err(ProtocolError::InvalidText));
    // In a fragment that is not the last.
    let (begin, next) = (frame(0x01, good), frame(0x00, b"\x90"));
    let outcome = converse(Role::Server, &limits, [&begin[..], &next[..]]);
    assert_eq!(outcome, refused(ProtocolError::InvalidText));
}

#[test]
fn rfc6455_10_4_exactly_the_limit_passes() {
    let limits = Limits { max_frame_size: 10, max_message_size: 15 };
    let decode_limited = |frames: &[Vec<u8>]| {
        let bytes = frames.concat();
        let outcome = converse(Role::Server, &limits, [&bytes[..]]);
        assert_eq!(outcome, converse(Role::Server, &limits, bytes.chunks(1)));
        outcome
    };
    assert_eq!(decode_limited(&[frame(0x82, &[1; 10])]), all([binary(&[1; 10])]));
    assert_eq!(decode_limited(&[frame(0x82, &[1; 11])]), refused(ProtocolError::FrameTooBig));
    let ten_and_five = [frame(0x02, &[1; 10]), frame(0x80, &[1; 5])];
    assert_eq!(decode_limited(&ten_and_five), all([binary(&[1; 15])]));
    let ten_and_six = [frame(0x02, &[1; 10]), frame(0x80, &[1; 6])];
    assert_eq!(decode_limited(&ten_and_six), refused(ProtocolError::MessageTooBig));
    assert_eq!(decode_limited(&[frame(0x89, &[1; 125])]), all([Got::Ping(vec![1; 125])]));
    assert_eq!(ProtocolError::FrameTooBig.close_code(), 1009);
    assert_eq!(ProtocolError::MessageTooBig.close_code(), 1009);
}

#[test]
fn rfc6455_10_4_too_big_is_refused_as_soon_as_the_header_declares_it() {
    let limits = Limits::default();
    let head = head_64(0x82, (4 << 20) + 1);
    let outcome = converse(Role::Server, &limits, [&head[..]]);
    assert_eq!(outcome, refused(ProtocolError::FrameTooBig));
    let begun = [frame(0x02, b"begun"), head_64(0x00, 4 << 20)].concat();
    let outcome = converse(Role::Server, &limits, [&begun[..]]);
    assert_eq!(outcome, refused(ProtocolError::MessageTooBig));
}

#[test]
fn rfc6455_5_7_examples() {
    assert_eq!(server(b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"), all([text("Hello")]));
    assert_eq!(client(b"\x81\x05Hello"), all([text("Hello")]));
    assert_eq!(client(b"\x01\x03Hel\x80\x02lo"), all([text("Hello")]));
    assert_eq!(client(b"\x89\x05Hello"), all([Got::Ping(b"Hello".to_vec())]));
    let pong = b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58";
    assert_eq!(server(pong), all([Got::Pong(b"Hello".to_vec())]));
}

#[test]
fn rfc6455_5_2_header_is_what_encode_writes() {
    for len in [0, 125, 126, 65_535, 65_536] {
        let payload = vec![0; len];
        let (mut plain, mut masked) = (Vec::new(), Vec::new());
        encode(Opcode::Text, &payload, &mut plain);
        encode_masked(Opcode::Text, &payload, KEY, &mut masked);
        assert!(plain.starts_with(&encode_header(Opcode::Text, true, len as u64, None)));
        assert!(masked.starts_with(&encode_header(Opcode::Text, true, len as u64, Some(KEY))));
    }
    let fragment = encode_header(Opcode::Continuation, false, 3, None);
    assert_eq!(&*fragment, b"\x00\x03");
}

#[test]
fn rfc6455_5_5_1_encoded_close_fits_and_has_its_reason() {
    let close = |code, reason: &str| {
        let (mut plain, mut masked) = (Vec::new(), Vec::new());
        encode_close(code, reason, None, &mut plain);
        encode_close(code, reason, Some(KEY), &mut masked);
        let outcome = client(&plain);
        assert_eq!(outcome, server(&masked));
        outcome
    };
    assert_eq!(close(1001, "bye"), all([Got::Close(Some((1001, "bye".into())))]));
    assert_eq!(close(1005, "none"), all([Got::Close(None)]));
    let long = "é".repeat(100);
    assert_eq!(close(1000, &long), all([Got::Close(Some((1000, "é".repeat(61))))]));
}
