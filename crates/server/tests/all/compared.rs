//! Programs that the cookbook compares with equivalents on other libraries: their behavior and
//! their lines. `conformance/programs/run` runs the same tests on the others.

#[path = "../../examples/chat.rs"]
mod chat;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use throng::client::{Client, ClientBuilder};
use throng::prelude::*;
use throng::test::TestServer;
use throng_testkit::eventually;

use crate::{dashboard, game};

const TIMEOUT: Duration = Duration::from_secs(60);

fn builder(address: SocketAddr, path: &str) -> ClientBuilder {
    Client::builder(&format!("ws://{address}{path}")).connect_timeout(TIMEOUT)
}

fn connect(address: SocketAddr, path: &str) -> Client {
    builder(address, path).connect().unwrap()
}

fn next(client: &mut Client) -> String {
    match client.recv_timeout(TIMEOUT).unwrap() {
        Some(Message::Text(text)) => text.to_owned(),
        other => panic!("{other:?}"),
    }
}

fn close_code(client: &mut Client) -> u16 {
    while client.recv_timeout(TIMEOUT).unwrap().is_some() {}
    client.close_frame().expect("the server closes").code.get()
}

/// A member of a room that has seen its own line, so that it is a member.
fn member(address: SocketAddr, room: &str, name: &str) -> Client {
    let mut client = connect(address, &format!("/chat/{room}?name={name}"));
    client.send("here").unwrap();
    while next(&mut client) != format!("{name}: here") {}
    client
}

fn check_chat(address: SocketAddr) {
    const LINES: usize = 100;
    let mut eve = member(address, "attic", "eve");
    let mut members = ["a", "b", "c"].map(|name| member(address, "lobby", name));
    std::thread::scope(|scope| {
        for member in &mut members {
            scope.spawn(|| (0..LINES).for_each(|n| member.send(&*n.to_string()).unwrap()));
        }
    });
    let [first, others @ ..] = members.each_mut().map(|member| {
        let lines = std::iter::repeat_with(|| next(member)).filter(|line| !line.ends_with("here"));
        lines.take(3 * LINES).collect::<Vec<_>>()
    });
    assert!(others.iter().all(|other| *other == first), "members see one order");
    eve.send("alone").unwrap();
    assert_eq!(next(&mut eve), "eve: alone");
    eve.send(b"\0").unwrap();
    assert_eq!(close_code(&mut eve), 1003);
    assert!(builder(address, "/chat").connect().is_err(), "a room has a name");
}

fn check_game(address: SocketAddr) {
    let place = |client: &mut Client| next(client).rsplit_once(':').unwrap().1.parse::<i64>();
    let path = "/rooms/1?name=ada";
    let mut ada = connect(address, path);
    ada.send("right").unwrap();
    eventually("ada moves", || place(&mut ada).unwrap() > 1);
    let mut phone = connect(address, path);
    assert_eq!(close_code(&mut ada), 4001);
    // On a machine that takes more than three seconds for it, the place is new.
    eventually("the place is kept", || {
        phone.send("right").unwrap();
        while place(&mut phone).unwrap() <= 1 {}
        phone = connect(address, path);
        place(&mut phone).unwrap() > 1
    });
    assert!(builder(address, "/rooms/1").connect().is_err(), "a player has a name");
}

/// Sends a request; the stream has the response.
fn request(address: SocketAddr, line: &str, fields: &[&str], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
    let length = body.len();
    let head = format!("{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{fields}\r\n");
    stream.write_all((head + body).as_bytes()).unwrap();
    stream
}

/// Returns the response to a request.
fn ask(address: SocketAddr, line: &str, fields: &[&str], body: &str) -> String {
    let fields = [fields, &["Connection: close"]].concat();
    let mut response = String::new();
    request(address, line, &fields, body).read_to_string(&mut response).unwrap();
    response
}

fn check_dashboard(address: SocketAddr) {
    let asks = |line: &str, fields: &[&str], body: &str, expected: &[&str]| {
        let response = ask(address, line, fields, body);
        let lower = response.to_lowercase();
        let is_there = |text: &&str| lower.contains(&text.to_lowercase());
        assert!(expected.iter().all(is_there), "{line}: {response}");
        response
    };
    let origin = "Origin: https://app.example";
    let allowed = "access-control-allow-origin: https://app.example\r\n";
    let preflight = [origin, "Access-Control-Request-Method: POST"];
    asks("OPTIONS /api/orders", &preflight, "", &["1.1 20", allowed]);
    asks("GET /api/orders", &[origin], "", &["1.1 401 ", allowed]);
    let form = "Content-Type: application/x-www-form-urlencoded";
    asks("POST /api/login", &[form], "name=ada", &["1.1 204 ", "set-cookie: name=ada;"]);
    let cookie = "Cookie: a=b; name=ada";
    asks("GET /orders/7", &[], "", &["1.1 200 ", "<!doctype html>"]);
    let mut live = connect(address, "/live");
    let mut events = BufReader::new(request(address, "GET /live", &[], "")).lines();
    // The head shows that the stream has begun; an order that comes back shows that the session
    // has.
    while !events.next().expect("a head").unwrap().is_empty() {}
    eventually("the session is a member", || {
        asks("POST /api/orders", &[cookie], "first", &["1.1 201 "]);
        matches!(live.recv_timeout(Duration::from_millis(100)), Ok(Some(_)))
    });
    let mut event = || {
        let data = |line: String| line.strip_prefix("data: ").map(str::to_owned);
        events.find_map(|line| data(line.unwrap())).expect("the stream goes on")
    };
    asks("POST /api/orders", &[cookie], "second", &["1.1 201 "]);
    while event() != "second" {}
    while next(&mut live) != "second" {}
    asks("GET /api/orders", &[cookie], "", &["first\nsecond\n"]);
    asks("PUT /api/files", &[cookie], &"x".repeat(200_000), &["1.1 201 ", "200000 bytes"]);
    while next(&mut live) != "upload: 200000 bytes" {}
    while event() != "upload: 200000 bytes" {}
    // An upload that breaks off.
    let lines = [cookie, "Content-Length: 9"];
    let mut broken = TcpStream::connect(address).unwrap();
    let head = format!("PUT /api/files HTTP/1.1\r\nHost: x\r\n{}\r\n\r\nhalf", lines.join("\r\n"));
    broken.write_all(head.as_bytes()).unwrap();
    while next(&mut live) != "upload: 4 bytes" {}
    drop(broken);
    let error = next(&mut live);
    assert!(error.starts_with("upload: ") && !error.ends_with("bytes"), "{error}");
}

#[test]
fn a_dashboard() {
    check_dashboard(TestServer::start(dashboard::server().shards(2)).address());
}

#[test]
fn a_chat() {
    let app = App::new().ws("/chat/{room}", chat::chat());
    check_chat(TestServer::start(Server::new(app).shards(2)).address());
}

#[test]
fn a_game() {
    let server = TestServer::start(game::server().shards(2));
    check_game(server.address());
}

/// `PROGRAM ADDRESS` in the environment, of a program that listens already.
#[test]
#[ignore = "conformance/programs/run starts the programs"]
fn a_program_on_another_library() {
    let of = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let address = of("ADDRESS").parse().unwrap();
    eventually("it listens", || TcpStream::connect(address).is_ok());
    match of("PROGRAM").as_str() {
        "chat" => check_chat(address),
        "game" => check_game(address),
        "dashboard" => check_dashboard(address),
        other => panic!("PROGRAM is {other}; give chat, game or dashboard"),
    }
}

/// Lines that are neither empty nor comments, without tests.
fn code_lines(path: &Path) -> usize {
    let source = std::fs::read_to_string(path).unwrap();
    let program = source.split("#[cfg(all(test").next().unwrap_or_default();
    let is_code = |line: &&str| !line.trim().is_empty() && !line.trim().starts_with("//");
    program.lines().filter(is_code).count()
}

#[test]
fn the_lines_in_the_cookbook_are_those_of_the_programs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cookbook = std::fs::read_to_string(root.join("docs/cookbook.md")).unwrap();
    for program in ["chat", "dashboard", "game"] {
        let lines = [
            format!("crates/server/examples/{program}.rs"),
            format!("conformance/programs/axum/src/bin/{program}.rs"),
            format!("conformance/programs/node/{program}.js"),
        ]
        .map(|path| root.join(path))
        .map(|path| if path.exists() { code_lines(&path).to_string() } else { "-".into() });
        let row = format!("| {program} | {} |", lines.join(" | "));
        assert!(cookbook.contains(&row), "docs/cookbook.md has no row {row}");
    }
}
