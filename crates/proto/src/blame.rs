//! The party that must act on an error.

/// The party that has to act on an error of a server or of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Blame {
    /// The program or its user: a setting, a route or an address has to change.
    Configuration,
    /// The party at the other end of a client's connection: the server, or a proxy before it.
    Peer,
    /// The network between, or a server that is not there.
    Network,
    /// The operating system: it refused a resource, or a call failed.
    System,
    /// Throng: please report it.
    Bug,
}
