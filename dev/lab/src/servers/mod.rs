//! The servers that are measured here, each a process of its own.

pub(crate) mod blocking;
pub(crate) mod children;
pub(crate) mod handler;
pub(crate) mod message;
pub(crate) mod netbench;
pub(crate) mod own;
pub(crate) mod probe;
pub(crate) mod wire;

/// A running server process, ended when dropped.
pub(crate) trait Server {
    /// Where it listens, as `127.0.0.1:9001`.
    fn address(&self) -> &str;
    /// Its process.
    fn pid(&self) -> u32;
}
