//! Guarantees of `throng balance` for thousands of tunnels with traffic: the real binary, backend
//! processes of this test, and clients that number and check every message.
//!
//! By default it is small and quick.
//! `THRONG_BALANCE_TUNNELS=5000 cargo test --profile dist -p throng-cli --test balance_scale` runs
//! it at full size (it needs 20,000 descriptors a process); a word after `--` selects the scenarios
//! whose name contains it. `THRONG_BALANCE_SHARDS` is the number of the balancer's event loops;
//! default: 1. `THRONG_BALANCE_ROUNDS` is the number of upgrades of a scenario, and
//! `THRONG_BALANCE_PROGRAM` another build of the program.

mod backend;
mod balancer;
mod clients;
mod numbers;
#[path = "../support/mod.rs"]
mod support;
#[cfg(target_os = "linux")]
mod upgrades;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use backend::{Backend, sum};
use balancer::Balancer;
use clients::{Clients, Counts, Desired, JITTER};

/// Number of clients, and whether it is the full size, for which the guarantees hold.
#[derive(Clone, Copy)]
struct Size {
    tunnels: usize,
    is_full: bool,
}

/// A name, and the function that runs it.
type Scenario = (&'static str, fn(Size));

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, millis] = words.as_slice()
        && first == "backend"
    {
        return backend::run(Duration::from_millis(millis.parse().unwrap()));
    }
    numbers::check_the_checker();
    if !cfg!(target_os = "linux") {
        return println!("skipped: memory and descriptors are read in /proc, which Linux has");
    }
    let tunnels = std::env::var("THRONG_BALANCE_TUNNELS");
    let tunnels = tunnels.map_or(300, |tunnels| tunnels.parse().expect("a number of tunnels"));
    let size = Size { tunnels, is_full: tunnels >= 5000 };
    throng_io::limits::prepare_descriptors(tunnels * 2 + 100).unwrap();
    let mut scenarios: Vec<Scenario> = vec![
        ("changes_touch_no_tunnel_and_no_message", changes),
        ("a_rebalance_after_scale_out_evens_the_load", rebalance),
        ("clients_of_a_killed_backend_are_back_in_time", kill),
        ("counts_and_memory_return_after_churn", churn),
        ("an_idle_tunnel_costs_half_a_kilobyte", idle),
    ];
    #[cfg(target_os = "linux")]
    scenarios.extend(upgrades::SCENARIOS);
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let mut passed = 0;
    for (name, run) in scenarios {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            println!("{name}, {tunnels} tunnels");
            run(size);
            passed += 1;
        }
    }
    // In libtest's format, for the command that counts the tests.
    println!("test result: ok. {passed} passed; 0 failed");
}

impl Size {
    /// Returns the interval between two questions of a client: thousands of messages a second over
    /// all clients.
    fn ask_every(self) -> Duration {
        if self.is_full { Duration::from_secs(1) } else { Duration::from_millis(100) }
    }

    fn all_ask(self) -> Desired {
        Desired { clients: self.tunnels, reset: false, ask_every: Some(self.ask_every()) }
    }
}

fn eventually(what: &str, clients: &Clients, mut holds: impl FnMut(&Counts) -> bool) {
    throng_testkit::eventually(what, || holds(&clients.counts()));
}

/// Opens all tunnels, and waits until each has had some answers.
fn open(clients: &Clients, size: Size) {
    clients.desire(size.all_ask());
    eventually("all are open", clients, |counts| counts.open == size.tunnels);
    let before = clients.counts().answered;
    eventually("all talk", clients, |counts| counts.answered > before + 3 * size.tunnels as u64);
}

/// Stops the questions, and waits until every answer has come.
fn finish_questions(clients: &Clients, size: Size) {
    clients.desire(Desired { ask_every: None, ..size.all_ask() });
    eventually("all are answered", clients, |counts| {
        counts.open == size.tunnels && counts.missing == 0
    });
}

/// Closes the tunnel of every client with a handshake.
fn close_all(clients: &Clients) {
    clients.desire(Desired::default());
    eventually("all have gone", clients, |counts| counts.connected == 0);
}

/// Asserts that nothing was lost on either side of any tunnel, and that every count is back at
/// zero.
fn assert_all_is_well(clients: &Clients, backends: &[Backend], balancer: &Balancer) -> Counts {
    eventually("the balancer's counts return to zero", clients, |_| {
        ["tunnels", "requests", "handshakes"]
            .iter()
            .all(|key| balancer.column(key).iter().sum::<u64>() == 0)
    });
    let counts = clients.counts();
    let of_backends = ["faults", "short", "cut"].map(|key| sum(backends, key));
    let of_clients = [counts.lost, counts.wrong, counts.unplanned, counts.refused];
    assert_eq!((of_backends, of_clients), ([0; 3], [0; 4]), "{counts:?}");
    println!(
        "  {} questions and {} answers: 0 lost, 0 out of order; {} tunnels opened, {} closed with \
         1012, 0 ended otherwise",
        counts.asked, counts.answered, counts.opened, counts.sent_away
    );
    counts
}

fn kib(bytes: i64) -> i64 {
    bytes / 1024
}

/// Returns the largest deviation of a backend from its share.
fn spread(tunnels: &[u64]) -> f64 {
    let even = tunnels.iter().sum::<u64>() as f64 / tunnels.len() as f64;
    tunnels.iter().map(|&tunnels| (tunnels as f64 - even).abs() / even).fold(0.0, f64::max)
}

/// A hundred changes in a minute under tunnels with traffic.
fn changes(size: Size) {
    let backends = [(); 3].map(|()| Backend::start());
    let [first, second, third] = backends.each_ref().map(|backend| backend.address);
    let mut balancer = Balancer::start(&[first, second], "");
    let clients = Clients::new(balancer.address, size.tunnels);
    open(&clients, size);
    let before = balancer.memory();
    let mut after_ten = before;
    let pause = if size.is_full { Duration::from_millis(600) } else { Duration::from_millis(40) };
    let begun = Instant::now();
    let picks = ["power_of_two", "least_connections", "round_robin", "rendezvous", "random"];
    for change in 0..100u32 {
        let pick = picks[change as usize / 5 % 5];
        let body = |text: String| text.replace('\'', "\"");
        match change % 5 {
            // Settings of all kinds; add a backend; weights; remove it; an invalid file.
            0 => {
                let more = format!(
                    "pick = \"{pick}\"\nretries = {}\n[timeouts]\ntunnel = \"{}s\"",
                    change % 3,
                    600 + change
                );
                let said = balancer.reload(&[first, second], &more);
                assert!(said.contains("changed"), "{said}");
            }
            1 => {
                let new = body(format!("{{'address': '{third}', 'weight': 2}}"));
                assert_eq!(balancer.ask("POST", "/backends", &new).0, 201);
            }
            2 => {
                let weight = body(format!("{{'weight': {}}}", 1 + change));
                assert_eq!(balancer.ask("PATCH", &format!("/backends/{first}"), &weight).0, 200);
            }
            3 => assert!(balancer.ask("DELETE", &format!("/backends/{third}"), "").0 < 300),
            _ => {
                let bad = format!("{{\"address\": \"{third}\", \"weight\": 0}}");
                assert_eq!(balancer.ask("POST", "/backends", &bad).0, 400);
            }
        }
        if change == 9 {
            after_ten = balancer.memory();
        }
        let next = pause * (change + 1);
        throng_testkit::hold_up(next.saturating_sub(begun.elapsed()));
    }
    let (took, after) = (begun.elapsed(), balancer.memory());
    assert_eq!(clients.counts().open, size.tunnels);
    assert!(balancer.is_alive());
    finish_questions(&clients, size);
    let counts = clients.counts();
    assert_eq!((counts.opened, counts.sent_away), (size.tunnels as u64, 0), "{counts:?}");
    assert_eq!((balancer.total("closed"), balancer.total("lost")), (0, 0));
    println!(
        "  100 changes in {:.1} s; resident KiB: {} before, {} after ten, {} after all",
        took.as_secs_f64(),
        kib(before.resident),
        kib(after_ten.resident),
        kib(after.resident)
    );
    // The first of each kind loads code that had not run before.
    let grown = kib(after.resident - after_ten.resident);
    assert!(grown < 512, "{grown} KiB more");
    assert_eq!(counts.asked, sum(&backends, "received"));
    close_all(&clients);
    assert_all_is_well(&clients, &backends, &balancer);
}

/// Two backends become four.
fn rebalance(size: Size) {
    let backends = [(); 4].map(|()| Backend::start());
    let addresses = backends.each_ref().map(|backend| backend.address);
    let balancer = Balancer::start(&addresses[..2], "");
    let clients = Clients::new(balancer.address, size.tunnels);
    open(&clients, size);
    for address in &addresses[2..] {
        let new = format!("{{\"address\": \"{address}\"}}");
        assert_eq!(balancer.ask("POST", "/backends", &new).0, 201);
    }
    let rate = if size.is_full { 100 } else { 75 };
    let before = balancer.column("tunnels");
    let order = |dry: bool| format!("{{\"dry_run\": {dry}, \"rate\": {rate}}}");
    let (status, dry) = balancer.ask("POST", "/rebalance", &order(true));
    assert_eq!((status, clients.counts().sent_away), (200, 0), "{dry}");
    let (status, plan) = balancer.ask("POST", "/rebalance", &order(false));
    assert_eq!((status, &plan["total"]), (200, &dry["total"]));
    let begun = Instant::now();
    let (total, predicted) = (plan["total"].as_u64().unwrap(), plan["seconds"].as_u64().unwrap());
    let mut all_closed = Duration::ZERO;
    let mut fastest = 0;
    let mut seconds: Vec<(Instant, u64)> = Vec::new();
    eventually("all clients that were closed are back", &clients, |counts| {
        // The largest number closed within a second.
        seconds.push((Instant::now(), counts.sent_away));
        let recent = seconds.iter().find(|(at, _)| at.elapsed() <= Duration::from_secs(1));
        fastest = fastest.max(recent.map_or(0, |(_, then)| counts.sent_away - then));
        if counts.sent_away == total && all_closed.is_zero() {
            all_closed = begun.elapsed();
        }
        counts.sent_away >= total && counts.open == size.tunnels
    });
    let back = begun.elapsed();
    let after = balancer.column("tunnels");
    println!(
        "  {total} to close at {rate}/s, {predicted} s predicted: closed in {:.1} s, all back \
         after {:.1} s, at most {fastest} in a second",
        all_closed.as_secs_f64(),
        back.as_secs_f64(),
    );
    println!(
        "  {before:?}, spread {:.1} % -> {after:?}, spread {:.1} %",
        spread(&before) * 100.0,
        spread(&after) * 100.0
    );
    assert_eq!(clients.counts().sent_away, total);
    if size.is_full {
        // The test sometimes reads the counts a little late, so a second may seem to have a few
        // more.
        assert!(fastest <= rate + rate / 5, "{fastest} in a second");
    }
    assert!(spread(&after) <= 0.1, "{after:?}");
    finish_questions(&clients, size);
    close_all(&clients);
    assert_all_is_well(&clients, &backends, &balancer);
}

/// One of four backends dies.
fn kill(size: Size) {
    const CAP: u64 = 8;
    let handshake = Duration::from_millis(if size.is_full { 40 } else { 10 });
    let mut backends = [(); 4].map(|()| Backend::start_slow(handshake));
    let addresses: [SocketAddr; 4] = backends.each_ref().map(|backend| backend.address);
    let rate = if size.is_full { 500 } else { 200 };
    let more = format!("max_handshakes = {CAP}\nclose_rate = {rate}\n[timeouts]\nqueue = \"30s\"");
    let balancer = Balancer::start(&addresses, &more);
    let clients = Clients::new(balancer.address, size.tunnels);
    // All come at once: only the cap protects the backends.
    let begun = Instant::now();
    clients.desire(size.all_ask());
    let mut most = 0;
    let mut look = |counts: &Counts| {
        most = balancer.column("handshakes").into_iter().fold(most, u64::max);
        counts.open == size.tunnels
    };
    eventually("all are open", &clients, &mut look);
    let storm = begun.elapsed();
    let before = balancer.column("tunnels");
    let victim = before[0];
    backends[0].kill();
    let begun = Instant::now();
    let mut all_closed = Duration::ZERO;
    let mut last = 0;
    eventually("the clients of the dead one are back", &clients, |counts| {
        let gone = counts.sent_away + counts.unplanned;
        if gone != last {
            (last, all_closed) = (gone, begun.elapsed());
        }
        look(counts) && gone >= victim
    });
    let back = begun.elapsed();
    let after = balancer.column("tunnels");
    let seen =
        backends[1..].iter().map(|backend| backend.report()["most_handshakes"].as_u64().unwrap());
    let seen = seen.max().unwrap();
    // Within the spread, the jitter, and the time that the cap needs.
    let spread_out = victim as f64 / f64::from(rate);
    println!(
        "  the storm at the start took {:.1} s; of {before:?} the first was killed: its {victim} \
         were closed in {:.1} s ({spread_out:.1} s at {rate}/s) and were back after {:.1} s: \
         {after:?}",
        storm.as_secs_f64(),
        all_closed.as_secs_f64(),
        back.as_secs_f64(),
    );
    println!(
        "  handshakes at a time: cap {CAP}, {most} in the balancer's count, {seen} at a backend"
    );
    let counts = clients.counts();
    assert_eq!((after[0], counts.lost, counts.wrong), (0, 0, 0), "{counts:?}");
    // Only a tunnel that was within a frame when the backend died cannot get a Close frame.
    assert_eq!(counts.sent_away + counts.unplanned, victim, "{counts:?}");
    println!(
        "  {} closed with 1012, {} cut in the middle of a frame",
        counts.sent_away, counts.unplanned
    );
    assert!(most <= CAP && seen <= CAP, "{most}, {seen}");
    assert!(seen >= CAP / 2, "the cap was not tried: {seen}");
    if size.is_full {
        assert!(back.as_secs_f64() <= spread_out + JITTER.as_secs_f64() + 2.0, "{back:?}");
    }
    finish_questions(&clients, size);
    close_all(&clients);
    eventually("the balancer's counts return to zero", &clients, |_| {
        ["tunnels", "requests", "handshakes"]
            .iter()
            .all(|key| balancer.column(key).iter().sum::<u64>() == 0)
    });
    assert_eq!(sum(&backends[1..], "faults") + sum(&backends[1..], "short"), 0);
}

/// All clients connect and leave, again and again, with Close frames and with resets.
fn churn(size: Size) {
    let backends = [(); 2].map(|()| Backend::start());
    let addresses = backends.each_ref().map(|backend| backend.address);
    let balancer = Balancer::start(&addresses, "");
    let clients = Clients::new(balancer.address, size.tunnels);
    let empty = balancer.descriptors();
    let mut resident = Vec::new();
    for round in 0..4 {
        open(&clients, size);
        finish_questions(&clients, size);
        if round % 2 == 1 {
            let reset = Desired { reset: true, ..Desired::default() };
            clients.desire(reset);
            eventually("all have gone", &clients, |counts| counts.connected == 0);
        } else {
            close_all(&clients);
        }
        eventually("all is given back", &clients, |_| {
            ["tunnels", "requests", "handshakes"]
                .iter()
                .all(|key| balancer.column(key).iter().sum::<u64>() == 0)
                // Keep-alive connections of the admin's port may be there or not.
                && balancer.descriptors() <= empty + 2
        });
        resident.push(kib(balancer.memory().resident));
    }
    let counts = clients.counts();
    println!(
        "  {} tunnels came and went; descriptors {empty} -> {}; resident KiB after each round: \
         {resident:?}",
        counts.opened,
        balancer.descriptors()
    );
    assert_eq!([counts.lost, counts.wrong, counts.unplanned, counts.refused], [0; 4], "{counts:?}");
    assert_eq!(sum(&backends, "faults") + sum(&backends, "short"), 0);
    assert!(resident[3] <= resident[0] + 512, "{resident:?}");
}

/// Memory of idle tunnels after traffic: of tunnels opened one after the other, and, for
/// information, of tunnels opened all at once, when the allocator keeps the memory of their
/// handshakes for a moment.
fn idle(size: Size) {
    let backends = [(); 2].map(|()| Backend::start());
    let addresses = backends.each_ref().map(|backend| backend.address);
    let tunnels = if size.is_full { 8000 } else { size.tunnels };
    let all = Size { tunnels, ..size };
    for at_once in [false, true] {
        let balancer = Balancer::start(&addresses, "");
        let clients = Clients::new(balancer.address, tunnels);
        // One-time memory of the first tunnels does not belong to any tunnel.
        let few = Size { tunnels: 20, is_full: false };
        open(&clients, few);
        finish_questions(&clients, few);
        let before = balancer.memory();
        let step = if at_once { tunnels } else { 20 };
        for wanted in (few.tunnels..=tunnels).step_by(step) {
            clients.desire(Desired { clients: wanted, ..Desired::default() });
            eventually("they are open", &clients, |counts| counts.open == wanted);
        }
        open(&clients, all);
        finish_questions(&clients, all);
        let after = balancer.memory();
        let each = |bytes: i64| bytes / (tunnels - few.tunnels) as i64;
        let anonymous = each(after.anonymous - before.anonymous);
        println!(
            "  {tunnels} tunnels, {}: {anonymous} bytes of own memory each ({} resident); {} KiB \
             before, {} KiB after",
            if at_once { "come at once" } else { "come one after the other" },
            each(after.resident - before.resident),
            kib(before.anonymous),
            kib(after.anonymous)
        );
        // With few tunnels, one more page or a table's growth is large for each.
        let most = if size.is_full { 512 } else { 2048 };
        assert!(at_once || anonymous <= most, "{anonymous} bytes each");
        close_all(&clients);
        assert_all_is_well(&clients, &backends, &balancer);
    }
}
