//! Clients with TLS against this server.

use std::net::SocketAddr;
use std::path::PathBuf;

use throng::client::{Client, ClientBuilder, ClientError};
use throng::prelude::*;
use throng::server::Blame;
use throng::tls::Tls;
use throng_testkit::TempFolder;

use crate::support::served::{start, stop};

/// The files of a server's certificate.
struct Files(TempFolder);

impl Files {
    fn new(name: &str) -> Self {
        let dir = TempFolder::new(&format!("client-tls-{name}"));
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

/// In TLS 1.3 the refusal comes after the client's handshake, instead of the response.
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
