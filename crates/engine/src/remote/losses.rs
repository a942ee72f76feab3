//! Publications that a shard's queue could not take, recorded so that the shard can act on the
//! loss.
//!
//! Connections that publish are held back long before a queue is full, so this is for publications
//! that cannot be held back: a callback that publishes more than fits into a queue, or a
//! publication to a thread whose handler blocks. The shard reads which publications are missing
//! before it carries out later publications. It then applies to each receiver the policy for a
//! message that does not fit.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use throng_io::ConnId;

use crate::pubsub::filter::Filter;

/// Maximum filters, and channels that publishers name, that are recorded separately. Beyond that
/// every connection may have missed something.
const MAX_FILTERS: usize = 256;
const MAX_CHANNELS: usize = 65_536;

/// Receivers that miss something.
#[derive(Clone, Debug)]
pub(crate) enum Receivers {
    /// The members of a channel but one.
    Channel(Arc<str>, Option<ConnId>),
    /// The members of a channel whose sequence has a gap.
    Hole(Arc<str>),
    /// Connections that a filter selects.
    Filter(Arc<Filter>),
    /// Any connection: there were too many different receivers to record.
    Any,
}

/// Publications to the same receivers that a shard will not get.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    pub(crate) receivers: Receivers,
    pub(crate) count: u64,
}

#[derive(Debug, Default)]
struct Missing {
    /// With the member that misses nothing, if it is the same one of all that the channel misses.
    channels: HashMap<Arc<str>, (Option<ConnId>, u64)>,
    filters: Vec<(Arc<Filter>, u64)>,
    /// Channels whose sequence has a gap, which is not the members' fault. Their number is not
    /// limited: these channels have members here, and so already take memory.
    holes: HashSet<Arc<str>>,
    /// To receivers that are not recorded.
    others: u64,
}

impl Missing {
    fn add_channel(&mut self, channel: &Arc<str>, except: Option<ConnId>) {
        if let Some((but, count)) = self.channels.get_mut(channel) {
            *but = but.filter(|but| Some(*but) == except);
            *count += 1;
        } else if self.channels.len() < MAX_CHANNELS {
            self.channels.insert(Arc::clone(channel), (except, 1));
        } else {
            self.others += 1;
        }
    }

    fn add_filter(&mut self, filter: &Arc<Filter>) {
        let is_full = self.filters.len() == MAX_FILTERS;
        match self.filters.last_mut().filter(|(last, _)| Arc::ptr_eq(last, filter)) {
            Some((_, count)) => *count += 1,
            None if is_full => self.others += 1,
            None => self.filters.push((Arc::clone(filter), 1)),
        }
    }

    fn into_list(self) -> Vec<Lost> {
        let channels = self.channels.into_iter().map(|(channel, (except, count))| Lost {
            receivers: Receivers::Channel(channel, except),
            count,
        });
        let filters = self
            .filters
            .into_iter()
            .map(|(filter, count)| Lost { receivers: Receivers::Filter(filter), count });
        let list: Vec<_> = channels.chain(filters).collect();
        let of_hole = |channel| Lost { receivers: Receivers::Hole(channel), count: 1 };
        let holes = self.holes.into_iter().map(of_hole);
        if self.others == 0 {
            return holes.chain(list).collect();
        }
        let count = self.others + list.iter().map(|lost| lost.count).sum::<u64>();
        holes.chain([Lost { receivers: Receivers::Any, count }]).collect()
    }
}

/// Missing publications of one shard.
#[derive(Debug, Default)]
pub(crate) struct Losses {
    any: AtomicBool,
    missing: Mutex<Missing>,
}

impl Losses {
    fn lock(&self) -> MutexGuard<'_, Missing> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a missing publication. Commands that its sender queues afterwards come after this.
    #[cold]
    pub(crate) fn add(&self, receivers: &Receivers) {
        let mut missing = self.lock();
        match receivers {
            Receivers::Channel(channel, except) => {
                missing.add_channel(channel, *except);
            }
            Receivers::Filter(filter) => missing.add_filter(filter),
            Receivers::Hole(channel) => drop(missing.holes.insert(Arc::clone(channel))),
            Receivers::Any => missing.others += 1,
        }
        // Release: a thread that sees it in a command that was queued later also sees the losses;
        // the queue's lock orders that.
        self.any.store(true, Ordering::Release);
    }

    /// Records that a sequence has a gap.
    #[cold]
    pub(crate) fn add_hole(&self, channel: &Arc<str>) {
        self.lock().holes.insert(Arc::clone(channel));
        self.any.store(true, Ordering::Release);
    }

    /// Returns whether publications are missing.
    #[inline]
    pub(crate) fn are_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes the publications that are missing since the last call. Called after the commands were
    /// taken and before they are carried out.
    pub(crate) fn take(&self) -> Vec<Lost> {
        if !self.are_any() {
            return Vec::new();
        }
        let mut missing = self.lock();
        self.any.store(false, Ordering::Relaxed);
        let taken = std::mem::take(&mut *missing);
        drop(missing);
        taken.into_list()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn channel(name: impl ToString) -> Receivers {
        Receivers::Channel(name.to_string().into(), None)
    }

    /// Losses that were taken, by the name of the channel; empty: any receivers.
    fn by_channel(taken: Vec<Lost>) -> HashMap<String, u64> {
        let named = taken.into_iter().map(|Lost { receivers, count }| match receivers {
            Receivers::Channel(channel, None) => (channel.to_string(), count),
            Receivers::Any => (String::new(), count),
            other => panic!("{other:?}"),
        });
        named.collect()
    }

    #[test]
    fn losses_are_counted_by_channel_however_many_there_are() {
        let losses = Losses::default();
        assert!(losses.take().is_empty());
        for name in ["a", "a", "b", "a"] {
            losses.add(&channel(name));
        }
        let expected = [("a".to_owned(), 3), ("b".to_owned(), 1)];
        assert_eq!(by_channel(losses.take()), expected.into_iter().collect());
        (0..1_000).for_each(|n| losses.add(&channel(n)));
        let names: HashSet<_> = by_channel(losses.take()).into_keys().collect();
        assert!(names == (0..1_000).map(|n| n.to_string()).collect());
        assert!(losses.take().is_empty());
    }

    #[test]
    fn receivers_of_publications_are_bounded_and_holes_of_sequences_are_not() {
        let losses = Losses::default();
        (0..MAX_CHANNELS + 10).for_each(|n| losses.add_hole(&n.to_string().into()));
        assert_eq!(losses.take().len(), MAX_CHANNELS + 10);
        (0..MAX_CHANNELS + 10).for_each(|n| losses.add(&channel(n)));
        let taken = by_channel(losses.take());
        assert_eq!(taken, [(String::new(), MAX_CHANNELS as u64 + 10)].into_iter().collect());
        let filter = || Receivers::Filter(Arc::new(Filter::default()));
        (0..=MAX_FILTERS).for_each(|_| losses.add(&filter()));
        assert_eq!(by_channel(losses.take())[""], MAX_FILTERS as u64 + 1);
    }

    #[test]
    fn a_publisher_misses_what_others_published_to_its_channel() {
        let losses = Losses::default();
        let add = |by: Option<u64>| {
            losses.add(&Receivers::Channel("a".into(), by.map(ConnId::from_bits)));
        };
        let except = || match &losses.take()[..] {
            [Lost { receivers: Receivers::Channel(_, except), count: 2 }] => *except,
            other => panic!("{other:?}"),
        };
        [Some(1), Some(1)].into_iter().for_each(add);
        assert_eq!(except(), Some(ConnId::from_bits(1)));
        for two in [[Some(1), Some(2)], [Some(1), None], [None, Some(1)]] {
            two.into_iter().for_each(add);
            assert_eq!(except(), None);
        }
    }
}
