//! The other end of a connection that we start.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

/// The address of a server: an IP address and a port, or the path of a Unix socket. As text it is
/// `127.0.0.1:9001`, or `unix:/run/app.sock`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PeerAddress {
    /// An IP address and a port.
    Ip(SocketAddr),
    /// A Unix socket. Only systems with Unix sockets can connect to it.
    Unix(UnixPath),
}

impl PeerAddress {
    /// Returns the IP address and the port; `None` for a Unix socket.
    #[must_use]
    pub fn socket_addr(self) -> Option<SocketAddr> {
        match self {
            Self::Ip(address) => Some(address),
            Self::Unix(_) => None,
        }
    }

    /// Returns the port; 0 for a Unix socket.
    #[must_use]
    pub fn port(self) -> u16 {
        self.socket_addr().map_or(0, |address| address.port())
    }
}

impl From<SocketAddr> for PeerAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Ip(address)
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for PeerAddress {
    fn from(address: (I, u16)) -> Self {
        Self::Ip(address.into())
    }
}

impl PartialEq<SocketAddr> for PeerAddress {
    fn eq(&self, address: &SocketAddr) -> bool {
        self.socket_addr() == Some(*address)
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

/// The text is not an address; its text is the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnAddress(&'static str);

impl fmt::Display for NotAnAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotAnAddress {}

impl FromStr for PeerAddress {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        if let Some(path) = text.strip_prefix("unix:") {
            return UnixPath::new(path).map(Self::Unix);
        }
        let wanted = "write an IP address and a port, or unix: and the path of a socket";
        text.parse().map(Self::Ip).map_err(|_| NotAnAddress(wanted))
    }
}

/// The absolute path of a Unix socket.
///
/// Every path is kept once for the life of the process, so that an address is small and `Copy`.
/// Paths come from configurations and operators, never from clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixPath(&'static str);

/// The longest path in bytes: the system's address has space for it and a zero byte.
const MAX_LENGTH: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

/// The largest number of paths, which bounds their memory to about 16 MiB.
const MAX_PATHS: usize = 1 << 16;

impl UnixPath {
    /// Creates it.
    ///
    /// # Errors
    /// The path is not absolute, too long, or has control characters; or 65,536 others are known.
    pub fn new(path: &str) -> Result<Self, NotAnAddress> {
        static KNOWN: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
        if !path.starts_with('/') || path.len() == 1 {
            return Err(NotAnAddress("write an absolute path, such as unix:/run/app.sock"));
        }
        if path.len() > MAX_LENGTH {
            let remedy = match MAX_LENGTH {
                107 => "a socket's path has at most 107 bytes: move it to a shorter one",
                _ => "a socket's path has at most 103 bytes: move it to a shorter one",
            };
            return Err(NotAnAddress(remedy));
        }
        if path.chars().any(char::is_control) {
            return Err(NotAnAddress("it has control characters: write the path of a socket"));
        }
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if let Some(path) = known.get(path) {
            return Ok(Self(path));
        }
        if known.len() == MAX_PATHS {
            return Err(NotAnAddress("65536 other paths are known already: restart the program"));
        }
        let kept: &'static str = Box::leak(path.into());
        known.insert(kept);
        Ok(Self(kept))
    }

    /// Returns its text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.0
    }

    /// Returns it as a path.
    #[must_use]
    pub fn as_path(self) -> &'static Path {
        Path::new(self.0)
    }
}

impl fmt::Display for UnixPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// As its text, as in a file of settings.
impl throng_carry::Carried for PeerAddress {
    fn put(&self, tag: u16, out: throng_carry::Encoder) -> throng_carry::Encoder {
        self.to_string().put(tag, out)
    }

    fn take(content: throng_carry::Content<'_>) -> Result<Self, throng_carry::CarryError> {
        let text = String::take(content)?;
        text.parse().map_err(|_| throng_carry::CarryError::Malformed)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for PeerAddress {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for PeerAddress {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_its_text() {
        for text in ["127.0.0.1:9001", "[::1]:80", "unix:/run/app.sock"] {
            let address: PeerAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            assert_eq!(address, text.parse::<PeerAddress>().unwrap());
            assert_eq!(address.socket_addr().is_none(), text.starts_with("unix"));
        }
        // Many records have an address.
        assert_eq!(size_of::<PeerAddress>(), size_of::<SocketAddr>());
    }

    #[test]
    fn a_mistake_names_its_remedy() {
        let long = format!("unix:/{}", "a".repeat(MAX_LENGTH));
        for (text, remedy) in [
            ("unix:app.sock", "absolute"),
            ("unix:", "absolute"),
            ("unix:/", "absolute"),
            ("unix:/a\0b", "control"),
            (&long, "bytes"),
            ("app:80", "IP address"),
        ] {
            let error = text.parse::<PeerAddress>().unwrap_err().to_string();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
