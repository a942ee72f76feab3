//! Handshakes over real sockets: their order, number and memory, and the data after them.

use std::io::Write;

use throng_io::{Driver, TlsFailure, TlsInfo};
use throng_tls::{HandshakeLimits, Trust};

use crate::ours::connected;
use crate::rig::{Peer, Rig, Seen, finished, received};
use crate::support::{client, client_config, hear, raw_server_config, said};

#[test]
fn a_replaced_configuration_serves_new_connections_only() {
    let mut rig = Rig::new();
    let mut old = rig.pair();
    let mut config = raw_server_config(None);
    config.alpn_protocols = vec![b"other".to_vec()];
    rig.server.replace(config);
    let (_, mut socket) = rig.dial(rig.secured);
    let mut config = client_config();
    config.alpn_protocols = vec![b"other".to_vec()];
    let mut tls = client(config);
    socket.write_all(&said(&mut tls)).unwrap();
    while tls.alpn_protocol().is_none() {
        let bytes = rig.until_read(&mut socket);
        hear(&mut tls, &bytes).unwrap();
    }
    assert_eq!(tls.alpn_protocol(), Some(&b"other"[..]));
    old.say(b"still here");
    assert_eq!(rig.until(received), b"still here");
}

#[test]
fn handshakes_are_counted_by_their_outcome() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    assert_eq!((rig.server.stats().full, rig.server.stats().resumed), (1, 0));
    // Another session of the same client resumes the first.
    assert!(rig.send(peer.id, b"data"));
    assert_eq!(rig.until_heard(&mut peer).unwrap(), b"data");

    let failures = |rig: &Rig, why: TlsFailure| rig.server.stats().failed[why.index()];
    let (id, mut plain) = rig.dial(rig.secured);
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(rig.until(finished), id);
    assert_eq!(failures(&rig, TlsFailure::NotTls), 1);

    let (id, mut gone) = rig.dial(rig.secured);
    gone.write_all(&[22, 3, 1]).unwrap();
    gone.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rig.until(finished), id);
    rig.driver.close(id);
    rig.until(|seen| matches!(seen, Seen::Closed(..)).then_some(()));
    assert_eq!(failures(&rig, TlsFailure::Ended), 1);

    let other = crate::support::TrustFolder::of_others();
    let (_, outcome) = connected(&mut rig, Trust::File(other.file()), "localhost");
    outcome.unwrap_err();
    while failures(&rig, TlsFailure::Alert(0)) == 0 {
        rig.turn();
    }
    let failed: u64 = rig.server.stats().failed.iter().sum();
    assert_eq!((failed, rig.server.stats().full), (3, 1));
}

#[test]
fn the_oldest_handshakes_are_given_up_when_there_are_too_many() {
    let mut rig = Rig::new();
    rig.driver.limit_handshakes(HandshakeLimits { pending: 3, per_second: 0 });
    let given_up = |rig: &Rig| rig.server.stats().failed[TlsFailure::GivenUp.index()];
    let mut pending = Vec::new();
    for _ in 0..5 {
        let (id, mut socket) = rig.dial(rig.secured);
        let mut tls = client(client_config());
        socket.write_all(&said(&mut tls)).unwrap();
        // The client has its answer, and sends nothing more.
        rig.until_read(&mut socket);
        pending.push((id, socket));
    }
    assert_eq!(given_up(&rig), 2);
    let mut peer = rig.pair();
    peer.say(b"question");
    assert_eq!(rig.until(received), b"question");
    assert_eq!(given_up(&rig), 3, "an honest client has one of the places");
}

/// RFC 8737 section 3: the client must close the connection; the server ends it for any other
/// input.
#[test]
fn rfc8737_3_a_validation_ends_with_its_handshake() {
    let mut rig = Rig::new();
    let mut config = raw_server_config(None);
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"acme-tls/1".to_vec()];
    rig.server.replace(config);
    let (id, mut socket) = rig.dial(rig.secured);
    let mut config = client_config();
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let mut tls = client(config);
    while tls.is_handshaking() {
        socket.write_all(&said(&mut tls)).unwrap();
        let bytes = rig.until_read(&mut socket);
        hear(&mut tls, &bytes).unwrap();
    }
    assert_eq!(tls.alpn_protocol(), Some(&b"acme-tls/1"[..]));
    tls.writer().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    socket.write_all(&said(&mut tls)).unwrap();
    let ended = rig.until(|seen| match seen {
        Seen::Finished(of) if *of == id => Some(true),
        Seen::Secured(..) | Seen::Received(..) => Some(false),
        _ => None,
    });
    assert!(ended, "no session begins");
    assert_eq!(rig.server.stats().failed.iter().sum::<u64>(), 0);
    assert_eq!(rig.server.stats().full, 1);
}

#[test]
fn a_turn_has_a_bounded_number_of_steps_of_handshakes() {
    const CLIENTS: usize = 60;
    let mut rig = Rig::new();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (_, mut socket) = rig.dial(rig.secured);
        let mut tls = client(client_config());
        socket.write_all(&said(&mut tls)).unwrap();
        let answer = rig.until_read(&mut socket);
        hear(&mut tls, &answer).unwrap();
        clients.push((socket, tls));
    }
    for (socket, tls) in &mut clients {
        socket.write_all(&said(tls)).unwrap();
    }
    let (mut secured, mut most) = (0, 0);
    while secured < CLIENTS {
        let is_secured = |seen: &&Seen| matches!(seen, Seen::Secured(..));
        let here = rig.turn().iter().filter(is_secured).count();
        (secured, most) = (secured + here, most.max(here));
    }
    assert!(most <= 16, "{most} handshakes were completed in one turn");
}

#[test]
fn data_and_the_end_of_the_stream_may_come_right_behind_a_handshake() {
    for with_close_notify in [true, false] {
        let mut rig = Rig::new();
        let (id, mut socket) = rig.dial(rig.secured);
        let mut tls = client(client_config());
        socket.write_all(&said(&mut tls)).unwrap();
        while tls.is_handshaking() {
            let bytes = rig.until_read(&mut socket);
            hear(&mut tls, &bytes).unwrap();
        }
        tls.writer().write_all(b"question").unwrap();
        if with_close_notify {
            tls.send_close_notify();
        }
        socket.write_all(&said(&mut tls)).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut question = Vec::new();
        rig.until(|seen| {
            question.extend(received(seen).unwrap_or_default());
            finished(seen)
        });
        assert_eq!(question, b"question");
        assert_eq!(rig.driver.was_truncated(id), !with_close_notify);
        assert!(rig.send(id, b"answer"));
        let mut peer = Peer { id, socket, tls, info: TlsInfo::default() };
        assert_eq!(rig.until_heard(&mut peer).unwrap(), b"answer");
    }
}

#[test]
fn memory_of_handshakes_and_of_incomplete_records_is_reported() {
    let mut rig = Rig::new();
    let (id, mut socket) = rig.dial(rig.secured);
    assert_eq!((rig.driver.take_growth(), rig.driver.input_holders()), (0, vec![]));
    let mut tls = client(client_config());
    socket.write_all(&said(&mut tls)).unwrap();
    let answer = rig.until_read(&mut socket);
    assert!(rig.driver.is_handshaking(id) && rig.driver.output_memory(id) > 4_000);
    assert_eq!(rig.driver.input_holders(), [id]);
    assert!(rig.driver.take_growth() > 4_000);
    assert_eq!(rig.driver.take_growth(), 0);
    hear(&mut tls, &answer).unwrap();
    socket.write_all(&said(&mut tls)).unwrap();
    rig.until(|seen| matches!(seen, Seen::Secured(..)).then_some(()));
    assert!(!rig.driver.is_handshaking(id));
    assert_eq!((rig.driver.output_memory(id), rig.driver.input_holders()), (0, vec![]));
    rig.driver.take_growth();

    tls.writer().write_all(&[0; 10_000]).unwrap();
    let record = said(&mut tls);
    let (start, end) = record.split_at(9_000);
    socket.write_all(start).unwrap();
    let mut held = 0;
    while held < 9_000 {
        rig.turn();
        held = rig.driver.output_memory(id);
    }
    assert_eq!(rig.driver.input_holders(), [id]);
    assert!(rig.driver.take_growth() >= 9_000);
    socket.write_all(end).unwrap();
    assert_eq!(rig.until(received).len(), 10_000);
    assert_eq!((rig.driver.output_memory(id), rig.driver.input_holders()), (0, vec![]));
}
