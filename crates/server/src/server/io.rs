//! Which way a server speaks to the kernel.

/// Which way the kernel is spoken to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Io {
    /// The best this system has: epoll on Linux, else the portable driver.
    #[default]
    Auto,
    /// Level-triggered epoll. Linux only.
    Epoll,
    /// mio: kqueue on the BSDs and macOS, epoll on Linux.
    Portable,
    /// One thread for each connection, and one that accepts. Unix only.
    ///
    /// Handlers of different connections run in parallel, and may block: they hold up their own connection and
    /// nobody else. Simplest to reason about, and right for a few thousand connections: each takes two
    /// descriptors and 27 KiB of memory, besides 16 KiB of the kernel's for its thread, where an event loop takes a hundred
    /// bytes, 300 KB more once a message was compressed for it, and a publication wakes a thread for each receiver. All else is
    /// the same. [`Server::shards`](crate::Server::shards) has no meaning; see
    /// [`Server::thread_stack`](crate::Server::thread_stack).
    Threads,
}

/// The error says what can be written; whoever read the name knows which setting it was for.
impl std::str::FromStr for Io {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Self::Auto),
            "epoll" => Ok(Self::Epoll),
            "portable" => Ok(Self::Portable),
            "threads" => Ok(Self::Threads),
            _ => Err("write auto, epoll, portable or threads".to_owned()),
        }
    }
}
