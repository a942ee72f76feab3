//! Established sessions that move to another driver, with rustls at the other end.

use std::io::Write;

use throng_io::{Driver, Options};

use crate::rig::{Rig, Sealer, received};
use crate::support::{VERSIONS, client_config_of, hear, said};

/// The cuts include the boundaries of all records, and each byte in them.
#[test]
fn a_session_moves_at_each_byte_of_its_records() {
    for (versions, updates) in
        [(&VERSIONS[..1], true), (&VERSIONS[..1], false), (&VERSIONS[1..], false)]
    {
        let mut rig = Rig::new();
        let mut peer = rig.pair_with(client_config_of(versions));
        let (id, mut cut, mut len) = (peer.id, 0, 0);
        while cut <= len {
            let text = format!("message {cut:03}");
            if updates {
                // Asks for an update of our keys as well.
                peer.tls.refresh_traffic_keys().unwrap();
            }
            peer.tls.writer().write_all(text.as_bytes()).unwrap();
            let wire = said(&mut peer.tls);
            len = wire.len();
            peer.socket.write_all(&wire[..cut]).unwrap();
            let mut came: Vec<u8> = match cut % 2 {
                // Read, as far as it has come; or left in the kernel.
                0 => rig.turn().iter().filter_map(received).flatten().collect(),
                _ => Vec::new(),
            };
            rig.move_on(id);
            peer.socket.write_all(&wire[cut..]).unwrap();
            came = rig.until_data(came, text.len());
            assert_eq!(came, text.as_bytes(), "cut at {cut} of {len}");
            assert!(rig.send(id, text.as_bytes()));
            assert_eq!(rig.until_heard(&mut peer).unwrap(), text.as_bytes());
            cut += 1;
        }
        assert!(len > 30, "{len}");
        peer.tls.send_close_notify();
        peer.say(b"");
        assert_eq!(rig.until(crate::rig::finished), id);
        assert!(!rig.driver.was_truncated(id));
    }
}

/// Sealed records leave first, then an owed update of the keys, then the rest of the plaintext.
#[test]
fn the_output_of_a_slow_reader_keeps_its_order_when_it_moves() {
    for updates in [false, true] {
        let options = Options { socket_send_buffer: Some(16 * 1024), ..Options::default() };
        let mut rig = Rig::with(options);
        let mut peer = rig.pair();
        let output: Vec<u8> = (0..4_u32 << 20).map(|at| (at ^ at >> 9 ^ at >> 17) as u8).collect();
        assert!(!rig.send(peer.id, &output), "it fits");
        let mut heard = Vec::new();
        for round in 0..20_u8 {
            if updates {
                peer.tls.refresh_traffic_keys().unwrap();
            }
            peer.say(&[round]);
            if round.is_multiple_of(2) {
                assert_eq!(rig.until(received), [round]);
            }
            rig.move_on(peer.id);
            if !round.is_multiple_of(2) {
                assert_eq!(rig.until(received), [round]);
            }
            assert!(rig.driver.unsent(peer.id) > 0);
            heard.extend(rig.until_heard(&mut peer).unwrap());
        }
        while heard.len() < output.len() {
            heard.extend(rig.until_heard(&mut peer).unwrap());
        }
        assert!(heard == output, "other bytes, or another order");
        assert!(rig.send(peer.id, b"after"));
        assert_eq!(rig.until_heard(&mut peer).unwrap(), b"after");
    }
}

/// A message of the handshake protocol whose second half comes after the move.
#[test]
fn half_a_key_update_moves() {
    const HANDSHAKE: u8 = 22;
    let update = [24, 0, 0, 1, 1];
    for cut in 1..update.len() {
        let mut rig = Rig::new();
        let mut peer = rig.pair();
        assert!(rig.send(peer.id, b"tickets come before it"));
        rig.until_heard(&mut peer).unwrap();
        let (id, mut sealer, mut socket) = (peer.id, Sealer::of(peer.tls), peer.socket);
        socket.write_all(&sealer.seal(23, b"data")).unwrap();
        socket.write_all(&sealer.seal(HANDSHAKE, &update[..cut])).unwrap();
        assert_eq!(rig.until(received), b"data");
        rig.turn();
        rig.move_on(id);
        socket.write_all(&sealer.seal(HANDSHAKE, &update[cut..])).unwrap();
        let answer = rig.until_read(&mut socket);
        assert_eq!(answer.len(), 5 + update.len() + 17, "the update that it owes");
    }
}

/// An owed answer and a handshake keep a connection from being parked, or move with it.
#[test]
fn a_session_is_not_parked_before_its_handshake_or_after_its_end() {
    let mut rig = Rig::new();
    let (begun, mut socket) = rig.dial(rig.secured);
    assert!(rig.driver.park(begun).is_err());
    socket.write_all(&[22, 3, 1]).unwrap();
    rig.turn();
    assert!(rig.driver.park(begun).is_err(), "the start of a ClientHello");
    let mut peer = rig.pair();
    peer.tls.send_close_notify();
    let bytes = said(&mut peer.tls);
    peer.socket.write_all(&bytes).unwrap();
    assert_eq!(rig.until(crate::rig::finished), peer.id);
    assert!(rig.driver.park(peer.id).is_err(), "its peer has ended the stream");
    assert!(rig.send(peer.id, b"still open"));
    assert_eq!(rig.until_heard(&mut peer).unwrap(), b"still open");
    let mut other = rig.pair();
    rig.driver.finish(other.id);
    assert!(rig.driver.park(other.id).is_err(), "our side has ended");
    let end = rig.until_read(&mut other.socket);
    assert!(hear(&mut other.tls, &end).unwrap().is_empty());
}
