//! The local address of each connection.
//!
//! One source address can have as many connections to one server port as there are ephemeral ports
//! (28,232 with Linux's defaults). All of 127.0.0.0/8 is loopback, so a loopback server is
//! reachable from 16 million source addresses without configuration.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::error::Error;

/// Maximum connections of one source address, well below the 28,232 ephemeral ports, because other
/// programs need some.
pub const PER_SOURCE: usize = 25_000;

/// The source addresses of a run. Pure: connection `i` always gets the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    count: usize,
    explicit: bool,
}

impl Sources {
    /// Decides how many addresses `connections` to `peer` need, given the number of ephemeral
    /// `ports`; or uses the caller's `wish`.
    ///
    /// With one address the kernel chooses the address, as for any client.
    ///
    /// # Errors
    /// [`Error::Usage`] if several addresses are needed or wished and the server is not on IPv4
    /// loopback.
    pub fn plan(
        peer: SocketAddr,
        connections: usize,
        ports: usize,
        wish: Option<usize>,
    ) -> Result<Self, Error> {
        let per_source = PER_SOURCE.min(ports / 10 * 9).max(1);
        let needed = wish.unwrap_or_else(|| connections.div_ceil(per_source)).max(1);
        let loopback = matches!(peer.ip(), IpAddr::V4(ip) if ip.is_loopback());
        if needed > 1 && !loopback {
            return Err(Error::Usage(format!(
                "{connections} connections to {peer} need {needed} source addresses, and only IPv4 \
                 loopback has more than one without configuration: use at most {per_source} \
                 connections per machine, or a server on 127.0.0.1",
            )));
        }
        if needed > 65_000 {
            return Err(Error::Usage(format!("{needed} source addresses are more than 65,000")));
        }
        Ok(Self { count: needed, explicit: needed > 1 })
    }

    /// Number of source addresses.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the local address for connection `index`, with port 0; `None` leaves the choice to
    /// the kernel.
    ///
    /// Addresses are used in turn: 127.0.0.1, 127.0.0.2, and so on.
    #[must_use]
    pub fn local(&self, index: usize) -> Option<SocketAddr> {
        self.explicit.then(|| {
            let turn = (index % self.count) as u32;
            SocketAddr::from((Ipv4Addr::from(0x7f00_0001 + turn), 0))
        })
    }
}

/// Returns the number of ephemeral ports of one source address; Linux's default if it cannot be
/// read.
#[must_use]
pub fn ephemeral_ports() -> usize {
    fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
        .ok()
        .and_then(|text| parse_port_range(&text))
        .unwrap_or(28_232)
}

fn parse_port_range(text: &str) -> Option<usize> {
    let mut parts = text.split_whitespace();
    let first: usize = parts.next()?.parse().ok()?;
    let last: usize = parts.next()?.parse().ok()?;
    (last >= first).then(|| last - first + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9001);
    const PORTS: usize = 28_232;

    #[test]
    fn one_address_is_the_kernels_choice() {
        let sources = Sources::plan(LOOPBACK, 25_000, PORTS, None).unwrap();
        assert_eq!((sources.count(), sources.local(7)), (1, None));
    }

    #[test]
    fn no_address_gets_more_than_its_share() {
        let sources = Sources::plan(LOOPBACK, 60_001, PORTS, None).unwrap();
        assert_eq!(sources.count(), 3);
        let mut used = [0_usize; 3];
        for i in 0..60_001 {
            let SocketAddr::V4(local) = sources.local(i).unwrap() else { panic!("IPv4 only") };
            assert_eq!(local.port(), 0);
            used[usize::from(local.ip().octets()[3]) - 1] += 1;
        }
        assert!(used.iter().all(|&n| n <= PER_SOURCE), "{used:?}");
    }

    #[test]
    fn a_narrow_port_range_needs_more_addresses() {
        assert_eq!(Sources::plan(LOOPBACK, 10_000, 1_000, None).unwrap().count(), 12);
    }

    #[test]
    fn wishes_are_granted_on_loopback_only() {
        let sources = Sources::plan(LOOPBACK, 10, PORTS, Some(300)).unwrap();
        assert_eq!(sources.local(299).unwrap().to_string(), "127.0.1.44:0");
        assert_eq!(sources.local(300), sources.local(0));
        for peer in ["[::1]:9001", "10.0.0.1:9001"] {
            let peer = peer.parse().unwrap();
            assert!(Sources::plan(peer, 25_000, PORTS, None).is_ok());
            assert_eq!(Sources::plan(peer, 50_000, PORTS, None).unwrap_err().exit_code(), 2);
            assert!(Sources::plan(peer, 1, PORTS, Some(2)).is_err());
        }
    }

    #[test]
    fn port_range_file() {
        assert_eq!(parse_port_range("32768\t60999\n"), Some(28_232));
        assert_eq!(parse_port_range("nonsense"), None);
    }
}
