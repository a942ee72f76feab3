//! Socket activation, which only Unix has.

use std::io;
use std::net::SocketAddr;

use crate::listener::Listener;

/// A listening socket that the process was started with.
#[derive(Debug)]
#[non_exhaustive]
pub struct Inherited {
    /// The number of its descriptor when the process started.
    pub descriptor: i32,
    /// Its name; empty if it has none.
    pub name: String,
    /// The socket, which does not block and is not passed on to child processes.
    pub listener: Listener,
}

/// The descriptor and the address of a listening socket that the process was started with.
pub type InheritedAddress = (i32, Option<SocketAddr>);

/// Returns no sockets.
///
/// # Errors
/// Always `Unsupported`.
pub fn inherited_listeners() -> io::Result<Vec<Inherited>> {
    Err(unsupported())
}

/// Returns no addresses.
///
/// # Errors
/// Always `Unsupported`.
pub fn inherited_addresses() -> io::Result<Vec<InheritedAddress>> {
    Err(unsupported())
}

fn unsupported() -> io::Error {
    let message = "only Unix passes sockets on to a new process; listen on HOST:PORT";
    io::Error::new(io::ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_names_the_remedy() {
        let error = inherited_listeners().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().ends_with("listen on HOST:PORT"), "{error}");
        assert!(inherited_addresses().is_err());
    }
}
