//! Connections that we start.

use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread;

use rustls::{ProtocolVersion, ServerConnection};
use throng_io::{Closed, ConnId, Driver, Options, TlsFailure};
use throng_tls::{
    CertificateFiles, ClientAuth, ClientConfigs, ClientSettings, TlsClient, TlsConfig, TlsServer,
    Trust,
};

use crate::rig::{Rig, Sealer, Seen, finished};
use crate::support::{TrustFolder, first_der, raw_server_config, temporary};

/// A connection that we start to the rig's own secured listener.
pub(crate) fn connected(
    rig: &mut Rig,
    trust: Trust,
    name: &str,
) -> (ConnId, Result<ConnId, Closed>) {
    let settings = ClientSettings { trust, ..ClientSettings::default() };
    let client = TlsClient::new(&ClientConfigs::load(settings).unwrap(), name).unwrap();
    connected_by(rig, &client)
}

fn connected_by(rig: &mut Rig, client: &Arc<TlsClient>) -> (ConnId, Result<ConnId, Closed>) {
    let ours =
        rig.driver.connect_secured(rig.secured.into(), None, &client.for_driver(), b"").unwrap();
    let (mut accepted, mut is_secured) = (None, false);
    let outcome = rig.until(|seen| match seen {
        Seen::Adopted(id) => {
            accepted = Some(*id);
            None
        }
        Seen::Secured(id, _) if *id == ours => {
            is_secured = true;
            None
        }
        Seen::Connected(id) if *id == ours => {
            assert!(is_secured, "C12");
            Some(Ok(()))
        }
        Seen::Closed(id, why) if *id == ours => Some(Err(*why)),
        _ => None,
    });
    (ours, outcome.map(|()| accepted.expect("accepted")))
}

#[test]
fn a_connection_of_ours_is_secured_and_carries_data_both_ways() {
    let own = TrustFolder::of_servers();
    for (trust, name) in [
        (Trust::File(own.file()), "localhost"),
        (Trust::File(own.file()), "127.0.0.1"),
        (Trust::Anyone, "other.example"),
    ] {
        let mut rig = Rig::new();
        let (ours, accepted) = connected(&mut rig, trust, name);
        let theirs = accepted.unwrap();
        assert_eq!(rig.driver.secured(), 2);
        for (from, to) in [(ours, theirs), (theirs, ours), (ours, theirs)] {
            assert!(rig.send(from, b"across"));
            let seen = rig.until(|seen| match seen {
                Seen::Received(id, bytes) => Some((*id, bytes.clone())),
                _ => None,
            });
            assert_eq!(seen, (to, b"across".to_vec()));
        }
        rig.driver.finish(ours);
        assert_eq!(rig.until(finished), theirs);
        assert!(!rig.driver.was_truncated(theirs));
    }
}

#[test]
fn a_connection_of_ours_shows_its_certificate_to_a_server_that_asks() {
    let dir = temporary("shown");
    let files = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let (chain, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        std::fs::write(&chain, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        CertificateFiles { chain, key }
    };
    let (server, known, stranger) = (files("localhost"), files("known"), files("stranger"));
    let authorities = known.chain.clone();
    let client_auth = Some(ClientAuth { authorities, revoked: None, is_required: true });
    let config = TlsConfig { client_auth, ..TlsConfig::new(vec![server.clone()]) };
    let server_of = |config: &TlsConfig| TlsServer::load(config.clone()).unwrap();
    for only_tls12 in [false, true] {
        for (certificate, is_let_in) in
            [(Some(known.clone()), true), (Some(stranger.clone()), false), (None, false)]
        {
            let mut rig = Rig::of(Options::default(), server_of(&config));
            let trust = Trust::File(server.chain.clone());
            let settings =
                ClientSettings { trust, only_tls12, certificate, ..ClientSettings::default() };
            let configs = ClientConfigs::load(settings).unwrap();
            let client = TlsClient::new(&configs, "localhost").unwrap().for_driver();
            let ours = rig.driver.connect_secured(rig.secured.into(), None, &client, b"").unwrap();
            // In TLS 1.3 a client is done before the server has seen its certificate.
            let shown = rig.until(|seen| match seen {
                Seen::Secured(id, info) if *id != ours => Some(Ok(info.peer_certificates.clone())),
                Seen::Finished(id) if *id == ours => Some(Err(None)),
                Seen::Closed(id, why) if *id == ours => Some(Err(Some(*why))),
                _ => None,
            });
            if is_let_in {
                let expected = first_der(&std::fs::read(&known.chain).unwrap());
                assert_eq!(shown, Ok(vec![expected.into_boxed_slice()]), "TLS 1.2: {only_tls12}");
            } else {
                let is_reason =
                    matches!(shown, Err(Some(Closed::Insecure(TlsFailure::Alert(1..)))));
                assert!(is_reason, "TLS 1.2: {only_tls12}, {shown:?}");
            }
        }
    }
}

/// A close would drop data that the engine has not handled yet.
#[test]
fn an_alert_behind_data_ends_the_stream_of_a_connection_of_ours_and_does_not_close_it() {
    for data in [&b"answer"[..], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let mut config = raw_server_config(None);
            config.enable_secret_extraction = true;
            let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
            let mut socket = listener.accept().unwrap().0;
            while tls.is_handshaking() || tls.wants_write() {
                tls.complete_io(&mut socket).unwrap();
            }
            let secrets = tls.dangerous_extract_secrets().unwrap().tx;
            let mut sealer = Sealer::with(ProtocolVersion::TLSv1_3, secrets);
            let records = [sealer.seal(23, data), sealer.seal(21, &[2, 116])].concat();
            socket.write_all(&records).unwrap();
            socket
        });
        let mut rig = Rig::new();
        let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
        let client = TlsClient::new(&ClientConfigs::load(settings).unwrap(), "localhost").unwrap();
        let ours =
            rig.driver.connect_secured(address.into(), None, &client.for_driver(), b"").unwrap();
        let mut seen = Vec::new();
        while !matches!(seen.last(), Some(Seen::Closed(..) | Seen::Finished(..))) {
            seen.extend(rig.turn().into_iter().filter(|seen| !matches!(seen, Seen::Secured(..))));
        }
        let refused = Closed::Insecure(TlsFailure::Alert(116));
        let connected = Seen::Connected(ours);
        let expected = match data {
            b"" => vec![connected, Seen::Closed(ours, refused)],
            data => vec![connected, Seen::Received(ours, data.to_vec()), Seen::Finished(ours)],
        };
        assert_eq!(seen, expected);
        drop(server.join().unwrap());
    }
}

#[test]
fn a_certificate_that_is_not_trusted_refuses_a_connection_of_ours() {
    let (own, other) = (TrustFolder::of_servers(), TrustFolder::of_others());
    for (trust, name, why) in [
        (Trust::File(other.file()), "localhost", TlsFailure::UnknownIssuer),
        (Trust::File(own.file()), "other.example", TlsFailure::WrongName),
    ] {
        let mut rig = Rig::new();
        let (_, outcome) = connected(&mut rig, trust, name);
        assert_eq!(outcome, Err(Closed::Insecure(why)));
    }
}

#[test]
fn a_server_without_tls_refuses_a_connection_of_ours() {
    let mut rig = Rig::new();
    let secured = std::mem::replace(&mut rig.secured, rig.plain);
    let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
    let client = TlsClient::new(&ClientConfigs::load(settings).unwrap(), "localhost").unwrap();
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let ours =
            rig.driver.connect_secured(rig.plain.into(), None, &client.for_driver(), b"").unwrap();
        let closed = loop {
            let seen = rig.turn();
            for seen in &seen {
                if let Seen::Received(id, _) = seen {
                    match answer {
                        b"" => rig.driver.finish(*id),
                        answer => drop(rig.send(*id, answer)),
                    }
                }
            }
            let closed = seen.into_iter().find_map(|seen| match seen {
                Seen::Closed(id, why) if id == ours => Some(why),
                _ => None,
            });
            if let Some(closed) = closed {
                break closed;
            }
        };
        let expected = if answer.is_empty() { TlsFailure::Ended } else { TlsFailure::NotTls };
        assert_eq!(closed, Closed::Insecure(expected));
    }
    rig.secured = secured;
}

#[test]
fn c3_a_send_before_connected_leaves_when_it_is() {
    let mut rig = Rig::new();
    let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
    let client = TlsClient::new(&ClientConfigs::load(settings).unwrap(), "localhost").unwrap();
    let ours =
        rig.driver.connect_secured(rig.secured.into(), None, &client.for_driver(), b"").unwrap();
    assert!(!rig.send(ours, b"early"), "there are no keys yet");
    assert_eq!(rig.driver.unsent(ours), 5);
    let (mut seen, mut heard) = (Vec::new(), false);
    while !heard || seen.last() != Some(&Seen::Sent(ours, 0)) {
        for event in rig.turn() {
            match event {
                Seen::Received(_, bytes) => heard = bytes == b"early",
                Seen::Connected(_) | Seen::Sent(..) => seen.push(event),
                _ => {}
            }
        }
    }
    assert_eq!(seen, [Seen::Connected(ours), Seen::Sent(ours, 0)]);

    let ours =
        rig.driver.connect_secured(rig.plain.into(), None, &client.for_driver(), b"").unwrap();
    assert!(!rig.send(ours, b"early"));
    let mut seen = Vec::new();
    while !matches!(seen.last(), Some(Seen::Closed(..))) {
        for event in rig.turn() {
            match event {
                Seen::Received(id, _) => rig.driver.close(id),
                Seen::Sent(..) => seen.push(event),
                Seen::Closed(id, _) if id == ours => seen.push(event),
                _ => {}
            }
        }
    }
    let closed = Seen::Closed(ours, Closed::Insecure(TlsFailure::Ended));
    assert_eq!(seen, [Seen::Sent(ours, 5), closed]);
}

#[test]
fn sessions_of_ours_are_resumed_if_wanted() {
    for (only_tls12, resumes) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut rig = Rig::new();
        let own = TrustFolder::of_servers();
        let trust = Trust::File(own.file());
        let settings = ClientSettings { trust, only_tls12, resumes, ..ClientSettings::default() };
        let configs = ClientConfigs::load(settings).unwrap();
        let client = TlsClient::new(&configs, "localhost").unwrap();
        for round in 0..4 {
            let (ours, accepted) = connected_by(&mut rig, &client);
            let theirs = accepted.unwrap();
            for (from, to) in [(ours, theirs), (theirs, ours)] {
                assert!(rig.send(from, b"across"));
                let at = rig.until(|seen| match seen {
                    Seen::Received(id, bytes) if bytes == b"across" => Some(*id),
                    _ => None,
                });
                assert_eq!(at, to);
            }
            assert_eq!(rig.driver.output_memory(ours), 0);
            let resumed = if resumes { round } else { 0 };
            let stats = rig.server.stats();
            assert_eq!((stats.full, stats.resumed), (round + 1 - resumed, resumed));
        }
    }
}
