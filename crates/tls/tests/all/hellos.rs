//! The beginning of connections: ClientHellos, and bytes that are not a ClientHello.

use std::io::Write;
use std::sync::Arc;

use rustls::client::{EchGreaseConfig, EchMode};
use rustls::crypto::aws_lc_rs::{self, hpke};
use rustls::crypto::hpke::Hpke;
use rustls::pki_types::ServerName;
use rustls::server::ServerSessionMemoryCache;
use rustls::{AlertDescription, ClientConfig, ClientConnection, Error, ServerConnection};
use throng_io::{ConnId, Driver, Options, PassedThrough, TlsFailure};
use throng_tls::{TlsConfig, TlsServer};

use crate::rig::{Rig, Seen, finished, received};
use crate::support::{client, client_config, hear, raw_server_config, said};

/// Maximum data of a record.
const MAX_RECORD: usize = 16 * 1024;

#[test]
fn http_without_tls_is_answered_with_the_reason() {
    let mut rig = Rig::new();
    let (id, mut peer) = rig.dial(rig.secured);
    peer.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(rig.until(finished), id);
    let answer = String::from_utf8(rig.until_read(&mut peer)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
}

#[test]
fn bytes_that_are_no_handshake_end_the_connection() {
    for bytes in [&[0; 100][..], b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff", b"ssh-2"] {
        let mut rig = Rig::new();
        let (id, mut peer) = rig.dial(rig.secured);
        peer.write_all(bytes).unwrap();
        assert_eq!(rig.until(finished), id, "{bytes:?}");
        // RFC 8446 section 5: unexpected_message, for all input that does not begin like a
        // handshake record.
        if bytes[0] != 22 {
            assert_eq!(rig.until_read(&mut peer), [21, 3, 3, 0, 2, 2, 10], "{bytes:?}");
        }
    }
}

#[test]
fn a_client_hello_without_end_is_refused() {
    let mut rig = Rig::new();
    let (id, mut peer) = rig.dial(rig.secured);
    // Of 128 KiB.
    let record =
        |start: &[u8]| [&[22, 3, 1, 0x40, 0], start, &vec![0; MAX_RECORD - start.len()]].concat();
    let mut hello = record(&[1, 2, 0, 0]);
    (0..4).for_each(|_| hello.extend(record(&[])));
    let mut written = 0;
    loop {
        if let Ok(n) = peer.write(&hello[written..]) {
            written += n;
        }
        if rig.turn().contains(&Seen::Finished(id)) {
            break;
        }
    }
    assert_eq!(rig.until_read(&mut peer), [21, 3, 3, 0, 2, 2, 47], "illegal_parameter");
}

#[test]
fn a_hello_that_announces_too_much_is_refused_by_its_header() {
    for (start, alert) in [
        // A message of 64 KiB and a byte; a record of 16 KiB and a byte.
        (&[22, 3, 1, 0x40, 0, 1, 0, 0xff, 0xfd][..], 47),
        (&[22, 3, 1, 0x40, 1, 1], 22),
    ] {
        let mut rig = Rig::new();
        let (id, mut peer) = rig.dial(rig.secured);
        peer.write_all(start).unwrap();
        assert_eq!(rig.until(finished), id, "{start:?}");
        assert_eq!(rig.until_read(&mut peer), [21, 3, 3, 0, 2, 2, alert]);
    }
}

/// A ClientHello in records with `most` bytes each.
fn in_records(hello: &[u8], most: usize) -> Vec<u8> {
    let mut message = Vec::new();
    let mut rest = hello;
    while let [22, _, _, high, low, next @ ..] = rest {
        let (payload, next) = next.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        message.extend_from_slice(payload);
        rest = next;
    }
    assert_eq!(rest, b"", "all records are of a handshake");
    let record = |part: &[u8]| [&[22, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat();
    message.chunks(most).flat_map(record).collect()
}

/// Completes the handshake of a client that has sent its ClientHello.
fn complete(
    rig: &mut Rig,
    id: ConnId,
    socket: &mut std::net::TcpStream,
    tls: &mut ClientConnection,
) {
    while tls.is_handshaking() {
        let bytes = rig.until_read(socket);
        hear(tls, &bytes).unwrap();
        socket.write_all(&said(tls)).unwrap();
    }
    rig.until(|seen| matches!(seen, Seen::Secured(of, _) if *of == id).then_some(()));
}

/// Browsers and tlsfuzzer do so.
#[test]
fn rfc8446_5_1_a_client_hello_may_be_cut_into_records_anywhere() {
    let mut rig = Rig::new();
    let mut long = client_config();
    // RFC 7301 section 3.1: a list of at most 64 KiB.
    long.alpn_protocols = (0..100_u8).map(|at| vec![at; 250]).collect();
    long.alpn_protocols.push(b"http/1.1".to_vec());
    for (config, most) in
        [(client_config(), 1), (client_config(), 3), (client_config(), 100), (long, 16_384)]
    {
        let (id, mut socket) = rig.dial(rig.secured);
        let mut tls = client(config);
        let hello = in_records(&said(&mut tls), most);
        socket.set_nonblocking(false).unwrap();
        socket.write_all(&hello).unwrap();
        socket.set_nonblocking(true).unwrap();
        complete(&mut rig, id, &mut socket, &mut tls);
    }
}

#[test]
fn rfc8446_5_a_record_of_no_type_within_a_hello_is_an_unexpected_message() {
    let mut rig = Rig::new();
    let (id, mut socket) = rig.dial(rig.secured);
    let hello = in_records(&said(&mut client(client_config())), 100);
    socket.write_all(&hello[..105]).unwrap();
    socket.write_all(&[0, 3, 3, 0, 2, 0, 0]).unwrap();
    assert_eq!(rig.until(finished), id);
    assert_eq!(rig.until_read(&mut socket), [21, 3, 3, 0, 2, 2, 10]);
}

/// A client whose session is from a server that takes early data, which our servers never do.
fn with_early_data() -> Arc<ClientConfig> {
    let mut server = raw_server_config(None);
    let config =
        rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(&server.cert_resolver));
    server = config;
    server.session_storage = ServerSessionMemoryCache::new(4);
    server.max_early_data_size = 100_000;
    let mut config = client_config();
    config.enable_early_data = true;
    let config = Arc::new(config);
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::clone(&config), name).unwrap();
    let mut server = ServerConnection::new(Arc::new(server)).unwrap();
    for _ in 0..4 {
        let mut bytes = &said(&mut client)[..];
        while !bytes.is_empty() {
            server.read_tls(&mut bytes).unwrap();
            server.process_new_packets().unwrap();
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        hear(&mut client, &bytes).unwrap();
    }
    config
}

/// A driver that passes these names through, and has no certificate.
fn passing(patterns: &[&str]) -> Rig {
    let passthrough = patterns.iter().map(|name| Box::from(*name)).collect();
    let config = TlsConfig { passthrough, ..TlsConfig::new(Vec::new()) };
    Rig::of(Options::default(), TlsServer::load(config).unwrap())
}

fn passed(seen: &Seen) -> Option<(ConnId, PassedThrough)> {
    match seen {
        Seen::PassedThrough(id, passed) => Some((*id, passed.clone())),
        Seen::Secured(..) | Seen::Received(..) => panic!("{seen:?}"),
        _ => None,
    }
}

fn asking_for(config: ClientConfig, name: &str) -> Vec<u8> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    said(&mut ClientConnection::new(Arc::new(config), name).unwrap())
}

#[test]
fn a_hello_is_passed_through_whole_however_it_is_cut() {
    let mut rig = passing(&["*.example.com"]);
    let mut small = client_config();
    small.alpn_protocols = vec![b"http/1.1".to_vec()];
    let hello = asking_for(small, "db.example.com");
    let fragments = in_records(&hello, 50);
    for (hello, step) in [(&hello, 11), (&fragments, 7)] {
        for at in (1..hello.len()).step_by(step).chain([hello.len() - 1, 4, 5, 6, 9]) {
            let (id, mut socket) = rig.dial(rig.secured);
            socket.write_all(&hello[..at]).unwrap();
            assert!(rig.turn().is_empty(), "the hello is not whole");
            socket.write_all(&hello[at..]).unwrap();
            let (of, passed) = rig.until(passed);
            assert_eq!((of, &*passed.route), (id, "*.example.com"));
            assert_eq!(passed.server_name.as_deref(), Some("db.example.com"));
            assert!(passed.received == *hello, "cut at {at}");
            // From here on it is a connection without TLS.
            socket.write_all(b"anything").unwrap();
            assert_eq!(rig.until(received), b"anything");
            assert!(rig.send(id, b"and back") && !rig.driver.is_handshaking(id));
            assert_eq!(rig.until_read(&mut socket), b"and back");
            rig.driver.close(id);
        }
    }
    let failed: u64 = rig.server.stats().failed.iter().sum();
    assert_eq!((failed, rig.driver.secured()), (0, 0));
}

#[test]
fn names_can_be_replaced_and_stay_when_files_are_read_again() {
    let mut rig = passing(&["a.example.com"]);
    let passes = |rig: &mut Rig, name: &str| {
        let hello = asking_for(client_config(), name);
        let (of, mut socket) = rig.dial(rig.secured);
        socket.write_all(&hello).unwrap();
        let passed = rig.until(|seen| match seen {
            Seen::PassedThrough(id, _) if *id == of => Some(true),
            Seen::Closed(id, _) | Seen::Finished(id) if *id == of => Some(false),
            _ => None,
        });
        rig.driver.close(of);
        passed
    };
    assert!(passes(&mut rig, "a.example.com"));
    let names = ["b.example.com".into()];
    rig.server.pass_through(&names);
    for _ in 0..2 {
        assert!(passes(&mut rig, "b.example.com") && !passes(&mut rig, "a.example.com"));
        rig.server.reload().unwrap();
    }
    let config = TlsConfig { passthrough: vec!["*".into()], ..TlsConfig::new(Vec::new()) };
    let prepared = rig.server.prepare(&config).unwrap();
    rig.server.install(prepared.passing_through(names.to_vec()));
    assert!(passes(&mut rig, "b.example.com") && !passes(&mut rig, "a.example.com"));
    rig.server.pass_through(&[]);
    assert!(!passes(&mut rig, "b.example.com"));
}

#[test]
fn early_data_is_passed_through_with_its_hello() {
    let mut rig = passing(&["localhost"]);
    let name = ServerName::try_from("localhost").unwrap();
    let mut tls = ClientConnection::new(with_early_data(), name).unwrap();
    tls.early_data().unwrap().write_all(&[b'x'; 60_000]).unwrap();
    let hello = said(&mut tls);
    let (id, mut socket) = rig.dial(rig.secured);
    let (mut written, mut got) = (0, Vec::new());
    while got.len() < hello.len() {
        written += socket.write(&hello[written..]).unwrap_or(0);
        for seen in rig.turn() {
            match seen {
                Seen::PassedThrough(of, passed) if of == id => got.extend(passed.received),
                Seen::Received(of, bytes) if of == id => got.extend(bytes),
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(got == hello);
}

#[test]
fn clients_of_all_kinds_are_passed_through() {
    let mut ech = client_config();
    let suite: &'static dyn Hpke = hpke::DH_KEM_X25519_HKDF_SHA256_AES_128;
    let key = suite.generate_key_pair().unwrap().0;
    let grease = EchMode::from(EchGreaseConfig::new(suite, key));
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
    let roots = rustls::RootCertStore::empty();
    let greased = builder.with_ech(grease).unwrap().with_root_certificates(roots);
    ech.clone_from(&greased.with_no_client_auth());
    let mut nameless = client_config();
    nameless.enable_sni = false;
    for (what, config) in [("ECH", ech), ("no name", nameless), ("ordinary", client_config())] {
        let mut rig = passing(&["*"]);
        let hello = asking_for(config, "db.example.com");
        let (_, mut socket) = rig.dial(rig.secured);
        socket.write_all(&hello).unwrap();
        let (_, passed) = rig.until(passed);
        assert!(passed.received == hello, "{what}");
        assert_eq!(passed.server_name.is_none(), what == "no name", "{what}");
    }
}

#[test]
fn rfc6066_3_a_name_that_nothing_is_for_is_unrecognized() {
    for (has_name, alert) in
        [(true, AlertDescription::UnrecognisedName), (false, AlertDescription::MissingExtension)]
    {
        let mut rig = passing(&["db.example.com"]);
        let mut config = client_config();
        config.enable_sni = has_name;
        let mut tls = client(config);
        let (_, mut socket) = rig.dial(rig.secured);
        socket.write_all(&said(&mut tls)).unwrap();
        let answer = rig.until_read(&mut socket);
        assert_eq!(hear(&mut tls, &answer), Err(Error::AlertReceived(alert)));
        let failed = rig.server.stats().failed;
        assert_eq!(failed[TlsFailure::LacksCertificate.index()], 1);
    }
}
