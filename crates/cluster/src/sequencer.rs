//! The publications of one channel with history, in an unbroken sequence.
//!
//! The broker delivers publications on one connection and answers questions on another. A node asks
//! after it has subscribed, and each time it may have missed something; it holds publications that
//! arrive before the answer. So the members of this node get every publication of the channel, once
//! and in order, or learn that the sequence has a gap. They stay members while the broker is away.
//!
//! | state | event | outcome |
//! |---|---|---|
//! | not subscribed | the subscription is acknowledged | the broker is asked |
//! | asking | a publication | it is held |
//! | asking | the answer | the missed publications, then the held ones, then live |
//! | live | the next publication | delivered |
//! | live | any other publication | held, and the broker is asked |
//! | asking | a publication that does not fit | it is dropped, and requested afterwards |
//! | any | the connection is lost | not subscribed; the place is kept |
//! | live | members want publications that this node has removed | the broker is asked for all |

use std::collections::VecDeque;

use crate::envelope::Place;
use crate::held::{Budget, BufferedPublication};

/// The broker's answer about a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceAnswer<T> {
    /// The place of the last publication.
    pub top: Place,
    /// Whether the queried place is in the broker's sequence.
    pub continues: bool,
    /// The publications after that place, the oldest first, as offset, tag and publication; or all
    /// that the broker keeps if the place does not exist. They may end before `top`.
    pub entries: Vec<(u64, u64, T)>,
    /// Offset and tag of the publication just before the kept ones.
    pub before: Option<(u64, u64)>,
}

/// The last publications of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail<T> {
    /// The place of the last publication.
    pub place: Place,
    /// The tag of the publication before the first one, if known.
    pub before: Option<u64>,
    /// Tags and publications with contiguous offsets; the last offset is `place`'s.
    pub entries: Vec<(u64, T)>,
}

/// An action that the node must execute, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceAction<T> {
    /// Ask the broker for the publications after this place.
    Ask {
        /// The caller returns it with the answer.
        number: u64,
        /// The last publication that members have got.
        after: Option<Place>,
    },
    /// The sequence begins with these publications.
    Begin {
        /// The last publications.
        tail: Tail<T>,
        /// Whether members have missed publications.
        is_loss: bool,
    },
    /// Members get a publication.
    Deliver {
        /// Its place.
        place: Place,
        /// The publication.
        publication: T,
    },
    /// Publications that the broker keeps up to the members' last one, for members that return.
    Refill(Tail<T>),
    /// Members have received all publications that the broker had when it was asked.
    Live,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SequenceState {
    NotSubscribed,
    Asking,
    Live,
}

/// The sequence of a channel on this node.
#[derive(Debug)]
pub struct Sequencer<T> {
    state: SequenceState,
    at: Option<Place>,
    /// Number of the last question.
    asked: u64,
    /// The number of publications held before the last question.
    before_question: usize,
    held: BufferedPublication<T>,
    /// Whether a publication was dropped because too many were held, or too little memory was left.
    /// Later publications are also dropped, and the broker is asked for all of them.
    is_overfull: bool,
    /// Whether the next question must ask for everything that the broker keeps, and whether the
    /// last one did.
    wants_all: bool,
    asked_for_all: bool,
    #[cfg(test)]
    planted: Option<tests::Bug>,
}

impl<T> Sequencer<T> {
    /// Returns the place of the last publication that members have got.
    #[must_use]
    pub fn at(&self) -> Option<Place> {
        self.at
    }

    /// Creates a sequencer that holds publications within `budget`. It numbers its questions from
    /// `first`, so that answers to questions of another sequencer for the same channel do not
    /// count.
    #[must_use]
    pub fn new(first: u64, budget: Budget) -> Self {
        Self {
            state: SequenceState::NotSubscribed,
            at: None,
            asked: first,
            before_question: 0,
            held: BufferedPublication::new(budget),
            is_overfull: false,
            wants_all: false,
            asked_for_all: false,
            #[cfg(test)]
            planted: None,
        }
    }

    /// Returns whether the answer to the question with this number counts.
    #[must_use]
    pub fn awaits(&self, number: u64) -> bool {
        self.state == SequenceState::Asking && number == self.asked
    }

    /// Returns whether no question to the broker is pending.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.state == SequenceState::Live
    }

    /// Records that the broker has acknowledged the channel's subscription.
    pub fn subscribed(&mut self, actions: &mut Vec<SequenceAction<T>>) {
        self.ask(actions);
    }

    /// Asks the broker whether the node has missed something, unless a question is pending or the
    /// channel is not subscribed.
    pub fn check(&mut self, actions: &mut Vec<SequenceAction<T>>) {
        if self.state == SequenceState::Live {
            self.ask(actions);
        }
    }

    /// Asks the broker as [`check`](Self::check) does, but for everything that it keeps:
    /// [`SequenceAction::Refill`] or [`SequenceAction::Begin`] follows. If a question is pending,
    /// this one follows it.
    pub fn fetch(&mut self, actions: &mut Vec<SequenceAction<T>>) {
        self.wants_all = true;
        self.check(actions);
    }

    fn ask(&mut self, actions: &mut Vec<SequenceAction<T>>) {
        self.state = SequenceState::Asking;
        self.asked += 1;
        self.before_question = self.held.len();
        self.is_overfull = false;
        self.asked_for_all = std::mem::take(&mut self.wants_all);
        let after = self.at.filter(|_| !self.asked_for_all);
        actions.push(SequenceAction::Ask { number: self.asked, after });
    }

    /// Records that a connection to the broker was lost.
    pub fn broken(&mut self) {
        self.state = SequenceState::NotSubscribed;
        // Answers in flight no longer count.
        self.asked += 1;
        self.held.clear();
    }

    /// Handles a publication of this many bytes from the broker.
    pub fn publication(
        &mut self,
        place: Place,
        (publication, bytes): (T, usize),
        actions: &mut Vec<SequenceAction<T>>,
    ) {
        match self.state {
            // The answer to the question after the subscription contains the publication.
            SequenceState::NotSubscribed => {}
            SequenceState::Asking if self.is_overfull => self.held.count_refused(),
            SequenceState::Asking => self.is_overfull = !self.held.push(place, publication, bytes),
            SequenceState::Live if self.is_next(place) => self.deliver(place, publication, actions),
            #[cfg(test)]
            SequenceState::Live
                if self.has(tests::Bug::IgnoresTheEpoch) && !self.is_newer(place) => {}
            #[cfg(test)]
            SequenceState::Live
                if self.has(tests::Bug::DeliversOverAGap)
                    || self.has(tests::Bug::IgnoresTheEpoch) =>
            {
                self.deliver(place, publication, actions);
            }
            SequenceState::Live => {
                // If the publication does not fit here, the answer to the question that follows
                // contains it.
                let _ = self.held.push(place, publication, bytes);
                self.ask(actions);
            }
        }
    }

    fn is_next(&self, place: Place) -> bool {
        self.at.is_some_and(|at| {
            at.epoch == place.epoch && at.offset.checked_add(1) == Some(place.offset)
        })
    }

    fn deliver(&mut self, place: Place, publication: T, actions: &mut Vec<SequenceAction<T>>) {
        self.at = Some(place);
        actions.push(SequenceAction::Deliver { place, publication });
    }

    /// Handles the answer to the question with this number.
    pub fn answer(
        &mut self,
        number: u64,
        answer: SequenceAnswer<T>,
        actions: &mut Vec<SequenceAction<T>>,
    ) {
        if !self.awaits(number) {
            return;
        }
        let SequenceAnswer { top, mut continues, mut entries, before } = answer;
        if let Some(at) = self.at.filter(|_| self.asked_for_all) {
            let Some(known) = leading_to(at, top, &entries) else {
                // The answer to an ordinary question contains the later publications, or shows the
                // loss.
                return self.ask(actions);
            };
            let rest = entries.split_off(known);
            let known = std::mem::replace(&mut entries, rest);
            actions.push(SequenceAction::Refill(Tail::new(at, known, before)));
            continues = true;
        }
        // Tags distinguish these publications from others with the same offsets, in case the broker
        // lost the end of the sequence before the question.
        let known: Vec<_> = match self.held.is_empty() {
            true => Vec::new(),
            false => entries.iter().map(|(offset, tag, _)| (*offset, *tag)).collect(),
        };
        let first = self.at.and_then(|at| at.offset.checked_add(1));
        let is_contiguous = entries.windows(2).all(|two| two[0].0.checked_add(1) == Some(two[1].0))
            && match entries.first() {
                Some((offset, ..)) => Some(*offset) == first,
                None => self.at == Some(top),
            };
        match self.at {
            Some(at) if continues && is_contiguous || self.ignores_gap(continues) => {
                for (offset, tag, publication) in entries {
                    self.deliver(Place { epoch: at.epoch, offset, tag }, publication, actions);
                }
            }
            at => {
                self.at = Some(top);
                let tail = Tail::new(top, entries, before);
                actions.push(SequenceAction::Begin { tail, is_loss: at.is_some() });
            }
        }
        #[cfg(test)]
        if self.has(tests::Bug::TrustsTheTop) {
            self.at = Some(top);
        }
        self.take_held(top, &known, actions);
    }

    /// Continues with the publications held during the question. The answer contains everything
    /// before its question; `known` has its publications.
    fn take_held(
        &mut self,
        top: Place,
        known: &[(u64, u64)],
        actions: &mut Vec<SequenceAction<T>>,
    ) {
        if self.at.is_some_and(|at| at.offset < top.offset) {
            return self.ask(actions);
        }
        while let Some(place) = self.held.first() {
            let is_before = self.before_question > 0;
            self.before_question = self.before_question.saturating_sub(1);
            let is_known = || {
                place.epoch == top.epoch
                    && known
                        .binary_search_by_key(&place.offset, |(offset, _)| *offset)
                        .is_ok_and(|at| known[at].1 == place.tag)
            };
            let is_next = self.is_next(place);
            if !is_next && !is_before && !is_known() {
                return self.ask(actions);
            }
            if let Some((_, publication)) = self.held.pop().filter(|_| is_next) {
                self.deliver(place, publication, actions);
            }
        }
        if self.is_overfull || self.wants_all {
            return self.ask(actions);
        }
        self.state = SequenceState::Live;
        actions.push(SequenceAction::Live);
    }

    #[cfg(test)]
    fn is_newer(&self, place: Place) -> bool {
        self.at.is_none_or(|at| at.offset < place.offset)
    }

    #[cfg(not(test))]
    fn ignores_gap(&self, _: bool) -> bool {
        false
    }

    #[cfg(test)]
    fn ignores_gap(&self, continues: bool) -> bool {
        !continues && self.has(tests::Bug::FillsWithoutComparing)
    }
}

/// Returns how many entries lead up to the place `at` of a sequence that ends with `top`; `None`:
/// it is not in the sequence, or not kept.
fn leading_to<T>(at: Place, top: Place, entries: &[(u64, u64, T)]) -> Option<usize> {
    if at == top {
        return Some(entries.len());
    }
    let found = entries.iter().position(|(offset, tag, _)| (*offset, *tag) == (at.offset, at.tag));
    found.filter(|_| at.epoch == top.epoch).map(|found| found + 1)
}

impl<T> Tail<T> {
    /// Creates a tail from the entries that lead up to `place` without a gap. `before` is the
    /// offset and tag of the publication before the entries.
    fn new(place: Place, all: Vec<(u64, u64, T)>, before: Option<(u64, u64)>) -> Self {
        let mut entries = VecDeque::new();
        let mut expected = place.offset;
        for (offset, tag, publication) in all.into_iter().rev() {
            if offset != expected || offset == 0 {
                break;
            }
            entries.push_front((tag, publication));
            expected -= 1;
        }
        let before = match before {
            // A sequence begins here, so no publication precedes it.
            _ if expected == 0 => Some(0),
            _ if entries.is_empty() => Some(place.tag),
            before => before.filter(|(offset, _)| *offset == expected).map(|(_, tag)| tag),
        };
        Self { place, before, entries: entries.into() }
    }
}

#[cfg(test)]
mod tests;
