//! Accepted publications that are lost, or may be lost: their publishers are notified.
#![cfg(feature = "redis")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use throng_cluster::redis::{
    AskError, Bus, Health, KeepRule, Members, Outgoing, Settings, StartError, Tls, block_on,
};
use throng_cluster::{
    Announcement, Await, Control, Envelope, Place, PublishOutcome, Tail, Ticket, Unpublished,
    WhileDown, encode,
};
use throng_testkit::{Redis, eventually, poll};

/// Members that record the notifications of publishers.
#[derive(Clone, Default)]
struct Noted(Arc<Mutex<HashMap<u64, Vec<Unpublished>>>>);

impl Noted {
    fn of(&self, publisher: u64) -> Vec<Unpublished> {
        self.0.lock().unwrap().get(&publisher).cloned().unwrap_or_default()
    }
}

impl Members for Noted {
    fn begin(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>, _: bool) {}
    fn deliver(&mut self, _: &Arc<str>, _: Place, _: &[u8]) {}
    fn refill(&mut self, _: &Arc<str>, _: Tail<Vec<u8>>) {}
    fn live(&mut self, _: &Arc<str>) {}
    fn publish(&mut self, _: &str, _: &[u8]) {}
    fn end(&mut self, _: &Arc<str>) -> bool {
        true
    }
    fn presence(&mut self, _: &str, _: Announcement<'_>) {}
    fn control(&mut self, _: Control<'_>) {}
    fn subscribers(&mut self, _: &str) -> u64 {
        0
    }
    fn unpublished(&mut self, publisher: u64, lost: Unpublished) {
        self.0.lock().unwrap().entry(publisher).or_default().push(lost);
    }
}

/// The outcomes of publications.
#[derive(Clone, Debug, Default)]
struct Outcomes(Arc<Mutex<Vec<PublishOutcome>>>);

impl Await for Outcomes {
    fn settle(&self, outcome: PublishOutcome) {
        self.all().push(outcome);
    }
}

impl Outcomes {
    fn all(&self) -> MutexGuard<'_, Vec<PublishOutcome>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, outcome: PublishOutcome) -> usize {
        self.all().iter().filter(|other| **other == outcome).count()
    }

    fn ticket(&self, publisher: u64) -> Ticket {
        Ticket::new(Some(publisher), Arc::new(self.clone()))
    }
}

fn settings(redis: &Redis) -> Settings {
    Settings { url: redis.url(""), prefix: "test".to_owned(), node: 1, tls: Tls::default() }
}

fn node(redis: &Redis) -> (Bus, Noted) {
    let (bus, starter) = Bus::new(settings(redis)).unwrap();
    let noted = Noted::default();
    starter.start(noted.clone()).unwrap();
    (bus, noted)
}

/// A message, with a history or without.
fn message(channel: &str, has_history: bool, while_down: WhileDown) -> Outgoing {
    let mut envelope = Vec::new();
    encode(&Envelope { payload: b"hello", origin: 1, ..Envelope::default() }, &mut envelope);
    let age = Duration::from_secs(600);
    let keep = has_history.then_some(KeepRule { count: 100, bytes: 1 << 20, age });
    Outgoing { channel: channel.into(), envelope: envelope.into(), keep, while_down }
}

fn sum(noted: &[Unpublished]) -> (u64, u64) {
    let refused = noted.iter().map(|lost| lost.refused).sum();
    (refused, noted.iter().map(|lost| lost.unknown).sum())
}

/// An operator withdraws rights from the user of a running node.
#[test]
fn a_withdrawn_right_refuses_publications_and_names_itself() {
    let Some(redis) = Redis::start("withdrawn", &[]) else { return };
    let (bus, _noted) = node(&redis);
    for (right, outcome) in [
        ("evalsha", PublishOutcome::Refused),
        // The script has already run other commands.
        ("xadd", PublishOutcome::Unknown),
    ] {
        let outcomes = Outcomes::default();
        let publish = || {
            let outgoing = message("kept", true, WhileDown::Refuse);
            assert!(bus.publish_by(outgoing, Some(1), outcomes.ticket(1)).is_some());
        };
        publish();
        eventually("it is published", || outcomes.count(PublishOutcome::Taken) == 1);
        redis.ask(&format!("ACL SETUSER default -{right}"));
        publish();
        eventually("its outcome is known", || outcomes.all().len() == 2);
        assert_eq!(outcomes.count(outcome), 1, "{right}: {outcomes:?}");
        eventually("the node is degraded", || match bus.status().health() {
            Health::Degraded(_, why) => {
                assert!(why.contains("NOPERM") || why.contains("ACL") || why.contains("command"));
                true
            }
            _ => false,
        });
        redis.ask(&format!("ACL SETUSER default +{right}"));
        publish();
        eventually("it is published again", || outcomes.count(PublishOutcome::Taken) == 2);
        eventually("the node is up", || bus.status().health() == Health::Up);
    }
}

/// The heartbeat needs keys of the prefix as well, so it finds that all channels are concerned.
#[test]
fn a_node_that_may_not_access_any_key_is_degraded_and_names_the_answer() {
    let Some(redis) = Redis::start("no-keys", &[]) else { return };
    let (bus, _noted) = node(&redis);
    let outcomes = Outcomes::default();
    let publish = || {
        let outgoing = message("kept", true, WhileDown::Refuse);
        assert!(bus.publish_by(outgoing, Some(1), outcomes.ticket(1)).is_some());
    };
    redis.ask("ACL SETUSER default resetkeys");
    publish();
    eventually("it is refused", || outcomes.count(PublishOutcome::Refused) == 1);
    eventually("the node is degraded", || match bus.status().health() {
        Health::Degraded(_, why) => why.contains("access"),
        _ => false,
    });
    redis.ask("ACL SETUSER default allkeys");
    eventually("the node is up", || bus.status().health() == Health::Up);
    publish();
    eventually("it is published", || outcomes.count(PublishOutcome::Taken) == 1);
}

/// A key of another type, and keys that the user may not access.
#[test]
fn a_refusal_of_one_channel_names_its_keys_and_the_node_stays_up() {
    let Some(redis) = Redis::start("one-channel", &[]) else { return };
    let (bus, _noted) = node(&redis);
    assert_eq!(bus.status().refusal(), None);
    redis.ask("SET test.o.other text");
    redis.ask("ACL SETUSER default resetkeys ~test.n* ~test.epoch ~test.?.other ~test.?.fine");
    redis.ask("ACL SETUSER default resetchannels &test.c* &test.q* &test.m.fine &test.m.other");
    let outcomes = Outcomes::default();
    let publish = |channel, has_history| {
        let outgoing = message(channel, has_history, WhileDown::Refuse);
        assert!(bus.publish_by(outgoing, Some(1), outcomes.ticket(1)).is_some());
    };
    for (done, (channel, has_history, word, names)) in (1..).zip([
        ("other", true, "WRONGTYPE", "test.o.other and test.s.other"),
        ("secret", true, "access", "test.o.secret and test.s.secret"),
        ("secret", false, "access", "the channel test.m.secret"),
    ]) {
        publish(channel, has_history);
        eventually("it is refused", || outcomes.count(PublishOutcome::Refused) == done);
        let refusal = bus.status().refusal().unwrap();
        assert!(refusal.contains(word) && refusal.contains(names), "{refusal}");
        publish("fine", has_history);
        eventually("it is published", || outcomes.count(PublishOutcome::Taken) == done);
        assert_eq!(bus.status().health(), Health::Up);
    }
}

/// Redis ends connections with subscriptions that their user has lost the right to.
#[test]
fn a_withdrawn_right_to_channels_ends_the_link_and_is_named() {
    let Some(redis) = Redis::start("no-channels", &[]) else { return };
    let (bus, _noted) = node(&redis);
    redis.ask("ACL SETUSER default resetchannels");
    eventually("the node is degraded", || match bus.status().health() {
        Health::Degraded(_, why) => why.contains("access"),
        _ => false,
    });
    redis.ask("ACL SETUSER default allchannels");
    eventually("the node is up", || bus.status().health() == Health::Up);
}

#[test]
fn publishers_to_a_full_server_learn_it_and_others_are_not_concerned() {
    const MESSAGES: usize = 600;
    let Some(redis) = Redis::start("full", &[]) else { return };
    let (bus, noted) = node(&redis);
    assert_eq!(bus.status().health(), Health::Up);
    redis.ask("SET test.o.other text");
    assert!(bus.publish(message("other", true, WhileDown::Refuse)));
    eventually("one is refused", || bus.status().refusal().is_some());
    redis.ask("CONFIG SET maxmemory 1");
    let (kept, plain) = (Outcomes::default(), Outcomes::default());
    let publish = |channel: &str, has_history, outcomes: &Outcomes, publisher| {
        let outgoing = message(channel, has_history, WhileDown::Refuse);
        assert!(bus.publish_by(outgoing, Some(publisher), outcomes.ticket(publisher)).is_some());
    };
    // The first publications may still find space.
    let is_degraded = || matches!(bus.status().health(), Health::Degraded(..));
    eventually("the node is degraded", || {
        publish("kept", true, &Outcomes::default(), 3);
        is_degraded()
    });
    let before = bus.status().snapshot();
    // More publications than one pipeline sends.
    (0..MESSAGES).for_each(|_| publish("kept", true, &kept, 1));
    let Health::Degraded(_, why) = bus.status().health() else { panic!("it is full") };
    assert!(why.contains("OOM"), "{why}");
    // Messages without history are accepted while messages with history wait.
    for done in 1..=20 {
        publish("plain", false, &plain, 2);
        eventually("it is published", || plain.count(PublishOutcome::Taken) == done);
    }
    assert_eq!(*kept.all(), [], "they wait for five seconds");
    eventually("all are refused", || kept.count(PublishOutcome::Refused) == MESSAGES);
    eventually("the publisher knows", || sum(&noted.of(1)) == (MESSAGES as u64, 0));
    // Many simultaneous losses make one notification.
    assert!(noted.of(1).len() < MESSAGES / 10, "{}", noted.of(1).len());
    assert!(noted.of(2).is_empty());
    let status = bus.status().snapshot();
    assert!(status.refused >= before.refused + MESSAGES as u64 && status.unknown == 0);
    assert_eq!(bus.status().refusal(), None, "the last ones have another cause");
    assert!(status.is_up && is_degraded(), "it may be full still");
    redis.ask("CONFIG SET maxmemory 0");
    eventually("it has room, which the next sign of life shows", || {
        bus.status().health() == Health::Up
    });
    publish("kept", true, &kept, 1);
    eventually("it is published", || kept.count(PublishOutcome::Taken) == 1);
}

#[test]
fn publications_that_a_server_has_not_answered_are_unknown_and_may_arrive() {
    let Some(redis) = Redis::start("silent", &[]) else { return };
    let ((bus, noted), (other, _)) = (node(&redis), node(&redis));
    let outcomes = Outcomes::default();
    redis.signal("-STOP");
    let publish = |has_history| {
        let outgoing = message("kept", has_history, WhileDown::Buffer);
        assert!(bus.publish_by(outgoing, Some(1), outcomes.ticket(1)).is_some());
    };
    // The first publication is sent, and the others wait for its answer.
    publish(true);
    let counted = other.publish_counted(message("b", false, WhileDown::Buffer), Duration::MAX);
    eventually("it is noticed", || !bus.status().is_up() && !other.status().is_up());
    assert_eq!(block_on(counted), Err(AskError::Unknown));
    (0..2).for_each(|_| publish(true));
    publish(false);
    eventually("all have an outcome", || outcomes.all().len() == 4);
    assert_eq!(sum(&noted.of(1)), (3, 1));
    let status = bus.status().snapshot();
    assert_eq!((status.refused, status.unknown, status.published), (3, 1, 0));
    assert_eq!(other.status().snapshot().unknown, 1);
    // The server executes the commands in its buffers.
    redis.signal("-CONT");
    eventually("one has arrived", || redis.ask("HGET test.o.kept p") != "$-1");
}

#[test]
fn a_server_that_comes_later_is_found_and_publishers_before_it_learn_of_their_loss() {
    let Some(mut redis) = Redis::start("later", &[]) else { return };
    redis.kill();
    let (bus, starter) = Bus::new(settings(&redis)).unwrap();
    let error = starter.start(Noted::default()).unwrap_err();
    assert!(!error.is_lasting(), "{error}");
    drop(bus);

    let (bus, starter) = Bus::new(settings(&redis)).unwrap();
    let noted = Noted::default();
    starter.start_or_wait(noted.clone()).unwrap();
    assert!(matches!(bus.status().health(), Health::Unlinked(..)) && !bus.was_linked("a"));
    assert!(!bus.publish(message("a", false, WhileDown::Refuse)));
    let outcomes = Outcomes::default();
    for has_history in [true, false] {
        let outgoing = message("a", has_history, WhileDown::Buffer);
        assert!(bus.publish_by(outgoing, Some(7), outcomes.ticket(7)).is_some());
    }
    eventually("they learn it", || sum(&noted.of(7)) == (2, 0));
    assert_eq!(outcomes.count(PublishOutcome::Refused), 2);
    redis.run();
    eventually("it is found", || bus.status().health() == Health::Up);
    let outgoing = message("a", true, WhileDown::Refuse);
    assert!(bus.was_linked("a") && bus.publish_by(outgoing, None, outcomes.ticket(7)).is_some());
    eventually("it is published", || outcomes.count(PublishOutcome::Taken) == 1);
    redis.kill();
    eventually("it is away", || matches!(bus.status().health(), Health::Degraded(..)));
}

#[test]
fn a_database_that_is_not_there_and_a_server_of_another_kind_are_errors_at_the_start() {
    let Some(redis) = Redis::start("other-kind", &[]) else { return };
    let port = redis.port();
    let configuration = format!("sentinel monitor mymaster 127.0.0.1 {port} 1\n");
    let watching = Redis::start_sentinel("other-kind", &configuration);
    let sentinel = watching.port();
    let start = |url: &str| {
        let url = url.to_owned();
        let (bus, starter) = Bus::new(Settings { url, ..settings(&redis) }).unwrap();
        let started = starter.start_or_wait(Noted::default());
        bus.stop();
        started
    };
    for (url, parts) in [
        (
            format!("redis://127.0.0.1:{port}/99"),
            ["DB index", "write a number that the server has"],
        ),
        (format!("redis-sentinel://127.0.0.1:{port}/mymaster"), ["a sentinel", "write redis://"]),
        (
            format!("redis-sentinel://127.0.0.1:{sentinel}/mymaster/99"),
            ["DB index", "write a number that the server has"],
        ),
        (format!("redis://127.0.0.1:{sentinel}"), ["is a sentinel", "redis-sentinel://"]),
        (format!("redis-cluster://127.0.0.1:{sentinel}"), ["is a sentinel", "redis-sentinel://"]),
    ] {
        // A sentinel that has just started may not answer in time.
        let error = poll("it is refused", || start(&url).err());
        let text = error.to_string();
        assert!(error.is_lasting() && text.contains("cluster.url"), "{url}: {text}");
        assert!(parts.iter().all(|part| text.contains(part)), "{url}: {text}");
    }
}

#[test]
fn a_password_that_is_wrong_is_an_error_at_the_start_and_one_that_comes_later_is_found() {
    let Some(redis) = Redis::start("locked", &["--requirepass", "secret"]) else { return };
    let start = |url| -> Result<Bus, StartError> {
        let (bus, starter) = Bus::new(Settings { url, ..settings(&redis) })?;
        starter.start_or_wait(Noted::default()).map(|()| bus)
    };
    let error = start(redis.url(":wrong@")).unwrap_err();
    assert!(error.is_lasting() && error.to_string().contains("password"), "{error}");
    let error = start(redis.url("")).unwrap_err();
    assert!(error.is_lasting(), "{error}");
    assert!(start(redis.url(":secret@")).is_ok());
}
