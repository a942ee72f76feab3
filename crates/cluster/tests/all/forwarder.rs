//! A proxy that moves subscriptions to another server, unnoticed by the node.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

use throng_testkit::{Redis, dial};

/// A marker sent after all earlier commands of a connection: once it is answered, the client has
/// seen their answers.
const MARK: &[u8] = b"*2\r\n$4\r\nECHO\r\n$5\r\nmoved\r\n";
const MARK_ANSWER: &[u8] = b"$5\r\nmoved\r\n";

/// Carries connections to a server.
pub(crate) struct Forwarder {
    address: SocketAddr,
    connections: Arc<Mutex<Vec<Arc<Mutex<Connection>>>>>,
}

struct Connection {
    server: TcpStream,
    /// The number of times it was moved.
    moves: u32,
    /// All that the client has sent.
    sent: Vec<u8>,
}

impl Forwarder {
    pub(crate) fn start(redis: &Redis) -> Self {
        let server: SocketAddr = ([127, 0, 0, 1], redis.port()).into();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<Mutex<Vec<_>>>::default();
        let all = Arc::clone(&connections);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let connection = Connection { server, moves: 0, sent: Vec::new() };
                let connection = Arc::new(Mutex::new(connection));
                all.lock().unwrap().push(Arc::clone(&connection));
                let (from, to, of) = (client.try_clone().unwrap(), client, Arc::clone(&connection));
                std::thread::spawn(move || to_server(from, &connection));
                std::thread::spawn(move || to_client(&to, &of));
            }
        });
        Self { address, connections }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// Moves the current subscriptions: from now on another server has them.
    pub(crate) fn move_subscriptions(&self, to: &Redis) {
        for connection in self.connections.lock().unwrap().iter() {
            let mut connection = lock(connection);
            if !connection.sent.windows(9).any(|part| part == b"SUBSCRIBE") {
                continue;
            }
            let mut server = dial(([127, 0, 0, 1], to.port()).into());
            server.write_all(&connection.sent).unwrap();
            server.write_all(MARK).unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(MARK_ANSWER) {
                let mut byte = [0];
                server.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
            server.set_read_timeout(None).unwrap();
            let before = std::mem::replace(&mut connection.server, server);
            connection.moves += 1;
            // The reading thread continues with the new server.
            let _ = before.shutdown(Shutdown::Both);
        }
    }
}

fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap()
}

fn to_server(mut from: TcpStream, connection: &Mutex<Connection>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let mut connection = lock(connection);
        connection.sent.extend(&buffer[..count]);
        if connection.server.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = lock(connection).server.shutdown(Shutdown::Both);
}

fn to_client(mut to: &TcpStream, connection: &Mutex<Connection>) {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (mut server, moves) = {
            let connection = lock(connection);
            (connection.server.try_clone().unwrap(), connection.moves)
        };
        while let Ok(count @ 1..) = server.read(&mut buffer) {
            if to.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        if lock(connection).moves == moves {
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
}
