//! Secured connections over real sockets: ends, faults of the peer, and plain connections beside
//! them.

use std::io::Write;
use std::net::Shutdown;
use std::time::Duration;

use rustls::{AlertDescription, Error};
use throng_io::{Batch, Driver, Event, Options, Segment, SendOutcome, SessionFailure};

use crate::rig::{Rig, Sealer, Seen, finished, received};
use crate::support::{hear, said};

#[test]
fn a_handshake_is_reported_and_data_follows() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    assert_eq!((peer.info.version, peer.info.is_resumed), (0x304, false));
    assert_eq!(peer.info.server_name.as_deref(), Some("localhost"));
    assert_eq!(peer.info.group, Some(0x11ec), "X25519MLKEM768");
    peer.say(b"question");
    assert_eq!(rig.until(received), b"question");
    assert!(rig.send(peer.id, b"answer"));
    assert_eq!(rig.until_heard(&mut peer).unwrap(), b"answer");
    assert_eq!(rig.driver.secured(), 1);
}

#[test]
fn a_plain_listener_beside_a_secured_one_stays_plain() {
    let mut rig = Rig::new();
    let (id, mut peer) = rig.dial(rig.plain);
    peer.write_all(b"plain").unwrap();
    assert_eq!(rig.until(received), b"plain");
    assert!(rig.send(id, b"answer"));
    assert_eq!(rig.until_read(&mut peer), b"answer");
    assert_eq!(rig.driver.secured(), 0);
}

#[test]
fn lent_plaintext_can_be_sent_to_a_plain_connection() {
    let mut rig = Rig::new();
    let (plain, mut plain_peer) = rig.dial(rig.plain);
    let mut peer = rig.pair();
    peer.say(b"across");
    let mut sent = false;
    while !sent {
        let until = rig.driver.now().after(Duration::from_millis(5));
        rig.driver.wait(Some(until)).unwrap();
        while let Some(event) = rig.driver.next_event() {
            let Event::Received(_, bytes) = event else { continue };
            let mut batch = Box::<Batch>::default();
            batch.push(Segment::Lent(1..bytes.len()));
            sent = matches!(rig.driver.send(plain, batch), SendOutcome::Done(_));
        }
    }
    assert_eq!(rig.until_read(&mut plain_peer), b"cross");
}

#[test]
fn rfc8446_6_1_an_end_without_close_notify_is_truncated() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    peer.tls.send_close_notify();
    peer.say(b"");
    assert_eq!(rig.until(finished), peer.id);
    assert!(!rig.driver.was_truncated(peer.id));

    let peer = rig.pair();
    peer.socket.shutdown(Shutdown::Write).unwrap();
    assert_eq!(rig.until(finished), peer.id);
    assert!(rig.driver.was_truncated(peer.id));
}

#[test]
fn an_end_found_with_data_waits_for_a_paused_reader() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    rig.driver.pause(peer.id);
    peer.tls.writer().write_all(b"data").unwrap();
    peer.tls.send_close_notify();
    peer.say(b"");
    for _ in 0..3 {
        assert_eq!(rig.turn(), []);
    }
    rig.driver.resume(peer.id);
    let until = rig.driver.now().after(Duration::from_secs(20));
    let mut data = Vec::new();
    while data.is_empty() {
        rig.driver.wait(Some(until)).unwrap();
        while let Some(event) = rig.driver.next_event() {
            let Event::Received(id, bytes) = event else { panic!("{event:?}") };
            data.extend_from_slice(bytes);
            rig.driver.pause(id);
        }
    }
    assert_eq!(data, b"data");
    for _ in 0..3 {
        assert_eq!(rig.turn(), []);
    }
    rig.driver.resume(peer.id);
    assert_eq!(rig.until(finished), peer.id);
}

#[test]
fn a_corrupt_record_ends_the_session_with_an_alert() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    peer.tls.writer().write_all(b"data").unwrap();
    let mut bytes = said(&mut peer.tls);
    *bytes.last_mut().unwrap() ^= 1;
    peer.socket.write_all(&bytes).unwrap();
    assert_eq!(rig.until(finished), peer.id);
    assert!(rig.driver.was_truncated(peer.id));
    assert!(rig.send(peer.id, b"to no one"));
    let refused = AlertDescription::BadRecordMac;
    assert_eq!(rig.until_heard(&mut peer), Err(Error::AlertReceived(refused)));
    rig.driver.close(peer.id);
    rig.until(|seen| matches!(seen, Seen::Closed(..)).then_some(()));
    assert_eq!(rig.driver.secured(), 0);
}

#[test]
fn sessions_that_fail_are_counted_by_cause() {
    let mut rig = Rig::new();
    let failed = |rig: &Rig| {
        let stats = rig.server.session_stats().failed;
        let causes = SessionFailure::LABELS.into_iter().zip(stats);
        causes.filter(|(_, count)| *count > 0).collect::<Vec<_>>()
    };
    let mut peer = rig.pair();
    peer.tls.send_close_notify();
    peer.say(b"");
    rig.until(finished);
    // Our end comes first, and the peer does not answer it.
    let mut peer = rig.pair();
    rig.driver.finish(peer.id);
    assert_eq!(rig.until_heard(&mut peer), Ok(Vec::new()));
    peer.socket.shutdown(Shutdown::Write).unwrap();
    rig.until(finished);
    assert_eq!(failed(&rig), []);

    let peer = rig.pair();
    peer.socket.shutdown(Shutdown::Write).unwrap();
    rig.until(finished);
    assert_eq!(failed(&rig), [("truncated", 1)]);
    let alert = [2, 46];
    for (record, changed) in
        [(&alert[..], false), (&alert, false), (&alert[..1], false), (&[], true)]
    {
        let peer = rig.pair();
        let (mut sealer, mut socket) = (Sealer::of(peer.tls), peer.socket);
        let mut sealed = sealer.seal(21, record);
        *sealed.last_mut().unwrap() ^= u8::from(changed);
        socket.write_all(&sealed).unwrap();
        rig.until(finished);
    }
    let expected =
        [("truncated", 1), ("peer_alert", 2), ("bad_record_mac", 1), ("decode_error", 1)];
    assert_eq!(failed(&rig), expected);
}

#[test]
fn key_updates_of_a_peer_that_does_not_read_are_answered_once() {
    let options = Options { socket_send_buffer: Some(16 * 1024), ..Options::default() };
    let mut rig = Rig::with(options);
    let mut peer = rig.pair();
    let output = vec![b'x'; 8 << 20];
    assert!(!rig.send(peer.id, &output), "it fits");
    for round in 0..60u8 {
        peer.tls.refresh_traffic_keys().unwrap();
        peer.say(&[round]);
        assert_eq!(rig.until(received), [round]);
    }
    let mut heard = Vec::new();
    while heard.len() < output.len() {
        heard.extend(rig.until_heard(&mut peer).unwrap());
    }
    assert_eq!(heard, output);
    assert!(rig.send(peer.id, b"after"));
    assert_eq!(rig.until_heard(&mut peer).unwrap(), b"after");
}

#[test]
fn rfc8446_4_6_3_a_key_update_right_before_close_notify_is_answered_before_data() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    assert!(rig.send(peer.id, b"tickets come before it"));
    rig.until_heard(&mut peer).unwrap();
    peer.tls.refresh_traffic_keys().unwrap();
    peer.tls.send_close_notify();
    peer.say(b"");
    assert_eq!(rig.until(finished), peer.id);
    assert!(!rig.driver.was_truncated(peer.id));
    assert!(rig.send(peer.id, b"data"));
    let (mut heard, mut wire) = (Vec::new(), 0);
    while heard.is_empty() {
        let bytes = rig.until_read(&mut peer.socket);
        wire += bytes.len();
        heard = hear(&mut peer.tls, &bytes).unwrap();
    }
    let update_and_data = (5 + 5 + 17) + (5 + 4 + 17);
    assert_eq!((heard.as_slice(), wire), (&b"data"[..], update_and_data));
}

#[test]
fn rfc8446_5_1_a_message_may_span_reads_while_others_are_served() {
    const HANDSHAKE: u8 = 22;
    const DATA: u8 = 23;
    let mut rig = Rig::new();
    let (mut peer, mut other) = (rig.pair(), rig.pair());
    assert!(rig.send(peer.id, b"tickets come before it"));
    rig.until_heard(&mut peer).unwrap();
    let (mut sealer, mut socket) = (Sealer::of(peer.tls), peer.socket);
    let update = [24, 0, 0, 1, 1];
    let begin = [sealer.seal(DATA, b"data"), sealer.seal(HANDSHAKE, &update[..2])].concat();
    socket.write_all(&begin).unwrap();
    assert_eq!(rig.until(received), b"data");
    other.say(b"of another");
    assert_eq!(rig.until(received), b"of another");
    socket.write_all(&sealer.seal(HANDSHAKE, &update[2..])).unwrap();
    let answer = rig.until_read(&mut socket);
    assert_eq!(answer.len(), 5 + update.len() + 17);
    assert!(rig.send(peer.id, b"after"));
    assert_eq!(rig.until_read(&mut socket).len(), 5 + b"after".len() + 17);
}

#[test]
fn rfc8446_6_1_input_behind_a_close_notify_is_ignored() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    peer.tls.send_close_notify();
    let mut bytes = said(&mut peer.tls);
    bytes.extend_from_slice(&[23, 3, 3, 0, 1, 0]);
    peer.socket.write_all(&bytes).unwrap();
    assert_eq!(rig.until(finished), peer.id);
    assert_eq!(rig.turn(), []);
    assert!(rig.send(peer.id, b"answer"));
    assert_eq!(rig.until_heard(&mut peer).unwrap(), b"answer");
}

#[test]
fn rfc8446_6_1_input_that_comes_later_than_a_close_notify_is_ignored() {
    const ALERT: u8 = 21;
    const DATA: u8 = 23;
    let mut rig = Rig::new();
    let (peer, mut other) = (rig.pair(), rig.pair());
    let (id, mut socket, mut sealer) = (peer.id, peer.socket, Sealer::of(peer.tls));
    socket.write_all(&sealer.seal(ALERT, &[1, 0])).unwrap();
    assert_eq!(rig.until(finished), id);
    for _ in 0..2 {
        socket.write_all(&sealer.seal(DATA, b"too late")).unwrap();
        // The message follows the rejected data, so it is read together with it or later.
        other.say(b"of another");
        let mut seen = Vec::new();
        while !seen.iter().any(|seen| received(seen).is_some_and(|it| it == b"of another")) {
            seen.extend(rig.turn());
        }
        seen.extend(rig.turn());
        assert_eq!(seen, [Seen::Received(other.id, b"of another".to_vec())]);
    }
    assert!(rig.send(id, b"ours may follow"));
}

#[test]
fn bytes_sent_at_once_that_the_kernel_leaves_come_before_later_ones() {
    let options = Options { socket_send_buffer: Some(4 * 1024), ..Options::default() };
    let mut rig = Rig::with(options);
    let mut peer = rig.pair();
    let (mut expected, frame) = (Vec::new(), vec![b'x'; 10_000]);
    loop {
        let taken = rig.driver.try_send(peer.id, &frame);
        assert_eq!(rig.driver.unsent(peer.id), 0, "C3: nothing is in flight");
        if taken == 0 {
            break;
        }
        assert_eq!(taken, frame.len());
        expected.extend_from_slice(&frame);
    }
    assert!(rig.driver.output_memory(peer.id) > 0);
    assert!(!rig.send(peer.id, b"later"), "it overtook");
    expected.extend_from_slice(b"later");
    let mut heard = Vec::new();
    while heard.len() < expected.len() {
        heard.extend(rig.until_heard(&mut peer).unwrap());
    }
    assert!(heard == expected);
    // A frame that is too long to be kept sealed is left to the engine to queue.
    assert_eq!(rig.driver.try_send(peer.id, &[0; 20_000]), 0);
}
