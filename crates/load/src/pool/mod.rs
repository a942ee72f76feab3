//! The connections of one thread, for any protocol: their start, their set-up and its failures, and
//! the lanes in which threads publish their progress.

pub mod dial;
mod lanes;
mod start;

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_io::{Closed, Instant, TlsFailure};

use self::dial::Dialler;
pub use self::lanes::{Lane, PoolShared, Timeline};
pub(crate) use self::start::tables_of;
pub use self::start::{MAX_EVENTS, ThreadStart, open_driver};
use crate::clock::Clock;
use crate::error::Error;
use crate::errors::Errors;
use crate::merge::tally;
use crate::negotiated::Negotiated;
use crate::record::Record;
use crate::sources::Sources;
use crate::tls::TlsClient;

/// State that a protocol keeps beside its connections.
pub trait Protocol {
    /// One connection.
    type Conn;
}

/// The connections of one thread, and their shared state.
#[derive(Debug)]
pub struct ConnPool<P: Protocol> {
    pub clock: Clock,
    pub shared: Arc<PoolShared>,
    pub thread: usize,
    /// When the work has begun on this thread.
    pub started: Option<Timeline>,
    pub errors: Errors,
    pub(crate) setup: Setup,
    pub(crate) peer: SocketAddr,
    /// The TLS client configuration of the connections.
    tls: Option<Arc<TlsClient>>,
    sources: Sources,
    /// The number of this thread's first connection in the sequence of all threads' connections.
    pub(crate) first: usize,
    /// The connections of all threads.
    wanted: usize,
    pub(crate) conns: Vec<P::Conn>,
    pub(crate) dialler: Dialler,
    done: u64,
    /// Why a TCP connection failed, once this is known.
    refusal: Option<(io::ErrorKind, String)>,
    pub(crate) protocol: P,
}

tally! {
    /// Measurements that every mode makes on one thread.
    pub struct Setup {
        pub errors: Errors,
        /// From the connect call to the TCP connection.
        pub tcp: Record,
        /// From the TCP connection to the end of the TLS handshake; empty without TLS.
        pub tls: Record,
        /// The negotiated TLS.
        pub negotiated: Negotiated,
        /// From the end of the previous step to the accepted upgrade.
        pub upgrade: Record,
        /// Connections whose server chose a subprotocol.
        pub subprotocols: u64,
        pub traffic: Traffic,
    }
}

tally! {
    /// Messages of the whole run, and their compression on the wire.
    #[derive(Clone, Copy)]
    pub struct Traffic {
        /// Connections that negotiated permessage-deflate.
        pub agreed: u64,
        pub messages_out: u64,
        pub messages_in: u64,
        /// Payload bytes of the compressed messages, before and after compression.
        pub deflate_input_bytes: u64,
        pub deflate_output_bytes: u64,
        pub inflate_input_bytes: u64,
        pub inflate_output_bytes: u64,
    }
}

impl<P: Protocol> ConnPool<P> {
    /// Creates the connections of a thread; it begins by dialling the first `dialled_first`.
    pub(crate) fn new(
        start: &ThreadStart,
        dialled_first: usize,
        conn: impl Fn() -> P::Conn,
        protocol: P,
    ) -> Self {
        Self {
            clock: start.clock,
            shared: Arc::clone(&start.shared),
            thread: start.thread,
            started: None,
            errors: Errors::default(),
            setup: Setup::default(),
            peer: start.peer,
            tls: start.tls.clone(),
            sources: start.sources,
            first: start.first,
            wanted: start.wanted,
            conns: (0..start.connections).map(|_| conn()).collect(),
            dialler: Dialler::new(dialled_first, start.window, start.ramp, start.clock.now()),
            done: 0,
            refusal: None,
            protocol,
        }
    }

    /// Returns the connections of this thread, open or not.
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    #[inline]
    pub fn lane(&self) -> &Lane {
        self.shared.lane(self.thread)
    }

    /// Counts an answer, a connection or a delivery.
    #[inline]
    pub fn count_done(&mut self) {
        self.done += 1;
        self.lane().done.store(self.done, Ordering::Relaxed);
    }

    pub(crate) fn set_ready(&self, change: i64) {
        self.lane().ready.fetch_add(change as u64, Ordering::Relaxed);
    }

    /// Records the times of a connection's first steps. `tcp` is the time at which a TLS handshake
    /// began.
    pub(crate) fn add_steps(&mut self, dialled: Instant, tcp: Option<Instant>, connected: Instant) {
        self.setup.tcp.add(tcp.unwrap_or(connected).since(dialled).as_nanos() as u64);
        if let Some(tcp) = tcp {
            self.setup.tls.add(connected.since(tcp).as_nanos() as u64);
        }
    }

    /// Returns the local address of a connection, by its turn on this thread.
    pub(crate) fn local(&self, turn: usize) -> Option<SocketAddr> {
        self.sources.local(self.first + turn)
    }

    fn ready(&self) -> usize {
        self.shared.sum(|lane| &lane.ready) as usize
    }

    /// Returns the error of a connection that was lost before all were ready.
    pub(crate) fn lost(&self, reason: String) -> Error {
        Error::Lost { ready: self.ready(), wanted: self.wanted, reason }
    }

    /// Returns the error of a failed connection, with this reason.
    pub(crate) fn no_connection(&self, reason: io::Error) -> Error {
        Error::Connect { peer: self.peer, reason, ready: self.ready() }
    }

    /// Finds out why a connection failed. The driver reports little more than the failure, so this
    /// makes one more connection to get the reason. It does so only once, because the thread blocks
    /// for it.
    #[cold]
    pub(crate) fn explain_refusal(&mut self, why: Closed) -> Error {
        if let Some((kind, text)) = &self.refusal {
            return self.no_connection(io::Error::new(*kind, text.clone()));
        }
        let reason = match why {
            // The server may have refused our certificate, and may report this after the handshake.
            Closed::Insecure(why @ TlsFailure::Alert(_)) => io::Error::other(why.to_string()),
            _ => self.refusal_now(),
        };
        self.refusal = Some((reason.kind(), reason.to_string()));
        self.no_connection(reason)
    }

    fn refusal_now(&self) -> io::Error {
        let timeout = Duration::from_secs(2);
        let secured = |socket: TcpStream| {
            let Some(tls) = &self.tls else { return Ok(()) };
            socket.set_read_timeout(Some(timeout))?;
            socket.set_write_timeout(Some(timeout))?;
            tls.handshake_on(socket).map(drop)
        };
        match TcpStream::connect_timeout(&self.peer, timeout).and_then(secured) {
            Err(reason) => reason,
            Ok(()) => io::ErrorKind::ConnectionReset.into(),
        }
    }

    /// Returns the measurements of the set-up, with the errors.
    pub(crate) fn into_setup(self) -> Setup {
        Setup { errors: self.errors, ..self.setup }
    }
}
