//! Sockets that the service manager opened at addresses of the balancer.

use std::io;

#[cfg(unix)]
use throng_io::UnixPath;
use throng_io::{HeldListeners, Inherited, Listener, PeerAddress, inherited_addresses};

/// The sockets that the process was started with, by their address.
pub(crate) struct InheritedSockets(Vec<(PeerAddress, Listener)>);

impl InheritedSockets {
    /// Takes the sockets that the service manager has passed on, if there are any; each must be at
    /// one of the addresses in `listen`. A predecessor's that are no longer there are closed.
    pub(crate) fn take(listen: &[PeerAddress], held: &HeldListeners) -> io::Result<Self> {
        if held.is_successor() {
            return Ok(Self::by_address(held.inherited()?));
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
            // The path of a Unix socket is known when it is taken.
            let is_wanted = address.is_none_or(|address| listen.iter().any(|own| *own == address));
            if !is_wanted && let Some(address) = address {
                return Err(unwanted(&address));
            }
        }
        let taken = match held.inherited() {
            // Another part of the process uses them.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            taken => taken?,
        };
        let taken = Self::by_address(taken);
        match taken.0.iter().find(|(it, _)| !listen.contains(it)) {
            Some((address, _)) => Err(unwanted(address)),
            None => Ok(taken),
        }
    }

    fn by_address(taken: Vec<Inherited>) -> Self {
        let of_one = |socket: Inherited| {
            let address = match &socket.listener {
                Listener::Tcp(listener) => listener.local_addr().ok()?.into(),
                #[cfg(unix)]
                Listener::Unix(unix) => {
                    PeerAddress::Unix(UnixPath::new(unix.path()?.to_str()?).ok()?)
                }
                _ => return None,
            };
            Some((address, socket.listener))
        };
        Self(taken.into_iter().filter_map(of_one).collect())
    }

    /// Returns a listener at `address` for each of `count` shards, which share its queue; `None` if
    /// there is no such socket.
    pub(crate) fn at(
        &self,
        address: PeerAddress,
        count: usize,
    ) -> Option<io::Result<Vec<Listener>>> {
        let (_, listener) = self.0.iter().find(|(own, _)| *own == address)?;
        Some((0..count).map(|_| listener.try_clone()).collect())
    }
}

fn unwanted(address: &impl std::fmt::Display) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!(
            "the service manager has passed on {address}, which listen does not have: add it \
             there, or take it out of the .socket unit"
        ),
    )
}
