//! Clients of a server with TLS: whose certificate they accept, and their own certificate.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use throng::client::{Client, ClientBuilder, ClientError, DialStep};
use throng::prelude::*;
use throng::server::Blame;
use throng::tls::Tls;
use throng_testkit::{Damaging, hold_up, read_head};

use crate::support::served::{start, stop};

/// The files of a server's certificate, removed at the end.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let dir = format!("throng-client-tls-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        std::fs::create_dir_all(&dir).unwrap();
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        std::fs::write(dir.join("it.pem"), made.cert.pem()).unwrap();
        std::fs::write(dir.join("it.key"), made.signing_key.serialize_pem()).unwrap();
        Self(dir)
    }

    fn chain(&self) -> PathBuf {
        self.0.join("it.pem")
    }

    fn serve(&self) -> (SocketAddr, Running) {
        self.serve_with(|tls| tls)
    }

    fn serve_with(&self, change: impl FnOnce(Tls) -> Tls) -> (SocketAddr, Running) {
        let echo = Ws::new().on_message(|ws, (), message| ws.send(message));
        let tls = change(Tls::from_files(self.chain(), self.0.join("it.key")));
        start(Server::new(App::new().ws("/", echo)).tls(tls))
    }

    /// Starts a server that accepts a client, and ends its TLS session so after its first message.
    fn fail(&self, fault: Fault) -> SocketAddr {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let key = PrivateKeyDer::from_pem_file(self.0.join("it.key")).unwrap();
        let config = ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![CertificateDer::from_pem_file(self.chain()).unwrap()], key)
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
            // Until the client has left.
            let _ = stream.sock.inner.read_to_end(&mut Vec::new());
        });
        address
    }
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A fatal alert, in answer to a message that was damaged on its way.
    Alert,
    /// A record that cannot be opened.
    BadRecord,
    /// An end of the stream without close_notify.
    Truncation,
}

impl Fault {
    const ALL: [Self; 3] = [Self::Alert, Self::BadRecord, Self::Truncation];

    /// Asserts that the error of a client says what has ended its session.
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

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn to(address: SocketAddr) -> ClientBuilder {
    Client::builder(&format!("wss://{address}/"))
}

#[test]
fn a_trusted_server_gets_messages() {
    let files = Files::new("trusted");
    let (address, running) = files.serve();
    for builder in
        [to(address).trust_file(files.chain()).server_name("localhost"), to(address).trust_anyone()]
    {
        let mut client = builder.connect().unwrap();
        let sent = throng_testkit::noise(100_000, 1);
        client.send(&sent).unwrap();
        assert_eq!(client.recv().unwrap(), Some(Message::Binary(&sent)));
        assert_eq!(client.close(1000, "").unwrap().code, 1000);
    }
    stop(running);
}

#[test]
fn the_time_limit_holds_for_a_handshake_that_comes_byte_by_byte() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        // A record of 256 bytes, each of which comes in time.
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
fn a_server_that_is_not_trusted_or_has_another_name_gets_nothing() {
    let files = Files::new("untrusted");
    let (address, running) = files.serve();
    let trusting = to(address).trust_file(files.chain());
    for builder in [trusting.clone(), trusting.server_name("elsewhere")] {
        let error = builder.connect().unwrap_err();
        assert!(matches!(error, ClientError::Tls(_)), "{error}");
        assert_eq!((error.blame(), error.is_temporary()), (Blame::Peer, false), "{error}");
    }
    let missing = to(address).trust_file(files.0.join("nothing.pem")).connect().unwrap_err();
    assert_eq!(missing.blame(), Blame::Configuration, "{missing}");
    assert!(missing.to_string().contains("nothing.pem"), "{missing}");
    stop(running);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn the_asynchronous_client_has_tls_too() {
    let files = Files::new("asynchronous");
    let (address, running) = files.serve();
    let trusting = to(address).trust_file(files.chain());
    let mut client = trusting.clone().server_name("localhost").connect_async().await.unwrap();
    let sent = throng_testkit::noise(100_000, 1);
    client.send(&sent).await.unwrap();
    assert_eq!(client.recv().await.unwrap(), Some(Message::Binary(&sent)));
    assert_eq!(client.close(1000, "").await.unwrap().code, 1000);
    assert!(matches!(trusting.connect_async().await, Err(ClientError::Tls(_))));
    stop(running);
}

#[test]
fn a_session_that_tls_ends_is_lost_for_the_reason() {
    let files = Files::new("ended");
    for fault in Fault::ALL {
        let mut client = to(files.fail(fault)).trust_anyone().connect().unwrap();
        client.send("hello").unwrap();
        fault.assert_named_by(&client.recv().unwrap_err());
    }
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_session_of_the_asynchronous_client_that_tls_ends_is_lost_for_the_reason() {
    let files = Files::new("ended-asynchronous");
    for fault in Fault::ALL {
        let mut client = to(files.fail(fault)).trust_anyone().connect_async().await.unwrap();
        client.send("hello").await.unwrap();
        fault.assert_named_by(&client.recv().await.unwrap_err());
    }
}

/// In TLS 1.3 it comes after the client's handshake, instead of the response.
#[test]
fn a_certificate_that_the_server_wants_is_a_failed_handshake_that_is_not_tried_again() {
    let files = Files::new("wanted");
    let (address, running) = files.serve_with(|tls| tls.client_auth(files.chain(), true));
    assert_wanted(&to(address).trust_anyone().connect().unwrap_err());
    stop(running);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_certificate_that_the_server_wants_is_no_lost_connection_of_the_asynchronous_client() {
    let files = Files::new("wanted-asynchronous");
    let (address, running) = files.serve_with(|tls| tls.client_auth(files.chain(), true));
    assert_wanted(&to(address).trust_anyone().connect_async().await.unwrap_err());
    stop(running);
}

fn assert_wanted(error: &ClientError) {
    assert!(matches!(error, ClientError::Tls(_)), "{error}");
    assert_eq!((error.blame(), error.is_temporary()), (Blame::Peer, false), "{error}");
    assert!(error.to_string().contains("received fatal alert: CertificateRequired"), "{error}");
}
