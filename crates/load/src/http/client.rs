//! One thread of the generator: its connections, and the loop that keeps them busy.

use throng_io::{Batch, ConnId, Driver, Event, Instant, Options, Segment, SendOutcome};

use super::Pace;
use super::crew::{Crew, Next, Running, Start};
use super::member::Step;
use super::request::Wire;
use super::tally::Tally;
use crate::client::{Sockets, wake_exactly};
use crate::{Error, Schedule};

/// Connections read from in one turn, and requests of an open loop sent in one: a generator that has fallen behind
/// must not keep its own answers waiting and blame the server.
const MOST_EVENTS: usize = 256;
/// Bytes of the one receive buffer; larger answers take several reads.
const RECEIVE_BUFFER: usize = 256 << 10;

/// A thread's event loop.
pub(super) struct Client<'a> {
    driver: Sockets,
    crew: Crew<'a>,
}

impl<'a> Client<'a> {
    /// Prepares a thread's event loop; must be called on that thread.
    ///
    /// # Errors
    /// No descriptor or memory for the poll.
    pub(super) fn new(start: Start<'a>) -> Result<Self, Error> {
        let plan = start.plan;
        if matches!(plan.pace, Pace::Open { .. }) {
            wake_exactly();
        }
        let options = Options {
            receive_buffer: RECEIVE_BUFFER,
            max_events: MOST_EVENTS,
            max_connections: start.connections + 16,
            ..Options::default()
        };
        let driver =
            Sockets::new(options).map_err(|error| Error::io("start the event loop", error))?;
        start.shared.lane(start.thread).open(driver.waker());
        Ok(Self { driver, crew: Crew::new(start) })
    }

    /// Runs until the run is finished, resets every connection that is left, and gives the figures.
    ///
    /// # Errors
    /// The server cannot be reached, or the poll failed.
    pub(super) fn run(mut self) -> Result<Tally, Error> {
        while !self.crew.start.shared.is_finishing() {
            self.begin();
            self.send_due();
            self.sweep();
            self.dial()?;
            let deadline = self.crew.deadline();
            let waited = self.driver.wait(Some(deadline));
            waited.map_err(|error| Error::io("wait for events", error))?;
            self.events()?;
            self.crew.publish();
        }
        Ok(self.end())
    }

    fn events(&mut self) -> Result<(), Error> {
        while let Some(event) = self.driver.next_event() {
            let next = match event {
                Event::Received(id, bytes) => self.crew.on_received(id, bytes),
                Event::Connected(id) => self.crew.on_connected(id),
                Event::Finished(id) => self.crew.on_finished(id)?,
                Event::Sent(id, batch) => self.crew.on_sent(id, batch),
                Event::Closed(id, why) => {
                    self.crew.on_closed(id, why)?;
                    Next::Wait
                }
                // There is no listener.
                Event::Incoming(..) | Event::AcceptStopped(_) => Next::Wait,
            };
            match next {
                Next::Fill(index) => self.fill(index),
                Next::Close(id) => self.driver.close(id),
                Next::Abort(id) => self.driver.abort(id),
                Next::Wait => {}
            }
        }
        Ok(())
    }

    /// Begins the run proper when its time has come.
    fn begin(&mut self) {
        let crew = &mut self.crew;
        if crew.running.is_some() {
            return;
        }
        let Some(&timeline) = crew.start.shared.timeline() else { return };
        if crew.start.clock.now() < timeline.start {
            return;
        }
        let plan = crew.start.plan;
        let schedule = match plan.pace {
            Pace::Closed => None,
            Pace::Open { rate_per_s } => {
                let each = rate_per_s / plan.connections as f64;
                let shift = crew.start.thread as f64 / plan.threads as f64;
                let schedule = Schedule::new(timeline.start, crew.members.len(), each);
                Some(schedule.shifted(shift))
            }
        };
        crew.running = Some(Running { timeline, schedule });
        let last = Instant(timeline.to.0 - 1);
        crew.planned = schedule.map_or(0, |schedule| schedule.due(last));
        if schedule.is_none() {
            crew.members.iter_mut().for_each(|member| member.due = u64::MAX);
            (0..self.crew.members.len()).for_each(|index| self.fill(index));
        }
    }

    /// Sends what the schedule has come to.
    fn send_due(&mut self) {
        let Some(Running { timeline, schedule: Some(schedule) }) = self.crew.running else {
            return;
        };
        let now = self.crew.start.clock.now();
        for _ in 0..MOST_EVENTS {
            let crew = &mut self.crew;
            let Some(index) = crew.next_due(&timeline, &schedule, now) else { break };
            let member = &mut crew.members[index];
            if member.step == Step::Out && !crew.start.plan.keep_alive {
                member.step = Step::Queued;
                crew.again.push_back(index as u32);
            }
            self.fill(index);
        }
    }

    /// Sends as many requests as are due and fit the pipeline, in one go.
    #[inline]
    fn fill(&mut self, index: usize) {
        let Self { driver, crew } = self;
        let member = &mut crew.members[index];
        let requests = member.sendable(crew.start.plan.pipeline);
        if requests == 0 {
            return;
        }
        let now = crew.start.clock.now();
        let ring = &mut crew.stamps[index * (crew.ring + 1)..][..crew.ring + 1];
        for request in member.sent..member.sent + requests as u64 {
            ring[request as usize & crew.ring] = now;
        }
        member.sent += requests as u64;
        if crew.running.is_some_and(|running| running.timeline.counts(now)) {
            crew.tally.sent += requests as u64;
        }
        let wire = &crew.start.wire;
        let mut left = requests;
        while left > 0 {
            let row = wire.row(left.min(wire.repeats()));
            let taken = driver.try_send(member.id, row);
            if taken < row.len() {
                let spare = &mut crew.spare;
                member.is_sending = send_rest(driver, spare, wire, member.id, left, taken);
                return;
            }
            left -= left.min(wire.repeats());
        }
    }

    /// Ends what has waited too long.
    fn sweep(&mut self) {
        let Self { driver, crew } = self;
        let now = crew.start.clock.now();
        if now < crew.next_sweep {
            return;
        }
        crew.next_sweep = now.after(crew.sweep_every);
        let timeout = crew.start.plan.timeout;
        for (index, member) in crew.members.iter_mut().enumerate() {
            let oldest = index * (crew.ring + 1) + (member.done as usize & crew.ring);
            let (since, what) = match member.step {
                Step::Connecting => (member.since, "a connection to be made"),
                Step::Open if member.under_way() > 0 => (crew.stamps[oldest], "an answer"),
                Step::Ending => (member.since, "the server to end a connection"),
                Step::Out | Step::Queued | Step::Open => continue,
            };
            if now.since(since) >= timeout {
                crew.tally.errors.timeouts += 1;
                crew.tally.errors.note(|| format!("connection {index} waited too long for {what}"));
                member.has_failed = true;
                driver.abort(member.id);
            }
        }
    }

    /// Begins every connection that is wanted.
    fn dial(&mut self) -> Result<(), Error> {
        let now = self.crew.start.clock.now();
        while self.crew.later.front().is_some_and(|&(at, _)| at <= now) {
            self.crew.again.extend(self.crew.later.pop_front().map(|(_, index)| index));
        }
        while let Some(index) = self.crew.again.pop_front() {
            self.dial_one(index as usize, now)?;
        }
        // Connections that carry one request are part of the measurement: none is made before.
        if self.crew.start.plan.keep_alive || self.crew.running.is_some() {
            while let Some(index) = self.crew.dialler.next(now) {
                self.crew.members[index].is_first = true;
                self.dial_one(index, now)?;
            }
        }
        Ok(())
    }

    fn dial_one(&mut self, index: usize, now: Instant) -> Result<(), Error> {
        let Self { driver, crew } = self;
        // Those that carry one request each take all addresses in turn: their ports rest after use.
        let turn = if crew.start.plan.keep_alive { index } else { crew.dials };
        let local = crew.start.sources.local(crew.start.first + turn);
        match driver.connect(crew.start.peer, local) {
            Ok(id) => {
                if crew.by_slot.len() <= id.slot() {
                    crew.by_slot.resize(id.slot() + 1, 0);
                }
                crew.by_slot[id.slot()] = index as u32;
                crew.members[index].dialled(id, now, crew.answers_head);
                crew.tally.opened += 1;
                crew.dials += 1;
                Ok(())
            }
            Err(reason) => crew.on_no_socket(index, reason, now),
        }
    }

    /// Resets what is left: a FIN would leave each port in TIME_WAIT for a minute, and the next run without ports.
    fn end(mut self) -> Tally {
        self.crew.give_up();
        for member in &self.crew.members {
            if !matches!(member.step, Step::Out | Step::Queued) {
                self.driver.abort(member.id);
            }
        }
        self.crew.tally
    }
}

/// Queues what the kernel did not take of `requests` requests, of which `taken` bytes have left; true if it is
/// still on its way.
#[cold]
fn send_rest(
    driver: &mut Sockets,
    spare: &mut Option<Box<Batch>>,
    wire: &Wire,
    id: ConnId,
    requests: usize,
    taken: usize,
) -> bool {
    let mut batch = spare.take().unwrap_or_default();
    for _ in 0..requests {
        batch.push(Segment::Shared(wire.shared()));
    }
    batch.advance(taken);
    match driver.send(id, batch) {
        SendOutcome::Done(batch) => {
            *spare = Some(batch);
            false
        }
        SendOutcome::Pending => true,
    }
}
