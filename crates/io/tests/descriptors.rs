//! C7 with real descriptors, in a process of its own: the limit belongs to the process, so the
//! tests run one at a time.
#![cfg(target_os = "linux")]

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use throng_io::epoll::EpollPoller;
use throng_io::portable::MioPoller;
use throng_io::readiness::poller::Poller;
use throng_io::threads::PollPoller;
use throng_io::{ListenerId, PeerAddress};
use throng_testkit::contract::{PeerRead, Rig, tcp::TcpRig, waits};

/// The TCP rig, with the ability to exhaust the process's descriptors.
struct Starving<P: Poller>(TcpRig<P>);

impl<P: Poller<Socket: AsFd>> Rig for Starving<P> {
    type Driver = <TcpRig<P> as Rig>::Driver;
    type Peer = <TcpRig<P> as Rig>::Peer;
    type Remote = <TcpRig<P> as Rig>::Remote;

    const CAPACITY: usize = <TcpRig<P> as Rig>::CAPACITY;

    fn new() -> Self {
        Self(TcpRig::new())
    }
    fn driver(&mut self) -> &mut Self::Driver {
        self.0.driver()
    }
    fn listen(&mut self) -> SocketAddr {
        self.0.listen()
    }
    fn listen_also(&mut self) -> (ListenerId, SocketAddr) {
        self.0.listen_also()
    }
    fn dial(&mut self, to: SocketAddr) -> Option<Self::Peer> {
        self.0.dial(to)
    }
    fn remote(&mut self) -> (Self::Remote, PeerAddress) {
        self.0.remote()
    }
    fn accept(&mut self, remote: &mut Self::Remote) -> Option<Self::Peer> {
        self.0.accept(remote)
    }
    fn refusing_address(&mut self) -> PeerAddress {
        self.0.refusing_address()
    }
    fn write(&mut self, peer: &mut Self::Peer, bytes: &[u8]) -> usize {
        self.0.write(peer, bytes)
    }
    fn read(&mut self, peer: &mut Self::Peer, into: &mut Vec<u8>) -> PeerRead {
        self.0.read(peer, into)
    }
    fn finish(&mut self, peer: &mut Self::Peer) {
        self.0.finish(peer);
    }
    fn reset(&mut self, peer: Self::Peer) {
        self.0.reset(peer);
    }
    fn replace_driver(&mut self) -> Self::Driver {
        self.0.replace_driver()
    }
    fn duplicate(descriptor: &P::Socket) -> P::Socket {
        TcpRig::<P>::duplicate(descriptor)
    }
    fn exhaust_descriptors(&mut self, exhaust: bool) -> bool {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // Open descriptors stay open, and no number below the lowest free one is left. Not 0:
        // poll(2) takes no more descriptors than the process may have.
        let current = if exhaust { Some(lowest_free()) } else { maximum };
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("below the hard limit");
        true
    }
}

/// Returns the number that the next descriptor will get.
fn lowest_free() -> u64 {
    let probe = std::fs::File::open("/dev/null").expect("a descriptor");
    u64::try_from(probe.as_raw_fd()).expect("it is open")
}

static TURN: Mutex<()> = Mutex::new(());

#[test]
fn c7_accepting_stops_without_descriptors_and_resumes_on_epoll() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    waits::c7_accepting_stops_without_descriptors_and_resumes::<Starving<EpollPoller>>();
}

#[test]
fn c7_accepting_stops_without_descriptors_and_resumes_on_the_portable_driver() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    waits::c7_accepting_stops_without_descriptors_and_resumes::<Starving<MioPoller>>();
}

#[test]
fn c7_accepting_stops_without_descriptors_and_resumes_on_threads() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    waits::c7_accepting_stops_without_descriptors_and_resumes::<Starving<PollPoller>>();
}
