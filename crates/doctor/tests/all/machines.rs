//! Machines as trees of files, each in one text: a line `== path` begins a file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use throng_doctor::{
    Counters, Diagnosis, Facts, Io, Question, ReadOptions, Role, Settings, Status, at_start,
    diagnose, facts, report,
};
use throng_testkit::TempFolder;

use crate::golden::is_current;

/// The first is recorded; the others are written by hand, as their first line states.
pub(crate) const NAMES: [&str; 10] = [
    "virtual-machine",
    "bare-metal",
    "container",
    "systemd-unit",
    "pod",
    "small-vps",
    "numa",
    "few-files",
    "hardened",
    "old-kernel",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/machines")
}

/// Reads the facts of a machine from its files.
pub(crate) fn read(name: &str) -> Facts {
    let text = std::fs::read_to_string(folder().join(format!("{name}.txt"))).unwrap();
    read_tree(text.split("\n== ").skip(1).map(|file| {
        let (path, content) = file.split_once('\n').unwrap_or((file, ""));
        let content = format!("{content}\n");
        // The variables of an environment are separated by zero bytes.
        let is_environment = path.ends_with("environ");
        (path, if is_environment { content.replace('\n', "\0") } else { content })
    }))
}

/// Writes files, reads the facts and removes the files.
pub(crate) fn read_tree<'a>(files: impl IntoIterator<Item = (&'a str, impl AsRef<[u8]>)>) -> Facts {
    let root = TempFolder::new("doctor");
    for (path, content) in files {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let options = ReadOptions { root: root.to_path_buf(), sample: None, measures: true };
    facts::read(&options)
}

fn serve() -> Question {
    Question::new(Role::Serve)
}

fn status(diagnosis: &Diagnosis, id: &str) -> Status {
    diagnosis.finding(id).unwrap().status
}

#[test]
fn the_reports_of_all_machines_are_the_golden_ones() {
    for name in NAMES {
        let facts = read(name);
        let mut text = String::new();
        for question in [serve(), serve().connections(250_000)] {
            text += &report(&diagnose(&facts, &question), true);
            text += "\n----\n";
        }
        let balance = Question::new(Role::Balance).connections(100_000);
        text += &report(&diagnose(&facts, &balance), false);
        is_current(&folder().join(format!("golden/{name}.txt")), &text);
    }
}

#[test]
fn each_rule_passes_on_a_machine_and_does_not_on_another() {
    let mut seen: BTreeMap<&str, Vec<Status>> = BTreeMap::new();
    let exposed = Settings {
        listen: vec!["0.0.0.0:80".parse().unwrap(), "0.0.0.0:40000".parse().unwrap()],
        any_origin: true,
        heartbeat: None,
        deflate_bits: Some(15),
        max_memory: Some(u64::MAX),
        backends: 5000,
        sources: Some(1),
        shards: Some(100),
        ..Settings::default()
    };
    let modest = Settings {
        listen: vec!["127.0.0.1:9001".parse().unwrap()],
        deflate_bits: Some(9),
        backends: 4,
        sources: Some(4),
        ..Settings::default()
    };
    let threads = Settings { io: Io::Threads, ..Settings::default() };
    for name in NAMES {
        let facts = read(name);
        // A second reading without growth.
        let quiet = Facts { earlier: Some(facts.counters.clone()), ..facts.clone() };
        let mut busy = quiet.clone();
        let counters = &mut busy.counters;
        for counter in [&mut counters.listen_drops, &mut counters.packet_drops] {
            *counter = counter.map(|drops| drops + 5);
        }
        for cpu in &mut counters.cpus {
            (cpu.all, cpu.soft_interrupts) = (cpu.all + 100, cpu.soft_interrupts + 50);
        }
        let even: Vec<u64> = counters.interrupts.iter().map(|count| count + 1000).collect();
        let spread = Facts {
            counters: Counters { interrupts: even, ..facts.counters.clone() },
            governors: vec!["performance".to_owned()],
            interfaces: vec![facts::Interface { queues: 8, ..facts::Interface::default() }],
            nodes: Some(2),
            ..quiet.clone()
        };
        for facts in [&facts, &quiet, &busy, &spread] {
            for settings in [&Settings::default(), &exposed, &modest, &threads] {
                for (role, connections) in Role::ALL.iter().flat_map(|role| {
                    [None, Some(100), Some(400_000), Some(2_000_000_000)].map(|n| (*role, n))
                }) {
                    let question = Question { role, connections, settings: settings.clone() };
                    for finding in diagnose(facts, &question).findings {
                        seen.entry(finding.id).or_default().push(finding.status);
                    }
                }
            }
        }
    }
    // These have no condition: they are facts to be known.
    let facts_only = ["nofile-soft", "migrate", "dead-peers", "io-uring"];
    let mut missing = Vec::new();
    for (id, states) in &seen {
        let has = |wanted: &[Status]| states.iter().any(|status| wanted.contains(status));
        if *id == "workers" {
            assert!(states.iter().all(|status| *status == Status::Skip));
            continue;
        }
        let bad = [Status::Fail, Status::Warn, Status::Info];
        if !has(&[Status::Pass]) || has(&bad) == facts_only.contains(id) {
            missing.push(*id);
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(seen.len(), 48);
}

#[test]
fn this_recorded_machine_is_stopped_by_open_files_and_not_with_tables_for_each_loop() {
    let facts = read("virtual-machine");
    let found = diagnose(&facts, &serve());
    let most = found.connections().unwrap();
    assert!((19_900..20_000).contains(&most), "{most}");
    assert_eq!(found.walls[0].id, "nofile-hard");
    let found = diagnose(&facts, &serve().connections(250_000));
    assert_eq!((found.walls[0].id, found.connections()), ("tcp-mem", Some(575_796)));
    assert_eq!(status(&found, "nofile-hard"), Status::Pass);
    assert!(found.note.contains("--max-connections 250000"), "{}", found.note);
    assert_eq!(status(&found, "conntrack"), Status::Skip, "no rule tracks connections");
}

#[test]
fn bare_metal_is_stopped_by_conntrack() {
    let found = diagnose(&read("bare-metal"), &serve().connections(1_000_000));
    assert_eq!((found.walls[0].id, found.connections()), ("conntrack", Some(262_144 / 5 * 4)));
    for (id, expected) in [
        ("conntrack", Status::Fail),
        ("conntrack-time", Status::Info),
        ("irq-spread", Status::Warn),
        ("thp", Status::Warn),
        ("governor", Status::Info),
        ("owners", Status::Info),
        ("memory", Status::Pass),
    ] {
        assert_eq!(status(&found, id), expected, "{id}");
    }
    let owners = &found.finding("owners").unwrap().found;
    assert_eq!(owners, "tuned, net.core.somaxconn in /etc/sysctl.d/99-net.conf");
}

#[test]
fn a_container_is_stopped_by_the_memory_of_its_cgroup() {
    let facts = read("container");
    let found = diagnose(&facts, &serve().connections(250_000));
    assert_eq!((found.walls[0].id, status(&found, "memory")), ("memory", Status::Fail));
    assert_eq!(found.connections(), Some((512 - 20) * 1024 * 1024 / 100 * 80 / (4096 + 103)));
    let settings = Settings { io: Io::Threads, ..Settings::default() };
    let found = diagnose(&facts, &Question { settings, ..serve() });
    assert_eq!((found.walls[0].id, found.connections()), ("threads", Some(100 - 64)));
}

#[test]
fn a_unit_is_killed_in_the_middle_of_its_drain() {
    let facts = read("systemd-unit");
    let found = diagnose(&facts, &serve());
    let finding = found.finding("stop-time").unwrap();
    assert_eq!((finding.status, finding.wanted.as_str()), (Status::Fail, "20 s"));
    assert_eq!(finding.remedies[0].text(), "TimeoutStopSec=20");
    let most = found.connections().unwrap();
    assert!((65_400..65_536).contains(&most), "{most}");
    let ids: Vec<&str> = at_start(&facts, &serve()).iter().map(|found| found.id).collect();
    assert_eq!(ids, ["stop-time"]);
}

#[test]
fn a_pod_with_a_quota_is_throttled() {
    let facts = read("pod");
    assert_eq!((facts.cpu_quota, facts.stop_time), (Some(1500), Some(30)));
    let of_120 = facts.counters.clone();
    let calm = Facts { earlier: Some(of_120.clone()), ..facts };
    assert_eq!(status(&diagnose(&calm, &serve()), "cpu-quota"), Status::Pass);
    let earlier = Counters { throttled: Some(117), ..of_120 };
    let found = diagnose(&Facts { earlier: Some(earlier), ..calm.clone() }, &serve());
    let quota = found.finding("cpu-quota").unwrap();
    assert_eq!(quota.status, Status::Warn);
    assert!(quota.found.ends_with("stopped 3 times in a second"), "{}", quota.found);
    let settings = Settings { shards: Some(16), ..Settings::default() };
    let found = diagnose(&calm, &Question { settings, ..serve() });
    assert_eq!(status(&found, "cpu-quota"), Status::Warn, "16 event loops");
}

#[test]
fn a_small_virtual_server_has_many_limits() {
    let found = diagnose(&read("small-vps"), &serve());
    assert_eq!(found.walls[0].id, "nofile-hard");
    let most = found.connections().unwrap();
    assert!((900..1024).contains(&most), "{most}");
    for id in ["somaxconn", "clock", "steal"] {
        assert_eq!(status(&found, id), Status::Warn, "{id}");
    }
    assert_eq!(status(&found, "swap"), Status::Fail);
}

#[test]
fn a_fast_clock_that_is_slow_to_read_has_no_setting() {
    let mut facts = read("bare-metal");
    facts.clock_read = Some(72);
    let found = diagnose(&facts, &serve());
    let clock = found.finding("clock").unwrap();
    assert_eq!((clock.status, clock.remedies.len()), (Status::Warn, 0));
    facts.clock_source = Some("hpet".to_owned());
    let found = diagnose(&facts, &serve());
    assert_eq!(found.finding("clock").unwrap().remedies.len(), 1);
}

#[test]
fn two_nodes_want_event_loops_bound_to_cpus() {
    let facts = read("numa");
    let found = diagnose(&facts, &serve());
    let shards = found.finding("shards").unwrap();
    assert_eq!((shards.status, shards.remedies[0].text()), (Status::Warn, "pin=cores".into()));
    assert_eq!(status(&found, "numa-balancing"), Status::Info);
    assert_eq!(facts.interfaces[0].node, Some(1));
    let settings = Settings { pinned: true, ..Settings::default() };
    let found = diagnose(&facts, &Question { settings, ..serve() });
    assert_eq!(status(&found, "shards"), Status::Pass);
}

#[test]
fn rules_without_their_files_are_skipped_with_a_reason() {
    let found = diagnose(&read("few-files"), &serve().connections(10_000));
    assert_eq!(found.walls.len(), 2, "open files and memory");
    assert!(found.count(Status::Skip) > 30, "{found:?}");
    for finding in found.findings.iter().filter(|it| it.status == Status::Skip) {
        assert!(!finding.reason.is_empty(), "{}", finding.id);
    }
    // The limit is 4,096, and the version of the kernel allows tables for each event loop.
    assert_eq!(status(&found, "nofile-hard"), Status::Pass);
}

#[test]
fn a_hardened_machine_refuses_low_ports_and_not_epoll() {
    let listen = vec!["0.0.0.0:443".parse().unwrap()];
    let settings = Settings { listen, ..Settings::default() };
    let found = diagnose(&read("hardened"), &Question { settings, ..serve() });
    assert_eq!(status(&found, "low-port"), Status::Fail);
    assert_eq!(status(&found, "syncookies"), Status::Warn);
    let uring = found.finding("io-uring").unwrap();
    assert_eq!((uring.status, uring.found.as_str()), (Status::Pass, "disabled"));
}

#[test]
fn an_old_kernel_has_one_descriptor_table_and_cgroups_of_version_1() {
    let facts = read("old-kernel");
    assert_eq!(facts.own_tables, Some(false));
    assert_eq!((facts.cpu_quota, facts.cgroup_memory), (Some(2000), Some(1 << 30)));
    let found = diagnose(&facts, &serve().connections(100_000));
    let finding = found.finding("nofile-hard").unwrap();
    assert_eq!(finding.status, Status::Fail);
    let remedies: Vec<String> = finding.remedies.iter().map(|remedy| remedy.text()).collect();
    assert_eq!(remedies, ["LimitNOFILE=109096", "ulimit -n 109096", "--ulimit nofile=109096"]);
}

#[test]
fn a_start_checks_nine_rules() {
    let all = throng_doctor::rules::RULES.iter().flat_map(|of| *of);
    let ids: Vec<&str> = all.filter(|rule| rule.at_start).map(|rule| rule.id).collect();
    assert_eq!(
        ids,
        [
            "nofile-hard",
            "worst-case",
            "somaxconn",
            "syn-backlog",
            "cpu-quota",
            "heartbeat",
            "stop-time",
            "low-port",
            "exposure"
        ]
    );
}
