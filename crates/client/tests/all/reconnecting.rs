//! Clients that reconnect: tokens that expire, time limits, and ends from other threads.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use throng_client::{Backoff, Client, ClientError, CloseCode, DialStep, Message};
use throng_testkit::{TIMEOUT, eventually, read_head};

use super::blocking::{accept, accept_upgrade, upgrade, url};

const HI: &[u8] = b"\x81\x02hi";
const RESTART: &[u8] = b"\x88\x02\x03\xf4";
const NORMAL: &[u8] = b"\x88\x02\x03\xe8";

fn quick() -> Backoff {
    Backoff::default().first(Duration::from_millis(1))
}

/// Returns pauses so long that no test waits for their end.
fn slow() -> Backoff {
    let hours = Duration::from_secs(1_000_000);
    Backoff::default().first(hours).longest(hours)
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Returns an address at which no server listens.
fn free() -> SocketAddr {
    listener().1
}

fn token_of(head: &str) -> String {
    let value = head.lines().find_map(|line| line.strip_prefix("Authorization: Bearer "));
    value.unwrap_or("none").to_owned()
}

/// Starts a server whose tokens are valid for one connection each; it refuses a used token with
/// status 401. Each connection gets a message and a Close frame that asks the client to reconnect;
/// the last connection gets a normal Close frame. The server returns the tokens that it saw.
fn tokens_expire(connections: usize) -> (SocketAddr, JoinHandle<Vec<String>>) {
    let (listener, address) = listener();
    let server = thread::spawn(move || {
        let (mut seen, mut made) = (Vec::<String>::new(), 0);
        while made < connections {
            let mut stream = accept(&listener);
            let head = read_head(&mut stream);
            let token = token_of(&head);
            let is_old = seen.contains(&token);
            seen.push(token);
            if is_old {
                stream
                    .write_all(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
                    .unwrap();
                continue;
            }
            accept_upgrade(&mut stream, &head, "");
            made += 1;
            stream.write_all(HI).unwrap();
            stream.write_all(if made < connections { RESTART } else { NORMAL }).unwrap();
            end(&mut stream);
        }
        seen
    });
    (address, server)
}

/// Ends a connection as a server does after its Close frame: the client waits for this.
fn end(stream: &mut TcpStream) {
    // The client may have disconnected already.
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut Vec::new());
}

fn bearer(token: u32) -> Vec<(String, String)> {
    vec![("Authorization".to_owned(), format!("Bearer {token}"))]
}

/// The client uses each token twice before it renews it; the server refuses the second use.
#[test]
fn each_attempt_gets_its_headers_and_a_refusal_can_be_answered() {
    let (address, server) = tokens_expire(2);
    let token = Arc::new(AtomicU32::new(1));
    let renewed = Arc::clone(&token);
    let mut feed = Client::builder(&url(address, "/"))
        .headers_with(move || Ok(bearer(token.load(Ordering::SeqCst))))
        .reconnecting(quick())
        .on_refused(move |refused| {
            renewed.fetch_add(1, Ordering::SeqCst);
            refused.status == 401
        });
    assert_eq!(feed.close_frame(), None);
    assert_eq!(feed.recv().unwrap(), Some(Message::Text("hi")));
    assert_eq!(feed.recv().unwrap(), Some(Message::Text("hi")));
    assert_eq!(feed.close_frame().unwrap().code, 1012);
    assert_eq!(feed.recv().unwrap(), None);
    assert_eq!(feed.close_frame().unwrap().code, 1000);
    assert_eq!(feed.connections(), 2);
    drop(feed);
    assert_eq!(server.join().unwrap(), ["1", "1", "2"]);
}

#[test]
fn a_refusal_of_the_client_ends_the_attempts_by_default() {
    let (address, server) = tokens_expire(2);
    let mut feed =
        Client::builder(&url(address, "/")).headers_with(|| Ok(bearer(1))).reconnecting(quick());
    assert_eq!(feed.recv().unwrap(), Some(Message::Text("hi")));
    let refused = feed.recv().unwrap_err();
    assert!(matches!(&refused, ClientError::Refused(answer) if answer.status == 401), "{refused}");
    // The server thread ends with its second connection.
    let mut other = Client::builder(&url(address, "/")).connect().unwrap();
    while other.recv().unwrap().is_some() {}
    drop(other);
    assert_eq!(server.join().unwrap(), ["1", "1", "none"]);
}

#[test]
fn headers_that_cannot_be_made_fail_the_attempt() {
    let made = |kind: ErrorKind| {
        let calls = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&calls);
        let mut feed = Client::builder(&url(free(), "/"))
            .headers_with(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                Err(io::Error::new(kind, "no token"))
            })
            .reconnecting(quick().attempts(3));
        let error = feed.recv().unwrap_err();
        assert!(error.to_string().contains("no token"), "{error}");
        assert!(matches!(error, ClientError::Headers(_)), "{error}");
        calls.load(Ordering::SeqCst)
    };
    assert_eq!(made(ErrorKind::TimedOut), 3);
    assert_eq!(made(ErrorKind::PermissionDenied), 1);
    let error = Client::builder(&url(free(), "/"))
        .headers_with(|| Ok(vec![("not a name".to_owned(), String::new())]))
        .connect()
        .unwrap_err();
    assert!(error.to_string().contains("not a name"), "{error}");
}

#[test]
fn a_wait_with_a_limit_includes_pauses_and_goes_on_later() {
    let is_timeout = |error: ClientError| {
        matches!(error, ClientError::Timeout { during: DialStep::Receiving, .. })
    };
    let mut absent = Client::builder(&url(free(), "/")).reconnecting(slow());
    for _ in 0..2 {
        assert!(is_timeout(absent.recv_timeout(Duration::from_millis(5)).unwrap_err()));
    }
    let (listener, address) = listener();
    let (go, waits) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        upgrade(&mut stream, "");
        waits.recv_timeout(TIMEOUT).unwrap();
        stream.write_all(HI).unwrap();
        stream.write_all(NORMAL).unwrap();
        end(&mut stream);
    });
    let mut feed = Client::builder(&url(address, "/")).reconnecting(quick());
    assert!(is_timeout(feed.recv_timeout(Duration::from_millis(5)).unwrap_err()));
    go.send(()).unwrap();
    assert_eq!(feed.recv_timeout(TIMEOUT).unwrap(), Some(Message::Text("hi")));
    assert_eq!(feed.recv_timeout(TIMEOUT).unwrap(), None);
    assert_eq!(feed.connections(), 1, "a wait that ended has not connected again");
    drop(feed);
    server.join().unwrap();
}

#[test]
fn a_session_that_the_program_closed_stays_closed() {
    // 1001 from a server asks clients to reconnect.
    for code in [CloseCode::NORMAL, CloseCode::GOING_AWAY] {
        let (listener, address) = listener();
        let server = thread::spawn(move || {
            let mut stream = accept(&listener);
            upgrade(&mut stream, "");
            let mut close = [0; 8];
            stream.read_exact(&mut close).unwrap();
            let [low, high] = code.get().to_be_bytes();
            stream.write_all(&[0x88, 2, low, high]).unwrap();
            end(&mut stream);
        });
        let mut feed = Client::builder(&url(address, "/")).reconnecting(quick());
        feed.client().unwrap().close(code, "").unwrap();
        for _ in 0..2 {
            assert_eq!(feed.recv().unwrap(), None);
            let error = feed.send("late").unwrap_err();
            assert!(matches!(error, ClientError::Closed(None)), "{error}");
        }
        assert_eq!(feed.connections(), 1);
        drop(feed);
        server.join().unwrap();
    }
}

#[test]
fn the_program_learns_why_the_client_tries_again() {
    let (listener, address) = listener();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        upgrade(&mut stream, "");
        stream.write_all(RESTART).unwrap();
        end(&mut stream);
    });
    let (seen, notices) = mpsc::channel();
    let mut feed = Client::builder(&url(address, "/"))
        .reconnecting(quick().attempts(2))
        .on_retry(move |error, pause| seen.send((error.to_string(), pause)).unwrap());
    // The server accepts one connection.
    feed.recv().unwrap_err();
    server.join().unwrap();
    let (first, _) = notices.try_recv().unwrap();
    assert!(first.contains("1012"), "{first}");
    let (second, pause) = notices.try_recv().unwrap();
    assert!(second.contains("refused"), "{second}");
    assert!(pause > Duration::ZERO);
    assert!(notices.try_recv().is_err(), "there is no pause after the last attempt");
}

#[test]
fn another_thread_ends_a_client_that_waits_or_pauses() {
    let (listener, address) = listener();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        upgrade(&mut stream, "");
        // The client disconnects.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    // One client waits for a message, one pauses after a failed attempt.
    for (address, connections) in [(address, 1), (free(), 0)] {
        let (here, begun) = mpsc::channel();
        let (to, stoppers) = mpsc::channel();
        let receiver = thread::spawn(move || {
            let (attempts, connected) = (here.clone(), here.clone());
            let mut feed = Client::builder(&url(address, "/"))
                .headers_with(move || {
                    attempts.send("attempt").unwrap();
                    Ok(Vec::new())
                })
                .reconnecting(slow())
                .on_connect(move |_| {
                    connected.send("connected").unwrap();
                    Ok(())
                });
            to.send(feed.stopper()).unwrap();
            assert_eq!(feed.recv().unwrap(), None);
            assert_eq!(feed.recv().unwrap(), None);
            assert!(matches!(feed.send("x"), Err(ClientError::Closed(None))));
            feed.connections()
        });
        assert_eq!(begun.recv_timeout(TIMEOUT).unwrap(), "attempt");
        if connections == 1 {
            assert_eq!(begun.recv_timeout(TIMEOUT).unwrap(), "connected");
        }
        stoppers.recv_timeout(TIMEOUT).unwrap().stop();
        assert_eq!(receiver.join().unwrap(), connections);
    }
    server.join().unwrap();
}

#[test]
fn a_connection_ends_with_its_client_although_a_stopper_is_left() {
    let (listener, address) = listener();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        upgrade(&mut stream, "");
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.read_to_end(&mut Vec::new()).map_err(|error| error.kind())
    });
    let mut feed = Client::builder(&url(address, "/")).reconnecting(quick());
    let stopper = feed.stopper();
    feed.client().unwrap();
    drop(feed);
    // The server sees an end or a reset, not its own read timeout.
    let ended = server.join().unwrap();
    assert!(!matches!(ended, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut)), "{ended:?}");
    stopper.stop();
}

/// Starts a server that closes its first connection after the upgrade, and accepts more.
fn hangs_up() -> SocketAddr {
    let (listener, address) = listener();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            upgrade(&mut stream, "");
        }
    });
    address
}

#[test]
fn a_client_whose_sending_fails_pauses_before_it_connects_again() {
    let mut feed = Client::builder(&url(hangs_up(), "/")).reconnecting(slow());
    eventually("sending fails", || feed.send("x").is_err());
    let error = feed.recv_timeout(Duration::from_millis(5)).unwrap_err();
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Receiving, .. }), "{error}");
    assert_eq!(feed.connections(), 1);
}

#[cfg(feature = "tokio")]
mod asynchronous {
    use futures_util::FutureExt;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn each_attempt_awaits_its_headers_and_its_preparation() {
        let (address, server) = tokens_expire(2);
        let (token, prepared) = (Arc::new(AtomicU32::new(1)), Arc::new(AtomicU32::new(0)));
        let (renewed, counted) = (Arc::clone(&token), Arc::clone(&prepared));
        let mut feed = Client::builder(&url(address, "/"))
            .reconnecting_async(quick())
            .headers_with(move || {
                let token = Arc::clone(&token);
                async move {
                    tokio::task::yield_now().await;
                    Ok(bearer(token.load(Ordering::SeqCst)))
                }
            })
            .on_connect(move |client| {
                counted.fetch_add(1, Ordering::SeqCst);
                Box::pin(async move { client.send("subscribe").await })
            })
            .on_refused(move |refused| {
                renewed.fetch_add(1, Ordering::SeqCst);
                refused.status == 401
            });
        assert_eq!(feed.recv().await.unwrap(), Some(Message::Text("hi")));
        assert_eq!(feed.recv().await.unwrap(), Some(Message::Text("hi")));
        assert_eq!(feed.close_frame().unwrap().code, 1012);
        assert_eq!(feed.recv().await.unwrap(), None);
        assert_eq!(feed.recv().await.unwrap(), None, "it has ended for good");
        assert_eq!((feed.connections(), prepared.load(Ordering::SeqCst)), (2, 2));
        assert!(matches!(feed.send("x").await, Err(ClientError::Closed(Some(_)))));
        drop(feed);
        assert_eq!(server.join().unwrap(), ["1", "1", "2"]);
    }

    #[tokio::test]
    async fn a_client_whose_sending_fails_pauses_before_it_connects_again() {
        let mut feed = Client::builder(&url(hangs_up(), "/")).reconnecting_async(slow());
        while feed.send("x").await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(timeout(Duration::from_millis(5), feed.send("x")).await.is_err());
        assert_eq!(feed.connections(), 1);
    }

    /// The test drops the future as a `select!` does whose other branch is always ready.
    #[tokio::test]
    async fn a_receive_that_is_dropped_goes_on_connecting() {
        let (address, server) = tokens_expire(2);
        let token = Arc::new(AtomicU32::new(0));
        let mut feed = Client::builder(&url(address, "/"))
            .headers_with(move || Ok(bearer(token.fetch_add(1, Ordering::SeqCst))))
            .reconnecting_async(quick());
        let mut received = 0;
        let all = timeout(TIMEOUT, async {
            loop {
                match feed.recv().now_or_never().map(Result::unwrap) {
                    Some(Some(_)) => received += 1,
                    Some(None) => break,
                    None => tokio::task::yield_now().await,
                }
            }
        });
        all.await.unwrap();
        assert_eq!((received, feed.connections()), (2, 2));
        drop(feed);
        assert_eq!(server.join().unwrap(), ["0", "1"]);
    }

    #[tokio::test]
    async fn attempts_end_after_their_number() {
        let mut absent = Client::builder(&url(free(), "/")).reconnecting_async(quick().attempts(3));
        let error = absent.recv().await.unwrap_err();
        assert!(matches!(error, ClientError::Connect { .. }), "{error}");
        let mut wrong = Client::builder("http://h/").reconnecting_async(quick());
        assert!(matches!(wrong.client().await, Err(ClientError::Url(_))));
    }
}
