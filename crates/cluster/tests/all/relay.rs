//! A network between nodes and their server, with faults.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use throng_testkit::{Redis, hold_up};

/// Maximum chunks in flight in one direction of a connection. Beyond them, the relay stops reading.
const ON_THE_WAY: usize = 64;

/// The time between two chunks while the bandwidth is limited.
const PIECE: Duration = Duration::from_millis(10);

/// Carries connections to a server.
pub(crate) struct Relay {
    address: SocketAddr,
    faults: Arc<Faults>,
}

/// Faults of connections. Each number is a count: the fault affects the connections opened up to
/// that number.
#[derive(Default)]
pub(crate) struct Faults {
    opened: AtomicU64,
    /// The relay drops messages for subscribers on these connections.
    silent: AtomicU64,
    /// The relay drops bytes of these connections to the server, or from it.
    to_server_vanishes: AtomicU64,
    from_server_vanishes: AtomicU64,
    /// Time that each byte takes, in milliseconds.
    pub(crate) latency: AtomicU64,
    /// Maximum bytes per second, in each direction of each connection; 0: unlimited.
    pub(crate) bandwidth: AtomicU64,
    /// The delay before the end of a stream is forwarded, in milliseconds.
    pub(crate) slow_close: AtomicU64,
}

impl Relay {
    pub(crate) fn start(redis: &Redis) -> Self {
        let server: SocketAddr = ([127, 0, 0, 1], redis.port()).into();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let faults = Arc::<Faults>::default();
        let of = Arc::clone(&faults);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let number = of.opened.fetch_add(1, Ordering::SeqCst);
                let subscribes = Arc::<AtomicBool>::default();
                let (faults, noted) = (Arc::clone(&of), Arc::clone(&subscribes));
                carry(&client, &server, &of, move |bytes| {
                    let is_it = bytes.windows(9).any(|part| part == b"SUBSCRIBE");
                    noted.fetch_or(is_it, Ordering::SeqCst);
                    number >= faults.to_server_vanishes.load(Ordering::SeqCst)
                });
                let faults = Arc::clone(&of);
                carry(&server, &client, &of, move |_| {
                    let is_silent = number < faults.silent.load(Ordering::SeqCst);
                    number >= faults.from_server_vanishes.load(Ordering::SeqCst)
                        && !(is_silent && subscribes.load(Ordering::SeqCst))
                });
            }
        });
        Self { address, faults }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }
}

impl Faults {
    /// From now on, drops messages for the current subscriptions.
    pub(crate) fn silence(&self) {
        self.silent.store(self.opened.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// From now on, drops bytes of the current connections to the server, or from it. The
    /// connections stay open.
    pub(crate) fn vanish(&self, is_to_server: bool) {
        let first =
            if is_to_server { &self.to_server_vanishes } else { &self.from_server_vanishes };
        first.store(self.opened.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// Forwards the bytes of one direction, with the current faults.
fn carry(
    from: &TcpStream,
    to: &TcpStream,
    faults: &Arc<Faults>,
    passes: impl Fn(&[u8]) -> bool + Send + 'static,
) {
    let (mut from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    let (sender, receiver) = sync_channel(ON_THE_WAY);
    let of = Arc::clone(faults);
    std::thread::spawn(move || read(&mut from, &sender, &of, passes));
    let faults = Arc::clone(faults);
    std::thread::spawn(move || write(to, &receiver, &faults));
}

fn read(
    from: &mut TcpStream,
    sender: &SyncSender<(Instant, Vec<u8>)>,
    faults: &Faults,
    passes: impl Fn(&[u8]) -> bool,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        let latency = Duration::from_millis(faults.latency.load(Ordering::SeqCst));
        let bytes = buffer[..count].to_vec();
        if passes(&bytes) && sender.send((Instant::now() + latency, bytes)).is_err() {
            break;
        }
    }
}

fn write(mut to: TcpStream, receiver: &Receiver<(Instant, Vec<u8>)>, faults: &Faults) {
    'all: while let Ok((due, bytes)) = receiver.recv() {
        hold_up(due.saturating_duration_since(Instant::now()));
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let bandwidth = faults.bandwidth.load(Ordering::SeqCst) as usize;
            let most = if bandwidth > 0 { (bandwidth / 100).max(1) } else { rest.len() };
            let (piece, later) = rest.split_at(most.min(rest.len()));
            if to.write_all(piece).is_err() {
                break 'all;
            }
            rest = later;
            if bandwidth > 0 {
                hold_up(PIECE);
            }
        }
    }
    hold_up(Duration::from_millis(faults.slow_close.load(Ordering::SeqCst)));
    let _ = to.shutdown(Shutdown::Both);
}
