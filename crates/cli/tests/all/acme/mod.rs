//! Certificates that an authority issues: `throng serve` and `throng balance` with pebble, the
//! authority for tests of Let's Encrypt.

#[cfg(target_os = "linux")]
mod disk;
mod pebble;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustls::pki_types::CertificateDer;
use throng_testkit::{dial, eventually, poll, read_head};

use pebble::{HTTP_PORT, Pebble, Secured, TLS_PORT, secured};

/// A server of the test, which ends with it. Its log is a file.
struct Server {
    process: Child,
    log: PathBuf,
}

impl Server {
    /// Starts `throng` with settings by which pebble issues a certificate.
    fn start(pebble: &Pebble, name: &str, words: &[&str], settings: &[&str]) -> Self {
        Self::spawn(pebble, name, Self::command(pebble, words, settings))
    }

    fn command(pebble: &Pebble, words: &[&str], settings: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_throng"));
        command.args(words).args(["--set", "log.format=json"]);
        let directory = format!("tls.acme.directory={}", pebble.directory());
        let ca = format!("tls.acme.ca={}", pebble.folder.join("ca.pem").display());
        let dir = format!("tls.acme.dir={}", pebble.folder.join("kept").display());
        let own = [&directory, &ca, &dir, "tls.acme.agree_tos=true"];
        // Of two settings with one key, the last one applies.
        for setting in own.iter().chain(settings) {
            command.args(["--set", setting]);
        }
        command
    }

    fn spawn(pebble: &Pebble, name: &str, mut command: Command) -> Self {
        let log = pebble.folder.join(format!("{name}.log"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let server = Self { process, log };
        let is_there = lines.any(|line| line.is_ok_and(|line| line.contains("https://")));
        assert!(is_there, "{}", server.log());
        // A closed pipe would end it.
        std::thread::spawn(move || lines.for_each(drop));
        server
    }

    fn serve(pebble: &Pebble, name: &str, settings: &[&str]) -> Self {
        let listen = format!("{}:{TLS_PORT},{}:{HTTP_PORT}", pebble.address, pebble.address);
        let words = ["serve", "--listen", &listen, "--shards", "1", "--set", "allowed_hosts=*"];
        Self::start(pebble, name, &words, settings)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.process.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }

    /// The lines with an event.
    fn events(&self, event: &str) -> Vec<String> {
        let text = format!("\"event\":\"{event}\"");
        let log = self.log();
        log.lines().filter(|line| line.contains(&text)).map(str::to_owned).collect()
    }

    /// Waits for the line with this number and this event.
    fn event(&self, event: &str, number: usize) -> String {
        poll(event, || self.events(event).into_iter().nth(number))
    }

    /// Makes the server check its certificate, until this many were issued. Pebble refuses some
    /// nonces, and a request may meet three of them: then another attempt is due at once instead of
    /// in a minute.
    fn issued(&self, number: usize) {
        let mut failures = self.events("certificate.not_issued").len();
        self.signal("HUP");
        eventually("a certificate is issued", || {
            let failed = self.events("certificate.not_issued");
            if let Some(line) = failed.get(failures) {
                assert!(line.contains("badNonce"), "{line}");
                failures = failed.len();
                self.signal("HUP");
            }
            self.events("certificate.issued").len() >= number
        });
    }

    fn stop(mut self) {
        self.signal("TERM");
        assert_eq!(self.process.wait().unwrap().code(), Some(0), "{}", self.log());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A WebSocket at `/echo`.
fn websocket(mut stream: Secured) -> Secured {
    let upgrade = "GET /echo HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\n\
                   Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    stream
}

/// Sends a message and gets it back.
fn echo(session: &mut Secured) {
    // Masked with zeroes.
    session.write_all(b"\x81\x85\0\0\0\0hello").unwrap();
    let mut answer = [0; 7];
    session.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"\x81\x05hello");
}

/// The certificate that the server shows to clients of that name.
fn shown(at: SocketAddr, root: &CertificateDer<'static>, name: &str) -> Vec<u8> {
    let stream = secured(at, root, name).unwrap();
    stream.conn.peer_certificates().unwrap()[0].to_vec()
}

/// The answer to a request without TLS.
fn plain(at: SocketAddr, path: &str) -> String {
    let mut stream = dial(at);
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: a.example\r\n\r\n").as_bytes()).unwrap();
    read_head(&mut stream)
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn a_certificate_is_issued_renewed_under_a_session_and_kept_over_a_restart() {
    let Some(mut pebble) = Pebble::find("acme-tls") else { return };
    let at = SocketAddr::from((pebble.address, TLS_PORT));
    let settings = ["tls.acme.domains=B.example,a.example", "tls.acme.email=me@a.example"];

    // Without the authority there is no certificate; but the server runs.
    let server = Server::serve(&pebble, "first", &settings);
    let failed = server.event("certificate.not_issued", 0);
    assert!(failed.contains(&pebble.directory()) && failed.contains("acme.directory"), "{failed}");
    let refused = refused(at);
    assert!(refused.contains("UnrecognisedName"), "{refused}");
    let refused = server.event("tls_refused", 0);
    assert!(refused.contains("no certificate is for the name that it asked for"), "{refused}");

    pebble.start(&[("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_AUTHZREUSE", "0"), NONCES]);
    server.issued(1);
    let root = pebble.root();
    let first = shown(at, &root, "a.example");
    assert_eq!(shown(at, &root, "b.example"), first, "one certificate for both");
    let mut session = websocket(secured(at, &root, "a.example").unwrap());
    echo(&mut session);

    // Only the server's user can read the stored files.
    let kept = files(&pebble.folder.join("kept"));
    let names: Vec<_> = kept.iter().map(|file| file.file_name().unwrap()).collect();
    assert!(names.len() == 3, "account, certificate, lock: {names:?}");
    #[cfg(unix)]
    for file in &kept {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }

    // The authority wants it to be renewed.
    let certificate = kept.iter().find(|file| file.ends_with("certificate.pem")).unwrap();
    pebble.want_renewal(&std::fs::read_to_string(certificate).unwrap());
    server.issued(2);
    let second = shown(at, &root, "a.example");
    assert_ne!(second, first);
    // More than one if an order failed because too many nonces were refused.
    assert!(pebble.logged("is a replacement of") >= 1, "RFC 9773 section 5");
    echo(&mut session);
    drop(session);

    // A restart uses it, and asks only when to renew it.
    server.stop();
    let orders = pebble.logged("Added order");
    let asked = pebble.logged("renewalInfo/ -> calling");
    let server = Server::serve(&pebble, "second", &settings);
    assert_eq!(shown(at, &root, "a.example"), second);
    eventually("it asks", || pebble.logged("renewalInfo/ -> calling") > asked);
    // Its check of the certificate has ended when the next one begins.
    server.signal("HUP");
    eventually("it asks again", || pebble.logged("renewalInfo/ -> calling") > asked + 1);
    assert_eq!(pebble.logged("Added order"), orders);
    assert_eq!(server.events("certificate.issued").len(), 0);
    server.stop();
}

/// Pebble refuses this many of a hundred good nonces.
const NONCES: (&str, &str) = ("PEBBLE_WFE_NONCEREJECT", "15");

/// The error of a handshake that is refused.
fn refused(at: SocketAddr) -> String {
    let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
    secured(at, made.cert.der(), "a.example").err().unwrap().to_string()
}

#[test]
fn http_01_is_answered_although_all_else_is_redirected() {
    let Some(mut pebble) = Pebble::find("acme-http") else { return };
    // Slow validations: the client must ask more than once.
    pebble.start(&[("PEBBLE_VA_SLEEPTIME", "2")]);
    let settings =
        ["tls.acme.domains=a.example", "tls.acme.challenge=http-01", "tls.plain=redirect"];
    let server = Server::serve(&pebble, "serve", &settings);
    server.issued(1);
    let at = SocketAddr::from((pebble.address, TLS_PORT));
    let root = pebble.root();
    echo(&mut websocket(secured(at, &root, "a.example").unwrap()));
    let at = SocketAddr::from((pebble.address, HTTP_PORT));
    for path in ["/", "/.well-known/acme-challenge/unknown"] {
        let answer = plain(at, path);
        assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
    }
    server.stop();
}

#[test]
fn a_failure_names_its_cause_and_the_server_goes_on() {
    let Some(mut pebble) = Pebble::find("acme-failure") else { return };
    pebble.start(&[("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_WFE_NONCEREJECT", "0")]);
    // No program listens there.
    pebble.resolve("lost.example", "127.255.255.1");
    let settings = ["tls.acme.domains=lost.example", "tls.plain=serve"];
    let server = Server::serve(&pebble, "validation", &settings);
    let failed = server.event("certificate.not_issued", 0);
    assert!(failed.contains("lost.example") && failed.contains("127.255.255.1"), "{failed}");
    assert!(failed.contains("urn:ietf:params:acme:error:"), "{failed}");
    let at = SocketAddr::from((pebble.address, HTTP_PORT));
    assert!(plain(at, "/livez").starts_with("HTTP/1.1 200 "));
    // A reload makes the server try again, and it succeeds.
    pebble.resolve("lost.example", &pebble.address.to_string());
    server.issued(1);
    server.stop();

    // An untrusted authority for the directory.
    let other = pebble.folder.join("other.pem");
    let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
    std::fs::write(&other, made.cert.pem()).unwrap();
    let ca = format!("tls.acme.ca={}", other.display());
    let server = Server::serve(&pebble, "ca", &["tls.acme.domains=other.example", &ca]);
    let failed = server.event("certificate.not_issued", 0);
    assert!(failed.contains("no trusted authority") && failed.contains("acme.ca"), "{failed}");
    // The earlier certificate is used for its name until there is another one.
    let at = SocketAddr::from((pebble.address, TLS_PORT));
    shown(at, &pebble.root(), "lost.example");
    server.stop();
}

#[test]
fn a_balancer_has_its_certificate_issued() {
    let Some(mut pebble) = Pebble::find("acme-balance") else { return };
    pebble.start(&[("PEBBLE_VA_NOSLEEP", "1"), ("PEBBLE_AUTHZREUSE", "0"), NONCES]);
    let backend = format!("{}:9001", pebble.address);
    let mut process = Command::new(env!("CARGO_BIN_EXE_throng"));
    process.args(["serve", "--listen", &backend, "--set", "allowed_hosts=*"]);
    let mut process = process.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _backend = Server { process, log: PathBuf::new() };
    for (name, challenge, certificates) in [("tls", "tls-alpn-01", 1), ("http", "http-01", 1)] {
        let _ = std::fs::remove_dir_all(pebble.folder.join("kept"));
        let listen = format!("{}:{HTTP_PORT}", pebble.address);
        let secure = format!("tls.listen={}:{TLS_PORT}", pebble.address);
        let challenge = format!("tls.acme.challenge={challenge}");
        let words = ["balance", "--listen", &listen, "--backend", &backend];
        let settings = ["tls.acme.domains=a.example", &secure, &challenge];
        let server = Server::start(&pebble, name, &words, &settings);
        server.issued(certificates);
        let at = SocketAddr::from((pebble.address, TLS_PORT));
        let root = pebble.root();
        let first = shown(at, &root, "a.example");
        let mut session = websocket(secured(at, &root, "a.example").unwrap());
        echo(&mut session);
        let kept = files(&pebble.folder.join("kept"));
        let certificate = kept.iter().find(|file| file.ends_with("certificate.pem")).unwrap();
        pebble.want_renewal(&std::fs::read_to_string(certificate).unwrap());
        server.issued(certificates + 1);
        assert_ne!(shown(at, &root, "a.example"), first);
        echo(&mut session);
        drop(session);
        server.stop();
    }
}
