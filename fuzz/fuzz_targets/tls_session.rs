//! Records, cut anywhere, between two sessions: data arrives as it was sent, up to the first bytes
//! that are not a record of the session.
#![no_main]

use libfuzzer_sys::fuzz_target;
use throng_tls::{Alert, Messages, Session, Suite, WarmKeys};

fuzz_target!(|data: &[u8]| {
    let Some((&first, mut data)) = data.split_first() else { return };
    let suite =
        [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305][usize::from(first) % 3];
    let secret = |byte| vec![byte; suite.secret_len()];
    let session = |send, receive| {
        Session::from_secrets(suite, &secret(send), &secret(receive)).expect("the right length")
    };
    let (mut peer, mut ours) = (session(1, 2), session(2, 1));
    let (mut wire, mut sent, mut received) = (Vec::new(), Vec::new(), Vec::new());
    let mut is_broken = false;
    while let Some((&op, rest)) = data.split_first() {
        let (chunk, rest) = rest.split_at(rest.len().min(usize::from(op >> 3)));
        data = rest;
        match op % 8 {
            0..4 => {
                let sealed = peer.seal([chunk], &mut WarmKeys::default(), &mut wire);
                sealed.expect("far from the limit");
                if !is_broken {
                    sent.extend_from_slice(chunk);
                }
            }
            4 => peer.update(op & 8 == 0, &mut wire).expect("far from the limit"),
            5 => peer.seal_alert(Alert(90), &mut wire).expect("far from the limit"),
            6 => {
                // Inside a record, a cut has to be waited for.
                is_broken |= !chunk.is_empty();
                wire.extend_from_slice(chunk);
            }
            _ => {
                let n = wire.len().min(usize::from(op) * 7);
                let opened =
                    ours.open(&mut wire[..n], &mut WarmKeys::default(), &mut Messages::default());
                assert!(opened.consumed <= n && opened.data.end <= opened.consumed);
                received.extend_from_slice(&wire[opened.data]);
                wire.drain(..opened.consumed);
                let mut reply = Vec::new();
                ours.seal_reply(&mut reply).expect("far from the limit");
                assert_eq!(reply.is_empty(), !opened.has_reply);
                let sealed = ours.seal([&b"data"[..]], &mut WarmKeys::default(), &mut reply);
                sealed.expect("far from the limit");
                let heard =
                    peer.open(&mut reply, &mut WarmKeys::default(), &mut Messages::default());
                assert!(heard.end.is_none() && &reply[heard.data] == b"data");
                if opened.end.is_some() {
                    break;
                }
            }
        }
    }
    assert!(sent.starts_with(&received), "data that was not sent");
});
