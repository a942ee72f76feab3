//! Many channels: in each channel one connection publishes by the schedule, and all others receive.

use std::fmt::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use throng_engine::{Core, Cx, Message};
use throng_io::Instant;

use crate::client::{ClientPool, Timeline, Work};
use crate::merge::{Highest, Merge, tally};
use crate::plan::{Content, FANOUT_STAMP, Plan};
use crate::record::Record;
use crate::schedule::Schedule;
use crate::sequence::{Arrival, Sequence};

/// The placeholder of the stamp in a payload.
pub(crate) const STAMP_PLACE: &str = "{stamp}";

/// Interval at which a thread passes its latencies to the steering thread.
const SHOW_EVERY: Duration = Duration::from_millis(50);

/// State shared by the threads and the steering thread.
#[derive(Debug)]
pub(crate) struct FanoutTally {
    /// Latencies since the last read, from the planned time to each subscriber, including those
    /// outside of the measured time.
    pub(crate) latency: Mutex<Record>,
    /// Messages planned from this time on are not sent. Set when a run ends early.
    pub(crate) until_ns: AtomicU64,
}

impl FanoutTally {
    pub(crate) fn new() -> Self {
        Self { latency: Mutex::new(Record::new()), until_ns: AtomicU64::new(u64::MAX) }
    }

    /// Returns the latencies since the last call.
    pub(crate) fn take_latency(&self) -> Record {
        std::mem::take(&mut *self.latency.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The roles of connections: each channel has one publisher, followed by `subscribers` subscribers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelLayout {
    pub(crate) channels: usize,
    pub(crate) subscribers: usize,
}

impl ChannelLayout {
    fn channel(self, connection: usize) -> usize {
        connection / (self.subscribers + 1)
    }

    fn is_publisher(self, connection: usize) -> bool {
        connection.is_multiple_of(self.subscribers + 1)
    }

    fn publisher(self, channel: usize) -> usize {
        channel * (self.subscribers + 1)
    }

    /// Returns the numbers of the channel's messages planned within `from..to`. All channels take
    /// turns.
    fn numbers(
        self,
        schedule: &Schedule,
        channel: usize,
        from: Instant,
        to: Instant,
    ) -> Range<u64> {
        let before = |at: Instant| {
            let all = schedule.due(Instant(at.0.saturating_sub(1)));
            (all + (self.channels - 1 - channel) as u64) / self.channels as u64
        };
        let start = before(from);
        start..before(to).max(start)
    }
}

/// Fan-out mode on one thread.
#[derive(Debug)]
pub(crate) struct Fanout {
    layout: ChannelLayout,
    /// The number of this thread's first connection in the sequence of all connections.
    first: usize,
    resources: Vec<String>,
    rate_per_s: f64,
    text: bool,
    size: usize,
    /// The texts before and after the stamp.
    around: (String, String),
    body: String,
    schedule: Option<Schedule>,
    timeline: Option<Timeline>,
    /// The next message in the sequence of all channels.
    next: u64,
    received: Vec<Sequence>,
    tally: Arc<FanoutTally>,
    shown: Record,
    show_at: Instant,
    outcome: FanoutOutcome,
}

tally! {
    /// Measurements of one thread.
    pub(crate) struct FanoutOutcome {
        /// From the planned time to each subscriber, for messages planned within the measured time.
        pub(crate) latency: Record,
        /// Lateness of the publishers.
        pub(crate) lateness: Record,
        /// Messages planned within the measured time and sent.
        pub(crate) published: u64,
        /// Expected deliveries of messages planned within the measured time.
        pub(crate) expected: u64,
        /// Deliveries received in total, and received before the end of the measured time.
        pub(crate) received: u64,
        pub(crate) in_time: u64,
        /// Deliveries never received; subscribers that lost at least one message; and the maximum
        /// lost by one subscriber.
        pub(crate) lost: u64,
        pub(crate) losers: u64,
        pub(crate) most_lost: Highest,
        /// Counted over the whole run.
        pub(crate) duplicates: u64,
        pub(crate) reordered: u64,
    }
}

impl Fanout {
    pub(crate) fn new(
        plan: &Plan,
        layout: ChannelLayout,
        rate_per_s: f64,
        first: usize,
        connections: usize,
        tally: Arc<FanoutTally>,
    ) -> Self {
        let resource = plan.resource();
        let name = |channel| resource.replace("{channel}", &format!("fanout-{channel}"));
        let filler =
            || (FANOUT_STAMP..plan.size).map(|at| char::from(b'a' + (at % 26) as u8)).collect();
        let around = match &plan.content {
            // In a checked plan the payload is text with a placeholder for the stamp.
            Content::Given(bytes) => split(bytes).unwrap_or_default(),
            _ => (String::new(), filler()),
        };
        Self {
            layout,
            first,
            resources: (0..layout.channels).map(name).collect(),
            rate_per_s,
            text: plan.text,
            size: plan.size,
            around,
            body: String::new(),
            schedule: None,
            timeline: None,
            next: 0,
            received: vec![Sequence::default(); connections],
            tally,
            shown: Record::new(),
            show_at: Instant(0),
            outcome: FanoutOutcome::default(),
        }
    }

    /// Returns the time after which nothing is sent.
    fn until(&self, timeline: Timeline) -> Instant {
        timeline.to.min(Instant(self.tally.until_ns.load(Ordering::Acquire)))
    }

    fn show(&mut self, now: Instant) {
        self.show_at = now.after(SHOW_EVERY);
        self.tally.latency.lock().unwrap_or_else(PoisonError::into_inner).merge(&self.shown);
        self.shown.clear();
    }

    /// Sends the due messages of this thread's publishers.
    fn publish_due(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        let (Some(schedule), Some(timeline)) = (self.schedule.clone(), self.timeline) else {
            return;
        };
        let until = self.until(timeline);
        let own = self.first..self.first + self.received.len();
        let mut now = now;
        loop {
            let planned = schedule.planned(self.next);
            if planned > now || planned >= until {
                break;
            }
            let (channel, number) =
                (schedule.connection(self.next), self.next / self.layout.channels as u64);
            self.next += 1;
            let publisher = self.layout.publisher(channel);
            if !own.contains(&publisher) {
                continue;
            }
            compose(&mut self.body, channel, number, planned, &self.around);
            let message = match self.text {
                true => Message::Text(&self.body),
                false => Message::Binary(self.body.as_bytes()),
            };
            let sent = core.send(pool.id(publisher - self.first), message);
            pool.note_sent(sent);
            if timeline.counts(planned) {
                self.outcome.published += 1;
                now = pool.clock.now();
                self.outcome.lateness.add(now.since(planned).as_nanos() as u64);
            }
        }
    }
}

impl Work for Fanout {
    type Outcome = FanoutOutcome;

    fn resource(&self, index: usize) -> &str {
        &self.resources[self.layout.channel(self.first + index)]
    }

    fn on_start(&mut self, _: &mut ClientPool, _: &mut Core, timeline: Timeline) {
        let channels = self.layout.channels;
        let each = self.rate_per_s / channels as f64;
        self.schedule = Some(Schedule::new(timeline.start, channels, each));
        self.timeline = Some(timeline);
        self.show_at = timeline.start;
    }

    fn next_deadline(&self) -> Option<Instant> {
        let planned = self.schedule.as_ref()?.planned(self.next);
        match planned < self.until(self.timeline?) {
            true => Some(planned.min(self.show_at)),
            false => Some(self.show_at),
        }
    }

    fn on_deadline(&mut self, pool: &mut ClientPool, core: &mut Core, now: Instant) {
        if self.show_at <= now {
            self.show(now);
        }
        self.publish_due(pool, core, now);
    }

    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        _: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        let connection = self.first + index;
        // Some servers send a publish back to its sender.
        if self.layout.is_publisher(connection) {
            return;
        }
        let channel = self.layout.channel(connection);
        let as_asked = matches!(message, Message::Text(_)) == self.text;
        let (own, number, planned) = match parse(message.as_bytes(), self.size, &self.around) {
            Some(parsed) if as_asked => parsed,
            _ => {
                return pool.note_wrong(|| {
                    let bytes = message.as_bytes().len();
                    format!(
                        "a subscriber of channel {channel} got {bytes} bytes that no client \
                         published"
                    )
                });
            }
        };
        if own != channel {
            return pool.note_wrong(|| {
                format!("a subscriber of channel {channel} got a message of {own}")
            });
        }
        match self.received[index].take(number) {
            Arrival::Fresh => {}
            Arrival::Late => {
                self.outcome.reordered += 1;
                pool.note_wrong(|| {
                    format!("message {number} of channel {channel} came after later ones")
                });
            }
            Arrival::Duplicate => {
                self.outcome.duplicates += 1;
                return pool
                    .note_wrong(|| format!("message {number} of channel {channel} came twice"));
            }
        }
        pool.count_done();
        let age = now.since(planned).as_nanos() as u64;
        self.shown.add(age);
        // Uses the shared timeline: another thread may have begun to publish before this thread
        // received the start.
        if let Some(timeline) = pool.shared.timeline()
            && timeline.counts(planned)
        {
            self.outcome.latency.add(age);
            self.outcome.received += 1;
            self.outcome.in_time += u64::from(now < timeline.to);
        }
    }

    fn finish(&mut self, _: &mut ClientPool, now: Instant) -> FanoutOutcome {
        self.show(now);
        if let (Some(schedule), Some(timeline)) = (&self.schedule, self.timeline) {
            let to = self.until(timeline);
            for (index, sequence) in self.received.iter().enumerate() {
                let connection = self.first + index;
                if self.layout.is_publisher(connection) {
                    continue;
                }
                let channel = self.layout.channel(connection);
                let expected = self.layout.numbers(schedule, channel, timeline.from, to);
                let lost = sequence.lost(expected.clone());
                self.outcome.expected += expected.end - expected.start;
                self.outcome.lost += lost;
                self.outcome.losers += u64::from(lost > 0);
                self.outcome.most_lost.merge(Highest(lost));
            }
        }
        std::mem::take(&mut self.outcome)
    }
}

/// Returns the texts before and after the stamp's placeholder in a payload; `None` if the payload
/// is not text, or does not have exactly one placeholder.
pub(crate) fn split(payload: &[u8]) -> Option<(String, String)> {
    let (before, behind) = str::from_utf8(payload).ok()?.split_once(STAMP_PLACE)?;
    (!behind.contains(STAMP_PLACE)).then(|| (before.to_owned(), behind.to_owned()))
}

fn compose(
    body: &mut String,
    channel: usize,
    number: u64,
    planned: Instant,
    (before, behind): &(String, String),
) {
    body.clear();
    // Writing to a string cannot fail.
    let _ = write!(body, "{before}{channel:08x}{number:016x}{:016x}{behind}", planned.0);
}

/// Returns channel, number and planned time; `None` for a message that [`compose`] did not make
/// with this `size`.
fn parse(
    bytes: &[u8],
    size: usize,
    (before, behind): &(String, String),
) -> Option<(usize, u64, Instant)> {
    if bytes.len() != size {
        return None;
    }
    let bytes = bytes.strip_prefix(before.as_bytes())?.strip_suffix(behind.as_bytes())?;
    let field = |range: Range<usize>| {
        let mut value = 0;
        for &byte in bytes.get(range)? {
            value = value << 4 | u64::from(char::from(byte).to_digit(16)?);
        }
        Some(value)
    };
    Some((field(0..8)? as usize, field(8..24)?, Instant(field(24..40)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: ChannelLayout = ChannelLayout { channels: 3, subscribers: 2 };

    #[test]
    fn every_connection_has_a_role() {
        let role = |connection| (LAYOUT.channel(connection), LAYOUT.is_publisher(connection));
        let layout: Vec<_> = (0..9).map(role).collect();
        let of = |channel| [(channel, true), (channel, false), (channel, false)];
        assert_eq!(layout, [of(0), of(1), of(2)].concat());
        assert_eq!([0, 1, 2].map(|channel| LAYOUT.publisher(channel)), [0, 3, 6]);
    }

    #[test]
    fn a_message_carries_channel_number_and_time() {
        let mut body = String::new();
        let around = split(b"<{stamp}/>").unwrap();
        compose(&mut body, 70_000, 1 << 40, Instant(123_456_789), &around);
        assert_eq!(body.len(), FANOUT_STAMP + 3);
        let parsed = |bytes: &[u8], size| parse(bytes, size, &around);
        assert_eq!(parsed(body.as_bytes(), 43), Some((70_000, 1 << 40, Instant(123_456_789))));
        assert_eq!(parsed(body.as_bytes(), 42), None);
        assert_eq!(parsed(body.replace("/>", "?>").as_bytes(), 43), None);
        assert_eq!(parsed(&[b'x'; 43], 43), None);
        assert_eq!(
            (split(b"none"), split(b"{stamp}{stamp}"), split(b"\xff{stamp}")),
            (None, None, None)
        );
    }

    /// The formula yields the same numbers as a walk over the schedule.
    #[test]
    fn the_expected_numbers_are_those_planned_in_the_window() {
        let start = Instant(1_000_000_000);
        for rate in [1.0, 3.0, 77.7, 1_000.0] {
            let schedule = Schedule::new(start, LAYOUT.channels, rate / LAYOUT.channels as f64);
            let (from, to) = (
                start.after(Duration::from_millis(700)),
                start.after(Duration::from_millis(2_300)),
            );
            for channel in 0..LAYOUT.channels {
                let walked: Vec<u64> = (0..10_000)
                    .filter(|&n| schedule.connection(n) == channel)
                    .filter(|&n| (from..to).contains(&schedule.planned(n)))
                    .map(|n| n / LAYOUT.channels as u64)
                    .collect();
                let range = LAYOUT.numbers(&schedule, channel, from, to);
                assert_eq!(range.collect::<Vec<_>>(), walked, "{rate} a second, channel {channel}");
            }
            assert!(LAYOUT.numbers(&schedule, 0, to, from).is_empty(), "cut short before it began");
        }
    }
}
