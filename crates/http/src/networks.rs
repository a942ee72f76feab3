//! Networks by prefix: the proxies whose headers are trusted.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// An address and its number of leading bits: `10.0.0.0/8`, `::1`; or `unix:`, the peers on Unix
/// sockets, which have no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(Members);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Members {
    Prefix(IpAddr, u8),
    Unix,
}

impl Network {
    /// Returns its addresses in order, the first and the last included; none for `unix:`.
    pub fn addresses(self) -> impl Iterator<Item = IpAddr> {
        let (first, last) = match self.0 {
            Members::Prefix(own, bits) => {
                let (own, free) = match own {
                    IpAddr::V4(own) => (own.to_bits().into(), 32 - u32::from(bits).min(32)),
                    IpAddr::V6(own) => (own.to_bits(), 128 - u32::from(bits).min(128)),
                };
                let host = u128::MAX.checked_shr(128 - free).unwrap_or(0);
                (own & !host, own | host)
            }
            Members::Unix => (1, 0),
        };
        let is_ipv4 = matches!(self.0, Members::Prefix(IpAddr::V4(_), _));
        (first..=last).map(move |bits| match is_ipv4 {
            true => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            false => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        })
    }

    /// Returns whether `address` is in it. An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) counts
    /// as the IPv4 address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let Members::Prefix(own, bits) = self.0 else { return false };
        let shifted = |all: u32| all - u32::from(bits).min(all);
        match (own, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = shifted(32);
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = shifted(128);
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }

    /// Returns whether the network contains a peer. A peer on a Unix socket has no address.
    #[must_use]
    pub fn includes(self, peer: Option<IpAddr>) -> bool {
        match peer {
            Some(address) => self.contains(address),
            None => self.0 == Members::Unix,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "'{text}' is not a network ({what}): write one like 10.0.0.0/8 or 2001:db8::/32, \
                 or unix: for Unix sockets"
            )
        };
        if text == "unix:" {
            return Ok(Self(Members::Unix));
        }
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong("not an IP address"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => Some(bits)
                .filter(|bits| bits.bytes().all(|byte| byte.is_ascii_digit()))
                .and_then(|bits| bits.parse().ok())
                .filter(|&bits| bits <= most)
                .ok_or_else(|| wrong(&format!("the prefix is a number from 0 to {most}")))?,
        };
        // Peers are compared in their canonical form, which is IPv4 for a mapped address.
        Ok(Self(match (address, address.to_canonical()) {
            (IpAddr::V6(_), mapped @ IpAddr::V4(_)) if bits >= 96 => {
                Members::Prefix(mapped, bits - 96)
            }
            (IpAddr::V6(_), IpAddr::V4(mapped)) => {
                let what = format!(
                    "IPv4 addresses in IPv6 have a prefix of at least 96; or write {mapped}/N"
                );
                return Err(wrong(&what));
            }
            _ => Members::Prefix(address, bits),
        }))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Members::Prefix(address, bits) => write!(f, "{address}/{bits}"),
            Members::Unix => f.write_str("unix:"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn addresses_are_those_with_the_leading_bits() {
        let addresses = |network: &str| {
            let network = network.parse::<Network>().unwrap();
            network.addresses().take(5).map(|address| address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(addresses("127.0.1.7"), ["127.0.1.7"]);
        assert_eq!(addresses("127.0.1.7/31"), ["127.0.1.6", "127.0.1.7"]);
        assert_eq!(addresses("255.255.255.252/30").last().unwrap(), "255.255.255.255");
        assert_eq!(addresses("0.0.0.0/0").last().unwrap(), "0.0.0.4");
        assert_eq!(addresses("::1"), ["::1"]);
        assert_eq!(addresses("::/0").last().unwrap(), "::4");
        assert_eq!(addresses("ffff::fffe/127").len(), 2);
        assert!(addresses("unix:").is_empty());
    }

    #[test]
    fn leading_bits_decide() {
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("0.0.0.0/0", "255.1.2.3"));
        assert!(contains("127.0.0.1", "127.0.0.1") && !contains("127.0.0.1", "127.0.0.2"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"));
        // A /32 of IPv6 is 32 of 128 bits, not everything.
        assert!(contains("2001:db8::/32", "2001:db8:1::1"));
        assert!(!contains("2001:db8::/32", "2001:db9::1"));
        assert!(contains("::/0", "::1"));
    }

    #[test]
    fn a_mapped_network_is_that_of_ipv4() {
        assert!(contains("::ffff:10.0.0.0/104", "10.1.2.3"));
        assert!(contains("::ffff:10.0.0.0/104", "::ffff:10.1.2.3"));
        assert!(!contains("::ffff:10.0.0.0/104", "11.1.2.3"));
        assert!(contains("::ffff:127.0.0.1", "127.0.0.1"));
        assert_eq!("::ffff:10.0.0.0/104".parse::<Network>().unwrap().to_string(), "10.0.0.0/8");
        let error = "::ffff:10.0.0.0/8".parse::<Network>().unwrap_err();
        assert!(error.contains("at least 96") && error.contains("10.0.0.0/N"), "{error}");
    }

    #[test]
    fn unix_sockets_are_a_network_of_their_own() {
        let unix: Network = "unix:".parse().unwrap();
        let all: Network = "0.0.0.0/0".parse().unwrap();
        let address = Some(IpAddr::from([127, 0, 0, 1]));
        assert!(unix.includes(None) && !unix.includes(address));
        assert!(!all.includes(None) && all.includes(address));
        assert_eq!(unix.to_string(), "unix:");
    }

    #[test]
    fn nonsense_is_refused_with_an_example() {
        for text in
            ["", "10.0.0.0/33", "10.0.0/8", "::1/129", "10.0.0.0/x", "10.0.0.0/-1", "10.0.0.0/+8"]
        {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.contains("10.0.0.0/8") && error.contains(text), "{error}");
        }
    }
}
