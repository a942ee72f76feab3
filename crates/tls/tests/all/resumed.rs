//! Sessions that are resumed at any shard of a server.

use std::sync::Arc;

use rustls::ClientConfig;
use throng_io::{Options, TlsInfo};
use throng_tls::{CertificateFiles, ClientAuth, TlsConfig, TlsServer};

use crate::rig::Rig;
use crate::support::{
    VERSIONS, client_config_of, raw_server_config, temporary, with_certificate_for,
};

/// Connects to the shards in turn, so that each ticket is used at another shard than its issuer;
/// returns the handshake's facts of each connection.
fn connect_to_each(server: &Arc<TlsServer>, client: &ClientConfig) -> Vec<TlsInfo> {
    let mut shards = [(); 2].map(|()| Rig::of(Options::default(), Arc::clone(server)));
    let mut learned = Vec::new();
    for shard in [0, 1, 0, 1] {
        let rig = &mut shards[shard];
        let mut peer = rig.pair_with(client.clone());
        // Tickets come before this data.
        assert!(rig.send(peer.id, b"data"));
        assert_eq!(rig.until_heard(&mut peer).unwrap(), b"data");
        learned.push(peer.info);
    }
    learned
}

fn are_resumed(learned: &[TlsInfo]) -> Vec<bool> {
    learned.iter().map(|info| info.is_resumed).collect()
}

#[test]
fn a_ticket_of_one_shard_is_resumed_at_another() {
    for version in VERSIONS {
        let server = TlsServer::new(raw_server_config(None));
        let learned = connect_to_each(&server, &client_config_of(&[version]));
        assert_eq!(are_resumed(&learned), [false, true, true, true], "{version:?}");
        assert_eq!((server.stats().full, server.stats().resumed), (1, 3), "{version:?}");
    }
}

#[test]
fn the_certificate_of_a_client_is_known_in_its_resumed_sessions() {
    let dir = temporary("resumed");
    let write = |name: &str, text: &str| {
        let file = dir.join(name);
        std::fs::write(&file, text).unwrap();
        file
    };
    let identity = |name: &str| rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
    let (own, known) = (identity("localhost"), identity("known"));
    let files = CertificateFiles {
        chain: write("it.pem", &own.cert.pem()),
        key: write("it.key", &own.signing_key.serialize_pem()),
    };
    let authorities = write("clients.pem", &known.cert.pem());
    for version in VERSIONS {
        for is_required in [true, false] {
            let authorities = authorities.clone();
            let client_auth = Some(ClientAuth { authorities, revoked: None, is_required });
            let config = TlsConfig { client_auth, ..TlsConfig::new(vec![files.clone()]) };
            let server = TlsServer::load(config).unwrap();
            let learned = connect_to_each(&server, &with_certificate_for(&known, &[version]));
            assert_eq!(are_resumed(&learned), [false, true, true, true], "{version:?}");
            for info in learned {
                let shown: Vec<&[u8]> = info.peer_certificates.iter().map(AsRef::as_ref).collect();
                assert_eq!(shown, [known.cert.der().as_ref()], "{version:?}: {info:?}");
            }
        }
    }
}
