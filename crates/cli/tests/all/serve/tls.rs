//! HTTPS.

use std::fs::File;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use throng_testkit::poll;

use super::{Served, dial, refused, throng};

/// Writes a new certificate and its key.
pub(super) fn write_certificate(chain: &Path, key: &Path) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(chain, made.cert.pem()).unwrap();
    std::fs::write(key, made.signing_key.serialize_pem()).unwrap();
}

/// The whole answer to a request over TLS, if the server has the certificate in that file.
pub(super) fn get_securely(address: SocketAddr, chain: &Path) -> Result<String, String> {
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls::pki_types::CertificateDer::from_pem_file(chain).unwrap()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "localhost".try_into().unwrap();
    let client = rustls::ClientConnection::new(config.into(), name).unwrap();
    let mut stream = rustls::StreamOwned::new(client, dial(address));
    let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    Ok(answer)
}

#[test]
fn certificates_serve_https_and_are_renewed_without_a_restart() {
    let dir = throng_testkit::TempFolder::new("cli-tls");
    let (chain, key, old) = (dir.join("it.pem"), dir.join("it.key"), dir.join("old.pem"));
    write_certificate(&chain, &key);
    std::fs::copy(&chain, &old).unwrap();
    let [chain_name, key_name] = [&chain, &key].map(|file| file.to_str().unwrap());
    let mut served = Served::start(&["--tls-cert", chain_name, "--tls-key", key_name]);
    // Each check by a client that does not trust the certificate adds a line, and a full pipe loses
    // later lines.
    let mut log = served.process.0.stderr.take().unwrap();
    let log = std::thread::spawn(move || {
        let mut text = String::new();
        log.read_to_string(&mut text).unwrap();
        text
    });
    assert!(get_securely(served.address, &chain).unwrap().contains("HTTP/1.1 200 "));

    write_certificate(&chain, &key);
    let later = std::time::SystemTime::now() + Duration::from_secs(60);
    for file in [&chain, &key] {
        let file = File::options().write(true).open(file).unwrap();
        file.set_modified(later).unwrap();
    }
    poll("the new certificate", || get_securely(served.address, &chain).ok());
    assert!(get_securely(served.address, &old).is_err(), "the old one is gone");

    served.process.signal("TERM");
    let code = served.process.exit().code();
    let log = log.join().unwrap();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains(r#""event":"certificate.reloaded""#), "{log}");

    std::fs::write(&key, "no key").unwrap();

    let mut command = throng(&["serve", "--listen", "127.0.0.1:0", "--tls-cert", chain_name]);
    let (code, errors) = refused(&command.output().unwrap());
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains("tls.key") && errors.contains("needs its private key"), "{errors}");
    let (code, errors) = refused(&command.args(["--tls-key", key_name]).output().unwrap());
    assert_eq!(code, Some(2), "{errors}");
    assert!(errors.contains(key_name) && errors.contains("no private key"), "{errors}");
}

/// The files of a process in `/proc` belong to root if its memory is hidden, and else to its user.
/// A test that runs as root gives it another user.
#[cfg(target_os = "linux")]
#[test]
fn a_process_with_keys_hides_its_memory() {
    use std::os::unix::fs::{MetadataExt, chown};
    use std::process::Command;

    const OTHER: u32 = 65534;
    let dir = throng_testkit::TempFolder::new("cli-tls");
    let (chain, key) = (dir.join("it.pem"), dir.join("it.key"));
    write_certificate(&chain, &key);
    let is_root = std::fs::metadata("/proc/self/environ").unwrap().uid() == 0;
    let command = || {
        let program = crate::support::throng();
        if !is_root {
            return program;
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        command.arg(program.get_program()).args(program.get_args());
        command
    };
    if is_root {
        for file in [&chain, &key] {
            chown(file, Some(OTHER), Some(OTHER)).unwrap();
        }
        if !command().arg("--version").output().is_ok_and(|it| it.status.success()) {
            eprintln!("skipped: another user cannot run this program");
            return;
        }
    }
    let [chain, key] = [&chain, &key].map(|file| file.to_str().unwrap());
    let backend = ["--backend", "127.0.0.1:9"];
    let tls = ["--tls-cert", chain, "--tls-key", key];
    for (name, words, is_hidden) in [
        ("serve", &[][..], false),
        ("serve", &tls, true),
        ("balance", &backend, false),
        ("balance", &[&backend[..], &tls].concat(), true),
    ] {
        let mut command = command();
        command.args([name, "--shards", "1", "--listen", "127.0.0.1:0"]).args(words);
        let served = crate::support::Served::spawn(&mut command);
        let environ = format!("/proc/{}/environ", served.id());
        let owner = std::fs::metadata(environ).unwrap().uid();
        assert_eq!(owner == 0, is_hidden, "{name} {words:?}: {owner}");
    }
}
