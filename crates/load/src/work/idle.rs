//! Connections that do nothing, and answer one echo when that is over.

use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_engine::{Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, Payload, Timeline, Work};
use crate::plan::Plan;

/// Messages that a thread sends at a time, and the time between: the answers of very many
/// connections at once would only measure queues.
const BURST: usize = 256;
const PAUSE: Duration = Duration::from_millis(2);

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Idle {
    resource: String,
    echo: Option<Echo>,
}

/// The messages after the idle time.
#[derive(Debug)]
struct Echo {
    payload: Payload,
    /// When the next burst leaves; `None` before the start and after the last.
    next_at: Option<Instant>,
    /// Connections that were sent to: those below this index.
    sent: usize,
    /// Connections that have answered.
    answered: Vec<bool>,
    total: u64,
}

impl Idle {
    /// Creates the work of a thread with `connections` connections.
    pub(crate) fn new(plan: &Plan, connections: usize) -> Self {
        let echo = plan.echo_after_idle.then(|| Echo {
            payload: Payload::of(plan),
            next_at: None,
            sent: 0,
            answered: vec![false; connections],
            total: 0,
        });
        Self { resource: plan.resource().to_owned(), echo }
    }
}

impl Work for Idle {
    type Outcome = ();

    fn resource(&self, _: usize) -> &str {
        &self.resource
    }

    fn on_start(&mut self, _: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        if let Some(echo) = &mut self.echo {
            echo.next_at = Some(timeline.to.after(PAUSE));
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.echo.as_ref()?.next_at
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        let Some(echo) = &mut self.echo else { return };
        let all = pool.connections();
        let end = all.min(echo.sent + BURST);
        for index in echo.sent..end {
            let sent = core.send(pool.id(index), echo.payload.message(index, 0));
            pool.note_sent(sent);
        }
        echo.sent = end;
        echo.next_at = (end < all).then(|| now.after(PAUSE));
    }

    /// A server may greet before.
    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        _: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        _: Instant,
    ) {
        let Some(echo) = self.echo.as_mut().filter(|echo| index < echo.sent) else { return };
        if !echo.payload.is_answer(message, index, 0) {
            return pool.note_wrong(|| echo.payload.describe(message, index, 0));
        }
        if !std::mem::replace(&mut echo.answered[index], true) {
            echo.total += 1;
            pool.lane().done.store(echo.total, Ordering::Relaxed);
        }
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) {}
}
