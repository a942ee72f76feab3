//! Finds the processes that listen on a port.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use super::{numbered, parse};

/// Returns the ids of the processes that listen on `address`, in ascending order: several processes
/// can share a port with SO_REUSEPORT or after a fork. Empty if the address belongs to another
/// machine, or if descriptors are not readable.
#[must_use]
pub fn listening_pids(address: SocketAddr) -> Vec<u32> {
    let inodes: BTreeSet<u64> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::read_to_string(table).ok())
        .flat_map(|table| parse::listening_inodes(&table, address.ip(), address.port()))
        .collect();
    if inodes.is_empty() {
        return Vec::new();
    }
    let holding = |holds: &dyn Fn(&Path) -> bool| {
        let processes = numbered(Path::new("/proc")).filter(|(_, dir)| holds(dir));
        let mut pids: Vec<u32> = processes.map(|(pid, _)| pid).collect();
        pids.sort_unstable();
        pids
    };
    let in_process = holding(&|dir| holds_any(&dir.join("fd"), &inodes));
    if !in_process.is_empty() {
        return in_process;
    }
    // Threads may have their own descriptor tables, with the listener in one of them.
    holding(&|dir| {
        numbered(&dir.join("task")).any(|(_, thread)| holds_any(&thread.join("fd"), &inodes))
    })
}

fn holds_any(descriptors: &Path, inodes: &BTreeSet<u64>) -> bool {
    numbered(descriptors).any(|(_, path)| {
        let link = fs::read_link(path).ok();
        let inode = link.as_deref().and_then(Path::to_str).and_then(parse::socket_inode);
        inode.is_some_and(|inode| inodes.contains(&inode))
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn we_find_ourselves_by_our_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(listening_pids(address), [std::process::id()]);
        drop(listener);
        assert_eq!(listening_pids(address), [0_u32; 0]);
    }
}
