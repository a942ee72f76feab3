//! Listening sockets that outlive their process: a successor takes the same ones, so that no
//! connect is refused and no connection that waits for an accept is reset.
//!
//! * Duty: keep a second descriptor of each listening socket, and find the sockets of a
//!   predecessor again by what was asked for.
//! * Not its duty: the way to the successor ([`crate::handover`]), when to accept.
//! * Start reading at: [`HeldListeners`].

use std::io;
use std::net::{SocketAddr, TcpListener};
#[cfg(unix)]
use std::path::Path;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::inherited::{Inherited, inherited_listeners};
use crate::listen::{ListenOptions, listen_many};
use crate::listener::Listener;
#[cfg(unix)]
use crate::listener::UnixSocket;

/// The peers of a listening socket. A successor takes a socket for the same purpose only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Clients.
    Clients,
    /// Operators.
    Operators,
}

/// The reason why a listening socket was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This address was asked for; its port may be 0.
    Address(SocketAddr),
    /// A Unix socket with this path.
    Path(PathBuf),
    /// The service manager opened it, and passed it on with this number and name.
    Inherited {
        /// The number of the descriptor in the first process.
        descriptor: i32,
        /// Its name; empty if it has none.
        name: String,
    },
}

/// Listening sockets with one origin: several where event loops share a port.
#[derive(Debug)]
pub struct Held {
    /// Their peers.
    pub purpose: Purpose,
    /// The reason why they were opened.
    pub origin: Origin,
    /// The sockets.
    pub sockets: Vec<Listener>,
}

/// The listening sockets of a process, each with a second descriptor, and those that a predecessor
/// has passed on. Clones are the same list.
///
/// A held socket listens on although the driver that accepts from it has stopped: it must be
/// [released](Self::release) when the process stops accepting.
#[derive(Clone, Debug, Default)]
pub struct HeldListeners(Arc<Mutex<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    /// Sockets of the predecessor that are not in use yet.
    taken: Vec<Held>,
    held: Vec<Held>,
    is_successor: bool,
}

impl HeldListeners {
    /// Creates the list of a process that takes over these sockets.
    #[must_use]
    pub fn of_predecessor(taken: Vec<Held>) -> Self {
        let lists = Lists { taken, is_successor: true, ..Lists::default() };
        Self(Arc::new(Mutex::new(lists)))
    }

    /// Returns whether a predecessor has passed on sockets.
    #[must_use]
    pub fn is_successor(&self) -> bool {
        self.lists().is_successor
    }

    /// Returns the number of sockets of the predecessor that are not in use yet.
    #[must_use]
    pub fn unused(&self) -> usize {
        self.lists().taken.iter().map(|held| held.sockets.len()).sum()
    }

    /// Returns listeners at `address`, as [`listen_many`] does: the predecessor's if it had this
    /// address for the same purpose, else new ones. Their number is a multiple of `count`: each of
    /// the predecessor's sockets has at least one.
    ///
    /// # Errors
    /// As for [`listen_many`], or the process cannot open another descriptor.
    pub fn listen_many(
        &self,
        purpose: Purpose,
        address: SocketAddr,
        options: ListenOptions,
        count: usize,
    ) -> io::Result<(Vec<TcpListener>, SocketAddr)> {
        let mut lists = self.lists();
        let held = match lists.take(|held| held.purpose == purpose && held.is_at(address)) {
            Some(held) => held,
            None => {
                let (listeners, _) = listen_many(address, options, count)?;
                let sockets = listeners.into_iter().map(Listener::from).collect();
                Held { purpose, origin: Origin::Address(address), sockets }
            }
        };
        let tcp: Vec<_> = held.sockets.iter().filter_map(as_tcp).collect();
        let bound = tcp.first().ok_or(io::ErrorKind::InvalidInput)?.local_addr()?;
        let wanted = tcp.len().next_multiple_of(count.max(1));
        let clones = tcp.iter().cycle().take(wanted).map(|listener| {
            let clone = listener.try_clone()?;
            clone.set_nonblocking(true).map(|()| clone)
        });
        let listeners = clones.collect::<io::Result<_>>()?;
        lists.held.push(Held { origin: Origin::Address(address), ..held });
        Ok((listeners, bound))
    }

    /// Returns a Unix socket at `path`, as [`UnixSocket::bind`] does: the predecessor's, whose
    /// permissions stay, or a new one.
    ///
    /// # Errors
    /// As for [`UnixSocket::bind`].
    #[cfg(unix)]
    pub fn bind_unix(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<UnixSocket> {
        let path = std::path::absolute(path)?;
        let mut lists = self.lists();
        let origin = Origin::Path(path);
        let held = match lists.take(|held| held.origin == origin) {
            Some(held) => held,
            None => {
                let Origin::Path(path) = &origin else { return Err(io::ErrorKind::Other.into()) };
                let sockets = vec![UnixSocket::bind(path, mode)?.into()];
                Held { purpose: Purpose::Clients, origin, sockets }
            }
        };
        let Some(Listener::Unix(socket)) = held.sockets.first() else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let socket = socket.try_clone()?;
        lists.held.push(held);
        Ok(socket)
    }

    /// Returns the sockets of the service manager, which this process was started with, or which
    /// the predecessor has passed on.
    ///
    /// # Errors
    /// As for [`inherited_listeners`], or the process cannot open another descriptor.
    pub fn inherited(&self) -> io::Result<Vec<Inherited>> {
        let mut lists = self.lists();
        let all: Vec<_> = if lists.is_successor {
            let is_inherited = |held: &Held| matches!(held.origin, Origin::Inherited { .. });
            let (inherited, others) =
                std::mem::take(&mut lists.taken).into_iter().partition(is_inherited);
            lists.taken = others;
            inherited
        } else {
            let of = |Inherited { descriptor, name, listener }| Held {
                purpose: Purpose::Clients,
                origin: Origin::Inherited { descriptor, name },
                sockets: vec![listener],
            };
            inherited_listeners()?.into_iter().map(of).collect()
        };
        let mut found = Vec::new();
        for held in &all {
            let Origin::Inherited { descriptor, name } = &held.origin else { continue };
            for socket in &held.sockets {
                let (descriptor, name) = (*descriptor, name.clone());
                found.push(Inherited { descriptor, name, listener: socket.try_clone()? });
            }
        }
        lists.held.extend(all);
        Ok(found)
    }

    /// Returns descriptors of all held sockets, for a successor.
    ///
    /// # Errors
    /// There is no descriptor.
    pub fn for_successor(&self) -> io::Result<Vec<Held>> {
        let copy = |held: &Held| {
            let sockets =
                held.sockets.iter().map(Listener::try_clone).collect::<io::Result<_>>()?;
            Ok(Held { purpose: held.purpose, origin: held.origin.clone(), sockets })
        };
        self.lists().held.iter().map(copy).collect()
    }

    /// Closes the sockets of the predecessor that nothing has asked for.
    pub fn close_unused(&self) {
        self.lists().taken.clear();
    }

    /// Closes the second descriptors. The sockets listen until their drivers close them.
    pub fn release(&self) {
        let lists = std::mem::take(&mut *self.lists());
        drop(lists);
    }

    /// Does the same after a successor has taken the sockets, which removes the files of Unix
    /// sockets from then on.
    pub fn leave_to_successor(&self) {
        #[cfg(unix)]
        for socket in self.lists().held.iter().flat_map(|held| &held.sockets) {
            if let Listener::Unix(socket) = socket {
                socket.leave_file();
            }
        }
        self.release();
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lists {
    /// Takes the first sockets of the predecessor that are `wanted`.
    fn take(&mut self, wanted: impl FnMut(&Held) -> bool) -> Option<Held> {
        let at = self.taken.iter().position(wanted)?;
        Some(self.taken.remove(at))
    }
}

impl Held {
    /// Returns whether they were opened for `address`, or are at it.
    fn is_at(&self, address: SocketAddr) -> bool {
        let Origin::Address(asked) = self.origin else { return false };
        let is_there = |listener: &TcpListener| {
            listener.local_addr().is_ok_and(|own| own == address && address.port() != 0)
        };
        asked == address || self.sockets.iter().filter_map(as_tcp).any(is_there)
    }
}

fn as_tcp(listener: &Listener) -> Option<&TcpListener> {
    match listener {
        Listener::Tcp(listener) => Some(listener),
        #[cfg(unix)]
        Listener::Unix(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpStream;

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn listen(held: &HeldListeners, count: usize) -> (Vec<TcpListener>, SocketAddr) {
        held.listen_many(Purpose::Clients, ANY, ListenOptions::default(), count).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn a_successor_gets_the_same_sockets_for_what_was_asked_and_what_it_is_called() {
        let first = HeldListeners::default();
        let (own, address) = listen(&first, 2);
        let next = HeldListeners::of_predecessor(first.for_successor().unwrap());
        assert_eq!(next.unused(), 2);
        let _client = TcpStream::connect(address).unwrap();
        drop(own);
        first.leave_to_successor();
        // Its configuration has another number of event loops, and names the port.
        let options = ListenOptions::default();
        let (listeners, same) = next.listen_many(Purpose::Clients, address, options, 3).unwrap();
        assert_eq!((listeners.len(), same, next.unused()), (3, address, 0));
        let accepted = listeners.iter().filter(|listener| listener.accept().is_ok()).count();
        assert_eq!(accepted, 1, "the connection that waited");
        // Fewer event loops than sockets: none is left without a reader.
        let third = HeldListeners::of_predecessor(next.for_successor().unwrap());
        let (one, same) = third.listen_many(Purpose::Clients, address, options, 1).unwrap();
        assert_eq!((one.len(), same), (2, address));
    }

    #[test]
    fn a_socket_for_operators_is_not_given_to_clients() {
        let first = HeldListeners::default();
        let options = ListenOptions::default();
        let (_own, address) = first.listen_many(Purpose::Operators, ANY, options, 1).unwrap();
        let next = HeldListeners::of_predecessor(first.for_successor().unwrap());
        assert_ne!(listen(&next, 1).1, address, "a new port");
        let refused = next.listen_many(Purpose::Clients, address, options, 1).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        assert_eq!(next.listen_many(Purpose::Operators, ANY, options, 1).unwrap().1, address);
    }

    #[test]
    fn a_released_socket_ends_with_its_driver() {
        let held = HeldListeners::default();
        let (own, address) = listen(&held, 1);
        held.release();
        drop(own);
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    }
}
