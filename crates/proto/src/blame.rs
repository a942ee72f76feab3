//! The party that must act on an error.

/// The party that must act on an error of a server or client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Blame {
    /// The program or its user: a setting, a route or an address must change.
    Configuration,
    /// The other end of a client's connection: the server, or a proxy before it.
    Peer,
    /// The network in between, or an unreachable server.
    Network,
    /// The operating system: it refused a resource, or a call failed.
    System,
    /// Throng: please report it.
    Bug,
}
