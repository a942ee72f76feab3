//! TLS of clients and to backends: a running balancer between rustls peers.

mod backends;
mod passthrough;
mod rules;
mod sites;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
};
use throng_balance::{Balancer, Config, Error};
use throng_testkit::{TempFolder, eventually, poll};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A self-signed certificate with its key.
struct Identity {
    certificate: rcgen::Certificate,
    key: rcgen::KeyPair,
}

impl Identity {
    fn new(names: &[&str]) -> Self {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        Self { certificate: made.cert, key: made.signing_key }
    }

    fn write(&self, dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let (chain, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        std::fs::write(&chain, self.certificate.pem()).unwrap();
        std::fs::write(&key, self.key.serialize_pem()).unwrap();
        (chain, key)
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).unwrap()
    }

    fn server_config(&self) -> Arc<ServerConfig> {
        let key = self.private_key();
        let chain = vec![self.certificate.der().clone()];
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let config = ServerConfig::builder_with_provider(provider.into())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        Arc::new(config)
    }
}

struct Running(Balancer);

impl Running {
    fn start(text: &str, folder: &TempFolder) -> Self {
        let file = folder.join("balance.toml").display().to_string();
        Self(Balancer::start(Config::parse(text, &file).unwrap()).unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let ended = self.0.shut_down(Duration::ZERO, Duration::ZERO);
        if !thread::panicking() {
            ended.unwrap();
        }
    }
}

type TlsClient = StreamOwned<ClientConnection, TcpStream>;

fn dial(address: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// The configuration of clients that trust one certificate.
fn trusting(trusted: &Identity) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.certificate.der().clone()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.into()
}

/// A client that trusts one certificate.
fn secured(address: SocketAddr, trusted: &Identity, name: &'static str) -> TlsClient {
    let name = ServerName::try_from(name).unwrap();
    StreamOwned::new(ClientConnection::new(trusting(trusted), name).unwrap(), dial(address))
}

fn head(stream: &mut impl Read) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            Ok(_) => panic!("the stream ended: {}", String::from_utf8_lossy(&head)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => panic!("{error}: {}", String::from_utf8_lossy(&head)),
        }
    }
    String::from_utf8(head).unwrap()
}

fn get(stream: &mut (impl Read + Write)) -> String {
    stream.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    // The balancer ends the connection with close_notify.
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// A backend that serves each connection with `serve`, and a receiver of what `serve` reports.
fn backend(
    mut serve: impl FnMut(TcpStream) -> String + Send + 'static,
) -> (SocketAddr, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (said, heard) = channel();
    thread::spawn(move || {
        for socket in listener.incoming() {
            if said.send(serve(socket.unwrap())).is_err() {
                return;
            }
        }
    });
    (address, heard)
}

const UPGRADE: &[u8] = b"GET /chat HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\n\
                         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

fn serve_head(stream: &mut (impl Read + Write)) -> String {
    let head = head(stream);
    stream.write_all(ANSWER).unwrap();
    head
}

#[test]
fn clients_with_tls_are_https_and_a_plain_port_stays_plain() {
    let (folder, own) = (TempFolder::new("front"), Identity::new(&["balancer.example"]));
    own.write(&folder, "own");
    let (backend, heads) = backend(|mut socket| serve_head(&mut socket));
    let running = Running::start(
        &format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             [tls]\nlisten = \"127.0.0.1:0\"\ncert = \"own.pem\"\nkey = \"own.key\"\n"
        ),
        &folder,
    );
    let &[plain, tls] = running.0.addresses() else { panic!("two addresses") };
    assert_eq!((running.0.has_tls(0), running.0.has_tls(1)), (false, true));
    let answer = get(&mut secured(tls, &own, "balancer.example"));
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok"), "{answer}");
    let head = heads.recv().unwrap();
    assert!(head.contains("X-Forwarded-Proto: https\r\n"), "{head}");
    let answer = get(&mut dial(plain));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let head = heads.recv().unwrap();
    assert!(head.contains("X-Forwarded-Proto: http\r\n"), "{head}");
}

#[test]
fn a_client_with_tls_beyond_the_limit_learns_why() {
    let (folder, own) = (TempFolder::new("full"), Identity::new(&["balancer.example"]));
    own.write(&folder, "own");
    // It accepts connections but does not answer.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let text = format!(
        "listen = \"127.0.0.1:0\"\nbackends = [\"{}\"]\nmax_connections = 1\nshards = 1\n\
         [tls]\ncert = \"own.pem\"\nkey = \"own.key\"\nhsts = \"1y\"\n",
        silent.local_addr().unwrap()
    );
    let running = Running::start(&text, &folder);
    let address = running.0.addresses()[0];
    let mut first = secured(address, &own, "balancer.example");
    first.write_all(UPGRADE).unwrap();
    let _socket = silent.accept().unwrap();
    let answer = get(&mut secured(address, &own, "balancer.example"));
    assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
    assert!(answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");
    assert!(answer.contains("\r\nStrict-Transport-Security: "), "{answer}");
}

#[test]
fn http_at_an_address_with_tls_is_refused_redirected_or_served() {
    let (folder, own) = (TempFolder::new("plain"), Identity::new(&["balancer.example"]));
    own.write(&folder, "own");
    let (backend, heads) = backend(|mut socket| serve_head(&mut socket));
    let parse = |listen: &str, plain: &str| {
        let text = format!(
            "listen = \"{listen}\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             [tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n{plain}\n"
        );
        Config::parse(&text, &folder.join("balance.toml").display().to_string()).unwrap()
    };
    let running = Running(Balancer::start(parse("127.0.0.1:0", "")).unwrap());
    let address = running.0.addresses()[0];
    let ask = |more: &str| {
        let mut socket = dial(address);
        let request = format!("GET /hello?a=1 HTTP/1.1\r\nHost: localhost:7\r\n{more}\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    };
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    // The setting may change while the balancer runs.
    for (plain, status, upgraded) in [
        ("", "400", "400"),
        ("plain = \"redirect\"", "308", "426"),
        ("plain = \"refuse\"", "400", "400"),
        ("plain = \"serve\"", "200", ""),
    ] {
        running.0.apply(parse(&address.to_string(), plain)).unwrap();
        // The event loop may take the new setting only after it has taken the client.
        let mut answers = (0..1000).map(|_| ask("Connection: close\r\n"));
        let answer = answers.find(|it| it.starts_with(&format!("HTTP/1.1 {status} "))).unwrap();
        let is_redirected = answer.contains("Location: https://localhost:7/hello?a=1\r\n");
        assert_eq!(is_redirected, status == "308", "{answer}");
        if !upgraded.is_empty() {
            let answer = ask(upgrade);
            assert!(answer.starts_with(&format!("HTTP/1.1 {upgraded} ")), "{plain}: {answer}");
        }
        let mut client = secured(address, &own, "balancer.example");
        assert!(get(&mut client).starts_with("HTTP/1.1 200 "));
    }
    for is_https in [true, true, true, false, true] {
        let head = heads.recv().unwrap();
        assert_eq!(head.contains("X-Forwarded-Proto: https\r\n"), is_https, "{head}");
    }
}

/// Starts a backend with this certificate. It reports the heads that it received, or why a
/// handshake failed.
fn backend_with(identity: Identity) -> (SocketAddr, Receiver<String>) {
    backend(move |socket| {
        let connection = ServerConnection::new(identity.server_config()).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        match stream.conn.complete_io(&mut stream.sock) {
            Ok(_) => serve_head(&mut stream),
            Err(error) => error.to_string(),
        }
    })
}

#[test]
fn backends_with_tls_are_verified_and_the_client_learns_why_one_is_not_trusted() {
    let folder = TempFolder::new("back");
    let identity = Identity::new(&["backend.internal"]);
    identity.write(&folder, "backend");
    Identity::new(&["backend.internal"]).write(&folder, "other");
    let (backend, heads) = backend_with(identity);
    let answer_with = |backend: &str, table: &str| {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nbackends = [{backend}]\nkeep_alive = 0\nshards = 1\n\
             [backend_tls]\n{table}\n"
        );
        let running = Running::start(&text, &folder);
        get(&mut dial(running.0.addresses()[0]))
    };
    let plain = format!("\"{backend}\"");
    let named = format!("{{ address = {plain}, tls_name = \"backend.internal\" }}");
    let answer = answer_with(&plain, "ca = \"backend.pem\"\nname = \"backend.internal\"");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(heads.recv().unwrap().contains("X-Forwarded-Proto: http\r\n"));
    // The name set for one backend takes precedence over the name set for all.
    for table in ["ca = \"backend.pem\"", "ca = \"backend.pem\"\nname = \"other.internal\""] {
        let answer = answer_with(&named, table);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        heads.recv().unwrap();
    }
    let answer = answer_with(&plain, "verify = false");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    heads.recv().unwrap();
    for (table, why) in [
        ("ca = \"backend.pem\"", "its certificate is for another name"),
        ("ca = \"other.pem\"\nname = \"backend.internal\"", "leads to no trusted authority"),
    ] {
        let answer = answer_with(&plain, table);
        assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(why), "{answer}");
        assert!(heads.recv().unwrap().contains("alert"), "the backend learns of it");
    }
}

#[test]
fn a_tunnel_has_tls_on_both_sides_with_the_client_named_before_it() {
    let folder = TempFolder::new("tunnel");
    let own = Identity::new(&["balancer.example"]);
    own.write(&folder, "own");
    let identity = Identity::new(&["127.0.0.1"]);
    identity.write(&folder, "backend");
    let (backend, said) = backend(move |mut socket| {
        // A PROXY v2 header of an IPv4 client.
        let mut proxy = [0; 28];
        socket.read_exact(&mut proxy).unwrap();
        let connection = ServerConnection::new(identity.server_config()).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        let asked = head(&mut stream);
        let key = asked.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let key = throng_proto::ws::handshake::accept_key(key);
        let accept = std::str::from_utf8(&key).unwrap();
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        stream.write_all(answer.as_bytes()).unwrap();
        let mut frame = [0; 10];
        stream.read_exact(&mut frame).unwrap();
        stream.write_all(b"\x82\x04echo").unwrap();
        let _ = stream.read(&mut frame);
        format!("{:?}", &proxy[..12] == b"\r\n\r\n\0\r\nQUIT\n")
    });
    let running = Running::start(
        &format!(
            "listen = \"127.0.0.1:0\"\n\
             backends = [{{ address = \"{backend}\", send_proxy = true }}]\nshards = 1\n\
             [tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n\
             [backend_tls]\nca = \"backend.pem\"\n"
        ),
        &folder,
    );
    let mut client = secured(running.0.addresses()[0], &own, "balancer.example");
    client.write_all(UPGRADE).unwrap();
    let answer = head(&mut client);
    assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    // "echo", masked with zeros.
    client.write_all(b"\x82\x84\0\0\0\0echo").unwrap();
    let mut frame = [0; 6];
    client.read_exact(&mut frame).unwrap();
    assert_eq!(&frame, b"\x82\x04echo");
    drop(client);
    assert_eq!(said.recv_timeout(TIMEOUT).unwrap(), "true");
}

#[test]
fn checks_use_tls_and_report_why_a_backend_is_not_trusted() {
    let folder = TempFolder::new("checks");
    let identity = Identity::new(&["127.0.0.1"]);
    identity.write(&folder, "backend");
    Identity::new(&["127.0.0.1"]).write(&folder, "other");
    let (backend, said) = backend_with(identity);
    for (ca, is_up) in [("backend.pem", true), ("other.pem", false)] {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nshards = 1\n\
             [backend_tls]\nca = \"{ca}\"\n\
             [health.check]\nkind = \"http\"\ninterval = \"60s\"\nfall = 1\ntimeout = \"60s\"\n"
        );
        let running = Running::start(&text, &folder);
        let heard = said.recv_timeout(TIMEOUT).unwrap();
        assert_eq!(heard.starts_with("GET / HTTP/1.1\r\n"), is_up, "{heard}");
        let failure = || {
            let failure = running.0.status().backends[0].last_failure.clone();
            failure.map(|failure| failure.text)
        };
        if is_up {
            assert_eq!(failure(), None);
            continue;
        }
        let why = poll("the check fails", failure);
        assert!(why.contains("leads to no trusted authority"), "{why}");
    }
}

/// The certificate that the server presents for this name.
fn shown(address: SocketAddr, trusted: &Identity, name: &'static str) -> CertificateDer<'static> {
    let mut client = secured(address, trusted, name);
    while client.conn.is_handshaking() {
        client.conn.complete_io(&mut client.sock).unwrap();
    }
    client.conn.peer_certificates().unwrap()[0].clone().into_owned()
}

#[test]
fn renewed_certificates_serve_new_clients_and_wrong_ones_change_nothing() {
    let folder = TempFolder::new("reload");
    let (first, other) = (Identity::new(&["a.example"]), Identity::new(&["b.example"]));
    let (first_chain, _) = first.write(&folder, "a");
    other.write(&folder, "b");
    let (backend, _heads) = backend(|mut socket| serve_head(&mut socket));
    let text = |more: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nshards = 1\n\
             [tls]\ncert = [\"a.pem\"{more}]\nkey = [\"a.key\"{}]\n",
            more.replace("pem", "key")
        )
    };
    let file = folder.join("balance.toml").display().to_string();
    let running = Running::start(&text(""), &folder);
    let address = running.0.addresses()[0];
    assert_eq!(&shown(address, &first, "a.example"), first.certificate.der());
    let mut old = secured(address, &first, "a.example");
    while old.conn.is_handshaking() {
        old.conn.complete_io(&mut old.sock).unwrap();
    }

    // Add a second certificate, chosen by name.
    let changes = running.0.apply(Config::parse(&text(", \"b.pem\""), &file).unwrap()).unwrap();
    assert!(changes.settings && changes.needs_restart.is_empty(), "{changes:?}");
    assert_eq!(&shown(address, &other, "b.example"), other.certificate.der());
    assert_eq!(&shown(address, &first, "a.example"), first.certificate.der());

    // This file contains no certificate.
    std::fs::write(&first_chain, "nothing").unwrap();
    assert!(!running.0.reload_certificates_if_changed().unwrap(), "it may be half of a renewal");
    let error = running.0.reload_certificates_if_changed().unwrap_err();
    assert!(matches!(&error, Error::Tls(why) if why.contains("a.pem")), "{error}");
    let error = running.0.apply(Config::parse(&text(""), &file).unwrap()).unwrap_err();
    assert!(matches!(&error, Error::Tls(why) if why.contains("a.pem")), "{error}");
    assert_eq!(&shown(address, &other, "b.example"), other.certificate.der());

    let renewed = Identity::new(&["a.example"]);
    renewed.write(&folder, "a");
    running.0.apply(Config::parse(&text(", \"b.pem\""), &file).unwrap()).unwrap();
    assert_eq!(&shown(address, &renewed, "a.example"), renewed.certificate.der());
    let answer = get(&mut old);
    assert!(answer.starts_with("HTTP/1.1 200 "), "an open connection: {answer}");
}

#[test]
fn mistakes_of_tls_are_reported_before_anything_runs() {
    let folder = TempFolder::new("mistakes");
    let file = folder.join("balance.toml").display().to_string();
    let parse = |text: &str| Config::parse(&format!("backends = [\"127.0.0.1:1\"]\n{text}"), &file);
    for (text, words) in [
        ("[tls]\ncert = \"a.pem\"", &["tls", "key 0", "needs its private key"][..]),
        ("[tls]\ncert = \"a\"\nkey = \"b\"\nmin_version = \"1.1\"", &["min_version", "\"1.2\""]),
        (
            "[tls]\ncert = \"a\"\nkey = \"b\"\nclient_crl = \"c\"",
            &["client_crl", "it needs tls.client_ca"],
        ),
        (
            "[tls]\ncert = \"a\"\nkey = \"b\"\nclient_auth = \"optional\"",
            &["client_auth", "it needs tls.client_ca"],
        ),
        (
            "[tls]\ncert = \"a\"\nkey = \"b\"\nhsts_subdomains = true",
            &["hsts_subdomains", "it needs tls.hsts"],
        ),
        (
            "[tls]\ncert = \"a\"\nkey = \"b\"\nhsts = 31536000",
            &["hsts", "has no unit", "31536000s"],
        ),
        ("[backend_tls]\nca = \"a\"\nverify = false", &["backend_tls", "drop ca"]),
        ("[backend_tls]\ncert = \"a\"", &["backend_tls", "write cert and key"]),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let nameless = "backends = [{ address = \"127.0.0.1:1\", tls_name = \"a b\" }]";
    let error = Config::parse(nameless, &file).unwrap_err().to_string();
    assert!(error.contains("tls_name is \"a b\": it is neither a host name"), "{error}");
    for (text, words) in [
        (
            "[tls]\ncert = \"missing.pem\"\nkey = \"a.key\"",
            ["tls: ", "missing.pem", "check the path"],
        ),
        ("[backend_tls]\nca = \"missing.pem\"", ["backend_tls: ", "missing.pem", "check the path"]),
    ] {
        let error = Balancer::start(parse(text).unwrap()).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

/// A certificate of an authority, for a client, with an extension of `more` bytes.
fn client_certificate(
    authority: &Identity,
    more: usize,
) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["client.example".to_owned()]).unwrap();
    if more > 0 {
        let id = [1, 3, 6, 1, 4, 1, 55555, 1];
        let extension = rcgen::CustomExtension::from_oid_content(&id, vec![7; more]);
        params.custom_extensions.push(extension);
    }
    let of_authority = rcgen::CertificateParams::new(vec!["authority.example".to_owned()]).unwrap();
    let issuer = rcgen::Issuer::from_params(&of_authority, &authority.key);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    (certificate.der().clone(), key)
}

/// A certificate authority for clients.
fn authority() -> Identity {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["authority.example".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    Identity { certificate: params.self_signed(&key).unwrap(), key }
}

/// A client of `balancer.example` that presents a certificate, or none.
fn presenting(
    address: SocketAddr,
    trusted: &Identity,
    certificate: Option<(CertificateDer<'static>, PrivateKeyDer<'static>)>,
) -> TlsClient {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.certificate.der().clone()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let builder = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match certificate {
        Some((certificate, key)) => builder.with_client_auth_cert(vec![certificate], key).unwrap(),
        None => builder.with_no_client_auth(),
    };
    let name = ServerName::try_from("balancer.example").unwrap();
    StreamOwned::new(ClientConnection::new(config.into(), name).unwrap(), dial(address))
}

#[test]
fn a_certificate_too_long_for_a_header_is_refused() {
    let folder = TempFolder::new("long-certificate");
    let (own, authority) = (Identity::new(&["balancer.example"]), authority());
    own.write(&folder, "own");
    authority.write(&folder, "authority");
    let (backend, heads) = backend(|mut socket| serve_head(&mut socket));
    let running = Running::start(
        &format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             [tls]\ncert = \"own.pem\"\nkey = \"own.key\"\nclient_ca = \"authority.pem\"\n"
        ),
        &folder,
    );
    for (more, status) in [(3_000, 200), (5_000, 431), (50_000, 431)] {
        let certificate = Some(client_certificate(&authority, more));
        let mut client = presenting(running.0.addresses()[0], &own, certificate);
        client
            .write_all(b"GET / HTTP/1.1\r\nHost: balancer.example\r\nConnection: close\r\n\r\n")
            .unwrap();
        let head = head(&mut client);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{more}: {head}");
        if status == 200 {
            assert!(heads.recv().unwrap().contains("Client-Cert: :"));
        }
    }
}

#[test]
fn handshakes_that_take_too_much_memory_are_ended() {
    let (folder, own) = (TempFolder::new("memory"), Identity::new(&["balancer.example"]));
    own.write(&folder, "own");
    let (backend, _heads) = backend(|mut socket| serve_head(&mut socket));
    let running = Running::start(
        &format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             max_tls_memory = \"256KiB\"\n[tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n"
        ),
        &folder,
    );
    let address = running.0.addresses()[0];
    let hello = [vec![22, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb], vec![0; 15_000]].concat();
    let mut unfinished: Vec<TcpStream> = (0..100).map(|_| dial(address)).collect();
    for socket in &mut unfinished {
        socket.write_all(&hello).unwrap();
        socket.set_nonblocking(true).unwrap();
    }
    let is_open = |socket: &mut TcpStream| {
        let read = socket.read(&mut [0]);
        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    eventually("most of them are closed", || {
        unfinished.retain_mut(is_open);
        // 256 KiB, and the bytes that may arrive between two measurements.
        unfinished.len() <= 40
    });
    assert!(!unfinished.is_empty(), "no more than necessary");
    let answer = get(&mut secured(address, &own, "balancer.example"));
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn certificates_of_clients_are_verified_and_named_to_backends() {
    let folder = TempFolder::new("clients");
    let own = Identity::new(&["balancer.example"]);
    own.write(&folder, "own");
    let authority = authority();
    authority.write(&folder, "authority");
    let (backend, heads) = backend(|mut socket| serve_head(&mut socket));
    let connect = |address, certificate| presenting(address, &own, certificate);
    let forged = "GET / HTTP/1.1\r\nHost: balancer.example\r\nClient-Cert: :Zm9yZ2Vk:\r\n\
                  Connection: close\r\n\r\n";
    for (mode, without_is_served) in [("required", false), ("optional", true)] {
        let running = Running::start(
            &format!(
                "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\n\
                 shards = 1\n[tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n\
                 client_ca = \"authority.pem\"\nclient_auth = \"{mode}\"\n"
            ),
            &folder,
        );
        let address = running.0.addresses()[0];
        let (certificate, key) = client_certificate(&authority, 0);
        let mut client = connect(address, Some((certificate.clone(), key)));
        client.write_all(forged.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let head = heads.recv().unwrap();
        let lines: Vec<_> = head.lines().filter(|line| line.starts_with("Client-Cert")).collect();
        use base64::Engine;
        let text = base64::engine::general_purpose::STANDARD.encode(&certificate);
        assert_eq!(lines, [format!("Client-Cert: :{text}:")], "{mode}");

        // Issued by an authority that is not trusted.
        let stranger = Identity::new(&["authority.example"]);
        let mut client = connect(address, Some(client_certificate(&stranger, 0)));
        let outcome = client.write_all(forged.as_bytes());
        let outcome = outcome.and_then(|()| client.read_to_string(&mut String::new()));
        assert!(outcome.unwrap_err().to_string().contains("received fatal alert"), "{mode}");

        let mut client = connect(address, None);
        let outcome = client.write_all(forged.as_bytes());
        let outcome = outcome.and_then(|()| client.read_to_string(&mut String::new()));
        assert_eq!(outcome.is_ok(), without_is_served, "{mode}: {outcome:?}");
        if without_is_served {
            assert!(!heads.recv().unwrap().contains("Client-Cert"));
        }
    }
}

#[test]
fn a_proxy_header_comes_before_tls() {
    let (folder, own) = (TempFolder::new("proxy"), Identity::new(&["balancer.example"]));
    own.write(&folder, "own");
    let (backend, heads) = backend(|mut socket| serve_head(&mut socket));
    let running = Running::start(
        &format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             accept_proxy = true\ntrusted_proxies = [\"127.0.0.1\"]\n\
             [tls]\nlisten = \"127.0.0.1:0\"\ncert = \"own.pem\"\nkey = \"own.key\"\n"
        ),
        &folder,
    );
    // TCP over IPv4, from 192.0.2.7:4660.
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    header.extend([192, 0, 2, 7, 127, 0, 0, 1, 0x12, 0x34, 1, 187]);
    let &[plain, tls] = running.0.addresses() else { panic!("two addresses") };
    // In one piece with the ClientHello, in pieces, and before the ClientHello.
    for split in [header.len() + 100, 5, header.len()] {
        let mut client = secured(tls, &own, "balancer.example");
        let mut all = header.clone();
        client.conn.write_tls(&mut all).unwrap();
        let (first, second) = all.split_at(split);
        client.sock.set_nodelay(true).unwrap();
        client.sock.write_all(first).unwrap();
        client.sock.write_all(second).unwrap();
        let answer = get(&mut client);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        let head = heads.recv().unwrap();
        assert!(head.contains("X-Forwarded-Proto: https\r\n"), "{head}");
        assert!(head.contains("192.0.2.7"), "{head}");
    }
    let mut client = dial(plain);
    client.write_all(&header).unwrap();
    assert!(get(&mut client).starts_with("HTTP/1.1 200 "));
    assert!(heads.recv().unwrap().contains("X-Forwarded-Proto: http\r\n"));
    // TLS without the header ends the connection.
    let mut client = secured(tls, &own, "balancer.example");
    let outcome = client.conn.complete_io(&mut client.sock);
    assert!(outcome.is_err(), "{outcome:?}");
}
