//! CPUs for event loops: which of the usable ones each is pinned to.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::Path;

use crate::affinity::usable_cpus;

/// The CPU of one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CpuPlace {
    /// The number of the CPU, as the system numbers them.
    pub cpu: usize,
    /// The CPU's NUMA node; 0 where the system reports none.
    pub node: usize,
}

/// The CPUs of all shards that are pinned, each to its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    places: Vec<CpuPlace>,
    nodes: usize,
    refusals: Vec<(usize, String)>,
}

impl Placement {
    /// Returns the CPU of each shard, by the number of the shard.
    #[must_use]
    pub fn places(&self) -> &[CpuPlace] {
        &self.places
    }

    /// Returns the number of NUMA nodes with at least one usable CPU.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// Returns the shards that the kernel did not let run on their CPU, with its reason. Empty
    /// before the server runs.
    #[must_use]
    pub fn refusals(&self) -> &[(usize, String)] {
        &self.refusals
    }

    /// Assigns the CPUs to `shards` shards in turn.
    fn repeated(mut self, shards: usize) -> Self {
        self.places = self.places.iter().copied().cycle().take(shards).collect();
        self
    }

    /// Records that the kernel did not let `shard` run on its CPU.
    #[doc(hidden)]
    pub fn record_refusal(&mut self, shard: usize, reason: &io::Error) {
        self.refusals.push((shard, reason.to_string()));
    }
}

/// The text has one line.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let refused = |shard| self.refusals.iter().find(|refusal| refusal.0 == shard);
        f.write_str(if self.refusals.is_empty() {
            "each event loop has a CPU of its own: "
        } else {
            "not every event loop has a CPU of its own: "
        })?;
        for (shard, CpuPlace { cpu, node }) in self.places.iter().enumerate() {
            let between = if shard == 0 { "" } else { ", " };
            write!(f, "{between}shard {shard} ")?;
            match refused(shard) {
                Some((_, reason)) => write!(f, "any, since CPU {cpu} was refused ({reason})")?,
                None if self.nodes > 1 => write!(f, "CPU {cpu} (node {node})")?,
                None => write!(f, "CPU {cpu}")?,
            }
        }
        match self.nodes {
            1 => f.write_str("; one NUMA node, so all memory is equally near"),
            nodes => {
                write!(f, "; {nodes} NUMA nodes, and each shard's tables and buffers on its own")
            }
        }
    }
}

/// Chooses the CPUs of `shards` shards. If there may be more shards than CPUs, the CPUs are
/// `shared`.
///
/// Uses as few NUMA nodes as possible, and on each node all cores before any core's second thread.
///
/// # Errors
/// A sentence with the remedy: there are more shards than usable CPUs, or they are unknown.
pub fn choose(shards: usize, shared: bool) -> Result<Placement, String> {
    let cpus = usable_cpus().map_err(|error| {
        format!(
            "pin is cores, but the usable CPUs of this system are unknown ({error}); set pin to \
             none"
        )
    })?;
    #[cfg(not(windows))]
    let nodes = nodes(Path::new("/sys/devices/system/node"));
    #[cfg(not(windows))]
    let core_of = |cpu| core_of(Path::new("/sys/devices/system/cpu"), cpu);
    #[cfg(windows)]
    let crate::affinity::Topology { nodes, cores } = crate::affinity::topology();
    #[cfg(windows)]
    let core_of = |cpu| {
        let core = cores.iter().find(|core| core.contains(&cpu));
        core.and_then(|core| core.first().copied()).unwrap_or(cpu)
    };
    let apart = if shared { shards.min(cpus.len()) } else { shards };
    place(&nodes, core_of, &cpus, apart).map(|placement| placement.repeated(shards))
}

/// Returns the NUMA nodes and their CPUs, in order; none if the system does not report them.
#[cfg_attr(windows, allow(dead_code, reason = "Windows has a call"))]
fn nodes(directory: &Path) -> Vec<(usize, Vec<usize>)> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let node = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
        let list = std::fs::read_to_string(entry.path().join("cpulist")).ok()?;
        Some((number, cpu_list(&list)?))
    };
    let mut nodes: Vec<_> = entries.flatten().filter_map(node).collect();
    nodes.sort_unstable();
    nodes
}

/// Parses a list of CPUs in the kernel's format, such as `0-3,8`; a node without CPUs has an empty
/// list.
#[cfg_attr(windows, allow(dead_code, reason = "Windows has a call"))]
fn cpu_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cpus)
}

/// Returns the lowest of the CPUs that are threads of the same core; `cpu` itself if the system
/// does not report them.
#[cfg_attr(windows, allow(dead_code, reason = "Windows has a call"))]
fn core_of(directory: &Path, cpu: usize) -> usize {
    let list = directory.join(format!("cpu{cpu}/topology/thread_siblings_list"));
    let siblings = std::fs::read_to_string(list).ok().and_then(|list| cpu_list(&list));
    siblings.and_then(|siblings| siblings.into_iter().min()).unwrap_or(cpu)
}

/// Chooses the CPUs of `shards` shards.
///
/// It fills one node after the other, starting with the node that has the largest number of usable
/// CPUs, so that as few nodes as possible are used. On each node it takes the cores in ascending
/// order, and then their second threads, even if the system numbers them differently.
#[doc(hidden)]
pub fn place(
    nodes: &[(usize, Vec<usize>)],
    core_of: impl Fn(usize) -> usize,
    cpus: &[usize],
    shards: usize,
) -> Result<Placement, String> {
    if shards > cpus.len() {
        return Err(format!(
            "shards is {shards}, but pin is cores and the process may use {} CPU{}; \
             lower shards, or set pin to none",
            cpus.len(),
            if cpus.len() == 1 { "" } else { "s" }
        ));
    }
    let node_of = |cpu: usize| nodes.iter().find(|(_, of)| of.contains(&cpu)).map_or(0, |of| of.0);
    let all: Vec<CpuPlace> = cpus.iter().map(|&cpu| CpuPlace { cpu, node: node_of(cpu) }).collect();
    let cores: Vec<usize> = cpus.iter().map(|&cpu| core_of(cpu)).collect();
    // The number of earlier threads of the same core: 0 for all but second threads.
    let before = |index: usize| cores[..index].iter().filter(|&&core| core == cores[index]).count();
    let size = |node: usize| all.iter().filter(|place| place.node == node).count();
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_cached_key(|&index| {
        let CpuPlace { cpu, node } = all[index];
        (Reverse(size(node)), node, before(index), cpu)
    });
    let numbers: BTreeSet<usize> = all.iter().map(|place| place.node).collect();
    let places = order.into_iter().take(shards).map(|index| all[index]).collect();
    Ok(Placement { places, nodes: numbers.len(), refusals: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_nodes() -> Vec<(usize, Vec<usize>)> {
        let lists = ["0-3,8-11", "4-7,12-15\n"];
        lists.iter().map(|text| cpu_list(text).unwrap()).enumerate().collect()
    }

    fn placed(cpus: &[usize], shards: usize) -> Vec<(usize, usize)> {
        let placement = place(&two_nodes(), |cpu| cpu, cpus, shards).unwrap();
        placement.places().iter().map(|place| (place.cpu, place.node)).collect()
    }

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(cpu_list("\n"), Some(vec![]));
        assert_eq!(cpu_list("0-x"), None);
    }

    #[test]
    fn nodes_are_filled_one_after_the_other() {
        let all: Vec<usize> = (0..16).collect();
        assert_eq!(placed(&all, 3), [(0, 0), (1, 0), (2, 0)]);
        let ten = placed(&all, 10);
        let first: Vec<usize> = ten[..8].iter().map(|place| place.0).collect();
        assert_eq!(first, [0, 1, 2, 3, 8, 9, 10, 11]);
        assert_eq!(ten[8..], [(4, 1), (5, 1)]);
        // CPUs that the process may not use are left out.
        assert_eq!(placed(&[2, 5, 9, 12], 4), [(2, 0), (9, 0), (5, 1), (12, 1)]);
    }

    #[test]
    fn the_node_with_most_usable_cpus_is_filled_first() {
        // Both shards fit on node 1; in ascending order of CPUs they would be on two nodes.
        assert_eq!(placed(&[3, 4, 5], 2), [(4, 1), (5, 1)]);
        assert_eq!(placed(&[3, 4, 5], 3), [(4, 1), (5, 1), (3, 0)]);
    }

    #[test]
    fn cores_come_before_their_second_threads_in_both_ways_to_number_them() {
        let cpus = |core_of: fn(usize) -> usize, cpus: &[usize], shards| -> Vec<usize> {
            let placement = place(&[(0, (0..8).collect())], core_of, cpus, shards).unwrap();
            placement.places().iter().map(|place| place.cpu).collect()
        };
        let all: Vec<usize> = (0..8).collect();
        assert_eq!(cpus(|cpu| cpu / 2 * 2, &all, 5), [0, 2, 4, 6, 1], "neighbours");
        assert_eq!(cpus(|cpu| cpu % 4, &all, 5), [0, 1, 2, 3, 4], "last");
        // A core counts even if the process may not use its first thread.
        assert_eq!(cpus(|cpu| cpu / 2 * 2, &[1, 2, 3], 3), [1, 2, 3]);
    }

    #[test]
    fn a_placement_shows_the_cpus_and_the_number_of_nodes() {
        let text = |nodes: &[(usize, Vec<usize>)], cpus: &[usize], shards| {
            place(nodes, |cpu| cpu, cpus, shards).unwrap().to_string()
        };
        let two = text(&two_nodes(), &[3, 4], 2);
        assert!(
            two.contains("shard 0 CPU 3 (node 0), shard 1 CPU 4 (node 1); 2 NUMA nodes"),
            "{two}"
        );
        for nodes in [&[(0, vec![0, 1])][..], &[]] {
            let one = text(nodes, &[0, 1], 2);
            assert!(one.contains("shard 0 CPU 0, shard 1 CPU 1; one NUMA node"), "{one}");
        }
    }

    #[test]
    fn a_placement_does_not_claim_what_the_kernel_refused() {
        let mut placement = place(&two_nodes(), |cpu| cpu, &[3, 4], 2).unwrap();
        assert_eq!(placement.refusals(), []);
        placement.record_refusal(1, &io::Error::other("Invalid argument"));
        let text = placement.to_string();
        assert!(
            text.starts_with("not every event loop has a CPU of its own: shard 0 CPU 3"),
            "{text}"
        );
        assert!(text.contains("shard 1 any, since CPU 4 was refused (Invalid argument)"), "{text}");
    }

    #[test]
    fn more_shards_than_cpus_are_an_error_that_names_both() {
        let error = place(&two_nodes(), |cpu| cpu, &[0, 1], 3).unwrap_err();
        assert!(error.contains("shards is 3") && error.contains("2 CPUs"), "{error}");
    }

    #[test]
    fn nodes_are_read_from_a_directory_like_that_of_sysfs() {
        let directory = throng_testkit::TempFolder::new("nodes");
        for (name, list) in [("node1", "2-3\n"), ("node0", "0-1\n"), ("power", "x")] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
            std::fs::write(directory.join(name).join("cpulist"), list).unwrap();
        }
        assert_eq!(nodes(&directory), [(0, vec![0, 1]), (1, vec![2, 3])]);
        assert_eq!(nodes(&directory.join("missing")), []);
    }

    #[test]
    fn cores_are_read_from_a_directory_like_that_of_sysfs() {
        let directory = throng_testkit::TempFolder::new("cores");
        let topology = directory.join("cpu5/topology");
        std::fs::create_dir_all(&topology).unwrap();
        std::fs::write(topology.join("thread_siblings_list"), "1,5\n").unwrap();
        assert_eq!((core_of(&directory, 5), core_of(&directory, 6)), (1, 6));
    }
}
