//! The simulated driver for the contract suite, with peers on the same network.

use std::net::SocketAddr;
use std::time::Duration;

use throng_io::{ListenerId, PeerAddress, UnixPath};
use throng_testkit::contract::{PeerRead, Rig};

use crate::driver::{SimDriver, Waiting};
use crate::faults::Faults;
use crate::net::{LinkId, LinkOptions, Net, Readable, SharedNet, Side, SimSocket};
use crate::rng::Rng;

/// A driver without faults on a network of its own, in virtual time. With `UNIX` it connects to
/// Unix sockets.
pub struct SimRig<const UNIX: bool = false> {
    net: SharedNet,
    driver: SimDriver,
    listening: Option<SocketAddr>,
    ports: u16,
}

const PIPE: usize = 64 * 1024;

/// One end of a link.
#[derive(Debug)]
pub struct Peer(LinkId, Side);

impl<const UNIX: bool> SimRig<UNIX> {
    /// Returns another driver on the network of this rig.
    #[must_use]
    pub fn another_driver(&self) -> SimDriver {
        driver(&self.net)
    }

    /// Makes a driver on this network listen on a new address.
    pub fn listen_on(&mut self, driver: &mut SimDriver) -> (ListenerId, SocketAddr) {
        let address = self.address();
        let listener = self.net.borrow_mut().listen(address);
        (driver.add_listener(listener), address)
    }

    fn address(&mut self) -> SocketAddr {
        self.ports += 1;
        SocketAddr::from(([127, 0, 0, 1], 1000 + self.ports))
    }

    /// Returns the address that the driver connects to for `address`: with `UNIX`, a path.
    fn peer_address(&mut self, address: SocketAddr, exists: bool) -> PeerAddress {
        if !UNIX {
            return address.into();
        }
        let path = UnixPath::new(&format!("/sim/{}", address.port())).expect("a short path");
        if exists {
            self.net.borrow_mut().name(path, address);
        }
        PeerAddress::Unix(path)
    }
}

fn driver(net: &SharedNet) -> SimDriver {
    SimDriver::new(net, 5, Faults::default(), Rng::new(1), Waiting::Jump)
}

impl<const UNIX: bool> Rig for SimRig<UNIX> {
    type Driver = SimDriver;
    type Peer = Peer;
    type Remote = usize;

    // Time is virtual, and only this thread advances it.
    const THREADS: bool = false;
    const TIMEOUT: Duration = Duration::from_secs(20);
    const CAPACITY: usize = 4 * PIPE;

    fn new() -> Self {
        let net = Net::shared();
        let driver = driver(&net);
        Self { net, driver, listening: None, ports: 0 }
    }

    fn driver(&mut self) -> &mut SimDriver {
        &mut self.driver
    }

    fn step(&mut self) {
        self.driver.progress();
    }

    fn listen(&mut self) -> SocketAddr {
        if let Some(address) = self.listening {
            return address;
        }
        let (_, address) = self.listen_also();
        *self.listening.insert(address)
    }

    fn listen_also(&mut self) -> (ListenerId, SocketAddr) {
        let address = self.address();
        let listener = self.net.borrow_mut().listen(address);
        (self.driver.add_listener(listener), address)
    }

    fn dial(&mut self, to: SocketAddr) -> Option<Peer> {
        let from = self.address();
        let mut net = self.net.borrow_mut();
        let listener = net.listener_at(to)?;
        let options = LinkOptions { latency: 10_000, capacity: PIPE, cut_after: None };
        net.dial(listener, from, options).map(|link| Peer(link, Side::Dialer))
    }

    fn remote(&mut self) -> (usize, PeerAddress) {
        let address = self.address();
        let listener = self.net.borrow_mut().listen(address);
        (listener, self.peer_address(address, true))
    }

    fn accept(&mut self, remote: &mut usize) -> Option<Peer> {
        let (socket, _): (SimSocket, _) = self.net.borrow_mut().accept(*remote)?;
        let (link, side) = socket.into_link();
        Some(Peer(link, side))
    }

    fn refusing_address(&mut self) -> PeerAddress {
        let address = self.address();
        self.peer_address(address, false)
    }

    fn write(&mut self, peer: &mut Peer, bytes: &[u8]) -> usize {
        let mut net = self.net.borrow_mut();
        let n = bytes.len().min(net.space(peer.0, peer.1));
        net.write(peer.0, peer.1, &bytes[..n]);
        n
    }

    fn read(&mut self, peer: &mut Peer, into: &mut Vec<u8>) -> PeerRead {
        let mut net = self.net.borrow_mut();
        match net.readable(peer.0, peer.1) {
            Readable::Bytes(_) => {
                net.read(peer.0, peer.1, 64 * 1024, into);
                PeerRead::Bytes
            }
            Readable::Nothing => PeerRead::Nothing,
            Readable::Finished => PeerRead::Finished,
            Readable::Reset => PeerRead::Reset,
        }
    }

    fn finish(&mut self, peer: &mut Peer) {
        self.net.borrow_mut().finish(peer.0, peer.1);
    }

    fn reset(&mut self, peer: Peer) {
        self.net.borrow_mut().reset(peer.0, peer.1);
    }

    fn replace_driver(&mut self) -> SimDriver {
        self.listening = None;
        let successor = self.another_driver();
        std::mem::replace(&mut self.driver, successor)
    }

    fn duplicate(socket: &SimSocket) -> SimSocket {
        socket.duplicate()
    }

    fn exhaust_descriptors(&mut self, exhaust: bool) -> bool {
        self.driver.starving = exhaust;
        true
    }
}
