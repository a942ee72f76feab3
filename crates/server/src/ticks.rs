//! Timers of a server and of its shards: functions that are called periodically.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_engine::Core;
use throng_io::Instant;

use crate::events::ServerEvent;
use crate::hub::Hub;
use crate::panics::{Callback, guarded};
use crate::shard::{Shard, ShardContext};

type OnTick = dyn FnMut(&mut Core, &ShardContext) + Send;

/// A function that is called once each period.
pub(crate) struct Ticker {
    period: Duration,
    /// `None` before the server runs.
    next: Option<Instant>,
    /// Whether each shard calls the function itself.
    of_shard: bool,
    /// Whether its last call panicked.
    fails: bool,
    call: Box<OnTick>,
}

impl Ticker {
    /// Creates a timer of the server: its first shard calls it.
    pub(crate) fn of_server(period: Duration, mut call: impl FnMut(&Hub) + Send + 'static) -> Self {
        let call = move |core: &mut Core, _: &_| call(&Hub::of(core.remote().clone()));
        Self { period, next: None, of_shard: false, fails: false, call: Box::new(call) }
    }

    /// Returns when it is due; at once before its first period has begun.
    fn due(&self) -> Instant {
        self.next.unwrap_or(Instant(0))
    }

    /// Calls the function if it is due. Missed periods are skipped. A function that panics is
    /// called again, since a stopped feed is worse than a lost call.
    fn run(&mut self, core: &mut Core, now: Instant, context: &ShardContext) {
        let Some(due) = self.next else {
            self.next = Some(now.after(self.period));
            return;
        };
        if now < due {
            return;
        }
        let period = self.period.as_nanos().max(1);
        let passed = u128::from(now.0 - due.0) / period + 1;
        let ahead = u64::try_from(passed * period).unwrap_or(u64::MAX);
        self.next = Some(Instant(due.0.saturating_add(ahead)));
        let fails = guarded(|| (self.call)(core, context)).is_none();
        let events = &context.events;
        if fails != self.fails {
            self.fails = fails;
            events.panics().note_tick(fails);
        }
        if fails {
            events.panics().count(Callback::Tick);
            let shard = self.of_shard.then(|| core.shard());
            events.report(ServerEvent::TickPanicked { period: self.period, shard });
        }
    }
}

type OnShardTick = dyn Fn(&mut Core, &ShardContext) + Send + Sync;

/// A function that each shard calls once each period, with the shard's own state.
#[derive(Clone)]
pub(crate) struct ShardTick {
    period: Duration,
    call: Arc<OnShardTick>,
}

impl ShardTick {
    pub(crate) fn new<T: Default + Send + 'static>(
        period: Duration,
        call: impl Fn(&mut T, &mut Shard<'_>) + Send + Sync + 'static,
    ) -> Self {
        let call = move |core: &mut Core, context: &ShardContext| {
            core.with_local(|state: &mut T, core| call(state, &mut Shard::new(core, context)));
        };
        Self { period, call: Arc::new(call) }
    }
}

impl From<&ShardTick> for Ticker {
    fn from(tick: &ShardTick) -> Self {
        let call = Arc::clone(&tick.call);
        let call = Box::new(move |core: &mut Core, context: &_| call(core, context));
        Self { period: tick.period, next: None, of_shard: true, fails: false, call }
    }
}

/// The timers of a server before its shards run.
#[derive(Default)]
pub(crate) struct Waiting {
    /// The first shard takes them.
    of_server: Mutex<Vec<Ticker>>,
    of_shards: Vec<ShardTick>,
}

impl Waiting {
    pub(crate) fn new(of_server: Vec<Ticker>, of_shards: Vec<ShardTick>) -> Self {
        Self { of_server: Mutex::new(of_server), of_shards }
    }

    /// Returns the timers of the next shard.
    pub(crate) fn take(&self) -> Ticks {
        let mut of_server = self.of_server.lock().unwrap_or_else(PoisonError::into_inner);
        let mut ticks = std::mem::take(&mut *of_server);
        ticks.extend(self.of_shards.iter().map(Ticker::from));
        Ticks(ticks)
    }
}

/// The timers of a shard.
#[derive(Default)]
pub(crate) struct Ticks(Vec<Ticker>);

impl Ticks {
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.iter().map(Ticker::due).min()
    }

    /// Calls the functions that are due.
    pub(crate) fn run(&mut self, core: &mut Core, now: Instant, context: &ShardContext) {
        if self.next().is_some_and(|next| next <= now) {
            self.0.iter_mut().for_each(|tick| tick.run(core, now, context));
        }
    }
}
