//! A small separate server with one thread per connection, so that the generator is not tested
//! against the engine that it is built on. It can also misbehave.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use throng_proto::Input;
use throng_proto::ws::handshake::accept_key;
use throng_proto::ws::{Decoder, Event, Limits, Opcode, Role, encode};

/// Behaviour of the server towards its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Sends every message back.
    Echo,
    /// Sends every message to all others.
    Channel,
    /// Like a channel, but every fifth message of a connection is not delivered.
    Lossy,
    /// Like a channel, but every fifth message of a connection is delivered twice.
    Repeat,
    /// Sends the seventh message back with a byte changed.
    Forge,
    /// Answers text with binary.
    Confuse,
    /// Ends the connection at the seventh message.
    Cut,
    /// Never answers a message.
    Mute,
    /// Answers the upgrade with 404.
    NotFound,
    /// Ends the connection instead of answering the upgrade.
    HangUp,
    /// Accepts the upgrade with the wrong key.
    WrongKey,
    /// Never answers the upgrade.
    Silent,
    /// Echoes to clients that send `Authorization`, and chooses the first subprotocol; otherwise
    /// answers with 401.
    Guarded,
    /// Chooses a subprotocol that was not offered.
    Imposes,
    /// Greets with `welcome`, and sends `noise` before each echo.
    Noisy,
}

type Members = Arc<Mutex<Vec<(SocketAddr, TcpStream)>>>;
/// The heads of upgrade requests.
pub(crate) type Heads = Arc<Mutex<Vec<String>>>;

/// Starts a server on a free port. It ends with the process.
pub(crate) fn start(behaviour: Behaviour) -> SocketAddr {
    start_recording(behaviour).0
}

/// Starts a server that keeps the heads of all upgrade requests.
pub(crate) fn start_recording(behaviour: Behaviour) -> (SocketAddr, Heads) {
    let heads = Heads::default();
    let recorded = Arc::clone(&heads);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let members = Members::default();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, members) = (stream.unwrap(), Arc::clone(&members));
            let heads = Arc::clone(&recorded);
            thread::Builder::new()
                .stack_size(128 << 10)
                .spawn(move || {
                    let peer = stream.peer_addr();
                    let _ = serve(stream, behaviour, &members, &heads);
                    if let Ok(peer) = peer {
                        members.lock().unwrap().retain(|(member, _)| *member != peer);
                    }
                })
                .unwrap();
        }
    });
    (address, heads)
}

fn serve(
    mut stream: TcpStream,
    behaviour: Behaviour,
    members: &Members,
    heads: &Heads,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let head = read_head(&mut stream)?;
    heads.lock().unwrap().push(head.clone());
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    match behaviour {
        Behaviour::NotFound => {
            return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        }
        Behaviour::Guarded if !head.contains("\r\nAuthorization: Bearer ") => {
            return stream.write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
        }
        Behaviour::HangUp => return Ok(()),
        Behaviour::Silent => {
            let _ = stream.read(&mut [0; 64]);
            return Ok(());
        }
        _ => {}
    }
    let accept = match behaviour {
        Behaviour::WrongKey => accept_key("dGhlIHNhbXBsZSBub25jZQ=="),
        _ => accept_key(key),
    };
    let accept = std::str::from_utf8(&accept).unwrap();
    let offered = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Protocol: "));
    let first = offered.and_then(|names| names.split(", ").next());
    let chosen = match (behaviour, first) {
        (Behaviour::Guarded, Some(first)) => format!("Sec-WebSocket-Protocol: {first}\r\n"),
        (Behaviour::Imposes, _) => "Sec-WebSocket-Protocol: mine\r\n".to_owned(),
        _ => String::new(),
    };
    // Holds the lock, so that no member's message arrives before the response, and no message is
    // missed after it.
    let mut joined = members.lock().unwrap();
    write!(
        stream,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: \
         Upgrade\r\n{chosen}Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )?;
    if matches!(behaviour, Behaviour::Channel | Behaviour::Lossy | Behaviour::Repeat) {
        joined.push((stream.peer_addr()?, stream.try_clone()?));
    }
    drop(joined);
    if behaviour == Behaviour::Noisy {
        let mut greeting = Vec::new();
        encode(Opcode::Text, b"welcome", &mut greeting);
        stream.write_all(&greeting)?;
    }
    let mut decoder = Decoder::new(Role::Server);
    let limits = Limits { max_frame_size: 1 << 26, max_message_size: 1 << 26 };
    let (mut buffer, mut answers, mut seen) = (vec![0; 64 << 10], Vec::new(), 0);
    loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        let mut input = Input::new(&mut buffer[..n]);
        while let Some(event) = decoder.next_event(&mut input, &limits).unwrap() {
            let (opcode, payload) = match event {
                Event::Text(text) => (Opcode::Text, text.as_bytes()),
                Event::Binary(bytes) => (Opcode::Binary, bytes),
                Event::Close(_) => {
                    encode(Opcode::Close, &[], &mut answers);
                    return stream.write_all(&answers);
                }
                _ => continue,
            };
            seen += 1;
            match behaviour {
                Behaviour::Mute => {}
                Behaviour::Noisy => {
                    encode(Opcode::Text, b"noise", &mut answers);
                    encode(opcode, payload, &mut answers);
                }
                Behaviour::Cut if seen == 7 => return Ok(()),
                Behaviour::Forge if seen == 7 => {
                    let mut forged = payload.to_vec();
                    forged[0] ^= 1;
                    encode(opcode, &forged, &mut answers);
                }
                Behaviour::Confuse => encode(Opcode::Binary, payload, &mut answers),
                Behaviour::Lossy if seen % 5 == 0 => {}
                Behaviour::Channel | Behaviour::Lossy | Behaviour::Repeat => {
                    let mut frame = Vec::new();
                    encode(opcode, payload, &mut frame);
                    let me = stream.peer_addr()?;
                    let members = members.lock().unwrap();
                    for (_, member) in members.iter().filter(|(member, _)| *member != me) {
                        let _ = (&*member).write_all(&frame);
                        if behaviour == Behaviour::Repeat && seen % 5 == 0 {
                            let _ = (&*member).write_all(&frame);
                        }
                    }
                }
                _ => encode(opcode, payload, &mut answers),
            }
        }
        stream.write_all(&answers)?;
        answers.clear();
    }
}

fn read_head(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        head.push(byte[0]);
    }
    Ok(String::from_utf8(head).unwrap())
}
