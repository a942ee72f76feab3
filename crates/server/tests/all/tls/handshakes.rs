//! Settings of handshakes, their figures, and their failures.

use std::io::{Read, Write};
use std::time::Duration;

use throng::prelude::*;
use throng::server::Observe;
use throng::tls::{Tls, TlsVersion};

use super::programs::{run, text};
use super::{Files, Stream, app, end, plain, secure};

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

#[test]
fn the_lowest_version_is_a_setting() {
    let files = Files::new("versions");
    let tls = files.tls().min_version(TlsVersion::Tls13);
    let running = Server::new(app()).tls(tls).bind("127.0.0.1:0").unwrap().start().unwrap();
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

#[test]
fn metrics_have_handshakes_and_when_certificates_expire() {
    let files = Files::new("metrics");
    let app = App::new().metrics("/metrics");
    let running = Server::new(app).tls(files.tls()).bind("127.0.0.1:0").unwrap().start().unwrap();
    plain(running.local_addr(), "");
    let mut stream = secure(running.local_addr(), &files.trust());
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    stream.read_to_string(&mut metrics).unwrap();
    for line in [
        "throng_tls_handshakes_total{kind=\"full\"} 1\n",
        "throng_tls_handshake_failures_total{cause=\"not_tls\"} 1\n",
        "throng_tls_session_failures_total{cause=\"peer_alert\"} 0\n",
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
    let server =
        Server::new(app()).tls(files.tls()).observe(Observe::new().on_event(move |event| {
            if let throng::server::ServerEvent::TlsRefused { subject, reason, .. } = event {
                let client = subject.client.map(|client| client.to_string());
                let _ = reports.send((client, (*reason).to_owned()));
            }
        }));
    let running = server.bind("127.0.0.1:0").unwrap().start().unwrap();
    let next = || {
        let (client, reason) = reported.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(client.as_deref(), Some("127.0.0.1"));
        reason
    };
    plain(running.local_addr(), "");
    assert_eq!(next(), "it does not speak TLS");
    // A client that does not trust the certificate sends an alert.
    let stranger = Files::new("stranger");
    let mut stream = secure(running.local_addr(), &stranger.trust());
    assert!(stream.write_all(b"GET").and_then(|()| stream.flush()).is_err());
    let reason = next();
    assert!(reason.starts_with("it refused with the TLS alert "), "{reason}");
    assert!(reason.contains("unknown_ca") || reason.contains("decrypt_error"), "{reason}");
    end(running);
}

#[test]
fn sessions_that_fail_later_are_reported_with_client_and_cause() {
    let files = Files::new("sessions");
    let (reports, reported) = std::sync::mpsc::channel();
    let server =
        Server::new(app()).tls(files.tls()).observe(Observe::new().on_event(move |event| {
            if let throng::server::ServerEvent::TlsSessionFailed { subject, .. } = event {
                let _ = reports.send((*subject, event.to_string()));
            }
        }));
    let running = server.bind("127.0.0.1:0").unwrap().start().unwrap();
    let session = || {
        let mut stream = secure(running.local_addr(), &files.trust());
        while stream.conn.is_handshaking() || stream.conn.wants_write() {
            stream.conn.complete_io(&mut stream.sock).unwrap();
        }
        stream
    };
    let next = || reported.recv_timeout(Duration::from_secs(60)).unwrap();
    // A session that just ends has not failed.
    session().sock.shutdown(std::net::Shutdown::Write).unwrap();
    for (record, reason) in [
        (
            [&[23, 3, 3, 0, 20][..], &[0; 20]].concat(),
            "a record that it sent could not be authenticated",
        ),
        (vec![21, 3, 3, 0, 2, 2, 40], "it sent a record that TLS forbids at this time"),
    ] {
        let mut stream = session();
        stream.sock.write_all(&record).unwrap();
        let (subject, text) = next();
        assert_eq!(subject.peer, stream.sock.local_addr().ok());
        assert_eq!(subject.client, subject.peer.map(|peer| peer.ip()));
        let peer = subject.peer.unwrap();
        assert_eq!(text, format!("the TLS session with {peer} failed: {reason}"));
    }
    end(running);
}

#[test]
fn handshakes_are_as_many_a_second_as_the_setting_says() {
    let files = Files::new("rate");
    let tls = files.tls().max_handshakes_per_second(1);
    let running =
        Server::new(app()).shards(1).tls(tls).bind("127.0.0.1:0").unwrap().start().unwrap();
    let mut waiting: Vec<Stream> =
        (0..60).map(|_| secure(running.local_addr(), &files.trust())).collect();
    for stream in &mut waiting {
        while stream.conn.wants_write() {
            stream.conn.write_tls(&mut stream.sock).unwrap();
        }
        stream.sock.set_nonblocking(true).unwrap();
    }
    // In a minute all have begun.
    let served = || {
        let is_served = |stream: &&Stream| stream.sock.peek(&mut [0]).is_ok();
        waiting.iter().filter(is_served).count()
    };
    crate::support::eventually("one is served", || served() > 0);
    assert!(served() < 60);
    drop(waiting);
    end(running);
}
