//! Tests outside the contract: listeners, options, ports, and the number of turns.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use throng_io::readiness::poller::Poller;
use throng_io::{
    Closed, Driver, Event, ListenOptions, Options, ReadinessDriver, listen, listen_many,
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
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}

#[test]
fn a_foreign_address_is_an_error() {
    let address = "192.0.2.1:0".parse().unwrap();
    let error = listen(address, ListenOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
}

#[cfg(target_os = "linux")]
#[test]
fn many_listeners_share_one_port_exclusively() {
    let (listeners, bound) = listen_many(loopback(), ListenOptions::default(), 4).unwrap();
    assert_eq!(listeners.len(), 4);
    assert!(bound.port() != 0);
    for listener in &listeners {
        assert_eq!(listener.local_addr().unwrap(), bound);
    }
    let error = listen_many(bound, ListenOptions::default(), 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    drop(listeners);
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
    let error = driver.connect(address, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert_eq!(driver.connections(), 2);
    driver.close(ids[0]);
    until(&mut driver, |event| matches!(event, Event::Closed(_, Closed::Local)).then_some(()));
    assert_eq!(driver.connections(), 1);
    assert!(driver.connect(address, None).is_ok());
}

fn a_connect_keeps_its_source_address<P: Poller>() {
    let mut driver = ReadinessDriver::<P>::new(Options::default()).unwrap();
    let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
    driver.add_listener(listener).unwrap();
    let source: SocketAddr = "127.9.8.7:0".parse().unwrap();
    let id = driver.connect(address, Some(source)).unwrap();
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

/// A Unix socket inherits nothing from its listener. The kernel doubles what it is given; a size
/// for receiving has no effect there, and is not refused.
#[cfg(target_os = "linux")]
fn an_accepted_unix_socket_has_its_buffer_size<P: Poller>()
where
    P::Socket: std::os::fd::AsFd,
{
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicU32, Ordering};

    let options = Options {
        socket_send_buffer: Some(40_000),
        socket_receive_buffer: Some(40_000),
        ..Options::default()
    };
    let mut driver = ReadinessDriver::<P>::new(options).unwrap();
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let name = format!("throng-buffers-{}-{number}.sock", std::process::id());
    let path = std::env::temp_dir().join(name);
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

/// Many connections with much input have small parts of a turn each; all of it comes in the end.
fn a_turn_is_divided_among_those_that_send_much<P: Poller>() {
    const SENDERS: usize = 64;
    const SENT: usize = 60_000;
    let mut driver = ReadinessDriver::<P>::new(Options::default()).unwrap();
    let (listener, address) = listen(loopback(), ListenOptions::default()).unwrap();
    driver.add_listener(listener).unwrap();
    let mut peers = Vec::new();
    for _ in 0..SENDERS {
        peers.push(TcpStream::connect(address).unwrap());
        let (socket, _) = incoming(&mut driver);
        driver.adopt(socket).unwrap();
    }
    // On loopback what was written is with the receiver.
    peers.iter_mut().for_each(|peer| peer.write_all(&[1; SENT]).unwrap());
    let (mut received, mut first_turn) = (0, 0);
    while received < SENDERS * SENT {
        let deadline = driver.now().after(std::time::Duration::from_secs(20));
        driver.wait(Some(deadline)).unwrap();
        assert!(driver.now() < deadline, "input was forgotten");
        while let Some(event) = driver.next_event() {
            let Event::Received(_, bytes) = event else { panic!("only input was sent") };
            received += bytes.len();
        }
        if first_turn == 0 {
            first_turn = received;
        }
    }
    assert!((1..=64 * (17 << 10)).contains(&first_turn), "{first_turn} bytes");
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
    more_connections_than_one_turn_accepts,
    a_turn_is_divided_among_those_that_send_much
);

#[cfg(target_os = "linux")]
mod unix {
    use super::*;

    on_each_driver!(an_accepted_unix_socket_has_its_buffer_size);
}
