//! Tests the sequencer with a broker that loses connections, data and the ends of sequences. A
//! referee knows every publication.

use std::collections::VecDeque;

use throng_testkit::Random;

use super::*;
use crate::held::MAX_HELD;

/// A fault injected into the sequencer. The referee must find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// The sequencer compares only offsets.
    IgnoresTheEpoch,
    DeliversOverAGap,
    FillsWithoutComparing,
    /// The first part of an answer is taken for all of it.
    TrustsTheTop,
    /// The sequencer accepts an answer to a question of a lost connection.
    TakesLateAnswers,
}

impl<T> Sequencer<T> {
    pub(super) fn has(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }
}

/// A publication, as its number and its predecessor's number in the broker's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    number: u64,
    before: u64,
}

/// One channel at a broker that keeps its last publications.
struct Broker {
    epoch: u64,
    log: Vec<(Place, Sent)>,
    kept: usize,
    published: u64,
}

impl Broker {
    fn top(&self) -> Place {
        let first = Place { epoch: self.epoch, offset: 0, tag: 0 };
        self.log.last().map_or(first, |(place, _)| *place)
    }

    fn publish(&mut self, random: &mut Random) -> (Place, Sent) {
        self.published += 1;
        let offset = self.log.len() as u64 + 1;
        let before = self.log.last().map_or(0, |(_, sent)| sent.number);
        let place = Place { epoch: self.epoch, offset, tag: random.bits() };
        let sent = Sent { number: self.published, before };
        self.log.push((place, sent));
        (place, sent)
    }

    /// Answers as the broker's script does: if the place belongs to a lost sequence, a new epoch
    /// begins.
    fn answer(&mut self, after: Option<Place>, random: &mut Random) -> SequenceAnswer<Sent> {
        let oldest = self.log.len().saturating_sub(self.kept);
        let mut continues = false;
        if let Some(after) = after.filter(|after| after.epoch == self.epoch) {
            let known = match after.offset {
                0 => Some(after),
                offset => self.log.get(offset as usize - 1).map(|(place, _)| *place),
            };
            continues = known == Some(after) && after.offset as usize >= oldest;
            if known != Some(after) {
                self.epoch = random.bits();
                let epoch = self.epoch;
                self.log.iter_mut().for_each(|(place, _)| place.epoch = epoch);
            }
        }
        let from = after.filter(|_| continues).map_or(oldest, |after| after.offset as usize);
        let most = if continues { 1 + random.below(8) } else { usize::MAX };
        let entry = |(place, sent): &(Place, Sent)| (place.offset, place.tag, *sent);
        let entries = self.log[from..].iter().take(most).map(entry).collect();
        let before = oldest.checked_sub(1).map(|at| (self.log[at].0.offset, self.log[at].0.tag));
        SequenceAnswer { top: self.top(), continues, entries, before }
    }
}

/// The referee's verdict on the publications that a member receives.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Fine,
    Wrong(&'static str),
}

fn run(seed: u64, bug: Option<Bug>, loses: bool) -> Verdict {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let kept = if loses { 1 + random.below(12) } else { 1_000 };
    let mut broker = Broker { epoch: random.bits(), log: vec![], kept, published: 0 };
    // The budget holds no publication, a few, or all of them.
    let budget = Budget::new([0, 700, 1 << 20][random.below(3)]);
    let mut node = Sequencer { planted: bug, ..Sequencer::new(0, budget.clone()) };
    let (mut pushes, mut questions, mut answers) =
        (VecDeque::new(), VecDeque::new(), VecDeque::new());
    let mut is_subscribed = false;
    let mut member: Option<u64> = None;
    let mut actions = Vec::new();
    for step in 0..260 {
        let is_settling = step >= 200;
        match random.below(if is_settling { 5 } else { 20 }) {
            0 if is_subscribed => {
                if let Some((place, sent)) = pushes.pop_front() {
                    node.publication(place, (sent, 100), &mut actions);
                }
            }
            1 | 2 => {
                if let Some((number, after)) = questions.pop_front() {
                    answers.push_back((number, broker.answer(after, &mut random)));
                }
            }
            3 => {
                if let Some((number, answer)) = answers.pop_front() {
                    let late = bug == Some(Bug::TakesLateAnswers);
                    node.answer(if late { node.asked } else { number }, answer, &mut actions);
                }
            }
            4 if !is_subscribed => {
                is_subscribed = true;
                node.subscribed(&mut actions);
            }
            5..=11 => {
                let published = broker.publish(&mut random);
                if is_subscribed {
                    pushes.push_back(published);
                }
            }
            12 => node.check(&mut actions),
            17 => node.fetch(&mut actions),
            13 if random.below(3) == 0 => {
                is_subscribed = false;
                node.broken();
                pushes.clear();
                questions.clear();
                if bug != Some(Bug::TakesLateAnswers) && random.below(2) == 0 {
                    answers.clear();
                }
            }
            14 if is_subscribed && random.below(3) == 0 => {
                // The output limit closes the connection in the middle of the messages in flight.
                for (place, sent) in pushes.drain(..random.below(pushes.len() + 1)) {
                    node.publication(place, (sent, 100), &mut actions);
                }
                pushes.clear();
                is_subscribed = false;
                node.broken();
                questions.clear();
                answers.clear();
            }
            15 if loses && !is_subscribed && random.below(3) == 0 => {
                // It comes back without the end of its sequence, or without all of it.
                if random.below(3) == 0 {
                    broker.log.clear();
                    broker.epoch = random.bits();
                } else {
                    broker.log.truncate(random.below(broker.log.len() + 1));
                }
            }
            // FLUSHALL: the broker loses all data, and the connections stay open.
            16 if loses && random.below(8) == 0 => {
                broker.log.clear();
                broker.epoch = random.bits();
            }
            _ => {}
        }
        for action in std::mem::take(&mut actions) {
            match action {
                SequenceAction::Ask { .. } if !is_subscribed => {}
                SequenceAction::Ask { number, after } => questions.push_back((number, after)),
                SequenceAction::Deliver { publication, .. } => {
                    if member != Some(publication.before) {
                        return Verdict::Wrong("a hole, a repetition or a change of order");
                    }
                    member = Some(publication.number);
                }
                SequenceAction::Begin { tail: Tail { place, before, entries }, is_loss } => {
                    if is_loss != member.is_some() {
                        return Verdict::Wrong("a loss that is not reported, or none that is");
                    }
                    if is_loss && !loses {
                        return Verdict::Wrong("a loss where nothing was lost");
                    }
                    if let Some(wrong) = check_tail(&broker, place, before, &entries) {
                        return Verdict::Wrong(wrong);
                    }
                    let last = entries.last().map(|(_, sent)| sent.number);
                    let is_known = |(known, _): &&(Place, Sent)| {
                        (known.offset, known.tag) == (place.offset, place.tag)
                    };
                    let known = broker.log.iter().find(is_known).map(|(_, sent)| sent.number);
                    member = last.or(known).or(Some(0));
                }
                SequenceAction::Refill(Tail { place, entries, .. }) => {
                    if let Some(wrong) = check_refill(place, &entries, member) {
                        return Verdict::Wrong(wrong);
                    }
                }
                SequenceAction::Live => {}
            }
        }
    }
    settle(&mut broker, &mut node, member, (pushes, questions, answers, is_subscribed), &mut random)
}

/// Checks the publications that a sequence begins with. Returns an error if their tags, or their
/// predecessor's tag, would let a client continue from a different publication.
fn check_tail(
    broker: &Broker,
    place: Place,
    before: Option<u64>,
    entries: &[(u64, Sent)],
) -> Option<&'static str> {
    let first = place.offset - entries.len() as u64;
    let tags = before.into_iter().chain(entries.iter().map(|(tag, _)| *tag));
    let from = if before.is_some() { first } else { first + 1 };
    // The broker may have lost the publication since its answer.
    let at = |offset: u64| match offset.checked_sub(1) {
        None => Some(0),
        Some(at) => broker.log.get(at as usize).map(|(place, _)| place.tag),
    };
    let is_here = at(place.offset) == Some(place.tag);
    let is_right = tags.zip(from..).all(|(tag, offset)| at(offset) == Some(tag));
    (is_here && !is_right).then_some("a history whose tags are those of others")
}

/// Checks the publications that must lead up to the members' last one.
fn check_refill(
    place: Place,
    entries: &[(u64, Sent)],
    member: Option<u64>,
) -> Option<&'static str> {
    let is_whole = entries.windows(2).all(|two| two[0].1.number == two[1].1.before)
        && entries.len() as u64 <= place.offset;
    match entries.last() {
        _ if !is_whole => Some("a refill with a gap"),
        Some((_, last)) if Some(last.number) != member => Some("a refill that ends elsewhere"),
        _ => None,
    }
}

type Wires = (
    VecDeque<(Place, Sent)>,
    VecDeque<(u64, Option<Place>)>,
    VecDeque<(u64, SequenceAnswer<Sent>)>,
    bool,
);

/// Delivers everything in flight. Afterwards the member must have the last publication.
fn settle(
    broker: &mut Broker,
    node: &mut Sequencer<Sent>,
    mut member: Option<u64>,
    (mut pushes, mut questions, mut answers, is_subscribed): Wires,
    random: &mut Random,
) -> Verdict {
    let mut actions = Vec::new();
    if is_subscribed {
        node.check(&mut actions);
    } else {
        node.subscribed(&mut actions);
    }
    for _ in 0..10_000 {
        if let Some((place, sent)) = pushes.pop_front() {
            node.publication(place, (sent, 100), &mut actions);
        } else if let Some((number, answer)) = answers.pop_front() {
            node.answer(number, answer, &mut actions);
        } else if let Some((number, after)) = questions.pop_front() {
            answers.push_back((number, broker.answer(after, random)));
        }
        for action in std::mem::take(&mut actions) {
            match action {
                SequenceAction::Ask { number, after } => questions.push_back((number, after)),
                SequenceAction::Deliver { publication, .. }
                    if member != Some(publication.before) =>
                {
                    return Verdict::Wrong("a hole at the end");
                }
                SequenceAction::Deliver { publication, .. } => member = Some(publication.number),
                SequenceAction::Begin { tail: Tail { place, .. }, .. } => {
                    let at = |(known, _): &&(Place, Sent)| *known == place;
                    member = Some(broker.log.iter().find(at).map_or(0, |(_, sent)| sent.number));
                }
                SequenceAction::Refill(Tail { place, entries, .. }) => {
                    if let Some(wrong) = check_refill(place, &entries, member) {
                        return Verdict::Wrong(wrong);
                    }
                }
                SequenceAction::Live => {}
            }
        }
        if pushes.is_empty() && answers.is_empty() && questions.is_empty() {
            let is_whole = node.is_live() && node.at() == Some(broker.top());
            return if is_whole { Verdict::Fine } else { Verdict::Wrong("the end is missing") };
        }
    }
    Verdict::Wrong("it never comes to rest")
}

#[test]
fn members_get_an_unbroken_sequence_or_learn_of_the_loss_in_any_interleaving() {
    for seed in 0..20_000 {
        assert_eq!(run(seed, None, true), Verdict::Fine, "seed {seed}");
    }
}

#[test]
fn no_loss_is_reported_while_the_broker_keeps_what_was_missed() {
    for seed in 0..20_000 {
        assert_eq!(run(seed, None, false), Verdict::Fine, "seed {seed}");
    }
}

#[test]
fn each_planted_bug_is_found() {
    for bug in [
        Bug::IgnoresTheEpoch,
        Bug::DeliversOverAGap,
        Bug::FillsWithoutComparing,
        Bug::TrustsTheTop,
        Bug::TakesLateAnswers,
    ] {
        let found = (0..20_000).any(|seed| run(seed, Some(bug), true) != Verdict::Fine);
        assert!(found, "{bug:?} is not found");
    }
}

#[test]
fn all_that_the_broker_keeps_is_fetched_and_what_is_new_is_delivered() {
    let (mut node, mut actions) = (Sequencer::new(0, Budget::new(1 << 20)), Vec::new());
    let place = |offset| Place { epoch: 1, offset, tag: offset };
    node.subscribed(&mut actions);
    node.answer(
        1,
        SequenceAnswer { top: place(3), continues: false, entries: vec![], before: None },
        &mut actions,
    );
    // While a question is pending, the question for everything waits.
    node.check(&mut actions);
    node.fetch(&mut actions);
    actions.clear();
    node.answer(
        2,
        SequenceAnswer { top: place(3), continues: true, entries: vec![], before: None },
        &mut actions,
    );
    assert_eq!(actions, [SequenceAction::Ask { number: 3, after: None }]);
    actions.clear();
    let entries = (2..=4).map(|offset| (offset, offset, offset)).collect();
    node.answer(
        3,
        SequenceAnswer { top: place(4), continues: false, entries, before: Some((1, 1)) },
        &mut actions,
    );
    let expected = [
        SequenceAction::Refill(Tail {
            place: place(3),
            before: Some(1),
            entries: vec![(2, 2), (3, 3)],
        }),
        SequenceAction::Deliver { place: place(4), publication: 4 },
        SequenceAction::Live,
    ];
    assert_eq!(actions, expected);
    // If the broker no longer keeps the place, the answer to an ordinary question shows it.
    node.fetch(&mut actions);
    let entries = (6..=7).map(|offset| (offset, offset, offset)).collect();
    actions.clear();
    node.answer(
        4,
        SequenceAnswer { top: place(7), continues: false, entries, before: None },
        &mut actions,
    );
    assert_eq!(actions, [SequenceAction::Ask { number: 5, after: Some(place(4)) }]);
}

#[test]
fn more_publications_than_can_be_held_are_fetched_afterwards() {
    // Limited by number, then by bytes.
    for (budget, bytes, fits) in [(1 << 20, 0, MAX_HELD as u64), (100_000, 9_000, 11)] {
        let budget = Budget::new(budget);
        let (mut node, mut actions) = (Sequencer::new(0, budget.clone()), Vec::new());
        node.subscribed(&mut actions);
        let place = |offset| Place { epoch: 1, offset, tag: offset };
        let count = fits + 10;
        for offset in 1..=count {
            node.publication(place(offset), (offset, bytes), &mut actions);
        }
        // A publication that would fit arrives after a gap.
        node.publication(place(count + 1), (count + 1, 0), &mut actions);
        assert_eq!(budget.refused(), 11);
        actions.clear();
        node.answer(
            1,
            SequenceAnswer { top: place(0), continues: false, entries: vec![], before: None },
            &mut actions,
        );
        assert_eq!((node.at(), budget.bytes()), (Some(place(fits)), 0));
        assert_eq!(actions.last(), Some(&SequenceAction::Ask { number: 2, after: node.at() }));
        let rest = (fits + 1..=count + 1).map(|offset| (offset, offset, offset)).collect();
        actions.clear();
        let answer =
            SequenceAnswer { top: place(count + 1), continues: true, entries: rest, before: None };
        node.answer(2, answer, &mut actions);
        assert_eq!(actions.len(), 12);
        assert!(node.is_live());
    }
}

#[test]
fn held_publications_give_their_memory_back_when_a_connection_or_the_channel_goes() {
    let budget = Budget::new(1 << 20);
    let (mut node, mut actions) = (Sequencer::new(0, budget.clone()), Vec::new());
    let place = Place { epoch: 1, offset: 5, tag: 5 };
    for _ in 0..2 {
        node.subscribed(&mut actions);
        node.publication(place, (5, 1_000), &mut actions);
        assert!(budget.bytes() > 1_000);
        node.broken();
        assert_eq!(budget.bytes(), 0);
    }
    node.subscribed(&mut actions);
    node.publication(place, (5, 1_000), &mut actions);
    drop(node);
    assert_eq!(budget.bytes(), 0);
}
