//! What `throng balance` promises for thousands of tunnels with traffic: the real binary, backends
//! that are processes of ours, and clients that number and check every message.
//!
//! Small and quick by itself. `THRONG_BALANCE_TUNNELS=5000 cargo test --profile dist -p throng-cli
//! --test balance_scale` runs it at full size (it needs 20,000 descriptors a process); a word
//! behind `--` runs only what has it in its name. `THRONG_BALANCE_SHARDS` is how many event loops
//! the balancer has, 1 by itself.

mod backend;
mod balancer;
mod crowd;
mod numbers;
#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use backend::{Backend, sum};
use balancer::Balancer;
use crowd::{Crowd, JITTER, Tally, Wish};

/// Clients, and whether that is the size that is promised.
#[derive(Clone, Copy)]
struct Size {
    tunnels: usize,
    is_full: bool,
}

/// Its name, and what runs it.
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
    let scenarios: [Scenario; 5] = [
        ("changes_touch_no_tunnel_and_no_message", changes),
        ("a_rebalance_after_scale_out_evens_the_load", rebalance),
        ("clients_of_a_killed_backend_are_back_in_time", kill),
        ("counts_and_memory_return_after_churn", churn),
        ("an_idle_tunnel_costs_half_a_kilobyte", idle),
    ];
    let wanted: Vec<&String> = words.iter().filter(|word| !word.starts_with("--")).collect();
    let mut passed = 0;
    for (name, run) in scenarios {
        if wanted.is_empty() || wanted.iter().any(|word| name.contains(word.as_str())) {
            println!("{name}, {tunnels} tunnels");
            run(size);
            passed += 1;
        }
    }
    // As libtest says it, for whoever counts.
    println!("test result: ok. {passed} passed; 0 failed");
}

impl Size {
    /// How often a client asks: thousands of messages a second over all.
    fn ask_every(self) -> Duration {
        if self.is_full { Duration::from_secs(1) } else { Duration::from_millis(100) }
    }

    fn everybody(self) -> Wish {
        Wish { clients: self.tunnels, rudely: false, ask_every: Some(self.ask_every()) }
    }
}

fn eventually(what: &str, crowd: &Crowd, mut holds: impl FnMut(&Tally) -> bool) {
    throng_testkit::eventually(what, || holds(&crowd.tally()));
}

/// Opens all tunnels and has them talk.
fn open(crowd: &Crowd, size: Size) {
    crowd.wish(size.everybody());
    eventually("all are open", crowd, |tally| tally.open == size.tunnels);
    let before = crowd.tally().answered;
    eventually("all talk", crowd, |tally| tally.answered > before + 3 * size.tunnels as u64);
}

/// No more questions, and every answer has come.
fn hush(crowd: &Crowd, size: Size) {
    crowd.wish(Wish { ask_every: None, ..size.everybody() });
    eventually("all are answered", crowd, |tally| tally.open == size.tunnels && tally.missing == 0);
}

/// Every client says good-bye.
fn part(crowd: &Crowd) {
    crowd.wish(Wish::default());
    eventually("all have gone", crowd, |tally| tally.connected == 0);
}

/// Nothing was lost on either side of any tunnel, and every count is back at zero.
fn assert_all_is_well(crowd: &Crowd, backends: &[Backend], balancer: &Balancer) -> Tally {
    eventually("the balancer's counts return to zero", crowd, |_| {
        ["tunnels", "requests", "handshakes"]
            .iter()
            .all(|key| balancer.column(key).iter().sum::<u64>() == 0)
    });
    let tally = crowd.tally();
    let of_backends = ["faults", "short", "cut"].map(|key| sum(backends, key));
    let of_clients = [tally.lost, tally.wrong, tally.unplanned, tally.refused];
    assert_eq!((of_backends, of_clients), ([0; 3], [0; 4]), "{tally:?}");
    println!(
        "  {} questions and {} answers: 0 lost, 0 out of order; {} tunnels opened, {} told to come \
         back, 0 ended otherwise",
        tally.asked, tally.answered, tally.opened, tally.sent_away
    );
    tally
}

fn kib(bytes: i64) -> i64 {
    bytes / 1024
}

/// How far the backend that is furthest from its part is from it.
fn spread(tunnels: &[u64]) -> f64 {
    let even = tunnels.iter().sum::<u64>() as f64 / tunnels.len() as f64;
    tunnels.iter().map(|&tunnels| (tunnels as f64 - even).abs() / even).fold(0.0, f64::max)
}

/// A hundred changes in a minute under talking tunnels.
fn changes(size: Size) {
    let backends = [(); 3].map(|()| Backend::start());
    let [first, second, third] = backends.each_ref().map(|backend| backend.address);
    let mut balancer = Balancer::start(&[first, second], "");
    let crowd = Crowd::new(balancer.address, size.tunnels);
    open(&crowd, size);
    let before = balancer.memory();
    let mut after_ten = before;
    let pause = if size.is_full { Duration::from_millis(600) } else { Duration::from_millis(40) };
    let begun = Instant::now();
    let picks = ["power_of_two", "least_connections", "round_robin", "rendezvous", "random"];
    for change in 0..100u32 {
        let pick = picks[change as usize / 5 % 5];
        let body = |text: String| text.replace('\'', "\"");
        match change % 5 {
            // Settings of all kinds; a backend comes; weights; it goes; a file that is wrong.
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
    assert_eq!(crowd.tally().open, size.tunnels);
    assert!(balancer.is_alive());
    hush(&crowd, size);
    let tally = crowd.tally();
    assert_eq!((tally.opened, tally.sent_away), (size.tunnels as u64, 0), "{tally:?}");
    assert_eq!((balancer.total("closed"), balancer.total("lost")), (0, 0));
    println!(
        "  100 changes in {:.1} s; resident KiB: {} before, {} after ten, {} after all",
        took.as_secs_f64(),
        kib(before.resident),
        kib(after_ten.resident),
        kib(after.resident)
    );
    // The first of each kind brings in code that had not run before.
    let grown = kib(after.resident - after_ten.resident);
    assert!(grown < 512, "{grown} KiB more");
    assert_eq!(tally.asked, sum(&backends, "received"));
    part(&crowd);
    assert_all_is_well(&crowd, &backends, &balancer);
}

/// Two backends become four.
fn rebalance(size: Size) {
    let backends = [(); 4].map(|()| Backend::start());
    let addresses = backends.each_ref().map(|backend| backend.address);
    let balancer = Balancer::start(&addresses[..2], "");
    let crowd = Crowd::new(balancer.address, size.tunnels);
    open(&crowd, size);
    for address in &addresses[2..] {
        let new = format!("{{\"address\": \"{address}\"}}");
        assert_eq!(balancer.ask("POST", "/backends", &new).0, 201);
    }
    let rate = if size.is_full { 100 } else { 75 };
    let before = balancer.column("tunnels");
    let order = |dry: bool| format!("{{\"dry_run\": {dry}, \"rate\": {rate}}}");
    let (status, dry) = balancer.ask("POST", "/rebalance", &order(true));
    assert_eq!((status, crowd.tally().sent_away), (200, 0), "{dry}");
    let (status, plan) = balancer.ask("POST", "/rebalance", &order(false));
    assert_eq!((status, &plan["total"]), (200, &dry["total"]));
    let begun = Instant::now();
    let (total, predicted) = (plan["total"].as_u64().unwrap(), plan["seconds"].as_u64().unwrap());
    let mut told = Duration::ZERO;
    let mut fastest = 0;
    let mut seconds: Vec<(Instant, u64)> = Vec::new();
    eventually("all who were told to are back", &crowd, |tally| {
        // The most that were told within a second.
        seconds.push((Instant::now(), tally.sent_away));
        let recent = seconds.iter().find(|(at, _)| at.elapsed() <= Duration::from_secs(1));
        fastest = fastest.max(recent.map_or(0, |(_, then)| tally.sent_away - then));
        if tally.sent_away == total && told.is_zero() {
            told = begun.elapsed();
        }
        tally.sent_away >= total && tally.open == size.tunnels
    });
    let back = begun.elapsed();
    let after = balancer.column("tunnels");
    println!(
        "  {total} to close at {rate}/s, {predicted} s predicted: told in {:.1} s, all back after \
         {:.1} s, at most {fastest} in a second",
        told.as_secs_f64(),
        back.as_secs_f64(),
    );
    println!(
        "  {before:?}, spread {:.1} % -> {after:?}, spread {:.1} %",
        spread(&before) * 100.0,
        spread(&after) * 100.0
    );
    assert_eq!(crowd.tally().sent_away, total);
    if size.is_full {
        // Seen a little late at times, so a second's worth may look a little more.
        assert!(fastest <= rate + rate / 5, "{fastest} in a second");
    }
    assert!(spread(&after) <= 0.1, "{after:?}");
    hush(&crowd, size);
    part(&crowd);
    assert_all_is_well(&crowd, &backends, &balancer);
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
    let crowd = Crowd::new(balancer.address, size.tunnels);
    // They all come at once: the cap is all that there is between them and the backends.
    let begun = Instant::now();
    crowd.wish(size.everybody());
    let mut most = 0;
    let mut look = |tally: &Tally| {
        most = balancer.column("handshakes").into_iter().fold(most, u64::max);
        tally.open == size.tunnels
    };
    eventually("all are open", &crowd, &mut look);
    let storm = begun.elapsed();
    let before = balancer.column("tunnels");
    let victim = before[0];
    backends[0].kill();
    let begun = Instant::now();
    let mut told = Duration::ZERO;
    let mut last = 0;
    eventually("the clients of the dead one are back", &crowd, |tally| {
        let gone = tally.sent_away + tally.unplanned;
        if gone != last {
            (last, told) = (gone, begun.elapsed());
        }
        look(tally) && gone >= victim
    });
    let back = begun.elapsed();
    let after = balancer.column("tunnels");
    let seen =
        backends[1..].iter().map(|backend| backend.report()["most_handshakes"].as_u64().unwrap());
    let seen = seen.max().unwrap();
    // Within the spread, the jitter, and what the cap lets through.
    let spread_out = victim as f64 / f64::from(rate);
    println!(
        "  the storm at the start took {:.1} s; of {before:?} the first was killed: its {victim} \
         were told in {:.1} s ({spread_out:.1} s at {rate}/s) and were back after {:.1} s: {after:?}",
        storm.as_secs_f64(),
        told.as_secs_f64(),
        back.as_secs_f64(),
    );
    println!(
        "  handshakes at a time: cap {CAP}, {most} in the balancer's count, {seen} at a backend"
    );
    let tally = crowd.tally();
    assert_eq!((after[0], tally.lost, tally.wrong), (0, 0, 0), "{tally:?}");
    // Only who was within a frame when it died cannot be told.
    assert_eq!(tally.sent_away + tally.unplanned, victim, "{tally:?}");
    println!(
        "  {} told with 1012, {} cut in the middle of a frame",
        tally.sent_away, tally.unplanned
    );
    assert!(most <= CAP && seen <= CAP, "{most}, {seen}");
    assert!(seen >= CAP / 2, "the cap was not tried: {seen}");
    if size.is_full {
        assert!(back.as_secs_f64() <= spread_out + JITTER.as_secs_f64() + 2.0, "{back:?}");
    }
    hush(&crowd, size);
    part(&crowd);
    eventually("the balancer's counts return to zero", &crowd, |_| {
        ["tunnels", "requests", "handshakes"]
            .iter()
            .all(|key| balancer.column(key).iter().sum::<u64>() == 0)
    });
    assert_eq!(sum(&backends[1..], "faults") + sum(&backends[1..], "short"), 0);
}

/// Everybody comes and goes, again and again, politely and not.
fn churn(size: Size) {
    let backends = [(); 2].map(|()| Backend::start());
    let addresses = backends.each_ref().map(|backend| backend.address);
    let balancer = Balancer::start(&addresses, "");
    let crowd = Crowd::new(balancer.address, size.tunnels);
    let empty = balancer.descriptors();
    let mut resident = Vec::new();
    for round in 0..4 {
        open(&crowd, size);
        hush(&crowd, size);
        if round % 2 == 1 {
            let rudely = Wish { rudely: true, ..Wish::default() };
            crowd.wish(rudely);
            eventually("all have gone", &crowd, |tally| tally.connected == 0);
        } else {
            part(&crowd);
        }
        eventually("all is given back", &crowd, |_| {
            ["tunnels", "requests", "handshakes"]
                .iter()
                .all(|key| balancer.column(key).iter().sum::<u64>() == 0)
                // Keep-alive connections of the admin's port may be there or not.
                && balancer.descriptors() <= empty + 2
        });
        resident.push(kib(balancer.memory().resident));
    }
    let tally = crowd.tally();
    println!(
        "  {} tunnels came and went; descriptors {empty} -> {}; resident KiB after each round: \
         {resident:?}",
        tally.opened,
        balancer.descriptors()
    );
    assert_eq!([tally.lost, tally.wrong, tally.unplanned, tally.refused], [0; 4], "{tally:?}");
    assert_eq!(sum(&backends, "faults") + sum(&backends, "short"), 0);
    assert!(resident[3] <= resident[0] + 512, "{resident:?}");
}

/// Tunnels that have spoken and are silent: those that came one after the other, and, for
/// information, those that came all at once, when what their handshakes took for a moment stays
/// with the allocator.
fn idle(size: Size) {
    let backends = [(); 2].map(|()| Backend::start());
    let addresses = backends.each_ref().map(|backend| backend.address);
    let tunnels = if size.is_full { 8000 } else { size.tunnels };
    let all = Size { tunnels, ..size };
    for at_once in [false, true] {
        let balancer = Balancer::start(&addresses, "");
        let crowd = Crowd::new(balancer.address, tunnels);
        // What the first ones cost is no tunnel's.
        let few = Size { tunnels: 20, is_full: false };
        open(&crowd, few);
        hush(&crowd, few);
        let before = balancer.memory();
        let step = if at_once { tunnels } else { 20 };
        for clients in (few.tunnels..=tunnels).step_by(step) {
            let wish = Wish { clients, ..Wish::default() };
            crowd.wish(wish);
            eventually("they are open", &crowd, |tally| tally.open == clients);
        }
        open(&crowd, all);
        hush(&crowd, all);
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
        // With few tunnels a page or a table's growth more is much for each.
        let most = if size.is_full { 512 } else { 2048 };
        assert!(at_once || anonymous <= most, "{anonymous} bytes each");
        part(&crowd);
        assert_all_is_well(&crowd, &backends, &balancer);
    }
}
