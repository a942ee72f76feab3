//! The examples of [RFC 7692 section 7.2.3](https://www.rfc-editor.org/rfc/rfc7692#section-7.2.3),
//! and the rules around them.

use throng_proto::ws::deflate::{History, Inflater};
use throng_proto::ws::{Deflated, Event, ProtocolError};
use zlib_rs::DeflateFlush;

use crate::peer::{self, Peer, deflater, inflate};
use crate::puff::Puff;

const HELLO: &[u8] = b"\xf2\x48\xcd\xc9\xc9\x07\x00";

#[test]
fn rfc7692_7_2_3_1_one_block() {
    assert_eq!(inflate(HELLO, 5), Ok(b"Hello".to_vec()));
    // This is our output, if it were shorter than the input.
    assert_eq!(Peer::new(1, 15).deflate(b"Hello"), HELLO);
    assert!(!deflater(1, 7).deflate(b"Hello", 15, None, &mut Vec::new()));
}

#[test]
fn rfc7692_7_2_3_2_the_second_message_refers_to_the_first() {
    let mut inflater = Inflater::new();
    let mut history = History::new(9);
    for payload in [HELLO, b"\xf2\x00\x11\x00\x00"] {
        let deflated = Deflated { text: true, payload };
        assert_eq!(
            peer::event(&mut inflater, deflated, Some(&mut history), 5),
            Ok(Event::Text("Hello"))
        );
    }
    // Without a context there is no earlier data to refer to.
    let deflated = Deflated { text: true, payload: b"\xf2\x00\x11\x00\x00" };
    let refused = Err(ProtocolError::InvalidDeflate);
    assert_eq!(peer::event(&mut inflater, deflated, Some(&mut History::new(9)), 5), refused);
    assert_eq!(peer::event(&mut inflater, deflated, None, 5), refused);
}

#[test]
fn rfc7692_7_2_3_3_a_block_without_compression() {
    assert_eq!(inflate(b"\x00\x05\x00\xfa\xffHello\x00", 5), Ok(b"Hello".to_vec()));
}

#[test]
fn rfc7692_7_2_3_4_a_last_block() {
    assert_eq!(inflate(b"\xf3\x48\xcd\xc9\xc9\x07\x00\x00", 5), Ok(b"Hello".to_vec()));
    // Some senders omit the block after it.
    assert_eq!(inflate(b"\xf3\x48\xcd\xc9\xc9\x07\x00", 5), Ok(b"Hello".to_vec()));
}

/// Some peers cannot read a stream that ended, so it is not relayed to them.
#[test]
fn rfc7692_7_2_3_4_a_message_with_a_last_block_is_not_relayed() {
    let text = [b'a'; 100];
    let mut peer = Peer::new(6, 15);
    let ended = peer.flush(&text, DeflateFlush::Finish);
    let in_one = Peer::new(6, 15).deflate(&text);
    for (payload, relayable) in
        [(&in_one, true), (&ended, false), (&[&ended[..], &[0]].concat(), false)]
    {
        let message = Deflated { text: true, payload };
        let mut inflater = Inflater::new();
        let inflated = inflater.inflate(message, None, 100).unwrap();
        assert_eq!(inflated.event, Event::Text(str::from_utf8(&text).unwrap()));
        assert_eq!(inflated.relayable, relayable, "{payload:x?}");
    }
}

/// A stream that was ended and restarted keeps its window, within the message and before it.
#[test]
fn rfc7692_7_2_3_4_data_after_a_last_block_may_refer_to_data_before_it() {
    let first = b"\xf3\x48\xcd\xc9\xc9\x07\x00"; // "Hello", the last block of its stream
    let again = b"\xf2\x00\x11\x00\x00"; // five bytes from five bytes back
    let mut inflater = Inflater::new();
    let mut history = History::new(9);
    let payload = &[&first[..], again].concat();
    let both = Deflated { text: true, payload };
    let got = peer::event(&mut inflater, both, Some(&mut history), 10);
    assert_eq!(got, Ok(Event::Text("HelloHello")));
    let payload = &[&b"\x03\x00"[..], again].concat(); // nothing, as a last block
    let later = Deflated { text: true, payload };
    let got = peer::event(&mut inflater, later, Some(&mut history), 10);
    assert_eq!(got, Ok(Event::Text("Hello")));
}

#[test]
fn rfc7692_7_2_3_5_two_blocks() {
    let two = b"\xf2\x48\x05\x00\x00\x00\xff\xff\xca\xc9\xc9\x07\x00";
    assert_eq!(inflate(two, 5), Ok(b"Hello".to_vec()));
}

#[test]
fn rfc7692_7_2_3_6_an_empty_message() {
    assert_eq!(inflate(b"\x00", 0), Ok(vec![]));
    // Also as an empty block of the fixed code, which some senders use.
    assert_eq!(inflate(b"\x02\x00", 0), Ok(vec![]));
    assert_eq!(Puff::new(15).inflate(b"\x00"), b"");
    let mut out = vec![1];
    assert!(!deflater(1, 7).deflate(b"", 15, None, &mut out), "it cannot get shorter");
    assert_eq!(out, [1]);
}

#[test]
fn rfc7692_7_2_2_a_message_that_ends_in_the_middle_is_refused() {
    let text = "a message that is long enough to be cut in many places, places, places";
    for level in [1, 6] {
        let deflated = Peer::new(level, 15).deflate(text.as_bytes());
        assert!(inflate(&deflated, 100).is_ok());
        for cut in 0..deflated.len() {
            let refused = inflate(&deflated[..cut], 1000);
            assert_eq!(refused, Err(ProtocolError::InvalidDeflate), "{cut} bytes");
        }
    }
    assert_eq!(ProtocolError::InvalidDeflate.close_code(), 1007);
}

#[test]
fn rfc7692_7_2_2_invalid_deflate_data_is_refused() {
    for payload in [
        &b"\x07"[..],                        // a block of type 3
        b"\x00\x05\x00\xfa\xfeHello",        // the complement of a length is wrong
        b"\x04\x00\xff\xff",                 // an invalid code
        b"\xf2\x00\x11\x00\x00",             // a distance beyond the beginning
        b"\xf2\x48\xcd\xc9\xc9\x07\x00\x07", // the tail of a message that is good until then
        b"\x00\x00\x00\xff\xff",             // with the tail that must be left out, and cut off
    ] {
        let refused = inflate(payload, 1000);
        assert_eq!(refused, Err(ProtocolError::InvalidDeflate), "{payload:x?}");
    }
}

/// RFC 6455 section 8.1 concerns the content of the message, not how it was sent.
#[test]
fn rfc7692_6_2_text_is_validated_after_inflation() {
    let mut inflater = Inflater::new();
    let mut peer = Peer::new(1, 15);
    for (bytes, good) in [("κόσμε".as_bytes(), true), (b"\xce\xba\xe1", false), (b"\xff", false)]
    {
        let payload = &peer.deflate_alone(bytes);
        let text = peer::event(&mut inflater, Deflated { text: true, payload }, None, 100);
        match good {
            true => assert_eq!(text, Ok(Event::Text(str::from_utf8(bytes).unwrap()))),
            false => assert_eq!(text, Err(ProtocolError::InvalidText)),
        }
        let binary = peer::event(&mut inflater, Deflated { text: false, payload }, None, 100);
        assert_eq!(binary, Ok(Event::Binary(bytes)));
    }
}
