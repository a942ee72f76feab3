//! Tests outside the contract: listeners, options, ports, and the number of turns.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use throng_io::readiness::poller::Poller;
use throng_io::{
    Closed, ConnId, Driver, Event, ListenOptions, Options, ReadinessDriver, listen, listen_many,
};

fn loopback() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

#[test]
fn a_port_in_use_is_an_error() {
    let (_listener, bound) = listen(loopback(), ListenOptions::default()).unwrap();
    let error = listen(bound, ListenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    let error = listen_many(bound, ListenOptions::default(), 2).unwrap_err();
    let shares_ports = cfg!(target_os = "linux");
    let expected = if shares_ports { ErrorKind::AddrInUse } else { ErrorKind::Unsupported };
    assert_eq!(error.kind(), expected);
}

#[test]
fn a_foreign_address_is_an_error() {
    let address = "192.0.2.1:0".parse().unwrap();
    let error = listen(address, ListenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
}

#[cfg(target_os = "linux")]
#[test]
fn many_listeners_share_one_port_that_was_free_before() {
    let (listeners, bound) = listen_many(loopback(), ListenOptions::default(), 4).unwrap();
    assert_eq!(listeners.len(), 4);
    assert!(bound.port() != 0);
    for listener in &listeners {
        assert_eq!(listener.local_addr().unwrap(), bound);
    }
    let error = listen_many(bound, ListenOptions::default(), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    // Linux lets each process of the same user join that asks to share.
    let shared = ListenOptions { reuse_port: true, ..ListenOptions::default() };
    assert!(listen(bound, shared).is_ok());
    drop(listeners);
    let (one, alone) = listen_many(loopback(), ListenOptions::default(), 1).unwrap();
    assert_eq!(listen(alone, shared).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(one);
    let (again, same) = listen_many(bound, ListenOptions::default(), 2).unwrap();
    assert_eq!((again.len(), same), (2, bound));
}

#[test]
fn an_ipv6_listener_takes_ipv4_only_if_asked() {
    let Ok((_alone, address)) = listen("[::1]:0".parse().unwrap(), ListenOptions::default()) else {
        return; // no IPv6 on this machine
    };
    assert!(address.is_ipv6());
    assert!(TcpStream::connect(address).is_ok());
    let both = ListenOptions { dual_stack: true, ..ListenOptions::default() };
    let (_both, address) = listen("[::]:0".parse().unwrap(), both).unwrap();
    assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, address.port())).is_ok());
}

/// Returns the next event of some kind; the number of waits is bounded.
fn until<P: Poller, T>(
    driver: &mut ReadinessDriver<P>,
    mut wanted: impl FnMut(Event<'_, P::Socket>) -> Option<T>,
) -> T {
    for _ in 0..2000 {
        let deadline = driver.now().after(std::time::Duration::from_millis(5));
        driver.wait(Some(deadline)).unwrap();
        while let Some(event) = driver.next_event() {
            if let Some(found) = wanted(event) {
                return found;
            }
        }
    }
    panic!("the event never came");
}

fn incoming<P: Poller>(driver: &mut ReadinessDriver<P>) -> (P::Socket, Option<SocketAddr>) {
    until(driver, |event| match event {
        Event::Incoming(socket, peer, _) => Some((socket, peer)),
        _ => None,
    })
}

fn slots_run_out_and_come_back<P: Poller>() {
    let options = Options { max_connections: 2, ..Options::default() };
    let mut driver = ReadinessDriver::<P>::new(options).unwrap();
    let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
    driver.add_listener(listener).unwrap();
    let mut peers = Vec::new();
    let mut ids = Vec::new();
    for _ in 0..2 {
        peers.push(TcpStream::connect(address).unwrap());
        let (socket, peer) = incoming(&mut driver);
        assert_eq!(peer.unwrap(), peers.last().unwrap().local_addr().unwrap());
        ids.push(driver.adopt(socket).unwrap());
    }
    let mut third = TcpStream::connect(address).unwrap();
    let (socket, _) = incoming(&mut driver);
    assert_eq!(driver.adopt(socket).unwrap_err().kind(), ErrorKind::QuotaExceeded);
    assert_eq!(third.read(&mut [0]).unwrap(), 0, "it was closed");
    let error = driver.connect(address.into(), None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert_eq!(driver.connections(), 2);
    driver.close(ids[0]);
    until(&mut driver, |event| matches!(event, Event::Closed(_, Closed::Local)).then_some(()));
    assert_eq!(driver.connections(), 1);
    assert!(driver.connect(address.into(), None).is_ok());
}

fn a_connect_keeps_its_source_address<P: Poller>() {
    let mut driver = ReadinessDriver::<P>::new(Options::default()).unwrap();
    let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
    driver.add_listener(listener).unwrap();
    let source: SocketAddr = "127.9.8.7:0".parse().unwrap();
    let id = driver.connect(address.into(), Some(source)).unwrap();
    let (mut connected, mut peer) = (false, None);
    until(&mut driver, |event| {
        match event {
            Event::Incoming(_, from, _) => peer = from,
            Event::Connected(conn) => connected = conn == id,
            Event::Closed(..) => panic!("closed"),
            _ => {}
        }
        (connected && peer.is_some()).then_some(())
    });
    if cfg!(target_os = "linux") {
        assert_eq!(peer.unwrap().ip(), source.ip());
    }
}

/// Connections that exceed one turn's budget are accepted in the next, without a new event.
fn more_connections_than_one_turn_accepts<P: Poller>() {
    let options = Options { accepts_per_turn: 3, ..Options::default() };
    let mut driver = ReadinessDriver::<P>::new(options).unwrap();
    let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
    driver.add_listener(listener).unwrap();
    let _peers: Vec<_> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let (mut accepted, mut waits) = (0, 0);
    while accepted < 20 {
        let deadline = driver.now().after(std::time::Duration::from_secs(20));
        driver.wait(Some(deadline)).unwrap();
        assert!(driver.now() < deadline, "waiting connections were forgotten");
        waits += 1;
        let before = accepted;
        while let Some(event) = driver.next_event() {
            accepted += usize::from(matches!(event, Event::Incoming(..)));
        }
        assert!(accepted - before <= 3);
        assert!(waits <= 20, "waits without a new connection");
    }
}

/// A listener's options reach its accepted sockets, without a call for each connection.
#[cfg(target_os = "linux")]
#[test]
fn accepted_sockets_inherit_their_options() {
    use std::time::Duration;

    use socket2::SockRef;

    let options = Options {
        keepalive: Some(Duration::from_secs(77)),
        user_timeout: Some(Duration::from_secs(33)),
        socket_send_buffer: Some(40_000),
        ..Options::default()
    };
    let mut driver = throng_io::Epoll::new(options).unwrap();
    let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
    driver.add_listener(listener).unwrap();
    let _peer = TcpStream::connect(address).unwrap();
    let (socket, _) = incoming(&mut driver);
    let socket = SockRef::from(&socket);
    assert!(socket.tcp_nodelay().unwrap());
    assert!(socket.keepalive().unwrap());
    assert_eq!(socket.tcp_keepalive_time().unwrap(), Duration::from_secs(77));
    assert_eq!(socket.tcp_user_timeout().unwrap(), Some(Duration::from_secs(33)));
    assert_eq!(socket.send_buffer_size().unwrap(), 80_000, "the kernel doubles it");
    assert!(socket.nonblocking().unwrap());
}

/// A Unix socket inherits nothing from its listener. The kernel doubles the size that it is given;
/// a size for receiving has no effect there, and is not refused.
#[cfg(target_os = "linux")]
fn an_accepted_unix_socket_has_its_buffer_size<P: Poller>()
where
    P::Socket: std::os::fd::AsFd,
{
    use std::os::unix::net::UnixStream;
    let options = Options {
        socket_send_buffer: Some(40_000),
        socket_receive_buffer: Some(40_000),
        ..Options::default()
    };
    let mut driver = ReadinessDriver::<P>::new(options).unwrap();
    let folder = throng_testkit::TempFolder::new("buffers");
    let path = folder.join("socket");
    driver.add_listener(throng_io::UnixSocket::bind(&path, 0o600).unwrap()).unwrap();
    let _peer = UnixStream::connect(&path).unwrap();
    let (socket, peer) = incoming(&mut driver);
    assert_eq!(socket2::SockRef::from(&socket).send_buffer_size().unwrap(), 80_000);
    assert_eq!(peer, None);
}

/// A socket accepted by one driver lives on another: how shards balance their load.
fn another_driver_adopts<P: Poller>() {
    let mut one = ReadinessDriver::<P>::new(Options::default()).unwrap();
    let mut two = ReadinessDriver::<P>::new(Options { shard: 1, ..Options::default() }).unwrap();
    let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
    one.add_listener(listener).unwrap();
    let mut peer = TcpStream::connect(address).unwrap();
    peer.write_all(b"early").unwrap();
    let (socket, _) = incoming(&mut one);
    let id = std::thread::scope(|scope| {
        scope.spawn(|| two.adopt(socket).unwrap()).join().expect("it does not panic")
    });
    assert_eq!(id.shard(), 1);
    let received = until(&mut two, |event| match event {
        Event::Received(conn, bytes) => Some((conn, bytes.to_vec())),
        _ => None,
    });
    assert_eq!(received, (id, b"early".to_vec()));
}

/// A connection that one driver has released goes on at another one (C13), with what came in
/// between.
fn another_driver_adopts_what_was_released<P: Poller>() {
    let mut one = ReadinessDriver::<P>::new(Options::default()).unwrap();
    let mut two = ReadinessDriver::<P>::new(Options { shard: 1, ..Options::default() }).unwrap();
    let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
    one.add_listener(listener).unwrap();
    let mut peer = TcpStream::connect(address).unwrap();
    let (socket, _) = incoming(&mut one);
    let first = one.adopt(socket).unwrap();
    peer.write_all(b"one").unwrap();
    let received = |event: Event<'_, P::Socket>| match event {
        Event::Received(conn, bytes) => Some((conn, bytes.to_vec())),
        _ => None,
    };
    assert_eq!(until(&mut one, received), (first, b"one".to_vec()));
    let socket = one.release(first).unwrap();
    peer.write_all(b"two").unwrap();
    let second = two.adopt(socket).unwrap();
    assert_eq!((one.connections(), two.connections()), (0, 1));
    assert_eq!(until(&mut two, received), (second, b"two".to_vec()));
    one.close(first);
    assert_eq!(two.try_send(second, b"three"), 5);
    let mut answer = [0; 5];
    peer.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"three");
    let now = one.now();
    one.wait(Some(now)).unwrap();
    assert!(one.next_event().is_none(), "it knows nothing of the connection");
}

const SENDERS: usize = 200;
/// Bytes that each of them sends.
const SENT: usize = 60_000;

/// Connections that all have much input, with their peers.
struct Senders<P: Poller> {
    driver: ReadinessDriver<P>,
    peers: Vec<TcpStream>,
    /// Bytes received so far, and number of receives.
    received: HashMap<ConnId, (usize, usize)>,
}

impl<P: Poller> Senders<P> {
    fn new() -> Self {
        let mut driver = ReadinessDriver::<P>::new(Options::default()).unwrap();
        let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
        driver.add_listener(listener).unwrap();
        let (mut peers, mut received) = (Vec::new(), HashMap::new());
        for _ in 0..SENDERS {
            peers.push(TcpStream::connect(address).unwrap());
            let (socket, _) = incoming(&mut driver);
            received.insert(driver.adopt(socket).unwrap(), (0, 0));
        }
        // On loopback what was written is with the receiver.
        peers.iter_mut().for_each(|peer| peer.write_all(&[1; SENT]).unwrap());
        Self { driver, peers, received }
    }

    /// Runs a turn; returns the bytes that it received.
    fn turn(&mut self) -> usize {
        let before = self.sum();
        let deadline = self.driver.now().after(std::time::Duration::from_secs(20));
        self.driver.wait(Some(deadline)).unwrap();
        assert!(self.driver.now() < deadline, "input was forgotten");
        while let Some(event) = self.driver.next_event() {
            let Event::Received(id, bytes) = event else { panic!("only input was sent") };
            let (sum, receives) = self.received.get_mut(&id).unwrap();
            (*sum, *receives) = (*sum + bytes.len(), *receives + 1);
        }
        self.sum() - before
    }

    fn sum(&self) -> usize {
        self.received.values().map(|(bytes, _)| bytes).sum()
    }
}

/// A turn receives a mebibyte and one receive at most; connections beyond it are the first of the
/// next turns, and all their input comes in the end.
fn a_turn_is_divided_among_those_that_send_much<P: Poller>() {
    let mut senders = Senders::<P>::new();
    while senders.sum() < SENDERS * SENT {
        let received = senders.turn();
        assert!((1..=(1 << 20) + (65 << 10)).contains(&received), "{received} bytes in a turn");
        let receives = || senders.received.values().map(|(_, receives)| *receives);
        let (least, most) = (receives().min().unwrap(), receives().max().unwrap());
        assert!(most - least <= 2, "one was received {most} times, another one {least} times");
    }
    let deadline = senders.driver.now().after(std::time::Duration::from_millis(20));
    for _ in 0..20 {
        senders.driver.wait(Some(deadline)).unwrap();
        assert!(senders.driver.next_event().is_none());
    }
    assert!(senders.driver.now() >= deadline, "waits return with nothing to do");
}

/// A short message is received in the turn after it came, even if many others send much.
#[cfg(unix)]
fn a_short_message_does_not_wait_for_those_that_send_much<P: Poller>() {
    let mut senders = Senders::<P>::new();
    let quiet = *senders.received.keys().max_by_key(|id| id.slot()).unwrap();
    let mut peer = senders.peers.pop().unwrap();
    while senders.received[&quiet].0 < SENT {
        senders.turn();
    }
    for stream in &mut senders.peers {
        stream.set_nonblocking(true).unwrap();
        let _ = stream.write(&[1; 100_000]).unwrap();
    }
    // All that send much are known for it once they were received.
    let before = senders.received.clone();
    let is_known =
        |(id, received): (&ConnId, &(usize, usize))| *id == quiet || received.0 > before[id].0;
    while !senders.received.iter().all(is_known) {
        senders.turn();
    }
    for round in 1..=4 {
        peer.write_all(b"!").unwrap();
        senders.turn();
        assert_eq!(senders.received[&quiet].0, SENT + round);
    }
}

macro_rules! on_each_driver {
    ($($test:ident),*) => {
        #[cfg(target_os = "linux")]
        mod epoll {
            $(#[test] fn $test() { super::$test::<throng_io::epoll::EpollPoller>(); })*
        }
        mod portable {
            $(#[test] fn $test() { super::$test::<throng_io::portable::MioPoller>(); })*
        }
        #[cfg(unix)]
        mod threads {
            $(#[test] fn $test() { super::$test::<throng_io::threads::PollPoller>(); })*
        }
    };
}
on_each_driver!(
    slots_run_out_and_come_back,
    a_connect_keeps_its_source_address,
    another_driver_adopts,
    another_driver_adopts_what_was_released,
    more_connections_than_one_turn_accepts,
    a_turn_is_divided_among_those_that_send_much
);

#[cfg(target_os = "linux")]
mod unix {
    use super::*;

    on_each_driver!(an_accepted_unix_socket_has_its_buffer_size);
}

/// With an edge-triggered poll each connection waits in one list, since only a further receive
/// shows that there is no more.
#[cfg(unix)]
mod level_triggered {
    #[cfg(target_os = "linux")]
    #[test]
    fn a_short_message_does_not_wait_for_those_that_send_much_on_epoll() {
        super::a_short_message_does_not_wait_for_those_that_send_much::<
            throng_io::epoll::EpollPoller,
        >();
    }

    #[test]
    fn a_short_message_does_not_wait_for_those_that_send_much_on_poll() {
        super::a_short_message_does_not_wait_for_those_that_send_much::<
            throng_io::threads::PollPoller,
        >();
    }
}

/// C14: what the system refuses to poll is an error of the adoption. A regular file is such a
/// descriptor; one watch too many (ENOSPC) takes the same way.
#[cfg(target_os = "linux")]
#[test]
fn a_descriptor_that_cannot_be_polled_is_refused_when_it_is_adopted() {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;

    use throng_io::{Epoll, Slots, SocketRecord};

    let id = ConnId::new(5, 0, 9);
    let options = Options { shard: 5, ..Options::default() };
    let mut driver = Epoll::new(options).unwrap();
    driver.begin_with(&Slots { generations: vec![9], free: Vec::new() }).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let error = driver.adopt_at(id, OwnedFd::from(file)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(driver.descriptor(id).is_none());
    assert_eq!(driver.connections(), 0);
    // The slot is still reserved.
    let (one, mut other) = UnixStream::pair().unwrap();
    one.set_nonblocking(true).unwrap();
    driver.adopt_at(id, OwnedFd::from(one)).unwrap();
    other.write_all(b"hello").unwrap();
    driver.unpark(id, SocketRecord::default());
    let received = until(&mut driver, |event| match event {
        Event::Received(of, bytes) if of == id => Some(bytes.to_vec()),
        _ => None,
    });
    assert_eq!(received, b"hello");
}
