//! The client's address behind proxies.

use std::net::{IpAddr, SocketAddr};

use throng_proto::http1::{HeaderLines, Request};

use crate::networks::Network;

/// Returns the client's address: the peer's, or if the peer is a trusted proxy, the rightmost
/// address in X-Forwarded-For or Forwarded that does not belong to a trusted proxy (or the
/// leftmost, if all belong to trusted proxies).
///
/// Every proxy appends its peer, so entries to the left of an untrusted address cannot be trusted.
/// Entries to the left of an entry that is not an address (`unknown`, `_hidden`) cannot be trusted
/// either: the entry to its right is the answer. If both headers are present and name different
/// clients, the proxy passed one of them through instead of writing it, so neither is trusted.
#[must_use]
pub fn client_address(request: &Request<'_>, peer: SocketAddr, trusted: &[Network]) -> IpAddr {
    let peer = peer.ip().to_canonical();
    let is_trusted = |address| trusted.iter().any(|network| network.contains(address));
    match is_trusted(peer) {
        true => forwarded_for(request, is_trusted).unwrap_or(peer),
        false => peer,
    }
}

/// Returns the client's address for a peer on a Unix socket, which has no address: if such peers
/// are trusted, the address that [`client_address`] would return, otherwise `None`.
#[must_use]
pub fn client_on_unix_socket(request: &Request<'_>, trusted: &[Network]) -> Option<IpAddr> {
    let is_trusted = |address| trusted.iter().any(|network| network.contains(address));
    match trusted.iter().any(|network| network.includes(None)) {
        true => forwarded_for(request, is_trusted),
        false => None,
    }
}

/// Returns the client that a trusted proxy names.
fn forwarded_for(request: &Request<'_>, is_trusted: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let mut listed = Walk::new(&is_trusted);
    x_forwarded_for(request.lines()).for_each(|entry| listed.note(entry));
    let mut elements = Walk::new(&is_trusted);
    forwarded(request.lines()).for_each(|element| elements.note(element.client));
    match (listed.answer(), elements.answer()) {
        (Some(client), None) | (None, Some(client)) => client,
        (Some(one), Some(other)) if one == other => one,
        _ => None,
    }
}

/// One element of Forwarded (RFC 7239 section 4): one proxy's statement about its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedElement<'a> {
    /// The address in `for`; `None` if there is no `for`, or it is `unknown` or an obfuscated name.
    pub client: Option<IpAddr>,
    /// The scheme in `proto`.
    pub proto: Option<&'a [u8]>,
}

/// Returns the addresses in X-Forwarded-For from left to right; `None` for an entry that is not an
/// address. Skips empty entries.
pub fn x_forwarded_for(lines: HeaderLines<'_>) -> impl Iterator<Item = Option<IpAddr>> {
    let values = lines.all_bytes("X-Forwarded-For");
    let entries = values.flat_map(|value| value.split(|byte| *byte == b','));
    entries.filter(|entry| is_element(entry)).map(parse_node)
}

/// Returns the elements of Forwarded from left to right. Skips empty ones.
pub fn forwarded(lines: HeaderLines<'_>) -> impl Iterator<Item = ForwardedElement<'_>> {
    let values = lines.all_bytes("Forwarded");
    let elements = values.flat_map(|value| split_quoted(value, b','));
    elements.filter(|element| is_element(element)).map(parse_element)
}

/// Returns whether an element of a list counts: an empty element does not (RFC 9110 section
/// 5.6.1.2).
fn is_element(element: &[u8]) -> bool {
    !element.trim_ascii().is_empty()
}

/// Finds the answer from left to right, so that nothing needs to be kept: entries to the right take
/// precedence.
struct Walk<F> {
    is_trusted: F,
    seen: bool,
    found: Option<IpAddr>,
}

impl<F: Fn(IpAddr) -> bool> Walk<F> {
    fn new(is_trusted: F) -> Self {
        Self { is_trusted, seen: false, found: None }
    }

    /// Records the next entry to the right. `None`: it is not an address, so earlier entries do not
    /// count.
    fn note(&mut self, entry: Option<IpAddr>) {
        self.seen = true;
        match entry {
            None => self.found = None,
            Some(address) if self.found.is_none() || !(self.is_trusted)(address) => {
                self.found = Some(address);
            }
            Some(_) => {}
        }
    }

    /// Returns the answer, or `None` without any entry.
    fn answer(&self) -> Option<Option<IpAddr>> {
        self.seen.then_some(self.found)
    }
}

/// Parses one element of Forwarded. If a parameter occurs several times, the first one counts.
fn parse_element(element: &[u8]) -> ForwardedElement<'_> {
    let parameter = |name: &[u8]| {
        let mut pairs = split_quoted(element, b';');
        pairs.find_map(|pair| {
            let pair = pair.trim_ascii();
            let equals = pair.iter().position(|byte| *byte == b'=')?;
            let value = pair[..equals].eq_ignore_ascii_case(name).then(|| &pair[equals + 1..])?;
            Some(match value {
                [b'"', inner @ .., b'"'] => inner,
                bare => bare,
            })
        })
    };
    ForwardedElement { client: parameter(b"for").and_then(parse_node), proto: parameter(b"proto") }
}

/// Parses an address, with or without a port, an IPv6 one with or without brackets.
fn parse_node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text.trim_ascii()).ok()?;
    let bare = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let address: IpAddr = match text.parse() {
        Ok(address) => address,
        Err(_) => match text.parse::<SocketAddr>() {
            Ok(address) => address.ip(),
            Err(_) => bare()?,
        },
    };
    Some(address.to_canonical())
}

/// Splits at `separator` outside of quoted strings.
fn split_quoted(value: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    value.split(move |byte| {
        if escaped {
            escaped = false;
        } else if quoted && *byte == b'\\' {
            escaped = true;
        } else if *byte == b'"' {
            quoted = !quoted;
        }
        !quoted && *byte == separator
    })
}
