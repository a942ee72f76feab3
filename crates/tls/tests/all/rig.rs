//! A driver with a secured listener and a plain one, turned explicitly, and its peers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::{ClientConfig, ClientConnection, ConnectionTrafficSecrets, Error, ProtocolVersion};
use throng_io::portable::MioPoller;
use throng_io::{
    Batch, Closed, ConnId, Driver, Event, ListenOptions, Options, PassedThrough, Portable, Segment,
    SendOutcome, TlsInfo, listen,
};
use throng_testkit::contract::Rig as _;
use throng_testkit::contract::tcp::TcpRig;
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
    Parked(ConnId),
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
                Event::Parked(id) => Seen::Parked(id),
                Event::Closed(id, why) => Seen::Closed(id, why),
                other => panic!("unexpected: {other:?}"),
            });
        }
        seen
    }

    /// Runs turns until `find` accepts an event; events before it are dropped.
    pub(crate) fn until<T>(&mut self, mut wanted: impl FnMut(&Seen) -> Option<T>) -> T {
        let end = self.driver.now().after(Duration::from_secs(20));
        while self.driver.now() < end {
            if let Some(found) = self.turn().iter().find_map(&mut wanted) {
                return found;
            }
        }
        panic!("the event never came");
    }

    /// Runs turns until so much data has been received, including `data`; returns all of it.
    pub(crate) fn until_data(&mut self, mut data: Vec<u8>, len: usize) -> Vec<u8> {
        let end = self.driver.now().after(Duration::from_secs(20));
        while data.len() < len {
            assert!(self.driver.now() < end, "only {} bytes came", data.len());
            data.extend(self.turn().iter().filter_map(received).flatten());
        }
        data
    }

    /// Runs turns until bytes or an end reach the peer; returns them.
    pub(crate) fn until_read(&mut self, peer: &mut TcpStream) -> Vec<u8> {
        self.until_read_with(peer, &mut Vec::new())
    }

    /// Does the same, and keeps the events.
    fn until_read_with(&mut self, peer: &mut TcpStream, seen: &mut Vec<Seen>) -> Vec<u8> {
        let mut bytes = vec![0; 64 * 1024];
        let end = self.driver.now().after(Duration::from_secs(20));
        while self.driver.now() < end {
            match peer.read(&mut bytes) {
                Ok(n) => {
                    bytes.truncate(n);
                    return bytes;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => seen.extend(self.turn()),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("nothing came");
    }

    /// Moves a connection to a successor of the driver, and all slots with it.
    pub(crate) fn move_on(&mut self, id: ConnId) {
        self.driver.park(id).unwrap();
        while self.turn().iter().all(|seen| *seen != Seen::Parked(id)) {}
        let record = self.driver.take_record(id).unwrap();
        assert!(record.is_secured());
        let slots = self.driver.give_slots(0).unwrap();
        let options = Options { shard: id.shard() as u16, ..Options::default() };
        let successor = Tls::new(Portable::new(options).unwrap());
        let mut before = std::mem::replace(&mut self.driver, successor);
        self.driver.begin_with(&slots).unwrap();
        let duplicate = TcpRig::<MioPoller>::duplicate(before.descriptor(id).unwrap());
        self.driver.adopt_at(id, duplicate).unwrap();
        before.surrender(id);
        assert_eq!((before.secured(), self.driver.secured()), (0, 0), "the record has the session");
        self.driver.unpark(id, record);
        assert_eq!(self.driver.secured(), 1);
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
        self.pair_with(client_config())
    }

    /// Connects a client of this configuration and does the handshake.
    pub(crate) fn pair_with(&mut self, mut config: ClientConfig) -> Peer {
        let (id, mut socket) = self.dial(self.secured);
        config.enable_secret_extraction = true;
        let mut tls = client(config);
        let mut seen = Vec::new();
        loop {
            socket.write_all(&said(&mut tls)).unwrap();
            if !tls.is_handshaking() {
                break;
            }
            let bytes = self.until_read_with(&mut socket, &mut seen);
            hear(&mut tls, &bytes).unwrap();
        }
        let secured = |seen: &Seen| match seen {
            Seen::Secured(of, info) if *of == id => Some(info.clone()),
            _ => None,
        };
        // In TLS 1.2 the server sends the last message: with it the connection is secured.
        let info = seen.iter().find_map(secured).unwrap_or_else(|| self.until(secured));
        Peer { id, socket, tls, info }
    }

    pub(crate) fn send(&mut self, id: ConnId, bytes: &[u8]) -> bool {
        let mut batch = Box::<Batch>::default();
        batch.push(Segment::Own(bytes.to_vec()));
        matches!(self.driver.send(id, batch), SendOutcome::Done(_))
    }

    /// Runs turns until the peer has received data or an error.
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

/// Seals records with any content, which no library would make.
pub(crate) struct Sealer {
    version: ProtocolVersion,
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

impl Sealer {
    /// Continues from the client's state.
    pub(crate) fn of(client: ClientConnection) -> Self {
        let version = client.protocol_version().unwrap();
        Self::with(version, client.dangerous_extract_secrets().unwrap().tx)
    }

    /// Continues with these secrets.
    pub(crate) fn with(
        version: ProtocolVersion,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> Self {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            _ => panic!("a suite that was not expected"),
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).unwrap());
        Self { version, key, iv: iv.as_ref().try_into().unwrap(), sequence }
    }

    pub(crate) fn seal(&mut self, content_type: u8, content: &[u8]) -> Vec<u8> {
        match self.version {
            ProtocolVersion::TLSv1_2 => self.seal_as_tls12(content_type, content),
            _ => self.seal_as_tls13(content_type, content),
        }
    }

    /// Seals as RFC 5288 section 3 requires: a part of the nonce comes with the record.
    fn seal_as_tls12(&mut self, content_type: u8, content: &[u8]) -> Vec<u8> {
        let explicit = self.sequence.to_be_bytes();
        let nonce: [u8; NONCE_LEN] = [&self.iv[..4], &explicit].concat().try_into().unwrap();
        let len_of = |len: usize| u16::try_from(len).unwrap().to_be_bytes();
        let start = [content_type, 3, 3];
        let data = [&explicit[..], &start, &len_of(content.len())].concat();
        self.sequence += 1;
        let mut sealed = content.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key.seal_in_place_append_tag(nonce, Aad::from(&data), &mut sealed).unwrap();
        [&start[..], &len_of(explicit.len() + sealed.len()), &explicit, &sealed].concat()
    }

    fn seal_as_tls13(&mut self, content_type: u8, content: &[u8]) -> Vec<u8> {
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
