//! Clients with TLS against servers that end a handshake or a session.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use throng_client::{Client, ClientBuilder, ClientError, DialStep};
use throng_testkit::{Damaging, hold_up, read_head};

/// Starts a server that accepts a client, and ends its TLS session with this fault after its first
/// message.
fn fail(fault: Fault) -> SocketAddr {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let socket = Damaging::new(listener.accept().unwrap().0);
        let connection = ServerConnection::new(Arc::new(config)).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        let head = read_head(&mut stream);
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
        let accept = throng_proto::ws::handshake::accept_key(key.unwrap());
        write!(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
             Connection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n",
            std::str::from_utf8(&accept).unwrap()
        )
        .unwrap();
        stream.sock.damages = fault == Fault::Alert;
        let is_read = stream.read_exact(&mut [0]).is_ok();
        assert_eq!(is_read, fault != Fault::Alert);
        match fault {
            Fault::Alert => {}
            Fault::BadRecord => {
                let record = [&[23, 3, 3, 0, 40][..], &[0; 40]].concat();
                stream.sock.write_all(&record).unwrap();
            }
            Fault::Truncation => stream.sock.inner.shutdown(Shutdown::Write).unwrap(),
        }
        // The client disconnects.
        let _ = stream.sock.inner.read_to_end(&mut Vec::new());
    });
    address
}

/// A way to end a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A fatal alert, in answer to a message that was damaged in transit.
    Alert,
    /// A record that cannot be decrypted.
    BadRecord,
    /// An end of the stream without close_notify.
    Truncation,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Alert, Self::BadRecord, Self::Truncation];

    /// Asserts that the client's error names this fault.
    fn assert_named_by(self, error: &ClientError) {
        let (kind, why) = match self {
            Self::Alert => (ErrorKind::InvalidData, "received fatal alert: BadRecordMac"),
            Self::BadRecord => (ErrorKind::InvalidData, "cannot decrypt peer's message"),
            Self::Truncation => (ErrorKind::UnexpectedEof, "without sending TLS close_notify"),
        };
        assert!(
            matches!(error, ClientError::Lost(lost) if lost.kind() == kind),
            "{self:?}: {error}"
        );
        assert!(error.to_string().contains(why), "{self:?}: {error}");
    }
}

fn to(address: SocketAddr) -> ClientBuilder {
    Client::builder(&format!("wss://{address}/"))
}

#[test]
fn the_time_limit_holds_for_a_handshake_that_comes_byte_by_byte() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        // The server sends a record of 256 bytes, each byte within the time limit.
        let record = [&[22, 3, 3, 1, 0][..], &[0; 256]].concat();
        for byte in record {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            hold_up(Duration::from_millis(5));
        }
    });
    let limit = Duration::from_millis(200);
    let error = to(address).trust_anyone().connect_timeout(limit).connect().unwrap_err();
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Connecting, .. }), "{error}");
    server.join().unwrap();
}

#[test]
fn a_session_that_tls_ends_is_lost_for_the_reason() {
    for fault in Fault::ALL {
        let mut client = to(fail(fault)).trust_anyone().connect().unwrap();
        client.send("hello").unwrap();
        fault.assert_named_by(&client.recv().unwrap_err());
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_session_of_the_asynchronous_client_that_tls_ends_is_lost_for_the_reason() {
    for fault in Fault::ALL {
        let mut client = to(fail(fault)).trust_anyone().connect_async().await.unwrap();
        client.send("hello").await.unwrap();
        fault.assert_named_by(&client.recv().await.unwrap_err());
    }
}
