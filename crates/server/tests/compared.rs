//! Programs that the cookbook compares with the same ones on other libraries: what each does, and
//! its lines. `conformance/programs/run` has the others pass the same tests.

#[path = "../examples/chat.rs"]
mod chat;
#[path = "../examples/game.rs"]
mod game;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use throng::client::{Builder, Client};
use throng::prelude::*;
use throng::test::TestServer;
use throng_testkit::eventually;

const TIMEOUT: Duration = Duration::from_secs(60);

fn builder(address: SocketAddr, path: &str) -> Builder {
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
    // On a machine that takes more than three seconds for it, the place is a new one.
    eventually("the place is kept", || {
        phone.send("right").unwrap();
        while place(&mut phone).unwrap() <= 1 {}
        phone = connect(address, path);
        place(&mut phone).unwrap() > 1
    });
    assert!(builder(address, "/rooms/1").connect().is_err(), "a player has a name");
}

#[test]
fn a_chat() {
    let app = App::new().ws("/chat/{room}", chat::chat());
    check_chat(TestServer::start(Server::new(app).shards(2)).address());
}

#[test]
fn a_game() {
    let game = game::Game::default();
    let server = TestServer::start(game::server(&game).shards(2));
    let hub = server.hub();
    std::thread::spawn(move || game::run(&game, &hub));
    check_game(server.address());
}

/// `PROGRAM ADDRESS` in the environment, of a program that listens already.
#[test]
#[ignore = "conformance/programs/run starts the programs"]
fn a_program_on_another_library() {
    let of = |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"));
    let address = of("ADDRESS").parse().unwrap();
    eventually("it listens", || std::net::TcpStream::connect(address).is_ok());
    match of("PROGRAM").as_str() {
        "chat" => check_chat(address),
        "game" => check_game(address),
        other => panic!("PROGRAM is {other}; give chat or game"),
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
    for program in ["chat", "game"] {
        let lines = [
            format!("crates/server/examples/{program}.rs"),
            format!("conformance/programs/axum/src/bin/{program}.rs"),
            format!("conformance/programs/node/{program}.js"),
        ]
        .map(|path| code_lines(&root.join(path)).to_string());
        let row = format!("| {program} | {} |", lines.join(" | "));
        assert!(cookbook.contains(&row), "docs/cookbook.md has no row {row}");
    }
}
