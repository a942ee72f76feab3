//! Servers on Unix sockets, on each backend.
#![cfg(unix)]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use throng::prelude::*;
use throng::server::{Proxies, Shards, UnixSocket};
use throng_proto::ws::Opcode;
use throng_testkit::TempFolder;

use crate::support::{BACKENDS, Client, Got, TIMEOUT, eventually};

const CLAIM: &str = "X-Forwarded-For: 192.0.2.66, 198.51.100.7\r\n";

fn app() -> App {
    let seen = |request: &Request<'_>| format!("{:?} {:?}", request.peer(), request.client());
    App::new()
        .get("/", move |request| seen(request))
        .route("/blocking", Route::on(Method::Get, move |request| seen(request)).blocking())
        .ws("/echo", Ws::new().on_message(|ws, (), message| ws.send(message)))
}

fn start(server: Server, path: &Path) -> Running {
    let bound = server.listen_on([UnixSocket::bind(path, 0o600).unwrap()]).unwrap();
    assert_eq!((bound.local_addrs(), bound.unix_paths()), (&[][..], &[path.to_owned()][..]));
    bound.start().unwrap()
}

fn stop(running: Running) {
    let grace = Duration::from_millis(50);
    running.shutdown(DrainPlan::DEFAULT.window(Duration::ZERO).grace(grace)).wait().unwrap();
}

fn dial(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// The body of the answer to a request that begins with `before`.
fn get(path: &Path, target: &str, before: &[u8], header: &str) -> String {
    let mut stream = dial(path);
    stream.write_all(before).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())
}

fn session(path: &Path) -> Client<UnixStream> {
    Client::upgrade(dial(path), "/echo", &[], &[]).expect("an upgrade")
}

#[test]
fn sessions_and_requests_are_served_and_the_file_is_removed_at_the_end() {
    for io in BACKENDS {
        let folder = TempFolder::new("served");
        let path = folder.join("socket");
        let running = start(Server::new(app()).shards(Shards::new().io(io).count(2)), &path);
        let large = "x".repeat(1 << 20);
        let mut clients: Vec<_> = (0..8).map(|_| session(&path)).collect();
        for client in &mut clients {
            for text in ["here", &large] {
                client.send(Opcode::Text, text.as_bytes());
                assert_eq!(client.next(), Got::Text(text.to_owned()));
            }
        }
        assert_eq!(get(&path, "/", b"", CLAIM), "None None", "no client is believed");
        let mut leaving = clients.pop().unwrap();
        leaving.send(Opcode::Close, &1000u16.to_be_bytes());
        assert!(matches!(leaving.next(), Got::Close(1000, _)));
        // Without a closing handshake.
        drop(clients);
        eventually("all sessions have ended", || running.stats().sessions == 0);
        stop(running);
        assert!(!path.exists());
    }
}

#[test]
fn a_drain_closes_sessions_and_a_slow_reader_is_closed() {
    for io in BACKENDS {
        let folder = TempFolder::new("ends");
        let path = folder.join("socket");
        let limits = Limits::default().max_backlog(64 << 10).max_memory(64 << 20);
        let slow = Ws::new().on_open(|ws, ()| {
            for _ in 0..64 {
                ws.send(vec![b'x'; 64 << 10]);
            }
        });
        let server = Server::new(app().ws("/slow", slow))
            .shards(Shards::new().io(io).count(1))
            .limits(limits);
        let running = start(server, &path);
        let _slow = Client::upgrade(dial(&path), "/slow", &[], &[]);
        eventually("the slow one is closed", || running.stats().slow_consumers == 1);
        let mut client = session(&path);
        let ended = std::thread::spawn(move || {
            assert!(matches!(client.next(), Got::Close(1001, _)));
            client.try_send(Opcode::Close, &1001u16.to_be_bytes());
        });
        running.shutdown(DrainPlan::DEFAULT.window(Duration::ZERO)).wait().unwrap();
        ended.join().unwrap();
    }
}

#[test]
fn a_proxy_is_believed_if_unix_sockets_are_trusted() {
    for io in BACKENDS {
        let folder = TempFolder::new("trusted");
        let path = folder.join("socket");
        let running = start(
            Server::new(app())
                .shards(Shards::new().io(io))
                .proxies(Proxies::new().trusted(["unix:"])),
            &path,
        );
        for target in ["/", "/blocking"] {
            assert_eq!(get(&path, target, b"", CLAIM), "None Some(198.51.100.7)");
            assert_eq!(get(&path, target, b"", ""), "None None");
        }
        stop(running);
        // Other networks, even all addresses, do not include Unix sockets.
        let running = start(
            Server::new(app())
                .shards(Shards::new().io(io))
                .proxies(Proxies::new().trusted(["0.0.0.0/0", "::/0"])),
            &path,
        );
        assert_eq!(get(&path, "/", b"", CLAIM), "None None");
        stop(running);
    }
}

#[test]
fn a_proxy_header_names_the_client_if_unix_sockets_are_trusted() {
    const HEADER: &[u8] = b"PROXY TCP4 198.51.100.7 192.0.2.1 1234 80\r\n";
    for io in BACKENDS {
        let folder = TempFolder::new("header");
        let path = folder.join("socket");
        let server = |trusted: &str| {
            let proxies = Proxies::new().trusted([trusted]).proxy_protocol(true);
            Server::new(app()).shards(Shards::new().io(io)).proxies(proxies)
        };
        let running = start(server("unix:"), &path);
        let expected = "Some(198.51.100.7:1234) Some(198.51.100.7)";
        assert_eq!(get(&path, "/", HEADER, ""), expected);
        stop(running);
        let running = start(server("127.0.0.0/8"), &path);
        let mut stream = dial(&path);
        assert_eq!(stream.read(&mut [0; 1]).unwrap_or(0), 0, "it was closed");
        stop(running);
    }
}

#[test]
fn no_cap_by_address_applies_and_the_cap_on_all_does() {
    for io in BACKENDS {
        let folder = TempFolder::new("caps");
        let path = folder.join("socket");
        let limits = Limits::default().max_connections_per_address(1).max_connections(64);
        let running =
            start(Server::new(app()).shards(Shards::new().io(io).count(1)).limits(limits), &path);
        let clients: Vec<_> = (0..64).map(|_| session(&path)).collect();
        assert!(Client::upgrade(dial(&path), "/echo", &[], &[]).is_err(), "it is full");
        drop(clients);
        stop(running);
    }
}

#[test]
fn it_accepts_on_tcp_and_on_a_socket_of_its_caller_whose_file_stays() {
    for io in BACKENDS {
        let folder = TempFolder::new("both");
        let path = folder.join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let server =
            Server::new(app()).shards(Shards::new().io(io).count(2)).bind_also("127.0.0.1:0");
        let bound = server.listen_on([listener]).unwrap();
        let address = bound.local_addr();
        assert_ne!(address.port(), 0);
        let running = bound.start().unwrap();
        let mut tcp = Client::connect(address, "/echo");
        let mut unix = session(&path);
        tcp.send_text("tcp");
        unix.send_text("unix");
        assert_eq!(tcp.next(), Got::Text("tcp".into()));
        assert_eq!(unix.next(), Got::Text("unix".into()));
        stop(running);
        std::fs::remove_file(&path).expect("the caller's file");
    }
}

#[test]
fn curl_fetches_a_page() {
    let folder = TempFolder::new("curl");
    let path = folder.join("socket");
    let running = start(Server::new(app()), &path);
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--max-time", "20", "--unix-socket"]).arg(&path);
    match command.arg("http://localhost/").output() {
        Ok(output) => assert_eq!(String::from_utf8_lossy(&output.stdout), "None None"),
        Err(error) => eprintln!("skipped: curl cannot be run ({error})"),
    }
    stop(running);
}
