//! Commands of a node for others, and questions to all.
//!
//! Skipped where there is no redis-server; with `TEST_PEERS=1` that is an error.
#![cfg(feature = "redis")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use throng_cluster::redis::{
    AskError, Bus, KeepRule, Members, Outgoing, Recipients, Settings, Tls, block_on,
};
use throng_cluster::{Announcement, Control, NodeCommand, Place, Tail, Target, WhileDown};
use throng_testkit::{Redis, eventually};

#[derive(Clone, Default)]
struct Recorder(Arc<Mutex<Vec<String>>>);

impl Members for Recorder {
    fn begin(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>, _: bool) {}
    fn deliver(&mut self, _: &Arc<str>, _: Place, _: &[u8]) {}
    fn refill(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>) {}
    fn live(&mut self, _: &Arc<str>) {}
    fn publish(&mut self, _: &str, _: &[u8]) {}

    fn end(&mut self, _: &Arc<str>) -> bool {
        true
    }

    fn presence(&mut self, _: &str, _: Announcement<'_>) {}

    fn subscribers(&mut self, channel: &str) -> u64 {
        channel.len() as u64
    }

    fn control(&mut self, Control { target, command }: Control<'_>) {
        self.0.lock().unwrap().push(format!("{target:?} {command:?}"));
    }

    fn answer(&mut self, question: &[u8]) -> Option<Vec<u8>> {
        match question {
            b"large" => Some(vec![0; (64 << 10) + 1]),
            b"" => None,
            question => Some([question, b"!"].concat()),
        }
    }
}

fn start(redis: &Redis, node: u64) -> (Bus, Recorder) {
    let settings =
        Settings { url: redis.url(""), prefix: "test".to_owned(), node, tls: Tls::default() };
    let (bus, starter) = Bus::new(settings).unwrap();
    let recorder = Recorder::default();
    starter.start(recorder.clone()).unwrap();
    (bus, recorder)
}

#[test]
fn a_command_reaches_one_node_or_all_and_malformed_ones_are_counted_and_dropped() {
    let Some(mut redis) = Redis::start("control", &[]) else { return };
    let [(one, to_one), (two, to_two)] = [1, 2].map(|node| start(&redis, node));
    let command = NodeCommand::Close { code: 4001, reason: "banned" };
    let client = Control { target: Target::Client(7), command };
    let command = NodeCommand::Unsubscribe { channel: "chat" };
    let members = Control { target: Target::Members("user.ann"), command };
    let send = |to, control: Control<'_>| block_on(one.control(to, control.encode().unwrap()));
    let all_nodes = Recipients::Of("user.ann");
    // A prefix of a node's name addresses another node.
    for way in ["test.c", "test.c.0000000000000002"] {
        for wrong in ["hello", "\"\\x01\\x03\"", "\"\\x01\\x03\\x0f\\xa1\\x07\\x00\\x00\""] {
            redis.ask(&format!("PUBLISH {way} {wrong}"));
        }
    }
    assert_eq!(send(Recipients::Node(2), client), Ok(1));
    assert_eq!(send(all_nodes, members), Ok(2));
    assert_eq!(send(Recipients::Node(3), client), Ok(0), "there is no such node");
    let one_client = "Client(7) Close { code: 4001, reason: \"banned\" }";
    let all = "Members(\"user.ann\") Unsubscribe { channel: \"chat\" }";
    eventually("they come", || *to_two.0.lock().unwrap() == [one_client, all]);
    eventually("one is for all", || *to_one.0.lock().unwrap() == [all]);
    let malformed = |bus: &Bus| bus.status().snapshot().malformed;
    assert_eq!((malformed(&one), malformed(&two)), (3, 6));
    redis.kill();
    eventually("it is noticed", || !one.status().is_up());
    assert_eq!(send(all_nodes, members), Err(AskError::NoAnswer));
    redis.run();
    eventually("commands come again", || {
        send(all_nodes, members).is_ok_and(|reached| reached == 2)
    });
    [one, two].iter().for_each(Bus::stop);
}

#[test]
fn all_nodes_count_and_those_that_are_silent_are_named() {
    let Some(mut redis) = Redis::start("count", &[]) else { return };
    let [(one, _), (two, _)] = [1, 2].map(|node| start(&redis, node));
    let count = |channel: &str, limit| block_on(one.count(channel.into(), limit));
    let counted = count("abc", Duration::from_secs(5)).unwrap();
    assert_eq!((counted.total, counted.missing), (6, vec![]));
    let publish = |keep, limit| {
        let (channel, envelope) = ("abc".into(), [].into());
        let outgoing = Outgoing { channel, envelope, keep, while_down: WhileDown::Refuse };
        block_on(one.publish_counted(outgoing, limit))
    };
    let keep = Some(KeepRule { count: 1, bytes: 1 << 20, age: Duration::from_secs(60) });
    for keep in [None, keep] {
        let counted = publish(keep, Duration::from_secs(5)).unwrap();
        assert_eq!((counted.total, counted.missing), (6, vec![]));
    }
    // A node that is alive and does not answer. Its heartbeat must exist first: otherwise another
    // node's heartbeat would remove the node.
    redis.ask("SET test.n.000000000000000c 1");
    redis.ask("SADD test.nodes 000000000000000c");
    let counted = count("abc", Duration::from_millis(100)).unwrap();
    assert_eq!((counted.total, counted.missing), (6, vec![12]));
    let counted = publish(keep, Duration::from_millis(100)).unwrap();
    assert_eq!((counted.total, counted.missing), (6, vec![12]));
    assert_eq!(one.status().snapshot().published, 3);
    // Answers to a question that is over, and to an unknown one, are dropped.
    let answer = format!("\\x01\\x05{}{}\\x01", "0".repeat(16), "\\x00".repeat(7));
    redis.ask(&format!("PUBLISH test.c.0000000000000001 \"{answer}\""));
    redis.kill();
    eventually("it is noticed", || !one.status().is_up());
    assert_eq!(count("abc", Duration::from_secs(5)), Err(AskError::NoAnswer));
    assert_eq!(publish(keep, Duration::from_secs(5)), Err(AskError::Refused));
    assert_eq!(one.status().snapshot().malformed, 0);
    [one, two].iter().for_each(Bus::stop);
}

#[test]
fn all_nodes_answer_questions_of_the_program_and_those_that_do_not_are_named() {
    let Some(redis) = Redis::start("survey", &[]) else { return };
    let [(one, _), (two, _)] = [1, 2].map(|node| start(&redis, node));
    let ask = |question: &[u8], limit| block_on(one.survey(question, limit)).unwrap();
    let surveyed = ask(b"who", Duration::from_secs(5));
    let all = [(1, b"who!".to_vec()), (2, b"who!".to_vec())];
    assert_eq!((&surveyed.answers[..], &surveyed.missing[..]), (&all[..], &[][..]));
    for none in [&b""[..], b"large"] {
        let surveyed = ask(none, Duration::from_millis(100));
        assert_eq!((surveyed.answers, surveyed.missing), (vec![], vec![1, 2]));
    }
    // A node that is alive and does not answer.
    redis.ask("SET test.n.000000000000000c 1");
    redis.ask("SADD test.nodes 000000000000000c");
    let surveyed = ask(b"who", Duration::from_millis(500));
    assert_eq!((&surveyed.answers[..], surveyed.missing), (&all[..], vec![12]));
    let long = [0; (64 << 10) + 1];
    let refused = block_on(one.survey(&long, Duration::from_secs(5)));
    assert!(matches!(refused, Err(AskError::Failed(_))));
    assert_eq!((one.status().snapshot().malformed, two.status().snapshot().malformed), (0, 0));
    [one, two].iter().for_each(Bus::stop);
}
