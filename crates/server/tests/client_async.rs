//! The asynchronous client: as the blocking one, and cancel-safe.

#[path = "../examples/client_async.rs"]
mod example;
mod support;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use futures_util::FutureExt;
use support::served::{start, stop};
use support::{TIMEOUT, read_head};
use throng::client::{AsyncClient, Client, Error, Step};
use throng::prelude::*;
use throng::{Deflate, DeflateMode, Running};
use throng_proto::ws::handshake::accept_key;

fn serve() -> (String, Running) {
    let echo = Ws::new().on_message(|ws, message| ws.send(message));
    let server = Server::new(App::new().ws("/", echo))
        .compression(Deflate::new(DeflateMode::Window { bits: 11 }))
        .limits(Limits::default().max_backlog(64 << 20));
    let (address, running) = start(server);
    (format!("ws://{address}/"), running)
}

#[tokio::test]
async fn the_example_counts_and_gets_its_echoes() {
    let (url, running) = serve();
    assert_eq!(example::count_to(&url, 3).await.unwrap(), ["1", "2", "3"]);
    stop(running);
}

#[tokio::test]
async fn messages_of_all_sizes_come_back_with_and_without_compression() {
    let (url, running) = serve();
    let plain = Client::builder(&url);
    let deflate = plain.clone().compression(Deflate::new(DeflateMode::Window { bits: 11 }));
    for builder in [plain, deflate] {
        let mut client = builder.connect_async().await.unwrap();
        for len in [0, 1, 125, 126, 65_535, 65_536, 1_000_000] {
            let sent = throng_testkit::noise(len, len as u64);
            client.send(&sent).await.unwrap();
            assert_eq!(client.recv().await.unwrap(), Some(Message::Binary(&sent)), "{len}");
            let sent = "wörds ".repeat(len / 8);
            client.send(&sent).await.unwrap();
            assert_eq!(client.recv().await.unwrap(), Some(Message::Text(&sent)), "{len}");
        }
        assert_eq!(client.close(1000, "").await.unwrap().code, 1000);
        assert_eq!(client.recv().await.unwrap(), None);
        assert!(matches!(client.send("x").await, Err(Error::Closed)));
    }
    stop(running);
}

/// A future of `recv` that is dropped while half of a message is there loses nothing of it.
#[tokio::test]
async fn a_receive_that_is_dropped_loses_nothing() {
    let (ours, theirs) = tokio::io::duplex(64);
    let server = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Handle::current();
        answer_upgrade(theirs, &runtime)
    });
    let builder = Client::builder("ws://local/").heartbeat(None);
    let mut client = builder.connect_async_over(ours).await.unwrap();
    let (mut theirs, _) = server.await.unwrap();
    for byte in b"\x81\x05hello" {
        assert!(client.recv().now_or_never().is_none());
        write(&mut theirs, &[*byte]).await;
    }
    assert_eq!(client.recv().await.unwrap(), Some(Message::Text("hello")));
}

/// Answers an upgrade request on an in-memory connection.
fn answer_upgrade(
    mut stream: tokio::io::DuplexStream,
    runtime: &tokio::runtime::Handle,
) -> (tokio::io::DuplexStream, String) {
    runtime.block_on(async {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            head.push(char::from(read_byte(&mut stream).await));
        }
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let accept = accept_key(key);
        let accept = str::from_utf8(&accept).unwrap();
        let answer = format!(
            "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        write(&mut stream, answer.as_bytes()).await;
        (stream, head)
    })
}

async fn read_byte(stream: &mut tokio::io::DuplexStream) -> u8 {
    let mut byte = [0];
    tokio::io::AsyncReadExt::read_exact(stream, &mut byte).await.unwrap();
    byte[0]
}

async fn write(stream: &mut tokio::io::DuplexStream, bytes: &[u8]) {
    tokio::io::AsyncWriteExt::write_all(stream, bytes).await.unwrap();
}

/// A server that upgrades one connection, sends these bytes, and keeps the connection.
fn silent(bytes: &'static [u8]) -> (SocketAddr, thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        let head = read_head(&mut stream);
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let accept = accept_key(key);
        let accept = str::from_utf8(&accept).unwrap();
        write!(
            stream,
            "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .unwrap();
        stream.write_all(bytes).unwrap();
        let mut received = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut received);
        received
    });
    (address, thread)
}

#[tokio::test]
async fn a_silent_server_is_pinged_and_then_given_up() {
    let (address, server) = silent(b"");
    let builder = Client::builder(&format!("ws://{address}/"));
    let builder = builder.heartbeat(Duration::from_millis(20));
    let mut client = builder.connect_async().await.unwrap();
    let error = client.recv().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { during: Step::Heartbeat, .. }), "{error}");
    drop(client);
    assert_eq!(server.join().unwrap()[..2], [0x89, 0x80]);
}

#[tokio::test]
async fn a_server_that_breaks_a_rule_gets_the_code() {
    let (address, server) = silent(b"\x83\x00");
    let builder = Client::builder(&format!("ws://{address}/"));
    let builder = builder.close_timeout(Duration::from_millis(50));
    let mut client = builder.connect_async().await.unwrap();
    let error = client.recv().await.unwrap_err();
    assert!(matches!(error, Error::Protocol(_)), "{error}");
    drop(client);
    let received = server.join().unwrap();
    let code: Vec<u8> = (0..2).map(|at| received[6 + at] ^ received[2 + at]).collect();
    assert_eq!((received[0], code), (0x88, 1002u16.to_be_bytes().to_vec()));
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let builder = Client::builder(&url).connect_timeout(Duration::from_millis(50));
    let error = builder.connect_async().await.unwrap_err();
    assert!(matches!(error, Error::Timeout { during: Step::Connecting, .. }), "{error}");
}

#[tokio::test]
async fn a_refusal_is_an_error_with_its_status() {
    let (url, running) = serve();
    let error = AsyncClient::connect(&format!("{url}nowhere")).await.unwrap_err();
    let Error::Refused(refused) = &error else { panic!("{error}") };
    assert_eq!(refused.status, 404);
    stop(running);
}
