//! A balancer with scripted backends, and clients that see every byte.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use throng_balance::shard_over_driver::{BalanceCommand, BalanceStart, Shard};
use throng_balance::{
    Access, AccessDetail, AccessLog, Backend, BackendReport, Configuration, Launch, ListenAt,
    Listeners, OnBound, Settings, Shards, Target,
};
use throng_engine::mailbox::{Mailbox, mailbox};
use throng_http::LiveDate;
use throng_io::tables::DescriptorTables;
use throng_io::{Driver, HeldListeners, ListenOptions, Options, listen};
use throng_proto::ws::handshake::accept_key;
use throng_proto::ws::{Opcode, encode, encode_close, encode_masked};
use throng_testkit::{eventually, poll};

/// Many tests run twice: with one descriptor table, and in `own_tables.rs` with a table for each
/// event loop.
fn tables() -> DescriptorTables {
    match module_path!().starts_with("own_tables") {
        true => DescriptorTables::PerShard,
        false => DescriptorTables::Shared,
    }
}

/// Longer than any step of these tests.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

/// A running balancer.
pub(crate) struct Balancer {
    pub(crate) shards: Shards,
    pub(crate) address: SocketAddr,
    pub(crate) backends: Vec<Arc<Backend>>,
    pub(crate) reports: Receiver<BackendReport>,
    pub(crate) configuration: Configuration,
}

impl Balancer {
    /// Starts a balancer for `backends`, with one shard.
    pub(crate) fn start(backends: &[SocketAddr], settings: Settings) -> Self {
        Self::start_with(1, backends, settings, false)
    }

    pub(crate) fn start_with(
        shards: usize,
        backends: &[SocketAddr],
        settings: Settings,
        send_proxy: bool,
    ) -> Self {
        let backends: Vec<_> =
            backends.iter().map(|&address| Arc::new(Backend::new(address, 1))).collect();
        let targets = backends
            .iter()
            .map(|backend| Target {
                backend: Arc::clone(backend),
                send_proxy,
                tls: None,
                passthrough: Arc::default(),
                name: None,
            })
            .collect();
        Self::of(shards, Configuration::new(settings, targets))
    }

    /// Starts a balancer that has this configuration from its first client.
    pub(crate) fn of(shards: usize, configuration: Configuration) -> Self {
        Self::of_bound(shards, configuration, None)
    }

    /// Does the same with a call when it is certain to start.
    pub(crate) fn of_bound(
        shards: usize,
        configuration: Configuration,
        on_bound: Option<OnBound>,
    ) -> Self {
        let targets = configuration.pools.iter().flat_map(|pool| &pool.targets);
        let backends = targets.map(|target| Arc::clone(&target.backend)).collect();
        let (sender, reports) = channel();
        let shards = Shards::start(Launch {
            listen: vec![ListenAt::plain("127.0.0.1:0".parse().unwrap())],
            tls: None,
            handshakes_per_second: 0,
            uses_tls: false,
            access: None,
            held: HeldListeners::default(),
            on_bound,
            shards,
            is_pinned: false,
            descriptors: tables(),
            configuration: Arc::new(configuration.clone()),
            reports: sender,
        })
        .unwrap();
        let address = shards.addresses()[0];
        Self { shards, address, backends, reports, configuration }
    }

    pub(crate) fn connect(&self) -> Peer {
        Peer::new(TcpStream::connect(self.address).unwrap())
    }

    /// Opens a client with an open WebSocket.
    pub(crate) fn open(&self) -> Peer {
        let mut peer = self.connect();
        peer.send(&upgrade("/chat"));
        let head = peer.head();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        peer
    }

    /// Waits until `condition` holds.
    pub(crate) fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        eventually(what, || condition(self));
    }

    /// Checks that every count is back at zero.
    pub(crate) fn assert_nothing_is_held(&self) {
        self.until("all counts return to zero", |balancer| {
            let metrics = balancer.shards.metrics();
            let held = balancer
                .backends
                .iter()
                .map(|backend| backend.tunnels() + backend.requests() + backend.handshakes());
            metrics.connections == 0 && metrics.tunnels == 0 && held.sum::<u32>() == 0
        });
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.shards.shut_down(Duration::ZERO, Duration::ZERO, false);
        let ended = self.shards.join();
        if !std::thread::panicking() {
            ended.unwrap();
        }
    }
}

/// A handshake.
pub(crate) fn upgrade(path: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n\r\n"
    )
    .into_bytes()
}

/// The answer to [`upgrade`].
pub(crate) fn accepted() -> Vec<u8> {
    let accept = accept_key(KEY);
    let accept = std::str::from_utf8(&accept).unwrap();
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    )
    .into_bytes()
}

/// One end of a connection, on either side of the balancer.
pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    /// Bytes received but not requested yet.
    ahead: Vec<u8>,
}

impl Peer {
    pub(crate) fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TIMEOUT)).unwrap();
        // A Unix socket does not have the option.
        let _ = stream.set_nodelay(true);
        Self { stream, ahead: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn send_text(&mut self, text: &str) {
        let mut frame = Vec::new();
        encode_masked(Opcode::Text, text.as_bytes(), [1, 2, 3, 4], &mut frame);
        self.send(&frame);
    }

    pub(crate) fn send_close(&mut self, code: u16) {
        let mut frame = Vec::new();
        encode_close(code, "", Some([9, 8, 7, 6]), &mut frame);
        self.send(&frame);
    }

    /// Sends a frame as a server does.
    pub(crate) fn send_text_unmasked(&mut self, text: &str) {
        let mut frame = Vec::new();
        encode(Opcode::Text, text.as_bytes(), &mut frame);
        self.send(&frame);
    }

    /// Reads more bytes; returns false at the end of the stream.
    fn read_more(&mut self) -> bool {
        let mut buffer = [0; 16 << 10];
        match self.stream.read(&mut buffer) {
            Ok(0) => false,
            Ok(n) => {
                self.ahead.extend_from_slice(&buffer[..n]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("{error}; so far {:?}", String::from_utf8_lossy(&self.ahead)),
        }
    }

    pub(crate) fn exactly(&mut self, n: usize) -> Vec<u8> {
        while self.ahead.len() < n {
            assert!(
                self.read_more(),
                "the stream ended after {:?}",
                String::from_utf8_lossy(&self.ahead)
            );
        }
        self.ahead.drain(..n).collect()
    }

    /// Reads up to the empty line.
    pub(crate) fn head(&mut self) -> String {
        loop {
            if let Some(at) = self.ahead.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = self.ahead.drain(..at + 4).collect();
                return String::from_utf8(head).unwrap();
            }
            assert!(self.read_more(), "no head: {:?}", String::from_utf8_lossy(&self.ahead));
        }
    }

    /// Reads a head and the body of its Content-Length.
    pub(crate) fn answer(&mut self) -> (String, String) {
        let head = self.head();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .map_or(0, |length| length.parse().unwrap());
        let body = self.exactly(length);
        (head, String::from_utf8(body).unwrap())
    }

    /// Reads until the stream ends.
    pub(crate) fn rest(&mut self) -> Vec<u8> {
        while self.read_more() {}
        std::mem::take(&mut self.ahead)
    }

    /// Reads the next frame, masked or not, and returns its opcode and payload.
    pub(crate) fn frame(&mut self) -> (u8, Vec<u8>) {
        let head = self.exactly(2);
        let len = match head[1] & 0x7f {
            126 => u16::from_be_bytes(self.exactly(2).try_into().unwrap()).into(),
            127 => u64::from_be_bytes(self.exactly(8).try_into().unwrap()),
            len => u64::from(len),
        };
        let key = if head[1] & 0x80 != 0 { self.exactly(4) } else { vec![0; 4] };
        let mut payload = self.exactly(len as usize);
        for (at, byte) in payload.iter_mut().enumerate() {
            *byte ^= key[at % 4];
        }
        (head[0] & 0x0f, payload)
    }

    pub(crate) fn text(&mut self) -> String {
        let (opcode, payload) = self.frame();
        assert_eq!(opcode, 1, "{payload:?}");
        String::from_utf8(payload).unwrap()
    }

    /// Reads a Close frame and returns its code.
    pub(crate) fn close_code(&mut self) -> u16 {
        let (opcode, payload) = self.frame();
        assert_eq!(opcode, 8, "{payload:?}");
        u16::from_be_bytes([payload[0], payload[1]])
    }

    /// Returns whether the stream has ended, with or without an error.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.ahead.is_empty() && !self.read_more()
    }
}

/// A backend that does what the test says with each connection.
pub(crate) struct Scripted {
    pub(crate) address: SocketAddr,
    listener: TcpListener,
}

impl Scripted {
    pub(crate) fn bind() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { address, listener }
    }

    pub(crate) fn accept(&self) -> Peer {
        poll("a connection to the backend", || self.try_accept())
    }

    /// Accepts a connection if one has arrived.
    pub(crate) fn try_accept(&self) -> Option<Peer> {
        let (stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(false).unwrap();
        Some(Peer::new(stream))
    }

    /// Accepts a handshake and agrees to it.
    pub(crate) fn open(&self) -> Peer {
        let mut peer = self.accept();
        let head = peer.head();
        assert!(head.contains("Upgrade: websocket"), "{head}");
        peer.send(&accepted());
        peer
    }
}

/// A log that records nothing.
#[derive(Debug)]
pub(crate) struct NoLog;

impl AccessLog for NoLog {
    fn detail(&self) -> AccessDetail {
        AccessDetail::Off
    }

    fn record(&self, _: &Access<'_>) {}
}

/// An address at which no process listens and that none can bind: this process keeps it bound until
/// it ends.
pub(crate) fn unused_address() -> SocketAddr {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    std::mem::forget(socket);
    address
}

#[cfg(target_os = "linux")]
pub(crate) type Sockets = throng_io::Epoll;
#[cfg(not(target_os = "linux"))]
pub(crate) type Sockets = throng_io::Portable;

/// A production shard over its driver and real sockets, turned by hand on the test's own thread.
pub(crate) struct ByHand {
    pub(crate) shard: Shard<Sockets>,
    pub(crate) address: SocketAddr,
    pub(crate) backends: Vec<Arc<Backend>>,
    pub(crate) reports: Receiver<BackendReport>,
    pub(crate) mailbox: Mailbox<BalanceCommand>,
}

impl ByHand {
    /// Starts the shard as the balancer does.
    pub(crate) fn new(backends: &[SocketAddr], settings: Settings) -> Self {
        let all: Vec<_> = backends.iter().map(|&address| (address, None)).collect();
        Self::with(&all, settings)
    }

    /// Starts a shard for these backends; connections that ask for a given server name are passed
    /// through to its backend.
    pub(crate) fn with(backends: &[(SocketAddr, Option<&str>)], settings: Settings) -> Self {
        let (listener, address) =
            listen("127.0.0.1:0".parse().unwrap(), ListenOptions::default()).unwrap();
        let options = Options {
            receive_buffer: 65 << 10,
            unsent_low_water: Some(128 << 10),
            ..Options::default()
        };
        let mut driver = Sockets::new(options).unwrap();
        driver.add_listener(listener).unwrap();
        let (mailbox, commands) = mailbox(16, driver.waker());
        let (sender, reports) = channel();
        let target = |&(address, name): &(SocketAddr, Option<&str>)| Target {
            backend: Arc::new(Backend::new(address, 1)),
            send_proxy: false,
            tls: None,
            passthrough: name.map(Box::from).into_iter().collect(),
            name: None,
        };
        let targets: Vec<_> = backends.iter().map(target).collect();
        let backends = targets.iter().map(|target| Arc::clone(&target.backend)).collect();
        let start = BalanceStart {
            configuration: Arc::new(Configuration::new(settings, targets)),
            commands,
            reports: sender,
            published: Arc::default(),
            shard: 0,
            shards: 1,
            descriptors_for: 10_000,
            admission: Arc::default(),
            tls: Vec::new(),
            listeners: Listeners::default(),
            seed: 1,
            access: None,
            date: LiveDate::default(),
        };
        let shard = Shard::new(driver, start);
        Self { shard, address, backends, reports, mailbox }
    }

    /// Turns the shard until `is_done`, which is called after each turn.
    pub(crate) fn turn_until(&mut self, what: &str, mut is_done: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !is_done(self) {
            assert!(begun.elapsed() < TIMEOUT, "waited too long: {what}; {:?}", self.shard.audit());
            // A sweep is due within a quarter of a second while there is a client, so no turn waits
            // long.
            self.shard.turn().unwrap();
        }
    }
}
