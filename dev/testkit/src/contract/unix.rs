//! The rig for drivers of real sockets whose connections are Unix sockets, in both directions.
//! Nothing is reset.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use socket2::{Domain, SockAddr, Socket, Type};
use throng_io::driver::ListenerId;
use throng_io::listener::UnixSocket;
use throng_io::readiness::poller::Poller;
use throng_io::{PeerAddress, UnixPath};

use super::tcp::{SOCKET_BUFFER, SystemSocket, TcpRig};
use super::{PeerRead, Rig};
use crate::folder::TempFolder;

/// A [`TcpRig`] that listens on Unix sockets. A TCP address stands for the path of each.
pub struct UnixRig<P: Poller> {
    rig: TcpRig<P>,
    paths: HashMap<SocketAddr, PathBuf>,
    listening: Option<SocketAddr>,
    remotes: usize,
    folder: TempFolder,
}

impl<P: Poller<Socket: SystemSocket>> Rig for UnixRig<P> {
    type Driver = <TcpRig<P> as Rig>::Driver;
    type Peer = TcpStream;
    type Remote = UnixListener;

    const CAPACITY: usize = TcpRig::<P>::CAPACITY;

    fn new() -> Self {
        let folder = TempFolder::new("contract");
        Self { rig: TcpRig::new(), paths: HashMap::new(), listening: None, remotes: 0, folder }
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
        Some(peer(socket))
    }

    fn remote(&mut self) -> (UnixListener, PeerAddress) {
        self.remotes += 1;
        let path = self.folder.join(format!("remote-{}", self.remotes));
        let path = UnixPath::new(path.to_str().expect("text")).expect("a short path");
        let listener = UnixListener::bind(path.as_path()).expect("a folder for sockets");
        listener.set_nonblocking(true).expect("a socket option");
        (listener, PeerAddress::Unix(path))
    }

    fn accept(&mut self, remote: &mut UnixListener) -> Option<TcpStream> {
        match remote.accept() {
            Ok((stream, _)) => {
                let socket = Socket::from(OwnedFd::from(stream));
                socket.set_send_buffer_size(SOCKET_BUFFER).expect("a socket option");
                Some(peer(socket))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("cannot accept: {error}"),
        }
    }

    /// The file exists, and nothing listens.
    fn refusing_address(&mut self) -> PeerAddress {
        self.remote().1
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

fn peer(socket: Socket) -> TcpStream {
    socket.set_nonblocking(true).expect("a socket option");
    OwnedFd::from(socket).into()
}
