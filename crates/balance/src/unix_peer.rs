//! Peers on Unix sockets, which have no address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use throng_http::{Network, client_address as of_address, client_on_unix_socket};
use throng_proto::http1::Request;

/// Stands for the address of a client on a Unix socket. No peer of TCP has it.
pub(crate) const UNIX_PEER: SocketAddr =
    SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// Returns the address unless it stands for a client on a Unix socket.
pub(crate) fn known(address: IpAddr) -> Option<IpAddr> {
    Some(address).filter(|address| *address != UNIX_PEER.ip())
}

/// Returns whether a peer is one of these proxies.
pub(crate) fn is_among(peer: IpAddr, proxies: &[Network]) -> bool {
    proxies.iter().any(|network| network.includes(known(peer)))
}

/// Returns the address of a request's client, past these proxies.
pub(crate) fn client_address(
    request: &Request<'_>,
    peer: SocketAddr,
    proxies: &[Network],
) -> IpAddr {
    match known(peer.ip()) {
        Some(_) => of_address(request, peer, proxies),
        None => client_on_unix_socket(request, proxies).unwrap_or(UNIX_PEER.ip()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_word_trusts_a_unix_peer() {
        let networks = |text: &str| vec![text.parse::<Network>().unwrap()];
        assert!(is_among(UNIX_PEER.ip(), &networks("unix:")));
        for text in ["0.0.0.0/0", "127.0.0.0/8", "::/0"] {
            assert!(!is_among(UNIX_PEER.ip(), &networks(text)), "{text}");
        }
        assert!(!is_among("127.0.0.1".parse().unwrap(), &networks("unix:")));
    }
}
