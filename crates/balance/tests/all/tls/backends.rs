//! The files of `[backend_tls]`.

use std::sync::Arc;
use std::thread;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use throng_balance::Error;
use throng_testkit::eventually;

use super::{Folder, Identity, Running, backend, backend_with, dial, get, serve_head};

#[test]
fn changed_authorities_of_backends_are_read_again() {
    let folder = Folder::new("backends-changed");
    let identity = Identity::new(&["127.0.0.1"]);
    let (trusted, _) = Identity::new(&["127.0.0.1"]).write(&folder.0, "trusted");
    let text = identity.certificate.pem();
    let (backend, heads) = backend_with(identity);
    // The answers are what counts.
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
    let folder = Folder::new("backends-mistake");
    Identity::new(&["localhost"]).write(&folder.0, "own");
    let (trusted, _) = Identity::new(&["127.0.0.1"]).write(&folder.0, "trusted");
    let running = Running::start(
        "listen = \"127.0.0.1:0\"\nbackends = [\"127.0.0.1:1\"]\nshards = 1\n\
         [tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n[backend_tls]\nca = \"trusted.pem\"\n",
        &folder,
    );
    std::fs::write(&trusted, "nothing").unwrap();
    assert!(!running.0.reload_certificates_if_changed().unwrap(), "it may be half of a change");
    Identity::new(&["localhost"]).write(&folder.0, "own");
    assert!(running.0.reload_certificates_if_changed().unwrap());
    let error = running.0.reload_certificates_if_changed().unwrap_err();
    assert!(matches!(&error, Error::Tls(why) if why.starts_with("backend_tls: ")), "{error}");
}

/// In TLS 1.3 a backend says so after the balancer's handshake is complete.
#[test]
fn a_backend_that_wants_a_certificate_of_the_balancer_is_a_failure_with_this_reason() {
    let folder = Folder::new("backends-certificate");
    let identity = Identity::new(&["127.0.0.1"]);
    identity.write(&folder.0, "backend");
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
