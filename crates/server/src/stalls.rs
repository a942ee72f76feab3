//! Handlers that hold their shard for too long: counted by route, and told.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use throng_engine::{Culprit, Watching};

/// A turn of an event loop that takes so long is a stall, where nothing else is set.
const WARNING: Duration = Duration::from_millis(50);

/// At most one line in this time goes to standard error, whatever stalls.
const BETWEEN_LINES: Duration = Duration::from_secs(1);

/// Of several routes in one turn it is not known which it was.
const SEVERAL: &str = "(several)";

/// No handler was called.
const NONE: &str = "(none)";

/// A handler held up its shard, and so every connection there, for
/// [`Server::stall_warning`](crate::Server::stall_warning) or longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stall<'a> {
    /// The route's path as it was given to the server: `/chat/{room}`. `(several)` if handlers of more than one route
    /// were called in the meantime: the shard looks more closely for ten seconds then, and names the next. `(none)` if no
    /// handler was called, but the system let the shard wait, or it had very much to send.
    pub route: &'a str,
    /// The event loop, from 0.
    pub shard: usize,
    /// How long.
    pub length: Duration,
}

/// What happened and what to do, on one line.
impl fmt::Display for Stall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { route, shard, length } = self;
        let ms = length.as_millis();
        match *route {
            NONE => write!(
                f,
                "shard {shard} took {ms} ms for a turn without a handler: the machine has too few CPUs for what runs on \
                 it, or very much was sent at once"
            ),
            SEVERAL => write!(
                f,
                "handlers of several routes held shard {shard} for {ms} ms, while its other connections waited; the next \
                 such handler is named"
            ),
            route => write!(
                f,
                "a handler of {route} held shard {shard} for {ms} ms, while its other connections waited; what takes long \
                 belongs on another thread: offload, blocking or later"
            ),
        }
    }
}

/// Who is told of stalls.
pub(crate) type OnStall = Arc<dyn Fn(&Stall<'_>) + Send + Sync>;

/// What a [`Server`](crate::Server) is told about stalls while it is put together.
#[derive(Clone)]
pub(crate) struct StallSettings {
    pub(crate) warning: Duration,
    pub(crate) on_stall: OnStall,
}

impl Default for StallSettings {
    fn default() -> Self {
        Self { warning: WARNING, on_stall: Lines::default().into_hook() }
    }
}

/// The stalls of a server.
pub(crate) struct Stalls {
    /// Each path once, though several methods may have routes there; then [`SEVERAL`] and [`NONE`].
    counts: Vec<Count>,
    /// Into `counts`.
    by_route: Vec<usize>,
    warning: Duration,
    on_stall: OnStall,
}

struct Count {
    route: String,
    stalls: AtomicU64,
    longest_nanos: AtomicU64,
}

/// What was counted of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StallFigures {
    pub(crate) route: String,
    pub(crate) stalls: u64,
    pub(crate) longest: Duration,
}

impl Stalls {
    /// Counts by the path of each route, which the engine knows by its index.
    pub(crate) fn new<'p>(
        settings: StallSettings,
        paths: impl IntoIterator<Item = &'p str>,
    ) -> Self {
        let StallSettings { warning, on_stall } = settings;
        let mut counts: Vec<Count> = Vec::new();
        let index_of = |path: &str| {
            counts.iter().position(|count| count.route == path).unwrap_or_else(|| {
                counts.push(Count::of(path.to_owned()));
                counts.len() - 1
            })
        };
        let by_route = paths.into_iter().map(index_of).collect();
        counts.extend([SEVERAL, NONE].map(|name| Count::of(name.to_owned())));
        Self { counts, by_route, warning, on_stall }
    }

    /// Into `counts`.
    fn index_of(&self, route: u32) -> Option<usize> {
        self.by_route.get(usize::try_from(route).ok()?).copied()
    }

    /// The path of a route; `(none)` if there is no such route.
    pub(crate) fn path(&self, route: u32) -> &str {
        self.index_of(route).map_or(NONE, |index| &self.counts[index].route)
    }

    /// What the engine is to watch, and whom it is to tell.
    pub(crate) fn watching(self: &Arc<Self>) -> Watching {
        let stalls = Arc::clone(self);
        Watching { warning: self.warning, on_stall: Arc::new(move |stall| stalls.note(stall)) }
    }

    fn note(&self, stall: throng_engine::Stall) {
        let throng_engine::Stall { shard, culprit: blame, length } = stall;
        let last = self.counts.len() - 1;
        let index = match blame {
            Culprit::Route(route) => self.index_of(route).unwrap_or(last),
            Culprit::Several => last - 1,
            Culprit::NoRoute => last,
        };
        let count = &self.counts[index];
        count.stalls.fetch_add(1, Ordering::Relaxed);
        let nanos = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX);
        count.longest_nanos.fetch_max(nanos, Ordering::Relaxed);
        (self.on_stall)(&Stall { route: &count.route, shard, length });
    }

    /// The counts of every route.
    pub(crate) fn figures(&self) -> impl Iterator<Item = StallFigures> {
        self.counts.iter().map(|count| StallFigures {
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

/// Lines on standard error, few enough that they are no trouble of their own.
#[derive(Default)]
struct Lines {
    /// When the last was written, and how many were not since.
    last: Mutex<(Option<Instant>, u64)>,
}

impl Lines {
    /// One for the whole process, however many servers it has, would need a static; one for each server does.
    fn into_hook(self) -> OnStall {
        Arc::new(move |stall| {
            if let Some(skipped) = self.admit(Instant::now()) {
                let more = match skipped {
                    0 => String::new(),
                    skipped => format!(" ({skipped} more stalls since the last line)"),
                };
                // A server goes on if nobody reads it any more, which `eprintln!` would not.
                let line = format!("throng: {stall}{more}\n");
                let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), line.as_bytes());
            }
        })
    }

    /// How many were not admitted since the last that was; `None`: this one is not.
    fn admit(&self, now: Instant) -> Option<u64> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, skipped) = *last;
        if at.is_some_and(|at| now.saturating_duration_since(at) < BETWEEN_LINES) {
            last.1 += 1;
            return None;
        }
        *last = (Some(now), 0);
        Some(skipped)
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
        let settings = StallSettings { on_stall: Arc::new(|_| {}), ..StallSettings::default() };
        let stalls = Stalls::new(settings, ["/a", "/b", "/a"]);
        for (blame, ms) in [
            (Culprit::Route(0), 60),
            (Culprit::Route(2), 70),
            (Culprit::Route(2), 65),
            (Culprit::Route(1), 80),
            (Culprit::Several, 90),
            (Culprit::NoRoute, 50),
            (Culprit::Route(77), 55),
        ] {
            stalls.note(stall(blame, ms));
        }
        let figures: Vec<_> =
            stalls.figures().map(|f| (f.route, f.stalls, f.longest.as_millis())).collect();
        let expected = [("/a", 3, 70), ("/b", 1, 80), (SEVERAL, 1, 90), (NONE, 2, 55)]
            .map(|(route, n, ms)| (route.to_owned(), n, ms));
        assert_eq!(figures, expected);
        assert_eq!((stalls.path(2), stalls.path(9)), ("/a", NONE));
    }

    #[test]
    fn lines_are_at_most_one_a_second_and_tell_what_was_left_out() {
        let lines = Lines::default();
        let start = Instant::now();
        let at = |ms| lines.admit(start + Duration::from_millis(ms));
        assert_eq!(
            [at(0), at(10), at(999), at(1000), at(1001)],
            [Some(0), None, None, Some(2), None]
        );
        assert_eq!(at(5000), Some(1));
    }

    #[test]
    fn a_stall_is_told_with_route_shard_length_and_remedy() {
        let text = |route| Stall { route, shard: 3, length: Duration::from_millis(73) }.to_string();
        for part in ["/chat/{room}", "shard 3", "73 ms", "offload, blocking or later"] {
            assert!(text("/chat/{room}").contains(part), "{part}");
        }
        assert!(
            text(SEVERAL).contains("several routes") && text(NONE).contains("without a handler")
        );
        assert!(!text(NONE).contains('\n') && !text("/x").contains('\n'));
    }
}
