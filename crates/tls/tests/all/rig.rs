//! A driver with a secured listener and a plain one, turned by hand, and its peers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::{ClientConnection, ConnectionTrafficSecrets, Error};
use throng_io::{
    Batch, Closed, ConnId, Driver, Event, ListenOptions, Options, PassedThrough, Portable, Segment,
    SendOutcome, TlsInfo, listen,
};
use throng_tls::{Tls, TlsServer};

use crate::support::{client, client_config, hear, raw_server_config, said};

/// An event without its bytes.
#[derive(Debug, PartialEq)]
pub(crate) enum Seen {
    Adopted(ConnId),
    Secured(ConnId, TlsInfo),
    PassedThrough(ConnId, PassedThrough),
    Received(ConnId, Vec<u8>),
    Finished(ConnId),
    Sent(ConnId, usize),
    Connected(ConnId),
    Closed(ConnId, Closed),
}

pub(crate) struct Rig {
    pub(crate) driver: Tls<Portable>,
    pub(crate) server: Arc<TlsServer>,
    pub(crate) secured: SocketAddr,
    pub(crate) plain: SocketAddr,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(Options::default())
    }

    pub(crate) fn with(options: Options) -> Self {
        Self::of(options, TlsServer::new(raw_server_config(None)))
    }

    pub(crate) fn of(options: Options, server: Arc<TlsServer>) -> Self {
        let mut driver = Tls::new(Portable::new(options).unwrap());
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
    pub(crate) fn turn(&mut self) -> Vec<Seen> {
        let until = self.driver.now().after(Duration::from_millis(5));
        self.driver.wait(Some(until)).unwrap();
        let mut seen = Vec::new();
        while let Some(event) = self.driver.next_event() {
            seen.push(match event {
                Event::Incoming(socket, ..) => Seen::Adopted(self.driver.adopt(socket).unwrap()),
                Event::Secured(id, info) => Seen::Secured(id, *info),
                Event::PassedThrough(id, passed) => Seen::PassedThrough(id, *passed),
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
    pub(crate) fn until<T>(&mut self, mut wanted: impl FnMut(&Seen) -> Option<T>) -> T {
        let end = self.driver.now().after(Duration::from_secs(20));
        while self.driver.now() < end {
            if let Some(found) = self.turn().iter().find_map(&mut wanted) {
                return found;
            }
        }
        panic!("the event never came");
    }

    /// Runs turns until bytes or an end reach the peer; returns them.
    pub(crate) fn until_read(&mut self, peer: &mut TcpStream) -> Vec<u8> {
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

    pub(crate) fn dial(&mut self, to: SocketAddr) -> (ConnId, TcpStream) {
        let peer = TcpStream::connect(to).unwrap();
        peer.set_nonblocking(true).unwrap();
        let id = self.until(|seen| match seen {
            Seen::Adopted(id) => Some(*id),
            _ => None,
        });
        (id, peer)
    }

    /// Connects and does the handshake.
    pub(crate) fn pair(&mut self) -> Peer {
        let (id, mut socket) = self.dial(self.secured);
        let mut config = client_config();
        config.enable_secret_extraction = true;
        let mut tls = client(config);
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

    pub(crate) fn send(&mut self, id: ConnId, bytes: &[u8]) -> bool {
        let mut batch = Box::<Batch>::default();
        batch.push(Segment::Own(bytes.to_vec()));
        matches!(self.driver.send(id, batch), SendOutcome::Done(_))
    }

    /// Runs turns until the peer has heard data, or an error.
    pub(crate) fn until_heard(&mut self, peer: &mut Peer) -> Result<Vec<u8>, Error> {
        loop {
            let bytes = self.until_read(&mut peer.socket);
            let data = hear(&mut peer.tls, &bytes)?;
            if !data.is_empty() || bytes.is_empty() {
                return Ok(data);
            }
        }
    }
}

pub(crate) struct Peer {
    pub(crate) id: ConnId,
    pub(crate) socket: TcpStream,
    pub(crate) tls: ClientConnection,
    pub(crate) info: TlsInfo,
}

impl Peer {
    pub(crate) fn say(&mut self, data: &[u8]) {
        self.tls.writer().write_all(data).unwrap();
        let bytes = said(&mut self.tls);
        self.socket.write_all(&bytes).unwrap();
    }
}

/// Seals records of TLS 1.3 of any content, as no library would.
pub(crate) struct Sealer {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Sealer {
    /// Goes on where the client is.
    pub(crate) fn of(client: ClientConnection) -> Self {
        let (sequence, secrets) = client.dangerous_extract_secrets().unwrap().tx;
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            _ => panic!("a suite that was not expected"),
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).unwrap());
        Self { key, iv: iv.as_ref().try_into().unwrap(), sequence }
    }

    pub(crate) fn seal(&mut self, content_type: u8, content: &[u8]) -> Vec<u8> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        self.sequence += 1;
        let len = u16::try_from(content.len() + 1 + 16).unwrap();
        let header = [&[23, 3, 3][..], &len.to_be_bytes()].concat();
        let mut sealed = [content, &[content_type]].concat();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(&header), &mut sealed).unwrap();
        [header, sealed].concat()
    }
}

pub(crate) fn received(seen: &Seen) -> Option<Vec<u8>> {
    match seen {
        Seen::Received(_, bytes) => Some(bytes.clone()),
        _ => None,
    }
}

pub(crate) fn finished(seen: &Seen) -> Option<ConnId> {
    match seen {
        Seen::Finished(id) => Some(*id),
        _ => None,
    }
}
