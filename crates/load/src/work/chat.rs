//! Clients that chat: each sends a message to its channel at intervals, and receives the messages
//! of the others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_engine::{Close, Core, Cx, Message};
use throng_io::Instant;
use throng_proto::ws::CloseCode;

use crate::client::{ClientPool, Timeline, Work};
use crate::error::Error;
use crate::record::Record;
use crate::schedule::Schedule;

/// Interval at which the thread publishes its counters.
const SHOW_EVERY: Duration = Duration::from_millis(100);
/// Beginning of a message; the planned time follows in 16 hexadecimal digits.
const HEAD: &str = r#"{"t":""#;
/// Maximum age of a valid timestamp. An older one is foreign, because any member can imitate our
/// format.
const OLDEST: Duration = Duration::from_secs(60);

const NAMES: [&str; 16] = [
    "ada", "alan", "barbara", "dennis", "edsger", "frances", "grace", "hedy", "joan", "john",
    "ken", "leslie", "margaret", "niklaus", "radia", "tony",
];
const LINES: [&str; 12] = [
    "hello everyone",
    "who is here?",
    "the build is green",
    "lunch in ten minutes",
    "that graph looks good",
    "I will have a look at it",
    "thanks, that helped",
    "see you tomorrow",
    "it works on my machine",
    "good question",
    "shipping it now",
    "back in a moment",
];

/// Counters that the clients publish while they run.
#[derive(Debug, Default)]
pub(crate) struct ChatCounters {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) failed: AtomicU64,
    /// Latencies since the last read, from the planned time to each receiver.
    pub(crate) latency: Mutex<Record>,
    pub(crate) first_error: Mutex<Option<String>>,
    /// Request to close the connections and end.
    pub(crate) leave: AtomicBool,
}

impl ChatCounters {
    fn note(&self, what: impl FnOnce() -> String) {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(what);
    }
}

/// Clients that chat in channels, on one thread.
#[derive(Debug)]
pub(crate) struct Chat {
    resources: Vec<String>,
    rate_per_s: f64,
    counters: Arc<ChatCounters>,
    schedule: Option<Schedule>,
    next: u64,
    latency: Record,
    show_at: Instant,
    sent: u64,
    received: u64,
    left: bool,
    line: String,
}

impl Chat {
    pub(crate) fn new(
        resources: Vec<String>,
        rate_per_s: f64,
        counters: Arc<ChatCounters>,
    ) -> Self {
        Self {
            resources,
            rate_per_s,
            counters,
            schedule: None,
            next: 0,
            latency: Record::new(),
            show_at: Instant(0),
            sent: 0,
            received: 0,
            left: false,
            line: String::new(),
        }
    }

    fn show(&mut self, now: Instant) {
        self.show_at = now.after(SHOW_EVERY);
        self.counters.sent.store(self.sent, Ordering::Relaxed);
        self.counters.received.store(self.received, Ordering::Relaxed);
        self.counters.latency.lock().unwrap_or_else(PoisonError::into_inner).merge(&self.latency);
        self.latency.clear();
    }
}

impl Work for Chat {
    type Outcome = ();

    fn resource(&self, index: usize) -> &str {
        &self.resources[index % self.resources.len()]
    }

    fn on_start(&mut self, pool: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        self.schedule = Some(Schedule::new(timeline.start, pool.connections(), self.rate_per_s));
        self.show_at = timeline.start;
    }

    fn next_deadline(&self) -> Option<Instant> {
        if self.left {
            return Some(self.show_at);
        }
        if self.counters.leave.load(Ordering::Acquire) {
            return Some(Instant(0));
        }
        Some(self.schedule.as_ref()?.planned(self.next).min(self.show_at))
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        if self.show_at <= now {
            self.show(now);
        }
        if self.left {
            return;
        }
        if self.counters.leave.load(Ordering::Acquire) {
            self.left = true;
            (0..pool.connections()).filter(|&index| pool.is_open(index)).for_each(|index| {
                core.close(pool.id(index), CloseCode::NORMAL.get(), "");
            });
            return;
        }
        let Some(schedule) = self.schedule.clone() else { return };
        while schedule.planned(self.next) <= now {
            let (n, planned) = (self.next, schedule.planned(self.next));
            self.next += 1;
            let index = schedule.connection(n);
            if pool.is_open(index) {
                compose(&mut self.line, index, n, planned);
                self.sent += 1;
                let sent = core.send(pool.id(index), Message::Text(&self.line));
                pool.note_sent(sent);
            }
        }
    }

    fn on_message(
        &mut self,
        _: &mut ClientPool,
        _: &mut Cx<'_>,
        _: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        self.received += 1;
        if let Message::Text(text) = message
            && let Some(age) = age(text, now)
        {
            self.latency.add(age.as_nanos() as u64);
        }
    }

    fn on_close(&mut self, pool: &mut ClientPool, index: usize, close: Close<'_>) {
        // A server may stop, which it announces with 1001.
        if !self.left && close.code != 1001 && !pool.shared.is_finishing() {
            self.counters.lost.fetch_add(1, Ordering::Relaxed);
            let why = pool.session_failure(index).map(|why| why.to_string());
            let why = why.as_deref().unwrap_or(close.reason);
            self.counters.note(|| format!("client {index} was closed with {} {why}", close.code));
        }
    }

    fn on_failed(&mut self, _: &mut ClientPool, _: usize, error: Error) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
        self.counters.note(|| error.to_string());
    }

    fn finish(&mut self, _: &mut ClientPool, now: Instant) {
        self.show(now);
    }
}

fn compose(line: &mut String, index: usize, n: u64, planned: Instant) {
    use std::fmt::Write;

    line.clear();
    let name = NAMES[index % NAMES.len()];
    let words = LINES[(n.wrapping_mul(0x9e37_79b9) >> 7) as usize % LINES.len()];
    // Writing to a string cannot fail.
    let _ = write!(line, r#"{HEAD}{:016x}","from":"{name}-{index}","text":"{words}"}}"#, planned.0);
}

/// Returns the age of one of our messages.
fn age(text: &str, now: Instant) -> Option<Duration> {
    let digits = text.strip_prefix(HEAD)?.get(..16)?;
    let planned = Instant(u64::from_str_radix(digits, 16).ok()?);
    Some(now.since(planned)).filter(|&age| planned <= now && age < OLDEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_carries_its_planned_time() {
        let mut line = String::new();
        compose(&mut line, 17, 3, Instant(1_000_000));
        assert!(serde_json::from_str::<serde_json::Value>(&line).unwrap()["from"] == "alan-17");
        assert_eq!(age(&line, Instant(1_500_000)), Some(Duration::from_micros(500)));
    }

    #[test]
    fn messages_of_other_programs_have_no_age() {
        let now = Instant(90_000_000_000);
        for text in ["", "hello", r#"{"t":"xyz"#, r#"{"t":"zzzzzzzzzzzzzzzz"}"#] {
            assert_eq!(age(text, now), None, "{text}");
        }
        let mut line = String::new();
        compose(&mut line, 0, 0, Instant(1));
        assert_eq!(age(&line, now), None, "too old");
        compose(&mut line, 0, 0, now.after(OLDEST));
        assert_eq!(age(&line, now), None, "from the future");
    }
}
