//! TLS of the client: rustls with ring, and the authorities of the system.

use std::net::TcpStream;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{
    ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned, version,
};

/// Returns the version of TLS to offer, if any.
pub(crate) fn version() -> Option<ProtocolVersion> {
    match std::env::var("THRONG_TLS").ok()?.as_str() {
        "1.2" => Some(ProtocolVersion::TLSv1_2),
        "1.3" => Some(ProtocolVersion::TLSv1_3),
        other => panic!("THRONG_TLS={other}: expected 1.2 or 1.3"),
    }
}

/// Returns the configuration of connections, if they have TLS. The variable `SSL_CERT_FILE` names
/// the authorities.
pub(crate) fn config() -> Option<Arc<ClientConfig>> {
    let version = match version()? {
        ProtocolVersion::TLSv1_2 => &version::TLS12,
        _ => &version::TLS13,
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let config = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_protocol_versions(&[version])
        .expect("the provider has it")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Some(config.into())
}

/// Completes a handshake.
pub(crate) fn handshake(
    config: Arc<ClientConfig>,
    stream: TcpStream,
) -> StreamOwned<ClientConnection, TcpStream> {
    let name = "localhost".try_into().expect("a name");
    let client = ClientConnection::new(config, name).expect("a client");
    let mut stream = StreamOwned::new(client, stream);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).expect("a handshake");
    }
    assert_eq!(stream.conn.protocol_version(), version());
    stream
}
