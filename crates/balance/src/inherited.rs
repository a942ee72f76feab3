//! Sockets that the service manager opened at addresses of the balancer.

use std::io;
use std::net::{SocketAddr, TcpListener};

use throng_io::{HeldListeners, Inherited, Listener, inherited_addresses};

/// The sockets that the process was started with, by their address.
pub(crate) struct InheritedSockets(Vec<(SocketAddr, TcpListener)>);

impl InheritedSockets {
    /// Takes the sockets that the service manager has passed on, if there are any; each must be at
    /// one of the addresses in `listen`. A predecessor's that are no longer there are closed.
    pub(crate) fn take(listen: &[(SocketAddr, bool)], held: &HeldListeners) -> io::Result<Self> {
        if held.is_successor() {
            return Ok(Self::of_tcp(held.inherited()?));
        }
        let announced = match inherited_addresses() {
            // None were passed on, or the system passes on none.
            Err(error)
                if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::Unsupported) =>
            {
                return Ok(Self(Vec::new()));
            }
            announced => announced?,
        };
        for (_, address) in announced {
            let is_wanted =
                address.is_some_and(|address| listen.iter().any(|(own, _)| *own == address));
            if !is_wanted {
                let what = address.map_or("a Unix socket".to_owned(), |own| own.to_string());
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!(
                        "the service manager has passed on {what}, which listen does not have: \
                         add it there, or take it out of the .socket unit"
                    ),
                ));
            }
        }
        let taken = match held.inherited() {
            // Another part of the process uses them.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            taken => taken?,
        };
        Ok(Self::of_tcp(taken))
    }

    fn of_tcp(taken: Vec<Inherited>) -> Self {
        let of_one = |socket: Inherited| match socket.listener {
            Listener::Tcp(listener) => Some((listener.local_addr().ok()?, listener)),
            _ => None,
        };
        Self(taken.into_iter().filter_map(of_one).collect())
    }

    /// Returns a listener at `address` for each of `count` shards, which share its queue; `None` if
    /// there is no such socket.
    pub(crate) fn at(
        &self,
        address: SocketAddr,
        count: usize,
    ) -> Option<io::Result<Vec<TcpListener>>> {
        let (_, listener) = self.0.iter().find(|(own, _)| *own == address)?;
        Some((0..count).map(|_| listener.try_clone()).collect())
    }
}
