//! Ends of sessions by our side on full sockets, seen by a peer that reads late.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use rustls::{ClientConnection, SupportedProtocolVersion};
use throng_io::{Batch, Closed, ConnId, Driver, Event, Segment, SendOutcome};
use throng_sim::driver::SimDriver;
use throng_sim::net::{LinkId, LinkOptions, Readable, Side};
use throng_sim::{Faults, Net, Rng, SharedNet, Waiting};
use throng_tls::{Tls, TlsServer};

use crate::support::{VERSIONS, client, client_config_of, raw_server_config, said};

/// Bytes in flight that the link holds.
const CAPACITY: usize = 5_000;

/// A client of one version on the simulated network, whose handshake is complete, and our side.
struct Scene {
    net: SharedNet,
    driver: Tls<SimDriver>,
    id: ConnId,
    link: LinkId,
    tls: ClientConnection,
    data: Vec<u8>,
    /// A close_notify has come.
    is_complete: bool,
    /// The end that came after all data.
    end: Option<Readable>,
    has_finished: bool,
    sent: usize,
    closed: Vec<Closed>,
}

impl Scene {
    fn new(version: &'static SupportedProtocolVersion) -> Self {
        Self::with(version, Faults::default())
    }

    fn with(version: &'static SupportedProtocolVersion, faults: Faults) -> Self {
        let net = Net::shared();
        let faults = Faults { receive_buffer: 64 * 1024, ..faults };
        let inner = SimDriver::new(&net, 5, faults, Rng::new(1), Waiting::Jump);
        let mut driver = Tls::new(inner);
        let listener = net.borrow_mut().listen(SocketAddr::from(([127, 0, 0, 1], 1000)));
        let listening = driver.inner().add_listener(listener);
        driver.secure(listening, TlsServer::new(raw_server_config(None)));
        let options = LinkOptions { latency: 1, capacity: CAPACITY, cut_after: None };
        let from = SocketAddr::from(([127, 0, 0, 1], 2000));
        let link = net.borrow_mut().dial(listener, from, options).expect("it listens");
        let tls = client(client_config_of(&[version]));
        let mut scene = Self {
            net,
            driver,
            id: ConnId::new(0, 0, 0),
            link,
            tls,
            data: Vec::new(),
            is_complete: false,
            end: None,
            has_finished: false,
            sent: 0,
            closed: Vec::new(),
        };
        for _ in 0..20 {
            scene.say();
            scene.turn();
            scene.read();
        }
        assert!(!scene.tls.is_handshaking() && scene.end.is_none());
        scene
    }

    fn turn(&mut self) {
        self.turn_within(Duration::from_millis(1));
    }

    fn turn_within(&mut self, most: Duration) {
        self.driver.inner().progress();
        let until = self.driver.now().after(most);
        self.driver.wait(Some(until)).unwrap();
        while let Some(event) = self.driver.next_event() {
            match event {
                Event::Incoming(socket, ..) => self.id = self.driver.adopt(socket).unwrap(),
                Event::Secured(..) => {}
                Event::Finished(_) => self.has_finished = true,
                Event::Sent(..) => self.sent += 1,
                Event::Closed(_, why) => self.closed.push(why),
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// The client sends its pending output.
    fn say(&mut self) {
        let bytes = said(&mut self.tls);
        self.net.borrow_mut().write(self.link, Side::Dialer, &bytes);
    }

    /// The client reads what there is.
    fn read(&mut self) {
        let mut bytes = Vec::new();
        let mut net = self.net.borrow_mut();
        match net.readable(self.link, Side::Dialer) {
            Readable::Bytes(_) => net.read(self.link, Side::Dialer, usize::MAX, &mut bytes),
            Readable::Nothing => {}
            end => self.end = Some(end),
        }
        drop(net);
        let mut bytes = bytes.as_slice();
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes).unwrap();
            self.is_complete |= self.tls.process_new_packets().unwrap().peer_has_closed();
            let _ = self.tls.reader().read_to_end(&mut self.data);
        }
    }

    /// The client ends its stream.
    fn half_close(&mut self) {
        self.tls.send_close_notify();
        self.say();
        self.net.borrow_mut().finish(self.link, Side::Dialer);
        for _ in 0..5 {
            self.turn();
        }
    }

    /// Sends so much data; returns whether all of it has left.
    fn send(&mut self, len: usize) -> bool {
        let mut batch = Box::<Batch>::default();
        batch.push(Segment::Own(vec![7; len]));
        matches!(self.driver.send(self.id, batch), SendOutcome::Done(_))
    }

    /// Sends data until only so many bytes of the link are free; returns how much.
    fn fill_but(&mut self, left: usize) -> usize {
        let len = CAPACITY - left - self.record_len(0);
        assert!(self.send(len));
        len
    }

    /// The length of a record with so many bytes.
    fn record_len(&self, len: usize) -> usize {
        match self.tls.protocol_version() {
            Some(rustls::ProtocolVersion::TLSv1_2) => 5 + 8 + len + 16,
            _ => 5 + len + 1 + 16,
        }
    }

    fn read_to_the_end(&mut self) {
        for _ in 0..50 {
            self.turn();
            self.read();
        }
    }

    fn is_closing(&self) -> bool {
        self.driver.is_closing(self.id)
    }
}

/// For each version of TLS, and before as well as after the end of the client's stream.
fn each(run: impl Fn(&dyn Fn() -> Scene)) {
    for version in VERSIONS {
        for is_half_closed in [false, true] {
            run(&|| {
                let mut scene = Scene::new(version);
                if is_half_closed {
                    scene.half_close();
                    assert!(scene.has_finished);
                }
                scene
            });
        }
    }
}

/// RFC 8446 section 6.1: each side sends a close_notify before it ends its stream. For a body
/// without a length, only the close_notify confirms that it is complete.
#[test]
fn rfc8446_6_1_a_close_says_so_however_full_the_socket_is() {
    each(|scene| {
        for left in 0..40 {
            let mut scene = scene();
            let len = scene.fill_but(left);
            scene.driver.close(scene.id);
            assert_eq!(scene.is_closing(), left < scene.record_len(2), "{left}");
            scene.read_to_the_end();
            assert_eq!(scene.data.len(), len, "{left}");
            assert!(scene.is_complete, "{left}: it looks cut");
            assert_eq!(scene.end, Some(Readable::Finished), "{left}");
            assert_eq!(scene.closed, [Closed::Local], "{left}");
            assert!(!scene.is_closing() && scene.sent == 0);
            assert_eq!(scene.driver.secured(), 0);
        }
    });
}

#[test]
fn a_close_does_not_overtake_the_end_of_the_stream() {
    each(|scene| {
        let mut scene = scene();
        let len = scene.fill_but(0);
        scene.driver.finish(scene.id);
        assert!(!scene.is_closing());
        scene.driver.close(scene.id);
        assert!(scene.is_closing());
        scene.read_to_the_end();
        assert_eq!((scene.data.len(), scene.is_complete), (len, true));
        assert_eq!(
            (scene.end, &scene.closed[..]),
            (Some(Readable::Finished), &[Closed::Local][..])
        );
    });
}

#[test]
fn a_close_waits_half_a_minute_for_a_peer_that_does_not_read() {
    each(|scene| {
        let mut scene = scene();
        let len = scene.fill_but(10);
        let began = scene.driver.now();
        scene.driver.close(scene.id);
        while scene.closed.is_empty() && scene.driver.now().since(began).as_secs() < 100 {
            scene.turn_within(Duration::from_secs(1));
        }
        assert_eq!(scene.closed, [Closed::Local]);
        assert!((30..=32).contains(&scene.driver.now().since(began).as_secs()));
        // Includes the part of the record that the socket took.
        scene.read_to_the_end();
        assert_eq!((scene.data.len(), scene.is_complete), (len, false));
        assert_eq!(scene.end, Some(Readable::Finished));
    });
}

#[test]
fn the_wait_of_a_close_can_be_ended() {
    each(|scene| {
        for is_reset in [false, true] {
            let mut scene = scene();
            let len = scene.fill_but(0);
            scene.driver.close(scene.id);
            match is_reset {
                false => scene.driver.close_now(scene.id),
                true => scene.driver.abort(scene.id),
            }
            assert!(!scene.is_closing());
            scene.driver.close_now(scene.id);
            scene.driver.abort(scene.id);
            scene.driver.close(scene.id);
            scene.turn();
            assert_eq!(scene.closed, [Closed::Local]);
            scene.read_to_the_end();
            let (data, end) = match is_reset {
                false => (len, Readable::Finished),
                true => (0, Readable::Reset),
            };
            assert_eq!((scene.data.len(), scene.end), (data, Some(end)));
            assert!(!scene.is_complete);
        }
    });
}

#[test]
fn a_close_that_waits_for_a_peer_that_resets_is_one_end() {
    each(|scene| {
        let mut scene = scene();
        scene.fill_but(0);
        scene.driver.close(scene.id);
        scene.net.borrow_mut().reset(scene.link, Side::Dialer);
        for _ in 0..5 {
            scene.turn();
        }
        assert_eq!((scene.closed.len(), scene.closed[0]), (1, Closed::Local));
        assert!(!scene.is_closing() && scene.driver.secured() == 0);
    });
}

/// Input that arrives while a close waits is dropped, and does not turn it into a reset.
#[test]
fn a_close_that_waits_drops_what_comes() {
    for version in VERSIONS {
        let mut scene = Scene::new(version);
        let len = scene.fill_but(0);
        scene.driver.close(scene.id);
        scene.tls.writer().write_all(&[1; 3_000]).unwrap();
        scene.say();
        for _ in 0..5 {
            scene.turn();
        }
        scene.half_close();
        scene.read_to_the_end();
        assert!(!scene.has_finished, "an event after the close");
        assert_eq!((scene.data.len(), scene.is_complete), (len, true));
        assert_eq!(
            (scene.end, &scene.closed[..]),
            (Some(Readable::Finished), &[Closed::Local][..])
        );
    }
}

/// A driver may report the end of a send later.
#[test]
fn a_close_waits_for_a_batch_that_has_left_and_was_not_returned() {
    for version in VERSIONS {
        let mut scene = Scene::with(version, Faults { delayed_sends: 1, ..Faults::default() });
        assert!(!scene.send(100));
        assert_eq!(scene.driver.unsent(scene.id), 0);
        scene.driver.close(scene.id);
        assert!(scene.is_closing());
        scene.read_to_the_end();
        assert_eq!((scene.data.len(), scene.is_complete), (100, true));
        assert_eq!((scene.end, scene.sent), (Some(Readable::Finished), 1));
        assert_eq!(scene.closed, [Closed::Local]);
    }
}

/// The bytes of a batch that have not left are lost with a close, and the stream must not look
/// complete.
#[test]
fn a_close_that_loses_data_does_not_say_that_the_stream_is_complete() {
    each(|scene| {
        let mut scene = scene();
        assert!(!scene.send(2 * CAPACITY));
        scene.driver.close(scene.id);
        assert!(!scene.is_closing());
        scene.read_to_the_end();
        assert_eq!((scene.sent, &scene.closed[..]), (1, &[Closed::Local][..]));
        assert!(scene.data.len() < 2 * CAPACITY && !scene.is_complete);
        assert_eq!(scene.end, Some(Readable::Finished));
    });
}
