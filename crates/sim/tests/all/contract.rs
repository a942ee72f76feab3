//! The driver contract, C1 to C13, on the simulated driver: the driver that the engine is tested
//! on keeps the same promises as those that it runs on in production.

use std::net::SocketAddr;
use std::time::Duration;

use throng_io::ListenerId;
use throng_io::contract::{PeerRead, Rig};
use throng_sim::driver::SimDriver;
use throng_sim::net::{LinkId, LinkOptions, Readable, Side, SimSocket};
use throng_sim::{Faults, Net, Rng, SharedNet, Waiting};

struct SimRig {
    net: SharedNet,
    driver: SimDriver,
    listening: Option<SocketAddr>,
    ports: u16,
}

const PIPE: usize = 64 * 1024;

struct Peer(LinkId, Side);

impl SimRig {
    fn address(&mut self) -> SocketAddr {
        self.ports += 1;
        SocketAddr::from(([127, 0, 0, 1], 1000 + self.ports))
    }
}

impl Rig for SimRig {
    type Driver = SimDriver;
    type Peer = Peer;
    type Remote = usize;

    // Time is virtual, and only this thread could make it pass.
    const THREADS: bool = false;
    const TIMEOUT: Duration = Duration::from_secs(20);
    const CAPACITY: usize = 4 * PIPE;

    fn new() -> Self {
        let net = Net::shared();
        let driver = SimDriver::new(&net, 5, Faults::default(), Rng::new(1), Waiting::Jump);
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

    fn remote(&mut self) -> (usize, SocketAddr) {
        let address = self.address();
        (self.net.borrow_mut().listen(address), address)
    }

    fn accept(&mut self, remote: &mut usize) -> Option<Peer> {
        let (socket, _): (SimSocket, _) = self.net.borrow_mut().accept(*remote)?;
        let (link, side) = socket.into_link();
        Some(Peer(link, side))
    }

    fn refusing_address(&mut self) -> SocketAddr {
        self.address()
    }

    fn write(&mut self, peer: &mut Peer, bytes: &[u8]) -> usize {
        let mut net = self.net.borrow_mut();
        let n = bytes.len().min(net.room(peer.0, peer.1));
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

    fn exhaust_descriptors(&mut self, exhaust: bool) -> bool {
        self.driver.starving = exhaust;
        true
    }
}

throng_io::contract_suite!(SimRig);
