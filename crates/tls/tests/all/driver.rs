//! Secured connections over real sockets: ends, faults of the peer, and connections beside them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::{AlertDescription, ClientConnection, Error};
use throng_io::{
    Batch, Closed, ConnId, Driver, Event, ListenOptions, Options, Portable, Segment, SendOutcome,
    TlsFailure, TlsInfo, listen,
};
use throng_tls::{
    ClientConfigs, ClientSettings, HandshakeLimits, Tls, TlsClient, TlsServer, Trust,
};

use crate::support::{client, client_config, hear, raw_server_config, said};

/// An event without its bytes.
#[derive(Debug, PartialEq)]
enum Seen {
    Adopted(ConnId),
    Secured(ConnId, TlsInfo),
    Received(ConnId, Vec<u8>),
    Finished(ConnId),
    Sent(ConnId, usize),
    Connected(ConnId),
    Closed(ConnId, Closed),
}

struct Rig {
    driver: Tls<Portable>,
    server: Arc<TlsServer>,
    secured: SocketAddr,
    plain: SocketAddr,
}

impl Rig {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let mut driver = Tls::new(Portable::new(options).unwrap());
        let server = TlsServer::new(raw_server_config(None));
        let mut add = |server: Option<&Arc<TlsServer>>| {
            let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
            let (listener, address) = listen(loopback, ListenOptions::default()).unwrap();
            let id = driver.inner().add_listener(listener).unwrap();
            if let Some(server) = server {
                driver.secure(id, Arc::clone(server));
            }
            address
        };
        let (plain, secured) = (add(None), add(Some(&server)));
        Self { driver, server, secured, plain }
    }

    /// Runs a turn; returns its events.
    fn turn(&mut self) -> Vec<Seen> {
        let until = self.driver.now().after(Duration::from_millis(5));
        self.driver.wait(Some(until)).unwrap();
        let mut seen = Vec::new();
        while let Some(event) = self.driver.next_event() {
            seen.push(match event {
                Event::Incoming(socket, ..) => Seen::Adopted(self.driver.adopt(socket).unwrap()),
                Event::Secured(id, info) => Seen::Secured(id, *info),
                Event::Received(id, bytes) => Seen::Received(id, bytes.to_vec()),
                Event::Finished(id) => Seen::Finished(id),
                Event::Sent(id, batch) => Seen::Sent(id, batch.len()),
                Event::Connected(id) => Seen::Connected(id),
                Event::Closed(id, why) => Seen::Closed(id, why),
                other => panic!("unexpected: {other:?}"),
            });
        }
        seen
    }

    /// Runs turns until one event is found; those before it are dropped.
    fn until<T>(&mut self, mut wanted: impl FnMut(&Seen) -> Option<T>) -> T {
        let end = self.driver.now().after(Duration::from_secs(20));
        while self.driver.now() < end {
            if let Some(found) = self.turn().iter().find_map(&mut wanted) {
                return found;
            }
        }
        panic!("the event never came");
    }

    /// Runs turns until bytes or an end reach the peer; returns them.
    fn until_read(&mut self, peer: &mut TcpStream) -> Vec<u8> {
        let mut bytes = vec![0; 64 * 1024];
        let end = self.driver.now().after(Duration::from_secs(20));
        while self.driver.now() < end {
            match peer.read(&mut bytes) {
                Ok(n) => {
                    bytes.truncate(n);
                    return bytes;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => drop(self.turn()),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("nothing came");
    }

    fn dial(&mut self, to: SocketAddr) -> (ConnId, TcpStream) {
        let peer = TcpStream::connect(to).unwrap();
        peer.set_nonblocking(true).unwrap();
        let id = self.until(|seen| match seen {
            Seen::Adopted(id) => Some(*id),
            _ => None,
        });
        (id, peer)
    }

    /// Connects and does the handshake.
    fn pair(&mut self) -> Peer {
        let (id, mut socket) = self.dial(self.secured);
        let mut tls = client(client_config());
        loop {
            socket.write_all(&said(&mut tls)).unwrap();
            if !tls.is_handshaking() {
                break;
            }
            let bytes = self.until_read(&mut socket);
            hear(&mut tls, &bytes).unwrap();
        }
        let info = self.until(|seen| match seen {
            Seen::Secured(of, info) if *of == id => Some(info.clone()),
            _ => None,
        });
        Peer { id, socket, tls, info }
    }

    fn send(&mut self, id: ConnId, bytes: &[u8]) -> bool {
        let mut batch = Box::<Batch>::default();
        batch.push(Segment::Own(bytes.to_vec()));
        matches!(self.driver.send(id, batch), SendOutcome::Done(_))
    }

    /// Runs turns until the peer has heard data, or an error.
    fn until_heard(&mut self, peer: &mut Peer) -> Result<Vec<u8>, Error> {
        loop {
            let bytes = self.until_read(&mut peer.socket);
            let data = hear(&mut peer.tls, &bytes)?;
            if !data.is_empty() || bytes.is_empty() {
                return Ok(data);
            }
        }
    }
}

struct Peer {
    id: ConnId,
    socket: TcpStream,
    tls: ClientConnection,
    info: TlsInfo,
}

impl Peer {
    fn say(&mut self, data: &[u8]) {
        self.tls.writer().write_all(data).unwrap();
        let bytes = said(&mut self.tls);
        self.socket.write_all(&bytes).unwrap();
    }
}

fn received(seen: &Seen) -> Option<Vec<u8>> {
    match seen {
        Seen::Received(_, bytes) => Some(bytes.clone()),
        _ => None,
    }
}

fn finished(seen: &Seen) -> Option<ConnId> {
    match seen {
        Seen::Finished(id) => Some(*id),
        _ => None,
    }
}

#[test]
fn a_handshake_is_reported_and_data_follows() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    assert_eq!((peer.info.version, peer.info.is_resumed), (0x304, false));
    assert_eq!(peer.info.server_name.as_deref(), Some("localhost"));
    peer.say(b"question");
    assert_eq!(rig.until(received), b"question");
    assert!(rig.send(peer.id, b"answer"));
    assert_eq!(rig.until_heard(&mut peer).unwrap(), b"answer");
    assert_eq!(rig.driver.secured(), 1);
}

#[test]
fn a_plain_listener_beside_a_secured_one_stays_plain() {
    let mut rig = Rig::new();
    let (id, mut peer) = rig.dial(rig.plain);
    peer.write_all(b"plain").unwrap();
    assert_eq!(rig.until(received), b"plain");
    assert!(rig.send(id, b"answer"));
    assert_eq!(rig.until_read(&mut peer), b"answer");
    assert_eq!(rig.driver.secured(), 0);
}

#[test]
fn lent_plaintext_can_be_sent_to_a_plain_connection() {
    let mut rig = Rig::new();
    let (plain, mut plain_peer) = rig.dial(rig.plain);
    let mut peer = rig.pair();
    peer.say(b"across");
    let mut sent = false;
    while !sent {
        let until = rig.driver.now().after(Duration::from_millis(5));
        rig.driver.wait(Some(until)).unwrap();
        while let Some(event) = rig.driver.next_event() {
            let Event::Received(_, bytes) = event else { continue };
            let mut batch = Box::<Batch>::default();
            batch.push(Segment::Lent(1..bytes.len()));
            sent = matches!(rig.driver.send(plain, batch), SendOutcome::Done(_));
        }
    }
    assert_eq!(rig.until_read(&mut plain_peer), b"cross");
}

#[test]
fn rfc8446_6_1_an_end_without_close_notify_is_truncated() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    peer.tls.send_close_notify();
    peer.say(b"");
    assert_eq!(rig.until(finished), peer.id);
    assert!(!rig.driver.was_truncated(peer.id));

    let peer = rig.pair();
    peer.socket.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rig.until(finished), peer.id);
    assert!(rig.driver.was_truncated(peer.id));
}

#[test]
fn an_end_found_with_data_waits_for_a_paused_reader() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    rig.driver.pause(peer.id);
    peer.tls.writer().write_all(b"data").unwrap();
    peer.tls.send_close_notify();
    peer.say(b"");
    for _ in 0..3 {
        assert_eq!(rig.turn(), []);
    }
    rig.driver.resume(peer.id);
    let until = rig.driver.now().after(Duration::from_secs(20));
    let mut data = Vec::new();
    while data.is_empty() {
        rig.driver.wait(Some(until)).unwrap();
        while let Some(event) = rig.driver.next_event() {
            let Event::Received(id, bytes) = event else { panic!("{event:?}") };
            data.extend_from_slice(bytes);
            rig.driver.pause(id);
        }
    }
    assert_eq!(data, b"data");
    for _ in 0..3 {
        assert_eq!(rig.turn(), []);
    }
    rig.driver.resume(peer.id);
    assert_eq!(rig.until(finished), peer.id);
}

#[test]
fn a_corrupt_record_ends_the_session_with_an_alert() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    peer.tls.writer().write_all(b"data").unwrap();
    let mut bytes = said(&mut peer.tls);
    *bytes.last_mut().unwrap() ^= 1;
    peer.socket.write_all(&bytes).unwrap();
    assert_eq!(rig.until(finished), peer.id);
    assert!(rig.driver.was_truncated(peer.id));
    assert!(rig.send(peer.id, b"to no one"));
    let refused = AlertDescription::BadRecordMac;
    assert_eq!(rig.until_heard(&mut peer), Err(Error::AlertReceived(refused)));
    rig.driver.close(peer.id);
    rig.until(|seen| matches!(seen, Seen::Closed(..)).then_some(()));
    assert_eq!(rig.driver.secured(), 0);
}

#[test]
fn http_without_tls_is_answered_with_the_reason() {
    let mut rig = Rig::new();
    let (id, mut peer) = rig.dial(rig.secured);
    peer.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert_eq!(rig.until(finished), id);
    let answer = String::from_utf8(rig.until_read(&mut peer)).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
}

#[test]
fn bytes_that_are_no_handshake_end_the_connection() {
    for bytes in [&[0; 100][..], b"\x16\x03\x01\x00\x05hello", b"\x16\x03\x01\xff\xff", b"ssh-2"] {
        let mut rig = Rig::new();
        let (id, mut peer) = rig.dial(rig.secured);
        peer.write_all(bytes).unwrap();
        assert_eq!(rig.until(finished), id, "{bytes:?}");
    }
}

#[test]
fn a_client_hello_without_end_is_refused() {
    let mut rig = Rig::new();
    let (id, mut peer) = rig.dial(rig.secured);
    // A record of the greatest length that never ends, behind one that is complete.
    let hello = [&[22, 3, 1, 0x40, 0][..], &[0; 40_000]].concat();
    let mut written = 0;
    loop {
        if let Ok(n) = peer.write(&hello[written..]) {
            written += n;
        }
        if rig.turn().contains(&Seen::Finished(id)) {
            break;
        }
    }
    assert_eq!(rig.until_read(&mut peer), [21, 3, 3, 0, 2, 2, 47], "illegal_parameter");
}

#[test]
fn a_replaced_configuration_serves_new_connections_only() {
    let mut rig = Rig::new();
    let mut old = rig.pair();
    let mut config = raw_server_config(None);
    config.alpn_protocols = vec![b"other".to_vec()];
    rig.server.replace(config);
    let (_, mut socket) = rig.dial(rig.secured);
    let mut config = client_config();
    config.alpn_protocols = vec![b"other".to_vec()];
    let mut tls = client(config);
    socket.write_all(&said(&mut tls)).unwrap();
    while tls.alpn_protocol().is_none() {
        let bytes = rig.until_read(&mut socket);
        hear(&mut tls, &bytes).unwrap();
    }
    assert_eq!(tls.alpn_protocol(), Some(&b"other"[..]));
    old.say(b"still here");
    assert_eq!(rig.until(received), b"still here");
}

#[test]
fn key_updates_of_a_peer_that_does_not_read_are_answered_once() {
    let options = Options { socket_send_buffer: Some(16 * 1024), ..Options::default() };
    let mut rig = Rig::with(options);
    let mut peer = rig.pair();
    let output = vec![b'x'; 8 << 20];
    assert!(!rig.send(peer.id, &output), "it fits");
    for round in 0..60u8 {
        peer.tls.refresh_traffic_keys().unwrap();
        peer.say(&[round]);
        assert_eq!(rig.until(received), [round]);
    }
    let mut heard = Vec::new();
    while heard.len() < output.len() {
        heard.extend(rig.until_heard(&mut peer).unwrap());
    }
    assert_eq!(heard, output);
    assert!(rig.send(peer.id, b"after"));
    assert_eq!(rig.until_heard(&mut peer).unwrap(), b"after");
}

#[test]
fn rfc8446_4_6_3_a_key_update_right_before_close_notify_is_answered_before_data() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    assert!(rig.send(peer.id, b"tickets come before it"));
    rig.until_heard(&mut peer).unwrap();
    peer.tls.refresh_traffic_keys().unwrap();
    peer.tls.send_close_notify();
    peer.say(b"");
    assert_eq!(rig.until(finished), peer.id);
    assert!(!rig.driver.was_truncated(peer.id));
    assert!(rig.send(peer.id, b"data"));
    let (mut heard, mut wire) = (Vec::new(), 0);
    while heard.is_empty() {
        let bytes = rig.until_read(&mut peer.socket);
        wire += bytes.len();
        heard = hear(&mut peer.tls, &bytes).unwrap();
    }
    let update_and_data = (5 + 5 + 17) + (5 + 4 + 17);
    assert_eq!((heard.as_slice(), wire), (&b"data"[..], update_and_data));
}

/// A connection of ours to the rig's own secured listener.
fn connected(rig: &mut Rig, trust: Trust, name: &str) -> (ConnId, Result<ConnId, Closed>) {
    let settings = ClientSettings { trust, ..ClientSettings::default() };
    let client = TlsClient::new(&ClientConfigs::load(settings).unwrap(), name).unwrap();
    connected_by(rig, &client)
}

fn connected_by(rig: &mut Rig, client: &Arc<TlsClient>) -> (ConnId, Result<ConnId, Closed>) {
    let ours = rig.driver.connect_secured(rig.secured, None, &client.for_driver(), b"").unwrap();
    let (mut accepted, mut is_secured) = (None, false);
    let outcome = rig.until(|seen| match seen {
        Seen::Adopted(id) => {
            accepted = Some(*id);
            None
        }
        Seen::Secured(id, _) if *id == ours => {
            is_secured = true;
            None
        }
        Seen::Connected(id) if *id == ours => {
            assert!(is_secured, "C12");
            Some(Ok(()))
        }
        Seen::Closed(id, why) if *id == ours => Some(Err(*why)),
        _ => None,
    });
    (ours, outcome.map(|()| accepted.expect("accepted")))
}

#[test]
fn a_connection_of_ours_is_secured_and_carries_data_both_ways() {
    let file = crate::support::certificate_file();
    for (trust, name) in [
        (Trust::File(file.clone()), "localhost"),
        (Trust::File(file), "127.0.0.1"),
        (Trust::Anyone, "other.example"),
    ] {
        let mut rig = Rig::new();
        let (ours, accepted) = connected(&mut rig, trust, name);
        let theirs = accepted.unwrap();
        assert_eq!(rig.driver.secured(), 2);
        for (from, to) in [(ours, theirs), (theirs, ours), (ours, theirs)] {
            assert!(rig.send(from, b"across"));
            let seen = rig.until(|seen| match seen {
                Seen::Received(id, bytes) => Some((*id, bytes.clone())),
                _ => None,
            });
            assert_eq!(seen, (to, b"across".to_vec()));
        }
        rig.driver.finish(ours);
        assert_eq!(rig.until(finished), theirs);
        assert!(!rig.driver.was_truncated(theirs));
    }
}

#[test]
fn a_certificate_that_is_not_trusted_refuses_a_connection_of_ours() {
    let other = crate::support::other_certificate_file();
    for (trust, name, why) in [
        (Trust::File(other), "localhost", TlsFailure::UnknownIssuer),
        (Trust::File(crate::support::certificate_file()), "other.example", TlsFailure::WrongName),
    ] {
        let mut rig = Rig::new();
        let (_, outcome) = connected(&mut rig, trust, name);
        assert_eq!(outcome, Err(Closed::Insecure(why)));
    }
}

#[test]
fn a_server_without_tls_refuses_a_connection_of_ours() {
    let mut rig = Rig::new();
    let secured = std::mem::replace(&mut rig.secured, rig.plain);
    let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
    let client = TlsClient::new(&ClientConfigs::load(settings).unwrap(), "localhost").unwrap();
    for answer in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let ours = rig.driver.connect_secured(rig.plain, None, &client.for_driver(), b"").unwrap();
        let closed = loop {
            let seen = rig.turn();
            for seen in &seen {
                if let Seen::Received(id, _) = seen {
                    match answer {
                        b"" => rig.driver.finish(*id),
                        answer => drop(rig.send(*id, answer)),
                    }
                }
            }
            let closed = seen.into_iter().find_map(|seen| match seen {
                Seen::Closed(id, why) if id == ours => Some(why),
                _ => None,
            });
            if let Some(closed) = closed {
                break closed;
            }
        };
        let expected = if answer.is_empty() { TlsFailure::Ended } else { TlsFailure::NotTls };
        assert_eq!(closed, Closed::Insecure(expected));
    }
    rig.secured = secured;
}

#[test]
fn bytes_sent_at_once_that_the_kernel_leaves_come_before_later_ones() {
    let options = Options { socket_send_buffer: Some(4 * 1024), ..Options::default() };
    let mut rig = Rig::with(options);
    let mut peer = rig.pair();
    let (mut expected, frame) = (Vec::new(), vec![b'x'; 10_000]);
    loop {
        let taken = rig.driver.try_send(peer.id, &frame);
        assert_eq!(rig.driver.unsent(peer.id), 0, "C3: nothing is in flight");
        if taken == 0 {
            break;
        }
        assert_eq!(taken, frame.len());
        expected.extend_from_slice(&frame);
    }
    assert!(rig.driver.output_memory(peer.id) > 0);
    assert!(!rig.send(peer.id, b"later"), "it overtook");
    expected.extend_from_slice(b"later");
    let mut heard = Vec::new();
    while heard.len() < expected.len() {
        heard.extend(rig.until_heard(&mut peer).unwrap());
    }
    assert!(heard == expected);
    // A frame that is too long to be kept sealed is the engine's to queue.
    assert_eq!(rig.driver.try_send(peer.id, &[0; 20_000]), 0);
}

#[test]
fn c3_a_send_before_connected_leaves_when_it_is() {
    let mut rig = Rig::new();
    let settings = ClientSettings { trust: Trust::Anyone, ..ClientSettings::default() };
    let client = TlsClient::new(&ClientConfigs::load(settings).unwrap(), "localhost").unwrap();
    let ours = rig.driver.connect_secured(rig.secured, None, &client.for_driver(), b"").unwrap();
    assert!(!rig.send(ours, b"early"), "there are no keys yet");
    assert_eq!(rig.driver.unsent(ours), 5);
    let (mut seen, mut heard) = (Vec::new(), false);
    while !heard || seen.last() != Some(&Seen::Sent(ours, 0)) {
        for event in rig.turn() {
            match event {
                Seen::Received(_, bytes) => heard = bytes == b"early",
                Seen::Connected(_) | Seen::Sent(..) => seen.push(event),
                _ => {}
            }
        }
    }
    assert_eq!(seen, [Seen::Connected(ours), Seen::Sent(ours, 0)]);

    let ours = rig.driver.connect_secured(rig.plain, None, &client.for_driver(), b"").unwrap();
    assert!(!rig.send(ours, b"early"));
    let mut seen = Vec::new();
    while !matches!(seen.last(), Some(Seen::Closed(..))) {
        for event in rig.turn() {
            match event {
                Seen::Received(id, _) => rig.driver.close(id),
                Seen::Sent(..) => seen.push(event),
                Seen::Closed(id, _) if id == ours => seen.push(event),
                _ => {}
            }
        }
    }
    let closed = Seen::Closed(ours, Closed::Insecure(TlsFailure::Ended));
    assert_eq!(seen, [Seen::Sent(ours, 5), closed]);
}

#[test]
fn handshakes_are_counted_by_their_outcome() {
    let mut rig = Rig::new();
    let mut peer = rig.pair();
    assert_eq!((rig.server.stats().full, rig.server.stats().resumed), (1, 0));
    // Another session of the same client resumes the first.
    assert!(rig.send(peer.id, b"data"));
    assert_eq!(rig.until_heard(&mut peer).unwrap(), b"data");

    let failures = |rig: &Rig, why: TlsFailure| rig.server.stats().failed[why.index()];
    let (id, mut plain) = rig.dial(rig.secured);
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(rig.until(finished), id);
    assert_eq!(failures(&rig, TlsFailure::NotTls), 1);

    let (id, mut gone) = rig.dial(rig.secured);
    gone.write_all(&[22, 3, 1]).unwrap();
    gone.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(rig.until(finished), id);
    rig.driver.close(id);
    rig.until(|seen| matches!(seen, Seen::Closed(..)).then_some(()));
    assert_eq!(failures(&rig, TlsFailure::Ended), 1);

    let (_, outcome) =
        connected(&mut rig, Trust::File(crate::support::other_certificate_file()), "localhost");
    outcome.unwrap_err();
    while failures(&rig, TlsFailure::Alert(0)) == 0 {
        rig.turn();
    }
    let failed: u64 = rig.server.stats().failed.iter().sum();
    assert_eq!((failed, rig.server.stats().full), (3, 1));
}

#[test]
fn the_oldest_handshakes_are_given_up_when_there_are_too_many() {
    let mut rig = Rig::new();
    rig.driver.limit_handshakes(HandshakeLimits { pending: 3, per_second: 0 });
    let given_up = |rig: &Rig| rig.server.stats().failed[TlsFailure::GivenUp.index()];
    let mut pending = Vec::new();
    for _ in 0..5 {
        let (id, mut socket) = rig.dial(rig.secured);
        let mut tls = client(client_config());
        socket.write_all(&said(&mut tls)).unwrap();
        // It has its answer, and does not say more.
        rig.until_read(&mut socket);
        pending.push((id, socket));
    }
    assert_eq!(given_up(&rig), 2);
    let mut peer = rig.pair();
    peer.say(b"question");
    assert_eq!(rig.until(received), b"question");
    assert_eq!(given_up(&rig), 3, "an honest client has one of the places");
}

/// RFC 8737 section 3: the client must close the connection, whatever it sends instead.
#[test]
fn rfc8737_3_a_validation_ends_with_its_handshake() {
    let mut rig = Rig::new();
    let mut config = raw_server_config(None);
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"acme-tls/1".to_vec()];
    rig.server.replace(config);
    let (id, mut socket) = rig.dial(rig.secured);
    let mut config = client_config();
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let mut tls = client(config);
    while tls.is_handshaking() {
        socket.write_all(&said(&mut tls)).unwrap();
        let bytes = rig.until_read(&mut socket);
        hear(&mut tls, &bytes).unwrap();
    }
    assert_eq!(tls.alpn_protocol(), Some(&b"acme-tls/1"[..]));
    tls.writer().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    socket.write_all(&said(&mut tls)).unwrap();
    let ended = rig.until(|seen| match seen {
        Seen::Finished(of) if *of == id => Some(true),
        Seen::Secured(..) | Seen::Received(..) => Some(false),
        _ => None,
    });
    assert!(ended, "no session begins");
    assert_eq!(rig.server.stats().failed.iter().sum::<u64>(), 0);
    assert_eq!(rig.server.stats().full, 1);
}

#[test]
fn a_turn_has_a_bounded_number_of_steps_of_handshakes() {
    const CLIENTS: usize = 60;
    let mut rig = Rig::new();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let (_, mut socket) = rig.dial(rig.secured);
        let mut tls = client(client_config());
        socket.write_all(&said(&mut tls)).unwrap();
        let answer = rig.until_read(&mut socket);
        hear(&mut tls, &answer).unwrap();
        clients.push((socket, tls));
    }
    for (socket, tls) in &mut clients {
        socket.write_all(&said(tls)).unwrap();
    }
    let (mut secured, mut most) = (0, 0);
    while secured < CLIENTS {
        let is_secured = |seen: &&Seen| matches!(seen, Seen::Secured(..));
        let here = rig.turn().iter().filter(is_secured).count();
        (secured, most) = (secured + here, most.max(here));
    }
    assert!(most <= 16, "{most} handshakes were completed in one turn");
}

#[test]
fn data_and_the_end_of_the_stream_may_come_right_behind_a_handshake() {
    for with_close_notify in [true, false] {
        let mut rig = Rig::new();
        let (id, mut socket) = rig.dial(rig.secured);
        let mut tls = client(client_config());
        socket.write_all(&said(&mut tls)).unwrap();
        while tls.is_handshaking() {
            let bytes = rig.until_read(&mut socket);
            hear(&mut tls, &bytes).unwrap();
        }
        tls.writer().write_all(b"question").unwrap();
        if with_close_notify {
            tls.send_close_notify();
        }
        socket.write_all(&said(&mut tls)).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut question = Vec::new();
        rig.until(|seen| {
            question.extend(received(seen).unwrap_or_default());
            finished(seen)
        });
        assert_eq!(question, b"question");
        assert_eq!(rig.driver.was_truncated(id), !with_close_notify);
        assert!(rig.send(id, b"answer"));
        let mut peer = Peer { id, socket, tls, info: TlsInfo::default() };
        assert_eq!(rig.until_heard(&mut peer).unwrap(), b"answer");
    }
}

#[test]
fn memory_of_handshakes_and_of_incomplete_records_is_reported() {
    let mut rig = Rig::new();
    let (id, mut socket) = rig.dial(rig.secured);
    assert_eq!((rig.driver.take_growth(), rig.driver.input_holders()), (0, vec![]));
    let mut tls = client(client_config());
    socket.write_all(&said(&mut tls)).unwrap();
    let answer = rig.until_read(&mut socket);
    assert!(rig.driver.is_handshaking(id) && rig.driver.output_memory(id) > 4_000);
    assert_eq!(rig.driver.input_holders(), [id]);
    assert!(rig.driver.take_growth() > 4_000);
    assert_eq!(rig.driver.take_growth(), 0);
    hear(&mut tls, &answer).unwrap();
    socket.write_all(&said(&mut tls)).unwrap();
    rig.until(|seen| matches!(seen, Seen::Secured(..)).then_some(()));
    assert!(!rig.driver.is_handshaking(id));
    assert_eq!((rig.driver.output_memory(id), rig.driver.input_holders()), (0, vec![]));
    rig.driver.take_growth();

    tls.writer().write_all(&[0; 10_000]).unwrap();
    let record = said(&mut tls);
    let (start, end) = record.split_at(9_000);
    socket.write_all(start).unwrap();
    let mut held = 0;
    while held < 9_000 {
        rig.turn();
        held = rig.driver.output_memory(id);
    }
    assert_eq!(rig.driver.input_holders(), [id]);
    assert!(rig.driver.take_growth() >= 9_000);
    socket.write_all(end).unwrap();
    assert_eq!(rig.until(received).len(), 10_000);
    assert_eq!((rig.driver.output_memory(id), rig.driver.input_holders()), (0, vec![]));
}

#[test]
fn sessions_of_ours_are_resumed_if_wanted() {
    for (only_tls12, resumes) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut rig = Rig::new();
        let trust = Trust::File(crate::support::certificate_file());
        let settings = ClientSettings { trust, only_tls12, resumes, certificate: None };
        let configs = ClientConfigs::load(settings).unwrap();
        let client = TlsClient::new(&configs, "localhost").unwrap();
        for round in 0..4 {
            let (ours, accepted) = connected_by(&mut rig, &client);
            let theirs = accepted.unwrap();
            for (from, to) in [(ours, theirs), (theirs, ours)] {
                assert!(rig.send(from, b"across"));
                let at = rig.until(|seen| match seen {
                    Seen::Received(id, bytes) if bytes == b"across" => Some(*id),
                    _ => None,
                });
                assert_eq!(at, to);
            }
            assert_eq!(rig.driver.output_memory(ours), 0);
            let resumed = if resumes { round } else { 0 };
            let stats = rig.server.stats();
            assert_eq!((stats.full, stats.resumed), (round + 1 - resumed, resumed));
        }
    }
}
