//! The question: which program, for how many connections, with which settings.

use std::net::SocketAddr;
use std::time::Duration;

use throng_io::tables::DescriptorTables;

/// The program that the machine is meant for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// `throng serve`, or a program that uses the library.
    #[default]
    Serve,
    /// `throng balance`.
    Balance,
    /// `throng bench`.
    Bench,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 3] = [Self::Serve, Self::Balance, Self::Bench];

    /// Returns its word: `serve`, `balance` or `bench`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Balance => "balance",
            Self::Bench => "bench",
        }
    }

    /// Returns the sockets of a connection: a balancer has one to the client and one to the
    /// backend.
    #[must_use]
    pub fn sockets(self) -> u64 {
        if self == Self::Balance { 2 } else { 1 }
    }
}

/// Input and output of event loops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// epoll.
    #[default]
    Epoll,
    /// poll(2) or the like, by mio.
    Portable,
    /// A thread for each connection.
    Threads,
}

/// The settings of the program, as far as rules need them. The defaults are the programs' own.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `max_connections`; `None` for as many as the descriptors allow.
    pub max_connections: Option<u64>,
    /// `shards`; `None` for one per usable CPU.
    pub shards: Option<u64>,
    /// `io`.
    pub io: Io,
    /// `descriptors`.
    pub tables: DescriptorTables,
    /// Listening sockets are passed on by a service manager.
    pub inherited: bool,
    /// The addresses of `listen`; empty if they are not known.
    pub listen: Vec<SocketAddr>,
    /// Number of values of `listen`.
    pub listeners: u64,
    /// Files of `dir` that may be open at a time.
    pub files: u64,
    /// Connections have TLS.
    pub tls: bool,
    /// `backlog`.
    pub backlog: u64,
    /// `max_backlog`, in bytes.
    pub max_backlog: u64,
    /// `max_message_size`, in bytes.
    pub max_message_size: u64,
    /// `max_memory`, in bytes; `None` for a quarter of the memory, `u64::MAX` for no limit.
    pub max_memory: Option<u64>,
    /// `heartbeat.interval`; `None` for no pings.
    pub heartbeat: Option<Duration>,
    /// The longest time of a shutdown with these settings.
    pub shutdown: Duration,
    /// `allowed_origins` allows every web page.
    pub any_origin: bool,
    /// Metrics are served at `listen`.
    pub public_metrics: bool,
    /// `admin.listen`.
    pub admin: Option<SocketAddr>,
    /// The bits of compression windows, where messages are compressed with context.
    pub deflate_bits: Option<u32>,
    /// Event loops are bound to CPUs (`pin`).
    pub pinned: bool,
    /// Number of backends of a balancer.
    pub backends: u64,
    /// Source addresses for connections to others; `None`: as many as the program takes.
    pub sources: Option<u64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_connections: None,
            shards: None,
            io: Io::Epoll,
            tables: DescriptorTables::Auto,
            inherited: false,
            listen: Vec::new(),
            listeners: 1,
            files: 0,
            tls: false,
            backlog: 4096,
            max_backlog: 1 << 20,
            max_message_size: 4 << 20,
            max_memory: None,
            heartbeat: Some(Duration::from_secs(25)),
            shutdown: Duration::from_secs(15),
            any_origin: false,
            public_metrics: false,
            admin: None,
            deflate_bits: None,
            pinned: false,
            backends: 1,
            sources: None,
        }
    }
}

impl Settings {
    /// Returns whether clients of other machines can connect; true if the addresses are not known.
    #[must_use]
    pub fn is_public(&self) -> bool {
        let is_loopback = |address: &SocketAddr| address.ip().to_canonical().is_loopback();
        self.listen.is_empty() || !self.listen.iter().all(is_loopback)
    }
}

/// The question to the rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// The program.
    pub role: Role,
    /// The number of connections that is wanted; `None` for as many as possible.
    pub connections: Option<u64>,
    /// Its settings.
    pub settings: Settings,
}

impl Question {
    /// Creates the question for as many connections as possible, with default settings.
    #[must_use]
    pub fn new(role: Role) -> Self {
        Self { role, ..Self::default() }
    }

    /// Sets the number of connections that is wanted.
    #[must_use]
    pub fn connections(mut self, wanted: u64) -> Self {
        self.connections = Some(wanted);
        self
    }

    /// Returns the `max_connections` that the program is started with: the setting, or else the
    /// number that is wanted.
    #[must_use]
    pub fn max_connections(&self) -> Option<u64> {
        self.settings.max_connections.or(self.connections)
    }
}
