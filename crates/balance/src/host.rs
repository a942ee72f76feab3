//! The form in which names of hosts are compared.

use std::io::Write;
use std::net::Ipv6Addr;

/// The longest name of a host in bytes (RFC 1035 section 2.3.4).
pub(crate) const MAX_HOST: usize = 255;

/// Writes the name of a host in the form in which names are compared: in lower case, without port
/// and final dot, an IPv6 address as short as possible. `None`: it is longer than a name.
pub(crate) fn fold_host<'b>(host: &str, buffer: &'b mut [u8; MAX_HOST]) -> Option<&'b [u8]> {
    if let Some((address, _)) = host.strip_prefix('[').and_then(|host| host.split_once(']')) {
        let address: Ipv6Addr = address.parse().ok()?;
        let mut rest = &mut buffer[..];
        write!(rest, "{address}").ok()?;
        let length = MAX_HOST - rest.len();
        return Some(&buffer[..length]);
    }
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    let name = name.strip_suffix('.').unwrap_or(name);
    let folded = buffer.get_mut(..name.len())?;
    folded.copy_from_slice(name.as_bytes());
    folded.make_ascii_lowercase();
    Some(folded)
}
