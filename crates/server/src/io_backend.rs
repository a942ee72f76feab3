//! The I/O backend of a server.

use throng_engine::UnknownName;

/// The minimum number of connections of a server: it is an error if descriptors or threads allow
/// fewer.
pub(crate) const FEWEST_CONNECTIONS: usize = 16;

/// The I/O backend: how a server waits for and moves bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoBackend {
    /// The best of this system: epoll on Linux, a completion port on Windows, otherwise the
    /// portable driver. The default.
    #[default]
    Auto,
    /// Level-triggered epoll. Linux only.
    Epoll,
    /// A completion port. Windows only.
    Iocp,
    /// The mio crate: kqueue on the BSDs and macOS, epoll on Linux.
    Portable,
    /// One thread per connection, and one thread that accepts.
    ///
    /// Handlers of different connections run in parallel and may block: a blocked handler delays
    /// only its own connection. This is the simplest model to reason about, and suits up to a few
    /// thousand connections. Each connection takes two descriptors and 27 KiB of memory, besides 16
    /// KiB of kernel memory for its thread, where an event loop takes about a hundred bytes. A
    /// connection takes 300 KB more after the first message that was compressed for it, and a
    /// publish wakes one thread per receiver. Everything else works as with event loops.
    /// [`Shards::count`](crate::server::Shards::count) has no effect; the size of the stacks is
    /// [`Shards::thread_stack`](crate::server::Shards::thread_stack).
    Threads,
}

/// The error lists the accepted values; the caller adds the name of the setting.
impl std::str::FromStr for IoBackend {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "auto" => Ok(Self::Auto),
            "epoll" => Ok(Self::Epoll),
            "iocp" => Ok(Self::Iocp),
            "portable" => Ok(Self::Portable),
            "threads" => Ok(Self::Threads),
            _ => Err(UnknownName::new(&["auto", "epoll", "iocp", "portable", "threads"])),
        }
    }
}
