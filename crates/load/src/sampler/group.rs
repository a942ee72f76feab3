//! A process and its descendants.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{numbered, parse};

/// A process. Its start time distinguishes it from later processes with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupMember {
    /// Its process id.
    pub pid: u32,
    /// Clock ticks from the machine's start to the process's.
    started: u64,
}

impl GroupMember {
    /// Returns whether the process still runs: it has not ended, and is not a zombie.
    pub fn is_alive(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok();
        let stat = stat.as_deref().and_then(parse::proc_stat);
        stat.is_some_and(|stat| stat.started == self.started && !stat.is_zombie)
    }
}

/// Returns the process `root`, its descendants, and the members of its process group, in ascending
/// order and without ended processes. Misses a process that left the group and lost its parent.
/// Empty on systems without /proc.
pub fn process_group(root: u32) -> Vec<GroupMember> {
    let mut all: Vec<(u32, parse::ProcStat)> = numbered(Path::new("/proc"))
        .filter_map(|(pid, dir)| {
            let stat = fs::read_to_string(dir.join("stat")).ok()?;
            Some((pid, parse::proc_stat(&stat)?))
        })
        .collect();
    let mut found = BTreeSet::from([root]);
    // Children may have smaller ids than their parents, so repeat until no process is added.
    loop {
        let before = found.len();
        for (pid, stat) in &all {
            if found.contains(&stat.parent) || stat.group == root {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            break;
        }
    }
    all.retain(|(pid, stat)| found.contains(pid) && !stat.is_zombie);
    let mut members: Vec<GroupMember> =
        all.into_iter().map(|(pid, stat)| GroupMember { pid, started: stat.started }).collect();
    members.sort_unstable();
    members
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn children_and_grandchildren_are_found_until_they_end() {
        // Uses descriptor 3: a shell replaces descriptor 0 of its background processes by
        // /dev/null.
        let mut child = Command::new("sh")
            .args(["-c", "exec 3<&0; sh -c 'echo $$; exec cat' <&3 & wait"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        let members = process_group(child.id());
        let pids: BTreeSet<u32> = members.iter().map(|member| member.pid).collect();
        assert_eq!(pids, BTreeSet::from([child.id(), grandchild]));
        assert!(members.iter().all(|member| member.is_alive()));
        let other = GroupMember { started: members[0].started + 1, ..members[0] };
        assert!(!other.is_alive(), "the id with another start time is another process");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(process_group(child.id()).is_empty());
        assert!(!members.iter().any(|member| member.is_alive()));
    }
}
