//! Connects blocking sockets: TCP, the proxy, TLS and the upgrade, within one time limit.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use crate::builder::{ClientBuilder, DialPlan};
use crate::error::{ClientError, DialStep};
use crate::handshake::{Opened, Opening};
use crate::proxy::{Proxy, ProxyAction};
use crate::stream::ClientStream;

/// The time by which connecting must be done.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        // A century stands for limits beyond any clock's range.
        let far = Duration::from_secs(100 * 365 * 86_400);
        Self { at: Instant::now() + limit.min(far), limit }
    }

    /// Returns the time left, which is never 0: the system takes that for "no limit".
    fn left(self) -> Result<Duration, ClientError> {
        match self.at.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(self.missed()),
        }
    }

    pub(crate) fn missed(self) -> ClientError {
        ClientError::Timeout { during: DialStep::Connecting, limit: self.limit }
    }

    /// Sets both timeouts of a socket to the time left.
    fn arm(self, stream: &mut (impl ClientStream + ?Sized)) -> Result<(), ClientError> {
        let left = Some(self.left()?);
        stream.set_read_timeout(left).map_err(ClientError::Lost)?;
        stream.set_write_timeout(left).map_err(ClientError::Lost)
    }

    fn failed(self, error: io::Error) -> ClientError {
        if is_timeout(&error) { self.missed() } else { ClientError::before_response(error) }
    }
}

/// Returns whether a read or a write ended because of the socket's timeout.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A connection after its upgrade.
pub(crate) struct Dialled {
    pub(crate) stream: Box<dyn ClientStream>,
    pub(crate) opened: Opened,
}

/// Connects by TCP, through the proxy and with TLS as the settings require, and upgrades. Passes
/// the socket to `watch` as soon as it exists.
pub(crate) fn connect(
    builder: &ClientBuilder,
    watch: impl FnOnce(&TcpStream),
) -> Result<Dialled, ClientError> {
    let deadline = Deadline::after(builder.connect_timeout);
    let plan = builder.plan()?;
    let (host, port) = (plan.url.host(), plan.url.port());
    let lookup = plan.url.lookup_host();
    let (reached, port_reached) = match &plan.proxy {
        None => (&*lookup, port),
        Some(proxy) => (&*proxy.host, proxy.port),
    };
    let mut tcp = connect_tcp(reached, port_reached, deadline)?;
    watch(&tcp);
    if let Some(proxy) = &plan.proxy {
        pass_proxy(&mut tcp, proxy, host, port, deadline)?;
    }
    let stream = secure(builder, &plan, tcp, deadline)?;
    upgrade(builder, plan.opening, stream, deadline)
}

/// Upgrades an existing connection.
pub(crate) fn connect_over(
    builder: &ClientBuilder,
    stream: Box<dyn ClientStream>,
) -> Result<Dialled, ClientError> {
    let deadline = Deadline::after(builder.connect_timeout);
    upgrade(builder, builder.open()?, stream, deadline)
}

fn connect_tcp(host: &str, port: u16, deadline: Deadline) -> Result<TcpStream, ClientError> {
    let unresolved = |source| ClientError::Resolve { host: host.to_owned(), source };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unresolved)?.collect();
    let none = unresolved(io::Error::new(ErrorKind::NotFound, "it has no address"));
    connect_any(&addresses, deadline).unwrap_or(Err(none))
}

/// Connects to the first address that answers. Each attempt gets an equal share of the remaining
/// time.
fn connect_any(
    addresses: &[SocketAddr],
    deadline: Deadline,
) -> Option<Result<TcpStream, ClientError>> {
    let mut last = None;
    for (tried, address) in addresses.iter().enumerate() {
        let connected = deadline.left().and_then(|left| {
            let shared = left / u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            connect_to(*address, shared.max(Duration::from_nanos(1)), deadline)
        });
        match connected {
            Ok(stream) => return Some(Ok(stream)),
            Err(error) => last = Some(Err(error)),
        }
    }
    last
}

fn connect_to(
    address: SocketAddr,
    limit: Duration,
    all: Deadline,
) -> Result<TcpStream, ClientError> {
    match TcpStream::connect_timeout(&address, limit) {
        Ok(stream) => {
            stream.set_nodelay(true).map_err(ClientError::Lost)?;
            Ok(stream)
        }
        Err(error) if is_timeout(&error) => Err(all.missed()),
        Err(source) => Err(ClientError::Connect { address: address.to_string(), source }),
    }
}

fn pass_proxy(
    tcp: &mut TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
    deadline: Deadline,
) -> Result<(), ClientError> {
    let (mut negotiation, first) = proxy.begin(host, port)?;
    let mut outgoing = first;
    let mut received = Vec::new();
    loop {
        deadline.arm(tcp)?;
        tcp.write_all(&outgoing).map_err(|error| deadline.failed(error))?;
        received.clear();
        outgoing = loop {
            // Reads one byte at a time: later bytes belong to the server.
            let mut byte = [0];
            deadline.arm(tcp)?;
            match tcp.read(&mut byte) {
                Ok(0) => return Err(ClientError::Proxy("it ended the connection".to_owned())),
                Ok(_) => received.push(byte[0]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(deadline.failed(error)),
            }
            match negotiation.receive(&received)? {
                ProxyAction::Wait => {}
                ProxyAction::Send(bytes) => break bytes,
                ProxyAction::Done => return Ok(()),
            }
        };
    }
}

fn secure(
    builder: &ClientBuilder,
    plan: &DialPlan,
    #[cfg_attr(not(feature = "tls"), allow(unused_mut))] mut tcp: TcpStream,
    deadline: Deadline,
) -> Result<Box<dyn ClientStream>, ClientError> {
    if !plan.url.is_secure() {
        return Ok(Box::new(tcp));
    }
    #[cfg(feature = "tls")]
    {
        deadline.arm(&mut tcp)?;
        let stream = builder.tls.client_for(&plan.url)?.handshake_on(tcp).map_err(|error| {
            if is_timeout(&error) { deadline.missed() } else { ClientError::Tls(error) }
        })?;
        Ok(Box::new(stream))
    }
    #[cfg(not(feature = "tls"))]
    {
        let _ = (builder, deadline);
        Err(ClientError::without_tls())
    }
}

fn upgrade(
    builder: &ClientBuilder,
    mut opening: Opening,
    mut stream: Box<dyn ClientStream>,
    deadline: Deadline,
) -> Result<Dialled, ClientError> {
    deadline.arm(&mut *stream)?;
    stream.write_all(opening.request()).map_err(|error| deadline.failed(error))?;
    let mut buffer = [0; 8 << 10];
    loop {
        if let Err(missed) = deadline.arm(&mut *stream) {
            return Err(opening.cut_off(missed));
        }
        let n = match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(opening.cut_off(deadline.failed(error))),
        };
        if opening.receive(&mut buffer[..n])? {
            break;
        }
    }
    let opened = opening.finish_with(builder.by_chunks)?;
    stream.set_write_timeout(Some(builder.write_timeout)).map_err(ClientError::Lost)?;
    stream.set_read_timeout(builder.heartbeat).map_err(ClientError::Lost)?;
    Ok(Dialled { stream, opened })
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use socket2::{Domain, SockAddr, Socket, Type};

    use super::*;

    /// A listener whose queue is full: the system drops further attempts to connect.
    pub(crate) struct Unresponsive {
        pub(crate) address: SocketAddr,
        _listener: Socket,
        _waiting: Vec<Socket>,
    }

    pub(crate) fn unresponsive() -> Unresponsive {
        let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        listener.bind(&SockAddr::from(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))).unwrap();
        listener.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = (0..8).map(|_| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
            socket.set_nonblocking(true).unwrap();
            let _ = socket.connect(&address);
            socket
        });
        Unresponsive {
            address: address.as_socket().unwrap(),
            _waiting: waiting.collect(),
            _listener: listener,
        }
    }

    pub(crate) fn serving() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    #[test]
    fn an_address_that_does_not_answer_leaves_time_for_the_next() {
        let (dead, alive) = (unresponsive(), serving());
        let addresses = [dead.address, alive.local_addr().unwrap()];
        let deadline = Deadline::after(Duration::from_secs(2));
        let stream = connect_any(&addresses, deadline).unwrap().unwrap();
        assert_eq!(stream.peer_addr().unwrap(), addresses[1]);
    }
}
