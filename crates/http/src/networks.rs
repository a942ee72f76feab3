//! Networks by prefix: the proxies whose headers are trusted.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address and its number of leading bits: `10.0.0.0/8`, `::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Returns whether `address` is in it. An IPv4-mapped IPv6 address (`::ffff:10.0.0.1`) counts
    /// as the IPv4 address.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        let shifted = |bits: u32, all: u32| all - bits.min(all);
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let shift = shifted(self.bits.into(), 32);
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(shift).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let shift = shifted(self.bits.into(), 128);
                let differ = own.to_bits() ^ other.to_bits();
                differ.checked_shr(shift).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "'{text}' is not a network ({what}): write one like 10.0.0.0/8 or 2001:db8::/32"
            )
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong("not an IP address"))?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            Some(bits) => bits
                .parse()
                .ok()
                .filter(|&bits| bits <= most)
                .ok_or_else(|| wrong(&format!("the prefix is a number from 0 to {most}")))?,
        };
        Ok(Self { address, bits })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        network.parse::<Network>().unwrap().contains(address.parse().unwrap())
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
    fn nonsense_is_refused_with_an_example() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "::1/129", "10.0.0.0/x", "10.0.0.0/-1"] {
            let error = text.parse::<Network>().unwrap_err();
            assert!(error.contains("10.0.0.0/8") && error.contains(text), "{error}");
        }
    }
}
