//! The server of a run: a URL, and the lookup of its host.

use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::ops::Deref;
use std::time::Duration;

use throng_proto::url::{InvalidUrl, Url};

use crate::error::Error;

/// The URL of a WebSocket or HTTP server, parsed but not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(Url);

impl Target {
    /// Parses a `ws://` or `wss://` URL, see [`Url::parse_ws`].
    ///
    /// # Errors
    /// [`Error::Usage`] that shows a valid form.
    pub fn parse(text: &str) -> Result<Self, Error> {
        Ok(Self(Url::parse_ws(text)?))
    }

    /// Parses an `http://` or `https://` URL, see [`Url::parse_http`].
    ///
    /// # Errors
    /// [`Error::Usage`] that shows a valid form.
    pub fn parse_http(text: &str) -> Result<Self, Error> {
        Ok(Self(Url::parse_http(text)?))
    }

    /// Resolves the host. If it has several addresses, returns the first that accepts a connection.
    /// IPv4 addresses come first, because only IPv4 loopback has many source addresses. If no
    /// address accepts, returns the first, and the run fails with its error.
    ///
    /// # Errors
    /// [`Error::Resolve`] if the name is unknown.
    pub fn resolve(&self) -> Result<SocketAddr, Error> {
        let (host, port) = (&*self.lookup_host(), self.port());
        if let Ok(ip) = host.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, port));
        }
        let failed = |reason: String| Error::Resolve { host: host.to_owned(), reason };
        let mut found: Vec<SocketAddr> =
            (host, port).to_socket_addrs().map_err(|error| failed(error.to_string()))?.collect();
        found.sort_by_key(SocketAddr::is_ipv6);
        found.dedup();
        first_accepting(&found).ok_or_else(|| failed("it has no address".to_owned()))
    }
}

/// The time for each of several addresses to accept a connection.
const TRIAL: Duration = Duration::from_secs(2);

/// Returns the first address that accepts a connection, otherwise the first address. A single
/// address is not tried, because its server would see a connection without a request.
fn first_accepting(addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let (first, others) = addresses.split_first()?;
    if others.is_empty() {
        return Some(*first);
    }
    let accepts = |address: &&SocketAddr| TcpStream::connect_timeout(address, TRIAL).is_ok();
    Some(*addresses.iter().find(accepts).unwrap_or(first))
}

impl Deref for Target {
    type Target = Url;

    fn deref(&self) -> &Url {
        &self.0
    }
}

impl From<InvalidUrl> for Error {
    fn from(invalid: InvalidUrl) -> Self {
        Self::Usage(invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn a_url_that_cannot_be_used_is_a_mistake_of_the_user() {
        let error = Target::parse("h:1").unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("did you mean ws://h:1?"), "{error}");
    }

    /// A name may have an address without a listener.
    #[test]
    fn the_first_address_that_accepts_is_taken() {
        use std::net::{Ipv4Addr, TcpListener};
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let open = listener.local_addr().unwrap();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let closed = taken.local_addr().unwrap();
        drop(taken);
        assert_eq!(first_accepting(&[closed, open]), Some(open));
        assert_eq!(first_accepting(&[open, closed]), Some(open));
        assert_eq!(first_accepting(&[closed]), Some(closed));
        assert_eq!(first_accepting(&[closed, closed]), Some(closed));
        assert_eq!(first_accepting(&[]), None);
    }

    #[test]
    fn addresses_need_no_look_up() {
        let v6 = Target::parse("ws://[::1]:9").unwrap().resolve().unwrap();
        assert_eq!(v6, SocketAddr::from((Ipv6Addr::LOCALHOST, 9)));
        let v4 = Target::parse("ws://127.0.0.7:9").unwrap().resolve().unwrap();
        assert_eq!(v4, SocketAddr::from(([127, 0, 0, 7], 9)));
    }
}
