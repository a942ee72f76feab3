//! The driver contract on secured connections, and on plain connections beside them: over drivers
//! of sockets, and over the simulated driver.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustls::ClientConnection;
use throng_io::readiness::poller::Poller;
use throng_io::{Driver, ListenOptions, ListenerId, Options, PeerAddress, ReadinessDriver, listen};
use throng_sim::SimDriver;
use throng_sim::rig::SimRig;
use throng_testkit::contract::tcp::{SystemSocket, TcpRig};
use throng_testkit::contract::{PeerRead, Rig};
use throng_tls::{Tls, TlsServer};

use crate::support::{client, client_config, raw_server_config, said};

static SERVER: LazyLock<Arc<TlsServer>> = LazyLock::new(|| TlsServer::new(raw_server_config(None)));

/// No listener has TLS.
const OFF: u8 = 0;
/// Another listener has TLS.
const BESIDE: u8 = 1;
/// All listeners have TLS.
const SECURED: u8 = 2;

/// A rig whose peers are the far ends, below TLS; its own driver is not used.
trait Below: Rig {
    /// Returns a driver that its peers can connect to.
    fn another_driver(&self) -> Self::Driver;

    /// Makes that driver listen on one more address.
    fn listen_on(&mut self, driver: &mut Self::Driver) -> (ListenerId, SocketAddr);

    /// Advances the environment of that driver, if it does not advance by itself.
    fn progress(_: &mut Self::Driver) {}

    /// Makes accepting fail for lack of descriptors, or work again; false if that is not possible.
    fn exhaust(_: &mut Self::Driver, _: bool) -> bool {
        false
    }
}

impl<P: Poller<Socket: SystemSocket>> Below for TcpRig<P> {
    fn another_driver(&self) -> ReadinessDriver<P> {
        let options = Options {
            shard: 5,
            socket_send_buffer: Some(16 * 1024),
            socket_receive_buffer: Some(128 * 1024),
            ..Options::default()
        };
        ReadinessDriver::new(options).unwrap()
    }

    fn listen_on(&mut self, driver: &mut ReadinessDriver<P>) -> (ListenerId, SocketAddr) {
        let options = ListenOptions::default();
        let (listener, address) = listen(SocketAddr::from(([127, 0, 0, 1], 0)), options).unwrap();
        (driver.add_listener(listener).unwrap(), address)
    }
}

impl Below for SimRig {
    fn another_driver(&self) -> SimDriver {
        self.another_driver()
    }

    fn listen_on(&mut self, driver: &mut SimDriver) -> (ListenerId, SocketAddr) {
        self.listen_on(driver)
    }

    fn progress(driver: &mut SimDriver) {
        driver.progress();
    }

    fn exhaust(driver: &mut SimDriver, exhaust: bool) -> bool {
        driver.starving = exhaust;
        true
    }
}

/// Secured connections of a driver; those that the driver starts are plain.
struct SecuredRig<R: Below, const TLS: u8> {
    driver: Tls<R::Driver>,
    below: R,
    listening: Option<SocketAddr>,
    peers: Vec<Weak<RefCell<Far<R>>>>,
}

/// The far end of a connection.
struct Far<R: Rig> {
    raw: Option<R::Peer>,
    tls: Option<ClientConnection>,
    /// Ciphertext that has not left yet.
    out: Vec<u8>,
    /// Data that came before the test asked for it.
    input: Vec<u8>,
    end: PeerRead,
    finish: bool,
}

impl<R: Rig> Far<R> {
    fn new(raw: R::Peer, tls: Option<ClientConnection>) -> Self {
        let (out, input) = (Vec::new(), Vec::new());
        Self { raw: Some(raw), tls, out, input, end: PeerRead::Nothing, finish: false }
    }

    /// Sends all output that fits.
    fn flush(&mut self, below: &mut R) {
        let (Some(raw), Some(tls)) = (&mut self.raw, &mut self.tls) else { return };
        self.out.extend(said(tls));
        while !self.out.is_empty() {
            let n = below.write(raw, &self.out);
            self.out.drain(..n);
            if n == 0 {
                return;
            }
        }
        if std::mem::take(&mut self.finish) {
            below.finish(raw);
        }
    }

    fn receive(&mut self, below: &mut R) {
        let (Some(raw), Some(tls)) = (&mut self.raw, &mut self.tls) else { return };
        if self.end != PeerRead::Nothing {
            return;
        }
        let mut bytes = Vec::new();
        let read = below.read(raw, &mut bytes);
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

impl<R: Below, const TLS: u8> SecuredRig<R, TLS> {
    fn new_driver(below: &R) -> Tls<R::Driver> {
        let mut driver = Tls::new(below.another_driver());
        if TLS == BESIDE {
            // Never connected to; no listener of a test has this number.
            driver.secure(ListenerId(1000), Arc::clone(&SERVER));
        }
        driver
    }

    fn add(&mut self, raw: R::Peer, tls: Option<ClientConnection>) -> Rc<RefCell<Far<R>>> {
        let far = Rc::new(RefCell::new(Far::new(raw, tls)));
        far.borrow_mut().flush(&mut self.below);
        self.peers.push(Rc::downgrade(&far));
        far
    }
}

impl<R: Below, const TLS: u8> Rig for SecuredRig<R, TLS> {
    type Driver = Tls<R::Driver>;
    type Peer = Rc<RefCell<Far<R>>>;
    type Remote = R::Remote;

    const THREADS: bool = R::THREADS;
    const SECURES: bool = TLS == SECURED;
    const SLICE: Duration = R::SLICE;
    const TIMEOUT: Duration = R::TIMEOUT;
    const CAPACITY: usize = R::CAPACITY;

    fn new() -> Self {
        let below = R::new();
        Self { driver: Self::new_driver(&below), below, listening: None, peers: Vec::new() }
    }

    fn driver(&mut self) -> &mut Self::Driver {
        &mut self.driver
    }

    fn step(&mut self) {
        R::progress(self.driver.inner());
        self.peers.retain(|far| far.strong_count() > 0);
        for far in self.peers.clone() {
            let Some(far) = far.upgrade() else { continue };
            let mut far = far.borrow_mut();
            if far.tls.as_ref().is_some_and(|tls| tls.is_handshaking()) {
                far.receive(&mut self.below);
            }
            far.flush(&mut self.below);
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
        let (id, address) = self.below.listen_on(self.driver.inner());
        if TLS == SECURED {
            self.driver.secure(id, Arc::clone(&SERVER));
        }
        (id, address)
    }

    fn dial(&mut self, to: SocketAddr) -> Option<Self::Peer> {
        let raw = self.below.dial(to)?;
        Some(self.add(raw, (TLS == SECURED).then(|| client(client_config()))))
    }

    fn remote(&mut self) -> (Self::Remote, PeerAddress) {
        self.below.remote()
    }

    fn accept(&mut self, remote: &mut Self::Remote) -> Option<Self::Peer> {
        let raw = self.below.accept(remote)?;
        Some(self.add(raw, None))
    }

    fn refusing_address(&mut self) -> PeerAddress {
        self.below.refusing_address()
    }

    fn write(&mut self, peer: &mut Self::Peer, bytes: &[u8]) -> usize {
        let far = &mut *peer.borrow_mut();
        if far.tls.is_none() {
            return self.below.write(far.raw.as_mut().unwrap(), bytes);
        }
        let mut written = 0;
        far.flush(&mut self.below);
        while written < bytes.len() && far.out.is_empty() {
            let n = far.tls.as_mut().unwrap().writer().write(&bytes[written..]).unwrap();
            written += n;
            far.flush(&mut self.below);
            if n == 0 {
                break;
            }
        }
        written
    }

    fn read(&mut self, peer: &mut Self::Peer, into: &mut Vec<u8>) -> PeerRead {
        let far = &mut *peer.borrow_mut();
        if far.tls.is_none() {
            return self.below.read(far.raw.as_mut().unwrap(), into);
        }
        far.receive(&mut self.below);
        far.flush(&mut self.below);
        if far.input.is_empty() {
            return far.end;
        }
        into.append(&mut far.input);
        PeerRead::Bytes
    }

    fn finish(&mut self, peer: &mut Self::Peer) {
        let far = &mut *peer.borrow_mut();
        match &mut far.tls {
            None => self.below.finish(far.raw.as_mut().unwrap()),
            Some(tls) => {
                tls.send_close_notify();
                far.finish = true;
                far.flush(&mut self.below);
            }
        }
    }

    fn reset(&mut self, peer: Self::Peer) {
        let raw = peer.borrow_mut().raw.take();
        self.below.reset(raw.unwrap());
    }

    fn replace_driver(&mut self) -> Self::Driver {
        self.listening = None;
        let successor = Self::new_driver(&self.below);
        std::mem::replace(&mut self.driver, successor)
    }

    fn duplicate(
        descriptor: &<R::Driver as Driver>::Descriptor,
    ) -> <R::Driver as Driver>::Descriptor {
        R::duplicate(descriptor)
    }

    fn exhaust_descriptors(&mut self, exhaust: bool) -> bool {
        R::exhaust(self.driver.inner(), exhaust)
    }
}

#[cfg(target_os = "linux")]
mod epoll {
    use throng_io::epoll::EpollPoller;

    throng_testkit::contract_suite!(
        super::SecuredRig<super::TcpRig<EpollPoller>, { super::SECURED }>
    );
}

#[cfg(target_os = "linux")]
mod epoll_beside {
    use throng_io::epoll::EpollPoller;

    throng_testkit::contract_suite!(
        super::SecuredRig<super::TcpRig<EpollPoller>, { super::BESIDE }>
    );
}

#[cfg(target_os = "linux")]
mod epoll_off {
    use throng_io::epoll::EpollPoller;

    throng_testkit::contract_suite!(super::SecuredRig<super::TcpRig<EpollPoller>, { super::OFF }>);
}

mod portable {
    use throng_io::portable::MioPoller;

    throng_testkit::contract_suite!(
        super::SecuredRig<super::TcpRig<MioPoller>, { super::SECURED }>
    );
}

#[cfg(windows)]
mod iocp {
    use throng_io::iocp::IocpPoller;

    throng_testkit::contract_suite!(
        super::SecuredRig<super::TcpRig<IocpPoller>, { super::SECURED }>
    );
}

#[cfg(unix)]
mod threads {
    use throng_io::threads::PollPoller;

    throng_testkit::contract_suite!(
        super::SecuredRig<super::TcpRig<PollPoller>, { super::SECURED }>
    );
}

mod simulated {
    throng_testkit::contract_suite!(super::SecuredRig<super::SimRig, { super::SECURED }>);
}

mod simulated_beside {
    throng_testkit::contract_suite!(super::SecuredRig<super::SimRig, { super::BESIDE }>);
}
