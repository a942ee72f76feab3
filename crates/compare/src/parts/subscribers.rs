//! The subscribers of one process: they connect, and report when the last of them has received a
//! broadcast.

use std::io::{Read, stdin, stdout};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use throng_engine::{Close, Cx, Message};
use throng_io::Instant;
use throng_load::client::{ClientPool, Timeline, Work};
use throng_load::clock::{Clock, machine_now_ns};
use throng_load::{Error, Target, deflate};

use super::SubscriberPart;
use super::message;
use super::wire::{ChildMessage, write_line};
use crate::pool::SteeredPool;

/// Sends a message to the coordinator from any thread.
type Reporter = Arc<dyn Fn(&ChildMessage) + Send + Sync>;

/// Connects, and reports every broadcast until standard input ends.
///
/// # Errors
/// A failure, which is also reported to the coordinator on standard output.
pub(super) fn play(part: &SubscriberPart) -> Result<(), Error> {
    // Ignores an error: it means that the coordinator has ended. The input then also ends.
    let report = |message: &ChildMessage| drop(write_line(&mut stdout().lock(), message));
    let until_input_ends = || drop(stdin().lock().read_to_end(&mut Vec::new()));
    subscribe(part, report, until_input_ends).inspect_err(|error| {
        if !matches!(error, Error::Interrupted) {
            report(&ChildMessage::Failed { reason: error.to_string() });
        }
    })
}

/// Connects the subscribers, reports every broadcast that has reached all of them, and closes them
/// when `wait` returns, because the coordinator no longer needs them.
///
/// Errors during broadcasts are also reported ([`ChildMessage::Failed`], [`ChildMessage::Left`]).
///
/// # Errors
/// A subscriber could not connect; the error contains a remedy.
fn subscribe(
    part: &SubscriberPart,
    report: impl Fn(&ChildMessage) + Send + Sync + 'static,
    wait: impl FnOnce(),
) -> Result<(), Error> {
    let report: Reporter = Arc::new(report);
    let target = Target::parse(&part.url)?;
    let stop = AtomicBool::new(false);
    let pool = SteeredPool {
        first: part.first,
        of: part.of,
        setup_timeout: part.setup_timeout,
        deflate: deflate::parse(&part.deflate).map_err(Error::Usage)?,
        ..SteeredPool::new(&target, part.subscribers, part.size, &stop)
    };
    let receive = Receive::new(&target, part, Arc::clone(&report));
    let ((), setup, received) = pool.run(receive, &mut |_| {}, |steering, shared| {
        steering.ready(part.subscribers)?;
        let now = steering.clock.now();
        let never = now.after(Duration::from_secs(365 * 24 * 3600));
        shared.begin(Timeline { start: now, from: now, to: never });
        report(&ChildMessage::Subscribed { subscribers: part.subscribers });
        wait();
        Ok(())
    })?;
    let errors = setup.errors;
    let (wrong, lost, first) = (errors.wrong_answers, errors.connections_lost, errors.first);
    report(&ChildMessage::Left { wrong, lost, received, first });
    Ok(())
}

/// Receives broadcasts on one thread.
struct Receive {
    resource: String,
    size: usize,
    machine_offset_ns: u64,
    /// The last broadcast that each subscriber received.
    had: Vec<u32>,
    /// The newest broadcast, how many subscribers have received it, and when the first of them did.
    round: u32,
    received: usize,
    first: Instant,
    report: Reporter,
}

impl Receive {
    fn new(target: &Target, part: &SubscriberPart, report: Reporter) -> Self {
        Self {
            resource: target.resource("/").to_owned(),
            size: part.size,
            // Both clocks run at the same rate and differ only in their origins.
            machine_offset_ns: machine_now_ns().wrapping_sub(Clock.now().0),
            had: vec![0; part.subscribers],
            round: 0,
            received: 0,
            first: Instant(0),
            report,
        }
    }

    fn machine_ns(&self, at: Instant) -> u64 {
        at.0.wrapping_add(self.machine_offset_ns)
    }
}

impl Work for Receive {
    /// The number of subscribers that have received the last broadcast.
    type Outcome = usize;

    fn resource(&self, _: usize) -> &str {
        &self.resource
    }

    #[inline]
    fn on_message(
        &mut self,
        pool: &mut ClientPool,
        _: &mut Cx<'_>,
        index: usize,
        message: Message<'_>,
        now: Instant,
    ) {
        let Message::Text(text) = message else {
            return pool.note_wrong(|| format!("subscriber {index} got a binary message"));
        };
        let Some((round, _)) = message::parse(text, self.size) else {
            return pool.note_wrong(|| {
                format!("subscriber {index} got {} bytes that were not broadcast", text.len())
            });
        };
        if round <= self.had[index] || round < self.round {
            let had = self.had[index];
            return pool.note_wrong(|| format!("subscriber {index} got {round} after {had}"));
        }
        if round > self.round {
            (self.round, self.received, self.first) = (round, 0, now);
        }
        self.had[index] = round;
        self.received += 1;
        if self.received == self.had.len() {
            (self.report)(&ChildMessage::Reached {
                round,
                first_ns: self.machine_ns(self.first),
                last_ns: self.machine_ns(now),
            });
        }
    }

    fn on_close(&mut self, pool: &mut ClientPool, index: usize, close: Close<'_>) {
        if pool.shared.is_finishing() {
            return;
        }
        let reason = pool.describe_close(index, close);
        // Reports at once: the coordinator should not wait for a broadcast that can no longer reach
        // all subscribers.
        (self.report)(&ChildMessage::Failed { reason: reason.clone() });
        pool.count_lost(index, || reason);
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> usize {
        self.received
    }
}

#[cfg(test)]
mod tests {
    use throng::prelude::*;

    use super::*;

    /// Bytes of a greeting.
    const GREETING: usize = 64;

    #[test]
    fn subscribers_tell_when_the_last_has_it_and_what_was_wrong() {
        // Sends each new subscriber broadcast 1 twice, then another text.
        let mut text = String::new();
        message::compose(&mut text, GREETING, 1, 0);
        let greet = Ws::new().on_open(move |ws, ()| {
            for text in [text.as_str(), text.as_str(), "hello"] {
                ws.send(text);
            }
        });
        let greeter = Server::new(App::new().ws("/", greet)).shards(1).bind("127.0.0.1:0").unwrap();
        let greeter = greeter.start().unwrap();
        let (sender, messages) = std::sync::mpsc::channel();
        let part = SubscriberPart {
            deflate: "off".to_owned(),
            url: format!("ws://{}/", greeter.local_addr()),
            subscribers: 3,
            of: 3,
            first: 0,
            size: GREETING,
            setup_timeout: Duration::from_secs(60),
        };
        // The greeting arrives with the upgrade's answer or a moment later, so the counts are
        // unknown at the start.
        let (counted, enough) = std::sync::mpsc::channel();
        let report = move |what: &ChildMessage| {
            if matches!(what, ChildMessage::Reached { .. }) {
                let _ = counted.send(());
            }
            let _ = sender.send(what.clone());
        };
        subscribe(&part, report, || enough.recv_timeout(Duration::from_secs(20)).unwrap()).unwrap();
        let messages: Vec<ChildMessage> = messages.iter().collect();
        assert!(messages.contains(&ChildMessage::Subscribed { subscribers: 3 }), "{messages:?}");
        let reached = |message: &&ChildMessage| {
            matches!(message, ChildMessage::Reached { round: 1, first_ns: first, last_ns: last }
                if first <= last)
        };
        assert_eq!(messages.iter().filter(reached).count(), 1, "{messages:?}");
        let Some(ChildMessage::Left { wrong, lost: 0, received: 3, first: Some(_) }) =
            messages.last()
        else {
            panic!("{messages:?}")
        };
        // The last subscriber's greeting may still be in flight.
        assert!((4..=6).contains(wrong), "a repetition and a greeting each: {messages:?}");
    }
}
