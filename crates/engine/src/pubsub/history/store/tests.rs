use std::ops::Range;

use super::*;
use crate::backpressure::history::History;
use crate::backpressure::pattern::Pattern;
use crate::pubsub::history::{HistoryTail, numbered};
use crate::pubsub::relay::Question;

const SECOND: u64 = 1_000_000_000;

fn rule(history: History, max_bytes: usize) -> HistoryRules {
    let pattern = Pattern::new(">").expect("valid");
    HistoryRules::new(vec![(pattern, Some(HistoryRule { class: 1, history, max_bytes }))])
}

/// Stripes with one rule for all channels.
struct Store {
    all: Histories,
    stripes: Vec<Mutex<Stripe>>,
}

impl Store {
    fn new(history: History, max_bytes: usize, together: usize) -> Self {
        let all = Histories::new(rule(history, max_bytes), together, 7);
        Self { all, stripes: (0..4).map(|_| Mutex::default()).collect() }
    }

    fn stripe(&self, channel: &str) -> MutexGuard<'_, Stripe> {
        let number = channel.bytes().map(usize::from).sum::<usize>() % self.stripes.len();
        self.stripes[number].lock().unwrap()
    }

    fn publish(&self, channel: &str, text: &str, secs: u64) -> u64 {
        let mut stripe = self.stripe(channel);
        let (frame, now) = (Frame::text(text), Instant(secs * SECOND));
        let (recorded, is_over) =
            stripe.append(&self.all, (channel, 0), (&frame, frame.bare()), now);
        if is_over {
            self.all.make_room(&mut stripe, &self.stripes);
        }
        recorded.position().offset
    }

    fn join(&self, channel: &str, since: Option<u64>, secs: u64) -> (u64, bool, Vec<u64>) {
        let since = since.map(|offset| Position::own(7, offset));
        let mut stripe = self.stripe(channel);
        let joined = stripe.join(&self.all, (channel, 0), since.into(), Instant(secs * SECOND));
        let missed = joined.missed();
        let missed = missed.iter().map(|missed| missed.position().offset).collect();
        (joined.position.offset, joined.recovered, missed)
    }

    /// Adds up what is kept, and compares it with the figures.
    fn check(&self) {
        let (mut channels, mut publications, mut bytes) = (0, 0, 0);
        for stripe in &self.stripes {
            let stripe = stripe.lock().unwrap();
            assert_eq!(stripe.rings.len(), stripe.by_use.len());
            channels += stripe.rings.len() as u64;
            for (name, ring) in &stripe.rings {
                publications += ring.len() as u64;
                bytes += (ring.bytes() + cost_of(name)) as u64;
                assert_eq!(stripe.by_use[&ring.used], *name);
            }
        }
        let counts = self.all.counts();
        assert_eq!(
            (counts.channels, counts.publications, counts.bytes),
            (channels, publications, bytes)
        );
        assert!(counts.bytes <= counts.max_bytes, "{counts:?}");
    }
}

const HOUR: Duration = Duration::from_secs(3600);

fn offsets(range: Range<u64>) -> Vec<u64> {
    range.collect()
}

#[test]
fn a_client_gets_exactly_what_it_missed_or_is_refused() {
    let store = Store::new(History::new(5, HOUR), 1 << 20, 1 << 20);
    assert_eq!(store.join("a", None, 0), (0, false, vec![]));
    assert_eq!(store.join("a", Some(0), 0), (0, true, vec![]), "nothing was published");
    assert_eq!(store.join("a", Some(1), 0), (0, false, vec![]), "a position in the future");
    for n in 1..=9 {
        assert_eq!(store.publish("a", "x", n), n);
    }
    assert_eq!(store.join("a", Some(9), 9), (9, true, vec![]));
    assert_eq!(store.join("a", Some(7), 9), (9, true, vec![8, 9]));
    assert_eq!(store.join("a", Some(4), 9), (9, true, offsets(5..10)));
    assert_eq!(store.join("a", Some(3), 9), (9, false, vec![]), "number 4 is not kept");
    assert_eq!(store.join("a", Some(10), 9), (9, false, vec![]));
    for (most, expected) in [(0, vec![]), (2, vec![8, 9]), (5, offsets(5..10)), (6, offsets(5..10))]
    {
        let mut stripe = store.stripe("a");
        let joined = stripe.join(&store.all, ("a", 0), Since::Last(most), Instant(0));
        let missed: Vec<u64> = joined.missed().iter().map(|m| m.position().offset).collect();
        assert_eq!((joined.recovered, missed), (false, expected), "the last {most}");
    }
    let other = Position::own(8, 8);
    let mut stripe = store.stripe("a");
    let joined = stripe.join(&store.all, ("a", 0), other.into(), Instant(0));
    assert!(!joined.recovered && joined.missed().is_empty(), "another epoch");
    drop(stripe);
    assert_eq!(store.all.counts().evicted, 0);
    store.check();
}

#[test]
fn publications_that_are_too_old_are_not_given_even_before_they_are_removed() {
    let store = Store::new(History::new(100, Duration::from_secs(10)), 1 << 20, 1 << 20);
    for n in 1..=5 {
        store.publish("a", "x", n);
    }
    assert_eq!(store.join("a", Some(3), 14), (5, true, vec![4, 5]));
    assert_eq!(store.join("a", Some(2), 14), (5, false, vec![]), "number 3 is 11 s old");
    assert_eq!(store.join("a", Some(5), 500), (5, true, vec![]), "it has missed nothing");
    assert_eq!(store.all.counts().publications, 0);
    let (position, last) = store.stripe("a").last(&store.all, "a", 9, Instant(500 * SECOND));
    assert_eq!((position.offset, last.len()), (5, 0));
    let long = 500 + 3600 + 11;
    for stripe in &store.stripes {
        stripe.lock().unwrap().expire(&store.all, Instant(long * SECOND));
    }
    assert_eq!((store.all.counts().channels, store.all.counts().bytes), (0, 0));
    assert_eq!(store.join("a", Some(5), long), (5, true, vec![]), "nor has it now");
    assert_eq!(store.join("a", Some(4), long), (5, false, vec![]));
    assert_eq!(store.publish("a", "x", long), 6, "an offset is not used again");
    store.check();
}

#[test]
fn a_channel_keeps_no_more_bytes_than_its_rule_says() {
    let store = Store::new(History::new(1000, HOUR), 10_000, 1 << 20);
    for n in 1..=100 {
        store.publish("a", &"x".repeat(1000), n);
    }
    let (_, kept) = store.stripe("a").last(&store.all, "a", 1000, Instant(0));
    assert!((7..10).contains(&kept.len()), "{} kept", kept.len());
    assert_eq!(store.publish("a", &"x".repeat(20_000), 101), 101);
    assert_eq!(store.all.counts().publications, 0, "one that does not fit is not kept");
    assert_eq!(store.join("a", Some(100), 101), (101, false, vec![]));
    assert_eq!(store.join("a", Some(101), 101), (101, true, vec![]));
    store.check();
}

#[test]
fn many_channels_stay_within_the_memory_of_all_and_forgotten_ones_are_not_recovered() {
    let store = Store::new(History::new(10, HOUR), 10_000, 100_000);
    for n in 0..10_000 {
        store.publish(&format!("channel {n}"), "some message", 0);
        store.publish("often", "x", 0);
        if n % 97 == 0 {
            store.check();
        }
    }
    let counts = store.all.counts();
    assert!(counts.evicted > 9000 && counts.channels < 400, "{counts:?}");
    let (top, recovered, _) = store.join("channel 3", Some(1), 0);
    assert!(!recovered && top >= 1, "its first publication is forgotten");
    let (top, recovered, missed) = store.join("often", None, 0);
    assert_eq!((recovered, missed), (false, vec![]));
    assert_eq!(store.join("often", Some(top - 2), 0), (top, true, vec![top - 1, top]));
}

#[test]
fn a_publication_is_kept_although_other_channels_use_up_the_memory() {
    let store = Store::new(History::new(10, HOUR), 10_000, 50_000);
    // All of one stripe.
    for n in 0..500 {
        store.publish(&format!("{}{}", "a".repeat(n % 20 * 4), "b".repeat(n / 20 * 4)), "x", 0);
    }
    assert_eq!(store.publish("c", "x", 0), 1);
    assert_eq!(store.join("c", Some(0), 0), (1, true, vec![1]));
    store.check();
}

#[test]
fn a_cache_gives_the_newest_publication_to_those_who_have_not_got_it() {
    let history = History::new(10, Duration::from_secs(10)).mode(HistoryMode::Cache);
    let store = Store::new(history, 1 << 20, 1 << 20);
    assert_eq!(store.join("a", None, 0), (0, false, vec![]));
    for n in 0..3 {
        store.publish("a", "x", n);
    }
    assert_eq!(store.join("a", None, 3), (3, true, vec![3]));
    assert_eq!(store.join("a", Some(1), 3), (3, true, vec![3]));
    assert_eq!(store.join("a", Some(3), 3), (3, true, vec![]));
    assert_eq!(store.join("a", Some(1), 60), (3, false, vec![]), "it is too old");
}

#[test]
fn forms_that_are_made_for_members_do_not_grow_the_history() {
    let store = Store::new(History::new(10, HOUR), 1 << 20, 1 << 20);
    store.publish("a", "many\n\n\n\n\nlines", 0);
    let before = store.all.counts().bytes;
    let mut stripe = store.stripe("a");
    let (_, last) = stripe.last(&store.all, "a", 1, Instant(0));
    let publication = &numbered(7, &last)[0];
    assert!(publication.frame().event(1000, |_| ()).is_ok());
    drop(stripe);
    assert_eq!(store.all.counts().bytes, before);
}

/// A store whose channels a broker orders.
fn followed(together: usize) -> Store {
    Store::new(History::new(100, HOUR), 1 << 20, together)
}

/// A position in a broker's sequence, whose publications have random tags.
fn place(offset: u64) -> Position {
    Position { epoch: 9, offset, tag: Some(offset * 1_000) }
}

fn entries(offsets: &Range<u64>) -> Vec<(u64, Frame)> {
    let frame = Frame::text("x".repeat(100));
    offsets.clone().map(|offset| (offset * 1_000, frame.clone())).collect()
}

fn tail<'a>(offsets: &Range<u64>, entries: &'a [(u64, Frame)]) -> HistoryTail<'a> {
    let before = (offsets.start == 1).then_some(0);
    HistoryTail { position: place(offsets.end - 1), before, entries }
}

impl Store {
    fn begin(&self, channel: &str, offsets: Range<u64>) {
        let mut stripe = self.stripe(channel);
        let of = (&channel.into(), 0);
        let entries = entries(&offsets);
        stripe.begin_followed(&self.all, of, tail(&offsets, &entries), Instant(SECOND));
        stripe.open_followed(channel, Instant(SECOND));
        self.all.make_room(&mut stripe, &self.stripes);
    }

    fn refill(&self, channel: &str, offsets: Range<u64>) {
        let mut stripe = self.stripe(channel);
        let entries = entries(&offsets);
        let tail = tail(&offsets, &entries);
        stripe.refill_followed(&self.all, &channel.into(), tail, Instant(SECOND));
        self.all.make_room(&mut stripe, &self.stripes);
    }

    fn deliver(&self, channel: &str, offset: u64) {
        let (position, frame) = (place(offset), Frame::text("x".repeat(100)));
        let mut stripe = self.stripe(channel);
        let at = Instant(SECOND);
        let recorded = stripe.append_followed(&self.all, &channel.into(), position, &frame, at);
        assert!(recorded.is_some(), "{channel} {offset}");
        self.all.make_room(&mut stripe, &self.stripes);
    }

    /// The offsets that a client gets which comes back; `None`: it cannot continue.
    fn rejoin(
        &self,
        channel: &str,
        offset: u64,
        is_asked: bool,
    ) -> Result<Option<Vec<u64>>, Option<Question>> {
        self.rejoin_at(channel, place(offset), is_asked)
    }

    fn rejoin_at(
        &self,
        channel: &str,
        since: Position,
        is_asked: bool,
    ) -> Result<Option<Vec<u64>>, Option<Question>> {
        let since = since.into();
        let now = (Instant(SECOND), is_asked);
        let joined = self.stripe(channel).join_followed(&self.all, channel, since, now)?;
        let missed = joined.missed();
        let missed = missed.iter().map(|missed| missed.position().offset).collect();
        Ok(joined.recovered.then_some(missed))
    }
}

#[test]
fn the_broker_is_asked_for_what_was_removed_for_its_memory() {
    let one = followed(1 << 20);
    one.begin("a", 1..2);
    let store = followed(22 * one.all.counts().bytes as usize);
    store.begin("a", 1..11);
    assert_eq!(store.rejoin("a", 7, false), Ok(Some(offsets(8..11))));
    // The channel in use keeps its publications as long as another channel has any.
    store.begin("b", 1..11);
    (11..20).for_each(|offset| store.deliver("b", offset));
    assert_eq!(store.all.counts().evicted, 10);
    assert_eq!(store.rejoin("b", 15, false), Ok(Some(offsets(16..20))));
    assert_eq!(store.rejoin("a", 7, false), Err(Some(Question::All)));
    assert_eq!(store.rejoin("a", 10, false), Ok(Some(vec![])), "it has missed nothing");
    assert_eq!(store.rejoin("a", 7, true), Ok(None), "the broker does not have it either");
    // What the broker answers takes the place of what others have.
    store.refill("a", 6..11);
    assert_eq!(store.rejoin("a", 7, false), Ok(Some(offsets(8..11))));
    assert_eq!(store.rejoin("a", 2, false), Ok(None), "all that the broker has is here");
    // An answer to a question asked before the last publication does not count.
    store.deliver("a", 11);
    store.refill("a", 1..11);
    assert_eq!(store.rejoin("a", 9, false), Ok(Some(offsets(10..12))));
}

#[test]
fn figures_of_followed_channels_are_exact_however_often_they_are_cut() {
    let store = followed(3_000);
    let mut next = [1; 6];
    (0..6).for_each(|channel| store.begin(&channel.to_string(), 1..1));
    for step in 0..3_000_usize {
        let channel = step * step % 6;
        store.deliver(&channel.to_string(), next[channel]);
        next[channel] += 1;
        if step % 7 == 0 {
            store.refill(
                &channel.to_string(),
                next[channel].saturating_sub(5).max(1)..next[channel],
            );
        }
        assert!(store.all.counts().bytes <= 3_000);
    }
    (0..6).for_each(|channel: u32| {
        let channel = channel.to_string();
        store.stripe(&channel).end_followed(&store.all, &channel);
    });
    let counts = store.all.counts();
    assert_eq!((counts.channels, counts.publications, counts.bytes), (0, 0, 0));
    assert!(store.stripes.iter().all(|stripe| stripe.lock().unwrap().by_use.is_empty()));
}

#[test]
fn a_client_of_the_same_offset_and_another_tag_was_at_another_publication() {
    let store = followed(1 << 20);
    store.begin("a", 3..11);
    assert_eq!(store.rejoin("a", 7, false), Ok(Some(offsets(8..11))));
    for offset in 3..11 {
        for tag in [None, Some(0), Some(offset * 1_000 + 1)] {
            let other = Position { tag, ..place(offset) };
            assert_eq!(store.rejoin_at("a", other, false), Ok(None), "{other}");
        }
    }
    // Only a tag identifies the publication before the first one, and the broker has not sent that
    // tag here.
    assert_eq!(store.rejoin("a", 2, false), Ok(None));
    // Removal of publications keeps the tag of the last removed publication.
    (11..150).for_each(|offset| store.deliver("a", offset));
    assert_eq!(store.rejoin("a", 49, false), Ok(Some(offsets(50..150))));
    assert_eq!(store.rejoin("a", 48, false), Ok(None));
    // The broker is asked about publications ahead of this process, unless no answer could prove
    // the position.
    assert_eq!(store.rejoin("a", 200, false), Err(Some(Question::New)));
    let unproven = Position { tag: None, ..place(200) };
    assert_eq!(store.rejoin_at("a", unproven, false), Ok(None));
    // The broker has just reported the epoch; a second later the epoch may have changed.
    let other = Position { epoch: 8, ..place(149) };
    assert_eq!(store.rejoin_at("a", other, false), Ok(None));
    store.stripe("a").open_followed("a", Instant(0));
    assert_eq!(store.rejoin_at("a", other, false), Err(Some(Question::New)));
}

#[test]
fn a_position_without_a_tag_proves_nothing_in_one_process_either() {
    let store = Store::new(History::new(5, HOUR), 1 << 20, 1 << 20);
    store.publish("a", "x", 0);
    for channel in ["a", "b"] {
        let offset = u64::from(channel == "a");
        let mut stripe = store.stripe(channel);
        let mut join = |since: Position| {
            stripe.join(&store.all, (channel, 0), since.into(), Instant(0)).recovered
        };
        let position = Position::own(7, offset);
        assert!(join(position), "{position}");
        assert!(!join(Position { tag: None, ..position }));
        assert!(!join(Position { tag: position.tag.map(|tag| tag ^ 1), ..position }));
    }
}
