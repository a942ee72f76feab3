//! Rules of an address with TLS: hosts, Strict-Transport-Security, ticket keys.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use throng_testkit::TempFolder;

use super::{
    Identity, Running, authority, backend, dial, get, head, secured, serve_head, trusting,
};

/// A head with a host; the connection ends after this request.
fn request(host: &str) -> Vec<u8> {
    format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").into_bytes()
}

fn answer_to(stream: &mut (impl Read + Write), request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn rfc9110_15_5_20_where_clients_have_certificates_a_request_is_for_its_connections_host() {
    let (folder, own) = (TempFolder::new("misdirected"), Identity::new(&["balancer.example"]));
    own.write(&folder, "own");
    authority().write(&folder, "authority");
    let (backend, _heads) = backend(|mut socket| serve_head(&mut socket));
    let bound = "client_ca = \"authority.pem\"\nclient_auth";
    for (settings, table, host, status) in [
        ("", format!("{bound} = \"optional\""), "balancer.example:443", "200"),
        ("", format!("{bound} = \"optional\""), "other.example", "421"),
        // Clients are not asked for certificates here, so all hosts are treated alike.
        ("", format!("{bound} = \"none\""), "other.example", "200"),
        ("", String::new(), "other.example", "200"),
        // A proxy repeats the host that its client requested.
        (
            "trusted_proxies = [\"127.0.0.1\"]",
            format!("{bound} = \"optional\""),
            "other.example",
            "200",
        ),
    ] {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             {settings}\n[tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n{table}\n"
        );
        let running = Running::start(&text, &folder);
        let mut client = secured(running.0.addresses()[0], &own, "balancer.example");
        let answer = answer_to(&mut client, &request(host));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{table}, {host}: {answer}");
    }
}

#[test]
fn rfc6797_7_answers_over_tls_alone_make_browsers_use_tls() {
    let (folder, own) = (TempFolder::new("hsts"), Identity::new(&["balancer.example"]));
    own.write(&folder, "own");
    let (backend, _heads) = backend(|mut socket| {
        let head = head(&mut socket);
        let own = if head.contains("own.example") {
            "Strict-Transport-Security: max-age=5\r\n"
        } else {
            ""
        };
        let answer =
            format!("HTTP/1.1 200 OK\r\n{own}Content-Length: 2\r\nConnection: close\r\n\r\nok");
        socket.write_all(answer.as_bytes()).unwrap();
        head
    });
    let text = |hsts: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             [tls]\nlisten = \"127.0.0.1:0\"\ncert = \"own.pem\"\nkey = \"own.key\"\n{hsts}\n"
        )
    };
    let running = Running::start(&text("hsts = \"1y\"\nhsts_subdomains = true"), &folder);
    let &[plain, tls] = running.0.addresses() else { panic!("two addresses") };
    let line = "\r\nStrict-Transport-Security: max-age=31536000; includeSubDomains\r\n";
    let over_tls = |request: &[u8]| answer_to(&mut secured(tls, &own, "balancer.example"), request);
    for (request, status) in [
        (request("balancer.example"), "200"),
        (b"no request\r\n\r\n".to_vec(), "400"),
        (b"TRACE / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(), "501"),
    ] {
        let answer = over_tls(&request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert_eq!(answer.matches(line).count(), 1, "{answer}");
    }
    let answer = over_tls(&request("own.example"));
    assert_eq!(answer.matches("Strict-Transport").count(), 1, "{answer}");
    assert!(answer.contains("max-age=5\r\n"), "{answer}");
    let answer = answer_to(&mut dial(plain), &request("balancer.example"));
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("Strict"), "{answer}");

    let running = Running::start(&text(""), &folder);
    let tls = running.0.addresses()[1];
    let answer =
        answer_to(&mut secured(tls, &own, "balancer.example"), &request("balancer.example"));
    assert!(answer.starts_with("HTTP/1.1 200 ") && !answer.contains("Strict"), "{answer}");
}

#[test]
fn balancers_with_the_same_keys_resume_each_others_sessions() {
    let (folder, own) = (TempFolder::new("tickets"), Identity::new(&["balancer.example"]));
    own.write(&folder, "own");
    let keys = folder.join("keys");
    std::fs::write(&keys, (0..80).collect::<Vec<u8>>()).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    let (backend, _heads) = backend(|mut socket| serve_head(&mut socket));
    let start = |more: &str| {
        let text = format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             [tls]\ncert = \"own.pem\"\nkey = \"own.key\"\n{more}\n"
        );
        Running::start(&text, &folder)
    };
    let shared = "ticket_keys = \"keys\"";
    let nodes = [start(shared), start(shared), start("")];
    // One client with one session store.
    let config = trusting(&own);
    let is_resumed = |node: &Running| {
        let name = ServerName::try_from("balancer.example").unwrap();
        let client = ClientConnection::new(Arc::clone(&config), name).unwrap();
        let mut stream = StreamOwned::new(client, dial(node.0.addresses()[0]));
        assert!(get(&mut stream).starts_with("HTTP/1.1 200 "));
        stream.conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
    };
    let resumed = [0, 1, 0, 2].map(|node| is_resumed(&nodes[node]));
    assert_eq!(resumed, [false, true, true, false]);
}
