//! The PROXY protocol: the client's address behind a proxy, sent once at the start of a connection.
//!
//! Specified in HAProxy's `proxy-protocol.txt`: version 1, a line of text, in section 2.1, and
//! version 2, which is binary, in section 2.2. Both are decoded, and version 2 is encoded.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// Maximum length of a header. The addresses take at most 52 bytes; the rest is TLVs. The largest
/// TLV in use is a client's certificate.
pub const MAX_LENGTH: usize = 4096;

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const VERSION_1: &[u8] = b"PROXY ";
/// The longest line of version 1, with its end.
const MAX_LINE: usize = 107;
/// Length of the signature, the command, the family and the length field.
const FIXED: usize = 16;
const LOCAL: u8 = 0x20;
const PROXY: u8 = 0x21;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;
const TCP4_LENGTH: usize = 12;
const TCP6_LENGTH: usize = 36;

/// The result of decoding the first bytes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// More bytes are needed: a header has at least this many. No error so far.
    Needs(usize),
    /// A complete header.
    Header(Header),
}

/// The content of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The client and the address it connected to, as seen by the proxy.
    ///
    /// `None` if the proxy made the connection itself (a health check), or for a client without a
    /// TCP address; use the addresses of the connection then.
    pub addresses: Option<(SocketAddr, SocketAddr)>,
    /// Length of the header in bytes; the client's data follows.
    pub len: usize,
}

/// An invalid header: close the connection without a response. The peer or the configuration is at
/// fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Error {
    /// The connection does not start with a PROXY header.
    Missing,
    /// The line of version 1 is malformed, or longer than 107 bytes.
    Line,
    /// The version is neither 1 nor 2.
    Version,
    /// The command is neither LOCAL nor PROXY.
    Command,
    /// The address family or the transport is not defined by the standard.
    Family,
    /// The length is too small for the addresses.
    Short,
    /// The header is longer than [`MAX_LENGTH`].
    Long,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "the connection does not begin with a PROXY protocol header",
            Self::Line => "the PROXY protocol header of version 1 is malformed",
            Self::Version => "the PROXY protocol header is of an unknown version",
            Self::Command => "the PROXY protocol header has an unknown command",
            Self::Family => "the PROXY protocol header has an unknown address family",
            Self::Short => "the PROXY protocol header is too short for its addresses",
            Self::Long => "the PROXY protocol header is longer than 4096 bytes",
        })
    }
}

impl std::error::Error for Error {}

/// Decodes the header from the first `bytes` of a connection. Skips TLVs, including their checksum.
///
/// ```
/// use throng_proto::proxy_protocol::{Decoded, Header, decode, encode};
///
/// let (client, server) = ("192.0.2.1:4711".parse().unwrap(), "192.0.2.2:80".parse().unwrap());
/// let mut bytes = Vec::new();
/// encode(client, server, &mut bytes);
/// assert_eq!(decode(&bytes[..9]), Ok(Decoded::Needs(16)));
/// let header = Header { addresses: Some((client, server)), len: 28 };
/// assert_eq!(decode(&bytes), Ok(Decoded::Header(header)));
/// ```
///
/// # Errors
///
/// The first violated rule. More bytes, or another split of them, do not change the error.
pub fn decode(bytes: &[u8]) -> Result<Decoded, Error> {
    let start = bytes.len().min(SIGNATURE.len());
    if bytes[..start] != SIGNATURE[..start] {
        let compared = bytes.len().min(VERSION_1.len());
        return match (bytes[..compared] == VERSION_1[..compared], compared == VERSION_1.len()) {
            (true, false) => Ok(Decoded::Needs(VERSION_1.len())),
            (true, true) => decode_line(bytes),
            (false, _) => Err(Error::Missing),
        };
    }
    let Some((head, rest)) = bytes.split_first_chunk::<FIXED>() else {
        return Ok(Decoded::Needs(FIXED));
    };
    let [.., command, family, high, low] = *head;
    let length = usize::from(u16::from_be_bytes([high, low]));
    if command >> 4 != 2 {
        return Err(Error::Version);
    }
    if !matches!(command, LOCAL | PROXY) {
        return Err(Error::Command);
    }
    if FIXED + length > MAX_LENGTH {
        return Err(Error::Long);
    }
    // The family of a LOCAL header must be ignored. For other headers the standard allows:
    // unspecified, or one of three families with one of two transports.
    let needed = match (command, family) {
        (LOCAL, _) | (_, 0x00) => 0,
        (_, 0x11 | 0x12) => TCP4_LENGTH,
        (_, 0x21 | 0x22) => TCP6_LENGTH,
        (_, 0x31 | 0x32) => 216,
        _ => return Err(Error::Family),
    };
    if length < needed {
        return Err(Error::Short);
    }
    let len = FIXED + length;
    let Some(block) = rest.get(..length) else { return Ok(Decoded::Needs(len)) };
    let addresses = match (command, family) {
        (PROXY, TCP4) => block.first_chunk().map(tcp4),
        (PROXY, TCP6) => block.first_chunk().map(tcp6),
        _ => None,
    };
    Ok(Decoded::Header(Header { addresses, len }))
}

/// Decodes a header of version 1.
fn decode_line(bytes: &[u8]) -> Result<Decoded, Error> {
    let window = &bytes[..bytes.len().min(MAX_LINE)];
    let Some(end) = window.windows(2).position(|pair| pair == b"\r\n") else {
        return match window.len() {
            MAX_LINE => Err(Error::Line),
            len => Ok(Decoded::Needs(len + 1)),
        };
    };
    let line = &window[VERSION_1.len()..end];
    // The rest of the line must be ignored, and may be any bytes.
    if line.split(|byte| *byte == b' ').next() == Some(b"UNKNOWN") {
        return Ok(Decoded::Header(Header { addresses: None, len: end + 2 }));
    }
    let line = str::from_utf8(line).map_err(|_| Error::Line)?;
    let mut words = line.split(' ');
    let addresses = match words.next() {
        Some("TCP4") => line_addresses::<Ipv4Addr>(words),
        Some("TCP6") => line_addresses::<Ipv6Addr>(words),
        _ => None,
    };
    let addresses = Some(addresses.ok_or(Error::Line)?);
    Ok(Decoded::Header(Header { addresses, len: end + 2 }))
}

/// Parses the addresses and the ports of a line.
fn line_addresses<'w, A: FromStr + Into<IpAddr>>(
    mut words: impl Iterator<Item = &'w str>,
) -> Option<(SocketAddr, SocketAddr)> {
    let source: A = words.next()?.parse().ok()?;
    let destination: A = words.next()?.parse().ok()?;
    let (source_port, destination_port) = (port(words.next()?)?, port(words.next()?)?);
    let pair = (
        SocketAddr::new(source.into(), source_port),
        SocketAddr::new(destination.into(), destination_port),
    );
    words.next().is_none().then_some(pair)
}

/// Parses a port: digits alone, without zeros before them.
fn port(word: &str) -> Option<u16> {
    let port: u16 = word.parse().ok()?;
    (port.to_string() == word).then_some(port)
}

fn tcp4(block: &[u8; TCP4_LENGTH]) -> (SocketAddr, SocketAddr) {
    let [a, b, c, d, e, f, g, h, ports @ ..] = *block;
    pair(Ipv4Addr::new(a, b, c, d), Ipv4Addr::new(e, f, g, h), ports)
}

fn tcp6(block: &[u8; TCP6_LENGTH]) -> (SocketAddr, SocketAddr) {
    let (mut source, mut destination, mut ports) = ([0; 16], [0; 16], [0; 4]);
    source.copy_from_slice(&block[..16]);
    destination.copy_from_slice(&block[16..32]);
    ports.copy_from_slice(&block[32..]);
    pair(Ipv6Addr::from(source), Ipv6Addr::from(destination), ports)
}

fn pair<A: Into<IpAddr>>(source: A, destination: A, ports: [u8; 4]) -> (SocketAddr, SocketAddr) {
    let [a, b, c, d] = ports;
    let address = |ip: A, port| SocketAddr::new(ip.into(), u16::from_be_bytes(port));
    (address(source, [a, b]), address(destination, [c, d]))
}

/// Appends a header with the client's address (`source`) and the address it connected to
/// (`destination`).
///
/// An IPv4-mapped IPv6 address is written as IPv4. If only one of the two is IPv4, it is written as
/// IPv4-mapped, since both must be of one family.
pub fn encode(source: SocketAddr, destination: SocketAddr, out: &mut Vec<u8>) {
    out.extend_from_slice(&SIGNATURE);
    match (source.ip().to_canonical(), destination.ip().to_canonical()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            out.extend_from_slice(&[PROXY, TCP4, 0, TCP4_LENGTH as u8]);
            out.extend_from_slice(&source.octets());
            out.extend_from_slice(&destination.octets());
        }
        (source, destination) => {
            out.extend_from_slice(&[PROXY, TCP6, 0, TCP6_LENGTH as u8]);
            out.extend_from_slice(&to_ipv6_mapped(source).octets());
            out.extend_from_slice(&to_ipv6_mapped(destination).octets());
        }
    }
    out.extend_from_slice(&source.port().to_be_bytes());
    out.extend_from_slice(&destination.port().to_be_bytes());
}

fn to_ipv6_mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Appends the header of a connection that the proxy makes for itself, such as a health check.
pub fn encode_local(out: &mut Vec<u8>) {
    out.extend_from_slice(&SIGNATURE);
    out.extend_from_slice(&[LOCAL, 0, 0, 0]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(command: u8, family: u8, block: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a".to_vec();
        bytes.extend([command, family, (block.len() >> 8) as u8, block.len() as u8]);
        bytes.extend(block);
        bytes
    }

    fn addresses(bytes: &[u8]) -> Result<Option<(SocketAddr, SocketAddr)>, Error> {
        match decode(bytes)? {
            Decoded::Header(header) => Ok(header.addresses),
            needs => panic!("{needs:?}"),
        }
    }

    fn both(source: &str, destination: &str) -> Option<(SocketAddr, SocketAddr)> {
        Some((source.parse().unwrap(), destination.parse().unwrap()))
    }

    #[test]
    fn section_2_2_the_layout() {
        let tcp4 = [192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x67, 0, 80];
        let mut tcp6 = [0; 36];
        tcp6[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        (tcp6[15], tcp6[31], tcp6[33], tcp6[34]) = (1, 1, 7, 0xff);
        let v4 = both("192.0.2.1:4711", "198.51.100.2:80");
        let v6 = both("[2001:db8::1]:7", "[::1]:65280");
        let with_tlv = [&tcp4[..], &[0x01, 0, 2, b'h', b'2']].concat();
        let unix = [b'/'; 216];
        for (command, family, block, expected) in [
            (0x21, 0x11, &tcp4[..], Ok(v4)),
            (0x21, 0x21, &tcp6, Ok(v6)),
            (0x21, 0x11, &with_tlv, Ok(v4)),
            // LOCAL, or an address that is not TCP.
            (0x20, 0x00, &[], Ok(None)),
            (0x20, 0x11, &tcp4, Ok(None)),
            (0x20, 0x99, &[1, 2], Ok(None)),
            (0x21, 0x00, &[], Ok(None)),
            (0x21, 0x00, &tcp4, Ok(None)),
            (0x21, 0x12, &tcp4, Ok(None)),
            (0x21, 0x22, &tcp6, Ok(None)),
            (0x21, 0x31, &unix, Ok(None)),
            (0x21, 0x32, &unix, Ok(None)),
            (0x21, 0x11, &tcp4[..11], Err(Error::Short)),
            (0x21, 0x21, &tcp6[..35], Err(Error::Short)),
            (0x21, 0x31, &unix[..215], Err(Error::Short)),
            (0x21, 0x10, &tcp4, Err(Error::Family)),
            (0x21, 0x13, &tcp4, Err(Error::Family)),
            (0x21, 0x41, &tcp4, Err(Error::Family)),
            (0x21, 0x01, &tcp4, Err(Error::Family)),
            (0x22, 0x11, &tcp4, Err(Error::Command)),
            (0x11, 0x11, &tcp4, Err(Error::Version)),
            (0x31, 0x11, &tcp4, Err(Error::Version)),
            (0x01, 0x11, &tcp4, Err(Error::Version)),
            (0x21, 0x00, &[0; MAX_LENGTH - FIXED], Ok(None)),
            (0x21, 0x00, &[0; MAX_LENGTH - FIXED + 1], Err(Error::Long)),
        ] {
            let bytes = header(command, family, block);
            assert_eq!(addresses(&bytes), expected, "{command:#x} {family:#x} {}", block.len());
            if let Ok(Decoded::Header(header)) = decode(&[&bytes, &b"GET"[..]].concat()) {
                assert_eq!(header.len, bytes.len(), "what follows is not ours");
            }
        }
    }

    #[test]
    fn other_protocols_are_detected_as_soon_as_possible() {
        for (bytes, expected) in [
            (&b"PROXY"[..], Ok(Decoded::Needs(6))),
            (b"P", Ok(Decoded::Needs(6))),
            (b"POST / HTTP/1.1\r\n", Err(Error::Missing)),
            (b"GET", Err(Error::Missing)),
            (b"\r\n\r\n\0\r\nQUIX", Err(Error::Missing)),
            (b"\r\n", Ok(Decoded::Needs(16))),
            (b"", Ok(Decoded::Needs(16))),
        ] {
            assert_eq!(decode(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn section_2_1_the_line() {
        let v4 = both("192.0.2.1:4711", "198.51.100.2:80");
        let v6 = both("[2001:db8::1]:7", "[::1]:65280");
        let longest = format!("PROXY UNKNOWN {}\r\n", "f".repeat(107 - 16));
        let too_long = format!("PROXY UNKNOWN {}\r\n", "f".repeat(107 - 15));
        for (line, expected) in [
            ("PROXY TCP4 192.0.2.1 198.51.100.2 4711 80\r\n", Ok(v4)),
            ("PROXY TCP6 2001:db8::1 ::1 7 65280\r\n", Ok(v6)),
            ("PROXY UNKNOWN\r\n", Ok(None)),
            ("PROXY UNKNOWN\u{e9} x\r\n", Err(Error::Line)),
            ("PROXY UNKNOWNS\r\n", Err(Error::Line)),
            (&longest, Ok(None)),
            (&too_long, Err(Error::Line)),
            ("PROXY \r\n", Err(Error::Line)),
            ("PROXY TCP5 192.0.2.1 198.51.100.2 4711 80\r\n", Err(Error::Line)),
            ("PROXY TCP4 2001:db8::1 ::1 7 65280\r\n", Err(Error::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 4711\r\n", Err(Error::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 4711 80 \r\n", Err(Error::Line)),
            ("PROXY TCP4  192.0.2.1 198.51.100.2 4711 80\r\n", Err(Error::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 4711 +80\r\n", Err(Error::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 4711 080\r\n", Err(Error::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 4711 65536\r\n", Err(Error::Line)),
            ("PROXY TCP4 192.0.2.01 198.51.100.2 4711 80\r\n", Err(Error::Line)),
            ("PROXY TCP4 192.0.2.1 198.51.100.2 4711 80\n\r\n", Err(Error::Line)),
        ] {
            assert_eq!(addresses(line.as_bytes()), expected, "{line:?}");
            let whole = decode(line.as_bytes());
            for cut in 0..line.len() {
                match decode(&line.as_bytes()[..cut]) {
                    Ok(Decoded::Needs(needed)) => assert!(needed > cut, "{line:?} at {cut}"),
                    decided => assert_eq!(decided, whole, "{line:?} at {cut}"),
                }
            }
            if let Ok(Decoded::Header(header)) = decode(format!("{line}GET").as_bytes()) {
                assert_eq!(header.len, line.len(), "what follows is not ours");
            }
        }
    }

    /// "the receiver must ignore anything presented before the CRLF is found", even bytes that are
    /// not text.
    #[test]
    fn section_2_1_what_follows_unknown_is_ignored() {
        let line = b"PROXY UNKNOWN \xff\xfe \0\r\n";
        assert_eq!(addresses(line), Ok(None));
        assert_eq!(decode(b"PROXY TCP4 \xff\r\n"), Err(Error::Line));
    }

    #[test]
    fn a_health_check_has_no_addresses() {
        let mut bytes = Vec::new();
        encode_local(&mut bytes);
        assert_eq!(bytes, header(0x20, 0, &[]));
        assert_eq!(decode(&bytes), Ok(Decoded::Header(Header { addresses: None, len: 16 })));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn encoded_messages_decode(source: SocketAddr, destination: SocketAddr, rest: Vec<u8>) {
            let is_v4 = |address: SocketAddr| address.ip().to_canonical().is_ipv4();
            let mut bytes = Vec::new();
            encode(source, destination, &mut bytes);
            let len = bytes.len();
            prop_assert_eq!(len, if is_v4(source) && is_v4(destination) { 28 } else { 52 });
            for cut in 0..len {
                let Ok(Decoded::Needs(needed)) = decode(&bytes[..cut]) else { panic!("at {cut}") };
                prop_assert!(needed > cut && needed <= len);
            }
            bytes.extend(rest);
            let Ok(Decoded::Header(header)) = decode(&bytes) else { panic!("it is whole") };
            prop_assert_eq!(header.len, len);
            // Flow labels and scopes are not transmitted.
            let canonical = |address: SocketAddr| {
                SocketAddr::new(address.ip().to_canonical(), address.port())
            };
            let (read_source, read_destination) = header.addresses.unwrap();
            prop_assert_eq!(canonical(read_source), canonical(source));
            prop_assert_eq!(canonical(read_destination), canonical(destination));
        }

        #[test]
        fn more_bytes_do_not_change_a_decision(
            valid: bool,
            head in prop::collection::vec(any::<u8>(), 0..4),
            block in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut bytes = if valid { SIGNATURE.to_vec() } else { Vec::new() };
            bytes.extend(head);
            bytes.extend(block);
            let whole = decode(&bytes);
            for cut in 0..bytes.len() {
                match decode(&bytes[..cut]) {
                    Ok(Decoded::Needs(needed)) => prop_assert!(needed > cut),
                    decided => prop_assert_eq!(decided, whole),
                }
            }
        }
    }
}
