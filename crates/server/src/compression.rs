//! Which messages are compressed, and how: permessage-deflate (RFC 7692).

use throng_proto::ws::deflate::{Mode, Settings};

/// How the messages of an endpoint are compressed, with clients that offer permessage-deflate (RFC 7692).
///
/// Compressor and decompressor belong to the shard, not to a connection: zlib would take about 300 KB for each. For
/// more than the mode there is [`Deflate`](crate::Deflate), which this becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all. The default.
    #[default]
    Off,
    /// Each message by itself. Costs a connection two bytes. Good for messages of a kilobyte and more.
    Shared,
    /// Each message with the last 2^`bits` bytes that were sent before it as context. Costs a connection up to that
    /// much memory for each direction in use. Good for short messages that resemble each other.
    Window {
        /// 9 to 15; 10 is 1 KiB.
        bits: u8,
    },
}

impl From<Compression> for Settings {
    fn from(compression: Compression) -> Self {
        let mode = match compression {
            Compression::Off => return Self::default(),
            Compression::Shared => Mode::Shared,
            Compression::Window { bits } => Mode::Window { bits },
        };
        Self { enabled: true, mode, ..Self::default() }
    }
}
