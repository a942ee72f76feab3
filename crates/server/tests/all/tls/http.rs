//! Requests over TLS, and the TLS data of requests and responses.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use throng::http::SourcePull;
use throng::prelude::*;
use throng::server::{IoBackend, Proxies};
use throng::tls::{PlainHttp, RequestTls, Tls};
use throng_proto::ws::Opcode;

use super::{Files, app, ask, backends, connect, end, plain, secure, start};
use crate::support::{Got, dial, exchange};

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
    assert!(answer.contains("\r\nDate: ") && answer.contains(" GMT\r\n"), "{answer}");
    end(running);
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
        let running = server.start().unwrap();
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
    let (authorities, config) = files.with_certificate("client.example");
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
    let running = Server::new(app).tls(tls).bind("127.0.0.1:0").unwrap().start().unwrap();
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

#[test]
fn rfc9110_15_5_20_where_clients_have_certificates_a_request_is_for_its_connections_host() {
    let files = Files::new("misdirected");
    let bound = files.tls().client_auth(&files.chain, false);
    let start = |tls: &Tls, proxies: &[&str]| {
        let server = Server::new(app()).tls(tls.clone()).proxies(Proxies::new().trusted(proxies));
        server.bind("127.0.0.1:0").unwrap().start().unwrap()
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
    // A client without a server name may send any host.
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
    let folder = throng_testkit::TempFolder::new("misdirected");
    let path = folder.join("socket");
    for (proxies, status) in [(&["unix:"][..], "200"), (&["127.0.0.1"], "421")] {
        let tls = files.tls().client_auth(&files.chain, false);
        let server = Server::new(app()).tls(tls).proxies(Proxies::new().trusted(proxies));
        let socket = throng::server::UnixSocket::bind(&path, 0o600).unwrap();
        let running = server.listen_on([socket]).unwrap().start().unwrap();
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
        .route(
            "/later",
            Route::deferred(Method::Get, |_, responder| responder.send(Response::text("later"))),
        )
        .get("/endless", |_| {
            Response::new(Status::OK).with_stream(None, |_, _: &mut Vec<u8>| Ok(SourcePull::End))
        })
        .sse("/events", |_| Ok("all".to_owned()));
    let tls = files.tls().hsts(year, true).plain(PlainHttp::Serve);
    let running = Server::new(app).tls(tls).bind("127.0.0.1:0").unwrap().start().unwrap();
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
