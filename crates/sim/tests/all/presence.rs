//! Members of channels with presence join and leave in every way, on several shards. A member that
//! stays gets each join once, and each leave once and after its join.
//!
//! `THRONG_SIM_SEED=7` runs only that seed, `THRONG_SIM_SEEDS=100000` that many, from
//! `THRONG_SIM_FROM` on.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throng_engine::{
    Answer, BuildOptions, Built, Close, Cx, Frame, History, Limits, Message, Presence,
    PresenceChange, Refusal, Remote, Service, Shard, UserEvent, build,
};
use throng_proto::http1::Request;
use throng_proto::ws::handshake::{Key, check_request, encode_request, encode_response};
use throng_proto::ws::{Opcode, encode_masked};
use throng_sim::net::{LinkId, LinkOptions, Side};
use throng_sim::turns::turn_any;
use throng_sim::{Faults, Net, Rng, Seeds, SharedNet, SimDriver, Waiting};

const CHANNELS: [&str; 2] = ["chat.a", "chat.b"];
const CLIENTS: usize = 6;
const ROUNDS: usize = 60;
const SECOND: u64 = 1_000_000_000;

/// A bug that the audit must detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Some leaves are not sent.
    LosesLeave,
    /// Some joins are sent twice.
    DoublesJoin,
    /// A client that joined a pattern is treated as a member of the channel.
    JoinsUnlisted,
}

/// Joins of each channel so far.
type Truth = Rc<RefCell<HashMap<String, u64>>>;

struct Chat {
    truth: Truth,
    bug: Bug,
    joined: u64,
}

impl Chat {
    fn join(&mut self, cx: &mut Cx<'_>, channel: &str) {
        self.joined += 1;
        let is_odd = self.joined.is_multiple_of(5);
        let joined = match self.bug {
            Bug::JoinsUnlisted if is_odd => cx.subscribe_pattern("chat.*").expect("valid"),
            _ => cx.subscribe_as(channel, None, "a member").joined,
        };
        if joined {
            *self.truth.borrow_mut().entry(channel.to_owned()).or_default() += 1;
        }
        if joined && is_odd && self.bug == Bug::DoublesJoin {
            let id = cx.id().to_bits();
            let again = Frame::text(format!("{{\"join\":\"{id:016x}\",\"info\":\"a member\"}}"));
            drop(cx.publish_to_others(channel, &again));
        }
    }
}

impl Service for Chat {
    fn on_request(&mut self, cx: &mut Cx<'_>, request: &Request<'_>) -> Answer {
        let key = check_request(request.method(), request.is_http11(), request).expect("our own");
        cx.write(|out| encode_response(&key.accept(), None, out).expect("no subprotocol"));
        Answer::Upgraded
    }

    fn on_bad_request(&mut self, _: &mut Cx<'_>, status: u16, reason: &str) {
        panic!("{status} {reason}");
    }

    fn on_refused(&mut self, _: &mut Cx<'_>, why: Refusal) {
        panic!("{why:?}");
    }

    fn on_open(&mut self, _: &mut Cx<'_>) {}

    /// Joins, leaves, or ends the session.
    fn on_message(&mut self, cx: &mut Cx<'_>, message: Message<'_>) {
        let Message::Text(text) = message else { return };
        match text.split_at(1) {
            ("+", channel) => self.join(cx, channel),
            ("-", channel) => drop(cx.unsubscribe(channel)),
            ("x", _) => cx.close(4000, "as it was asked to"),
            _ => cx.abort(),
        }
    }

    fn on_user_event(&mut self, _: &mut Cx<'_>, _: UserEvent) {}

    fn on_drain(&mut self, _: &mut Cx<'_>) {}

    fn on_close(&mut self, _: &mut Cx<'_>, _: Close<'_>) {}
}

/// A member that stays, and its view of the other members.
struct Observer {
    channel: &'static str,
    link: LinkId,
    received: Vec<u8>,
    joins: u64,
    here: BTreeSet<u64>,
}

impl Observer {
    /// Reads received data, and checks it. Returns the pings to answer.
    fn take(&mut self, bytes: &[u8]) -> Result<usize, String> {
        self.received.extend_from_slice(bytes);
        if self.received.starts_with(b"HTTP") {
            let end = self.received.windows(4).position(|four| four == b"\r\n\r\n");
            let Some(end) = end else { return Ok(0) };
            self.received.drain(..end + 4);
        }
        let mut pings = 0;
        while let [first, len, ..] = self.received[..] {
            let end = 2 + usize::from(len);
            if self.received.len() < end {
                break;
            }
            let text = String::from_utf8_lossy(&self.received[2..end]).into_owned();
            self.received.drain(..end);
            match first {
                0x89 => pings += 1,
                0x81 => self.got(&text)?,
                _ => return Err(format!("{first:x} {text:?}")),
            }
        }
        Ok(pings)
    }

    fn got(&mut self, text: &str) -> Result<(), String> {
        let part = |from, to| text.get(from..to).unwrap_or_default();
        if let Ok(id) = u64::from_str_radix(part(9, 25), 16) {
            self.joins += 1;
            return match part(2, 6) == "join" && self.here.insert(id) {
                true => Ok(()),
                false => Err(format!("{text} although it is there")),
            };
        }
        let id = u64::from_str_radix(part(10, 26), 16).map_err(|_| text.to_owned())?;
        match self.here.remove(&id) {
            true => Ok(()),
            false => Err(format!("{text} although it is not there")),
        }
    }
}

struct Run {
    net: SharedNet,
    rng: Rng,
    shards: Vec<Shard<SimDriver, Chat>>,
    listeners: Vec<usize>,
    remote: Remote,
    truth: Truth,
    clients: Vec<Option<LinkId>>,
    observers: Vec<Observer>,
    dialled: u16,
}

impl Run {
    fn new(seed: u64, bug: Bug) -> Result<Self, String> {
        let (net, mut rng, truth) = (Net::shared(), Rng::new(seed), Truth::default());
        let mut listeners = Vec::new();
        let drivers = (0..rng.between(1, 3) as u16)
            .map(|shard| {
                let address = SocketAddr::from(([127, 0, 0, 1], 1 + shard));
                let listener = net.borrow_mut().listen(address);
                let mut driver =
                    SimDriver::new(&net, shard, Faults::default(), rng.fork(), Waiting::Tolerant);
                driver.add_listener(listener);
                listeners.push(listener);
                driver
            })
            .collect();
        let mut options = BuildOptions {
            seed: Some(seed),
            limits: Limits::default()
                .heartbeat_interval(Duration::from_secs(10))
                .heartbeat_timeout(Duration::from_secs(20)),
            ..BuildOptions::default()
        };
        let leaves = AtomicU64::new(0);
        let presence = Presence::new().join_leave_with(move |event| {
            let is_lost = bug == Bug::LosesLeave
                && event.change == PresenceChange::Leave
                && leaves.fetch_add(1, Ordering::Relaxed) % 5 == 4;
            (!is_lost).then(|| event.to_frame())
        });
        options.presences.add("chat.*", Some(presence)).expect("valid");
        if rng.one_in(2) {
            let history = History::new(10, Duration::from_secs(60));
            options.classes.add_history("chat.*", Some(history)).expect("valid");
        }
        let service =
            |_: usize, _: &_, _: &Remote| Chat { truth: Rc::clone(&truth), bug, joined: 0 };
        let Built { shards, remote, .. } = build(drivers, &options, service).expect("valid limits");
        let clients = vec![None; CLIENTS];
        let observers = Vec::new();
        let mut run =
            Self { net, rng, shards, listeners, remote, truth, clients, observers, dialled: 0 };
        for channel in CHANNELS {
            let link = run.dial();
            run.send(link, &format!("+{channel}"));
            let (received, here) = (Vec::new(), BTreeSet::new());
            run.observers.push(Observer { channel, link, received, joins: 0, here });
        }
        run.settle()?;
        Ok(run)
    }

    fn dial(&mut self) -> LinkId {
        let mut request = Vec::new();
        encode_request("sim", "/", &Key::new([7; 16]), &[], &[], &mut request).expect("valid");
        self.dialled += 1;
        let latency = self.rng.pick(&[0, 1000, 200_000]);
        let options = LinkOptions { latency, capacity: 1 << 20, cut_after: None };
        let from = SocketAddr::from(([127, 0, 0, 2], 1000 + self.dialled));
        let listener = self.rng.pick(&self.listeners);
        let mut net = self.net.borrow_mut();
        let link = net.dial(listener, from, options).expect("it listens");
        net.write(link, Side::Dialer, &request);
        link
    }

    fn send(&mut self, link: LinkId, text: &str) {
        let mut message = Vec::new();
        encode_masked(Opcode::Text, text.as_bytes(), [0; 4], &mut message);
        self.net.borrow_mut().write(link, Side::Dialer, &message);
    }

    fn observe(&mut self) -> Result<(), String> {
        for observer in &mut self.observers {
            let (mut bytes, mut net) = (Vec::new(), self.net.borrow_mut());
            net.read(observer.link, Side::Dialer, usize::MAX, &mut bytes);
            let taken = observer.take(&bytes);
            let pings = taken.map_err(|error| format!("in {}: {error}", observer.channel))?;
            for _ in 0..pings {
                let mut pong = Vec::new();
                encode_masked(Opcode::Pong, &[], [0; 4], &mut pong);
                net.write(observer.link, Side::Dialer, &pong);
            }
        }
        Ok(())
    }

    fn advance(&mut self, by: u64) -> Result<(), String> {
        let now = self.net.borrow().now();
        self.net.borrow_mut().advance_to(now + by);
        while turn_any(&self.net, &mut self.shards, &mut self.rng) {}
        self.observe()
    }

    /// Lets all data in flight arrive, and compares the listed members with the reported ones.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..20 {
            self.advance(1_000_000)?;
        }
        for observer in &self.observers {
            let Observer { channel, here, joins, .. } = observer;
            let listed = self.remote.presence(channel, 100).expect("it has presence");
            let listed = listed.iter().map(|present| present.client.to_bits());
            let missing = listed.filter(|id| !here.contains(id)).count();
            let counted = self.truth.borrow().get(*channel).copied().unwrap_or(0);
            let listed = self.remote.presence(channel, 100).expect("it has presence").len();
            // Its own join is listed, and not sent to it.
            if missing != 1 || listed != here.len() + 1 || counted != joins + 1 {
                return Err(format!(
                    "in {channel} {listed} are listed, {missing} of them unknown to the observer, \
                     who knows {} and {joins} joins of {counted}",
                    here.len()
                ));
            }
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), String> {
        let at = self.rng.below(CLIENTS);
        let channel = self.rng.pick(&CHANNELS);
        match (self.clients[at], self.rng.below(10)) {
            (None, _) => {
                let link = self.dial();
                self.clients[at] = Some(link);
                self.send(link, &format!("+{channel}"));
            }
            (Some(link), 0..4) => self.send(link, &format!("+{channel}")),
            (Some(link), 4 | 5) => self.send(link, &format!("-{channel}")),
            (Some(link), way) => {
                self.clients[at] = None;
                let end = self.rng.pick(&["x", "!"]);
                match way {
                    6 => self.net.borrow_mut().reset(link, Side::Dialer),
                    7 => self.net.borrow_mut().write(link, Side::Dialer, &[0xff; 8]),
                    8 => self.send(link, end),
                    _ => self.net.borrow_mut().close(link, Side::Dialer),
                }
            }
        }
        // All clients except the observers are silent, and time out.
        if self.rng.one_in(30) {
            (0..40).try_for_each(|_| self.advance(SECOND))?;
            self.clients.fill(None);
        }
        let (now, later) = (self.net.borrow().now(), self.rng.between(0, 300_000));
        self.net.borrow_mut().advance_to(now + later);
        for _ in 0..self.rng.below(5) {
            turn_any(&self.net, &mut self.shards, &mut self.rng);
        }
        match self.rng.one_in(10) {
            true => self.settle(),
            false => self.observe(),
        }
    }

    /// Runs until only the observers are left.
    fn finish(mut self) -> Result<u64, String> {
        for _ in 0..ROUNDS {
            self.round()?;
        }
        (0..60).try_for_each(|_| self.advance(SECOND))?;
        self.settle()?;
        for Observer { channel, here, .. } in &self.observers {
            if !here.is_empty() {
                return Err(format!("in {channel} {here:x?} have not left"));
            }
        }
        let counts = self.remote.presence_counts().expect("there is presence");
        if counts.clients != 2 || counts.joins != counts.leaves + 2 {
            return Err(format!("{counts:?}"));
        }
        Ok(counts.leaves)
    }
}

fn run(seed: u64, bug: Bug) -> Result<u64, String> {
    let outcome = Run::new(seed, bug).and_then(Run::finish);
    outcome.map_err(|error| {
        format!(
            "seed {seed}: {error}\n\
             repeat: THRONG_SIM_SEED={seed} cargo test -p throng-sim --test all presence::"
        )
    })
}

const SEEDS: Seeds =
    Seeds { package: "throng-sim", test: "presence", run: |seed| run(seed, Bug::None).map(drop) };

#[test]
fn each_join_is_sent_once_and_has_its_leave_once() {
    SEEDS.check_many();
}

#[test]
fn the_runs_have_many_members_that_come_and_go() {
    let leaves: u64 = (0..20).map(|seed| run(seed, Bug::None).expect("no rule is broken")).sum();
    assert!(leaves > 300, "{leaves}");
}

#[test]
fn planted_mistakes_are_found() {
    for bug in [Bug::LosesLeave, Bug::DoublesJoin, Bug::JoinsUnlisted] {
        let found = (0..20).filter(|seed| run(*seed, bug).is_err()).count();
        assert!(found > 0, "{bug:?} was not found in 20 runs");
    }
}
