//! Addresses of this machine to connect from: one by one, or by the network.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use throng_http::Network;

/// The form of a value.
pub(super) const WANTED: &str =
    "an IP address such as \"127.0.0.2\", or a network of at most 256 such as \"127.0.1.0/28\"";

/// Maximum addresses of a network.
const MOST: usize = 256;

/// The addresses of one item.
pub(super) struct Source(Vec<IpAddr>);

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((address, _)) = text.split_once('%')
            && let Ok(address) = address.parse::<Ipv6Addr>()
        {
            return Err(format!(
                "the zone is the zone of each backend, such as \"[fe80::2%eth0]:80\": write \
                 \"{address}\""
            ));
        }
        let network: Network = text.parse().map_err(|_| format!("write {WANTED}"))?;
        let addresses: Vec<IpAddr> = network.addresses().take(MOST + 1).collect();
        if addresses.len() > MOST {
            return Err(format!("the network has more than {MOST} addresses: write {WANTED}"));
        }
        let is_one = |address: &IpAddr| !address.is_unspecified() && !address.is_multicast();
        if addresses.is_empty() || !addresses.iter().all(is_one) {
            return Err("write an address of this machine".to_owned());
        }
        Ok(Self(addresses))
    }
}

/// Returns the addresses of all items, each once: an address in two items gets no more connections
/// than others.
pub(super) fn unite(sources: Vec<Source>) -> Vec<IpAddr> {
    let mut all = Vec::new();
    for address in sources.into_iter().flat_map(|source| source.0) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all
}
