//! The files of `docs/balance.md`: each starts as it stands there, with addresses of this machine,
//! and does what the page says.

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use throng_proto::ws::Opcode;
use throng_testkit::{Client, Got, TempFolder, poll};

use crate::support::{RequestHead, Served, throng};

const PAGE: &str = include_str!("../../../../../docs/balance.md");

/// Longer than anything here takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Returns the file of this name on the page.
fn example(name: &str) -> String {
    let begin = format!("```toml\n# {name}\n");
    let (_, after) = PAGE.split_once(&begin).unwrap_or_else(|| panic!("{name} is not there"));
    after.split_once("```").unwrap().0.to_owned()
}

/// A backend that answers requests with its address on the page, the path and a header, and that
/// accepts WebSockets.
fn backend(address: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (own, address) = (listener.local_addr().unwrap(), address.to_owned());
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let address = address.clone();
            std::thread::spawn(move || serve(&address, stream));
        }
    });
    own
}

fn serve(address: &str, mut stream: TcpStream) -> Option<()> {
    stream.set_read_timeout(Some(TIMEOUT)).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let head = RequestHead::read(&mut reader)?;
        if let Some(key) = head.field("sec-websocket-key") {
            let key = throng_proto::ws::handshake::accept_key(key);
            let key = str::from_utf8(&key).unwrap();
            let frame = [&[0x81, address.len() as u8][..], address.as_bytes()].concat();
            write!(
                stream,
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
                 Connection: Upgrade\r\nSec-WebSocket-Accept: {key}\r\n\r\n"
            )
            .ok()?;
            stream.write_all(&frame).ok()?;
            return std::io::copy(&mut reader, &mut std::io::sink()).ok().map(drop);
        }
        let path = head.request().split(' ').nth(1)?;
        let body = format!("{address} {path}");
        let length = body.len();
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").ok()?;
    }
}

/// Replaces each address of a backend by a backend of this machine, and the listener.
fn local(text: &str, known: &BTreeMap<&str, SocketAddr>) -> String {
    let mut local = String::new();
    let mut backends: BTreeMap<String, SocketAddr> =
        known.iter().map(|(name, address)| ((*name).to_owned(), *address)).collect();
    for line in text.lines() {
        if line.starts_with("listen = ") {
            local.push_str("listen = \"127.0.0.1:0\"\nshards = 1\n");
            continue;
        }
        for (at, part) in line.split('"').enumerate() {
            if at > 0 {
                local.push('"');
            }
            match part.parse::<SocketAddr>() {
                Ok(_) => {
                    let own = backends.entry(part.to_owned()).or_insert_with(|| backend(part));
                    local.push_str(&own.to_string());
                }
                Err(_) => local.push_str(part),
            }
        }
        local.push('\n');
    }
    local
}

/// Starts the balancer with an example.
fn start(name: &str, folder: &TempFolder, known: &BTreeMap<&str, SocketAddr>) -> Served {
    let file = folder.write(name, local(&example(name), known)).display().to_string();
    let check = throng().args(["config", "check", "balance", "--config", &file]).output().unwrap();
    assert!(check.status.success() && check.stderr.is_empty(), "{name}: {check:?}");
    Served::spawn(throng().args(["balance", "--config", &file]))
}

/// The status and the body of an answer, with the value of a header between them.
fn ask(served: &Served, host: &str, path: &str, headers: &str, wanted: &str) -> String {
    let mut stream = TcpStream::connect(served.addresses[0]).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Connection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap();
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let mut value = fields.filter(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, it)| it);
    match value.next_back() {
        Some(value) => format!("{status} {value} {body}"),
        None => format!("{status} {body}"),
    }
}

#[test]
fn a_chat_has_tunnels_an_api_and_pages() {
    let folder = TempFolder::new("examples");
    let served = start("chat.toml", &folder, &BTreeMap::new());
    let get = |path: &str| ask(&served, "chat.example", path, "", "");
    assert_eq!(get("/index.html"), "200 10.0.0.5:9001 /index.html");
    assert_eq!(get("/api/items?q=1"), "200 10.0.0.3:8080 /items?q=1");
    assert_eq!(get("/robots.txt"), "200 User-agent: *\nDisallow: /api");
    assert!(ask(&served, "other.example", "/", "", "").starts_with("404 "));
    let open = |origin: &str| {
        let stream = TcpStream::connect(served.addresses[0]).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let headers = [("Host", "chat.example"), ("Origin", origin)];
        upgrade(stream, "/ws", &headers)
    };
    assert!(open("https://evil.example").unwrap_err().starts_with("HTTP/1.1 403 "));
    let is_closed = || match open("https://chat.example").unwrap().next() {
        Got::Text(address) => {
            assert!(address.starts_with("10.0.0."), "{address}");
            false
        }
        other => {
            assert_eq!(other.close_code(), Some(1013));
            true
        }
    };
    // 21 at once, and five in each second that passes: many at a time, for a slow system.
    let closed = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..100).map(|_| scope.spawn(is_closed)).collect();
        clients.into_iter().map(|it| it.join().unwrap()).filter(|&it| it).count()
    });
    assert!(closed > 0, "the limit lets a client through");
}

/// Opens a WebSocket with these headers only.
fn upgrade(mut stream: TcpStream, path: &str, headers: &[(&str, &str)]) -> Result<Client, String> {
    let lines: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(
        stream,
        "GET {path} HTTP/1.1\r\n{lines}Upgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    .unwrap();
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0] as char);
    }
    match head.starts_with("HTTP/1.1 101 ") {
        true => Ok(Client::opened(stream)),
        false => Err(head),
    }
}

#[test]
fn tenants_have_their_own_pools_and_a_limit_by_key() {
    let folder = TempFolder::new("examples");
    let served = start("tenants.toml", &folder, &BTreeMap::new());
    let get = |host: &str, headers: &str| ask(&served, host, "/", headers, "");
    assert_eq!(get("acme.example", ""), "200 10.1.0.1:9001 /");
    assert_eq!(get("www.acme.example", ""), "200 10.1.0.1:9001 /");
    assert!(get("zeta.example", "").starts_with("200 10.2.0."));
    let is_refused = || get("zeta.example", "Authorization: one\r\n").starts_with("429 ");
    // 51 at once, and ten in each second that passes.
    assert!((0..2000).any(|_| is_refused()));
    assert!(get("zeta.example", "Authorization: two\r\n").starts_with("200 "));
}

#[test]
fn a_color_is_one_word_and_a_header_chooses_the_other() {
    let folder = TempFolder::new("examples");
    let served = start("colors.toml", &folder, &BTreeMap::new());
    let get = |served: &Served, headers: &str| ask(served, "any.example", "/", headers, "");
    assert!(get(&served, "").starts_with("200 10.0.1."));
    assert!(get(&served, "X-Color: blue\r\n").starts_with("200 10.0.0."));
    let stream = TcpStream::connect(served.addresses[0]).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut tunnel = upgrade(stream, "/", &[("Host", "any.example")]).unwrap();
    assert!(matches!(tunnel.next(), Got::Text(address) if address.starts_with("10.0.1.")));
    let file = folder.join("colors.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace("pool = \"green\"", "pool = \"blue\"")).unwrap();
    served.signal("-HUP");
    poll("new clients go to the other pool", || {
        get(&served, "").starts_with("200 10.0.0.").then_some(())
    });
    tunnel.send(Opcode::Ping, b"still there?");
    // A drain closes the tunnel, since the reload has left it open.
    served.terminate();
    assert_eq!(tunnel.next().close_code(), Some(1001));
}

#[test]
fn a_canary_has_its_share_and_a_way_in_and_out() {
    let folder = TempFolder::new("examples");
    let served = start("canary.toml", &folder, &BTreeMap::new());
    let get = |headers: &str| ask(&served, "app.example", "/", headers, "x-track");
    assert!(get("Cookie: canary=always\r\n").starts_with("200 canary 10.0.1.1:9001"));
    assert!(get("X-Canary: never\r\n").starts_with("200 stable 10.0.0."));
    let canaries = (0..400).filter(|_| get("").starts_with("200 canary")).count();
    // Twenty are expected, and the chance of none or of a hundred is below one in 10^8.
    assert!((1..100).contains(&canaries), "{canaries} of 400");
}

#[test]
fn a_gateway_takes_the_client_from_the_header_and_answers_checks() {
    let folder = TempFolder::new("examples");
    let served = start("gateway.toml", &folder, &BTreeMap::new());
    let get = |path: &str| ask(&served, "gw.example", path, "", "");
    assert_eq!(get("/healthz"), "200 ok");
    assert_eq!(get("/page"), "426 WebSockets only");
    poll("its backend is up", || {
        let stream = TcpStream::connect(served.addresses[0]).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let mut client = upgrade(stream, "/ws", &[("Host", "gw.example")]).ok()?;
        assert_eq!(client.next(), Got::Text("10.0.3.1:9001".to_owned()));
        Some(())
    });
}

#[test]
fn a_mesh_asks_for_certificates_on_both_sides() {
    let folder = TempFolder::new("examples");
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    folder.write("mesh-ca.pem", authority.pem());
    for (file, name) in
        [("mesh", "ledger.internal"), ("lb", "lb"), ("ann", "ann"), ("backend", "ledger.internal")]
    {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, file);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        folder.write(&format!("{file}.pem"), params.signed_by(&key, &authority).unwrap().pem());
        folder.write(&format!("{file}.key"), key.serialize_pem());
    }
    let path = |name: &str| folder.join(name).display().to_string();
    let words = [
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        &path("backend.pem"),
        "--tls-key",
        &path("backend.key"),
        "--set",
        "allowed_hosts=*",
        "--set",
        &format!("tls.client_ca={}", path("mesh-ca.pem")),
    ]
    .map(str::to_owned);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let backend = Served::start(&words);
    let known = BTreeMap::from([("10.0.3.1:9443", backend.addresses[0])]);
    let served = start("mesh.toml", &folder, &known);
    let port = served.addresses[0].port();
    let url = format!("https://ledger.internal:{port}/livez");
    let curl = |client: &[&str]| {
        let resolve = format!("ledger.internal:{port}:127.0.0.1");
        let mut command = Command::new("curl");
        command.args(["-sS", "--cacert", &path("mesh-ca.pem"), "--resolve", &resolve, &url]);
        command.args(["-o", "/dev/null", "-w", "%{http_code}"]).args(client).output().unwrap()
    };
    if Command::new("curl").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "on CI curl has to be installed");
        println!("skipped: curl is not installed: apt-get install curl");
        return;
    }
    assert!(!curl(&[]).status.success(), "a client without a certificate is refused");
    let answer = curl(&["--cert", &path("ann.pem"), "--key", &path("ann.key")]);
    assert_eq!(String::from_utf8(answer.stdout).unwrap(), "200");
}
