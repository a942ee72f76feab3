//! Input that is cut at every byte before it reaches the driver.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use throng_io::{Driver, TlsInfo};

use crate::rig::{Peer, Rig, Seen, finished, received};
use crate::support::{VERSIONS, client, client_config_of, hear, said};

/// Writes bytes up to `cut`, has the driver read them, and writes the others. Returns the data that
/// arrived until then.
fn write_cut(rig: &mut Rig, socket: &mut TcpStream, bytes: &[u8], cut: usize) -> Vec<u8> {
    socket.write_all(&bytes[..cut]).unwrap();
    let data = rig.turn().iter().filter_map(received).flatten().collect();
    socket.write_all(&bytes[cut..]).unwrap();
    data
}

#[test]
fn records_that_are_cut_at_any_byte_carry_their_data() {
    const DATA: &[u8] = b"one, two and three";
    for version in VERSIONS {
        let mut rig = Rig::new();
        let has_update = version.version == rustls::ProtocolVersion::TLSv1_3;
        // Each client is a new one: the number of updates with so little data between them is
        // limited.
        let connect = |rig: &mut Rig| {
            let mut peer = rig.pair_with(client_config_of(&[version]));
            let mut wire = Vec::new();
            for (at, part) in DATA.chunks(6).enumerate() {
                if has_update && at == 1 {
                    peer.tls.refresh_traffic_keys().unwrap();
                }
                peer.tls.writer().write_all(part).unwrap();
                wire.extend(said(&mut peer.tls));
            }
            (peer, wire)
        };
        let answers = |rig: &mut Rig, mut peer: Peer| {
            assert!(rig.send(peer.id, b"answer"));
            assert_eq!(rig.until_heard(&mut peer).unwrap(), b"answer");
        };
        let mut cut = 0;
        loop {
            let (mut peer, wire) = connect(&mut rig);
            if cut > wire.len() {
                break;
            }
            let data = write_cut(&mut rig, &mut peer.socket, &wire, cut);
            assert_eq!(rig.until_data(data, DATA.len()), DATA, "{version:?}, cut at {cut}");
            answers(&mut rig, peer);
            cut += 1;
        }
        assert!(cut > 80, "{version:?}: {cut}");
        // Sent in single bytes: cut at every place.
        let (mut peer, wire) = connect(&mut rig);
        let mut data = Vec::new();
        for byte in wire {
            peer.socket.write_all(&[byte]).unwrap();
            data.extend(rig.turn().iter().filter_map(received).flatten());
        }
        assert_eq!(rig.until_data(data, DATA.len()), DATA, "{version:?}");
        answers(&mut rig, peer);
    }
}

#[test]
fn the_last_flight_of_a_client_may_be_cut_at_any_byte() {
    for version in VERSIONS {
        let mut rig = Rig::new();
        let mut cut = 0;
        loop {
            let (id, mut socket) = rig.dial(rig.secured);
            let mut tls = client(client_config_of(&[version]));
            socket.write_all(&said(&mut tls)).unwrap();
            let mut flight = Vec::new();
            let is_last = version.version == rustls::ProtocolVersion::TLSv1_3;
            while flight.is_empty() || (is_last && tls.is_handshaking()) {
                let bytes = rig.until_read(&mut socket);
                hear(&mut tls, &bytes).unwrap();
                flight.extend(said(&mut tls));
            }
            // In TLS 1.3 data comes right after it.
            if is_last {
                tls.writer().write_all(b"data").unwrap();
                flight.extend(said(&mut tls));
            }
            if cut > flight.len() {
                break;
            }
            let mut data = write_cut(&mut rig, &mut socket, &flight, cut);
            if tls.is_handshaking() {
                assert_eq!(data, b"");
                while tls.is_handshaking() {
                    let bytes = rig.until_read(&mut socket);
                    hear(&mut tls, &bytes).unwrap();
                }
                tls.writer().write_all(b"data").unwrap();
                socket.write_all(&said(&mut tls)).unwrap();
            }
            data = rig.until_data(data, 4);
            assert_eq!(data, b"data", "{version:?}, cut at {cut}");
            assert!(rig.send(id, b"answer"));
            let mut peer = Peer { id, socket, tls, info: TlsInfo::default() };
            assert_eq!(rig.until_heard(&mut peer).unwrap(), b"answer");
            cut += 1;
        }
        assert!(cut > 50, "{version:?}: {cut}");
    }
}

#[test]
fn rfc8446_6_1_a_close_notify_counts_only_when_it_is_whole() {
    for version in VERSIONS {
        let mut rig = Rig::new();
        for is_cut_off in [false, true] {
            let mut cut = 0;
            loop {
                let mut peer = rig.pair_with(client_config_of(&[version]));
                peer.say(b"data");
                peer.tls.send_close_notify();
                let alert = said(&mut peer.tls);
                if cut > alert.len() {
                    break;
                }
                peer.socket.write_all(&alert[..cut]).unwrap();
                let mut seen = rig.turn();
                if !is_cut_off {
                    peer.socket.write_all(&alert[cut..]).unwrap();
                }
                peer.socket.shutdown(Shutdown::Write).unwrap();
                while !seen.iter().any(|seen| finished(seen) == Some(peer.id)) {
                    seen.extend(rig.turn());
                }
                let name = format!("{version:?}, cut at {cut}, cut off: {is_cut_off}");
                let data: Vec<u8> = seen.iter().filter_map(received).flatten().collect();
                assert_eq!(data, b"data", "{name}");
                let is_truncated = is_cut_off && cut < alert.len();
                assert_eq!(rig.driver.was_truncated(peer.id), is_truncated, "{name}");
                rig.driver.close(peer.id);
                rig.until(|seen| matches!(seen, Seen::Closed(..)).then_some(()));
                cut += 1;
            }
            assert!(cut > 20, "{version:?}: {cut}");
        }
    }
}
