//! Rules by the name that a client asks for: versions, certificates of clients, tickets.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use throng_io::TlsInfo;
use throng_tls::handshake::Progress;
use throng_tls::{CertificateFiles, ClientAuth, TlsConfig, TlsPolicy, TlsServer, Version};

use crate::support::{hear, said, temporary, with_certificate_for, without_certificate};

type Identity = rcgen::CertifiedKey<rcgen::KeyPair>;

fn identity(name: &str) -> Identity {
    rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap()
}

fn config(dir: &Path) -> TlsConfig {
    let own = identity("localhost");
    let files = CertificateFiles { chain: dir.join("it.pem"), key: dir.join("it.key") };
    std::fs::write(&files.chain, own.cert.pem()).unwrap();
    std::fs::write(&files.key, own.signing_key.serialize_pem()).unwrap();
    TlsConfig::new(vec![files])
}

/// Rules for names of clients with certificates of one authority.
fn policy(dir: &Path, names: &[&str], client: &Identity) -> TlsPolicy {
    let authorities = dir.join(format!("{}.ca", names[0]));
    std::fs::write(&authorities, client.cert.pem()).unwrap();
    TlsPolicy {
        names: names.iter().map(|name| Box::from(*name)).collect(),
        min_version: Version::Tls12,
        client_auth: Some(ClientAuth { authorities, revoked: None, is_required: true }),
    }
}

/// Connects a client that asks for `name`.
fn connect(server: &TlsServer, config: &ClientConfig, name: &str) -> Result<TlsInfo, String> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::new(config.clone()), name).unwrap();
    let hello = said(&mut client);
    let mut handshake = server.handshake_for(&hello).unwrap();
    handshake.receive(&hello).unwrap();
    let mut secrets = Default::default();
    let mut out = Vec::new();
    loop {
        let progress =
            handshake.advance(&mut secrets, &mut out).map_err(|error| error.to_string())?;
        hear(&mut client, &std::mem::take(&mut out)).map_err(|error| error.to_string())?;
        if progress == Progress::Complete {
            break;
        }
        handshake.receive(&said(&mut client)).unwrap();
    }
    Ok(handshake.take_session(&secrets).unwrap().1)
}

#[test]
fn the_name_in_the_client_hello_decides() {
    let dir = temporary("policies");
    let (one, other) = (identity("one"), identity("other"));
    let mut config = config(&dir);
    config.policies = vec![
        policy(&dir, &["mesh.example", "*.mesh.example"], &one),
        policy(&dir, &["other.example"], &other),
        TlsPolicy {
            names: vec!["new.example".into()],
            min_version: Version::Tls13,
            client_auth: None,
        },
    ];
    config.own_names = vec!["www.mesh.example".into()];
    let numbers: Vec<_> = config.policies.iter().map(|it| u64::from(it.number())).collect();
    let server = TlsServer::load(config).unwrap();
    let old = [&rustls::version::TLS12];
    let without = without_certificate;
    let all = rustls::ALL_VERSIONS;
    for (name, client, expected) in [
        ("localhost", without(all), Some(0)),
        ("www.mesh.example", without(all), Some(0)),
        ("a.b.mesh.example", without(all), Some(0)),
        ("mesh.example", without(all), None),
        ("mesh.example", with_certificate_for(&one, all), Some(numbers[0])),
        ("MESH.example", with_certificate_for(&one, &old), Some(numbers[0])),
        ("a.mesh.example", with_certificate_for(&one, all), Some(numbers[0])),
        ("a.mesh.example", with_certificate_for(&other, all), None),
        ("other.example", with_certificate_for(&other, all), Some(numbers[1])),
        ("other.example", with_certificate_for(&one, all), None),
        ("new.example", without(all), Some(numbers[2])),
        ("new.example", without(&old), None),
        ("localhost", without(&old), Some(0)),
    ] {
        let info = connect(&server, &client, name);
        assert_eq!(info.as_ref().ok().map(|info| info.policy), expected, "{name}: {info:?}");
    }
}

/// A ticket resumes what its certificate was checked by. A name that gets other rules in a reload
/// has no client that comes by a ticket from before.
#[test]
fn tickets_never_cross_policies() {
    let dir = temporary("policy-tickets");
    let (one, other) = (identity("one"), identity("other"));
    let own = config(&dir);
    let name = "a.example";
    let with = |policies: Vec<TlsPolicy>| TlsConfig { policies, ..own.clone() };
    let newer =
        TlsPolicy { names: vec![name.into()], min_version: Version::Tls13, client_auth: None };
    let all = [
        with(Vec::new()),
        with(vec![policy(&dir, &[name], &one)]),
        with(vec![TlsPolicy {
            client_auth: policy(&dir, &["b.example"], &other).client_auth,
            ..policy(&dir, &[name], &one)
        }]),
        with(vec![newer]),
    ];
    for (from, before) in all.iter().enumerate() {
        for (to, after) in all.iter().enumerate() {
            // The client shows the certificate that the first rules want.
            let client = match from {
                1 => with_certificate_for(&one, rustls::ALL_VERSIONS),
                2 => with_certificate_for(&other, rustls::ALL_VERSIONS),
                _ => without_certificate(rustls::ALL_VERSIONS),
            };
            let server = TlsServer::load(before.clone()).unwrap();
            assert!(!connect(&server, &client, name).unwrap().is_resumed);
            assert!(connect(&server, &client, name).unwrap().is_resumed, "{from}");
            server.install(server.prepare(after).unwrap());
            match (connect(&server, &client, name), to) {
                (Ok(info), _) => assert_eq!(info.is_resumed, from == to, "{from} {to}"),
                // It has not the certificate.
                (Err(error), 1 | 2) => assert!(from != to, "{from} {to}: {error}"),
                (Err(error), _) => panic!("{from} {to}: {error}"),
            }
        }
    }
}

#[test]
fn tickets_of_policies_outlive_an_upgrade() {
    let dir = temporary("policy-upgrade");
    let one = identity("one");
    let name = "a.example";
    let config = TlsConfig { policies: vec![policy(&dir, &[name], &one)], ..config(&dir) };
    let client = with_certificate_for(&one, rustls::ALL_VERSIONS);
    let first = TlsServer::load(config.clone()).unwrap();
    assert!(!connect(&first, &client, name).unwrap().is_resumed);
    let next = TlsServer::load(config).unwrap();
    next.take_ticket_keys(&first.ticket_keys());
    assert!(connect(&next, &client, name).unwrap().is_resumed);
}

#[test]
fn policies_differ_by_their_rules_and_not_by_their_names() {
    let policy = |names: &[&str], min_version, ca: Option<&str>, is_required| TlsPolicy {
        names: names.iter().map(|name| Box::from(*name)).collect(),
        min_version,
        client_auth: ca.map(|ca| ClientAuth { authorities: ca.into(), revoked: None, is_required }),
    };
    let one = policy(&["a"], Version::Tls12, Some("ca.pem"), true);
    assert_eq!(one.number(), policy(&["b"], Version::Tls12, Some("ca.pem"), true).number());
    for other in [
        policy(&["a"], Version::Tls13, Some("ca.pem"), true),
        policy(&["a"], Version::Tls12, Some("ca2.pem"), true),
        policy(&["a"], Version::Tls12, Some("ca.pem"), false),
        policy(&["a"], Version::Tls12, None, false),
    ] {
        assert_ne!(one.number(), other.number(), "{other:?}");
    }
}
