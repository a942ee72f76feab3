//! What can be chosen about a driver.

use std::time::Duration;

use crate::ConnId;

/// Settings of one [`ReadinessDriver`](crate::ReadinessDriver). The defaults suit a server shard.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of the shard in every [`ConnId`]; below [`ConnId::MAX_SHARDS`]. Default 0.
    pub shard: u16,
    /// Generation of the first connection in each slot, below [`ConnId::MAX_GENERATION`]: for a driver that follows
    /// another under the same number. Default 0.
    pub first_generation: u32,
    /// Bytes of the one buffer that is lent for every receive. Default 512 KiB; the kernel backs only the pages
    /// that were ever filled. Larger means fewer system calls for large messages; smaller stays in the L2 cache.
    pub receive_buffer: usize,
    /// Events fetched by one wait. Default 1024 (12 KiB).
    pub max_events: usize,
    /// Connections accepted in one turn, over all listeners. Default 256: a burst of dials does not starve the
    /// connections that are already there.
    pub accepts_per_turn: usize,
    /// Most connections at a time; adopting and connecting fail beyond it. Default 2^20. Address space of 16 bytes
    /// each is reserved up front, and backed by memory only when used, so that growth never copies the table.
    pub max_connections: usize,
    /// TCP keep-alive: idle time before the first probe. Default `None`: off, since WebSocket pings do better.
    pub keepalive: Option<Duration>,
    /// `TCP_USER_TIMEOUT` (Linux): how long sent bytes may stay unacknowledged before the kernel gives the
    /// connection up. Default `None`: the kernel's own, about 15 minutes.
    pub user_timeout: Option<Duration>,
    /// `SO_SNDBUF` in bytes. Default `None`: the kernel sizes it by itself.
    pub socket_send_buffer: Option<usize>,
    /// `TCP_NOTSENT_LOWAT` (Linux) in bytes: the kernel takes no more while so much has not left yet, and says that there is
    /// room when there is less. Default `None`: up to the send buffer, which may be megabytes, and only a third of it at a time
    /// counts as progress.
    pub unsent_low_water: Option<u32>,
    /// `SO_RCVBUF` in bytes. Default `None`: the kernel sizes it by itself.
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
    /// The same, with every number in the range that works.
    pub(crate) fn clamped(mut self) -> Self {
        self.receive_buffer = self.receive_buffer.max(1);
        self.max_events = self.max_events.clamp(1, 1 << 16);
        self.accepts_per_turn = self.accepts_per_turn.max(1);
        self.max_connections = self.max_connections.clamp(1, crate::readiness::MOST_CONNECTIONS);
        self.first_generation &= ConnId::MAX_GENERATION;
        debug_assert!(usize::from(self.shard) < ConnId::MAX_SHARDS);
        self
    }
}
