//! Options of a server's sockets.

/// Options of the sockets that a server listens on, and of its connections: for
/// [`Server::sockets`](crate::Server::sockets).
///
/// ```
/// # use throng::prelude::*;
/// use throng::server::SocketOptions;
///
/// let server = Server::new(App::new()).sockets(SocketOptions::new().reuse_port(true));
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SocketOptions {
    pub(super) backlog: i32,
    pub(super) reuse_port: bool,
    pub(super) send_buffer: Option<usize>,
    pub(super) unsent_limit: Option<usize>,
}

impl SocketOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self { backlog: 4096, reuse_port: false, send_buffer: None, unsent_limit: None }
    }

    /// Sets the listen backlog: how many connections the kernel queues until they are accepted.
    /// Default: 4,096; Linux caps it at `net.core.somaxconn`.
    pub fn backlog(mut self, connections: i32) -> Self {
        self.backlog = connections;
        self
    }

    /// Sets whether other processes with the same setting may listen on the port as well
    /// (`SO_REUSEPORT`, Linux). The kernel spreads connections over them, so that several processes
    /// can keep more connections open than the descriptor limit of one allows. Processes do not
    /// share channels. Default: false, where a port in use is an error. A server of several shards
    /// shares the port among them by the same option: another process of the same user that sets
    /// this can join it later.
    pub fn reuse_port(mut self, reuse: bool) -> Self {
        self.reuse_port = reuse;
        self
    }

    /// Sets how many bytes of unsent output the kernel may buffer for a connection
    /// (`TCP_NOTSENT_LOWAT`, Linux). [`Backpressure`](crate::channel::Backpressure) cannot replace
    /// these bytes: a stalled client gets them first, even if they are old. Default: 128 KiB; 16
    /// KiB where a channel, a route or the server has rules that drop old messages
    /// ([`Latest`](crate::channel::SlowPolicy::Latest),
    /// [`DropOldest`](crate::channel::SlowPolicy::DropOldest),
    /// [`Backpressure::max_age`](crate::channel::Backpressure::max_age)), so that a stalled client
    /// gets at most about 64 KiB of old messages besides those in its own receive buffer. On other
    /// systems such rules make [`send_buffer`](Self::send_buffer) 64 KiB. At least 1: the kernel
    /// takes 0 for no limit.
    pub fn unsent_limit(mut self, bytes: usize) -> Self {
        self.unsent_limit = Some(bytes);
        self
    }

    /// Sets the size of the kernel's send buffer of each connection in bytes (`SO_SNDBUF`; Linux
    /// doubles it). It bounds unacknowledged output, and with it the throughput over long
    /// distances: bytes per round trip. Default: the kernel sizes it, up to `net.ipv4.tcp_wmem`.
    /// The buffer of a Unix socket, by default `net.core.wmem_default`, contains the bytes that its
    /// peer has not read.
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = Some(bytes);
        self
    }
}

impl Default for SocketOptions {
    fn default() -> Self {
        Self::new()
    }
}
