//! The files of `[backend_tls]`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use throng_balance::{Access, AccessDetail, AccessLog, Balancer, Config, Error};
use throng_testkit::{Damaging, TempFolder, eventually};

use super::{Identity, Running, UPGRADE, backend, backend_with, dial, get, head, serve_head};

#[test]
fn changed_authorities_of_backends_are_read_again() {
    let folder = TempFolder::new("backends-changed");
    let identity = Identity::new(&["127.0.0.1"]);
    let (trusted, _) = Identity::new(&["127.0.0.1"]).write(&folder, "trusted");
    let text = identity.certificate.pem();
    let (backend, heads) = backend_with(identity);
    // Only the answers are checked.
    thread::spawn(move || heads.into_iter().for_each(drop));
    let running = Running::start(
        &format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             [backend_tls]\nca = \"trusted.pem\"\n"
        ),
        &folder,
    );
    let status = || get(&mut dial(running.0.addresses()[0]))[..12].to_owned();
    assert_eq!(status(), "HTTP/1.1 502");
    assert!(!running.0.reload_certificates_if_changed().unwrap());

    std::fs::write(&trusted, "nothing").unwrap();
    assert!(!running.0.reload_certificates_if_changed().unwrap(), "it may be half of a change");
    let error = running.0.reload_certificates_if_changed().unwrap_err();
    let is_named = |why: &str| why.contains("backend_tls") && why.contains("trusted.pem");
    assert!(matches!(&error, Error::Tls(why) if is_named(why)), "{error}");

    std::fs::write(&trusted, text).unwrap();
    assert!(running.0.reload_certificates_if_changed().unwrap());
    assert_eq!(status(), "HTTP/1.1 200");
}

#[test]
fn a_renewed_certificate_is_reported_although_the_files_of_backends_have_a_mistake() {
    let folder = TempFolder::new("backends-mistake");
    Identity::new(&["localhost"]).write(&folder, "own");
    let (trusted, _) = Identity::new(&["127.0.0.1"]).write(&folder, "trusted");
    let running = Running::start(
        "listen = \"127.0.0.1:0\"\nbackends = [\"127.0.0.1:1\"]\nshards = 1\n\
         [tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n[backend_tls]\nca = \"trusted.pem\"\n",
        &folder,
    );
    std::fs::write(&trusted, "nothing").unwrap();
    assert!(!running.0.reload_certificates_if_changed().unwrap(), "it may be half of a change");
    Identity::new(&["localhost"]).write(&folder, "own");
    assert!(running.0.reload_certificates_if_changed().unwrap());
    let error = running.0.reload_certificates_if_changed().unwrap_err();
    assert!(matches!(&error, Error::Tls(why) if why.starts_with("backend_tls: ")), "{error}");
}

/// In TLS 1.3 a backend reports this only after the balancer's handshake is complete.
#[test]
fn a_backend_that_wants_a_certificate_of_the_balancer_is_a_failure_with_this_reason() {
    let folder = TempFolder::new("backends-certificate");
    let identity = Identity::new(&["127.0.0.1"]);
    identity.write(&folder, "backend");
    let mut clients = RootCertStore::empty();
    clients.add(super::authority().certificate.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(clients.into(), Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(vec![identity.certificate.der().clone()], identity.private_key())
        .unwrap();
    let config = Arc::new(config);
    let (backend, reports) = backend(move |socket| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = StreamOwned::new(connection, socket);
        match stream.conn.complete_io(&mut stream.sock) {
            Ok(_) => serve_head(&mut stream),
            Err(error) => error.to_string(),
        }
    });
    let running = Running::start(
        &format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             [backend_tls]\nca = \"backend.pem\"\n"
        ),
        &folder,
    );
    let answer = get(&mut dial(running.0.addresses()[0]));
    let why = "it refused with the TLS alert 116 (certificate_required)";
    assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(why), "{answer}");
    assert!(reports.recv().unwrap().contains("no certificates"));
    eventually("the status has the reason", || {
        let failure = running.0.status().backends[0].last_failure.clone();
        failure.is_some_and(|failure| failure.text.contains(why))
    });
}

/// A fault that ends the TLS session of a backend.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// A fatal alert in answer to the next record, which was damaged in transit.
    Alert,
    /// A record that cannot be opened.
    BadRecord,
}

impl Fault {
    fn why(self) -> &'static str {
        match self {
            Self::Alert => "it ended the session with the TLS alert 20 (bad_record_mac)",
            Self::BadRecord => "a record that it sent could not be authenticated",
        }
    }

    /// Ends a session, and waits until the balancer has closed the connection.
    fn end(self, mut stream: StreamOwned<ServerConnection, Damaging<TcpStream>>) {
        match self {
            Self::Alert => {
                stream.sock.damages = true;
                stream.read_exact(&mut [0]).unwrap_err();
            }
            Self::BadRecord => {
                let record = [&[23, 3, 3, 0, 40][..], &[0; 40]].concat();
                stream.sock.write_all(&record).unwrap();
            }
        }
        let mut rest = [0; 4096];
        while stream.sock.inner.read(&mut rest).is_ok_and(|n| n > 0) {}
    }
}

/// A backend that answers each request with `answer` and then ends its session with `fault`.
fn failing(identity: &Identity, answer: &'static str, fault: Fault) -> SocketAddr {
    let config = identity.server_config();
    let (address, said) = backend(move |socket| {
        let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
        let mut stream = StreamOwned::new(connection, Damaging::new(socket));
        head(&mut stream);
        stream.write_all(answer.as_bytes()).unwrap();
        fault.end(stream);
        String::new()
    });
    std::mem::forget(said);
    address
}

/// Collects the reasons in the records.
#[derive(Debug, Default)]
struct Reasons(Mutex<Vec<String>>);

impl AccessLog for Reasons {
    fn detail(&self) -> AccessDetail {
        AccessDetail::All
    }

    fn record(&self, access: &Access<'_>) {
        self.0.lock().unwrap().push(format!("{} {}", access.is_failure, access.reason));
    }
}

fn before(backend: SocketAddr, folder: &TempFolder) -> (Running, Arc<Reasons>) {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nshards = 1\n\
         [backend_tls]\nca = \"backend.pem\"\n"
    );
    let config = Config::parse(&text, &folder.join("it.toml").display().to_string()).unwrap();
    let log = Arc::<Reasons>::default();
    let access: Arc<dyn AccessLog> = log.clone();
    (Running(Balancer::start_with_access_log(config, access).unwrap()), log)
}

/// Waits until the status and the log contain the reason.
fn assert_reported(fault: Fault, running: &Running, log: &Reasons) {
    let reason = format!("the backend's TLS session failed: {}", fault.why());
    eventually("the status has the reason", || {
        let failure = running.0.status().backends[0].last_failure.clone();
        failure.is_some_and(|failure| failure.text == reason)
    });
    eventually("the log has the reason", || {
        log.0.lock().unwrap().iter().any(|entry| *entry == format!("true {reason}"))
    });
}

#[test]
fn a_backend_whose_tls_session_fails_instead_of_a_response_is_a_502_with_the_reason() {
    for fault in [Fault::Alert, Fault::BadRecord] {
        let folder = TempFolder::new("backends-instead");
        let identity = Identity::new(&["127.0.0.1"]);
        identity.write(&folder, "backend");
        let go_on = "HTTP/1.1 100 Continue\r\n\r\n";
        let (running, log) = before(failing(&identity, go_on, fault), &folder);
        let mut client = dial(running.0.addresses()[0]);
        let request = "POST / HTTP/1.1\r\nHost: example.com\r\nContent-Length: 5\r\n\
                       Connection: close\r\n\r\n";
        client.write_all(request.as_bytes()).unwrap();
        assert!(head(&mut client).starts_with("HTTP/1.1 100 "));
        // This record is damaged.
        client.write_all(b"hello").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 502 ") && answer.contains(fault.why()), "{answer}");
        assert_reported(fault, &running, &log);
        assert_eq!(running.0.status().backends[0].totals.failures, 1);
    }
}

#[test]
fn a_backend_whose_tls_session_fails_in_a_response_is_a_failure_with_the_reason() {
    let folder = TempFolder::new("backends-within");
    let identity = Identity::new(&["127.0.0.1"]);
    identity.write(&folder, "backend");
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf";
    let (running, log) = before(failing(&identity, half, Fault::BadRecord), &folder);
    let mut client = dial(running.0.addresses()[0]);
    client.write_all(b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n").unwrap();
    assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
    let mut body = Vec::new();
    // The received part is forwarded, and a reset shows the client that it is incomplete.
    let _ = client.read_to_end(&mut body);
    assert!(b"half".starts_with(&body), "{body:?}");
    assert_reported(Fault::BadRecord, &running, &log);
}

#[test]
fn a_tunnel_that_is_lost_to_the_tls_session_of_its_backend_has_the_reason() {
    for fault in [Fault::Alert, Fault::BadRecord] {
        let folder = TempFolder::new("backends-tunnel");
        let identity = Identity::new(&["127.0.0.1"]);
        identity.write(&folder, "backend");
        let accepted = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                        Connection: Upgrade\r\n\
                        Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        let (running, log) = before(failing(&identity, accepted, fault), &folder);
        let mut client = dial(running.0.addresses()[0]);
        client.write_all(UPGRADE).unwrap();
        assert!(head(&mut client).starts_with("HTTP/1.1 101 "));
        // "echo", masked with zeros, in the record that is damaged.
        client.write_all(b"\x82\x84\0\0\0\0echo").unwrap();
        let mut frame = [0; 4];
        client.read_exact(&mut frame).unwrap();
        assert_eq!((frame[0], &frame[2..]), (0x88, &1012_u16.to_be_bytes()[..]));
        drop(client);
        assert_reported(fault, &running, &log);
        let status = running.0.status();
        assert_eq!((status.backends[0].totals.lost, status.backends[0].state), (1, "up"));
    }
}
