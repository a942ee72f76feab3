//! Stalls: handlers that occupy their shard for too long. Counts them by route, and reports them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use throng_engine::{Culprit, Watching};

use crate::events::{Events, NONE, SEVERAL, ServerEvent, Stall};
#[cfg(feature = "metrics")]
use crate::panics::Panics;

/// The default minimum length of a turn that counts as a stall.
pub(crate) const WARNING: Duration = Duration::from_millis(50);

/// Counts the stalls of a server.
pub(crate) struct Stalls {
    /// One count per path, though several methods may have routes there; then [`SEVERAL`] and
    /// [`NONE`].
    counts: Vec<Count>,
    /// Indexes into `counts`, by route.
    by_route: Vec<usize>,
    warning: Option<Duration>,
    events: Events,
}

struct Count {
    route: String,
    stalls: AtomicU64,
    longest_nanos: AtomicU64,
}

/// The stalls of one route.
#[cfg(any(feature = "metrics", test))]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StallCount {
    pub(crate) route: String,
    pub(crate) stalls: u64,
    pub(crate) longest: Duration,
}

impl Stalls {
    /// Creates the counts for the paths of all routes, in the order of the engine's route indexes.
    pub(crate) fn new<'p>(
        warning: Option<Duration>,
        events: Events,
        paths: impl IntoIterator<Item = &'p str>,
    ) -> Self {
        let mut counts: Vec<Count> = Vec::new();
        let index_of = |path: &str| {
            counts.iter().position(|count| count.route == path).unwrap_or_else(|| {
                counts.push(Count::of(path.to_owned()));
                counts.len() - 1
            })
        };
        let by_route = paths.into_iter().map(index_of).collect();
        counts.extend([SEVERAL, NONE].map(|name| Count::of(name.to_owned())));
        Self { counts, by_route, warning, events }
    }

    /// Returns the route's index in `counts`.
    fn index_of(&self, route: u32) -> Option<usize> {
        self.by_route.get(usize::try_from(route).ok()?).copied()
    }

    /// Returns the path of a route; `(none)` if there is no such route.
    pub(crate) fn path(&self, route: u32) -> &str {
        self.index_of(route).map_or(NONE, |index| &self.counts[index].route)
    }

    /// Returns the engine's settings for stalls, which report to these counts.
    pub(crate) fn watching(self: &Arc<Self>) -> Watching {
        let stalls = Arc::clone(self);
        Watching {
            warning: self.warning.unwrap_or_default(),
            on_stall: Arc::new(move |stall| stalls.record(stall)),
        }
    }

    fn record(&self, stall: throng_engine::Stall) {
        let throng_engine::Stall { shard, culprit, length } = stall;
        let last = self.counts.len() - 1;
        let index = match culprit {
            Culprit::Route(route) => self.index_of(route).unwrap_or(last),
            Culprit::Several => last - 1,
            Culprit::NoRoute => last,
        };
        let count = &self.counts[index];
        count.stalls.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        count.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
        self.events.report(ServerEvent::Stalled(Stall { route: &count.route, shard, length }));
    }

    /// Returns the counts of panics outside of connections.
    #[cfg(feature = "metrics")]
    pub(crate) fn panics(&self) -> &Panics {
        self.events.panics()
    }

    /// Returns the counts of all routes.
    #[cfg(any(feature = "metrics", test))]
    pub(crate) fn counts(&self) -> impl Iterator<Item = StallCount> {
        self.counts.iter().map(|count| StallCount {
            route: count.route.clone(),
            stalls: count.stalls.load(Ordering::Relaxed),
            longest: Duration::from_nanos(count.longest_nanos.load(Ordering::Relaxed)),
        })
    }
}

impl Count {
    fn of(route: String) -> Self {
        Self { route, stalls: AtomicU64::new(0), longest_nanos: AtomicU64::new(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(blame: Culprit, ms: u64) -> throng_engine::Stall {
        throng_engine::Stall { shard: 1, culprit: blame, length: Duration::from_millis(ms) }
    }

    #[test]
    fn stalls_are_counted_by_path_whatever_the_method() {
        let stalls = Stalls::new(None, Events::new(|_| {}), ["/a", "/b", "/a"]);
        for (blame, ms) in [
            (Culprit::Route(0), 60),
            (Culprit::Route(2), 70),
            (Culprit::Route(2), 65),
            (Culprit::Route(1), 80),
            (Culprit::Several, 90),
            (Culprit::NoRoute, 50),
            (Culprit::Route(77), 55),
        ] {
            stalls.record(stall(blame, ms));
        }
        let counts: Vec<_> =
            stalls.counts().map(|c| (c.route, c.stalls, c.longest.as_millis())).collect();
        let expected = [("/a", 3, 70), ("/b", 1, 80), (SEVERAL, 1, 90), (NONE, 2, 55)]
            .map(|(route, n, ms)| (route.to_owned(), n, ms));
        assert_eq!(counts, expected);
        assert_eq!((stalls.path(2), stalls.path(9)), ("/a", NONE));
    }

    #[test]
    fn the_text_of_a_stall_has_route_shard_length_and_remedy() {
        let text = |route| Stall { route, shard: 3, length: Duration::from_millis(73) }.to_string();
        for part in ["/chat/{room}", "shard 3", "73 ms", "offload, blocking or deferred"] {
            assert!(text("/chat/{room}").contains(part), "{part}");
        }
        assert!(
            text(SEVERAL).contains("several routes") && text(NONE).contains("without a handler")
        );
        assert!(!text(NONE).contains('\n') && !text("/x").contains('\n'));
    }
}
