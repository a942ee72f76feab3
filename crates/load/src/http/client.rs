//! One thread of the generator: its connections, and the loop that keeps them busy.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_io::{Batch, Closed, ConnId, Driver, Event, Instant, Options, Segment, SendOutcome};

use super::answer::{Answer, Reader};
use super::member::{Member, Step};
use super::request::Wire;
use super::tally::{Answered, Tally};
use super::{Pace, Plan};
use crate::client::dial::Dialler;
use crate::client::{Shared, Sockets, Timeline, explain_refusal, wake_exactly};
use crate::clock::Clock;
use crate::{Error, Schedule, Sources};

/// Connections read from in one turn, and requests of an open loop sent in one: a generator that has fallen behind
/// must not keep its own answers waiting and blame the server.
const MOST_EVENTS: usize = 256;
/// Pause before a connection that failed is made again: what fails at once would fail a million times a second.
const PAUSE: Duration = Duration::from_millis(50);
/// Bytes of the one receive buffer; larger answers take several reads.
const RECEIVE_BUFFER: usize = 256 << 10;

/// What a thread needs to begin.
pub(super) struct Start<'a> {
    pub(super) plan: &'a Plan,
    pub(super) wire: Wire,
    pub(super) shared: Arc<Shared>,
    pub(super) clock: Clock,
    pub(super) peer: SocketAddr,
    pub(super) sources: Sources,
    /// Number of this thread.
    pub(super) thread: usize,
    /// Connections of this thread, and the number of the first among all.
    pub(super) connections: usize,
    pub(super) first: usize,
}

/// A thread's event loop.
pub(super) struct Client<'a> {
    driver: Sockets,
    crew: Crew<'a>,
}

/// Everything but the driver, so that it can be changed while the driver lends what came.
struct Crew<'a> {
    start: Start<'a>,
    members: Vec<Member>,
    /// The member that a driver's slot belongs to.
    by_slot: Vec<u32>,
    /// When the requests under way were sent: a ring for each member.
    stamps: Vec<Instant>,
    /// Slots of a ring, a power of two, less one.
    ring: usize,
    dialler: Dialler,
    /// To be dialled now, and at their time.
    again: VecDeque<u32>,
    later: VecDeque<(Instant, u32)>,
    reader: Reader,
    answers_head: bool,
    tally: Tally,
    running: Option<Running>,
    /// Requests that the schedule has until the end, and the number of the next.
    planned: u64,
    next: u64,
    /// Requests of the schedule that will have no expected answer.
    over: u64,
    dials: usize,
    next_sweep: Instant,
    sweep_every: Duration,
    spare: Option<Box<Batch>>,
}

#[derive(Clone, Copy)]
struct Running {
    timeline: Timeline,
    /// Of an open loop.
    schedule: Option<Schedule>,
}

/// What is to be done with a connection after its event.
enum Next {
    Fill(usize),
    Close(ConnId),
    Abort(ConnId),
    Wait,
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
        // Without keep-alive an open loop dials when a request is due.
        let dialled_first = match plan.pace {
            Pace::Open { .. } if !plan.keep_alive => 0,
            _ => start.connections,
        };
        let window = plan.window.div_ceil(plan.threads);
        let now = start.clock.now();
        let ring = plan.pipeline.next_power_of_two();
        let answers_head = plan.method == "HEAD";
        let sweep_every = (plan.timeout / 4).min(Duration::from_secs(1));
        let crew = Crew {
            members: (0..start.connections).map(|_| Member::new()).collect(),
            by_slot: Vec::new(),
            stamps: vec![Instant(0); start.connections * ring],
            ring: ring - 1,
            dialler: Dialler::new(dialled_first, window, plan.ramp, now),
            again: VecDeque::new(),
            later: VecDeque::new(),
            reader: Reader::new(answers_head),
            answers_head,
            tally: Tally::new(&plan.expect),
            running: None,
            planned: 0,
            next: 0,
            over: 0,
            dials: 0,
            next_sweep: now.after(sweep_every),
            sweep_every,
            spare: None,
            start,
        };
        Ok(Self { driver, crew })
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
        let local = crew.start.sources.local(crew.start.first + index + crew.dials);
        match driver.connect(crew.start.peer, local) {
            Ok(id) => {
                if crew.by_slot.len() <= id.slot() {
                    crew.by_slot.resize(id.slot() + 1, 0);
                }
                crew.by_slot[id.slot()] = index as u32;
                crew.members[index].dialled(id, now, crew.answers_head);
                crew.tally.opened += 1;
                // Those that carry one request each take all addresses in turn: their ports rest after use.
                crew.dials += usize::from(!crew.start.plan.keep_alive);
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

impl Crew<'_> {
    fn index(&self, id: ConnId) -> usize {
        self.by_slot[id.slot()] as usize
    }

    /// When the loop has to wake at the latest.
    fn deadline(&self) -> Instant {
        let due = match (&self.running, self.start.shared.timeline()) {
            (Some(Running { schedule: Some(schedule), .. }), _) => {
                (self.next < self.planned).then(|| schedule.planned(self.next))
            }
            (None, Some(timeline)) => Some(timeline.start),
            _ => None,
        };
        let later = self.later.front().map(|&(at, _)| at);
        [due, later, self.dialler.next_at()]
            .into_iter()
            .flatten()
            .fold(self.next_sweep, Instant::min)
    }

    /// The connection that the next request of the schedule belongs to, which becomes due there; `None` if that
    /// is later than `now`.
    fn next_due(
        &mut self,
        timeline: &Timeline,
        schedule: &Schedule,
        now: Instant,
    ) -> Option<usize> {
        let planned = schedule.planned(self.next);
        if self.next >= self.planned || planned > now {
            return None;
        }
        let index = schedule.connection(self.next);
        self.next += 1;
        self.members[index].due += 1;
        if timeline.counts(planned) {
            self.tally.planned += 1;
            self.tally.lateness.add(now.since(planned).as_nanos() as u64);
        }
        Some(index)
    }

    /// Shows the other threads how far this one is: what is neither done nor over is waited for in the end.
    fn publish(&self) {
        let lane = self.start.shared.lane(self.start.thread);
        lane.sent.store(self.planned.saturating_sub(self.over), Ordering::Relaxed);
        lane.done.store(self.tally.done, Ordering::Relaxed);
    }

    fn set_ready(&self, change: i64) {
        let lane = self.start.shared.lane(self.start.thread);
        lane.ready.fetch_add(change as u64, Ordering::Relaxed);
    }

    fn on_connected(&mut self, id: ConnId) -> Next {
        let (index, now) = (self.index(id), self.start.clock.now());
        let member = &mut self.members[index];
        member.step = Step::Open;
        let is_measured = self.running.is_some_and(|running| running.timeline.counts(now));
        if self.start.plan.keep_alive || is_measured {
            self.tally.connect.add(now.since(member.since).as_nanos() as u64);
        }
        if std::mem::take(&mut member.is_first) {
            self.dialler.settle();
        }
        self.set_ready(1);
        Next::Fill(index)
    }

    #[inline]
    fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) -> Next {
        let (index, now) = (self.index(id), self.start.clock.now());
        let Self { members, stamps, reader, tally, running, ring, start, over, .. } = self;
        let member = &mut members[index];
        let Some(Running { timeline, schedule }) = running else {
            return self.on_unasked(index);
        };
        tally.bytes_in += if timeline.counts(now) { bytes.len() as u64 } else { 0 };
        let stamps = &stamps[index * (*ring + 1)..][..*ring + 1];
        let Member { reading, done, sent, since, .. } = member;
        let dialled = (!start.plan.keep_alive).then_some(*since);
        let (mut is_last, mut says_close, mut is_unasked) = (false, false, false);
        let (before, first) = (tally.done, *done);
        let read = reader.read(reading, bytes, |Answer { status, keep_alive }| {
            is_last |= !keep_alive;
            says_close |= !keep_alive;
            if *done == *sent {
                is_unasked |= keep_alive;
                return;
            }
            let from = match schedule {
                Some(schedule) => schedule.planned_for(index, *done),
                None => stamps[*done as usize & *ring],
            };
            let answered = Answered { status, now, from, dialled };
            tally.on_answer(answered, timeline, schedule.is_some());
            *done += 1;
            *over += 1;
        });
        *over -= tally.done - before;
        member.has_answered |= member.done > first;
        if read.is_err() || is_unasked {
            member.has_failed = true;
            tally.errors.malformed += 1;
            tally.errors.note(|| match read {
                Err(error) => format!("connection {index}: the answer is not HTTP: {error}"),
                Ok(()) => format!("connection {index}: an answer came that was not asked for"),
            });
            return Next::Abort(id);
        }
        if !is_last && (start.plan.keep_alive || member.under_way() > 0) {
            return Next::Fill(index);
        }
        if member.step == Step::Open {
            (member.step, member.since) = (Step::Ending, now);
        }
        // Who says that he closes is given the time to; others are closed by us.
        if says_close { Next::Wait } else { Next::Close(id) }
    }

    /// Something came before anything was asked.
    #[cold]
    fn on_unasked(&mut self, index: usize) -> Next {
        self.start.shared.fail(Error::Lost {
            ready: self.start.shared.sum(|lane| &lane.ready) as usize,
            wanted: self.start.plan.connections,
            reason: format!("the server spoke on connection {index} before it was asked"),
        });
        Next::Wait
    }

    #[cold]
    fn on_sent(&mut self, id: ConnId, mut batch: Box<Batch>) -> Next {
        let index = self.index(id);
        self.members[index].is_sending = false;
        batch.clear();
        self.spare = Some(batch);
        Next::Fill(index)
    }

    /// The server has closed its side.
    fn on_finished(&mut self, id: ConnId) -> Result<Next, Error> {
        let (index, now) = (self.index(id), self.start.clock.now());
        let Some(Running { timeline, schedule }) = self.running else {
            return Err(self.lost("the server closed a connection before it was used"));
        };
        let member = &mut self.members[index];
        match member.reading.end_of_stream() {
            Ok(Some(Answer { status, .. })) if member.under_way() > 0 => {
                let stamp = index * (self.ring + 1) + (member.done as usize & self.ring);
                let from = match schedule {
                    Some(schedule) => schedule.planned_for(index, member.done),
                    None => self.stamps[stamp],
                };
                let dialled = (!self.start.plan.keep_alive).then_some(member.since);
                let (answered, before) = (Answered { status, now, from, dialled }, self.tally.done);
                self.tally.on_answer(answered, &timeline, schedule.is_some());
                member.done += 1;
                self.over += 1 - (self.tally.done - before);
                (member.step, member.has_answered) = (Step::Ending, true);
            }
            Ok(_) => {}
            Err(error) => {
                member.has_failed = true;
                self.tally.errors.cut_short += 1;
                self.tally.errors.note(|| format!("connection {index}: {error}"));
            }
        }
        let has_more = member.under_way() > 0;
        if member.step == Step::Open && has_more && !member.has_answered && !member.has_failed {
            member.has_failed = true;
            self.tally.errors.unanswered += 1;
            self.tally
                .errors
                .note(|| format!("connection {index}: the server closed it without an answer"));
        }
        if !member.has_failed && (self.start.plan.keep_alive || member.step == Step::Open) {
            self.tally.ended_by_server += 1;
        }
        Ok(Next::Close(id))
    }

    /// A connection is gone: what becomes of its requests, and whether it is made again.
    fn on_closed(&mut self, id: ConnId, why: Closed) -> Result<(), Error> {
        let (index, now) = (self.index(id), self.start.clock.now());
        let step = std::mem::replace(&mut self.members[index].step, Step::Out);
        match step {
            Step::Open | Step::Ending => self.set_ready(-1),
            Step::Connecting if std::mem::take(&mut self.members[index].is_first) => {
                self.dialler.settle();
            }
            _ => {}
        }
        match why {
            Closed::Local => {}
            Closed::Refused => self.on_refused(index)?,
            Closed::Reset if self.running.is_none() => {
                return Err(self.lost("the server reset a connection before it was used"));
            }
            Closed::Reset => self.on_reset(index, step),
        }
        self.settle(index, now);
        Ok(())
    }

    #[cold]
    fn on_refused(&mut self, index: usize) -> Result<(), Error> {
        // While nothing was ever answered the server is not there, or the address is wrong.
        if self.tally.done == 0 || self.running.is_none() {
            return Err(explain_refusal(&self.start.shared, self.start.peer));
        }
        self.members[index].has_failed = true;
        self.tally.errors.connects_failed += 1;
        self.tally.errors.note(|| format!("connection {index} was refused"));
        Ok(())
    }

    fn on_reset(&mut self, index: usize, step: Step) {
        let member = &mut self.members[index];
        let is_between = member.reading.is_between();
        // A server that closes while our next request is on its way resets it: no other end than a FIN in time.
        let is_idle = member.under_way() == 0 || member.has_answered;
        if step == Step::Ending || is_between && is_idle {
            self.tally.ended_by_server += u64::from(self.start.plan.keep_alive);
            return;
        }
        member.has_failed = true;
        self.tally.errors.resets += 1;
        let what = if is_between { "instead of an answer" } else { "in the middle of an answer" };
        self.tally.errors.note(|| format!("connection {index}: the server reset it {what}"));
    }

    /// There is no socket for a connection.
    #[cold]
    fn on_no_socket(
        &mut self,
        index: usize,
        reason: std::io::Error,
        now: Instant,
    ) -> Result<(), Error> {
        if std::mem::take(&mut self.members[index].is_first) {
            self.dialler.settle();
        }
        let ready = self.start.shared.sum(|lane| &lane.ready) as usize;
        let error = Error::Connect { peer: self.start.peer, reason, ready };
        if self.tally.done == 0 {
            return Err(error);
        }
        self.tally.errors.connects_failed += 1;
        self.tally.errors.note(|| error.to_string());
        self.members[index].has_failed = true;
        self.settle(index, now);
        Ok(())
    }

    /// Decides what becomes of the requests of a connection that is no more, and when it is dialled again.
    ///
    /// What the server ended between two requests is asked again, as RFC 9112 section 9.3.1 allows; what failed is
    /// over, so that an open loop goes on with what is due.
    fn settle(&mut self, index: usize, now: Instant) {
        let lost = self.members[index].under_way();
        if lost > 0 && self.members[index].has_failed {
            self.forgo(index, lost, now);
        } else {
            self.tally.resent += lost;
        }
        let member = &mut self.members[index];
        member.sent = member.done;
        if !self.start.plan.keep_alive && member.due == member.sent {
            return;
        }
        member.step = Step::Queued;
        if member.has_failed || !member.has_answered {
            self.later.push_back((now.after(PAUSE), index as u32));
        } else {
            self.again.push_back(index as u32);
        }
    }

    /// Requests of the schedule that get no answer: they have waited from their planned time until now at least.
    /// Leaving them out would make a server that stops answering look fast.
    fn forgo(&mut self, index: usize, requests: u64, now: Instant) {
        let member = &mut self.members[index];
        if let Some(Running { timeline, schedule: Some(schedule) }) = &self.running {
            for request in member.done..member.done + requests {
                let planned = schedule.planned_for(index, request);
                if timeline.counts(planned) {
                    self.tally.unanswered += 1;
                    self.tally.latency.add(now.since(planned).as_nanos() as u64);
                }
            }
            self.over += requests;
            member.done += requests;
        } else {
            // A closed loop asks anew.
            member.sent = member.done;
        }
    }

    /// The run is over: what has no answer now will have none.
    fn give_up(&mut self) {
        let now = self.start.clock.now();
        if let Some(Running { timeline, schedule: Some(schedule) }) = self.running {
            while self.next_due(&timeline, &schedule, now).is_some() {}
            for index in 0..self.members.len() {
                let left = self.members[index].due - self.members[index].done;
                self.forgo(index, left, now);
            }
        }
    }

    fn lost(&self, reason: &str) -> Error {
        Error::Lost {
            ready: self.start.shared.sum(|lane| &lane.ready) as usize,
            wanted: self.start.plan.connections,
            reason: reason.to_owned(),
        }
    }
}
