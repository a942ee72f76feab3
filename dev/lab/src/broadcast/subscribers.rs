//! Subscribers of one process: they connect, and report when the last of them has a broadcast.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use throng_engine::{Close, Cx, Message};
use throng_io::Instant;

use super::plan::SubscriberPlan;
use crate::servers::message;
use crate::servers::wire::ChildMessage;
use throng_load::client::{
    self, ClientPool, Handshake, Setup, Shared, ThreadStart, Timeline, Work, WsStart, open_driver,
};
use throng_load::clock::{Clock, machine_now_ns};
use throng_load::{Error, Sources, descriptors, sources};

/// Sends a message to the coordinator from any thread.
type Report = Arc<dyn Fn(&ChildMessage) + Send + Sync>;

/// Connects the subscribers, reports every broadcast that has reached them all, and closes them
/// when `wait` returns: the coordinator does not need them then.
///
/// Errors during broadcasts are reported, too ([`ChildMessage::Failed`],
/// [`ChildMessage::Left`]).
///
/// # Errors
/// They could not be connected; each error with its remedy.
pub(crate) fn subscribe(
    plan: &SubscriberPlan,
    report: impl Fn(&ChildMessage) + Send + Sync + 'static,
    wait: impl FnOnce(),
) -> Result<(), Error> {
    let report: Report = Arc::new(report);
    let shared = Arc::new(Shared::new(1));
    let clock = Clock;
    let start = start(plan, &shared)?;
    let thread = spawn(start, Receive::new(plan, clock, Arc::clone(&report)))?;
    let connected = connected(&shared, plan);
    if connected.is_ok() {
        let now = clock.now();
        let never = now.after(Duration::from_secs(365 * 24 * 3600));
        shared.begin(Timeline { start: now, from: now, to: never });
        report(&ChildMessage::Subscribed { subscribers: plan.subscribers });
        wait();
    }
    shared.finish();
    let ran = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if let Some(error) = shared.take_failure() {
        return Err(error);
    }
    connected?;
    if let Some((Setup { errors, .. }, received)) = ran {
        let (wrong, lost, first) = (errors.wrong_answers, errors.connections_lost, errors.first);
        report(&ChildMessage::Left { wrong, lost, received, first });
    }
    Ok(())
}

/// Returns the beginning of the thread that has all connections.
fn start(plan: &SubscriberPlan, shared: &Arc<Shared>) -> Result<(ThreadStart, WsStart), Error> {
    let peer = plan.target.resolve()?;
    let sources = Sources::plan(peer, plan.of, sources::ephemeral_ports(), None)?;
    descriptors::make_room(plan.subscribers)?;
    let driver = open_driver(plan.subscribers, plan.size, None)?;
    let start = ThreadStart {
        first: plan.first,
        ..ThreadStart::single(shared, peer, sources, plan.subscribers, driver)
    };
    let ws = WsStart {
        handshake: Arc::new(Handshake::plain(&plan.target.host_header())),
        setup_timeout: plan.setup_timeout,
        size: plan.size,
        backlog: 1 << 20,
    };
    Ok((start, ws))
}

/// Starts the thread that receives.
fn spawn(
    (start, ws): (ThreadStart, WsStart),
    receive: Receive,
) -> Result<JoinHandle<Option<(Setup, usize)>>, Error> {
    let (shared, report) = (Arc::clone(&start.shared), Arc::clone(&receive.report));
    let run = move || {
        let ran = client::run(start, &ws, receive);
        let failure = ran.as_ref().err().map(Error::to_string);
        if let Some(reason) = failure {
            report(&ChildMessage::Failed { reason });
        }
        // A thread that waits for connections must not wait for ever.
        shared.finish();
        ran.ok()
    };
    let thread = thread::Builder::new().name("throng-load-0".to_owned());
    thread.spawn(run).map_err(|error| Error::io("start a thread", error))
}

/// Waits until all are connected.
fn connected(shared: &Shared, plan: &SubscriberPlan) -> Result<(), Error> {
    let (mut best, mut since) = (0, std::time::Instant::now());
    loop {
        let ready = shared.sum(|lane| &lane.ready) as usize;
        if ready >= plan.subscribers {
            return Ok(());
        }
        if shared.is_finishing() {
            return Err(Error::Interrupted);
        }
        if ready > best {
            (best, since) = (ready, std::time::Instant::now());
        }
        // A second more than the engine gives a handshake, whose own message is better.
        if since.elapsed() > plan.setup_timeout + Duration::from_secs(1) {
            let (wanted, after) = (plan.subscribers, plan.setup_timeout);
            return Err(Error::SetupTimeout { ready, wanted, after });
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Reception of broadcasts on one thread.
struct Receive {
    resource: String,
    size: usize,
    machine_offset_ns: u64,
    /// The last broadcast each subscriber had.
    had: Vec<u32>,
    /// The newest broadcast, how many have it, and when the first of them had it.
    round: u32,
    received: usize,
    first: Instant,
    report: Report,
}

impl Receive {
    fn new(plan: &SubscriberPlan, clock: Clock, report: Report) -> Self {
        Self {
            resource: plan.target.resource("/").to_owned(),
            size: plan.size,
            // Both clocks tick alike; only their origins differ.
            machine_offset_ns: machine_now_ns().wrapping_sub(clock.now().0),
            had: vec![0; plan.subscribers],
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
    /// Subscribers that have the last broadcast.
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
        // At once: the coordinator should not wait for a broadcast that can no longer
        // reach all subscribers.
        (self.report)(&ChildMessage::Failed { reason: reason.clone() });
        pool.count_lost(index, || reason);
    }

    fn finish(&mut self, _: &mut ClientPool, _: Instant) -> usize {
        self.received
    }
}
