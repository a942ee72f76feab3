//! Connections without traffic. After the idle time they may send one echo, and wait for the
//! server's Close.

use std::collections::BTreeMap;
use std::time::Duration;

use throng_engine::{Close, Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, Payload, Timeline, Work};
use crate::merge::{Span, tally};
use crate::plan::Plan;

/// Messages that a thread sends at a time, and the time between: the answers of very many
/// connections at once would only measure queues.
const BURST: usize = 256;
const PAUSE: Duration = Duration::from_millis(2);

/// Idle mode on one thread.
#[derive(Debug)]
pub(crate) struct Idle {
    echo: Option<Echo>,
    /// From this time on the server may close connections, because the run asks it to.
    closes_from: Option<Instant>,
    awaits_close: bool,
    closes: Closes,
}

tally! {
    /// Closes of a thread's connections by the server.
    pub(crate) struct Closes {
        /// Connections by close code; 1006 (RFC 6455 section 7.1.5) means without a Close frame.
        pub(crate) codes: BTreeMap<u16, u64>,
        /// When the first and the last connection were closed.
        pub(crate) span: Span,
    }
}

impl Closes {
    pub(crate) fn add(&mut self, code: u16, now: Instant) {
        *self.codes.entry(code).or_default() += 1;
        self.span.extend(now, now);
    }
}

/// The messages after the idle time.
#[derive(Debug)]
struct Echo {
    payload: Payload,
    /// When the next burst is sent; `None` before the start and after the last burst.
    next_at: Option<Instant>,
    /// Connections that were sent to: those below this index.
    sent: usize,
    /// Connections that have answered.
    answered: Vec<bool>,
}

impl Idle {
    /// Creates the work of a thread with `connections` connections.
    pub(crate) fn new(plan: &Plan, thread: usize, connections: usize) -> Self {
        let echo = plan.echo_after_idle.then(|| Echo {
            payload: Payload::of(plan, plan.common.first(thread)),
            next_at: None,
            sent: 0,
            answered: vec![false; connections],
        });
        Self {
            echo,
            closes_from: None,
            awaits_close: plan.await_close.is_some(),
            closes: Closes::default(),
        }
    }
}

impl Work for Idle {
    type Outcome = Closes;

    fn on_start(&mut self, _: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        self.closes_from = self.awaits_close.then_some(timeline.to);
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

    /// A server may send a greeting first.
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
            pool.count_done();
        }
    }

    fn on_close(&mut self, pool: &mut ClientPool, index: usize, close: Close<'_>) {
        let now = pool.clock.now();
        match self.closes_from {
            Some(from) if from <= now && !pool.shared.is_finishing() => {
                self.closes.add(close.code.get(), now);
                if close.code == 1006 {
                    // The connection will be counted as lost.
                    pool.errors.tls_failures.count(pool.session_failure(index));
                }
            }
            _ => pool.note_lost(index, close),
        }
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> Closes {
        std::mem::take(&mut self.closes)
    }
}
