//! Publishers that are faster than another shard: only they are delayed, and no message is lost.

use throng_sim::reader::Received;
use throng_sim::{Do, Expect, SECOND, SimPlan, World};

fn text(text: &str) -> Do {
    Do::Message { text: true, payload: text.as_bytes().to_vec(), fragments: 1, pinging: false }
}

/// Publications of each publisher, all in one write.
const COUNT: u32 = 100;

/// Members of "news" and publishers on every shard, so that shards wait for each other. A mailbox
/// with more than `mark` commands is crowded.
fn plan(seed: u64, mark: usize) -> (SimPlan, Vec<usize>) {
    let mut plan = SimPlan::calm(seed);
    plan.shards = 3;
    plan.mailbox_mark = Some(mark);
    plan.limits.max_backlog = 16 << 20;
    plan.limits.ws.max_message_size = 1000;
    let mut members = Vec::new();
    for _ in 0..12 {
        let script =
            vec![Do::UntilOpen, text("!sub news"), Do::Pause(30 * SECOND), Do::Close(1000)];
        members.push(plan.add("member", Expect::Clean, script));
    }
    for n in 0..9u64 {
        let publications = (0..COUNT).map(|_| text("!pub news x"));
        let script = [Do::UntilOpen, Do::Pause(2 * SECOND)].into_iter().chain(publications);
        let script = script.chain([Do::Close(1000)]).collect();
        let publisher = plan.add("publisher", Expect::Clean, script);
        plan.parts[publisher].at = n;
        plan.parts[publisher].link.capacity = 1 << 20;
    }
    (plan, members)
}

#[test]
fn shards_whose_publishers_wait_for_each_other_go_on_and_lose_nothing() {
    for (seed, mark) in [(1, 0), (2, 0), (3, 1), (4, 7), (5, 100)] {
        let (plan, members) = plan(seed, mark);
        let mut world = World::new(plan);
        while world.step() {}
        assert!(world.stats().publishers_held > 0, "seed {seed}");
        assert_eq!(world.stats().commands_dropped, 0);
        for member in members {
            // All messages, in the order of each publisher: `finish` also checks this.
            let received = &world.peer(member).reader.received;
            assert_eq!(received.len(), 9 * COUNT as usize, "seed {seed}, member {member}");
            for publisher in 12..21 {
                let own = received.iter().filter_map(|received| match received {
                    Received::Published { by, sequence, .. } if *by == publisher => Some(*sequence),
                    _ => None,
                });
                assert!(own.eq(1..=COUNT), "seed {seed}, publisher {publisher}");
            }
        }
        let outcome = world.finish();
        assert!(outcome.violations.is_empty(), "{:#?}", outcome.violations);
    }
}

/// A client that has published into a crowded mailbox waits, and ends like any other: by its own
/// Close, by the server's Close, or by a reset.
#[test]
fn publishers_that_are_held_back_end_in_every_way() {
    for seed in 0..10 {
        let (mut plan, _) = plan(seed, 0);
        for n in 0..12u64 {
            let publications = (0..20).map(|_| text("!pub news x"));
            let end = match n % 4 {
                0 => Do::Reset,
                1 => text("!close 4001"),
                2 => Do::Finish,
                _ => text("!abort"),
            };
            let script = [Do::UntilOpen, Do::Pause(2 * SECOND)].into_iter().chain(publications);
            let number = plan.add("ends", Expect::Anything, script.chain([end]).collect());
            plan.parts[number].polite = n % 8 < 4;
        }
        let outcome = World::new(plan).run();
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
        assert!(outcome.stats.publishers_held > 0);
    }
}
