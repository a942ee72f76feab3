//! The processes that listen on a port, on Windows.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use windows_sys::Win32::Foundation::{ERROR_INSUFFICIENT_BUFFER, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GetExtendedTcpTable, TCP_TABLE_OWNER_PID_LISTENER,
};
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6};

/// The times that a table is read again because it has grown.
const ATTEMPTS: usize = 8;

/// A family of addresses, and the form of its table. All fields are words of 32 bits.
struct Family {
    id: u16,
    /// Words of an entry.
    words: usize,
    /// Words of the address.
    address: usize,
    /// The words before the address, the port and the process of an entry.
    at: [usize; 3],
}

/// MIB_TCPROW_OWNER_PID: the state, the address and port of both ends, the process.
const V4: Family = Family { id: AF_INET, words: 6, address: 1, at: [1, 2, 5] };
/// MIB_TCP6ROW_OWNER_PID: address, scope and port of both ends, the state, the process.
const V6: Family = Family { id: AF_INET6, words: 14, address: 4, at: [0, 5, 13] };

/// Returns the ids of the processes that listen on `address`, or on its port at all addresses, in
/// ascending order. Empty if the system does not tell, as Wine does not.
#[must_use]
pub fn port_owners(address: SocketAddr) -> Vec<u32> {
    let owners: BTreeSet<u32> = [V4, V6]
        .into_iter()
        .flat_map(|family| {
            let table = table(family.id).unwrap_or_default();
            family.owners(&table, address)
        })
        .collect();
    // 0 means that the owner is unknown, or has ended.
    owners.into_iter().filter(|&owner| owner != 0).collect()
}

impl Family {
    /// Finds the owners in a table, which begins with the number of its entries.
    fn owners(&self, table: &[u32], address: SocketAddr) -> Vec<u32> {
        let Some((&count, entries)) = table.split_first() else { return Vec::new() };
        let [ip, port, process] = self.at;
        let fits = |entry: &&[u32]| {
            let listens_at = ip_of(&entry[ip..ip + self.address]);
            // The port is in network byte order, in the low half.
            u16::from_be(entry[port] as u16) == address.port()
                && (listens_at.is_unspecified() || listens_at == address.ip())
        };
        let entries = entries.chunks_exact(self.words).take(count as usize);
        entries.filter(fits).map(|entry| entry[process]).collect()
    }
}

/// Reads an address of one or four words, which are in memory as in a packet.
fn ip_of(words: &[u32]) -> IpAddr {
    let octets: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    match <[u8; 16]>::try_from(&*octets) {
        Ok(octets) => Ipv6Addr::from(octets).to_canonical(),
        Err(_) => Ipv4Addr::from(words[0].to_ne_bytes()).into(),
    }
}

/// Reads the table of listeners of a family; `None` if the system has none.
#[allow(unsafe_code)]
fn table(family: u16) -> Option<Vec<u32>> {
    let mut table: Vec<u32> = Vec::new();
    for _ in 0..ATTEMPTS {
        let mut bytes = u32::try_from(size_of_val(&*table)).ok()?;
        // SAFETY: the system writes at most `bytes` to the table, which has as many, and their
        // number to `bytes`; both outlive the call.
        let outcome = unsafe {
            GetExtendedTcpTable(
                table.as_mut_ptr().cast(),
                &raw mut bytes,
                0,
                family.into(),
                TCP_TABLE_OWNER_PID_LISTENER,
                0,
            )
        };
        match outcome {
            NO_ERROR => return Some(table),
            ERROR_INSUFFICIENT_BUFFER => table = vec![0; bytes.div_ceil(4) as usize],
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn we_find_no_one_but_ourselves_by_our_port() {
        for address in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let mut address = listener.local_addr().unwrap();
            if address.ip().is_unspecified() {
                address.set_ip(Ipv4Addr::LOCALHOST.into());
            }
            let owners = port_owners(address);
            // Wine has the port, and 0 in place of the process.
            assert!(owners.is_empty() || owners == [std::process::id()], "{address}: {owners:?}");
            drop(listener);
            assert_eq!(port_owners(address), [0_u32; 0], "{address}");
        }
    }

    #[test]
    fn a_table_is_read_by_words() {
        let word = |octets: [u8; 4]| u32::from_ne_bytes(octets);
        let port = u32::from(9001_u16.to_be());
        let v4 = |ip, process| [2, word(ip), port, 0, 0, process];
        let other = [2, word([127, 0, 0, 1]), u32::from(9002_u16.to_be()), 0, 0, 40];
        let entries =
            [v4([127, 0, 0, 1], 8), v4([0, 0, 0, 0], 12), v4([127, 0, 0, 2], 16), other].concat();
        let table = [&[4][..], &entries].concat();
        assert_eq!(V4.owners(&table, "127.0.0.1:9001".parse().unwrap()), [8, 12]);
        let mut v6 = [0_u32; 15];
        (v6[0], v6[4], v6[6], v6[14]) = (1, word([0, 0, 0, 1]), port, 20);
        assert_eq!(V6.owners(&v6, "[::1]:9001".parse().unwrap()), [20]);
        assert_eq!(V6.owners(&v6, "[::2]:9001".parse().unwrap()), [0_u32; 0]);
    }
}
