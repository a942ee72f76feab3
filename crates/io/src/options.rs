//! Options of a driver.

use std::time::Duration;

use crate::id::ConnId;

/// Maximum listeners of one driver.
pub(crate) const MAX_LISTENERS: usize = 1024;
/// Maximum connections; the slots above belong to the waker and the listeners.
pub(crate) const MAX_CONNECTIONS: usize = ConnId::MAX_SLOTS - MAX_LISTENERS - 1;

/// Options of one [`ReadinessDriver`](crate::ReadinessDriver). The defaults suit a server shard.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of the shard in every [`ConnId`]; below [`ConnId::MAX_SHARDS`]. Default 0.
    pub shard: u16,
    /// Generation of the first connection in each slot, at most [`ConnId::MAX_GENERATION`]: for a
    /// driver that reuses the shard number of an earlier one. Default 0.
    pub first_generation: u32,
    /// Size in bytes of the one buffer that is lent for every receive. Default 512 KiB; the kernel
    /// backs only the pages that were ever filled. A larger buffer means fewer system calls for
    /// large messages; a smaller one stays in the L2 cache.
    pub receive_buffer: usize,
    /// Maximum events fetched by one wait. Default 1024 (12 KiB).
    pub max_events: usize,
    /// Maximum connections accepted in one turn, over all listeners. Default 256: a burst of new
    /// connections does not hold up the existing ones.
    pub accepts_per_turn: usize,
    /// Maximum simultaneous connections; adopting and connecting fail beyond it. Default 2^20.
    /// Address space of 16 bytes each is reserved up front, and backed by memory only when used, so
    /// that growth never copies the table.
    pub max_connections: usize,
    /// TCP keep-alive: idle time before the first probe. Default `None`: off, because WebSocket
    /// pings also detect a hung application.
    pub keepalive: Option<Duration>,
    /// `TCP_USER_TIMEOUT` (Linux): time that sent bytes may stay unacknowledged before the kernel
    /// gives the connection up. Default `None`: the kernel's own, about 15 minutes.
    pub user_timeout: Option<Duration>,
    /// `SO_SNDBUF` in bytes. Default `None`: the kernel sizes it. For a Unix socket it is then
    /// `net.core.wmem_default`, and the buffer holds output until the peer has read it.
    pub socket_send_buffer: Option<usize>,
    /// `TCP_NOTSENT_LOWAT` (Linux) in bytes: the kernel accepts no more output while this much is
    /// unsent, and reports room when less is. Default `None`: up to the send buffer, which may be
    /// megabytes, and only each third of it counts as progress.
    pub unsent_low_water: Option<u32>,
    /// `SO_RCVBUF` in bytes. Default `None`: the kernel sizes it. It has no effect on a Unix
    /// socket, whose input is in its peer's send buffer.
    pub socket_receive_buffer: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shard: 0,
            first_generation: 0,
            receive_buffer: 512 * 1024,
            max_events: 1024,
            accepts_per_turn: 256,
            max_connections: 1 << 20,
            keepalive: None,
            user_timeout: None,
            socket_send_buffer: None,
            unsent_low_water: None,
            socket_receive_buffer: None,
        }
    }
}

impl Options {
    /// Clamps every number to its valid range.
    pub(crate) fn clamped(mut self) -> Self {
        self.receive_buffer = self.receive_buffer.max(1);
        self.max_events = self.max_events.clamp(1, 1 << 16);
        self.accepts_per_turn = self.accepts_per_turn.max(1);
        self.max_connections = self.max_connections.clamp(1, MAX_CONNECTIONS);
        self.first_generation &= ConnId::MAX_GENERATION;
        debug_assert!(usize::from(self.shard) < ConnId::MAX_SHARDS);
        self
    }
}
