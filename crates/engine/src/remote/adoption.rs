//! Connections that a program gives to a server, instead of the server accepting them.

use std::net::TcpStream;

/// A connection that was accepted elsewhere, with the input that was read there.
#[derive(Debug)]
pub struct Adoption {
    /// The socket, which may also be a Unix socket.
    pub stream: TcpStream,
    /// Bytes that were received and not used, from the head of a request on.
    pub received: Vec<u8>,
    /// The first request is an upgrade, and its client has got the response.
    pub is_answered: bool,
}

/// The part of an [`Adoption`] that a shard is given beside its socket.
#[derive(Debug)]
pub(crate) struct Early {
    pub(crate) received: Vec<u8>,
    pub(crate) is_answered: bool,
}
