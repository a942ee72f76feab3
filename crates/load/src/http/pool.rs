//! Connections of a thread: their counters, their next requests, and the handling of their events.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_io::{Batch, Closed, ConnId, Instant, SessionFailure, TlsInfo};

use super::answer::{HttpAnswer, Reader};
use super::conn::{ClientConn, HttpPhase};
use super::request::Wire;
use super::tally::{Answered, Tally};
use super::Plan;
use crate::client::dial::Dialler;
use crate::client::{Setup, Shared, Timeline, explain_refusal};
use crate::clock::Clock;
use crate::error::Error;
use crate::errors::Errors;
use crate::schedule::Schedule;
use crate::sources::Sources;
use crate::tls::TlsClient;

/// Pause before a failed connection is made again: an immediate failure would otherwise repeat a
/// million times a second.
const PAUSE: Duration = Duration::from_millis(50);

/// Parameters of a thread's start.
pub(super) struct ThreadStart<'a> {
    pub(super) plan: &'a Plan,
    pub(super) wire: Wire,
    pub(super) shared: Arc<Shared>,
    pub(super) clock: Clock,
    pub(super) peer: SocketAddr,
    pub(super) tls: Option<Arc<TlsClient>>,
    pub(super) sources: Sources,
    /// Number of this thread.
    pub(super) thread: usize,
    /// Connections of this thread, and the number of the first in the sequence of all.
    pub(super) connections: usize,
    pub(super) first: usize,
}

/// Everything except the driver, so that it can be changed while the driver lends received bytes.
pub(super) struct ClientPool<'a> {
    pub(super) start: ThreadStart<'a>,
    pub(super) conns: Vec<ClientConn>,
    /// The connection of a driver's slot.
    pub(super) by_slot: Vec<u32>,
    /// The send times of the requests in progress: a ring for each connection.
    pub(super) stamps: Vec<Instant>,
    /// Slots of a ring minus one; the number of slots is a power of two.
    pub(super) ring: usize,
    pub(super) dialler: Dialler,
    /// Connections to dial now, and connections to dial at a time.
    pub(super) again: VecDeque<u32>,
    pub(super) later: VecDeque<(Instant, u32)>,
    pub(super) reader: Reader,
    pub(super) answers_head: bool,
    pub(super) setup: Setup,
    pub(super) tally: Tally,
    pub(super) running: Option<Running>,
    /// Requests of the schedule until the end, and the number of the next.
    pub(super) planned: u64,
    pub(super) next: u64,
    /// Requests of the schedule that will not get an expected answer.
    pub(super) over: u64,
    pub(super) dials: usize,
    pub(super) next_sweep: Instant,
    pub(super) sweep_every: Duration,
    pub(super) spare: Option<Box<Batch>>,
}

#[derive(Clone)]
pub(super) struct Running {
    pub(super) timeline: Timeline,
    /// Schedule of an open loop.
    pub(super) schedule: Option<Schedule>,
}

/// Next action on a connection after its event.
pub(super) enum Next {
    Fill(usize),
    Close(ConnId),
    Abort(ConnId),
    Wait,
}

impl<'a> ClientPool<'a> {
    pub(super) fn new(start: ThreadStart<'a>) -> Self {
        let plan = start.plan;
        // Without keep-alive an open loop dials when a request is due.
        let dialled_first =
            if plan.is_open() && !plan.keep_alive { 0 } else { start.connections };
        let window = plan.common.window.div_ceil(plan.common.threads);
        let now = start.clock.now();
        let ring = plan.pipeline.next_power_of_two();
        let answers_head = plan.method == "HEAD";
        let sweep_every = (plan.timeout / 4).min(Duration::from_secs(1));
        Self {
            conns: (0..start.connections).map(|_| ClientConn::new()).collect(),
            by_slot: Vec::new(),
            stamps: vec![Instant(0); start.connections * ring],
            ring: ring - 1,
            dialler: Dialler::new(dialled_first, window, plan.common.ramp, now),
            again: VecDeque::new(),
            later: VecDeque::new(),
            reader: Reader::new(answers_head),
            answers_head,
            setup: Setup { errors: Errors::of_requests(), ..Setup::default() },
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
        }
    }
}

impl ClientPool<'_> {
    fn index(&self, id: ConnId) -> usize {
        self.by_slot[id.slot()] as usize
    }

    /// Returns the latest time at which the loop must wake.
    pub(super) fn deadline(&self) -> Instant {
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

    /// Returns the connection of the schedule's next request, which becomes due there; `None` if
    /// that is later than `now`.
    pub(super) fn next_due(
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
        self.conns[index].due += 1;
        if timeline.counts(planned) {
            self.tally.planned += 1;
            self.tally.lateness.add(now.since(planned).as_nanos() as u64);
        }
        Some(index)
    }

    /// Shows the other threads the progress of this one: at the end they wait for requests that are
    /// neither done nor over.
    pub(super) fn publish(&self) {
        let lane = self.start.shared.lane(self.start.thread);
        let sent = match self.start.plan.common.number {
            // With a fixed number of requests: those that are over without an expected answer.
            Some(_) => self.over,
            None => self.planned.saturating_sub(self.over),
        };
        lane.sent.store(sent, Ordering::Relaxed);
        lane.done.store(self.tally.done, Ordering::Relaxed);
    }

    fn set_ready(&self, change: i64) {
        let lane = self.start.shared.lane(self.start.thread);
        lane.ready.fetch_add(change as u64, Ordering::Relaxed);
    }

    /// Records the TLS of a connection whose handshake has ended.
    pub(super) fn on_secured(&mut self, id: ConnId, info: &TlsInfo) {
        let index = self.index(id);
        self.conns[index].tcp = info.connected;
        self.setup.negotiated.add(info);
    }

    pub(super) fn on_connected(&mut self, id: ConnId) -> Next {
        let (index, now) = (self.index(id), self.start.clock.now());
        let conn = &mut self.conns[index];
        conn.step = HttpPhase::Open;
        let is_measured = self.running.as_ref().is_some_and(|running| running.timeline.counts(now));
        if self.start.plan.keep_alive || is_measured {
            let tcp = std::mem::take(&mut conn.tcp);
            self.setup.tcp.add(tcp.unwrap_or(now).since(conn.since).as_nanos() as u64);
            if let Some(tcp) = tcp {
                self.setup.tls.add(now.since(tcp).as_nanos() as u64);
            }
        }
        if std::mem::take(&mut conn.is_first) {
            self.dialler.settle();
        }
        self.set_ready(1);
        Next::Fill(index)
    }

    #[inline]
    pub(super) fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) -> Next {
        let (index, now) = (self.index(id), self.start.clock.now());
        let Self { conns, stamps, reader, setup, tally, running, ring, start, over, .. } = self;
        let conn = &mut conns[index];
        let Some(Running { timeline, schedule }) = running else {
            return self.on_unasked(index);
        };
        tally.bytes_in += if timeline.counts(now) { bytes.len() as u64 } else { 0 };
        let stamps = &stamps[index * (*ring + 1)..][..*ring + 1];
        let ClientConn { reading, done, sent, since, .. } = conn;
        let dialled = (!start.plan.keep_alive).then_some(*since);
        let (mut is_last, mut says_close, mut is_unasked) = (false, false, false);
        let (before, first) = (tally.done, *done);
        let read = reader.read(reading, bytes, |HttpAnswer { status, keep_alive }| {
            is_last |= !keep_alive;
            says_close |= !keep_alive;
            if *done == *sent {
                is_unasked |= keep_alive;
                return;
            }
            let from = asked(schedule.as_ref(), stamps, index, *done);
            let answered = Answered { status, now, from, dialled };
            tally.on_answer(&mut setup.errors, answered, timeline, schedule.is_some());
            *done += 1;
            *over += 1;
        });
        *over -= tally.done - before;
        conn.has_answered |= conn.done > first;
        if read.is_err() || is_unasked {
            conn.has_failed = true;
            setup.errors.malformed += 1;
            setup.errors.note(|| match read {
                Err(error) => format!("connection {index}: the answer is not HTTP: {error}"),
                Ok(()) => format!("connection {index}: an answer came that was not asked for"),
            });
            return Next::Abort(id);
        }
        if !is_last && (start.plan.keep_alive || conn.under_way() > 0) {
            return Next::Fill(index);
        }
        if conn.step == HttpPhase::Open {
            (conn.step, conn.since) = (HttpPhase::Ending, now);
        }
        // A server that announced the close gets the time to do it; otherwise we close.
        if says_close { Next::Wait } else { Next::Close(id) }
    }

    /// Bytes were received before any request.
    #[cold]
    fn on_unasked(&mut self, index: usize) -> Next {
        self.start.shared.fail(Error::Lost {
            ready: self.start.shared.sum(|lane| &lane.ready) as usize,
            wanted: self.start.plan.common.connections,
            reason: format!("the server spoke on connection {index} before it was asked"),
        });
        Next::Wait
    }

    #[cold]
    pub(super) fn on_sent(&mut self, id: ConnId, mut batch: Box<Batch>) -> Next {
        let index = self.index(id);
        self.conns[index].is_sending = false;
        batch.clear();
        self.spare = Some(batch);
        Next::Fill(index)
    }

    /// Handles the end of the server's stream: `was_cut` if it was truncated, and the reason if its
    /// TLS session failed.
    pub(super) fn on_finished(
        &mut self,
        id: ConnId,
        was_cut: bool,
        failure: Option<SessionFailure>,
    ) -> Result<Next, Error> {
        let (index, now) = (self.index(id), self.start.clock.now());
        let Some(Running { timeline, schedule }) = &self.running else {
            let what = "the server closed a connection before it was used";
            return Err(self.lost(&format!("{what}{}", because(failure))));
        };
        // Many servers end their streams without close_notify, which matters only within an answer.
        let cut = failure.or(was_cut.then_some(SessionFailure::Truncated));
        let conn = &mut self.conns[index];
        match conn.reading.end_of_stream(was_cut) {
            Ok(Some(HttpAnswer { status, .. })) if conn.under_way() > 0 => {
                let stamps = &self.stamps[index * (self.ring + 1)..][..self.ring + 1];
                let from = asked(schedule.as_ref(), stamps, index, conn.done);
                let dialled = (!self.start.plan.keep_alive).then_some(conn.since);
                let (answered, before) = (Answered { status, now, from, dialled }, self.tally.done);
                let is_open = schedule.is_some();
                self.tally.on_answer(&mut self.setup.errors, answered, timeline, is_open);
                conn.done += 1;
                self.over += 1 - (self.tally.done - before);
                (conn.step, conn.has_answered) = (HttpPhase::Ending, true);
            }
            Ok(_) => {}
            Err(error) => {
                conn.has_failed = true;
                self.setup.errors.cut_short += 1;
                self.setup.errors.tls_failures.count(cut);
                self.setup.errors.note(|| format!("connection {index}: {error}{}", because(cut)));
            }
        }
        let has_more = conn.under_way() > 0;
        if conn.step == HttpPhase::Open && has_more && !conn.has_answered && !conn.has_failed {
            conn.has_failed = true;
            self.setup.errors.unanswered += 1;
            self.setup.errors.tls_failures.count(cut);
            self.setup.errors.note(|| {
                let why = because(cut);
                format!("connection {index}: the server closed it without an answer{why}")
            });
        }
        if conn.step == HttpPhase::Open && !conn.has_failed && failure.is_some() {
            self.on_reset(index, HttpPhase::Open, failure);
        }
        let conn = &self.conns[index];
        if !conn.has_failed && (self.start.plan.keep_alive || conn.step == HttpPhase::Open) {
            self.tally.ended_by_server += 1;
        }
        Ok(Next::Close(id))
    }

    /// Handles a connection that is gone: decides about its requests, and whether it is made again.
    pub(super) fn on_closed(&mut self, id: ConnId, why: Closed) -> Result<(), Error> {
        let (index, now) = (self.index(id), self.start.clock.now());
        let step = std::mem::replace(&mut self.conns[index].step, HttpPhase::Out);
        match step {
            HttpPhase::Open | HttpPhase::Ending => self.set_ready(-1),
            HttpPhase::Connecting if std::mem::take(&mut self.conns[index].is_first) => {
                self.dialler.settle();
            }
            _ => {}
        }
        match why {
            Closed::Local => {}
            Closed::Insecure(_) if self.conns[index].has_answered => {
                self.on_reset(index, step, why.session_failure());
            }
            Closed::Refused | Closed::Insecure(_) => self.on_refused(index, step, why)?,
            Closed::Reset if self.running.is_none() => {
                return Err(self.lost("the server reset a connection before it was used"));
            }
            Closed::Reset => self.on_reset(index, step, None),
        }
        self.settle(index, now);
        Ok(())
    }

    #[cold]
    fn on_refused(&mut self, index: usize, step: HttpPhase, why: Closed) -> Result<(), Error> {
        // As long as no request was ever answered, the server is not running, or the address is
        // wrong.
        if self.tally.done == 0 || self.running.is_none() {
            return Err(explain_refusal(
                &self.start.shared,
                self.start.peer,
                self.start.tls.as_deref(),
                why,
            ));
        }
        self.conns[index].has_failed = true;
        self.setup.errors.connects_failed += 1;
        if step != HttpPhase::Connecting {
            self.setup.errors.tls_failures.count(why.session_failure());
        }
        self.setup.errors.note(|| match why {
            Closed::Insecure(why) => format!("connection {index} was refused: {why}"),
            _ => format!("connection {index} was refused"),
        });
        Ok(())
    }

    /// Handles a connection that was reset, or whose TLS session failed. A server may reset an idle
    /// connection, but a failed session is always an error.
    fn on_reset(&mut self, index: usize, step: HttpPhase, failure: Option<SessionFailure>) {
        let conn = &mut self.conns[index];
        let is_between = conn.reading.is_between();
        // A server that closes while our next request is in flight resets it; that counts as an
        // orderly end.
        let is_idle = conn.under_way() == 0 || conn.has_answered;
        if step == HttpPhase::Ending || is_between && is_idle && failure.is_none() {
            self.tally.ended_by_server += u64::from(self.start.plan.keep_alive);
            return;
        }
        conn.has_failed = true;
        self.setup.errors.resets += 1;
        self.setup.errors.tls_failures.count(failure);
        let what = match (is_between, conn.under_way()) {
            (true, 0) => "between two answers",
            (true, _) => "instead of an answer",
            (false, _) => "in the middle of an answer",
        };
        self.setup.errors.note(|| {
            let why = because(failure);
            format!("connection {index}: the server reset it {what}{why}")
        });
    }

    /// There is no socket for a connection.
    #[cold]
    pub(super) fn on_no_socket(
        &mut self,
        index: usize,
        reason: std::io::Error,
        now: Instant,
    ) -> Result<(), Error> {
        if std::mem::take(&mut self.conns[index].is_first) {
            self.dialler.settle();
        }
        let ready = self.start.shared.sum(|lane| &lane.ready) as usize;
        let error = Error::Connect { peer: self.start.peer, reason, ready };
        if self.tally.done == 0 {
            return Err(error);
        }
        self.setup.errors.connects_failed += 1;
        self.setup.errors.note(|| error.to_string());
        self.conns[index].has_failed = true;
        self.settle(index, now);
        Ok(())
    }

    /// Decides about the requests of a connection that is gone, and when it is dialled again.
    ///
    /// Requests on a connection that the server ended between two of them are sent again, as RFC
    /// 9112 section 9.3.1 allows; failed ones are over, so that an open loop continues with the
    /// next.
    fn settle(&mut self, index: usize, now: Instant) {
        let lost = self.conns[index].under_way();
        if lost > 0 && self.conns[index].has_failed {
            self.forgo(index, lost, now);
        } else {
            self.tally.resent += lost;
        }
        let conn = &mut self.conns[index];
        conn.sent = conn.done;
        if !self.start.plan.keep_alive && conn.due == conn.sent {
            return;
        }
        conn.step = HttpPhase::Queued;
        if conn.has_failed || !conn.has_answered {
            self.later.push_back((now.after(PAUSE), index as u32));
        } else {
            self.again.push_back(index as u32);
        }
    }

    /// Counts requests of the schedule without an answer: they have waited at least from their
    /// planned time until now. Leaving them out would make a server that stops answering look fast.
    fn forgo(&mut self, index: usize, requests: u64, now: Instant) {
        let conn = &mut self.conns[index];
        if let Some(Running { timeline, schedule: Some(schedule) }) = &self.running {
            for request in conn.done..conn.done + requests {
                let planned = schedule.planned_for(index, request);
                if timeline.counts(planned) {
                    self.tally.unanswered += 1;
                    self.tally.latency.add(now.since(planned).as_nanos() as u64);
                }
            }
            self.over += requests;
            conn.done += requests;
        } else if self.start.plan.common.number.is_some() {
            self.over += requests;
            conn.done += requests;
        } else {
            // A closed loop sends the request again.
            conn.sent = conn.done;
        }
    }

    /// Ends the run: requests without an answer will not get one.
    pub(super) fn give_up(&mut self) {
        let now = self.start.clock.now();
        if let Some(Running { timeline, schedule: Some(schedule) }) = self.running.clone() {
            while self.next_due(&timeline, &schedule, now).is_some() {}
            for index in 0..self.conns.len() {
                let left = self.conns[index].due - self.conns[index].done;
                self.forgo(index, left, now);
            }
        }
    }

    fn lost(&self, reason: &str) -> Error {
        Error::Lost {
            ready: self.start.shared.sum(|lane| &lane.ready) as usize,
            wanted: self.start.plan.common.connections,
            reason: reason.to_owned(),
        }
    }
}

/// Returns the cause of an end, as the end of a sentence.
fn because(failure: Option<SessionFailure>) -> String {
    failure.map_or(String::new(), |why| format!(": {why}"))
}

/// Returns when a request was made: its planned time, or without a schedule its send time from the
/// connection's ring of `stamps`.
#[inline]
fn asked(schedule: Option<&Schedule>, stamps: &[Instant], index: usize, request: u64) -> Instant {
    match schedule {
        Some(schedule) => schedule.planned_for(index, request),
        // The ring's length is a power of two.
        None => stamps[request as usize & (stamps.len() - 1)],
    }
}
