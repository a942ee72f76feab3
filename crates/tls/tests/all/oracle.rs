//! Our sessions against rustls: every byte that either side sends passes through both record
//! layers.

use std::sync::Arc;

use proptest::prelude::*;
use rustls::{AlertDescription, Error};
use throng_tls::handshake::{Handshake, MAX_INPUT, Progress, Secrets, prepare_client};
use throng_tls::{Alert, End, Messages, Session, WarmKeys};

use crate::support::{
    Pair, client, client_config, hear, raw_server_config, said, server_config, suites,
};

fn tls13(suite: rustls::SupportedCipherSuite) -> bool {
    suite.tls13().is_some()
}

fn text(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at ^ at >> 8) as u8).collect()
}

#[test]
fn a_session_rests_in_200_bytes() {
    assert!(size_of::<Session>() <= 200, "{}", size_of::<Session>());
}

#[test]
fn every_suite_carries_data_both_ways() {
    for suite in suites() {
        let mut pair = Pair::of(suite);
        assert_eq!(pair.info.cipher_suite, u16::from(suite.suite()));
        assert_eq!(pair.info.version, if tls13(suite) { 0x304 } else { 0x303 });
        assert_eq!(pair.info.server_name.as_deref(), Some("localhost"));
        assert!(!pair.info.is_resumed);
        assert_eq!(pair.session.can_update(), tls13(suite), "{suite:?}");
        for len in [1, 2, 100, 16_383, 16_384, 16_385, 50_000] {
            let data = text(len);
            assert_eq!(pair.client_sends(&data), data, "{suite:?}, {len} in");
            let pieces: Vec<_> = data.chunks(777).collect();
            assert_eq!(pair.server_sends(&pieces), data, "{suite:?}, {len} out in pieces");
            assert_eq!(pair.server_sends(&[&data]), data, "{suite:?}, {len} out");
        }
    }
}

#[test]
fn data_behind_the_last_message_of_the_handshake_is_not_lost() {
    for suite in suites() {
        let config = Arc::new(server_config(Some(suite)));
        let mut pair = Pair::new(client(client_config()), &config, b"GET / HTTP/1.1\r\n\r\n");
        assert_eq!(pair.deliver(), b"GET / HTTP/1.1\r\n\r\n", "{suite:?}");
    }
}

#[test]
fn a_handshake_in_single_bytes_succeeds() {
    for suite in suites() {
        let mut client = client(client_config());
        let mut handshake = Handshake::new(Arc::new(server_config(Some(suite)))).unwrap();
        let (mut secrets, mut out, mut done) = (Secrets::default(), Vec::new(), false);
        while !done {
            for byte in said(&mut client) {
                assert!(!done, "a byte behind the handshake");
                handshake.receive(&[byte]).unwrap();
                done = handshake.advance(&mut secrets, &mut out).unwrap() == Progress::Complete;
            }
            hear(&mut client, &std::mem::take(&mut out)).unwrap();
        }
        let (session, info, early) = handshake.take_session(&secrets).unwrap();
        let mut pair = Pair { client, session, info, early };
        assert_eq!(pair.client_sends(b"in"), b"in");
        assert_eq!(pair.server_sends(&[b"out"]), b"out");
    }
}

#[test]
fn a_resumed_session_is_reported_and_carries_data() {
    for suite in suites() {
        let (config, server) = (client_config(), Arc::new(server_config(Some(suite))));
        let mut first = Pair::new(client(config.clone()), &server, b"");
        assert_eq!(first.server_sends(&[b"data"]), b"data");
        let mut second = Pair::new(client(config), &server, b"");
        assert!(second.info.is_resumed, "{suite:?}");
        assert_eq!(second.client_sends(b"in"), b"in");
        assert_eq!(second.server_sends(&[b"out"]), b"out");
    }
}

#[test]
fn alpn_is_reported_and_a_list_without_ours_is_refused() {
    let server = Arc::new(server_config(None));
    let with = |protocols: &[&[u8]]| {
        let mut config = client_config();
        config.alpn_protocols = protocols.iter().map(|it| it.to_vec()).collect();
        client(config)
    };
    let pair = Pair::new(with(&[b"h2", b"http/1.1"]), &server, b"");
    assert_eq!(pair.info.alpn.as_deref(), Some(&b"http/1.1"[..]));
    let pair = Pair::new(with(&[]), &server, b"");
    assert_eq!(pair.info.alpn, None);

    let mut client = with(&[b"h2"]);
    let mut handshake = Handshake::new(server).unwrap();
    handshake.receive(&said(&mut client)).unwrap();
    let mut out = Vec::new();
    handshake.advance(&mut Secrets::default(), &mut out).unwrap_err();
    let refused = AlertDescription::NoApplicationProtocol;
    assert_eq!(hear(&mut client, &out), Err(Error::AlertReceived(refused)));
}

#[test]
fn input_without_end_does_not_grow_a_handshake() {
    let mut handshake = Handshake::new(Arc::new(server_config(None))).unwrap();
    for _ in 0..MAX_INPUT / 1024 {
        handshake.receive(&[22; 1024]).unwrap();
    }
    handshake.receive(&[22]).unwrap_err();
}

#[test]
fn rfc8446_4_6_3_the_peers_key_updates_are_followed_and_answered_once() {
    for suite in suites().into_iter().filter(|suite| tls13(*suite)) {
        let mut pair = Pair::of(suite);
        for round in 0..45 {
            pair.client.refresh_traffic_keys().unwrap();
            if round % 3 == 0 {
                pair.client.refresh_traffic_keys().unwrap();
            }
            let data = format!("round {round}").into_bytes();
            assert_eq!(pair.client_sends(&data), data);
            assert_eq!(pair.server_sends(&[&data]), data);
        }
    }
}

#[test]
fn rfc8446_4_6_3_our_key_updates_are_understood() {
    for suite in suites().into_iter().filter(|suite| tls13(*suite)) {
        let mut pair = Pair::of(suite);
        for round in 0..100 {
            let mut out = Vec::new();
            pair.session.update(round % 2 == 0, &mut out).unwrap();
            assert_eq!(hear(&mut pair.client, &out).unwrap(), b"");
            let data = format!("round {round}").into_bytes();
            assert_eq!(pair.server_sends(&[&data]), data);
            assert_eq!(pair.client_sends(&data), data);
        }
    }
}

#[test]
fn key_updates_without_data_between_them_are_not_endless() {
    let mut pair = Pair::of(rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256);
    for _ in 0..32 {
        pair.client.refresh_traffic_keys().unwrap();
    }
    assert_eq!(pair.client_sends(b"data"), b"data");
    for _ in 0..33 {
        pair.client.refresh_traffic_keys().unwrap();
    }
    let mut input = said(&mut pair.client);
    let opened = pair.session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default());
    assert_eq!(opened.end, Some(End::Fatal(Alert::UNEXPECTED_MESSAGE)));
}

#[test]
fn rfc8446_6_1_both_sides_can_say_that_they_close() {
    for suite in suites() {
        let mut pair = Pair::of(suite);
        let mut out = Vec::new();
        pair.session.seal([&b"last words"[..]], &mut WarmKeys::default(), &mut out).unwrap();
        pair.session.seal_alert(Alert::CLOSE_NOTIFY, &mut out).unwrap();
        assert_eq!(hear(&mut pair.client, &out).unwrap(), b"last words");
        let mut rest = [0; 8];
        let end = std::io::Read::read(&mut pair.client.reader(), &mut rest);
        assert_eq!(end.unwrap(), 0, "not an end without close_notify");

        // The peer's side is still open, and input after its end is not examined.
        std::io::Write::write_all(&mut pair.client.writer(), b"data").unwrap();
        pair.client.send_close_notify();
        let mut input = said(&mut pair.client);
        input.extend_from_slice(b"anything");
        let opened =
            pair.session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default());
        assert_eq!(opened.end, Some(End::CloseNotify));
        assert_eq!(&input[opened.data], b"data");
    }
}

#[test]
fn rfc8446_6_2_our_fatal_alert_is_understood_and_the_peers_is_reported() {
    for suite in suites() {
        let mut pair = Pair::of(suite);
        let mut out = Vec::new();
        pair.session.seal([&b"data"[..]], &mut WarmKeys::default(), &mut out).unwrap();
        *out.last_mut().unwrap() ^= 1;
        assert_eq!(hear(&mut pair.client, &out), Err(Error::DecryptError));
        let mut input = said(&mut pair.client);
        let opened =
            pair.session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default());
        assert_eq!(opened.end, Some(End::PeerAlert(Alert::BAD_RECORD_MAC)), "{suite:?}");

        let mut pair = Pair::of(suite);
        let mut input = said(&mut pair.client);
        std::io::Write::write_all(&mut pair.client.writer(), b"data").unwrap();
        input.extend(said(&mut pair.client));
        *input.last_mut().unwrap() ^= 1;
        let opened =
            pair.session.open(&mut input, &mut WarmKeys::default(), &mut Messages::default());
        assert_eq!(opened.end, Some(End::Fatal(Alert::BAD_RECORD_MAC)));
        let mut out = Vec::new();
        pair.session.seal_alert(Alert::BAD_RECORD_MAC, &mut out).unwrap();
        let refused = AlertDescription::BadRecordMac;
        assert_eq!(hear(&mut pair.client, &out), Err(Error::AlertReceived(refused)));
    }
}

/// One event of a session.
#[derive(Clone, Debug)]
enum Step {
    ClientData(usize),
    ServerData(usize, usize),
    ClientUpdate,
    ServerUpdate(bool),
    Deliver(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1usize..40_000).prop_map(Step::ClientData),
        4 => (1usize..40_000, 1usize..20_000).prop_map(|(len, cut)| Step::ServerData(len, cut)),
        1 => Just(Step::ClientUpdate),
        1 => any::<bool>().prop_map(Step::ServerUpdate),
        6 => (0usize..70_000).prop_map(Step::Deliver),
    ];
    proptest::collection::vec(step, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Data, updates and cuts in any order: each side gets what the other sent.
    #[test]
    fn any_order_of_data_updates_and_cuts_delivers_every_byte(
        steps in steps(), which in 0usize..9,
    ) {
        let suite = suites()[which % suites().len()];
        let mut pair = Pair::of(suite);
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let mut wire = std::mem::take(&mut pair.early);
        for step in steps.into_iter().chain([Step::Deliver(usize::MAX)]) {
            match step {
                Step::ClientData(len) => {
                    let data = text(len);
                    // At most as much as rustls buffers.
                    let n = std::io::Write::write(&mut pair.client.writer(), &data).unwrap();
                    sent.extend_from_slice(&data[..n]);
                    wire.extend(said(&mut pair.client));
                }
                Step::ServerData(len, cut) => {
                    let data = text(len);
                    let pieces: Vec<_> = data.chunks(cut).collect();
                    prop_assert_eq!(pair.server_sends(&pieces), data);
                }
                Step::ClientUpdate if tls13(suite) => {
                    pair.client.refresh_traffic_keys().unwrap();
                    wire.extend(said(&mut pair.client));
                }
                Step::ServerUpdate(request) if tls13(suite) => {
                    let mut out = Vec::new();
                    pair.session.update(request, &mut out).unwrap();
                    prop_assert_eq!(hear(&mut pair.client, &out).unwrap(), b"");
                    wire.extend(said(&mut pair.client));
                }
                Step::ClientUpdate | Step::ServerUpdate(_) => {}
                Step::Deliver(most) => {
                    let n = most.min(wire.len());
                    let (mut warm, mut messages) = (WarmKeys::default(), Messages::default());
                    let opened = pair.session.open(&mut wire[..n], &mut warm, &mut messages);
                    prop_assert_eq!(opened.end, None);
                    received.extend_from_slice(&wire[opened.data]);
                    wire.drain(..opened.consumed);
                    let mut out = Vec::new();
                    pair.session.seal_reply(&mut out).unwrap();
                    hear(&mut pair.client, &out).unwrap();
                }
            }
        }
        prop_assert!(wire.is_empty());
        prop_assert_eq!(received, sent);
    }

    /// Arbitrary bytes end the session and have no other effect.
    #[test]
    fn no_input_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000), at in 0usize..300,
    ) {
        let mut pair = Pair::of(suites()[at % suites().len()]);
        std::io::Write::write_all(&mut pair.client.writer(), &text(200)).unwrap();
        let mut input = std::mem::take(&mut pair.early);
        input.extend(said(&mut pair.client));
        let at = at.min(input.len());
        input.splice(at..at, bytes.iter().copied());
        let (mut warm, mut messages) = (WarmKeys::default(), Messages::default());
        let opened = pair.session.open(&mut input, &mut warm, &mut messages);
        prop_assert!(opened.consumed <= input.len());
        prop_assert!(opened.data.end <= opened.consumed);
        let data = input[opened.data].to_vec();
        prop_assert!(data.is_empty() || data == text(200));

        let mut handshake = Handshake::new(Arc::new(server_config(None))).unwrap();
        handshake.receive(&bytes).unwrap();
        let _ = handshake.advance(&mut Secrets::default(), &mut Vec::new());
    }
}

/// Inputs that once made rustls process again input that it had refused before.
#[test]
fn records_that_are_no_handshake_fail_without_a_panic() {
    for bytes in [&b"\x16\x03\x01\x00\x05hello"[..], b"\x16\x03\x01\xff\xff", &[0; 100]] {
        let mut handshake = Handshake::new(Arc::new(server_config(None))).unwrap();
        handshake.receive(bytes).unwrap();
        handshake.advance(&mut Secrets::default(), &mut Vec::new()).unwrap_err();
    }
}

#[test]
fn a_client_of_ours_talks_to_a_server_of_rustls() {
    for suite in suites() {
        let config = Arc::new(raw_server_config(Some(suite)));
        let mut server = rustls::ServerConnection::new(config).unwrap();
        let mut config = client_config();
        prepare_client(&mut config);
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        let mut handshake = Handshake::connect(Arc::new(config), name).unwrap();
        let (mut secrets, mut out) = (Secrets::default(), Vec::new());
        while handshake.advance(&mut secrets, &mut out).unwrap() == Progress::NeedsInput {
            server_hears(&mut server, &std::mem::take(&mut out));
            handshake.receive(&server_said(&mut server)).unwrap();
        }
        server_hears(&mut server, &out);
        let (mut session, info, _) = handshake.take_session(&secrets).unwrap();
        assert_eq!(info.version, if tls13(suite) { 0x304 } else { 0x303 });
        let mut warm = WarmKeys::default();
        for len in [1, 100, 50_000] {
            let data = text(len);
            let mut wire = Vec::new();
            session.seal([&data[..]], &mut warm, &mut wire).unwrap();
            assert!(server_hears(&mut server, &wire) == data, "{suite:?}, {len} out");
            std::io::Write::write_all(&mut server.writer(), &data).unwrap();
            // The tickets come with the first data.
            let mut wire = server_said(&mut server);
            let opened = session.open(&mut wire, &mut warm, &mut Messages::default());
            assert_eq!((opened.end, opened.consumed), (None, wire.len()), "{suite:?}");
            assert!(wire[opened.data] == data, "{suite:?}, {len} in");
        }
    }
}

fn server_said(server: &mut rustls::ServerConnection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while server.wants_write() {
        server.write_tls(&mut bytes).unwrap();
    }
    bytes
}

fn server_hears(server: &mut rustls::ServerConnection, mut bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while !bytes.is_empty() {
        server.read_tls(&mut bytes).unwrap();
        server.process_new_packets().unwrap();
        let _ = std::io::Read::read_to_end(&mut server.reader(), &mut data);
    }
    data
}
