//! Exact counts of each policy under slow readers, over WebSocket and as streams of events. Memory
//! stays within the caps at every step, and quick readers miss nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use throng_engine::{Backpressure, ClassCounters, SlowPolicy};
use throng_sim::plan::Outside;
use throng_sim::reader::Received;
use throng_sim::world::OUTSIDER;
use throng_sim::{Do, Expect, Pace, Rules, SECOND, SimPlan, World, WorldOutcome};

use crate::support::{COUNT, EVERY, FILL, FIRST_AT, MILLI, publish, sequences, text};

/// Returns the bytes of publication number `sequence` while it waits.
fn weight(sequence: u32, stream: bool) -> usize {
    let payload = format!("c|news|{OUTSIDER}|{sequence}|").len() + FILL;
    // A header of 4 bytes, or `data: ` and two line ends.
    payload + if stream { 8 } else { 4 }
}

/// One reader that stops reading for a while, and three that do not.
struct Scene {
    world: World,
    slow: usize,
    quick: [usize; 3],
}

impl Scene {
    /// Creates a scene whose slow reader stops before the first publication, and continues at
    /// `resumes`.
    fn new(rules: Rules, stream: bool, resumes: u64, published: Vec<Outside>) -> Self {
        let mut plan = SimPlan::calm(31);
        plan.rules = rules;
        plan.limits.heartbeat_interval = None;
        plan.limits.write_timeout = Duration::from_secs(60);
        plan.shards = 2;
        let stalls =
            [Do::UntilOpen, Do::Read(Pace::Never), Do::Pause(resumes), Do::Read(Pace::Prompt)];
        let ends = 20 * SECOND;
        let slow = match stream {
            true => {
                let mut script = stalls.to_vec();
                script.extend([Do::Pause(100 * SECOND), Do::Reset]);
                plan.add_stream("slow stream", "news", script)
            }
            false => {
                let mut script = stalls.to_vec();
                script.insert(1, text("!sub news"));
                script.extend([Do::Pause(ends), Do::Close(1000)]);
                plan.add("slow", Expect::Anything, script)
            }
        };
        plan.parts[slow].link.capacity = 3000;
        let quick = [0, 1, 2].map(|n| match n {
            0 => plan.add_stream("quick stream", "news", vec![Do::Pause(40 * SECOND), Do::Reset]),
            _ => plan.add(
                "quick",
                Expect::Clean,
                vec![Do::UntilOpen, text("!sub news"), Do::Pause(ends), Do::Close(1000)],
            ),
        });
        for (n, outside) in published.into_iter().enumerate() {
            plan.outside.push((FIRST_AT + n as u64 * EVERY, outside));
        }
        for stream in [slow, quick[0]] {
            // This has no effect on a slow reader without a stream.
            plan.outside.push((resumes + ends, Outside::Dismiss(stream as u32)));
        }
        Self { world: World::new(plan), slow, quick }
    }

    /// Runs until `at`; at every step no class is over its cap, and no backlog over `most`.
    fn run_until(&mut self, at: u64, most: usize) {
        let held = self.world.run_until(|world| {
            for audit in world.audits() {
                assert_eq!(audit.largest_excess, 0, "over a cap at {} ms", world.now() / MILLI);
                let backlog = audit.largest_backlog;
                assert!(backlog <= most, "{backlog} bytes at {} ms", world.now() / MILLI);
            }
            world.now() >= at
        });
        assert!(held, "it ended before");
    }

    fn received(&self, peer: usize) -> Vec<u32> {
        sequences(&self.world, peer)
    }

    /// Returns the last of the first publications without a gap, which left before the link was
    /// full.
    fn prefix(&self) -> u32 {
        let received = self.received(self.slow);
        received.iter().zip(1..).take_while(|(received, n)| *received == n).count() as u32
    }

    /// Ends the run. Checks that quick readers have missed nothing, that all receipts agree with
    /// the figures, and that every message is accounted for.
    fn finish(mut self, gone: u64) -> (ClassCounters, WorldOutcome) {
        while self.world.step() {}
        let messages = self.world.record.borrow().made[&OUTSIDER];
        for peer in self.quick {
            assert_eq!(self.received(peer), (1..=messages).collect::<Vec<_>>(), "a quick reader");
        }
        let figures = self.world.figures()[1];
        let record = self.world.record.borrow();
        let mut counts = [0; 4];
        for expected in &record.receipts {
            let total = expected.receipt.total().expect("every shard has counted");
            for (sum, count) in
                counts.iter_mut().zip([total.delivered, total.queued, total.dropped, total.closed])
            {
                *sum += count;
            }
            assert_eq!(total.unreached, 0);
            assert_eq!(total.receivers(), 4 - u64::from(gone > 0 && total.receivers() < 4));
        }
        let refused = figures.dropped_newest + figures.slow_consumers;
        assert_eq!(counts, [figures.delivered, figures.queued, refused, figures.closed]);
        let offered = record.sessions[&(self.slow as u32)].offers.len() as u64;
        let got = self.received(self.slow).len() as u64;
        let lost = figures.dropped_oldest + figures.conflated + figures.expired + figures.discarded;
        assert_eq!(
            got + refused + lost + figures.closed + gone,
            offered,
            "{got} received, {figures:?}"
        );
        drop(record);
        let outcome = self.world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
        (figures, outcome)
    }
}

fn publications() -> Vec<Outside> {
    (0..COUNT).map(|_| publish("")).collect()
}

/// The end of a pause that outlasts all publications.
const RESUMES: u64 = 5 * SECOND;

/// Maximum bytes besides the waiting messages: a link of 3000 bytes, and the batch that did not fit
/// on it.
const ON_THE_WAY: usize = 2 * (FILL + 100);

#[test]
fn drop_newest_keeps_the_first_ones() {
    for stream in [false, true] {
        let cap = 10_000;
        let rules = Backpressure::new(SlowPolicy::DropNewest).max_backlog(cap);
        let rules = Rules::default().channel("news", rules);
        let mut scene = Scene::new(rules, stream, RESUMES, publications());
        scene.run_until(10 * SECOND, cap + ON_THE_WAY);
        // The messages that left at once, and those that found space afterwards, form one sequence.
        let received = scene.received(scene.slow);
        let prefix = scene.prefix();
        assert_eq!(received, (1..=prefix).collect::<Vec<_>>());
        // The pipe and one batch, then as many whole messages as the cap allows.
        let waiting = cap / weight(20, stream);
        let on_the_way = prefix as usize - waiting;
        assert!((3..=5).contains(&on_the_way), "{on_the_way} on the way");
        let (figures, outcome) = scene.finish(0);
        assert_eq!(figures.dropped_newest, u64::from(COUNT - prefix));
        assert_eq!(outcome.stats.messages_dropped, figures.dropped_newest);
    }
}

#[test]
fn drop_oldest_keeps_the_last_ones() {
    for stream in [false, true] {
        let cap = 10_000;
        let rules = Backpressure::new(SlowPolicy::DropOldest).max_backlog(cap);
        let rules = Rules::default().channel("news", rules);
        let mut scene = Scene::new(rules, stream, RESUMES, publications());
        scene.run_until(10 * SECOND, cap + ON_THE_WAY);
        let prefix = scene.prefix();
        let waiting = (cap / weight(COUNT, stream)) as u32;
        let expected: Vec<u32> = (1..=prefix).chain(COUNT - waiting + 1..=COUNT).collect();
        assert_eq!(scene.received(scene.slow), expected);
        let (figures, _) = scene.finish(0);
        assert_eq!(figures.dropped_oldest, u64::from(COUNT - waiting - prefix));
        // Three messages fit into 3000 bytes. The fourth leaves in part, and also counts as
        // `delivered`.
        assert_eq!((prefix, figures.queued), (4, u64::from(COUNT - prefix)));
    }
}

#[test]
fn latest_keeps_the_newest_value_of_each_key() {
    const KEYS: u32 = 5;
    for stream in [false, true] {
        let cap = 10_000;
        let rules = Backpressure::new(SlowPolicy::Latest).max_backlog(cap);
        let rules = Rules::default().channel("news", rules);
        let published = (1..=COUNT).map(|n| publish(&(n % KEYS).to_string())).collect();
        let mut scene = Scene::new(rules, stream, RESUMES, published);
        scene.run_until(10 * SECOND, cap + ON_THE_WAY);
        let prefix = scene.prefix();
        // Each new value replaces the first waiting value of its key.
        let newest = |first: u32| first + (COUNT - first) / KEYS * KEYS;
        let tail = (prefix + 1..=prefix + KEYS).map(newest);
        assert_eq!(scene.received(scene.slow), (1..=prefix).chain(tail).collect::<Vec<_>>());
        let (figures, _) = scene.finish(0);
        assert_eq!(figures.conflated, u64::from(COUNT - prefix - KEYS));
        assert_eq!(figures.dropped_oldest, 0);
    }
}

#[test]
fn latest_without_a_key_keeps_one_message_and_at_its_cap_drops_the_oldest_key() {
    for stream in [false, true] {
        let rules = Backpressure::new(SlowPolicy::Latest).max_backlog(3000);
        let rules = Rules::default().channel("news", rules);
        let mut scene = Scene::new(rules.clone(), stream, RESUMES, publications());
        scene.run_until(10 * SECOND, 3000 + ON_THE_WAY);
        let prefix = scene.prefix();
        let expected: Vec<u32> = (1..=prefix).chain([COUNT]).collect();
        assert_eq!(scene.received(scene.slow), expected);
        let (figures, _) = scene.finish(0);
        assert_eq!((figures.conflated, figures.dropped_oldest), (u64::from(COUNT - prefix - 1), 0));

        // Each message has its own key, and the cap allows three messages.
        let published = (1..=COUNT).map(|n| publish(&n.to_string())).collect();
        let mut scene = Scene::new(rules, stream, RESUMES, published);
        scene.run_until(10 * SECOND, 3000 + ON_THE_WAY);
        let prefix = scene.prefix();
        let expected: Vec<u32> = (1..=prefix).chain(COUNT - 2..=COUNT).collect();
        assert_eq!(scene.received(scene.slow), expected);
        let (figures, _) = scene.finish(0);
        assert_eq!((figures.conflated, figures.dropped_oldest), (0, u64::from(COUNT - prefix - 3)));
    }
}

/// Values of one key in two channels of the same class are two keys.
#[test]
fn conflation_stays_within_its_channel() {
    let rules = Backpressure::new(SlowPolicy::Latest).max_backlog(10_000);
    let mut plan = SimPlan::calm(32);
    plan.rules = Rules::default().channel("prices.*", rules);
    plan.wildcards = true;
    let channels = ["prices.eu", "prices.us"];
    let slow = plan.add(
        "slow",
        Expect::Clean,
        vec![
            Do::UntilOpen,
            text("!sub prices.*"),
            Do::Read(Pace::Never),
            Do::Pause(3 * SECOND),
            Do::Read(Pace::Prompt),
            Do::Pause(SECOND),
            Do::Close(1000),
        ],
    );
    plan.parts[slow].link.capacity = 200;
    for n in 0..60 {
        let channel = channels[n % 2].to_owned();
        let publish = Outside::Publish { channel, key: "gold".to_owned(), except: None, fill: 200 };
        plan.outside.push((SECOND + n as u64 * EVERY, publish));
    }
    let mut world = World::new(plan);
    while world.step() {}
    let received = sequences(&world, slow);
    let newest: BTreeSet<u32> = received[received.len() - 2..].iter().copied().collect();
    assert_eq!(newest, [59, 60].into());
    assert_eq!(world.figures()[1].conflated, 60 - received.len() as u64);
    assert!(received.len() < 6, "{received:?}");
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

#[test]
fn close_ends_exactly_those_that_are_over() {
    for stream in [false, true] {
        let cap = 20_000;
        let rules = Rules::default().channel("news", Backpressure::default().max_backlog(cap));
        let mut scene = Scene::new(rules, stream, RESUMES, publications());
        let most = cap + weight(COUNT, stream) + ON_THE_WAY;
        scene.run_until(4 * SECOND, most);
        let slow_consumers = scene.world.figures()[1].slow_consumers;
        assert_eq!(slow_consumers, 1, "counted once, whatever comes after");
        scene.run_until(10 * SECOND, most);
        let prefix = scene.prefix();
        let received = scene.received(scene.slow);
        assert_eq!(received, (1..=prefix).collect::<Vec<_>>(), "a row without gaps");
        let closed = scene.world.peer(scene.slow).reader.closed.clone();
        let why = (1008, "slow consumer".to_owned());
        assert_eq!(closed, (!stream).then_some(why));
        let open = |peer: &usize| scene.world.peer(*peer).end.is_none();
        assert!(scene.quick.iter().all(open), "a quick reader was closed");
        // Everything queued after the batch in flight is lost with it: the cap, and the message
        // above it.
        let queued = (cap / weight(20, stream)) as u64 + 1;
        let figures = scene.world.figures()[1];
        let offered = figures.closed + figures.slow_consumers + u64::from(prefix);
        let gone = u64::from(COUNT) - offered;
        assert!((queued - 2..=queued).contains(&gone), "{gone} were queued, not {queued}");
        let (figures, outcome) = scene.finish(gone);
        assert_eq!((figures.slow_consumers, outcome.stats.slow_consumers), (1, 1));
        assert_eq!(outcome.stats.messages_dropped, 1);
    }
}

/// The age limit: messages that waited longer are not sent, and their memory is freed long before
/// the reader continues.
#[test]
fn nothing_older_than_its_age_is_sent_and_the_sweep_frees_it() {
    for policy in [SlowPolicy::Close, SlowPolicy::DropOldest, SlowPolicy::DropNewest] {
        for stream in [false, true] {
            let age = 500 * MILLI;
            let rules = Backpressure::new(policy).max_age(Duration::from_nanos(age));
            let rules = Rules::default().channel("news", rules);
            // In the middle of the publications.
            let resumes = FIRST_AT + 1500 * MILLI;
            let mut scene = Scene::new(rules.clone(), stream, resumes, publications());
            // At most as much as is published within the age and one second, the interval of the
            // check.
            let most = (age + SECOND + 20 * MILLI).div_ceil(EVERY) as usize * weight(COUNT, stream);
            scene.run_until(10 * SECOND, most + ON_THE_WAY);
            let prefix = scene.prefix();
            let tail: BTreeSet<u32> =
                scene.received(scene.slow).into_iter().filter(|n| *n > prefix).collect();
            let record = scene.world.record.borrow();
            for (offer, n) in record.sessions[&(scene.slow as u32)].offers.iter().zip(1..) {
                let latest = resumes + 20 * MILLI;
                // The client reads again when the data has arrived and its pause is over, at about
                // `resumes`.
                if n > prefix && offer.at + age < resumes {
                    assert!(!tail.contains(&n), "{n} was {} ms old", (resumes - offer.at) / MILLI);
                } else if offer.at + age > latest {
                    assert!(tail.contains(&n), "{n} was not too old");
                }
            }
            drop(record);
            let (figures, _) = scene.finish(0);
            assert_eq!(figures.expired, u64::from(COUNT - prefix) - tail.len() as u64);
            assert!(figures.expired > 80 && tail.len() > 80, "{figures:?}");

            // The reader is blocked for a long time.
            let mut scene = Scene::new(rules, stream, 8 * SECOND, publications());
            let last = FIRST_AT + u64::from(COUNT) * EVERY;
            scene.run_until(last + age + SECOND + EVERY, most + ON_THE_WAY);
            let left = scene.world.audits().iter().map(|audit| audit.largest_backlog).max();
            assert!(left <= Some(weight(COUNT, stream)), "{left:?} bytes still wait");
            let (figures, _) = scene.finish(0);
            assert_eq!(figures.expired, u64::from(COUNT - 4));
        }
    }
}

/// Private messages of a class that closes are queued in order after the waiting ones, and none is
/// lost.
#[test]
fn messages_that_may_not_be_dropped_keep_their_place_among_those_that_may() {
    for stream in [false, true] {
        for policy in [SlowPolicy::DropNewest, SlowPolicy::DropOldest, SlowPolicy::Latest] {
            let cap = 3000;
            let rules = Backpressure::new(policy).max_backlog(cap);
            let rules = Rules::default().channel("news", rules);
            let mut plan = SimPlan::calm(33);
            plan.rules = rules;
            let number = plan.parts.len() as u32;
            let mut script = vec![Do::UntilOpen, Do::Read(Pace::Never), Do::Pause(4 * SECOND)];
            script.extend([Do::Read(Pace::Prompt), Do::Pause(2 * SECOND)]);
            let slow = match stream {
                true => plan.add_stream("slow stream", "news", script),
                false => {
                    script.insert(1, text("!sub news"));
                    script.push(Do::Close(1000));
                    plan.add("slow", Expect::Clean, script)
                }
            };
            plan.parts[slow].link.capacity = 500;
            for n in 0..100 {
                let outside = match n % 2 {
                    0 => publish(""),
                    _ => Outside::Send { to: number, fill: 100 },
                };
                plan.outside.push((SECOND + n * EVERY, outside));
            }
            plan.outside.push((6 * SECOND, Outside::Dismiss(number)));
            let mut world = World::new(plan);
            while world.step() {}
            let private = |received: &&Received| matches!(received, Received::Private { .. });
            let received = &world.peer(slow).reader.received;
            assert_eq!(received.iter().filter(private).count(), 50, "{policy}");
            let published = received.len() as u64 - 50;
            let figures = world.figures()[1];
            let lost = figures.dropped_newest + figures.dropped_oldest + figures.conflated;
            assert_eq!(published + lost, 50, "{policy}: {figures:?}");
            assert!(lost > 30, "{policy}: {figures:?}");
            if policy != SlowPolicy::Latest {
                let received = sequences(&world, slow);
                assert!(received.is_sorted(), "{policy}: {received:?}");
            }
            let outcome = world.finish();
            assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
        }
    }
}

/// Messages that may be dropped follow in chunks. They must not use capacity meant for messages
/// that must not be dropped.
#[test]
fn a_backlog_that_may_be_dropped_closes_no_receiver_of_a_private_message() {
    for max_backlog in [4_000, 20_000, 100_000] {
        let mut plan = SimPlan::calm(38);
        plan.limits.max_backlog = max_backlog;
        let rules = Backpressure::new(SlowPolicy::DropOldest).max_backlog(200_000);
        plan.rules = Rules::default().channel("news", rules);
        let slow = plan.add(
            "slow",
            Expect::Clean,
            vec![
                Do::UntilOpen,
                text("!sub news"),
                Do::Read(Pace::Never),
                Do::Pause(4 * SECOND),
                Do::Read(Pace::Slow(500, EVERY)),
                Do::Pause(10 * SECOND),
                Do::Close(1000),
            ],
        );
        plan.parts[slow].link.capacity = 3000;
        for n in 0..u64::from(COUNT) {
            plan.outside.push((SECOND + n * EVERY, publish("")));
        }
        // In the middle of the data that the client then reads.
        plan.outside.push((5 * SECOND, Outside::Send { to: slow as u32, fill: 100 }));
        let mut world = World::new(plan);
        while world.step() {}
        let received = sequences(&world, slow);
        assert_eq!(received, (1..=COUNT + 1).collect::<Vec<_>>(), "within {max_backlog}");
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    }
}

/// Some messages always wait, while private messages are queued and leave: far more in total than
/// may ever wait.
#[test]
fn private_messages_to_a_reader_that_is_never_quite_caught_up_keep_arriving() {
    const PRIVATE: usize = 200;
    for stream in [false, true] {
        let mut plan = SimPlan::calm(39);
        plan.limits.max_backlog = 4000;
        let rules = Backpressure::new(SlowPolicy::DropOldest).max_backlog(20_000);
        plan.rules = Rules::default().channel("news", rules);
        // A third of what is published.
        let mut script = vec![Do::UntilOpen, Do::Read(Pace::Slow(300, EVERY))];
        script.push(Do::Pause(13 * SECOND));
        let slow = match stream {
            true => {
                script.push(Do::Reset);
                plan.add_stream("slow stream", "news", script)
            }
            false => {
                script.insert(1, text("!sub news"));
                script.push(Do::Close(1000));
                plan.add("slow", Expect::Clean, script)
            }
        };
        plan.parts[slow].link.capacity = 3000;
        for n in 0..1000 {
            plan.outside.push((SECOND + n * EVERY, publish("")));
            if n % 5 == 0 {
                let private = Outside::Send { to: slow as u32, fill: 80 };
                plan.outside.push((SECOND + n * EVERY, private));
            }
        }
        let mut world = World::new(plan);
        while world.step() {}
        let received = world.peer(slow).reader.received.iter();
        let private =
            received.filter(|received| matches!(received, Received::Private { .. })).count();
        assert_eq!(private, PRIVATE);
        assert!(world.figures()[1].dropped_oldest > 500, "{:?}", world.figures()[1]);
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    }
}

/// Policies affect only slow readers: a quick reader gets all fragments of one turn's publications,
/// for any cap.
#[test]
fn a_quick_reader_of_fragmented_messages_misses_nothing() {
    for policy in [SlowPolicy::DropNewest, SlowPolicy::DropOldest, SlowPolicy::Latest] {
        let mut plan = SimPlan::calm(40);
        plan.limits.fragment_threshold = Some(500);
        plan.limits.fragment_size = 300;
        let rules = Backpressure::new(policy).max_backlog(2000);
        plan.rules = Rules::default().channel("news", rules);
        let script = [Do::UntilOpen, text("!sub news"), Do::Pause(5 * SECOND), Do::Close(1000)];
        let quick = plan.add("quick", Expect::Clean, script.to_vec());
        let mut world = World::new(plan);
        assert!(world.run_until(|world| world.now() >= SECOND));
        (0..10).for_each(|_| world.act(publish("")));
        while world.step() {}
        assert_eq!(sequences(&world, quick), (1..=10).collect::<Vec<_>>(), "{policy}");
    }
}

/// A ping is answered before the waiting messages, and a Close follows them.
#[test]
fn a_pong_overtakes_what_waits_and_a_close_does_not() {
    let cap = 30_000;
    let rules = Backpressure::new(SlowPolicy::DropNewest).max_backlog(cap);
    let mut plan = SimPlan::calm(34);
    plan.rules = Rules::default().channel("news", rules);
    let slow = plan.add(
        "slow",
        Expect::Clean,
        vec![
            Do::UntilOpen,
            text("!sub news"),
            Do::Read(Pace::Never),
            Do::Pause(3 * SECOND),
            Do::Ping(b"there?".to_vec()),
            Do::Pause(SECOND / 10),
            // The peer's Close is answered after all waiting messages.
            Do::Read(Pace::Slow(500, MILLI)),
            Do::Close(1000),
        ],
    );
    plan.parts[slow].link.capacity = 3000;
    for n in 0..u64::from(COUNT) {
        plan.outside.push((SECOND + n * EVERY, publish("")));
    }
    let mut world = World::new(plan);
    assert!(world.run_until(|world| {
        let peers = world.peers[slow].as_ref();
        peers.is_some_and(|peer| !peer.reader.pongs.is_empty())
    }));
    assert_eq!(world.peer(slow).reader.received.len(), 4, "only what had left before");
    while world.step() {}
    let waiting = cap / weight(20, false);
    assert_eq!(world.peer(slow).reader.received.len(), 4 + waiting);
    assert_eq!(world.figures()[1].dropped_newest, u64::from(COUNT) - 4 - waiting as u64);
    let outcome = world.finish();
    assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
}

/// Readers that never read cost at most their caps, and their lost messages are counted.
#[test]
fn the_queue_of_a_peer_that_never_reads_is_discarded_with_it() {
    const PEERS: u64 = 14;
    for policy in [SlowPolicy::DropNewest, SlowPolicy::DropOldest, SlowPolicy::Latest] {
        let cap = 10_000;
        let rules = Backpressure::new(policy).max_backlog(cap);
        let mut plan = SimPlan::calm(35);
        plan.rules = Rules::default().channel("news", rules);
        plan.limits.heartbeat_interval = None;
        for n in 0..PEERS {
            let script =
                vec![Do::UntilOpen, Do::Read(Pace::Never), Do::Pause(5 * SECOND), Do::Reset];
            let number = match n % 2 {
                0 => plan.add_stream("unread stream", "news", script),
                _ => {
                    let mut script = script;
                    script.insert(1, text("!sub news"));
                    plan.add("unresponsive", Expect::Anything, script)
                }
            };
            plan.parts[number].link.capacity = 3000;
        }
        for n in 1..=COUNT {
            let key = (n % 3).to_string();
            plan.outside.push((SECOND + u64::from(n) * EVERY, publish(&key)));
        }
        let mut world = World::new(plan);
        while world.step() {
            for audit in world.audits() {
                assert_eq!(audit.largest_excess, 0);
                assert!(audit.largest_backlog <= cap + ON_THE_WAY, "{}", audit.largest_backlog);
            }
        }
        let figures = world.figures()[1];
        let lost = figures.dropped_newest + figures.dropped_oldest + figures.conflated;
        // Four messages left for each peer: three are in the pipe, and one is at the driver.
        assert_eq!(lost + figures.discarded, PEERS * u64::from(COUNT - 4), "{figures:?}");
        let waited =
            if policy == SlowPolicy::Latest { 3 } else { (cap / weight(COUNT, true)) as u64 };
        assert_eq!(figures.discarded, PEERS * waited, "{figures:?}");
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    }
}

/// A reader that is always slow gets a continuous stream of the newest values, and never an old
/// one.
#[test]
fn a_steadily_slow_reader_moves_forward_only() {
    for policy in [SlowPolicy::DropNewest, SlowPolicy::DropOldest, SlowPolicy::Latest] {
        for stream in [false, true] {
            let rules = Backpressure::new(policy).max_backlog(4000);
            let rules = Rules::default().channel("news", rules);
            let mut scene = Scene::new(rules, stream, RESUMES, publications());
            // A third of what is published.
            let script = &mut scene.world.plan.parts[scene.slow].script;
            for line in script.iter_mut() {
                if *line == Do::Read(Pace::Never) {
                    *line = Do::Read(Pace::Slow(300, EVERY));
                }
            }
            // The waiting messages, and the part that the driver already has.
            scene.run_until(10 * SECOND, 2 * 4000 + ON_THE_WAY);
            let received = scene.received(scene.slow);
            assert!(received.is_sorted_by(|a, b| a < b), "{received:?}");
            let count = COUNT as usize;
            assert!((count / 4..count / 2).contains(&received.len()), "{} came", received.len());
            if policy != SlowPolicy::DropNewest {
                assert_eq!(received.last(), Some(&COUNT));
            }
            scene.finish(0);
        }
    }
}
