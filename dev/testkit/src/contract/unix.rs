//! The rig for drivers of real sockets whose connections come over Unix sockets. Their own connects
//! are TCP, and nothing is reset.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use socket2::{Domain, SockAddr, Socket, Type};
use throng_io::driver::ListenerId;
use throng_io::listener::UnixSocket;
use throng_io::readiness::poller::Poller;

use super::tcp::{SOCKET_BUFFER, SystemSocket, TcpRig};
use super::{PeerRead, Rig};
use crate::folder::TempFolder;

/// A [`TcpRig`] that listens on Unix sockets. A TCP address stands for the path of each.
pub struct UnixRig<P: Poller> {
    rig: TcpRig<P>,
    paths: HashMap<SocketAddr, PathBuf>,
    listening: Option<SocketAddr>,
    folder: TempFolder,
}

impl<P: Poller<Socket: SystemSocket>> Rig for UnixRig<P> {
    type Driver = <TcpRig<P> as Rig>::Driver;
    type Peer = TcpStream;
    type Remote = TcpListener;

    const CAPACITY: usize = TcpRig::<P>::CAPACITY;

    fn new() -> Self {
        let folder = TempFolder::new("contract");
        Self { rig: TcpRig::new(), paths: HashMap::new(), listening: None, folder }
    }

    fn driver(&mut self) -> &mut Self::Driver {
        self.rig.driver()
    }

    fn listen(&mut self) -> SocketAddr {
        if let Some(address) = self.listening {
            return address;
        }
        let (_, address) = self.listen_also();
        *self.listening.insert(address)
    }

    fn listen_also(&mut self) -> (ListenerId, SocketAddr) {
        let path = self.folder.join(self.paths.len().to_string());
        let socket = UnixSocket::bind(&path, 0o600).expect("a folder for sockets");
        let address = (Ipv4Addr::UNSPECIFIED, 1 + self.paths.len() as u16).into();
        self.paths.insert(address, path);
        (self.driver().add_listener(socket).expect("room for a listener"), address)
    }

    fn dial(&mut self, to: SocketAddr) -> Option<TcpStream> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).expect("a descriptor");
        // Unreceived bytes wait in the sender's buffer.
        socket.set_send_buffer_size(SOCKET_BUFFER).expect("a socket option");
        socket.connect(&SockAddr::unix(&self.paths[&to]).expect("a short path")).ok()?;
        socket.set_nonblocking(true).expect("a socket option");
        Some(OwnedFd::from(socket).into())
    }

    fn remote(&mut self) -> (TcpListener, SocketAddr) {
        self.rig.remote()
    }

    fn accept(&mut self, remote: &mut TcpListener) -> Option<TcpStream> {
        self.rig.accept(remote)
    }

    fn refusing_address(&mut self) -> SocketAddr {
        self.rig.refusing_address()
    }

    fn write(&mut self, peer: &mut TcpStream, bytes: &[u8]) -> usize {
        self.rig.write(peer, bytes)
    }

    fn read(&mut self, peer: &mut TcpStream, into: &mut Vec<u8>) -> PeerRead {
        self.rig.read(peer, into)
    }

    fn finish(&mut self, peer: &mut TcpStream) {
        self.rig.finish(peer);
    }

    fn reset(&mut self, _: TcpStream) {
        unreachable!("the suite runs without resets");
    }

    fn replace_driver(&mut self) -> Self::Driver {
        self.listening = None;
        self.rig.replace_driver()
    }

    fn duplicate(descriptor: &P::Socket) -> P::Socket {
        TcpRig::<P>::duplicate(descriptor)
    }

    fn exhaust_descriptors(&mut self, _: bool) -> bool {
        false
    }
}
