//! Clients of other projects: curl, OpenSSL, Python.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use throng::prelude::*;
use throng::server::IoBackend;
use throng::tls::Tls;

use super::{Files, app, backends, end, start};

/// Runs a program of the machine; `None`, with a message, if it is not installed. On CI nothing is
/// skipped.
pub(super) fn run(program: &str, arguments: &[&str], input: &[u8]) -> Option<Output> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        assert!(std::env::var_os("CI").is_none(), "{program} is not installed");
        println!("skipped: {program} is not installed");
        return None;
    };
    // A program that ends early does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input);
    Some(child.wait_with_output().unwrap())
}

pub(super) fn text(bytes: &[u8]) -> String {
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

/// Each of several nodes behind a balancer resumes the sessions of the others.
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
        |tls: Tls| Server::new(app()).tls(tls).bind("127.0.0.1:0").unwrap().start().unwrap();
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
