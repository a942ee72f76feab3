//! Messages of an established session need no memory beyond the kept buffers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use throng_io::{
    Batch, ConnId, Driver, Event, ListenOptions, Options, Portable, Segment, SendOutcome, listen,
};
use throng_tls::{Tls, TlsServer};

use crate::support::{client, client_config, hear, raw_server_config, said};

/// A driver that echoes all received data.
struct Echo {
    driver: Tls<Portable>,
    spare: Option<Box<Batch>>,
    /// The connection of the last data.
    last: Option<ConnId>,
}

impl Echo {
    fn turn(&mut self) {
        let until = self.driver.now().after(Duration::from_millis(5));
        self.driver.wait(Some(until)).unwrap();
        while let Some(event) = self.driver.next_event() {
            let (id, len) = match event {
                Event::Incoming(socket, ..) => {
                    self.driver.adopt(socket).unwrap();
                    continue;
                }
                Event::Received(id, bytes) => (id, bytes.len()),
                _ => continue,
            };
            self.last = Some(id);
            let mut batch = self.spare.take().unwrap_or_default();
            batch.push(Segment::Lent(0..len));
            match self.driver.send(id, batch) {
                SendOutcome::Done(mut batch) => {
                    batch.clear();
                    self.spare = Some(batch);
                }
                SendOutcome::Pending => panic!("a short message does not fit"),
            }
        }
    }

    /// Runs turns until `len` bytes have reached the peer.
    fn until_read(&mut self, peer: &mut TcpStream, buffer: &mut [u8], len: usize) -> usize {
        let (mut read, end) = (0, self.driver.now().after(Duration::from_secs(20)));
        while read < len.max(1) {
            assert!(self.driver.now() < end, "the echo never came");
            match peer.read(&mut buffer[read..]) {
                Ok(n) => read += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.turn(),
                Err(error) => panic!("{error}"),
            }
        }
        read
    }
}

/// A driver with a secured listener, and where it listens.
fn secured() -> (Tls<Portable>, SocketAddr) {
    let mut driver = Tls::new(Portable::new(Options::default()).unwrap());
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let (listener, address) = listen(loopback, ListenOptions::default()).unwrap();
    let listener = driver.inner().add_listener(listener).unwrap();
    driver.secure(listener, TlsServer::new(raw_server_config(None)));
    (driver, address)
}

/// Handshakes of clients that have received the answer and send nothing more. The memory of aws-lc
/// is not counted.
#[test]
fn a_pending_handshake_takes_little_more_than_what_rustls_needs() {
    const COUNT: usize = 50;
    let (driver, address) = secured();
    let mut echo = Echo { driver, spare: None, last: None };
    let hello = said(&mut client(client_config()));
    let mut buffer = vec![0; 64 * 1024];
    let mut pending = |echo: &mut Echo| {
        let mut peer = TcpStream::connect(address).unwrap();
        peer.set_nonblocking(true).unwrap();
        peer.write_all(&hello).unwrap();
        echo.until_read(&mut peer, &mut buffer, 500);
        peer
    };
    // The table has memory for many connections.
    let first = pending(&mut echo);
    let mut peers = Vec::with_capacity(COUNT);
    let counted = allocation_counter::measure(|| {
        peers.extend((0..COUNT).map(|_| pending(&mut echo)));
    });
    let each = counted.bytes_current / COUNT as i64;
    assert!(each <= 2_800, "{each} bytes");
    drop((first, peers));
}

#[test]
fn an_echoed_message_and_a_published_one_allocate_nothing() {
    const ROUNDS: usize = 200;
    let (driver, address) = secured();
    let mut echo = Echo { driver, spare: None, last: None };

    let mut peer = TcpStream::connect(address).unwrap();
    peer.set_nonblocking(true).unwrap();
    let (mut tls, mut buffer) = (client(client_config()), vec![0; 64 * 1024]);
    loop {
        peer.write_all(&said(&mut tls)).unwrap();
        if !tls.is_handshaking() {
            break;
        }
        let n = echo.until_read(&mut peer, &mut buffer, 1);
        hear(&mut tls, &buffer[..n]).unwrap();
    }
    while tls.tls13_tickets_received() < 2 {
        let n = echo.until_read(&mut peer, &mut buffer, 1);
        hear(&mut tls, &buffer[..n]).unwrap();
    }
    let record = 100 + 22;
    let mut messages: Vec<_> = (0..ROUNDS + 50)
        .map(|_| {
            tls.writer().write_all(&[b'x'; 100]).unwrap();
            said(&mut tls)
        })
        .collect();
    let measured = messages.split_off(50);
    for message in messages {
        peer.write_all(&message).unwrap();
        let n = echo.until_read(&mut peer, &mut buffer, record);
        hear(&mut tls, &buffer[..n]).unwrap();
    }
    let id = echo.last.expect("data came");
    let counted = allocation_counter::measure(|| {
        for message in &measured {
            peer.write_all(message).unwrap();
            assert_eq!(echo.until_read(&mut peer, &mut buffer, record), record);
            assert_eq!(echo.driver.try_send(id, &[b'y'; 100]), 100);
            assert_eq!(echo.until_read(&mut peer, &mut buffer, record), record);
        }
    });
    assert_eq!(counted.count_total, 0, "{counted:?}");
}
