//! The rig for drivers of real sockets: loopback TCP, with peers in the same thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use socket2::{Domain, SockRef, Socket, Type};
use throng_io::PeerAddress;
use throng_io::driver::ListenerId;
use throng_io::listen;
use throng_io::listen::ListenOptions;
use throng_io::options::Options;
use throng_io::readiness::ReadinessDriver;
use throng_io::readiness::poller::Poller;

use super::{PeerRead, Rig};

/// A socket of the system, whose descriptor can be duplicated.
#[cfg(unix)]
pub use std::os::fd::AsFd as SystemSocket;
#[cfg(windows)]
pub use std::os::windows::io::AsSocket as SystemSocket;

/// A [`ReadinessDriver`] whose peers are std sockets, on a thread that may have its own descriptor
/// table.
pub struct TcpRig<P: Poller, const OWN_TABLE: bool = false> {
    driver: ReadinessDriver<P>,
    listening: Option<SocketAddr>,
    /// Bound and not listening.
    unused: Vec<Socket>,
}

/// Small, so that few bytes fill a connection.
pub(super) const SOCKET_BUFFER: usize = 16 * 1024;

impl<P: Poller<Socket: SystemSocket>, const OWN_TABLE: bool> Rig for TcpRig<P, OWN_TABLE> {
    type Driver = ReadinessDriver<P>;
    type Peer = TcpStream;
    type Remote = TcpListener;

    const CAPACITY: usize = 1 << 20;

    fn new() -> Self {
        if OWN_TABLE {
            enter_table();
        }
        Self { driver: new_driver(), listening: None, unused: Vec::new() }
    }

    fn driver(&mut self) -> &mut Self::Driver {
        &mut self.driver
    }

    fn listen(&mut self) -> SocketAddr {
        if let Some(address) = self.listening {
            return address;
        }
        let (_, address) = self.listen_also();
        *self.listening.insert(address)
    }

    fn listen_also(&mut self) -> (ListenerId, SocketAddr) {
        let (listener, address) = listen(loopback(), ListenOptions::default()).expect("a port");
        (self.driver.add_listener(listener).expect("room for a listener"), address)
    }

    fn dial(&mut self, to: SocketAddr) -> Option<TcpStream> {
        let socket = small_socket();
        match socket.connect(&to.into()) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => return None,
            Err(error) => panic!("cannot dial {to}: {error}"),
        }
        Some(peer(socket.into()))
    }

    fn remote(&mut self) -> (TcpListener, PeerAddress) {
        let socket = small_socket();
        socket.bind(&loopback().into()).expect("a port");
        socket.listen(1024).expect("a listener");
        socket.set_nonblocking(true).expect("a socket option");
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().expect("an address");
        (listener, address.into())
    }

    fn accept(&mut self, remote: &mut TcpListener) -> Option<TcpStream> {
        match remote.accept() {
            Ok((stream, _)) => Some(peer(stream)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            Err(error) => panic!("cannot accept: {error}"),
        }
    }

    fn refusing_address(&mut self) -> PeerAddress {
        // Bound and not listening: connections are refused, and no other process takes the port.
        let socket = small_socket();
        socket.bind(&loopback().into()).expect("a port");
        let address = socket.local_addr().expect("an address").as_socket().expect("an IP address");
        self.unused.push(socket);
        address.into()
    }

    fn write(&mut self, peer: &mut TcpStream, bytes: &[u8]) -> usize {
        match peer.write(bytes) {
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => panic!("the peer cannot write: {error}"),
        }
    }

    fn read(&mut self, peer: &mut TcpStream, into: &mut Vec<u8>) -> PeerRead {
        let before = into.len();
        into.resize(before + 64 * 1024, 0);
        let read = peer.read(&mut into[before..]);
        into.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => PeerRead::Finished,
            Ok(_) => PeerRead::Bytes,
            Err(error) if error.kind() == ErrorKind::WouldBlock => PeerRead::Nothing,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => PeerRead::Reset,
            Err(error) => panic!("the peer cannot read: {error}"),
        }
    }

    fn finish(&mut self, peer: &mut TcpStream) {
        peer.shutdown(std::net::Shutdown::Write).expect("the connection is there");
    }

    fn reset(&mut self, peer: TcpStream) {
        SockRef::from(&peer).set_linger(Some(Duration::ZERO)).expect("a socket option");
    }

    fn replace_driver(&mut self) -> Self::Driver {
        self.listening = None;
        std::mem::replace(&mut self.driver, new_driver())
    }

    fn duplicate(descriptor: &P::Socket) -> P::Socket {
        P::from_connecting(pass_on(&SockRef::from(descriptor)))
    }

    /// The limit belongs to the process, so only a separate test binary may change it: see
    /// `tests/descriptors.rs`.
    fn exhaust_descriptors(&mut self, _: bool) -> bool {
        false
    }
}

fn new_driver<P: Poller>() -> ReadinessDriver<P> {
    let options = Options {
        shard: 5,
        socket_send_buffer: Some(SOCKET_BUFFER),
        socket_receive_buffer: Some(128 * 1024),
        ..Options::default()
    };
    ReadinessDriver::new(options).expect("a descriptor or two")
}

/// Duplicates a socket.
#[cfg(not(target_os = "linux"))]
fn pass_on(socket: &Socket) -> Socket {
    socket.try_clone().expect("a descriptor")
}

/// Duplicates a socket, through the kernel as it would go to another process.
#[cfg(target_os = "linux")]
fn pass_on(socket: &Socket) -> Socket {
    use std::os::fd::AsFd;

    use throng_io::descriptors::{receive, send};

    let (from, to) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).expect("two descriptors");
    send(&from, b"a connection", &[socket.as_fd()]).expect("an empty socket takes it");
    let (_, mut descriptors) = receive(&to, &mut [0; 16]).expect("it was sent");
    descriptors.pop().expect("a descriptor").into()
}

/// Does nothing: this system has no such tables.
#[cfg(not(target_os = "linux"))]
fn enter_table() {}

/// Gives the test's thread a table, before its first rig opens anything.
#[cfg(target_os = "linux")]
fn enter_table() {
    std::thread_local! {
        static TABLE: throng_io::tables::OwnTable =
            throng_io::tables::Tables::new(1).enter(0).expect("a table of its own");
    }
    TABLE.with(|_| {});
}

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn small_socket() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a descriptor");
    socket.set_recv_buffer_size(SOCKET_BUFFER).expect("a socket option");
    socket
}

fn peer(stream: TcpStream) -> TcpStream {
    stream.set_nonblocking(true).expect("a socket option");
    stream.set_nodelay(true).expect("a socket option");
    stream
}
