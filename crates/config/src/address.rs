//! Addresses in text: HOST:PORT, and paths of sockets. Each error is the remedy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Refuses a path that the system does not accept for a socket.
pub(crate) fn check_socket_path(path: &str) -> Result<(), String> {
    #[cfg(unix)]
    if std::os::unix::net::SocketAddr::from_pathname(path).is_err() {
        let length = path.len();
        return Err(format!(
            "a path of {length} bytes is too long for a socket: write a shorter one, such as \
             \"unix:/run/app.sock\""
        ));
    }
    let _ = path;
    Ok(())
}

/// Parses an IP address and a port.
pub(crate) fn address(key: &str, text: &str) -> Result<SocketAddr, String> {
    let host = host(key, text)?;
    host.parse().map_err(|_| {
        "names are not looked up here: write the IP address and the port, for example \
         \"127.0.0.1:9001\""
            .to_owned()
    })
}

/// Checks the form of a name or an IP address with a port. Returns an IPv6 zone as a number, and an
/// IPv4 address in IPv6 as IPv4, because all systems treat these forms alike.
pub(crate) fn host(key: &str, text: &str) -> Result<String, String> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok(match (address, address.ip().to_canonical()) {
            (SocketAddr::V6(_), ip @ IpAddr::V4(_)) => {
                SocketAddr::new(ip, address.port()).to_string()
            }
            _ => text.to_owned(),
        });
    }
    if let Some(zoned) = with_zone(text) {
        return zoned;
    }
    if let Some((scheme, rest)) = text.split_once("://") {
        let rest = rest.split('/').next().unwrap_or_default();
        return Err(format!("an address has no scheme such as {scheme}://: write {rest:?}"));
    }
    if let Ok(port) = text.parse::<u16>() {
        let all = match key.starts_with("listen") {
            true => format!(" for this machine, or \"0.0.0.0:{port}\" for all that reach it"),
            false => String::new(),
        };
        return Err(format!("it is a port alone: write \"127.0.0.1:{port}\"{all}"));
    }
    if let Some(port) = text.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()) {
        return Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).to_string());
    }
    if let Some((ip, port)) = text.rsplit_once(':')
        && let (Ok(ip), Ok(port)) = (ip.parse::<Ipv6Addr>(), port.parse::<u16>())
    {
        return Err(format!("an IPv6 address is in brackets: write \"[{ip}]:{port}\""));
    }
    match (text.parse::<IpAddr>(), text.rsplit_once(':')) {
        (Ok(IpAddr::V6(ip)), _) => Err(format!("a port is missing: write \"[{ip}]:9001\"")),
        (Ok(ip), _) => Err(format!("a port is missing: write \"{ip}:9001\"")),
        (_, Some((name, port))) if port.parse::<u16>().is_ok() && is_name(name) => {
            Ok(text.to_owned())
        }
        (_, None) if is_name(text) => Err(format!("a port is missing: write \"{text}:9001\"")),
        _ => Err("write HOST:PORT, an IP address or a name and a port, for example \
                  \"127.0.0.1:9001\" or \"[::1]:9001\""
            .to_owned()),
    }
}

/// Converts the zone of an IPv6 address from an interface's name to its number:
/// `[fe80::1%eth0]:80`. Returns `None` if the text is not such an address.
fn with_zone(text: &str) -> Option<Result<String, String>> {
    let (address, port) = text.strip_prefix('[')?.rsplit_once("]:")?;
    let (ip, zone) = address.split_once('%')?;
    let (ip, port) = (ip.parse::<Ipv6Addr>().ok()?, port.parse::<u16>().ok()?);
    if !ip.is_unicast_link_local() && !ip.is_multicast() {
        return Some(Err(format!(
            "only a link-local address such as fe80::1 has a zone: write \"[{ip}]:{port}\""
        )));
    }
    let found = (address, port).to_socket_addrs().ok().and_then(|mut all| all.next());
    Some(found.map(|found| found.to_string()).ok_or_else(|| {
        format!("this machine has no interface {zone:?}: `ip link` lists those that it has")
    }))
}

/// Returns whether the text has the form of a host's name (RFC 1123 section 2.1), with the
/// underscores that container networks use.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let text = text.strip_suffix('.').unwrap_or(text);
    text.len() <= 253
        && text.split('.').all(is_label)
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
}
