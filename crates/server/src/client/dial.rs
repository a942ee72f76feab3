//! Connects blocking sockets: TCP, the proxy, TLS and the upgrade, within one time limit.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use throng_proto::Input;

use super::builder::{Builder, Plan};
use super::error::{Error, Step};
use super::handshake::Answer;
use super::proxy::{Action, Proxy};
use super::session::Session;
use super::stream::Stream;

/// The time by which connecting must be done.
#[derive(Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    pub(super) fn after(limit: Duration) -> Self {
        // A century, for limits that no clock can hold.
        let far = Duration::from_secs(100 * 365 * 86_400);
        Self { at: Instant::now() + limit.min(far), limit }
    }

    /// Returns the time left, which is never 0: the system takes that for "no limit".
    fn left(self) -> Result<Duration, Error> {
        match self.at.checked_duration_since(Instant::now()) {
            Some(left) if !left.is_zero() => Ok(left),
            _ => Err(self.missed()),
        }
    }

    pub(super) fn missed(self) -> Error {
        Error::Timeout { during: Step::Connecting, limit: self.limit }
    }

    /// Sets both timeouts of a socket to the time left.
    fn arm(self, stream: &mut (impl Stream + ?Sized)) -> Result<(), Error> {
        let left = Some(self.left()?);
        stream.set_read_timeout(left).map_err(Error::Lost)?;
        stream.set_write_timeout(left).map_err(Error::Lost)
    }

    fn failed(self, error: io::Error) -> Error {
        if is_timeout(&error) { self.missed() } else { Error::before_response(error) }
    }
}

/// Returns whether a read or a write ended because of the socket's timeout.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A connection that was upgraded.
pub(super) struct Dialled {
    pub(super) stream: Box<dyn Stream>,
    pub(super) session: Session,
    pub(super) subprotocol: Option<String>,
}

/// Connects by TCP, through the proxy and with TLS as the settings say, and upgrades.
pub(super) fn connect(builder: &Builder) -> Result<Dialled, Error> {
    let deadline = Deadline::after(builder.connect_timeout);
    let plan = builder.plan()?;
    let (host, port) = (plan.url.host(), plan.url.port());
    let tcp = match &plan.proxy {
        None => connect_tcp(host, port, deadline)?,
        Some(proxy) => {
            let mut tcp = connect_tcp(&proxy.host, proxy.port, deadline)?;
            pass_proxy(&mut tcp, proxy, host, port, deadline)?;
            tcp
        }
    };
    let stream = secure(builder, &plan, tcp, deadline)?;
    upgrade(builder, plan, stream, deadline)
}

/// Upgrades a connection that exists.
pub(super) fn connect_over(builder: &Builder, stream: Box<dyn Stream>) -> Result<Dialled, Error> {
    let deadline = Deadline::after(builder.connect_timeout);
    upgrade(builder, builder.plan()?, stream, deadline)
}

fn connect_tcp(host: &str, port: u16, deadline: Deadline) -> Result<TcpStream, Error> {
    let unresolved = |source| Error::Resolve { host: host.to_owned(), source };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unresolved)?.collect();
    let none = unresolved(io::Error::new(ErrorKind::NotFound, "it has no address"));
    connect_any(&addresses, deadline).unwrap_or(Err(none))
}

/// Connects to the first address that answers; those that are left share the time.
fn connect_any(addresses: &[SocketAddr], deadline: Deadline) -> Option<Result<TcpStream, Error>> {
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

fn connect_to(address: SocketAddr, limit: Duration, all: Deadline) -> Result<TcpStream, Error> {
    match TcpStream::connect_timeout(&address, limit) {
        Ok(stream) => {
            stream.set_nodelay(true).map_err(Error::Lost)?;
            Ok(stream)
        }
        Err(error) if is_timeout(&error) => Err(all.missed()),
        Err(source) => Err(Error::Connect { address: address.to_string(), source }),
    }
}

fn pass_proxy(
    tcp: &mut TcpStream,
    proxy: &Proxy,
    host: &str,
    port: u16,
    deadline: Deadline,
) -> Result<(), Error> {
    let (mut negotiation, first) = proxy.begin(host, port)?;
    let mut outgoing = first;
    let mut received = Vec::new();
    loop {
        deadline.arm(tcp)?;
        tcp.write_all(&outgoing).map_err(|error| deadline.failed(error))?;
        received.clear();
        outgoing = loop {
            // One byte at a time: what follows belongs to the server.
            let mut byte = [0];
            deadline.arm(tcp)?;
            match tcp.read(&mut byte) {
                Ok(0) => return Err(Error::Proxy("it ended the connection".to_owned())),
                Ok(_) => received.push(byte[0]),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(deadline.failed(error)),
            }
            match negotiation.receive(&received)? {
                Action::Wait => {}
                Action::Send(bytes) => break bytes,
                Action::Done => return Ok(()),
            }
        };
    }
}

fn secure(
    builder: &Builder,
    plan: &Plan,
    #[cfg_attr(not(feature = "tls"), allow(unused_mut))] mut tcp: TcpStream,
    deadline: Deadline,
) -> Result<Box<dyn Stream>, Error> {
    if !plan.url.is_secure() {
        return Ok(Box::new(tcp));
    }
    #[cfg(feature = "tls")]
    {
        deadline.arm(&mut tcp)?;
        let stream = builder.tls.client_for(&plan.url)?.handshake_on(tcp).map_err(|error| {
            if is_timeout(&error) { deadline.missed() } else { Error::Tls(error) }
        })?;
        Ok(Box::new(stream))
    }
    #[cfg(not(feature = "tls"))]
    {
        let _ = (builder, deadline);
        Err(Error::without_tls())
    }
}

fn upgrade(
    builder: &Builder,
    plan: Plan,
    mut stream: Box<dyn Stream>,
    deadline: Deadline,
) -> Result<Dialled, Error> {
    let Plan { request, asked, entropy, limits, .. } = plan;
    deadline.arm(&mut *stream)?;
    stream.write_all(&request).map_err(|error| deadline.failed(error))?;
    let mut answer = Answer::new();
    let mut buffer = [0; 8 << 10];
    let (opened, rest) = loop {
        if let Err(missed) = deadline.arm(&mut *stream) {
            return Err(answer.cut_off(missed));
        }
        let n = match stream.read(&mut buffer) {
            Ok(0) => break (answer.finish()?, Vec::new()),
            Ok(n) => n,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(answer.cut_off(deadline.failed(error))),
        };
        let mut input = Input::new(&mut buffer[..n]);
        if let Some(opened) = answer.receive(&mut input, &asked)? {
            break (opened, input.as_slice().to_vec());
        }
    };
    let mut session = Session::new(limits, builder.by_chunks, opened.deflate, entropy);
    session.receive_first(&rest);
    stream.set_write_timeout(Some(builder.write_timeout)).map_err(Error::Lost)?;
    stream.set_read_timeout(builder.heartbeat).map_err(Error::Lost)?;
    Ok(Dialled { stream, session, subprotocol: opened.subprotocol })
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use socket2::{Domain, SockAddr, Socket, Type};

    use super::*;

    /// A listener whose queue is full: the system drops further attempts to connect.
    pub(in super::super) struct Unresponsive {
        pub(in super::super) address: SocketAddr,
        _listener: Socket,
        _waiting: Vec<Socket>,
    }

    pub(in super::super) fn unresponsive() -> Unresponsive {
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

    pub(in super::super) fn serving() -> TcpListener {
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
