//! A server with TLS: WebSocket and HTTP as without it, for clients of several libraries.

mod handshakes;
mod http;
mod moved;
mod programs;
mod sessions;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use throng::prelude::*;
use throng::server::{IoBackend, Shards};
use throng::tls::Tls;
use throng_testkit::TempFolder;

use crate::support::{BACKENDS, Client, dial};

/// The files of a server's certificate.
struct Files {
    dir: TempFolder,
    chain: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(name: &str) -> Self {
        let dir = TempFolder::new(&format!("server-tls-{name}"));
        let files = Self { chain: dir.join("it.pem"), key: dir.join("it.key"), dir };
        files.renew();
        files
    }

    /// Writes a new certificate and its key.
    fn renew(&self) {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        std::fs::write(&self.chain, made.cert.pem()).unwrap();
        std::fs::write(&self.key, made.signing_key.serialize_pem()).unwrap();
    }

    fn tls(&self) -> Tls {
        Tls::from_files(&self.chain, &self.key)
    }

    /// A client's configuration with a certificate of this name for TLS 1.2, and the file of the
    /// authority that has issued it.
    fn with_certificate(&self, name: &str) -> (PathBuf, Arc<ClientConfig>) {
        let authority = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let authorities = self.dir.join("clients.pem");
        std::fs::write(&authorities, authority.cert.pem()).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(authority.signing_key.serialize_der());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.chain).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![authority.cert.der().clone()], key.unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        (authorities, Arc::new(config))
    }

    /// A client's configuration that trusts the current certificate.
    fn trust(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(&self.chain).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Arc::new(config)
    }
}

type Stream = StreamOwned<ClientConnection, TcpStream>;

fn secure(address: SocketAddr, config: &Arc<ClientConfig>) -> Stream {
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::clone(config), name).unwrap();
    StreamOwned::new(client, dial(address))
}

fn connect(address: SocketAddr, path: &str, config: &Arc<ClientConfig>) -> Client<Stream> {
    Client::upgrade(secure(address, config), path, &[], &[]).unwrap()
}

fn app() -> App {
    let channel = Ws::new()
        .on_open(|ws, ()| {
            ws.subscribe("all");
        })
        .on_message(|ws, (), message| {
            ws.publish_to_others("all", Frame::from(message));
        });
    App::new()
        .ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message)))
        .ws("/all", channel)
        .get("/hello", |_| Response::text("hello over TLS\n"))
        .get("/large", |_| Response::text("0123456789".repeat(200_000)))
}

fn start(files: &Files, io: IoBackend) -> Running {
    Server::new(app())
        .shards(Shards::new().io(io))
        .tls(files.tls())
        .bind("127.0.0.1:0")
        .unwrap()
        .start()
        .unwrap()
}

fn end(running: Running) {
    running.shutdown(DrainPlan::default()).wait().unwrap();
}

fn backends() -> Vec<IoBackend> {
    BACKENDS.to_vec()
}

/// Sends one request without TLS; returns the answer, to the end of the stream.
fn plain(address: SocketAddr, more: &str) -> String {
    let mut socket = dial(address);
    let request = format!("GET /hello?a=1 HTTP/1.1\r\nHost: localhost:7\r\n{more}\r\n");
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// Returns the answer to one request over TLS, which is the last one of its connection.
fn ask(mut stream: impl Read + Write, host: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
