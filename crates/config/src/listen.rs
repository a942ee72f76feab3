//! The forms of the setting `listen` in `serve` and `balance`.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use throng_io::{PeerAddress, UnixPath, inherited_addresses};

use crate::draft::Draft;

/// A value of `listen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen<'a> {
    /// `HOST:PORT`.
    Address(&'a str),
    /// `fd:N`: the inherited socket with this descriptor.
    Descriptor(i32),
    /// `systemd`: all inherited sockets.
    Inherited,
    /// `unix:PATH`.
    Unix(&'a str),
}

impl<'a> Listen<'a> {
    /// Parses a value whose form was checked.
    #[must_use]
    pub fn parse(text: &'a str) -> Self {
        let descriptor = || text.strip_prefix("fd:")?.parse().ok();
        match descriptor() {
            Some(number) => Self::Descriptor(number),
            None if text == "systemd" => Self::Inherited,
            None => text.strip_prefix("unix:").map_or(Self::Address(text), Self::Unix),
        }
    }

    /// Returns whether the value means sockets that the service manager has opened.
    #[must_use]
    pub fn is_inherited(self) -> bool {
        matches!(self, Self::Descriptor(_) | Self::Inherited)
    }

    /// Returns whether the value is `HOST:PORT`.
    #[must_use]
    pub fn is_address(self) -> bool {
        matches!(self, Self::Address(_))
    }

    /// Returns the address to listen on if the value is `HOST:PORT`. For a name, this is its first
    /// address.
    ///
    /// # Errors
    /// The name has no address: see [`without_address`].
    pub fn address(self) -> Option<io::Result<SocketAddr>> {
        let Self::Address(text) = self else { return None };
        let found = text.to_socket_addrs();
        Some(found.and_then(|mut all| all.next().ok_or(io::ErrorKind::NotFound.into())))
    }

    /// Returns the addresses of all sockets that the value means, taken or not. A Unix socket has
    /// no address. Returns an empty list if the sockets cannot be read.
    #[must_use]
    pub fn addresses(self) -> Vec<Option<SocketAddr>> {
        let of_inherited = |is_meant: &dyn Fn(i32) -> bool| {
            let all = inherited_addresses().unwrap_or_default().into_iter();
            all.filter(|(number, _)| is_meant(*number)).map(|(_, address)| address).collect()
        };
        match self {
            Self::Unix(_) => vec![None],
            Self::Address(text) => {
                text.to_socket_addrs().map(|all| all.map(Some).collect()).unwrap_or_default()
            }
            Self::Descriptor(number) => of_inherited(&|descriptor| descriptor == number),
            Self::Inherited => of_inherited(&|_| true),
        }
    }
}

/// Returns whether two listeners compete for the same connections, so that the second cannot be
/// opened: they have the same port, and the same address or all addresses.
#[must_use]
pub fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_all = one.ip().is_unspecified() || other.ip().is_unspecified();
    let is_family = one.is_ipv4() == other.is_ipv4();
    one.port() == other.port() && one.port() != 0 && is_family && (is_all || one.ip() == other.ip())
}

/// Returns the remedy for a name without an address.
#[must_use]
pub fn without_address(error: &io::Error) -> String {
    format!("it has no address ({error}): write HOST:PORT")
}

/// Checks a value of `listen` for a program that listens only on TCP. The error is the remedy.
pub(crate) fn check_tcp(text: &str) -> Result<(), String> {
    Err(match Listen::parse(text) {
        Listen::Address(_) => return Ok(()),
        Listen::Unix(_) => "it listens on TCP alone: write HOST:PORT".to_owned(),
        Listen::Inherited | Listen::Descriptor(_) => by_address(),
    })
}

/// Reads the list `key` of addresses and Unix sockets for a program that takes sockets of the
/// service manager by their addresses, and looks up the names in it.
#[must_use]
pub fn listen_addresses(draft: &Draft, key: &str) -> Vec<PeerAddress> {
    let texts: Vec<String> = draft.get(key);
    let address = |(at, text): (usize, &String)| {
        let key = format!("{key}[{at}]");
        listen_address(text, |error, remedy| match error {
            Some(error) => draft.fails(&key, &error, remedy),
            None => draft.wrong(&key, remedy),
        })
    };
    texts.iter().enumerate().filter_map(address).collect()
}

/// Converts a value of `listen` as [`listen_addresses`] does. `report` gets a mistake's cause and
/// remedy.
pub fn listen_address(
    text: &str,
    report: impl FnOnce(Option<io::Error>, String),
) -> Option<PeerAddress> {
    let listen = Listen::parse(text);
    let remedy = match listen {
        Listen::Address(_) => match listen.address()? {
            Ok(address) => return Some(address.into()),
            Err(error) => {
                let remedy = without_address(&error);
                report(Some(error), remedy);
                return None;
            }
        },
        Listen::Unix(_) if !cfg!(unix) => {
            "this system has no Unix sockets: write HOST:PORT".to_owned()
        }
        Listen::Unix(path) => {
            let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
            match absolute.to_str().map(UnixPath::new) {
                Some(Ok(path)) => return Some(PeerAddress::Unix(path)),
                Some(Err(remedy)) => remedy.to_string(),
                None => "its folder is not UTF-8: write an absolute path".to_owned(),
            }
        }
        Listen::Descriptor(_) | Listen::Inherited => by_address(),
    };
    report(None, remedy);
    None
}

/// Returns the remedy for sockets of the service manager that are not named by their address.
fn by_address() -> String {
    "sockets that systemd passes on are taken by their addresses: write the address of \
     ListenStream= in the .socket unit"
        .to_owned()
}

/// Reads the list `key` of addresses for a program that listens only on TCP, and looks up the names
/// among them.
#[must_use]
pub fn tcp_addresses(draft: &Draft, key: &str) -> Vec<SocketAddr> {
    let texts: Vec<String> = draft.get(key);
    let address = |(at, text): (usize, &String)| {
        let found = Listen::Address(text).address()?;
        let wrong = |error: io::Error| {
            draft.fails(&format!("{key}[{at}]"), &error, without_address(&error));
        };
        found.map_err(wrong).ok()
    };
    texts.iter().enumerate().filter_map(address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inherited_sockets_are_distinguished_from_addresses() {
        for (text, expected) in [
            ("systemd", Listen::Inherited),
            ("fd:3", Listen::Descriptor(3)),
            ("fd:x", Listen::Address("fd:x")),
            ("127.0.0.1:80", Listen::Address("127.0.0.1:80")),
            ("systemd:80", Listen::Address("systemd:80")),
            ("unix:/run/app.sock", Listen::Unix("/run/app.sock")),
        ] {
            assert_eq!(Listen::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn two_listeners_of_one_port_overlap() {
        for (one, other, expected) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("[::1]:80", "[::]:80", true),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("0.0.0.0:80", "[::]:80", false),
        ] {
            let [one, other] = [one, other].map(|text| text.parse().unwrap());
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one}");
        }
    }
}
