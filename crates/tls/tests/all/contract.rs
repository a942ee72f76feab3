//! The driver contract on secured connections, and on plain ones beside them.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::ClientConnection;
use throng_io::contract::tcp::TcpRig;
use throng_io::contract::{PeerRead, Rig};
use throng_io::readiness::poller::Poller;
use throng_io::{ListenOptions, ListenerId, Options, ReadinessDriver, listen};
use throng_tls::{Tls, TlsServer};

use crate::support::{client, client_config, raw_server_config, said};

static SERVER: LazyLock<Arc<TlsServer>> = LazyLock::new(|| TlsServer::new(raw_server_config(None)));

/// No listener has TLS.
const OFF: u8 = 0;
/// Another listener has TLS.
const BESIDE: u8 = 1;
/// All listeners have TLS.
const SECURED: u8 = 2;

/// Secured connections of a [`ReadinessDriver`]; those that the driver starts are plain.
struct SecuredRig<P: Poller, const TLS: u8> {
    driver: Tls<ReadinessDriver<P>>,
    /// Its peers are those of this rig, its driver is not used.
    tcp: TcpRig<P>,
    listening: Option<SocketAddr>,
    peers: Vec<Weak<RefCell<Far<P>>>>,
}

type Raw<P> = <TcpRig<P> as Rig>::Peer;

/// The far end of a connection.
struct Far<P: Poller> {
    raw: Option<Raw<P>>,
    tls: Option<ClientConnection>,
    /// Ciphertext that did not fit yet.
    out: Vec<u8>,
    /// Data that came before it was asked for.
    input: Vec<u8>,
    end: PeerRead,
    finish: bool,
}

impl<P: Poller> Far<P> {
    fn new(raw: Raw<P>, tls: Option<ClientConnection>) -> Self {
        let (out, input) = (Vec::new(), Vec::new());
        Self { raw: Some(raw), tls, out, input, end: PeerRead::Nothing, finish: false }
    }

    /// Sends what there is, if it fits.
    fn flush(&mut self, tcp: &mut TcpRig<P>) {
        let (Some(raw), Some(tls)) = (&mut self.raw, &mut self.tls) else { return };
        self.out.extend(said(tls));
        while !self.out.is_empty() {
            let n = tcp.write(raw, &self.out);
            self.out.drain(..n);
            if n == 0 {
                return;
            }
        }
        if std::mem::take(&mut self.finish) {
            tcp.finish(raw);
        }
    }

    fn receive(&mut self, tcp: &mut TcpRig<P>) {
        let (Some(raw), Some(tls)) = (&mut self.raw, &mut self.tls) else { return };
        if self.end != PeerRead::Nothing {
            return;
        }
        let mut bytes = Vec::new();
        let read = tcp.read(raw, &mut bytes);
        if matches!(read, PeerRead::Finished | PeerRead::Reset) {
            self.end = read;
        }
        let mut bytes = bytes.as_slice();
        while !bytes.is_empty() {
            tls.read_tls(&mut bytes).unwrap();
            let state = tls.process_new_packets().expect("records of the session");
            let _ = tls.reader().read_to_end(&mut self.input);
            if state.peer_has_closed() {
                self.end = PeerRead::Finished;
                break;
            }
        }
    }
}

impl<P: Poller, const TLS: u8> SecuredRig<P, TLS> {
    fn add(&mut self, raw: Raw<P>, tls: Option<ClientConnection>) -> Rc<RefCell<Far<P>>> {
        let far = Rc::new(RefCell::new(Far::new(raw, tls)));
        far.borrow_mut().flush(&mut self.tcp);
        self.peers.push(Rc::downgrade(&far));
        far
    }
}

impl<P: Poller, const TLS: u8> Rig for SecuredRig<P, TLS> {
    type Driver = Tls<ReadinessDriver<P>>;
    type Peer = Rc<RefCell<Far<P>>>;
    type Remote = <TcpRig<P> as Rig>::Remote;

    const SECURES: bool = TLS == SECURED;
    const SLICE: Duration = <TcpRig<P> as Rig>::SLICE;
    const CAPACITY: usize = <TcpRig<P> as Rig>::CAPACITY;

    fn new() -> Self {
        let options = Options {
            shard: 5,
            socket_send_buffer: Some(16 * 1024),
            socket_receive_buffer: Some(128 * 1024),
            ..Options::default()
        };
        let mut driver = Tls::new(ReadinessDriver::new(options).unwrap());
        if TLS == BESIDE {
            // Never connected to; no listener of a test has this number.
            driver.secure(ListenerId(1000), Arc::clone(&SERVER));
        }
        Self { driver, tcp: TcpRig::new(), listening: None, peers: Vec::new() }
    }

    fn driver(&mut self) -> &mut Self::Driver {
        &mut self.driver
    }

    fn step(&mut self) {
        self.peers.retain(|far| far.strong_count() > 0);
        for far in self.peers.clone() {
            let Some(far) = far.upgrade() else { continue };
            let mut far = far.borrow_mut();
            if far.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
                far.receive(&mut self.tcp);
            }
            far.flush(&mut self.tcp);
        }
    }

    fn listen(&mut self) -> SocketAddr {
        if let Some(address) = self.listening {
            return address;
        }
        let (_, address) = self.listen_also();
        *self.listening.insert(address)
    }

    fn listen_also(&mut self) -> (ListenerId, SocketAddr) {
        let options = ListenOptions::default();
        let (listener, address) = listen(SocketAddr::from(([127, 0, 0, 1], 0)), options).unwrap();
        let id = self.driver.inner().add_listener(listener).unwrap();
        if TLS == SECURED {
            self.driver.secure(id, Arc::clone(&SERVER));
        }
        (id, address)
    }

    fn dial(&mut self, to: SocketAddr) -> Option<Self::Peer> {
        let raw = self.tcp.dial(to)?;
        Some(self.add(raw, (TLS == SECURED).then(|| client(client_config()))))
    }

    fn remote(&mut self) -> (Self::Remote, SocketAddr) {
        self.tcp.remote()
    }

    fn accept(&mut self, remote: &mut Self::Remote) -> Option<Self::Peer> {
        let raw = self.tcp.accept(remote)?;
        Some(self.add(raw, None))
    }

    fn refusing_address(&mut self) -> SocketAddr {
        self.tcp.refusing_address()
    }

    fn write(&mut self, peer: &mut Self::Peer, bytes: &[u8]) -> usize {
        let far = &mut *peer.borrow_mut();
        if far.tls.is_none() {
            return self.tcp.write(far.raw.as_mut().unwrap(), bytes);
        }
        let mut written = 0;
        far.flush(&mut self.tcp);
        while written < bytes.len() && far.out.is_empty() {
            let n = far.tls.as_mut().unwrap().writer().write(&bytes[written..]).unwrap();
            written += n;
            far.flush(&mut self.tcp);
            if n == 0 {
                break;
            }
        }
        written
    }

    fn read(&mut self, peer: &mut Self::Peer, into: &mut Vec<u8>) -> PeerRead {
        let far = &mut *peer.borrow_mut();
        if far.tls.is_none() {
            return self.tcp.read(far.raw.as_mut().unwrap(), into);
        }
        far.receive(&mut self.tcp);
        far.flush(&mut self.tcp);
        if far.input.is_empty() {
            return far.end;
        }
        into.append(&mut far.input);
        PeerRead::Bytes
    }

    fn finish(&mut self, peer: &mut Self::Peer) {
        let far = &mut *peer.borrow_mut();
        match &mut far.tls {
            None => self.tcp.finish(far.raw.as_mut().unwrap()),
            Some(tls) => {
                tls.send_close_notify();
                far.finish = true;
                far.flush(&mut self.tcp);
            }
        }
    }

    fn reset(&mut self, peer: Self::Peer) {
        let raw = peer.borrow_mut().raw.take();
        self.tcp.reset(raw.unwrap());
    }

    fn exhaust_descriptors(&mut self, _: bool) -> bool {
        false
    }
}

#[cfg(target_os = "linux")]
mod epoll {
    use throng_io::epoll::EpollPoller;

    throng_io::contract_suite!(super::SecuredRig<EpollPoller, { super::SECURED }>);
}

#[cfg(target_os = "linux")]
mod epoll_beside {
    use throng_io::epoll::EpollPoller;

    throng_io::contract_suite!(super::SecuredRig<EpollPoller, { super::BESIDE }>);
}

#[cfg(target_os = "linux")]
mod epoll_off {
    use throng_io::epoll::EpollPoller;

    throng_io::contract_suite!(super::SecuredRig<EpollPoller, { super::OFF }>);
}

mod portable {
    use throng_io::portable::MioPoller;

    throng_io::contract_suite!(super::SecuredRig<MioPoller, { super::SECURED }>);
}

#[cfg(unix)]
mod threads {
    use throng_io::threads::PollPoller;

    throng_io::contract_suite!(super::SecuredRig<PollPoller, { super::SECURED }>);
}
