//! The asynchronous client: the behaviour of the blocking client, and cancel safety.

use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::thread;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt, StreamExt};
use throng_client::{
    AsyncClient, Blame, Client, ClientBuilder, ClientError, DialStep, Message, OwnedMessage,
};
use throng_proto::ws::handshake::accept_key;
use throng_testkit::{TIMEOUT, read_head};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

/// Dropping a future of `recv` after half of a message loses nothing.
#[tokio::test]
async fn a_receive_that_is_dropped_loses_nothing() {
    let (mut client, mut theirs) = connected(|builder| builder).await;
    for byte in b"\x81\x05hello" {
        assert!(client.recv().now_or_never().is_none());
        write(&mut theirs, &[*byte]).await;
    }
    assert_eq!(client.recv().await.unwrap(), Some(Message::Text("hello")));
}

#[tokio::test]
async fn a_receive_that_is_dropped_while_it_reports_an_error_keeps_the_error() {
    let (mut client, mut theirs) = connected(|builder| builder).await;
    // The connection has space for four more bytes, less than a Close frame.
    client.send(&[b'x'; 54]).await.unwrap();
    write(&mut theirs, b"\x83\x00").await;
    assert!(client.recv().now_or_never().is_none());
    let (outcome, received) = tokio::join!(client.recv(), read_frames(theirs, 2));
    let error = outcome.unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error}");
    assert_eq!(unmasked(&received[1])[..2], 1002u16.to_be_bytes());
    assert_eq!(client.recv().await.unwrap(), None, "the error is reported once");
}

#[tokio::test]
async fn a_receive_that_is_dropped_while_it_answers_a_close_frame_still_answers() {
    let (mut client, mut theirs) = connected(|builder| builder).await;
    client.send(&[b'x'; 54]).await.unwrap();
    write(&mut theirs, b"\x88\x02\x0f\xa1").await;
    assert!(client.recv().now_or_never().is_none());
    let (outcome, received) = tokio::join!(client.recv(), read_frames(theirs, 2));
    assert_eq!(outcome.unwrap(), None);
    assert_eq!(unmasked(&received[1]), 4001u16.to_be_bytes());
}

/// A stream that, like some TLS streams, sends written bytes only when it is flushed.
struct Flushed {
    inner: DuplexStream,
    written: Vec<u8>,
}

impl AsyncRead for Flushed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Flushed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.written.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { inner, written } = &mut *self;
        while !written.is_empty() {
            let n = ready!(Pin::new(&mut *inner).poll_write(cx, written))?;
            written.drain(..n);
        }
        Pin::new(inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_stream_still_holds_leaves_with_the_next_receive() {
    let (ours, mut theirs) = tokio::io::duplex(64);
    let stream = Flushed { inner: ours, written: Vec::new() };
    let builder = Client::builder("ws://local/").heartbeat(None);
    let (client, ()) =
        tokio::join!(builder.connect_async_over(stream), answer_upgrade(&mut theirs));
    let mut client = client.unwrap();
    assert!(client.send(&[b'x'; 200]).now_or_never().is_none());
    let answered = async {
        read_frame(&mut theirs).await;
        write(&mut theirs, b"\x81\x02ok").await;
    };
    let received = async { tokio::join!(client.recv(), answered).0.unwrap().is_some() };
    assert!(tokio::time::timeout(TIMEOUT, received).await.expect("the message never left"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_writes_much_before_it_reads_is_read_meanwhile() {
    let (mut client, mut theirs) = connected(|builder| builder).await;
    client.queue(&[b'x'; 200]).unwrap();
    let server = async {
        for _ in 0..20 {
            write(&mut theirs, b"\x82\x20").await;
            write(&mut theirs, &[b'y'; 32]).await;
        }
        read_frame(&mut theirs).await
    };
    let received = async {
        for _ in 0..20 {
            assert_eq!(client.recv().await.unwrap(), Some(Message::Binary(&[b'y'; 32])));
        }
        client.flush().await.unwrap();
    };
    let both = async { tokio::join!(received, server) };
    let ((), frame) = tokio::time::timeout(TIMEOUT, both).await.expect("both sides wait");
    assert_eq!(frame.len(), 8 + 200);
}

/// The server's Close frame must also wait; otherwise both sides would wait forever.
#[tokio::test(start_paused = true)]
async fn a_server_that_writes_much_before_it_reads_is_read_while_the_client_closes() {
    let (mut client, mut theirs) = connected(|builder| builder).await;
    client.queue(&[b'x'; 200]).unwrap();
    let server = async {
        for _ in 0..20 {
            write(&mut theirs, b"\x82\x20").await;
            write(&mut theirs, &[b'y'; 32]).await;
        }
        read_frame(&mut theirs).await;
        let close = read_frame(&mut theirs).await;
        write(&mut theirs, b"\x88\x02\x03\xe8").await;
        drop(theirs);
        close
    };
    let both = async { tokio::join!(client.close(1000, ""), server) };
    let (closed, close) = tokio::time::timeout(TIMEOUT, both).await.expect("both sides wait");
    assert_eq!(closed.unwrap().code, 1000);
    assert_eq!(unmasked(&close), 1000u16.to_be_bytes());
}

#[tokio::test(start_paused = true)]
async fn pings_of_a_server_that_never_reads_take_no_memory_without_end() {
    let limit = Duration::from_secs(1);
    let (mut client, mut theirs) = connected(|builder| builder.write_timeout(limit)).await;
    client.queue(&[b'x'; 200]).unwrap();
    let pinging = async {
        for _ in 0..200_000 {
            write(&mut theirs, b"\x89\x04ping").await;
        }
    };
    let error = tokio::select! {
        received = client.recv() => received.unwrap_err(),
        () = pinging => panic!("more than a mebibyte of pings was read"),
    };
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Sending, .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_time_without_progress_in_sending_does_not_begin_again_with_each_call() {
    let limit = Duration::from_secs(1);
    let (mut client, _theirs) = connected(|builder| builder.write_timeout(limit)).await;
    client.queue(&[b'x'; 200]).unwrap();
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        outcomes.push(tokio::time::timeout(Duration::from_millis(400), client.flush()).await);
    }
    let last = outcomes.pop().unwrap().expect("the limit has passed").unwrap_err();
    assert!(matches!(last, ClientError::Timeout { during: DialStep::Sending, .. }), "{last}");
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_reads_slowly_gets_all_of_a_message() {
    let limit = Duration::from_secs(1);
    let (mut client, mut theirs) = connected(|builder| builder.write_timeout(limit)).await;
    let reading = tokio::spawn(async move {
        for _ in 0..1008 / 16 {
            tokio::time::sleep(Duration::from_millis(600)).await;
            tokio::io::AsyncReadExt::read_exact(&mut theirs, &mut [0; 16]).await.unwrap();
        }
    });
    client.send(&[b'x'; 1000]).await.unwrap();
    reading.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_whose_body_stalls_is_a_refusal() {
    let (ours, mut theirs) = tokio::io::duplex(1024);
    write(&mut theirs, b"HTTP/1.1 403 No\r\nContent-Length: 99\r\n\r\nno token").await;
    let error = Client::builder("ws://local/").connect_async_over(ours).await.unwrap_err();
    let ClientError::Refused(refused) = &error else { panic!("{error}") };
    assert_eq!((refused.status, &refused.body[..]), (403, &b"no token"[..]));
}

/// Returns a client, and the server's end of its connection, which takes 64 bytes.
async fn connected(
    set: impl FnOnce(ClientBuilder) -> ClientBuilder,
) -> (AsyncClient, DuplexStream) {
    let (ours, mut theirs) = tokio::io::duplex(64);
    let builder = set(Client::builder("ws://local/").heartbeat(None));
    let (client, ()) = tokio::join!(builder.connect_async_over(ours), answer_upgrade(&mut theirs));
    (client.unwrap(), theirs)
}

/// Answers an upgrade request on an in-memory connection.
async fn answer_upgrade(stream: &mut DuplexStream) {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        head.push(char::from(read_byte(stream).await));
    }
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    let accept = accept_key(key);
    let accept = str::from_utf8(&accept).unwrap();
    let answer = format!(
        "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    write(stream, answer.as_bytes()).await;
}

/// Reads `count` masked frames of less than 64 KiB, and ends the connection.
async fn read_frames(mut stream: DuplexStream, count: usize) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for _ in 0..count {
        frames.push(read_frame(&mut stream).await);
    }
    frames
}

async fn read_frame(stream: &mut DuplexStream) -> Vec<u8> {
    let mut frame = vec![read_byte(stream).await, read_byte(stream).await];
    let len = match frame[1] & 0x7f {
        126 => {
            frame.extend([read_byte(stream).await, read_byte(stream).await]);
            usize::from(u16::from_be_bytes([frame[2], frame[3]]))
        }
        len => usize::from(len),
    };
    for _ in 0..4 + len {
        frame.push(read_byte(stream).await);
    }
    frame
}

/// Unmasks the payload of a short frame.
fn unmasked(frame: &[u8]) -> Vec<u8> {
    frame[6..].iter().zip(frame[2..6].iter().cycle()).map(|(byte, key)| byte ^ key).collect()
}

async fn read_byte(stream: &mut DuplexStream) -> u8 {
    let mut byte = [0];
    tokio::io::AsyncReadExt::read_exact(stream, &mut byte).await.unwrap();
    byte[0]
}

async fn write(stream: &mut DuplexStream, bytes: &[u8]) {
    tokio::io::AsyncWriteExt::write_all(stream, bytes).await.unwrap();
}

/// Starts a server that upgrades one connection, sends these bytes, and keeps the connection open.
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
        let _ = io::Read::read_to_end(&mut stream, &mut received);
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
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Heartbeat, .. }), "{error}");
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
    assert!(matches!(error, ClientError::Protocol(_)), "{error}");
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
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Connecting, .. }), "{error}");
}

#[tokio::test]
async fn a_stream_of_messages_ends_after_its_error() {
    let (mut client, mut theirs) = connected(|builder| builder).await;
    write(&mut theirs, b"\x81\x02ok\x81\x02\xff\xff").await;
    assert_eq!(client.next().await.unwrap().unwrap(), OwnedMessage::from("ok"));
    drop(theirs);
    assert!(client.next().await.unwrap().is_err());
    assert!(client.next().await.is_none());
    assert!(SinkExt::<&str>::feed(&mut client, "late").await.is_err());
}

/// A dropped future of `recv` in a `select!` may have received the server's Close frame: the next
/// call that sends reports it, with the side that closed.
#[tokio::test]
async fn sending_after_the_close_of_the_server_says_why_and_whether_to_come_back() {
    for (code, asks) in [(4401_u16, false), (1000, false), (1012, true), (1001, true)] {
        let (mut client, mut theirs) = connected(|builder| builder).await;
        let close = [&[0x88, 5][..], &code.to_be_bytes(), b"why"].concat();
        write(&mut theirs, &close).await;
        // `recv` waits for the end of the connection.
        assert!(client.recv().now_or_never().is_none(), "{code}");
        for error in [
            client.send("work").await.unwrap_err(),
            client.ping(b"").await.unwrap_err(),
            client.queue("work").unwrap_err(),
            client.close(1000, "").await.unwrap_err(),
        ] {
            assert_eq!((error.blame(), error.is_temporary()), (Blame::Peer, asks), "{error}");
            assert!(error.to_string().ends_with(": why"), "{error}");
            let ClientError::Closed(Some(frame)) = error else { panic!("{error}") };
            assert_eq!((frame.code.get(), frame.reason.as_str()), (code, "why"));
        }
    }
    let (mut client, mut theirs) = connected(|builder| builder).await;
    write(&mut theirs, b"\x83\x00").await;
    assert!(client.recv().now_or_never().is_none());
    let error = client.send("work").await.unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error}");
    let (mut client, theirs) = connected(|builder| builder).await;
    drop(theirs);
    assert!(client.recv().await.unwrap_err().is_temporary());
    let error = client.send("work").await.unwrap_err();
    assert_eq!((error.blame(), error.is_temporary()), (Blame::Network, true), "{error}");
}
