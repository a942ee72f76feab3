//! Connections of a thread: their counters, their next requests, and the handling of their events.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use throng_io::{Batch, Closed, ConnId, Instant, SessionFailure, TlsInfo};

use super::HttpPlan;
use super::answer::{HttpAnswer, Reader};
use super::conn::{ClientConn, HttpPhase};
use super::request::Wire;
use super::tally::{Answered, Tally};
use crate::error::Error;
use crate::errors::Errors;
use crate::pool::{ConnPool, Protocol, Setup, ThreadStart, Timeline};
use crate::schedule::Schedule;

/// Pause before a failed connection is made again. Otherwise an immediate failure would repeat a
/// million times per second.
const PAUSE: Duration = Duration::from_millis(50);

/// State of a thread's HTTP connections.
pub(super) struct Http<'a> {
    pub(super) plan: &'a HttpPlan,
    pub(super) wire: Wire,
    /// The connection at each slot of the driver.
    pub(super) by_slot: Vec<u32>,
    /// The send times of the requests in progress, with a ring for each connection.
    pub(super) stamps: Vec<Instant>,
    /// The number of slots in a ring, minus one. The number of slots is a power of two.
    pub(super) ring: usize,
    /// Connections to dial now, and connections to dial at a later time.
    pub(super) again: VecDeque<u32>,
    pub(super) later: VecDeque<(Instant, u32)>,
    pub(super) reader: Reader,
    pub(super) answers_head: bool,
    pub(super) tally: Tally,
    /// The schedule of an open loop, while it runs.
    pub(super) schedule: Option<Schedule>,
    /// The number of requests in the whole schedule, and the number of the next request.
    pub(super) planned: u64,
    pub(super) next: u64,
    /// Requests of the schedule that can no longer get an expected answer.
    pub(super) over: u64,
    pub(super) dials: usize,
    pub(super) next_sweep: Instant,
    pub(super) sweep_every: Duration,
    pub(super) spare: Option<Box<Batch>>,
}

impl Protocol for Http<'_> {
    type Conn = ClientConn;
}

/// All state except the driver, so that it can change while the driver lends received bytes.
pub(super) type HttpPool<'a> = ConnPool<Http<'a>>;

/// Next action on a connection after its event.
pub(super) enum Next {
    Fill(usize),
    Close(ConnId),
    Abort(ConnId),
    Wait,
}

impl<'a> HttpPool<'a> {
    pub(super) fn of(start: &ThreadStart, plan: &'a HttpPlan, wire: Wire) -> Self {
        // Without keep-alive an open loop dials when a request is due.
        let dialled_first = if plan.is_open() && !plan.keep_alive { 0 } else { start.connections };
        let ring = plan.pipeline.next_power_of_two();
        let answers_head = plan.method == "HEAD";
        let sweep_every = (plan.timeout / 4).min(Duration::from_secs(1));
        let protocol = Http {
            plan,
            wire,
            by_slot: Vec::new(),
            stamps: vec![Instant(0); start.connections * ring],
            ring: ring - 1,
            again: VecDeque::new(),
            later: VecDeque::new(),
            reader: Reader::new(answers_head),
            answers_head,
            tally: Tally::new(&plan.expect),
            schedule: None,
            planned: 0,
            next: 0,
            over: 0,
            dials: 0,
            next_sweep: start.clock.now().after(sweep_every),
            sweep_every,
            spare: None,
        };
        let mut pool = Self::new(start, dialled_first, ClientConn::new, protocol);
        pool.errors = Errors::of_requests();
        pool
    }

    /// Returns the measurements.
    pub(super) fn into_parts(mut self) -> (Setup, Tally) {
        let tally = std::mem::take(&mut self.protocol.tally);
        (self.into_setup(), tally)
    }
}

impl HttpPool<'_> {
    fn index(&self, id: ConnId) -> usize {
        self.protocol.by_slot[id.slot()] as usize
    }

    /// Returns the latest time for the loop to wake.
    pub(super) fn deadline(&self) -> Instant {
        let Http { schedule, next, planned, later, next_sweep, .. } = &self.protocol;
        let due = match (self.started, schedule) {
            (None, _) => self.shared.timeline().map(|timeline| timeline.start),
            (Some(_), Some(schedule)) => (next < planned).then(|| schedule.planned(*next)),
            (Some(_), None) => None,
        };
        let later = later.front().map(|&(at, _)| at);
        [due, later, self.dialler.next_at()].into_iter().flatten().fold(*next_sweep, Instant::min)
    }

    /// Returns the connection of the schedule's next request, and makes the request due there.
    /// Returns `None` if the request is planned after `now`.
    pub(super) fn next_due(
        &mut self,
        timeline: &Timeline,
        schedule: &Schedule,
        now: Instant,
    ) -> Option<usize> {
        let planned = schedule.planned(self.protocol.next);
        if self.protocol.next >= self.protocol.planned || planned > now {
            return None;
        }
        let index = schedule.connection(self.protocol.next);
        self.protocol.next += 1;
        self.conns[index].due += 1;
        if timeline.counts(planned) {
            self.protocol.tally.planned += 1;
            self.protocol.tally.lateness.add(now.since(planned).as_nanos() as u64);
        }
        Some(index)
    }

    /// Publishes this thread's progress. At the end the other threads wait for requests that are
    /// neither done nor over.
    pub(super) fn publish(&self) {
        let lane = self.lane();
        let sent = match self.protocol.plan.common.number {
            // With a fixed number of requests, `sent` has the requests that are over without an
            // expected answer.
            Some(_) => self.protocol.over,
            None => self.protocol.planned.saturating_sub(self.protocol.over),
        };
        lane.sent.store(sent, Ordering::Relaxed);
        lane.done.store(self.protocol.tally.done, Ordering::Relaxed);
    }

    /// Records the negotiated TLS of a connection whose handshake has ended.
    pub(super) fn on_secured(&mut self, id: ConnId, info: &TlsInfo) {
        let index = self.index(id);
        self.conns[index].tcp = info.connected;
        self.setup.negotiated.add(info);
    }

    pub(super) fn on_connected(&mut self, id: ConnId) -> Next {
        let (index, now) = (self.index(id), self.clock.now());
        let conn = &mut self.conns[index];
        conn.step = HttpPhase::Open;
        let is_measured = self.started.is_some_and(|timeline| timeline.counts(now));
        let (dialled, is_first) = (conn.since, std::mem::take(&mut conn.is_first));
        if self.protocol.plan.keep_alive || is_measured {
            let tcp = std::mem::take(&mut conn.tcp);
            self.add_steps(dialled, tcp, now);
        }
        if is_first {
            self.dialler.settle();
        }
        self.set_ready(1);
        Next::Fill(index)
    }

    #[inline]
    pub(super) fn on_received(&mut self, id: ConnId, bytes: &mut [u8]) -> Next {
        let (index, now) = (self.index(id), self.clock.now());
        let Self { conns, errors, started, protocol, .. } = self;
        let Http { plan, stamps, ring, reader, tally, schedule, over, .. } = protocol;
        let conn = &mut conns[index];
        let Some(timeline) = started else { return self.on_unasked(index) };
        tally.bytes_in += if timeline.counts(now) { bytes.len() as u64 } else { 0 };
        let stamps = &stamps[index * (*ring + 1)..][..*ring + 1];
        let ClientConn { reading, done, sent, since, .. } = conn;
        let dialled = (!plan.keep_alive).then_some(*since);
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
            tally.on_answer(errors, answered, timeline, schedule.is_some());
            *done += 1;
            *over += 1;
        });
        *over -= tally.done - before;
        conn.has_answered |= conn.done > first;
        if read.is_err() || is_unasked {
            conn.has_failed = true;
            errors.malformed += 1;
            errors.note(|| match read {
                Err(error) => format!("connection {index}: the answer is not HTTP: {error}"),
                Ok(()) => format!("connection {index}: an answer came that was not asked for"),
            });
            return Next::Abort(id);
        }
        if !is_last && (plan.keep_alive || conn.under_way() > 0) {
            return Next::Fill(index);
        }
        if conn.step == HttpPhase::Open {
            (conn.step, conn.since) = (HttpPhase::Ending, now);
        }
        // If the server has announced the close, it gets time for it; otherwise we close.
        if says_close { Next::Wait } else { Next::Close(id) }
    }

    /// Handles bytes that arrived before any request.
    #[cold]
    fn on_unasked(&mut self, index: usize) -> Next {
        let what = format!("the server spoke on connection {index} before it was asked");
        self.shared.fail(self.lost(what));
        Next::Wait
    }

    #[cold]
    pub(super) fn on_sent(&mut self, id: ConnId, mut batch: Box<Batch>) -> Next {
        let index = self.index(id);
        self.conns[index].is_sending = false;
        batch.clear();
        self.protocol.spare = Some(batch);
        Next::Fill(index)
    }

    /// Handles the end of the server's stream. `was_cut`: the stream was truncated; `failure`: the
    /// reason if the TLS session failed.
    pub(super) fn on_finished(
        &mut self,
        id: ConnId,
        was_cut: bool,
        failure: Option<SessionFailure>,
    ) -> Result<Next, Error> {
        let (index, now) = (self.index(id), self.clock.now());
        let Some(timeline) = &self.started else {
            let what = "the server closed a connection before it was used";
            return Err(self.lost(format!("{what}{}", because(failure))));
        };
        let (errors, protocol) = (&mut self.errors, &mut self.protocol);
        let Http { plan, stamps, ring, tally, schedule, over, .. } = protocol;
        // Many servers end their streams without close_notify, which only matters within an answer.
        let cut = failure.or(was_cut.then_some(SessionFailure::Truncated));
        let conn = &mut self.conns[index];
        match conn.reading.end_of_stream(was_cut) {
            Ok(Some(HttpAnswer { status, .. })) if conn.under_way() > 0 => {
                let stamps = &stamps[index * (*ring + 1)..][..*ring + 1];
                let from = asked(schedule.as_ref(), stamps, index, conn.done);
                let dialled = (!plan.keep_alive).then_some(conn.since);
                let (answered, before) = (Answered { status, now, from, dialled }, tally.done);
                tally.on_answer(errors, answered, timeline, schedule.is_some());
                conn.done += 1;
                *over += 1 - (tally.done - before);
                (conn.step, conn.has_answered) = (HttpPhase::Ending, true);
            }
            Ok(_) => {}
            Err(error) => {
                conn.has_failed = true;
                errors.cut_short += 1;
                errors.tls_failures.count(cut);
                errors.note(|| format!("connection {index}: {error}{}", because(cut)));
            }
        }
        let has_more = conn.under_way() > 0;
        if conn.step == HttpPhase::Open && has_more && !conn.has_answered && !conn.has_failed {
            conn.has_failed = true;
            errors.unanswered += 1;
            errors.tls_failures.count(cut);
            errors.note(|| {
                let why = because(cut);
                format!("connection {index}: the server closed it without an answer{why}")
            });
        }
        if conn.step == HttpPhase::Open && !conn.has_failed && failure.is_some() {
            self.on_reset(index, HttpPhase::Open, failure);
        }
        let conn = &self.conns[index];
        if !conn.has_failed && (self.protocol.plan.keep_alive || conn.step == HttpPhase::Open) {
            self.protocol.tally.ended_by_server += 1;
        }
        Ok(Next::Close(id))
    }

    /// Handles a closed connection: decides about its requests, and whether it is made again.
    pub(super) fn on_closed(&mut self, id: ConnId, why: Closed) -> Result<(), Error> {
        let (index, now) = (self.index(id), self.clock.now());
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
            Closed::Reset if self.started.is_none() => {
                let what = "the server reset a connection before it was used";
                return Err(self.lost(what.to_owned()));
            }
            Closed::Reset => self.on_reset(index, step, None),
        }
        self.settle(index, now);
        Ok(())
    }

    #[cold]
    fn on_refused(&mut self, index: usize, step: HttpPhase, why: Closed) -> Result<(), Error> {
        // If no request was ever answered, the server is not running or the address is wrong.
        if self.protocol.tally.done == 0 || self.started.is_none() {
            return Err(self.explain_refusal(why));
        }
        self.conns[index].has_failed = true;
        self.errors.connects_failed += 1;
        if step != HttpPhase::Connecting {
            self.errors.tls_failures.count(why.session_failure());
        }
        self.errors.note(|| match why {
            Closed::Insecure(why) => format!("connection {index} was refused: {why}"),
            _ => format!("connection {index} was refused"),
        });
        Ok(())
    }

    /// Handles a connection that was reset, or whose TLS session failed. A server may reset an idle
    /// connection; a failed session is always an error.
    fn on_reset(&mut self, index: usize, step: HttpPhase, failure: Option<SessionFailure>) {
        let conn = &mut self.conns[index];
        let is_between = conn.reading.is_between();
        // If a server closes while our next request is in flight, it resets the connection; this
        // counts as an orderly end.
        let is_idle = conn.under_way() == 0 || conn.has_answered;
        if step == HttpPhase::Ending || is_between && is_idle && failure.is_none() {
            self.protocol.tally.ended_by_server += u64::from(self.protocol.plan.keep_alive);
            return;
        }
        conn.has_failed = true;
        self.errors.resets += 1;
        self.errors.tls_failures.count(failure);
        let what = match (is_between, conn.under_way()) {
            (true, 0) => "between two answers",
            (true, _) => "instead of an answer",
            (false, _) => "in the middle of an answer",
        };
        self.errors.note(|| {
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
        let error = self.no_connection(reason);
        if self.protocol.tally.done == 0 {
            return Err(error);
        }
        self.errors.connects_failed += 1;
        self.errors.note(|| error.to_string());
        self.conns[index].has_failed = true;
        self.settle(index, now);
        Ok(())
    }

    /// Decides about the requests of a closed connection, and when it is dialled again.
    ///
    /// If the server ended the connection between two requests, its requests are sent again, as RFC
    /// 9112 section 9.3.1 allows. Failed requests are over, so that an open loop continues with the
    /// next one.
    fn settle(&mut self, index: usize, now: Instant) {
        let lost = self.conns[index].under_way();
        if lost > 0 && self.conns[index].has_failed {
            self.forgo(index, lost, now);
        } else {
            self.protocol.tally.resent += lost;
        }
        let conn = &mut self.conns[index];
        conn.sent = conn.done;
        if !self.protocol.plan.keep_alive && conn.due == conn.sent {
            return;
        }
        conn.step = HttpPhase::Queued;
        if conn.has_failed || !conn.has_answered {
            self.protocol.later.push_back((now.after(PAUSE), index as u32));
        } else {
            self.protocol.again.push_back(index as u32);
        }
    }

    /// Counts requests of the schedule without an answer as a wait from their planned time until
    /// now. Omitting them would make a server that stops answering look fast.
    fn forgo(&mut self, index: usize, requests: u64, now: Instant) {
        let conn = &mut self.conns[index];
        if let (Some(timeline), Some(schedule)) = (&self.started, &self.protocol.schedule) {
            for request in conn.done..conn.done + requests {
                let planned = schedule.planned_for(index, request);
                if timeline.counts(planned) {
                    self.protocol.tally.unanswered += 1;
                    self.protocol.tally.latency.add(now.since(planned).as_nanos() as u64);
                }
            }
            self.protocol.over += requests;
            conn.done += requests;
        } else if self.protocol.plan.common.number.is_some() {
            self.protocol.over += requests;
            conn.done += requests;
        } else {
            // A closed loop sends the request again.
            conn.sent = conn.done;
        }
    }

    /// Ends the run: requests still without an answer are over.
    pub(super) fn give_up(&mut self) {
        let now = self.clock.now();
        if let (Some(timeline), Some(schedule)) = (self.started, self.protocol.schedule.clone()) {
            while self.next_due(&timeline, &schedule, now).is_some() {}
            for index in 0..self.conns.len() {
                let left = self.conns[index].due - self.conns[index].done;
                self.forgo(index, left, now);
            }
        }
    }
}

/// Returns the cause of an end as the end of a sentence.
fn because(failure: Option<SessionFailure>) -> String {
    failure.map_or(String::new(), |why| format!(": {why}"))
}

/// Returns when a request was made: its planned time, or without a schedule its send time from the
/// connection's ring in `stamps`.
#[inline]
fn asked(schedule: Option<&Schedule>, stamps: &[Instant], index: usize, request: u64) -> Instant {
    match schedule {
        Some(schedule) => schedule.planned_for(index, request),
        // The ring's length is a power of two.
        None => stamps[request as usize & (stamps.len() - 1)],
    }
}
