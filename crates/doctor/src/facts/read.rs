//! Reads the facts of a machine from a tree of files: its own, or a recorded one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use throng_io::counters;

use super::tree::Tree;
use super::{Counters, Facts, Interface, SYSCTLS, parse, service};

/// Reads of the clock that are timed.
const CLOCK_READS: u32 = 100_000;

/// Programs that change kernel settings or spread interrupts.
const OWNERS: [&str; 3] = ["tuned", "bpftune", "irqbalance"];

/// Options of [`read`].
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// The root of the tree. `/` is this machine.
    pub root: PathBuf,
    /// The time between two readings of the counters; `None` for one reading.
    pub sample: Option<Duration>,
    /// Times reads of the clock of this machine, and lists its processes.
    pub measures: bool,
}

impl Default for ReadOptions {
    /// Reads this machine once, and measures nothing.
    fn default() -> Self {
        Self { root: PathBuf::from("/"), sample: None, measures: false }
    }
}

/// Reads the facts. What cannot be read is left out.
#[must_use]
pub fn read(options: &ReadOptions) -> Facts {
    let tree = Tree::new(&options.root);
    let mut facts = Facts::default();
    let groups = tree.text("proc/self/cgroup").unwrap_or_default();
    sysctls(&tree, &mut facts);
    process(&tree, &mut facts);
    memory(&tree, &groups, &mut facts);
    cpus(&tree, &groups, &mut facts);
    facts.interfaces = interfaces(&tree);
    if let Some((time, source)) = service::stop_time(&tree, &groups) {
        (facts.stop_time, facts.stop_source) = (Some(time), Some(source));
    }
    facts.counters = counters(&tree, &groups, &facts.interfaces);
    if let Some(sample) = options.sample {
        std::thread::sleep(sample);
        let later = counters(&tree, &groups, &facts.interfaces);
        facts.earlier = Some(std::mem::replace(&mut facts.counters, later));
    }
    if options.measures {
        facts.owners = owners(&tree);
        facts.boot_settings = boot_settings(&tree);
        if tree.is_this_machine() {
            facts.clock_read = Some(clock_read());
        }
    }
    facts
}

fn sysctls(tree: &Tree, facts: &mut Facts) {
    for key in SYSCTLS {
        let text = tree.text(&format!("proc/sys/{}", key.replace('.', "/")));
        if let Some(values) = text.and_then(|text| parse::numbers(&text)) {
            facts.sysctls.insert((*key).to_owned(), values);
        }
    }
    let reserved = tree.text("proc/sys/net/ipv4/ip_local_reserved_ports");
    let port = |port: u64| u16::try_from(port).ok();
    facts.reserved_ports = reserved
        .and_then(|text| parse::ranges(&text))
        .map(|ranges| ranges.into_iter().filter_map(|(a, b)| Some((port(a)?, port(b)?))).collect());
    let files = tree.text("proc/sys/fs/file-nr").and_then(|text| parse::numbers(&text));
    facts.files_used = files.and_then(|all| all.first().copied());
    let version = tree.text("proc/sys/kernel/osrelease");
    facts.own_tables = version.and_then(|version| parse::is_at_least(&version, (5, 9)));
    #[cfg(target_os = "linux")]
    if tree.is_this_machine() {
        facts.own_tables = Some(throng_io::tables::check_support().is_ok());
    }
}

/// Reads the state of this process, which a program that it starts inherits.
fn process(tree: &Tree, facts: &mut Facts) {
    let limits = tree.text("proc/self/limits").unwrap_or_default();
    if let Some((soft, hard)) = parse::process_limit(&limits, "Max open files") {
        (facts.nofile_soft, facts.nofile_hard) = (Some(soft), Some(hard));
    }
    facts.user_processes = parse::process_limit(&limits, "Max processes").map(|limit| limit.0);
    let memory = ["Max address space", "Max data size"];
    let memory = memory.iter().filter_map(|name| parse::process_limit(&limits, name));
    facts.process_memory = memory.map(|limit| limit.0).min();
    let status = tree.text("proc/self/status").unwrap_or_default();
    let users = parse::line_of(&status, "Uid").and_then(parse::numbers);
    // The real one, and the effective one.
    facts.user = users.and_then(|all| all.get(1).copied());
    facts.capabilities = parse::line_of(&status, "CapEff").and_then(parse::mask);
    facts.is_filtered = parse::field(&status, "Seccomp").map(|mode| mode == 2);
    facts.swapped = parse::field(&status, "VmSwap");
    let cpus = parse::line_of(&status, "Cpus_allowed_list").and_then(parse::ranges);
    facts.cpus = cpus.map(|ranges| parse::members(&ranges)).filter(|&cpus| cpus > 0);
    let descriptors = tree.names("proc/self/fd").len() as u64;
    // One of them lists the others.
    facts.descriptors_used = (descriptors > 0).then(|| descriptors.saturating_sub(1));
}

fn memory(tree: &Tree, groups: &str, facts: &mut Facts) {
    let memory = tree.text("proc/meminfo").unwrap_or_default();
    facts.memory_total = parse::field(&memory, "MemTotal");
    facts.memory_available = parse::field(&memory, "MemAvailable");
    // Without a limit, version 1 has the largest number of pages.
    let limit = |text: &str| parse::limit(text).filter(|&bytes| bytes < 1 << 62);
    let old = Some(("memory", "memory.limit_in_bytes"));
    let most = tree.lowest(groups, "memory.max", old, limit);
    let high = tree.lowest(groups, "memory.high", None, limit);
    facts.cgroup_memory = most.into_iter().chain(high).min();
    let used = ("memory", "memory.usage_in_bytes");
    let files = tree.folders(groups, "memory.current", Some(used));
    facts.cgroup_memory_used = files.iter().find_map(|file| tree.limit(file));
    let bounded = |text: &str| parse::limit(text).filter(|&most| most != u64::MAX);
    facts.cgroup_pids = tree.lowest(groups, "pids.max", Some(("pids", "pids.max")), bounded);
    let pages = tree.text("sys/kernel/mm/transparent_hugepage/enabled");
    facts.huge_pages = pages.and_then(|text| parse::chosen(&text).map(str::to_owned));
}

fn cpus(tree: &Tree, groups: &str, facts: &mut Facts) {
    let quota = tree.lowest(groups, "cpu.max", None, parse::cpu_quota);
    let periods = tree.folders(groups, "", Some(("cpu", "cpu.cfs_period_us")));
    let quotas = tree.folders(groups, "", Some(("cpu", "cpu.cfs_quota_us")));
    let old = quotas.iter().zip(&periods).filter_map(|(quota, period)| {
        // -1 means no limit.
        parse::thousandths(tree.limit(quota)?, tree.limit(period)?)
    });
    facts.cpu_quota = quota.into_iter().chain(old).min();
    let nodes = tree.text("sys/devices/system/node/has_memory").and_then(|it| parse::ranges(&it));
    facts.nodes = nodes.map(|ranges| parse::members(&ranges));
    let clock = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    facts.clock_source = tree.text(clock).map(|text| text.trim().to_owned());
    let cpus = tree.names("sys/devices/system/cpu").into_iter();
    let governor =
        |cpu: String| tree.text(&format!("sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor"));
    let mut governors: Vec<String> =
        cpus.filter_map(governor).map(|text| text.trim().to_owned()).collect();
    governors.sort();
    governors.dedup();
    facts.governors = governors;
}

fn interfaces(tree: &Tree) -> Vec<Interface> {
    let interface = |name: String| {
        let folder = format!("sys/class/net/{name}");
        // Not lo, bridges and tunnels.
        if !tree.exists(&format!("{folder}/device")) {
            return None;
        }
        let all = tree.names(&format!("{folder}/queues"));
        let receiving: Vec<&String> = all.iter().filter(|queue| queue.starts_with("rx-")).collect();
        let is_spread = receiving.iter().any(|queue| {
            let mask = tree.text(&format!("{folder}/queues/{queue}/rps_cpus")).unwrap_or_default();
            mask.contains(|c: char| c.is_ascii_hexdigit() && c != '0')
        });
        let node = tree.text(&format!("{folder}/device/numa_node"));
        let node = node.and_then(|text| text.trim().parse::<u64>().ok());
        Some(Interface { name, queues: receiving.len() as u64, is_spread, node })
    };
    tree.names("sys/class/net").into_iter().filter_map(interface).collect()
}

fn counters(tree: &Tree, groups: &str, interfaces: &[Interface]) -> Counters {
    let netstat = tree.text("proc/net/netstat").unwrap_or_default();
    let softnet = tree.text("proc/net/softnet_stat").unwrap_or_default();
    let pages = tree.text("proc/vmstat").unwrap_or_default();
    let swapped_in = pages.lines().find_map(|line| line.strip_prefix("pswpin ")?.parse().ok());
    let stat = tree.folders(groups, "cpu.stat", Some(("cpu", "cpu.stat")));
    let throttled = stat.iter().find_map(|file| {
        let text = tree.text(file)?;
        text.lines().find_map(|line| line.strip_prefix("nr_throttled ")?.parse().ok())
    });
    // Interrupts have the interface's name, or the name of its device below the bus.
    let mut names: Vec<String> = interfaces.iter().map(|it| it.name.clone()).collect();
    names.extend(
        interfaces.iter().filter_map(|interface| {
            tree.target(&format!("sys/class/net/{}/device", interface.name))
        }),
    );
    let with_queues = tree.text("proc/interrupts").unwrap_or_default();
    Counters {
        listen_overflows: counters::named(&netstat, "TcpExt:", "ListenOverflows"),
        listen_drops: counters::named(&netstat, "TcpExt:", "ListenDrops"),
        syn_drops: counters::named(&netstat, "TcpExt:", "TCPReqQFullDrop"),
        packet_drops: parse::softnet(&softnet, 1),
        packet_squeezes: parse::softnet(&softnet, 2),
        throttled,
        swapped_in,
        cpus: parse::cpu_times(&tree.text("proc/stat").unwrap_or_default()),
        interrupts: parse::interrupts(&with_queues, &names),
    }
}

/// Returns the running programs that change settings.
fn owners(tree: &Tree) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for process in tree.names("proc") {
        if !process.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let name = tree.text(&format!("proc/{process}/comm")).unwrap_or_default();
        if OWNERS.contains(&name.trim()) && !found.iter().any(|it| it == name.trim()) {
            found.push(name.trim().to_owned());
        }
    }
    found.sort();
    found
}

/// Returns the file that sets a kernel setting last at boot. A file replaces files of the same
/// name in weaker folders, and files apply in the order of their names.
fn boot_settings(tree: &Tree) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    for folder in ["usr/lib/sysctl.d", "run/sysctl.d", "etc/sysctl.d"] {
        for name in tree.names(folder).into_iter().filter(|name| name.ends_with(".conf")) {
            files.insert(name.clone(), format!("{folder}/{name}"));
        }
    }
    let paths = files.into_values().chain(["etc/sysctl.conf".to_owned()]);
    let mut settings = BTreeMap::new();
    for path in paths {
        for (key, _) in parse::sysctl_settings(&tree.text(&path).unwrap_or_default()) {
            settings.insert(key, format!("/{path}"));
        }
    }
    settings
}

/// Returns the time of a clock read in nanoseconds, as an average of many reads.
fn clock_read() -> u64 {
    let began = Instant::now();
    for _ in 0..CLOCK_READS {
        std::hint::black_box(Instant::now());
    }
    u64::try_from(began.elapsed().as_nanos() / u128::from(CLOCK_READS)).unwrap_or(u64::MAX)
}
