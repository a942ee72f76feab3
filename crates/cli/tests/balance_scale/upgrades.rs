//! Upgrades under tunnels with traffic: in a row, and with either process killed at any moment.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use throng_testkit::{Random, eventually, poll};

use super::backend::{Backend, sum};
use super::balancer::{Balancer, signal};
use super::clients::{Clients, Counts};
use super::support::TIMEOUT;
use super::{Scenario, Size, assert_all_is_well, close_all, finish_questions, kib, open};

pub(crate) const SCENARIOS: [Scenario; 3] = [
    ("upgrades_in_a_row_close_and_lose_nothing", in_a_row),
    ("a_killed_successor_takes_only_its_own_tunnels", successor_killed),
    ("a_killed_predecessor_takes_only_its_own_tunnels", predecessor_killed),
];

/// The time in which connects are answered after the end of a successor.
const ACCEPTS_WITHIN: Duration = Duration::from_millis(100);

/// Connections and requests take this setting to end when the test does not expect them.
const SETTINGS: &str = "[upgrade]\nwindow = \"2s\"";

fn rounds(size: Size) -> u32 {
    let rounds = std::env::var("THRONG_BALANCE_ROUNDS");
    let default = if size.is_full { 100 } else { 4 };
    rounds.map_or(default, |rounds| rounds.parse().expect("a number of rounds"))
}

/// A balancer under load.
struct Under {
    balancer: Balancer,
    clients: Clients,
    backends: [Backend; 2],
}

impl Under {
    fn load(size: Size) -> Self {
        let backends = [(); 2].map(|()| Backend::start());
        let balancer = Balancer::start(&backends.each_ref().map(|it| it.address), SETTINGS);
        let clients = Clients::new(balancer.address, size.tunnels);
        open(&clients, size);
        Self { balancer, clients, backends }
    }

    /// Upgrades, and returns the event.
    fn upgrade(&mut self) -> serde_json::Value {
        self.balancer.signal("USR2");
        let event = self.balancer.outcome();
        assert_eq!(event["event"], "upgrade", "{event}");
        let before = self.balancer.serving();
        self.balancer.set_serving(u32::try_from(event["process"].as_u64().unwrap()).unwrap());
        eventually("the old process has ended", || has_ended(before));
        event
    }

    /// Sends the signal for an upgrade. Returns the successor after a random part of `most`.
    fn begin(&self, random: &mut Random, most: Duration) -> u32 {
        let old = self.balancer.serving();
        self.balancer.signal("USR2");
        let until = Instant::now() + TIMEOUT;
        let successor = loop {
            if let Some(child) = child_of(old) {
                break child;
            }
            assert!(Instant::now() < until, "no successor");
            throng_testkit::hold_up(Duration::from_micros(200));
        };
        let part = random.bits() % most.as_nanos() as u64;
        throng_testkit::hold_up(Duration::from_nanos(part));
        successor
    }

    /// Waits until as many tunnels as expected have broken since `before`, and all clients are
    /// connected again. The other tunnels have not lost a message.
    fn have_broken(&self, before: &Counts, expected: impl Fn() -> u64, size: Size) -> u64 {
        let broken = |now: &Counts| now.unplanned - before.unplanned;
        eventually("those that break are replaced", || {
            let now = self.clients.counts();
            (broken(&now), now.open) == (expected(), size.tunnels)
        });
        // A tunnel that breaks later would be seen by its answers.
        let answered = self.clients.counts().answered;
        eventually("messages flow", || {
            self.clients.counts().answered > answered + size.tunnels as u64
        });
        let (now, expected) = (self.clients.counts(), expected());
        assert_eq!(
            ([now.lost, now.wrong, now.sent_away], broken(&now)),
            ([0; 3], expected),
            "{now:?}"
        );
        expected
    }
}

/// Returns the process that a process has started.
fn child_of(parent: u32) -> Option<u32> {
    let children = std::fs::read_dir(format!("/proc/{parent}/task"))
        .ok()?
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok());
    let first = |list: String| list.split_whitespace().next()?.parse().ok();
    children.into_iter().find_map(first)
}

/// Returns whether a process has ended. Its parent may not have asked for its status.
fn has_ended(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('Z'))
}

/// Asks through the balancer, on a connection of its own.
fn is_answered(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<()> {
        use std::io::{Read, Write};
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(b"GET /report HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        match answer.starts_with("HTTP/1.1 200 ") {
            true => Ok(()),
            false => Err(std::io::ErrorKind::InvalidData.into()),
        }
    };
    ask().is_ok()
}

/// All tunnels move, each time, and no process has more of anything than the one before.
fn in_a_row(size: Size) {
    let mut under = Under::load(size);
    let mut row = Vec::new();
    let rounds = rounds(size);
    for round in 1..=rounds {
        let event = under.upgrade();
        let moved = [&event["moved"], &event["connections"]].map(|it| it.as_u64().unwrap());
        assert_eq!(moved, [size.tunnels as u64, 0], "{event}");
        assert!(is_answered(under.balancer.address), "a new connection");
        let before = under.clients.counts().answered;
        eventually("messages flow", || {
            under.clients.counts().answered > before + size.tunnels as u64
        });
        let (memory, balancer) = (under.balancer.memory(), &under.balancer);
        row.push((kib(memory.anonymous), balancer.descriptors(), balancer.threads()));
        if round == 1 || round % 10 == 0 || round == rounds {
            let (anonymous, descriptors, threads) = row[row.len() - 1];
            println!(
                "  {round}: {} s, longest pause {} s; {anonymous} KiB, {descriptors} descriptors, \
                 {threads} threads",
                event["duration"], event["pause"]
            );
        }
    }
    finish_questions(&under.clients, size);
    let counts = under.clients.counts();
    println!(
        "  {} of {} answers took more than 50 ms, the slowest {:?}",
        counts.late, counts.answered, counts.slowest
    );
    assert_eq!((counts.opened, counts.sent_away), (size.tunnels as u64, 0), "{counts:?}");
    assert_eq!(counts.asked, sum(&under.backends, "received"));
    // The first successor has not accepted a handshake either.
    let ((first, most, threads), (last, descriptors, last_threads)) = (row[0], row[row.len() - 1]);
    assert!(last <= first + first / 10 + 1024, "{row:?}");
    assert!(descriptors <= most + 2 && last_threads <= threads, "{row:?}");
    close_all(&under.clients);
    assert_all_is_well(&under.clients, &under.backends, &under.balancer);
}

/// The new process is killed at random moments: the old one goes on, and only tunnels that it had
/// given break.
fn successor_killed(size: Size) {
    let mut under = Under::load(size);
    let mut random = Random::new(39);
    let whole = duration(&under.upgrade());
    let (mut killed, mut while_moving, mut broken, mut late) = (0, 0, 0, 0);
    let mut slowest = Duration::ZERO;
    while killed < rounds(size) {
        let before = under.clients.counts();
        let successor = under.begin(&mut random, whole);
        signal(successor, "KILL");
        let killed_at = Instant::now();
        let address = under.balancer.address;
        // Where the new process had everything, no one answers.
        let asks = std::thread::spawn(move || {
            let is_over = || killed_at.elapsed() > Duration::from_secs(5);
            while !is_answered(address) && !is_over() {}
            killed_at.elapsed()
        });
        let event = under.balancer.outcome();
        if event["event"] == "upgrade" {
            // It was killed after the end of the move, with all tunnels.
            late += 1;
            assert!(late <= 10 + killed, "moments are chosen too late");
            under = Under::load(size);
            continue;
        }
        killed += 1;
        slowest = slowest.max(asks.join().unwrap());
        let lost = event["lost"].as_u64().unwrap();
        under.have_broken(&before, || lost, size);
        broken += lost;
        while_moving += u32::from(lost > 0);
        assert!(!has_ended(under.balancer.serving()));
    }
    println!(
        "  killed {killed} times, {while_moving} of them with tunnels: {broken} broke, all of them \
         its own; accepted again after at most {slowest:?}; killed too late {late} times"
    );
    assert!(!size.is_full || slowest <= ACCEPTS_WITHIN, "{slowest:?}");
    let event = under.upgrade();
    assert_eq!(event["moved"].as_u64(), Some(size.tunnels as u64), "{event}");
    finish_questions(&under.clients, size);
}

/// The old process is killed at random moments: the new one goes on with all tunnels that it had
/// taken, and with those on their way.
fn predecessor_killed(size: Size) {
    let mut under = Under::load(size);
    let mut random = Random::new(93);
    let whole = duration(&under.upgrade());
    let (mut killed, mut while_moving, mut kept, mut early) = (0, 0, 0, 0);
    while killed < rounds(size) {
        let before = under.clients.counts();
        let successor = under.begin(&mut random, whole);
        under.balancer.signal("KILL");
        under.balancer.set_serving(successor);
        let address = under.balancer.address;
        let serves = poll("it serves or has ended", || match has_ended(successor) {
            true => Some(false),
            false => is_answered(address).then_some(true),
        });
        if !serves {
            // It was not to serve yet, so all tunnels were the old one's.
            early += 1;
            assert!(early <= 10 + 4 * killed, "moments are chosen too early");
            under = Under::load(size);
            continue;
        }
        killed += 1;
        // It also continues what was in flight when the other process ended.
        let taken = || {
            let status = under.balancer.status();
            // All of them, if the old one had passed on its counts before its end.
            status["metrics"]["tunnels_taken_over"].as_u64().unwrap().min(size.tunnels as u64)
        };
        let broken = under.have_broken(&before, || size.tunnels as u64 - taken(), size);
        let taken = size.tunnels as u64 - broken;
        kept += taken;
        while_moving += u32::from(taken > 0 && broken > 0);
    }
    println!(
        "  killed {killed} times with a new process that serves, {while_moving} of them while \
         tunnels moved: {kept} were taken and none of them broke; {early} times before it served"
    );
    finish_questions(&under.clients, size);
}

fn duration(event: &serde_json::Value) -> Duration {
    Duration::from_secs_f64(event["duration"].as_f64().unwrap())
}
