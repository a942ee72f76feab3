//! `throng bench` against servers that end TLS sessions after the handshake: its report has the
//! reason.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use throng_proto::ws::handshake::accept_key;
use throng_testkit::Damaging;

use crate::bench::bench;

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// A fatal alert, in answer to the client's next record, which was damaged in transit.
    Alert,
    /// A record that cannot be opened.
    BadRecord,
    /// An end of the stream without close_notify.
    Truncation,
}

type Stream = StreamOwned<ServerConnection, Damaging<TcpStream>>;

impl Fault {
    /// Ends the session, and waits until the client has left.
    fn end(self, mut stream: Stream) {
        match self {
            Self::Alert => {
                stream.sock.damages = true;
                stream.read_exact(&mut [0]).unwrap_err();
            }
            Self::BadRecord => {
                let record = [&[23, 3, 3, 0, 40][..], &[0; 40]].concat();
                let _ = stream.sock.write_all(&record);
            }
            Self::Truncation => drop(stream.sock.inner.shutdown(Shutdown::Write)),
        }
        let mut rest = [0; 4096];
        while stream.sock.inner.read(&mut rest).is_ok_and(|n| n > 0) {}
    }
}

/// Starts a server that answers the first request of each connection, one connection after the
/// other, and then ends its session in this way. It ends with the process.
fn start(fault: Fault) -> SocketAddr {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        while let Ok((socket, _)) = listener.accept() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(connection, Damaging::new(socket));
            // At the end of a run, clients leave without a request.
            let Some(head) = head(&mut stream) else { continue };
            if stream.write_all(answer(&head).as_bytes()).is_ok() {
                fault.end(stream);
            }
        }
    });
    address
}

/// Returns the head of a request, unless its client leaves before.
fn head(stream: &mut Stream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    String::from_utf8(head).ok()
}

fn answer(head: &str) -> String {
    match head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")) {
        Some(key) => format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            str::from_utf8(&accept_key(key)).unwrap()
        ),
        None => "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK".to_owned(),
    }
}

/// Returns the text of a report, and the errors in its JSON.
fn reports(words: &[&str]) -> (String, Value) {
    let text = String::from_utf8(bench(words).stdout).unwrap();
    let output = bench(&[words, &["--json"]].concat());
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&output.stderr)));
    (text, report["errors"].clone())
}

const FAULTS: [(Fault, &str, &str); 3] = [
    (
        Fault::Alert,
        "TLS alert: bad_record_mac",
        "it ended the session with the TLS alert 20 (bad_record_mac)",
    ),
    (
        Fault::BadRecord,
        "TLS failure: bad_record_mac",
        "a record that it sent could not be authenticated",
    ),
    (Fault::Truncation, "TLS failure: truncated", "it ended its stream without close_notify"),
];

#[test]
fn a_connection_is_lost_to_what_ended_its_tls_session() {
    for (fault, name, why) in FAULTS {
        let url = format!("wss://{}/", start(fault));
        let words = ["connect", &url, "--insecure", "--concurrency", "1", "-n", "3"];
        let (text, errors) = reports(&words);
        let named = format!("of these 3 {name}");
        let first = format!("before it had its answer: {why}");
        for line in ["3 connections lost", &named, &first] {
            assert!(text.contains(line), "{fault:?}: no {line:?} in {text}");
        }
        assert_eq!(errors["connections_lost"], 3, "{errors}");
        assert_eq!(errors["tls_failures"], json!({ name: 3 }), "{errors}");
    }
}

#[test]
fn a_connection_that_tls_ends_before_the_run_is_an_error_with_the_reason() {
    // Without a message of the client there is no record to damage.
    for (fault, _, why) in &FAULTS[1..] {
        let url = format!("wss://{}/", start(*fault));
        // The server accepts no second connection before the first has ended.
        let output = bench(&["echo", &url, "--insecure", "-c", "2"]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        let line = format!("was cut off by the server: {why} (with ");
        assert!(errors.contains(&line), "{fault:?}: no {line:?} in {errors}");
    }
}

#[test]
fn requests_are_lost_to_what_ended_their_tls_session() {
    // A stream may end between two answers.
    for (fault, name, why) in &FAULTS[..2] {
        let url = format!("https://{}/", start(*fault));
        let (text, errors) = reports(&["http", &url, "--insecure", "-c", "1", "-n", "4"]);
        let named = format!("of these 2 {name}");
        let first = format!("the server reset it instead of an answer: {why}");
        for line in ["2 connections reset", &named, &first] {
            assert!(text.contains(line), "{fault:?}: no {line:?} in {text}");
        }
        assert_eq!((&errors["resets"], &errors["unanswered"]), (&json!(2), &json!(0)), "{errors}");
        assert_eq!(errors["tls_failures"], json!({ *name: 2 }), "{errors}");
    }
}
