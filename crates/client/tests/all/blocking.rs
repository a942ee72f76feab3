//! The blocking client against servers that break rules, and proxies.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use throng_client::{Backoff, Blame, Client, ClientBuilder, ClientError, DialStep, Message};
use throng_proto::ws::handshake::accept_key;
use throng_testkit::{TIMEOUT, read_head};

pub(crate) fn url(address: SocketAddr, path: &str) -> String {
    format!("ws://{address}{path}")
}

fn text(client: &mut Client) -> String {
    match client.recv().unwrap() {
        Some(Message::Text(text)) => text.to_owned(),
        other => panic!("not a text: {other:?}"),
    }
}

/// Starts a server that accepts one connection, upgrades it and sends these bytes. It returns all
/// input that it receives until the client disconnects.
fn scripted(frames: Vec<u8>) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = thread::spawn(move || {
        let mut stream = accept(&listener);
        upgrade(&mut stream, "");
        stream.write_all(&frames).unwrap();
        // The client may have disconnected already.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        received
    });
    (address, thread)
}

pub(crate) fn accept(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

pub(crate) fn upgrade(stream: &mut TcpStream, headers: &str) -> String {
    let head = read_head(stream);
    accept_upgrade(stream, &head, headers);
    head
}

/// Answers the request that has this head.
pub(crate) fn accept_upgrade(stream: &mut TcpStream, head: &str, headers: &str) {
    let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
    let accept = accept_key(key);
    let accept = str::from_utf8(&accept).unwrap();
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n{headers}\r\n"
    );
    stream.write_all(answer.as_bytes()).unwrap();
}

/// Unmasks the payload of a short frame.
fn unmasked(frame: &[u8]) -> Vec<u8> {
    assert_eq!(frame[1] & 0x80, 0x80, "a client's frame is masked");
    let len = usize::from(frame[1] & 0x7f);
    let (key, payload) = (&frame[2..6], &frame[6..6 + len]);
    payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect()
}

#[test]
fn a_ping_is_answered_and_a_pong_counted() {
    let (address, server) = scripted(b"\x89\x02hi\x8a\x00\x81\x01x\x88\x02\x03\xe8".to_vec());
    let mut client = Client::connect(&url(address, "/")).unwrap();
    assert_eq!(text(&mut client), "x");
    assert_eq!(client.pongs(), 1);
    assert_eq!(client.recv().unwrap(), None);
    drop(client);
    let received = server.join().unwrap();
    assert_eq!((received[0], unmasked(&received)), (0x8a, b"hi".to_vec()));
    let close = &received[8..];
    assert_eq!((close[0], unmasked(close)), (0x88, 1000u16.to_be_bytes().to_vec()));
}

#[test]
fn a_server_that_breaks_a_rule_is_to_blame_and_gets_the_code() {
    for (frames, code) in [
        (&b"\x81\x81abcdX"[..], 1002),
        (b"\x83\x00", 1002),
        (b"\x81\x02\xff\xff", 1007),
        (b"\x82\x7f\0\0\0\0\x01\0\0\0", 1009),
        (b"\xc1\x01a", 1002),
    ] {
        let (address, server) = scripted(frames.to_vec());
        let mut client = Client::connect(&url(address, "/")).unwrap();
        let error = client.recv().unwrap_err();
        assert!(matches!(error, ClientError::Protocol(_)), "{error}");
        assert_eq!((error.blame(), error.is_temporary()), (Blame::Peer, false));
        assert!(matches!(client.send("x"), Err(ClientError::Protocol(_))));
        drop(client);
        let received = server.join().unwrap();
        assert_eq!(received[0], 0x88);
        assert_eq!(unmasked(&received)[..2], u16::to_be_bytes(code), "{frames:?}");
    }
}

#[test]
fn masking_keys_and_handshake_keys_do_not_repeat() {
    let (address, server) = scripted(b"\x88\x00".to_vec());
    let mut client = Client::connect(&url(address, "/")).unwrap();
    client.send(b"").unwrap();
    client.send(b"").unwrap();
    client.recv().unwrap();
    drop(client);
    let received = server.join().unwrap();
    assert_ne!(received[2..6], received[8..12]);
}

#[test]
fn an_end_without_a_close_frame_is_lost() {
    let (address, server) = scripted(b"\x81\x05hel".to_vec());
    let mut client = Client::connect(&url(address, "/")).unwrap();
    let error = client.recv().unwrap_err();
    assert!(matches!(error, ClientError::Lost(_)), "{error}");
    assert_eq!((error.blame(), error.is_temporary()), (Blame::Network, true));
    drop(client);
    server.join().unwrap();
}

#[test]
fn a_silent_server_is_pinged_and_then_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        upgrade(&mut stream, "");
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        received
    });
    let interval = Duration::from_millis(20);
    let mut client = Client::builder(&url(address, "/")).heartbeat(interval).connect().unwrap();
    let error = client.recv().unwrap_err();
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Heartbeat, .. }), "{error}");
    drop(client);
    assert_eq!(server.join().unwrap()[..2], [0x89, 0x80]);
}

#[test]
fn a_silent_server_is_pinged_by_short_waits_for_messages_too() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        upgrade(&mut stream, "");
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        received
    });
    let interval = Duration::from_millis(20);
    let mut client = Client::builder(&url(address, "/")).heartbeat(interval).connect().unwrap();
    let waits = (0..400).map(|_| client.recv_timeout(interval / 4).map(|_| ()).unwrap_err());
    let mut others = waits.skip_while(|error| {
        matches!(error, ClientError::Timeout { during: DialStep::Receiving, .. })
    });
    let error = others.next().expect("the server was never given up");
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Heartbeat, .. }), "{error}");
    drop(others);
    drop(client);
    assert_eq!(server.join().unwrap()[..2], [0x89, 0x80]);
}

#[test]
fn a_receive_without_a_wait_takes_what_has_come() {
    let (address, server) = scripted(b"\x81\x01x\x88\x02\x03\xe8".to_vec());
    let mut client = Client::connect(&url(address, "/")).unwrap();
    let asked = std::time::Instant::now();
    let received = loop {
        match client.recv_timeout(Duration::ZERO) {
            Ok(message) => break message,
            Err(ClientError::Timeout { during: DialStep::Receiving, .. }) => {
                assert!(asked.elapsed() < TIMEOUT, "the message was never received");
            }
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(received, Some(Message::Text("x")));
    drop(client);
    server.join().unwrap();
}

#[cfg(unix)]
#[test]
fn a_refusal_whose_body_stalls_is_a_refusal() {
    for body in ["Content-Length: 99\r\n\r\nno token", "Transfer-Encoding: chunked\r\n\r\nX"] {
        let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        write!(theirs, "HTTP/1.1 403 No\r\n{body}").unwrap();
        let builder = Client::builder("ws://local/").connect_timeout(Duration::from_millis(500));
        let error = builder.connect_over(ours).unwrap_err();
        let ClientError::Refused(refused) = &error else { panic!("{error}") };
        let came = if body.ends_with('X') { &b""[..] } else { b"no token" };
        assert_eq!((refused.status, &refused.body[..]), (403, came));
    }
}

#[test]
fn a_proxy_whose_answer_has_no_end_is_given_up() {
    let endless: &'static [u8] = Vec::leak(b"HTTP/1.1 100 Continue\r\n\r\n".repeat(8000));
    let proxy = proxy(vec![(b"\r\n\r\n", endless)], (Ipv4Addr::LOCALHOST, 9).into());
    let builder = Client::builder("ws://h.invalid/").proxy(format!("http://{proxy}"));
    let error = builder.connect().unwrap_err();
    assert!(error.to_string().contains("longer than"), "{error}");
}

#[test]
fn every_step_of_connecting_has_a_time_limit() {
    // The kernel accepts connections into the listener's backlog, and the test never answers.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let quick =
        |builder: ClientBuilder| builder.connect_timeout(Duration::from_millis(50)).connect();
    for builder in [
        Client::builder(&url(address, "/")),
        Client::builder("ws://example.invalid/").proxy(format!("http://{address}")),
        Client::builder("ws://example.invalid/").proxy(format!("socks5://{address}")),
    ] {
        let error = quick(builder).unwrap_err();
        assert!(
            matches!(error, ClientError::Timeout { during: DialStep::Connecting, .. }),
            "{error}"
        );
    }
}

#[test]
fn a_server_that_does_not_answer_the_close_frame_is_given_up() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        let mut stream = accept(&listener);
        upgrade(&mut stream, "");
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let timeout = Duration::from_millis(50);
    let mut client = Client::builder(&url(address, "/")).close_timeout(timeout).connect().unwrap();
    let error = client.close(1000, "").unwrap_err();
    assert!(matches!(error, ClientError::Timeout { during: DialStep::Closing, .. }), "{error}");
    drop(client);
    server.join().unwrap();
}

#[test]
fn mistakes_name_the_setting() {
    for (builder, hint) in [
        (Client::builder("http://h/"), "did you mean ws://h/?"),
        (Client::builder("ws://h/").header("Host", "x"), "header (Host): field name"),
        (Client::builder("ws://h/").subprotocol("a b"), "subprotocol (a b): "),
        (Client::builder("ws://h/").proxy("ftp://p"), "socks5://"),
        (Client::builder("ws://h/").heartbeat(Duration::ZERO), "heartbeat is 0 s"),
    ] {
        let error = builder.connect().unwrap_err();
        assert_eq!(error.blame(), Blame::Configuration, "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    let (address, server) = scripted(b"\x88\x00".to_vec());
    let mut client = Client::connect(&url(address, "/")).unwrap();
    assert!(matches!(client.close(1006, ""), Err(ClientError::Setting(_))));
    assert!(matches!(client.ping(&[0; 126]), Err(ClientError::Setting(_))));
    drop(client);
    server.join().unwrap();
}

/// Starts a proxy that forwards one connection after a scripted exchange with the client. Each step
/// of the script is a pattern that ends the client's input, and the answer.
fn proxy(script: Vec<(&'static [u8], &'static [u8])>, to: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut client = accept(&listener);
        for (end, answer) in script {
            let mut asked = Vec::new();
            while !asked.ends_with(end) {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                asked.push(byte[0]);
            }
            client.write_all(answer).unwrap();
        }
        let mut server = TcpStream::connect(to).unwrap();
        let (mut from, mut back) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let there = thread::spawn(move || {
            let _ = std::io::copy(&mut from, &mut back);
            let _ = back.shutdown(std::net::Shutdown::Write);
        });
        let _ = std::io::copy(&mut server, &mut client);
        let _ = client.shutdown(std::net::Shutdown::Both);
        there.join().unwrap();
    });
    address
}

#[test]
fn proxies_of_both_kinds_are_passed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        for _ in 0..2 {
            let mut stream = accept(&listener);
            upgrade(&mut stream, "");
            let mut sent = [0; 13];
            stream.read_exact(&mut sent).unwrap();
            let answer = [&[0x81, 7][..], &unmasked(&sent), b"\x88\x02\x03\xe8"].concat();
            stream.write_all(&answer).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        }
        listener
    });
    let connect: (&[u8], &[u8]) =
        (b"Basic bWU6cHc=\r\n\r\n", b"HTTP/1.1 200 Connected\r\nVia: x\r\n\r\n");
    let http = proxy(vec![connect], address);
    let socks = proxy(
        vec![
            (b"\x05\x02\x00\x02", b"\x05\x02"),
            (b"\x01\x02me\x02pw", b"\x01\x00"),
            (b"\x03\x0eserver.invalid\x00\x50", b"\x05\x00\x00\x01\0\0\0\0\0\0"),
        ],
        address,
    );
    for through in [format!("http://me:pw@{http}"), format!("socks5://me:pw@{socks}")] {
        let builder = Client::builder("ws://server.invalid/echo").proxy(through);
        let mut client = builder.connect().unwrap();
        client.send("through").unwrap();
        assert_eq!(text(&mut client), "through");
        client.close(1000, "").unwrap();
    }
    let _listener = server.join().unwrap();
    let refusing = proxy(vec![(b"\r\n\r\n", b"HTTP/1.1 403 No\r\n\r\n")], address);
    let refused = Client::builder("ws://h.invalid/").proxy(format!("http://{refusing}"));
    let error = refused.connect().unwrap_err();
    assert!(error.to_string().contains("it answered 403"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_connection_that_exists_can_be_upgraded() {
    let (ours, mut theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let server = thread::spawn(move || {
        let head = read_head(&mut theirs);
        let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
        let accept = accept_key(key);
        let accept = str::from_utf8(&accept).unwrap();
        // The first message arrives together with the response.
        write!(
            theirs,
            "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n\0\0"
        )
        .unwrap();
        head
    });
    let mut client = Client::builder("ws://local/a?b").connect_over(ours).unwrap();
    assert!(server.join().unwrap().starts_with("GET /a?b HTTP/1.1\r\nHost: local\r\n"));
    let error = client.recv().unwrap_err();
    assert!(matches!(error, ClientError::Protocol(_)), "{error}");
}

#[test]
fn a_lost_connection_is_made_again_and_resumed() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        // The server loses a connection, restarts, then serves: a message in fragments, and a
        // message in one frame.
        let served = b"\x01\x01h\x80\x01i\x81\x03you\x88\x02\x03\xe8";
        let endings = [&b""[..], b"\x88\x02\x03\xf4", served];
        endings.map(|frames| {
            let mut stream = accept(&listener);
            upgrade(&mut stream, "");
            let mut greeting = [0; 9];
            stream.read_exact(&mut greeting).unwrap();
            stream.write_all(frames).unwrap();
            unmasked(&greeting)
        })
    });
    let backoff = Backoff::default().first(Duration::from_millis(1));
    let mut seen = 0;
    let mut feed =
        Client::builder(&url(address, "/")).reconnecting(backoff).on_connect(move |client| {
            seen += 1;
            client.send(&format!("no{seen}"))
        });
    assert_eq!(feed.recv().unwrap(), Some(Message::Text("hi")));
    assert_eq!(feed.recv().unwrap(), Some(Message::Text("you")));
    assert_eq!(feed.recv().unwrap(), None, "a normal closure is an end");
    assert_eq!(feed.connections(), 3);
    assert_eq!(server.join().unwrap(), [b"no1", b"no2", b"no3"]);
}

#[test]
fn a_connection_that_is_closed_while_it_is_prepared_is_made_again() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        // The server restarts, serves, and finally closes for good.
        for frames in [&b"\x88\x02\x03\xf4"[..], b"\x81\x02in", b"\x88\x02\x0f\xa1"] {
            let mut stream = accept(&listener);
            upgrade(&mut stream, "");
            stream.write_all(frames).unwrap();
            let _ = stream.read(&mut [0; 16]);
        }
    });
    let backoff = Backoff::default().first(Duration::from_millis(1));
    let reconnecting = || {
        Client::builder(&url(address, "/")).reconnecting(backoff).on_connect(|client| match client
            .recv(
        )? {
            Some(_) => client.send("thanks"),
            None => client.send("is anybody there?"),
        })
    };
    let mut feed = reconnecting();
    feed.client().unwrap();
    assert_eq!(feed.connections(), 1);
    drop(feed);
    let refused = reconnecting().client().map(|_| ()).unwrap_err();
    assert!(
        matches!(&refused, ClientError::Closed(Some(close)) if close.code == 4001),
        "{refused}"
    );
    server.join().unwrap();
}

#[test]
fn the_program_may_say_which_closures_end_the_session() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let server = thread::spawn(move || {
        // The codes 4001, 1008 without a reason, and 1012.
        for frames in [b"\x88\x02\x0f\xa1", b"\x88\x02\x03\xf0", b"\x88\x02\x03\xf4"] {
            let mut stream = accept(&listener);
            upgrade(&mut stream, "");
            stream.write_all(frames).unwrap();
            let _ = stream.read(&mut [0; 16]);
        }
    });
    let backoff = Backoff::default().first(Duration::from_millis(1));
    let mut feed = Client::builder(&url(address, "/"))
        .reconnecting(backoff)
        .reconnect_if(|close| close.code.get() != 1012);
    assert_eq!(feed.recv().unwrap(), None);
    assert_eq!(feed.connections(), 3);
    server.join().unwrap();
}

#[test]
fn attempts_end_at_once_for_a_mistake_and_after_their_number_for_the_network() {
    let mut wrong = Client::builder("http://h/").reconnecting(Backoff::default());
    assert!(matches!(wrong.recv(), Err(ClientError::Url(_))));
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
    let backoff = Backoff::default().first(Duration::from_millis(1)).attempts(3);
    let mut absent = Client::builder(&url(free, "/")).reconnecting(backoff);
    let error = absent.send("x").unwrap_err();
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
    assert_eq!(absent.connections(), 0);
}
