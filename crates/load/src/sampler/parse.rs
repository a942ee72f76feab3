//! The formats of /proc, as pure functions of a file's text.

use std::net::IpAddr;

/// Time on a CPU and time waiting for one, in nanoseconds, from `/proc/<pid>/task/<tid>/schedstat`.
pub(super) fn schedstat_ns(text: &str) -> Option<(u64, u64)> {
    let mut fields = text.split_whitespace();
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// User plus system time in clock ticks from `/proc/<pid>/stat` or a thread's `stat`. The command
/// name may contain spaces and parentheses, so fields are counted from the last `)`.
pub(super) fn stat_cpu_ticks(text: &str) -> Option<u64> {
    let (_, after) = text.rsplit_once(')')?;
    let mut fields = after.split_whitespace().skip(11); // state is the first, utime the 12th
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Parent, group and start time of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcStat {
    pub(super) parent: u32,
    pub(super) group: u32,
    /// Clock ticks from the machine's start to the process's.
    pub(super) started: u64,
    /// Whether the process has ended, and its parent has not collected its status.
    pub(super) is_zombie: bool,
}

/// Parses `/proc/<pid>/stat`.
pub(super) fn proc_stat(text: &str) -> Option<ProcStat> {
    let (_, after) = text.rsplit_once(')')?;
    let mut fields = after.split_whitespace();
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    // The start time is field 22 of the file; the parent's id is field 4.
    let started = fields.nth(16)?.parse().ok()?;
    Some(ProcStat { parent, group, started, is_zombie })
}

/// The command name in a `stat` file.
pub(super) fn stat_name(text: &str) -> Option<&str> {
    let start = text.find('(')? + 1;
    let end = text.rfind(')')?;
    text.get(start..end)
}

/// A `Name:   123 kB` line of `smaps_rollup` or `status`, in bytes.
pub(super) fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Returns the number of CPUs in the `Cpus_allowed_list` of `status`, such as `0-3,8`.
pub(super) fn cpus_allowed(status: &str) -> Option<usize> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(',').try_fold(0, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        Some(sum + last.checked_sub(first)? + 1)
    })
}

/// Busy and total ticks of the whole machine from the first line of `/proc/stat`; waiting for a
/// disk is idle.
pub(super) fn machine_ticks(text: &str) -> Option<(u64, u64)> {
    let fields = text.lines().next()?.strip_prefix("cpu ")?;
    // user nice system idle iowait irq softirq steal; guest time is contained in user.
    let ticks: Vec<u64> = fields.split_whitespace().take(8).map_while(|f| f.parse().ok()).collect();
    let total: u64 = ticks.iter().sum();
    Some((total - ticks.get(3)? - ticks.get(4)?, total))
}

/// Returns the inodes of sockets that listen on `port` at `address` or at all addresses, from
/// `/proc/net/tcp` or `tcp6`.
pub(super) fn listening_inodes(table: &str, address: IpAddr, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let fits = |local: &str| {
        let (hex, local_port) = local.split_once(':')?;
        if u16::from_str_radix(local_port, 16).ok()? != port {
            return None;
        }
        let any = hex.bytes().all(|digit| digit == b'0');
        (any || hex.eq_ignore_ascii_case(&kernel_hex(address, hex.len()))).then_some(())
    };
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (*fields.get(3)? == LISTEN).then_some(())?;
            fits(fields.get(1)?)?;
            fields.get(9)?.parse().ok()
        })
        .collect()
}

/// Formats an address as the kernel prints it: 32-bit words in native byte order, with IPv4 mapped
/// into IPv6 in the IPv6 table.
fn kernel_hex(address: IpAddr, digits: usize) -> String {
    let octets: Vec<u8> = match address {
        IpAddr::V4(v4) if digits == 8 => v4.octets().to_vec(),
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let word = |bytes: &[u8]| match bytes.try_into() {
        Ok(bytes) => format!("{:08X}", u32::from_ne_bytes(bytes)),
        Err(_) => String::new(),
    };
    octets.chunks(4).map(word).collect()
}

/// Resident pages in /proc/pid/statm: the second field.
pub(super) fn statm_resident_pages(statm: &str) -> Option<u64> {
    statm.split_whitespace().nth(1)?.parse().ok()
}

/// The inode in a descriptor's link `socket:[12345]`.
pub(super) fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat() {
        let text = "77 (a) b (c) Z 12 34 56 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 0 0";
        let stat = ProcStat { parent: 12, group: 34, started: 987_654, is_zombie: true };
        assert_eq!(proc_stat(text), Some(stat));
        assert_eq!(proc_stat("77 (a) S 12"), None);
    }

    #[test]
    fn cpu_time() {
        assert_eq!(schedstat_ns("123456789 4567 89\n"), Some((123_456_789, 4567)));
        assert_eq!(schedstat_ns(""), None);
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1 2 3 4 150 50 0 0 20 0 3 0 99 1 2\n";
        assert_eq!(stat_cpu_ticks(stat), Some(200));
        assert_eq!(stat_name(stat), Some("a) b (c)"));
        assert_eq!(stat_cpu_ticks("nonsense"), None);
    }

    #[test]
    fn resident_pages() {
        assert_eq!(statm_resident_pages("5000 1234 800 200 0 400 0\n"), Some(1234));
        assert_eq!(statm_resident_pages("5000"), None);
    }

    #[test]
    fn memory() {
        let rollup = "55d0-7ffd ---p 00000000 00:00 0 [rollup]\nRss:                4100 kB\n\
                      Pss:                2000 kB\nPrivate_Clean:         8 kB\n\
                      Private_Dirty:       512 kB\nAnonymous:           400 kB\n";
        assert_eq!(kib_field(rollup, "Rss"), Some(4100 * 1024));
        assert_eq!(kib_field(rollup, "Anonymous"), Some(400 * 1024));
        assert_eq!(kib_field(rollup, "Private"), None);
    }

    #[test]
    fn allowed_cpus() {
        let status = |list| format!("Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t{list}\n");
        for (list, count) in [("0", 1), ("0-3", 4), ("0-1,4,8-9", 5)] {
            assert_eq!(cpus_allowed(&status(list)), Some(count), "{list}");
        }
        assert_eq!(cpus_allowed(&status("3-1")), None);
    }

    #[test]
    fn machine() {
        let stat = "cpu  100 0 50 800 40 5 5 0 7 0\ncpu0 1 2 3\n";
        assert_eq!(machine_ticks(stat), Some((160, 1000)));
        assert_eq!(machine_ticks("cpu0 1 2 3 4 5"), None);
    }

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when \
                        retrnsmt   uid  timeout inode\n";
    /// The columns of a socket from its queues to its timeout.
    const QUEUES: &str = "00000000:00000000 00:00000000 00000000     0        0";

    #[test]
    #[cfg(target_endian = "little")]
    fn listeners_by_address_and_port() {
        let table = format!(
            "{HEAD}\
             0: 0100007F:2329 00000000:0000 0A {QUEUES} 111 1 0\n\
             1: 00000000:2329 00000000:0000 0A {QUEUES} 222 1 0\n\
             2: 0200007F:2329 00000000:0000 0A {QUEUES} 333 1 0\n\
             3: 0100007F:2329 0100007F:A000 01 {QUEUES} 444 1 0\n\
             4: 0100007F:232A 00000000:0000 0A {QUEUES} 555 1 0\n"
        );
        let found = listening_inodes(&table, "127.0.0.1".parse().unwrap(), 9001);
        assert_eq!(found, [111, 222]);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn listeners_of_both_families() {
        let table = format!(
            "{HEAD}\
             0: 00000000000000000000000001000000:2329 0:0 0A 0:0 00:0 0 0 0 1 1 0\n\
             1: 0000000000000000FFFF00000100007F:2329 0:0 0A 0:0 00:0 0 0 0 2 1 0\n\
             2: 00000000000000000000000000000000:2329 0:0 0A 0:0 00:0 0 0 0 3 1 0\n"
        );
        assert_eq!(listening_inodes(&table, "::1".parse().unwrap(), 9001), [1, 3]);
        assert_eq!(listening_inodes(&table, "127.0.0.1".parse().unwrap(), 9001), [2, 3]);
    }

    #[test]
    fn descriptor_links() {
        assert_eq!(socket_inode("socket:[12345]"), Some(12_345));
        assert_eq!(socket_inode("/dev/null"), None);
    }
}
