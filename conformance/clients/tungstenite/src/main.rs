//! tungstenite and tokio-tungstenite against the server: `tungstenite-check 127.0.0.1:9001`.
//!
//! The variable `THRONG_TLS` has the version of TLS to offer, if any.

mod asynchronous;
mod secured;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::panic::catch_unwind;
use std::process::ExitCode;
use std::time::Duration;

use tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tungstenite::protocol::frame::{CloseFrame, Frame};
use tungstenite::{Error, HandshakeError, Message, WebSocket};

type Socket = WebSocket<Box<dyn Stream>>;

/// A connection with TLS or without.
trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

/// Time limit of a single response.
const LIMIT: Duration = Duration::from_secs(10);

/// A check; it fails by panicking.
type Check = fn(SocketAddr);

const CHECKS: &[(&str, Check)] = &[
    ("text, binary, empty and 1 MiB messages come back", messages_come_back),
    (
        "a fragmented message comes back whole, with a ping between its frames",
        fragments_come_back_whole,
    ),
    ("a ping is answered with its own payload", pings_are_answered),
    ("the close code of the client comes back", close_codes_come_back),
    ("what breaks a rule is closed with its code", broken_rules_have_their_code),
    ("10,000 pipelined messages come back in order", a_burst_comes_back_in_order),
    ("no extension and no subprotocol is chosen", nothing_is_chosen),
    ("an unknown path is refused", an_unknown_path_is_refused),
    ("a channel reaches its other members", a_channel_reaches_its_members),
    ("tokio-tungstenite gets its messages back", asynchronous::messages_come_back),
    ("tokio-tungstenite sends while it receives", asynchronous::a_burst_comes_back_in_order),
];

fn main() -> ExitCode {
    let Some(server) = std::env::args().nth(1).and_then(|text| text.parse::<SocketAddr>().ok())
    else {
        eprintln!("usage: tungstenite-check 127.0.0.1:9001");
        return ExitCode::from(2);
    };
    // The panic's message goes to standard error, the verdict to standard output.
    let failed = CHECKS.iter().filter(|(name, body)| {
        let failed = catch_unwind(|| body(server)).is_err();
        println!("{} {name}", if failed { "FAILED" } else { "ok" });
        failed
    });
    ExitCode::from(u8::from(failed.count() > 0))
}

fn dial(server: SocketAddr) -> Box<dyn Stream> {
    let stream = TcpStream::connect_timeout(&server, LIMIT).expect("the server accepts");
    stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
    stream.set_write_timeout(Some(LIMIT)).expect("a time limit");
    match secured::config() {
        Some(config) => Box::new(secured::handshake(config, stream)),
        None => Box::new(stream),
    }
}

fn url(server: SocketAddr, path: &str) -> String {
    let scheme = if secured::version().is_some() { "wss" } else { "ws" };
    format!("{scheme}://{server}{path}")
}

fn connect(server: SocketAddr, path: &str) -> Result<Socket, Box<Error>> {
    match tungstenite::client(url(server, path), dial(server)) {
        Ok((socket, response)) => {
            assert_eq!(response.status(), 101);
            Ok(socket)
        }
        Err(HandshakeError::Failure(error)) => Err(Box::new(error)),
        Err(HandshakeError::Interrupted(_)) => panic!("the handshake did not end in time"),
    }
}

fn open(server: SocketAddr, path: &str) -> Socket {
    connect(server, path).expect("the server upgrades")
}

fn expect_echo(socket: &mut Socket, message: Message) {
    socket.send(message.clone()).expect("it is sent");
    let answer = socket.read().expect("an answer");
    assert!(answer == message, "{} bytes came back for {}", answer.len(), message.len());
}

fn close(mut socket: Socket) {
    let normal = CloseFrame { code: CloseCode::Normal, reason: "done".into() };
    socket.close(Some(normal)).expect("a close frame is sent");
    expect_closed(&mut socket, Some(1000));
}

/// Reads until the end; the server must send this code, and then close the transport.
fn expect_closed(socket: &mut Socket, code: Option<u16>) {
    let mut said = None;
    loop {
        match socket.read() {
            Ok(Message::Close(frame)) => said = Some(frame.map(|frame| u16::from(frame.code))),
            Ok(_) => {}
            Err(Error::ConnectionClosed) => break,
            Err(error) => panic!("no orderly close: {error}"),
        }
    }
    assert_eq!(said, Some(code));
}

fn messages_come_back(server: SocketAddr) {
    let mut socket = open(server, "/echo");
    let bytes = |length: usize| (0..length).map(|index| (index * 7) as u8).collect::<Vec<_>>();
    expect_echo(&mut socket, Message::text("Hello, 世界 🦀"));
    expect_echo(&mut socket, Message::text(""));
    expect_echo(&mut socket, Message::binary(bytes(0)));
    for length in [1, 125, 126, 127, 65_535, 65_536, 1 << 20] {
        expect_echo(&mut socket, Message::binary(bytes(length)));
        expect_echo(&mut socket, Message::text("é".repeat(length / 2)));
    }
    close(socket);
}

fn fragments_come_back_whole(server: SocketAddr) {
    let mut socket = open(server, "/echo");
    let frame = |text: &'static str, kind, last| {
        Message::Frame(Frame::message(text, OpCode::Data(kind), last))
    };
    socket.send(frame("one ", Data::Text, false)).unwrap();
    socket.send(frame("two ", Data::Continue, false)).unwrap();
    socket.send(Message::Ping("in between".into())).unwrap();
    socket.send(frame("three", Data::Continue, true)).unwrap();
    assert_eq!(socket.read().unwrap(), Message::Pong("in between".into()));
    assert_eq!(socket.read().unwrap(), Message::text("one two three"));
    close(socket);
}

fn pings_are_answered(server: SocketAddr) {
    let mut socket = open(server, "/echo");
    for length in [0, 4, 125] {
        let payload = "x".repeat(length);
        socket.send(Message::Ping(payload.clone().into())).unwrap();
        assert_eq!(socket.read().unwrap(), Message::Pong(payload.into()));
    }
    socket.send(Message::Pong("unasked".into())).unwrap();
    expect_echo(&mut socket, Message::text("still here"));
    close(socket);
}

fn close_codes_come_back(server: SocketAddr) {
    for code in [1000, 1001, 3000, 4999] {
        let mut socket = open(server, "/echo");
        socket.close(Some(CloseFrame { code: code.into(), reason: "why é".into() })).unwrap();
        expect_closed(&mut socket, Some(code));
    }
    let mut socket = open(server, "/echo");
    socket.close(None).unwrap();
    expect_closed(&mut socket, None);
}

fn broken_rules_have_their_code(server: SocketAddr) {
    let invalid_text = Frame::message(vec![0x48, 0xff, 0x49], OpCode::Data(Data::Text), true);
    let stray = Frame::message("of what?", OpCode::Data(Data::Continue), true);
    let reserved = Frame::message("what?", OpCode::Data(Data::Reserved(3)), true);
    for (frame, code) in [(invalid_text, 1007), (stray, 1002), (reserved, 1002)] {
        let mut socket = open(server, "/echo");
        socket.send(Message::Frame(frame)).unwrap();
        expect_closed(&mut socket, Some(code));
    }
}

fn a_burst_comes_back_in_order(server: SocketAddr) {
    let mut socket = open(server, "/echo");
    for number in 0..10_000 {
        socket.write(Message::text(number.to_string())).unwrap();
    }
    socket.flush().unwrap();
    for number in 0..10_000 {
        assert_eq!(socket.read().unwrap(), Message::text(number.to_string()));
    }
    close(socket);
}

fn nothing_is_chosen(server: SocketAddr) {
    let (mut socket, response) =
        tungstenite::client(url(server, "/echo"), dial(server)).unwrap();
    for header in ["sec-websocket-protocol", "sec-websocket-extensions"] {
        assert!(!response.headers().contains_key(header), "{header} was sent");
    }
    expect_echo(&mut socket, Message::text("plain"));
    close(socket);
}

fn an_unknown_path_is_refused(server: SocketAddr) {
    match connect(server, "/nowhere").map_err(|error| *error) {
        Err(Error::Http(response)) => assert_eq!(response.status(), 404),
        Err(error) => panic!("refused in another way: {error}"),
        Ok(_) => panic!("it was accepted"),
    }
}

fn a_channel_reaches_its_members(server: SocketAddr) {
    let mut ann = open(server, "/ws/tungstenite");
    let mut bob = open(server, "/ws/tungstenite");
    let mut eve = open(server, "/ws/tungstenite?echo=1");
    ann.send(Message::text("from ann")).unwrap();
    assert_eq!(bob.read().unwrap(), Message::text("from ann"));
    assert_eq!(eve.read().unwrap(), Message::text("from ann"));
    eve.send(Message::binary(vec![0, 1])).unwrap();
    for member in [&mut ann, &mut bob, &mut eve] {
        assert_eq!(member.read().unwrap(), Message::binary(vec![0, 1]));
    }
    [ann, bob, eve].into_iter().for_each(close);
}
