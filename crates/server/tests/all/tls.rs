//! A server with TLS: WebSocket and HTTP as without it, for clients of several libraries.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use throng::prelude::*;
use throng::{DrainPlan, IoBackend, PlainHttp, Pull, Running, Tls, TlsVersion};
use throng_proto::ws::Opcode;

use crate::support::{Client, Got, dial, exchange};

/// The files of a server's certificate, removed at the end.
struct Files {
    dir: PathBuf,
    chain: PathBuf,
    key: PathBuf,
}

impl Files {
    fn new(name: &str) -> Self {
        let dir = format!("throng-server-tls-{}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        std::fs::create_dir_all(&dir).unwrap();
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

    /// A client's configuration that trusts the certificate of this moment.
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

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
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
    let channel = Ws::on_upgrade(|_| Ok(()))
        .on_open(|ws| {
            ws.subscribe("all");
        })
        .on_message(|ws, message| {
            ws.publish_to_others("all", Frame::from(message));
        });
    App::new()
        .ws("/echo", Ws::new().on_message(|ws, message| ws.send(message)))
        .ws("/all", channel)
        .get("/hello", |_| Response::text("hello over TLS\n"))
        .get("/large", |_| Response::text("0123456789".repeat(200_000)))
}

fn start(files: &Files, io: IoBackend) -> Running {
    Server::new(app()).io(io).tls(files.tls()).bind("127.0.0.1:0").unwrap().spawn().unwrap()
}

fn end(running: Running) {
    running.drain(DrainPlan::default()).unwrap();
}

fn backends() -> Vec<IoBackend> {
    [IoBackend::Auto, IoBackend::Portable, IoBackend::Threads].to_vec()
}

#[test]
fn messages_of_every_size_are_echoed_on_every_backend() {
    let files = Files::new("echo");
    for io in backends() {
        let running = start(&files, io);
        let mut client = connect(running.local_addr(), "/echo", &files.trust());
        for len in [0, 1, 125, 126, 16_000, 16_384, 17_000, 65_536, 200_000, 3_000_000] {
            let message: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
            client.send(Opcode::Binary, &message);
            assert!(client.next() == Got::Binary(message), "{io:?}, {len} bytes");
        }
        for round in 0..100u32 {
            client.send(Opcode::Binary, &round.to_be_bytes());
        }
        for round in 0..100u32 {
            assert_eq!(client.next(), Got::Binary(round.to_be_bytes().to_vec()));
        }
        client.send(Opcode::Close, &1000u16.to_be_bytes());
        assert_eq!(client.next(), Got::Close(1000, String::new()));
        // The end comes with close_notify: rustls reports any other as an error.
        assert_eq!(client.next(), Got::End);
        end(running);
    }
}

#[test]
fn a_session_that_moves_to_another_event_loop_keeps_its_keys() {
    #[derive(Default)]
    struct Rooms(std::collections::HashMap<String, usize>);
    let files = Files::new("placed");
    for io in [IoBackend::Auto, IoBackend::Portable] {
        let room = Ws::on_upgrade(|request| Ok(request.param("room").unwrap().to_owned()))
            .place_by(|room| room)
            .on_open(|ws| {
                let (room, mut session) = ws.split();
                let count = session.shard_state::<Rooms>().0.entry(room.clone()).or_default();
                *count += 1;
                let text = count.to_string();
                let _ = session.send(text);
            })
            .on_message(|ws, message| ws.send(message));
        let server = Server::new(App::new().ws("/{room}", room)).io(io).shards(3);
        let running = server.tls(files.tls()).bind("127.0.0.1:0").unwrap().spawn().unwrap();
        let mut all = Vec::new();
        for room in 0..4 {
            for count in 1..=4 {
                let path = format!("/{room}");
                let mut client = connect(running.local_addr(), &path, &files.trust());
                assert_eq!(client.next(), Got::Text(count.to_string()), "{io:?}");
                all.push(client);
            }
        }
        crate::support::eventually("some have moved", || {
            running.shard_stats().iter().any(|stats| stats.handed_over > 0)
        });
        for len in [1, 16_384, 200_000] {
            for client in &mut all {
                let message: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
                client.send(Opcode::Binary, &message);
                assert!(client.next() == Got::Binary(message), "{io:?}, {len} bytes");
            }
        }
        for client in &mut all {
            client.send(Opcode::Close, &1000u16.to_be_bytes());
            assert_eq!(client.next(), Got::Close(1000, String::new()));
            assert_eq!(client.next(), Got::End, "with close_notify");
        }
        end(running);
    }
}

#[test]
fn a_publication_reaches_every_secured_member() {
    let files = Files::new("publish");
    let running = start(&files, IoBackend::Auto);
    let trust = files.trust();
    let mut clients: Vec<_> =
        (0..20).map(|_| connect(running.local_addr(), "/all", &trust)).collect();
    crate::support::eventually("all members", || running.stats().subscriptions >= 20);
    let (sender, receivers) = clients.split_first_mut().unwrap();
    for round in 0..50u32 {
        sender.send(Opcode::Text, format!("message {round}").as_bytes());
    }
    for client in receivers {
        for round in 0..50u32 {
            assert_eq!(client.next(), Got::Text(format!("message {round}")));
        }
    }
    end(running);
}

#[test]
fn http_requests_are_answered_one_after_another() {
    let files = Files::new("http");
    for io in backends() {
        let running = start(&files, io);
        let mut stream = secure(running.local_addr(), &files.trust());
        for _ in 0..3 {
            stream.write_all(b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let head = crate::support::read_head(&mut stream);
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            let mut body = [0; 15];
            stream.read_exact(&mut body).unwrap();
            assert_eq!(&body, b"hello over TLS\n");
        }
        let last = b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(last).unwrap();
        crate::support::read_head(&mut stream);
        let mut body = String::new();
        stream.read_to_string(&mut body).unwrap();
        assert!(body == "0123456789".repeat(200_000), "{} bytes", body.len());
        end(running);
    }
}

#[test]
fn a_client_without_tls_gets_the_reason() {
    let files = Files::new("plain");
    let running = start(&files, IoBackend::Auto);
    let answer = exchange(running.local_addr(), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("expects TLS"), "{answer}");
    end(running);
}

#[test]
fn a_renewed_certificate_serves_new_connections_and_leaves_sessions_alone() {
    let files = Files::new("renew");
    let running = start(&files, IoBackend::Auto);
    let old = files.trust();
    let mut session = connect(running.local_addr(), "/echo", &old);
    files.renew();
    running.reload_tls().unwrap();
    let mut renewed = connect(running.local_addr(), "/echo", &files.trust());
    for client in [&mut session, &mut renewed] {
        client.send(Opcode::Text, b"still here");
        assert_eq!(client.next(), Got::Text("still here".into()));
    }
    std::fs::write(&files.key, "no key").unwrap();
    let error = running.reload_tls().unwrap_err().to_string();
    assert!(error.contains("it.key") && error.contains("private key"), "{error}");
    connect(running.local_addr(), "/echo", &files.trust());
    end(running);
}

#[test]
fn a_mistake_is_reported_before_the_server_listens() {
    let files = Files::new("mistake");
    let missing = files.dir.join("missing.pem");
    let server = Server::new(app()).tls(Tls::from_files(&missing, &files.key));
    let error = server.bind("127.0.0.1:0").unwrap_err().to_string();
    assert!(error.starts_with("tls: ") && error.contains("missing.pem"), "{error}");
    let server = Server::new(app()).tls(Tls::from_files(&files.key, &files.chain));
    let error = server.check().unwrap_err().to_string();
    assert!(error.contains("swapped"), "{error}");
}

/// Runs a program of the machine; `None`, and a line that says so, if it is not installed.
fn run(program: &str, arguments: &[&str], input: &[u8]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("skipped: {program} is not installed");
        return None;
    };
    // A program that ends early does not read it.
    let _ = child.stdin.take().unwrap().write_all(input);
    Some(child.wait_with_output().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn curl_fetches_pages() {
    let files = Files::new("curl");
    let running = start(&files, IoBackend::Auto);
    let port = running.local_addr().port();
    for versions in [["--tlsv1.2", "--tls-max", "1.2"], ["--tlsv1.3", "--tls-max", "1.3"]] {
        for page in ["hello", "large"] {
            let url = format!("https://localhost:{port}/{page}");
            let address = format!("localhost:{port}:127.0.0.1");
            let ca = path(&files.chain);
            let others = ["-sS", "--cacert", ca, "--resolve", &address, &url];
            let arguments = [&versions[..], &others[..]].concat();
            let Some(output) = run("curl", &arguments, b"") else { return end(running) };
            assert!(output.status.success(), "{}", text(&output.stderr));
            let len = if page == "hello" { 15 } else { 2_000_000 };
            assert_eq!(output.stdout.len(), len);
        }
    }
    end(running);
}

#[test]
fn openssl_agrees_on_both_versions() {
    let files = Files::new("openssl");
    let running = start(&files, IoBackend::Auto);
    let address = running.local_addr().to_string();
    for (version, name) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let ca = path(&files.chain);
        let arguments = [
            "s_client", version, "-connect", &address, "-CAfile", ca, "-ign_eof", "-alpn",
            "http/1.1",
        ];
        let request = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let Some(output) = run("openssl", &arguments, request) else { return end(running) };
        let out = text(&output.stdout);
        for wanted in [name, "ALPN protocol: http/1.1", "hello over TLS", "return code: 0 (ok)"] {
            assert!(out.contains(wanted), "{version}: no {wanted:?} in {out}");
        }
    }
    end(running);
}

/// A WebSocket client of the standard library of Python, whose TLS is OpenSSL's.
const PYTHON: &str = r#"
import os, socket, ssl, struct, sys
port, ca, version = int(sys.argv[1]), sys.argv[2], sys.argv[3]
context = ssl.create_default_context(cafile=ca)
context.minimum_version = context.maximum_version = getattr(ssl.TLSVersion, version)
raw = socket.create_connection(("127.0.0.1", port), timeout=60)
stream = context.wrap_socket(raw, server_hostname="localhost")
def read(n):
    data = b""
    while len(data) < n:
        more = stream.recv(n - len(data))
        assert more, "the stream ended"
        data += more
    return data
stream.sendall(b"GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
head = b""
while not head.endswith(b"\r\n\r\n"):
    head += read(1)
assert head.startswith(b"HTTP/1.1 101 "), head
def frame(payload):
    n = len(payload)
    size = struct.pack("!B", 0x80 | n) if n < 126 else struct.pack("!BH", 0xfe, n) \
        if n < 65536 else struct.pack("!BQ", 0xff, n)
    return b"\x82" + size + b"\0\0\0\0" + payload
for n in [5, 1000, 16384, 70000, 1000000]:
    payload = os.urandom(n)
    stream.sendall(frame(payload))
    first, size = struct.unpack("!BB", read(2))
    assert first == 0x82, first
    size = struct.unpack("!H", read(2))[0] if size == 126 else \
        struct.unpack("!Q", read(8))[0] if size == 127 else size
    assert read(size) == payload
version = stream.version()
stream.unwrap()
print("ok", version)
"#;

#[test]
fn python_echoes_over_wss_and_sees_the_end() {
    let files = Files::new("python");
    for io in backends() {
        let running = start(&files, io);
        let port = running.local_addr().port().to_string();
        for (version, name) in [("TLSv1_2", "ok TLSv1.2"), ("TLSv1_3", "ok TLSv1.3")] {
            let arguments = ["-c", PYTHON, &port, path(&files.chain), version];
            let Some(output) = run("python3", &arguments, b"") else { return end(running) };
            assert_eq!(text(&output.stdout).trim(), name, "{io:?}: {}", text(&output.stderr));
        }
        end(running);
    }
}

#[test]
fn the_lowest_version_is_a_setting() {
    let files = Files::new("versions");
    let tls = files.tls().min_version(TlsVersion::Tls13);
    let running = Server::new(app()).tls(tls).bind("127.0.0.1:0").unwrap().spawn().unwrap();
    let address = running.local_addr().to_string();
    for (version, is_accepted) in [("-tls1_2", false), ("-tls1_3", true)] {
        let arguments = ["s_client", version, "-connect", &address];
        let Some(output) = run("openssl", &arguments, b"") else { return end(running) };
        let out = text(&output.stdout) + &text(&output.stderr);
        assert_eq!(output.status.success(), is_accepted, "{out}");
        assert_eq!(out.contains("alert protocol version"), !is_accepted, "{out}");
    }
    end(running);
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

#[test]
fn http_on_the_port_of_tls_is_refused_redirected_or_served() {
    let files = Files::new("plain");
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\n";
    for (mode, to_get, to_upgrade) in [
        (PlainHttp::Refuse, "400 ", "400 "),
        (PlainHttp::Redirect, "308 ", "426 "),
        (PlainHttp::Serve, "200 ", "200 "),
    ] {
        let tls = files.tls().plain(mode);
        let server = Server::new(app()).tls(tls).bind("127.0.0.1:0").unwrap();
        let running = server.spawn().unwrap();
        let answer = plain(running.local_addr(), "Connection: close\r\n");
        assert!(answer.starts_with(&format!("HTTP/1.1 {to_get}")), "{mode:?}: {answer}");
        let is_redirected = answer.contains("Location: https://localhost:7/hello?a=1\r\n");
        assert_eq!(is_redirected, mode == PlainHttp::Redirect, "{answer}");
        if mode != PlainHttp::Serve {
            let answer = plain(running.local_addr(), upgrade);
            assert!(answer.starts_with(&format!("HTTP/1.1 {to_upgrade}")), "{mode:?}: {answer}");
        }
        let mut client = connect(running.local_addr(), "/echo", &files.trust());
        client.send(Opcode::Text, b"over TLS");
        assert_eq!(client.next(), Got::Text("over TLS".to_owned()));
        end(running);
    }
}

#[test]
fn a_request_has_the_tls_of_its_connection() {
    let files = Files::new("facts");
    let authority = rcgen::generate_simple_self_signed(vec!["client.example".to_owned()]).unwrap();
    let authorities = files.dir.join("clients.pem");
    std::fs::write(&authorities, authority.cert.pem()).unwrap();
    let app = App::new().get("/", |request| {
        let Some(tls) = request.tls() else { return Response::text("no TLS") };
        let certificate = tls.client_certificate();
        Response::text(format!(
            "{:?} {:x} {:?} {:?} {} {:?}",
            tls.version(),
            tls.cipher_suite(),
            tls.server_name(),
            tls.alpn(),
            tls.is_resumed(),
            certificate.map(|it| (it.names().to_vec(), it.serial().len() > 8, it.chain().len())),
        ))
    });
    let tls = files.tls().client_auth(&authorities, false).plain(PlainHttp::Serve);
    let running = Server::new(app).tls(tls).bind("127.0.0.1:0").unwrap().spawn().unwrap();
    let ask = |config: &Arc<ClientConfig>| {
        let mut stream = secure(running.local_addr(), config);
        let request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.rsplit("\r\n").next().unwrap().to_owned()
    };
    let trust = files.trust();
    let answer = ask(&trust);
    assert!(answer.starts_with("Tls13 130"), "{answer}");
    assert!(answer.ends_with("Some(\"localhost\") None false None"), "{answer}");
    assert!(ask(&trust).ends_with("None true None"));

    let key = rustls::pki_types::PrivateKeyDer::try_from(authority.signing_key.serialize_der());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.chain).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(vec![authority.cert.der().clone()], key.unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    for is_resumed in [false, true] {
        let answer = ask(&config);
        assert!(answer.starts_with("Tls12 c02"), "{answer}");
        let expected =
            format!("Some(\"http/1.1\") {is_resumed} Some(([\"client.example\"], true, 1))");
        assert!(answer.ends_with(&expected), "{answer}");
    }
    assert!(plain(running.local_addr(), "Connection: close\r\n").contains("404 "));
    end(running);
}

/// Returns the answer to one request over TLS, which is the last one of its connection.
fn ask(mut stream: impl Read + Write, host: &str, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn rfc9110_15_5_20_where_clients_have_certificates_a_request_is_for_its_connections_host() {
    let files = Files::new("misdirected");
    let bound = files.tls().client_auth(&files.chain, false);
    let start = |tls: &Tls, proxies: &[&str]| {
        let server = Server::new(app()).tls(tls.clone()).trusted_proxies(proxies);
        server.bind("127.0.0.1:0").unwrap().spawn().unwrap()
    };
    let trust = files.trust();
    for (tls, proxies, host, status) in [
        (&bound, &[][..], "localhost", "200"),
        (&bound, &[], "LOCALHOST:443", "200"),
        (&bound, &[], "other.example", "421"),
        // A proxy repeats the host that its client has named.
        (&bound, &["127.0.0.1"], "other.example", "200"),
        (&files.tls(), &[], "other.example", "200"),
    ] {
        let running = start(tls, proxies);
        let answer = ask(secure(running.local_addr(), &trust), host, "/hello");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {answer}");
        end(running);
    }
    // A client that asks for no name can say any.
    let running = start(&bound, &[]);
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let client = ClientConnection::new(Arc::clone(&trust), name).unwrap();
    let stream = StreamOwned::new(client, dial(running.local_addr()));
    assert!(ask(stream, "127.0.0.1", "/hello").starts_with("HTTP/1.1 200 "));
    end(running);
}

#[cfg(unix)]
#[test]
fn a_trusted_proxy_at_a_unix_socket_repeats_the_host_of_its_client() {
    let files = Files::new("misdirected-unix");
    let path = std::env::temp_dir().join(format!("throng-misdirected-{}.sock", std::process::id()));
    for (proxies, status) in [(&["unix:"][..], "200"), (&["127.0.0.1"], "421")] {
        let tls = files.tls().client_auth(&files.chain, false);
        let server = Server::new(app()).tls(tls).trusted_proxies(proxies);
        let socket = throng::UnixSocket::bind(&path, 0o600).unwrap();
        let running = server.listen_on([socket]).unwrap().spawn().unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let client = ClientConnection::new(files.trust(), name).unwrap();
        let stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let answer = ask(StreamOwned::new(client, stream), "other.example", "/hello");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        end(running);
    }
}

#[test]
fn rfc6797_7_responses_over_tls_alone_make_browsers_use_tls() {
    let files = Files::new("hsts");
    let year = Duration::from_secs(365 * 24 * 3600);
    let own = "max-age=5";
    let app = app()
        .get("/own", move |_| Response::text("").header("strict-transport-security", own).unwrap())
        .deferred(Method::Get, "/later", |_, responder| responder.send(Response::text("later")))
        .get("/endless", |_| {
            Response::new(Status::OK).with_stream(None, |_, _: &mut Vec<u8>| Ok(Pull::End))
        })
        .sse("/events", |_| Ok("all".to_owned()));
    let tls = files.tls().hsts(year, true).plain(PlainHttp::Serve);
    let running = Server::new(app).tls(tls).bind("127.0.0.1:0").unwrap().spawn().unwrap();
    let (address, trust) = (running.local_addr(), files.trust());
    let line = "\r\nStrict-Transport-Security: max-age=31536000; includeSubDomains\r\n";
    for path in ["/hello", "/missing", "/later", "/endless"] {
        let answer = ask(secure(address, &trust), "localhost", path);
        assert_eq!(answer.matches(line).count(), 1, "{path}: {answer}");
    }
    let answer = ask(secure(address, &trust), "localhost", "/own");
    assert!(answer.contains("\r\nstrict-transport-security: max-age=5\r\n"), "{answer}");
    assert!(!answer.contains(line), "{answer}");
    // To a fault, to an upgrade, and at the beginning of a stream.
    let upgrade = "GET /echo HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
                   Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let events = "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n";
    for (request, status) in [("no request\r\n\r\n", "400"), (upgrade, "101"), (events, "200")] {
        let mut stream = secure(address, &trust);
        stream.write_all(request.as_bytes()).unwrap();
        let head = crate::support::read_head(&mut stream);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(head.contains(line), "{request}: {head}");
    }
    let answer = plain(address, "Connection: close\r\n");
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("Transport-Sec"), "{answer}");
    end(running);

    let running = start(&files, IoBackend::Auto);
    let answer = ask(secure(running.local_addr(), &trust), "localhost", "/hello");
    assert!(!answer.contains("Transport-Sec"), "{answer}");
    end(running);
}

/// Of several nodes behind a balancer, each resumes the sessions of the others.
#[test]
fn openssl_resumes_a_session_at_another_server_with_the_same_keys() {
    let files = Files::new("tickets");
    let (keys, session) = (files.dir.join("ticket.keys"), files.dir.join("session.pem"));
    let key: Vec<u8> = (0..80).collect();
    std::fs::write(&keys, key).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let start =
        |tls: Tls| Server::new(app()).tls(tls).bind("127.0.0.1:0").unwrap().spawn().unwrap();
    let shared = || files.tls().ticket_keys(&keys);
    let nodes = [start(shared()), start(shared()), start(files.tls())];
    let bound = start(shared().client_auth(&files.chain, false));
    let connect = |running: &Running, version: &str, session_argument: &str| {
        let address = running.local_addr().to_string();
        let arguments = [
            "s_client",
            version,
            "-connect",
            &address,
            "-servername",
            "localhost",
            "-ign_eof",
            session_argument,
            path(&session),
        ];
        let request = b"GET /hello HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        let output = run("openssl", &arguments, request)?;
        assert!(text(&output.stdout).contains("hello over TLS"), "{output:?}");
        Some(text(&output.stdout).contains("Reused, TLS"))
    };
    for version in ["-tls1_2", "-tls1_3"] {
        for (other, is_resumed) in [(&nodes[1], true), (&nodes[2], false), (&bound, false)] {
            let Some(reused) = connect(&nodes[0], version, "-sess_out") else { return };
            assert!(!reused);
            assert_eq!(connect(other, version, "-sess_in"), Some(is_resumed), "{version}");
        }
    }
    nodes.into_iter().chain([bound]).for_each(end);
}

#[test]
fn metrics_have_handshakes_and_when_certificates_expire() {
    let files = Files::new("metrics");
    let app = App::new().metrics("/metrics");
    let running = Server::new(app).tls(files.tls()).bind("127.0.0.1:0").unwrap().spawn().unwrap();
    plain(running.local_addr(), "");
    let mut stream = secure(running.local_addr(), &files.trust());
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    for line in [
        "throng_tls_handshakes_total{kind=\"full\"} 1\n",
        "throng_tls_handshake_failures_total{cause=\"not_tls\"} 1\n",
        "throng_tls_certificate_expiry_seconds{name=\"localhost\"} ",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    end(running);
}

#[test]
fn handshakes_that_fail_are_reported_with_client_and_cause() {
    let files = Files::new("failures");
    let (reports, reported) = std::sync::mpsc::channel();
    let server = Server::new(app()).tls(files.tls()).on_event(move |event| {
        if let throng::Event::TlsRefused { client, reason, .. } = event {
            let _ = reports.send((client.map(|client| client.to_string()), (*reason).to_owned()));
        }
    });
    let running = server.bind("127.0.0.1:0").unwrap().spawn().unwrap();
    let next = || {
        let (client, reason) = reported.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(client.as_deref(), Some("127.0.0.1"));
        reason
    };
    plain(running.local_addr(), "");
    assert_eq!(next(), "it does not speak TLS");
    // A client that does not trust the certificate says so.
    let stranger = Files::new("stranger");
    let mut stream = secure(running.local_addr(), &stranger.trust());
    assert!(stream.write_all(b"GET").and_then(|()| stream.flush()).is_err());
    let reason = next();
    assert!(reason.starts_with("it refused with the TLS alert "), "{reason}");
    assert!(reason.contains("unknown_ca") || reason.contains("decrypt_error"), "{reason}");
    end(running);
}

#[test]
fn handshakes_are_as_many_a_second_as_the_setting_says() {
    let files = Files::new("rate");
    let tls = files.tls().max_handshakes_per_second(1);
    let running =
        Server::new(app()).shards(1).tls(tls).bind("127.0.0.1:0").unwrap().spawn().unwrap();
    let mut waiting: Vec<Stream> =
        (0..60).map(|_| secure(running.local_addr(), &files.trust())).collect();
    for stream in &mut waiting {
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).unwrap();
        }
        stream.sock.set_nonblocking(true).unwrap();
    }
    // In a minute all are.
    let served = || {
        let is_served = |stream: &&Stream| stream.sock.peek(&mut [0]).is_ok();
        waiting.iter().filter(is_served).count()
    };
    crate::support::eventually("one is served", || served() > 0);
    assert!(served() < 60);
    drop(waiting);
    end(running);
}

/// The header comes before the handshake, and may come together with it or alone.
#[test]
fn a_proxy_header_comes_before_the_handshake() {
    let files = Files::new("proxied");
    for io in backends() {
        let client = |request: &Request<'_>| request.client().map(|client| client.to_string());
        let app = App::new().get("/client", move |request| client(request));
        let server = Server::new(app).trusted_proxies(["127.0.0.1"]).proxy_protocol(true);
        let running = server.io(io).tls(files.tls()).bind("127.0.0.1:0").unwrap().spawn().unwrap();
        let header = b"PROXY TCP4 198.51.100.7 192.0.2.1 4711 443\r\n";
        for is_alone in [true, false] {
            let mut tcp = dial(running.local_addr());
            let name = ServerName::try_from("localhost").unwrap();
            let mut client = ClientConnection::new(files.trust(), name).unwrap();
            let mut first = header.to_vec();
            if !is_alone {
                client.write_tls(&mut first).unwrap();
            }
            tcp.write_all(&first).unwrap();
            let mut stream = StreamOwned::new(client, tcp);
            let request = "GET /client HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("\r\n\r\n198.51.100.7"), "{io:?}, {is_alone}: {answer}");
        }
        // A handshake without a header is closed.
        let mut stream = secure(running.local_addr(), &files.trust());
        assert!(stream.write_all(b"GET").and_then(|()| stream.flush()).is_err());
        assert_eq!(running.stats().handler_panics, 0);
        end(running);
    }
}
