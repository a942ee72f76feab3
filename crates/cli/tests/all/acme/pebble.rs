//! Pebble, the authority for tests of Let's Encrypt, with its own resolver, on a loopback address
//! of the test.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use throng_testkit::{TempFolder, dial, eventually, poll};

/// The ports of validations.
pub(crate) const TLS_PORT: u16 = 5001;
pub(crate) const HTTP_PORT: u16 = 5002;

const DIRECTORY: u16 = 14_000;
const MANAGEMENT: u16 = 15_000;
const DNS: u16 = 8053;
const DNS_MANAGEMENT: u16 = 8055;

/// A folder of the test, and the processes in it, which end with the test.
pub(crate) struct Pebble {
    programs: PathBuf,
    pub(crate) address: Ipv4Addr,
    pub(crate) folder: TempFolder,
    processes: Vec<Child>,
}

impl Pebble {
    /// Returns an authority before its start, or `None` if there is none: its two programs are in
    /// the folder that `TEST_PEBBLE` names.
    pub(crate) fn find(name: &str) -> Option<Self> {
        let Some(programs) = std::env::var_os("TEST_PEBBLE") else {
            assert!(std::env::var_os("TEST_PEERS").is_none(), "name pebble's folder: TEST_PEBBLE");
            println!("skipped: TEST_PEBBLE names no folder with pebble and pebble-challtestsrv");
            return None;
        };
        static TESTS: AtomicU8 = AtomicU8::new(0);
        let [_, _, high, low] = std::process::id().to_be_bytes();
        // Not in 127.0.0.0/16, where others listen.
        let address = Ipv4Addr::new(127, high | 64, low, 10 + TESTS.fetch_add(1, Relaxed));
        let folder = TempFolder::new(name);
        let made = rcgen::generate_simple_self_signed(vec![address.to_string()]).unwrap();
        std::fs::write(folder.join("ca.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.join("ca.key"), made.signing_key.serialize_pem()).unwrap();
        Some(Self { programs: programs.into(), address, folder, processes: Vec::new() })
    }

    /// Starts it, with further environment variables.
    pub(crate) fn start(&mut self, environment: &[(&str, &str)]) {
        let at = |port: u16| SocketAddr::from((self.address, port)).to_string();
        let file = |name: &str| self.folder.join(name).display().to_string();
        let config = format!(
            r#"{{"pebble": {{
                "listenAddress": "{}", "managementListenAddress": "{}",
                "certificate": "{}", "privateKey": "{}",
                "httpPort": {HTTP_PORT}, "tlsPort": {TLS_PORT},
                "retryAfter": {{"authz": 1, "order": 1}}
            }}}}"#,
            at(DIRECTORY),
            at(MANAGEMENT),
            file("ca.pem"),
            file("ca.key"),
        );
        std::fs::write(file("pebble.json"), config).unwrap();
        let log = || File::options().create(true).append(true).open(file("pebble.log")).unwrap();
        let mut resolver = Command::new(self.programs.join("pebble-challtestsrv"));
        resolver.args(["-defaultIPv4", &self.address.to_string(), "-defaultIPv6", ""]);
        resolver.args(["-dnsserver", &at(DNS), "-management", &at(DNS_MANAGEMENT)]);
        resolver.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]);
        let mut pebble = Command::new(self.programs.join("pebble"));
        pebble.args(["-config", &file("pebble.json"), "-dnsserver", &at(DNS), "-strict"]);
        pebble.envs(environment.iter().copied());
        for command in [&mut resolver, &mut pebble] {
            command.stdin(Stdio::null()).stdout(log()).stderr(log());
            self.processes.push(command.spawn().unwrap());
        }
        for port in [DIRECTORY, MANAGEMENT, DNS_MANAGEMENT] {
            eventually("pebble listens", || TcpStream::connect((self.address, port)).is_ok());
        }
    }

    pub(crate) fn directory(&self) -> String {
        format!("https://{}/dir", self.directory_address())
    }

    pub(crate) fn directory_address(&self) -> SocketAddr {
        (self.address, DIRECTORY).into()
    }

    /// Returns how often a text occurs in its log.
    pub(crate) fn logged(&self, text: &str) -> usize {
        let log = std::fs::read_to_string(self.folder.join("pebble.log")).unwrap_or_default();
        log.matches(text).count()
    }

    /// Changes the address of a name.
    pub(crate) fn resolve(&self, name: &str, address: &str) {
        let body = format!(r#"{{"host": "{name}.", "addresses": ["{address}"]}}"#);
        for path in ["/clear-a", "/add-a"] {
            let mut stream = dial((self.address, DNS_MANAGEMENT).into());
            let answer = post(&mut stream, path, &body);
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        }
    }

    /// The root of the certificates that it issues.
    pub(crate) fn root(&self) -> CertificateDer<'static> {
        let pem = self.manage(
            "GET /roots/0 HTTP/1.1\r\nHost: pebble\r\nUser-Agent: test\r\n\
             Connection: close\r\n\r\n",
        );
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    /// Requests the renewal of a certificate (PEM) within a window of the past.
    pub(crate) fn want_renewal(&self, certificate: &str) {
        let (start, end) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        let window =
            format!(r#"{{\"suggestedWindow\":{{\"start\":\"{start}\",\"end\":\"{end}\"}}}}"#);
        let end = "-----END CERTIFICATE-----";
        let first = &certificate[..certificate.find(end).unwrap() + end.len()];
        let first = first.replace('\n', "\\n");
        let body = format!(r#"{{"Certificate": "{first}", "ARIResponse": "{window}"}}"#);
        let answer = self.manage(&request("/set-renewal-info/", &body));
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    }

    fn manage(&self, request: &str) -> String {
        let ca = CertificateDer::from_pem_file(self.folder.join("ca.pem")).unwrap();
        let name = self.address.to_string();
        let at = SocketAddr::from((self.address, MANAGEMENT));
        poll("pebble answers", || {
            let mut stream = secured(at, &ca, &name).ok()?;
            stream.write_all(request.as_bytes()).ok()?;
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            String::from_utf8(answer).ok().filter(|answer| !answer.is_empty())
        })
    }
}

impl Drop for Pebble {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A connection over TLS.
pub(crate) type Secured = StreamOwned<ClientConnection, TcpStream>;

/// Connects to the server of that name, whose certificate leads to `root`.
pub(crate) fn secured(
    address: SocketAddr,
    root: &CertificateDer<'static>,
    name: &str,
) -> std::io::Result<Secured> {
    let mut roots = RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(client, dial(address));
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn request(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: pebble\r\nUser-Agent: test\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

fn post(stream: &mut TcpStream, path: &str, body: &str) -> String {
    stream.write_all(request(path, body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}
