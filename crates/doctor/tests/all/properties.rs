//! Properties that hold for all machines.

use proptest::prelude::*;
use throng_doctor::facts::{CpuTimes, Interface, SYSCTLS, parse};
use throng_doctor::{
    Counters, Facts, Io, Question, Role, Settings, at_start, diagnose, fix_script, json, report,
    undo_script,
};
use throng_io::tables::DescriptorTables;

use crate::machines::read_tree;

/// Numbers that machines have, and numbers that they never have.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..3u64, 0..5000u64, 0..5_000_000u64, 1_000_000_000u64..1 << 40, any::<u64>()]
}

fn some() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![1 => Just(None), 4 => number().prop_map(Some)]
}

prop_compose! {
    fn counters()(
        numbers in prop::collection::vec(some(), 7),
        cpus in prop::collection::vec((number(), number(), number()), 0..5),
        interrupts in prop::collection::vec(number(), 0..5),
    ) -> Counters {
        Counters {
            listen_overflows: numbers[0],
            listen_drops: numbers[1],
            syn_drops: numbers[2],
            packet_drops: numbers[3],
            packet_squeezes: numbers[4],
            throttled: numbers[5],
            swapped_in: numbers[6],
            cpus: cpus
                .into_iter()
                .map(|(all, soft_interrupts, stolen)| CpuTimes { all, soft_interrupts, stolen })
                .collect(),
            interrupts,
        }
    }
}

prop_compose! {
    fn facts()(
        sysctls in prop::collection::vec(prop::collection::vec(number(), 0..4), SYSCTLS.len()),
        numbers in prop::collection::vec(some(), 22),
        words in prop::collection::vec(".{0,8}", 4),
        now in counters(),
        earlier in prop::option::of(counters()),
        switches in prop::array::uniform3(any::<Option<bool>>()),
        ports in prop::option::of(prop::collection::vec(any::<(u16, u16)>(), 0..3)),
        pod in any::<bool>(),
    ) -> Facts {
        let keys = SYSCTLS.iter().map(|key| (*key).to_owned());
        let interface = Interface {
            name: words[0].clone(),
            queues: numbers[0].unwrap_or(0),
            is_spread: pod,
            node: numbers[1],
        };
        Facts {
            sysctls: keys.zip(sysctls).filter(|(_, values)| !values.is_empty()).collect(),
            nofile_hard: numbers[2],
            nofile_soft: numbers[3],
            user_processes: numbers[4],
            process_memory: numbers[5],
            descriptors_used: numbers[6],
            own_tables: switches[0],
            files_used: numbers[7],
            memory_total: numbers[9],
            memory_available: numbers[10],
            cgroup_memory: numbers[11],
            cgroup_memory_used: numbers[12],
            cgroup_pids: numbers[13],
            cpu_quota: numbers[14],
            cpus: numbers[15],
            nodes: numbers[16],
            clock_source: switches[1].map(|_| words[1].clone()),
            clock_read: numbers[17],
            governors: vec![words[2].clone()],
            interfaces: vec![interface],
            huge_pages: switches[2].map(|_| words[3].clone()),
            swapped: numbers[18],
            reserved_ports: ports,
            user: numbers[19],
            capabilities: numbers[20],
            is_filtered: switches[1],
            stop_time: numbers[21],
            stop_source: switches[0].map(|_| {
                if pod { "terminationGracePeriodSeconds" } else { "TimeoutStopSec" }
            }),
            owners: Vec::new(),
            boot_settings: Default::default(),
            counters: now,
            earlier,
        }
    }
}

prop_compose! {
    fn question()(
        role in prop::sample::select(Role::ALL.to_vec()),
        connections in some(),
        io in prop::sample::select(vec![Io::Epoll, Io::Portable, Io::Threads]),
        tables in prop::sample::select(vec![
            DescriptorTables::Auto, DescriptorTables::Shared, DescriptorTables::PerShard,
        ]),
        numbers in prop::collection::vec(some(), 9),
        switches in prop::array::uniform6(any::<bool>()),
        port in any::<u16>(),
        is_public in any::<bool>(),
    ) -> Question {
        let number = |at: usize| numbers[at].unwrap_or(1);
        let host: [u8; 4] = if is_public { [0, 0, 0, 0] } else { [127, 0, 0, 1] };
        let address = (host, port).into();
        let settings = Settings {
            max_connections: numbers[0],
            shards: numbers[1],
            io,
            tables,
            inherited: switches[0],
            listen: if switches[1] { vec![address] } else { Vec::new() },
            listeners: number(2),
            files: number(3),
            tls: switches[2],
            backlog: number(4),
            max_backlog: number(5),
            max_message_size: number(6),
            max_memory: numbers[7],
            heartbeat: numbers[8].map(std::time::Duration::from_secs),
            shutdown: std::time::Duration::from_secs(number(2)),
            any_origin: switches[3],
            public_metrics: switches[4],
            admin: switches[5].then_some(address),
            deflate_bits: numbers[3].map(|bits| (bits % 20) as u32),
            pinned: switches[0],
            backends: number(4),
            sources: numbers[5],
        };
        Question { role, connections, settings }
    }
}

/// Returns the limits of a machine, to be raised. A higher number of CPUs is not one: it means
/// more event loops, which need descriptors.
fn limits(facts: &mut Facts) -> Vec<&mut u64> {
    const USES: [&str; 1] = ["net.netfilter.nf_conntrack_count"];
    let kernel = facts.sysctls.iter_mut().filter(|(key, _)| !USES.contains(&key.as_str()));
    let kernel = kernel.flat_map(|(key, values)| {
        // The lower end of a range is not a limit.
        let from = usize::from(key.as_str() == "net.ipv4.ip_local_port_range");
        values.iter_mut().skip(from)
    });
    let own = [
        &mut facts.nofile_hard,
        &mut facts.nofile_soft,
        &mut facts.user_processes,
        &mut facts.process_memory,
        &mut facts.memory_total,
        &mut facts.memory_available,
        &mut facts.cgroup_memory,
        &mut facts.cgroup_pids,
    ];
    kernel.chain(own.into_iter().flatten()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn raising_a_limit_never_lowers_the_answer(
        facts in facts(),
        question in question(),
        which in any::<prop::sample::Index>(),
        raised in number(),
    ) {
        let before = diagnose(&facts, &question).connections().unwrap_or(u64::MAX);
        let mut higher = facts.clone();
        let mut all = limits(&mut higher);
        if !all.is_empty() {
            let limit = which.get_mut(&mut all);
            **limit = (**limit).max(raised);
        }
        let after = diagnose(&higher, &question).connections().unwrap_or(u64::MAX);
        prop_assert!(after >= before, "{before} became {after}");
    }

    #[test]
    fn no_rule_panics(facts in facts(), question in question()) {
        let diagnosis = diagnose(&facts, &question);
        prop_assert_eq!(diagnosis.findings.len(), 48);
        for all in [false, true] {
            prop_assert!(!report(&diagnosis, all).is_empty());
        }
        prop_assert!(json(&diagnosis).is_object());
        prop_assert!(fix_script(&diagnosis).len() + undo_script(&diagnosis).len() > 0);
        prop_assert!(at_start(&facts, &question).len() <= 9);
    }

    #[test]
    fn parsers_take_any_text(text in "(?s).{0,200}|[0-9 :,\\-\n\\[\\]=a-z%]{0,200}") {
        let _ = parse::numbers(&text);
        let _ = parse::limit(&text);
        let _ = parse::process_limit(&text, "Max");
        let _ = parse::field(&text, "a");
        let _ = parse::mask(&text);
        let _ = parse::ranges(&text).map(|ranges| parse::members(&ranges));
        let _ = parse::softnet(&text, 1);
        let _ = parse::cpu_times(&text);
        let _ = parse::interrupts(&text, &["eth0".to_owned(), "a".to_owned()]);
        let _ = parse::chosen(&text);
        let _ = parse::cpu_quota(&text);
        let _ = parse::is_at_least(&text, (5, 9));
        let _ = parse::seconds(&text);
        let _ = parse::sysctl_settings(&text);
        let _ = parse::unit_value(&text, "Service", "a");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn files_may_have_any_bytes(contents in prop::collection::vec(any::<Vec<u8>>(), 13)) {
        let paths = [
            "proc/self/limits",
            "proc/self/status",
            "proc/self/cgroup",
            "proc/self/environ",
            "proc/meminfo",
            "proc/stat",
            "proc/net/netstat",
            "proc/net/softnet_stat",
            "proc/interrupts",
            "proc/sys/net/ipv4/tcp_mem",
            "proc/sys/net/ipv4/ip_local_reserved_ports",
            "sys/fs/cgroup/cpu.max",
            "etc/sysctl.d/1.conf",
        ];
        let facts = read_tree(paths.into_iter().zip(contents));
        prop_assert_eq!(diagnose(&facts, &Question::new(Role::Serve)).findings.len(), 48);
    }
}

#[test]
fn texts_of_the_kernel_are_read() {
    assert_eq!(parse::numbers("4096\t131072\t-1\n"), Some(vec![4096, 131_072, u64::MAX]));
    assert_eq!(parse::ranges("0-3,8\n").map(|all| parse::members(&all)), Some(5));
    assert_eq!(parse::ranges("3-1"), None);
    assert_eq!(parse::cpu_quota("150000 100000\n"), Some(1500));
    assert_eq!(parse::cpu_quota("max 100000\n"), None);
    assert_eq!(parse::is_at_least("5.10.0-28-amd64", (5, 9)), Some(true));
    assert_eq!(parse::is_at_least("4.19.0", (5, 9)), Some(false));
    let times = ["90", "1min 30s", "90s", "1h", "infinity", "soon"].map(parse::seconds);
    assert_eq!(times, [Some(90), Some(90), Some(90), Some(3600), Some(u64::MAX), None]);
    let rows = "     CPU0 CPU1\n 1: 5 6 PCI eth0-rx-1\n 2: 1 1 PCI eth01\n 3: 2 0 PCI 0:1 eth0\n";
    assert_eq!(parse::interrupts(rows, &["eth0".to_owned()]), [7, 6]);
    assert_eq!(parse::chosen("always [madvise] never"), Some("madvise"));
    let unit = "[Unit]\nTimeoutStopSec=1\n[Service]\nTimeoutStopSec=5\n";
    assert_eq!(parse::unit_value(unit, "Service", "TimeoutStopSec"), Some("5"));
}
