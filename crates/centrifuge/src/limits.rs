//! Limits of sessions.

use std::time::Duration;

/// Limits of each session.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum channels of a connection; default: 128. Another one is refused with 106.
    pub max_channels: usize,
    /// Maximum bytes of a channel's name; default: 255. A longer one is refused with 107.
    pub max_channel_name: usize,
    /// Maximum bytes of a frame, with all its commands; default: 64 KiB.
    pub max_frame: usize,
    /// Time until the connect; default: 15 s. Later the connection is closed with 3502.
    pub connect_timeout: Duration,
    /// Time between pings; default: 25 s. The first comes after half of it to all of it, so that
    /// clients that come together do not get their pings together.
    pub ping_interval: Duration,
    /// Time for the answer to a ping; default: 8 s. Later the connection is closed with 3012.
    pub pong_timeout: Duration,
    /// Time after a token has expired in which another one may come; default: 25 s. Later the
    /// connection is closed with 3005, or the subscription ends with 2501.
    pub refresh_timeout: Duration,
    /// Maximum publications with which a subscription recovers, and of a history; default: 300. A
    /// client that has missed more does not recover.
    pub max_publications: usize,
    /// Maximum bytes of the payloads of those publications; default: 512 KiB.
    pub max_publication_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_channels: 128,
            max_channel_name: 255,
            max_frame: 64 << 10,
            connect_timeout: Duration::from_secs(15),
            ping_interval: Duration::from_secs(25),
            pong_timeout: Duration::from_secs(8),
            refresh_timeout: Duration::from_secs(25),
            max_publications: 300,
            max_publication_bytes: 512 << 10,
        }
    }
}
