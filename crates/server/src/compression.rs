//! Compression of messages: permessage-deflate (RFC 7692).

use throng_proto::ws::deflate::{Mode, Settings};

/// Compression of a route's messages, for clients that offer permessage-deflate (RFC 7692).
///
/// Compressor and decompressor belong to the shard: one per connection would take about 300 KB each
/// with zlib. This type has only the modes; [`Deflate`](crate::ws::Deflate), into which it
/// converts, has all settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// No compression. The default.
    #[default]
    Off,
    /// Compresses each message by itself. It costs two bytes per connection, and suits messages of
    /// a kilobyte and more.
    Shared,
    /// Compresses each message with the 2^`bits` bytes sent before it as context. It costs up to
    /// that much memory per connection for each direction in use, and suits short messages that
    /// resemble each other.
    Window {
        /// The size of the window in bits, 9 to 15; 10 is 1 KiB.
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
        Self::new(mode)
    }
}
