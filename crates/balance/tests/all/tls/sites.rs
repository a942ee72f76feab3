//! TLS of sites: certificates and rules by name.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use throng_balance::Config;
use throng_testkit::{TempFolder, eventually};

use super::{Identity, Running, TlsClient, backend, dial, head, serve_head};

const HOSTS: [&str; 4] = ["open.example", "other.example", "mesh.example", "edge.example"];

/// A client that trusts these certificates, and shows `own`.
fn client(trusted: &[&Identity], own: Option<&Identity>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    trusted.iter().for_each(|it| roots.add(it.certificate.der().clone()).unwrap());
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let builder = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = vec![own.certificate.der().clone()];
            builder.with_client_auth_cert(chain, own.private_key()).unwrap()
        }
    })
}

fn connect(address: SocketAddr, config: &Arc<ClientConfig>, name: &str) -> TlsClient {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::clone(config), name).unwrap(), dial(address))
}

/// Returns the status of a request, or "closed" if the handshake fails.
fn status(stream: &mut (impl Read + Write), host: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    match stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer)) {
        Ok(_) => answer.split(' ').nth(1).unwrap_or("nothing").to_owned(),
        Err(_) => "closed".to_owned(),
    }
}

/// Files of the sites; `mesh` has the sites' rules.
fn text(backend: SocketAddr, mesh: &str) -> String {
    format!(
        "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
         tls = {{ listen = \"127.0.0.1:0\", cert = \"open.pem\", key = \"open.key\" }}\n\
         [[site]]\nhosts = [\"open.example\", \"other.example\"]\n\
         [[site]]\nhosts = \"mesh.example\"\ncert = \"mesh.pem\"\nkey = \"mesh.key\"\n{mesh}\n\
         [[site]]\nhosts = \"edge.example\"\ncert = [\"edge.pem\"]\nkey = [\"edge.key\"]\n\
         client_ca = \"edge-client.pem\"\nclient_auth = \"optional\"\n"
    )
}

const MESH: &str = "client_ca = \"mesh-client.pem\"\nmin_version = \"1.3\"\n";

struct World {
    folder: TempFolder,
    servers: [Identity; 3],
    mesh: Identity,
    edge: Identity,
}

impl World {
    fn new(name: &str) -> Self {
        let folder = TempFolder::new(name);
        let servers =
            [&["open.example", "other.example"][..], &["mesh.example"], &["edge.example"]];
        let servers = servers.map(Identity::new);
        for (server, name) in servers.iter().zip(["open", "mesh", "edge"]) {
            server.write(&folder, name);
        }
        let (mesh, edge) = (Identity::new(&["mesh client"]), Identity::new(&["edge client"]));
        mesh.write(&folder, "mesh-client");
        edge.write(&folder, "edge-client");
        Self { folder, servers, mesh, edge }
    }

    fn client(&self, own: Option<&Identity>) -> Arc<ClientConfig> {
        client(&self.servers.each_ref(), own)
    }
}

/// Each name of a connection with each host of a request.
#[test]
fn rfc9110_15_5_20_a_request_is_for_a_site_with_the_rules_of_its_connection() {
    let world = World::new("sites-tls");
    let (backend, _heads) = backend(|mut socket| serve_head(&mut socket));
    let running = Running::start(&text(backend, MESH), &world.folder);
    let &[plain, address] = running.0.addresses() else { panic!("two addresses") };
    let rules = |host: &str| match host {
        "mesh.example" => 1,
        "edge.example" => 2,
        _ => 0,
    };
    let clients = [
        (world.client(None), 0),
        (world.client(Some(&world.mesh)), 1),
        (world.client(Some(&world.edge)), 2),
    ];
    for (config, kind) in &clients {
        for name in HOSTS {
            for host in HOSTS {
                let status = status(&mut connect(address, config, name), host);
                let is_in = match rules(name) {
                    0 => true,
                    // Required.
                    1 => *kind == 1,
                    // Optional, and checked if one is shown.
                    _ => *kind != 1,
                };
                let expected = match rules(name) == rules(host) {
                    _ if !is_in => "closed",
                    true => "200",
                    false => "421",
                };
                assert_eq!(status, expected, "client {kind}, SNI {name}, Host {host}");
            }
        }
    }
    // Without TLS there is no certificate: other sites are served.
    for host in HOSTS {
        let expected = if rules(host) == 0 { "200" } else { "421" };
        assert_eq!(status(&mut dial(plain), host), expected, "{host}");
    }
}

/// A reload changes rules and certificates for new handshakes; open tunnels and requests that an
/// earlier handshake would let through do not profit from it.
#[test]
fn a_reload_changes_rules_and_closes_no_tunnel() {
    let world = World::new("sites-tls-reload");
    let (backend, _heads) = backend(|mut socket| {
        let asked = head(&mut socket);
        if !asked.contains("Upgrade: websocket") {
            socket
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
                .unwrap();
            return asked;
        }
        let key = asked.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let key = throng_proto::ws::handshake::accept_key(key);
        let accept = std::str::from_utf8(&key).unwrap();
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        socket.write_all(answer.as_bytes()).unwrap();
        std::thread::spawn(move || {
            let mut frame = [0; 10];
            while socket.read_exact(&mut frame).is_ok() && socket.write_all(b"\x82\x04echo").is_ok()
            {
            }
        });
        asked
    });
    let config = |mesh: &str| {
        let file = world.folder.join("balance.toml").display().to_string();
        Config::parse(&text(backend, mesh), &file).unwrap()
    };
    let running = Running(throng_balance::Balancer::start(config("")).unwrap());
    let address = running.0.addresses()[1];
    let apply = |mesh: &str| {
        let mut next = config(mesh);
        // As the file has them, with the ports that were free.
        next.listen = vec![running.0.addresses()[0].into()];
        next.tls.as_mut().unwrap().listen = vec![address.into()];
        running.0.apply(next).unwrap();
    };
    let unknown = world.client(None);
    let mut tunnel = connect(address, &unknown, "mesh.example");
    tunnel
        .write_all(
            b"GET /chat HTTP/1.1\r\nHost: mesh.example\r\nConnection: Upgrade\r\nUpgrade: \
              websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: \
              dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        )
        .unwrap();
    assert!(head(&mut tunnel).starts_with("HTTP/1.1 101 "));
    let echo = |tunnel: &mut TlsClient| {
        tunnel.write_all(b"\x82\x84\0\0\0\0echo").unwrap();
        let mut frame = [0; 6];
        tunnel.read_exact(&mut frame).unwrap();
        assert_eq!(&frame[2..], b"echo");
    };
    echo(&mut tunnel);
    let mut kept = connect(address, &unknown, "mesh.example");
    kept.write_all(b"GET / HTTP/1.1\r\nHost: mesh.example\r\n").unwrap();
    apply(MESH);
    // Its handshake was by the rules before.
    eventually("the event loop has the rules", || {
        status(&mut connect(address, &unknown, "mesh.example"), "mesh.example") == "closed"
    });
    kept.write_all(b"Connection: close\r\n\r\n").unwrap();
    assert!(head(&mut kept).starts_with("HTTP/1.1 421 "));
    let known = world.client(Some(&world.mesh));
    assert_eq!(status(&mut connect(address, &known, "mesh.example"), "mesh.example"), "200");
    echo(&mut tunnel);
    apply("");
    eventually("the event loop has the rules", || {
        status(&mut connect(address, &unknown, "mesh.example"), "mesh.example") == "200"
    });
    echo(&mut tunnel);
}

/// The client's algorithms choose between two certificates of one name.
#[test]
fn a_site_has_certificates_of_several_kinds() {
    let world = World::new("sites-tls-files");
    let wrong = [
        ("cert = \"mesh.pem\"", "each certificate needs its key: there are 1 in cert and 0 in key"),
        ("client_crl = \"a.crl\"", "sites[0].client_crl is \"a.crl\": it needs client_ca"),
        ("client_auth = \"optional\"", "it needs client_ca"),
        ("acme = true", "there is no authority: add [tls.acme]"),
    ];
    for (keys, expected) in wrong {
        let text = format!(
            "backends = [\"127.0.0.1:1\"]\ntls = {{ cert = \"open.pem\", key = \"open.key\" }}\n\
             [[site]]\nhosts = \"a.example\"\n{keys}\n"
        );
        let error = Config::parse(&text, "b.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let text = "backends = [\"127.0.0.1:1\"]\n[[site]]\nhosts = \"a.example\"\ncert = \"a.pem\"\n\
                key = \"a.key\"\n";
    let error = Config::parse(text, "b.toml").unwrap_err().to_string();
    assert!(error.contains("clients have no TLS: add a table [tls]"), "{error}");
    // The sites' certificates are enough.
    let (backend, _heads) = backend(|mut socket| serve_head(&mut socket));
    let text = format!(
        "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nshards = 1\n\
         tls.listen = \"127.0.0.1:0\"\n[[site]]\nhosts = \"mesh.example\"\n\
         cert = [\"mesh.pem\"]\nkey = [\"mesh.key\"]\n"
    );
    let running = Running::start(&text, &world.folder);
    let config = world.client(None);
    let address = running.0.addresses()[1];
    assert_eq!(status(&mut connect(address, &config, "mesh.example"), "mesh.example"), "200");
}

#[test]
fn rfc6797_7_a_site_has_its_own_time_of_strict_transport_security() {
    let world = World::new("sites-hsts");
    let (backend, _heads) = backend(|mut socket| serve_head(&mut socket));
    let text = format!(
        "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
         tls = {{ listen = \"127.0.0.1:0\", cert = \"open.pem\", key = \"open.key\", hsts = \"1h\" \
         }}\n\
         [[site]]\nhosts = \"open.example\"\nhsts = \"1d\"\nhsts_subdomains = true\n\
         routes = [{{ path = \"/own\", respond.text = \"own\" }}, {{ path = \"/\" }}]\n\
         [[site]]\nhosts = \"other.example\"\n"
    );
    let running = Running::start(&text, &world.folder);
    let &[plain, address] = running.0.addresses() else { panic!("two addresses") };
    let config = world.client(None);
    let ask = |stream: &mut dyn ReadWrite, host: &str, path: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
            .lines()
            .find_map(|line| line.strip_prefix("Strict-Transport-Security: "))
            .map(str::to_owned)
    };
    let own = Some("max-age=86400; includeSubDomains".to_owned());
    for (host, path, expected) in [
        ("open.example", "/", own.clone()),
        ("open.example", "/own", own),
        ("other.example", "/", Some("max-age=3600".to_owned())),
    ] {
        assert_eq!(ask(&mut connect(address, &config, host), host, path), expected, "{host}{path}");
        assert_eq!(ask(&mut dial(plain), host, path), None, "{host}{path}");
    }
    let wrong =
        format!("backends = [\"{backend}\"]\n[[site]]\nhosts = \"a\"\nhsts_subdomains = true\n");
    let error = Config::parse(&wrong, "b.toml").unwrap_err().to_string();
    assert!(error.contains("sites[0].hsts_subdomains is true: it needs hsts"), "{error}");
}

trait ReadWrite: Read + Write {}

impl<S: Read + Write> ReadWrite for S {}

/// The backends of one site end its TLS, beside sites whose TLS is ended here.
#[test]
fn a_site_is_passed_through_to_its_pool() {
    let world = World::new("sites-through");
    let theirs = Identity::new(&["db.example", "x.wild.example"]);
    let trusts_theirs = super::trusting(&theirs);
    let (behind, heads) = super::backend_with(theirs);
    let (backend, _heads) = backend(|mut socket| serve_head(&mut socket));
    let text = |pool: &str| {
        format!(
            "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
             pools = [{{ name = \"db\", backends = [\"{behind}\"], \
             health.check.kind = \"tcp\" }}]\n\
             tls = {{ listen = \"127.0.0.1:0\", cert = \"open.pem\", key = \"open.key\" }}\n\
             [[site]]\nhosts = [\"db.example\", \"*.wild.example\"]\npassthrough = \"{pool}\"\n\
             redirect.to = \"https://${{host}}${{uri}}\"\n\
             [[site]]\nhosts = \"open.example\"\n"
        )
    };
    let running = Running::start(&text("db"), &world.folder);
    let &[plain, address] = running.0.addresses() else { panic!("two addresses") };
    for name in ["db.example", "x.wild.example"] {
        let mut client = connect(address, &trusts_theirs, name);
        client.write_all(b"GET / HTTP/1.1\r\nHost: through.example\r\n\r\n").unwrap();
        assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
        // Checks connect without a handshake.
        assert!(heads.iter().any(|head| head.contains("through.example")));
    }
    let config = world.client(None);
    assert_eq!(status(&mut connect(address, &config, "open.example"), "open.example"), "200");
    // Without TLS it is a site like others.
    assert_eq!(status(&mut dial(plain), "db.example"), "308");
    for (text, expected) in [
        (text("none"), "sites[0].passthrough is \"none\": no pool has this name"),
        (
            text("db").replace("passthrough", "min_version = \"1.3\"\npassthrough"),
            "its backends end the TLS: drop it, or cert",
        ),
        (text("db").replace("*.wild", "**.wild"), "sites[0].hosts[1] is \"**.wild.example\": with"),
        (
            text("db").replace("health.check.kind = \"tcp\"", "tls = { verify = false }"),
            "sites[0].passthrough is \"db\": the balancer has TLS with backends of this pool",
        ),
    ] {
        let error = Config::parse(&text, "b.toml").unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// The subject of a client's certificate reaches its backend, and no client can claim one.
#[test]
fn the_subject_of_a_certificate_is_in_a_header() {
    let world = World::new("sites-subject");
    let (backend, heads) = backend(|mut socket| serve_head(&mut socket));
    let text = format!(
        "listen = \"127.0.0.1:0\"\nbackends = [\"{backend}\"]\nkeep_alive = 0\nshards = 1\n\
         tls = {{ listen = \"127.0.0.1:0\", cert = \"open.pem\", key = \"open.key\" }}\n\
         [[site]]\nhosts = \"edge.example\"\ncert = \"edge.pem\"\nkey = \"edge.key\"\n\
         client_ca = \"edge-client.pem\"\nclient_auth = \"optional\"\n\
         request_headers.set = {{ X-Caller = \"${{client_cert.subject}}\" }}\n"
    );
    let running = Running::start(&text, &world.folder);
    let address = running.0.addresses()[1];
    for (own, has_subject) in [(Some(&world.edge), true), (None, false)] {
        let mut client = connect(address, &world.client(own), "edge.example");
        client
            .write_all(
                b"GET / HTTP/1.1\r\nHost: edge.example\r\nX-Caller: CN=forged\r\n\
                  Connection: close\r\n\r\n",
            )
            .unwrap();
        assert!(head(&mut client).starts_with("HTTP/1.1 200 "));
        let asked = heads.recv().unwrap();
        let lines: Vec<_> = asked.lines().filter(|line| line.starts_with("X-Caller")).collect();
        match has_subject {
            true => assert!(lines.len() == 1 && lines[0].contains("CN="), "{lines:?}"),
            false => assert!(lines.is_empty(), "{lines:?}"),
        }
        assert!(!asked.contains("forged"), "{asked}");
    }
}
