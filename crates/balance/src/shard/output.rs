//! Output of connections that speak HTTP: one outbox each, one send in flight, and pausing of the
//! source.

use throng_engine::{LINGER_SILENCE, Progress};
use throng_io::{Batch, ConnId, Driver, SendOutcome};

use super::records::{BalanceRecord, HttpSide, Phase, EighthTick};
use super::{ConnAction, BalanceParts};

/// The size of an outbox above which its source is not read.
pub(super) const HIGH_WATER: usize = 64 << 10;

impl BalanceParts {
    /// Appends to the outbox of `http`.
    pub(super) fn write<R>(
        &mut self,
        http: &mut HttpSide,
        write: impl FnOnce(&mut Vec<u8>) -> R,
    ) -> R {
        let out = http.out.get_or_insert_with(|| self.spares.take());
        out.append(write)
    }

    /// Sends the outbox of `id`; when all is sent, resumes its source.
    pub(super) fn flush<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let (http, source) = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) => {
                let upstream = client.exchange.as_ref().and_then(|exchange| exchange.upstream);
                (&mut client.http, upstream)
            }
            Some(BalanceRecord::Upstream(upstream)) if upstream.is_connected => {
                let source = upstream.client;
                (&mut upstream.http, source)
            }
            _ => return,
        };
        if http.sending {
            return self.hold_back(driver, id, source);
        }
        if let Some(out) = http.out.take_if(|out| !out.is_empty()) {
            match driver.send(id, out) {
                SendOutcome::Done(batch) => self.spares.give(batch),
                SendOutcome::Pending => {
                    http.sending = true;
                    self.hold_back(driver, id, source);
                    return self.record_progress(id);
                }
            }
        }
        self.record_progress(id);
        if let Some(source) = source {
            self.resume(driver, source);
        }
        let Some(client) = self.records.client(id) else { return };
        let is_far_ahead = client.held.len() > HIGH_WATER;
        if matches!(client.phase, Phase::Head | Phase::Leaving)
            && client.http.paused
            && !is_far_ahead
        {
            client.http.paused = false;
            driver.resume(id);
        }
        if client.phase == Phase::Head && !client.held.is_empty() {
            self.actions.push_back(ConnAction::Proceed(id));
        }
        if client.phase == Phase::Leaving {
            client.phase = Phase::Lingering;
            // With TLS a client still answers our close_notify, and after a close that would be met
            // by a reset, which may destroy what it has not read.
            let sends_no_more = client.http.finished || client.has_sent_last && !client.is_secure;
            let due = self.time.after(LINGER_SILENCE);
            self.records.set_deadline(id, due);
            self.note_idle(id);
            if sends_no_more {
                self.actions.push_back(ConnAction::Close(id));
            } else {
                driver.finish(id);
            }
        }
    }

    /// Pauses the source of the outbox of `id`: its `source`, or a client that sends requests and
    /// reads no answers.
    fn hold_back<D: Driver>(&mut self, driver: &mut D, id: ConnId, source: Option<ConnId>) {
        let is_between = self.records.client(id).is_some_and(|client| client.phase == Phase::Head);
        if let Some(waits) = source.or(is_between.then_some(id)) {
            self.pause(driver, waits);
        }
    }

    /// Extends the deadline of a peer that takes bytes.
    fn record_progress(&mut self, id: ConnId) {
        let timeouts = &self.configuration.settings.timeouts;
        let body = self.time.after(timeouts.body);
        let keep_alive = self.time.after(timeouts.keep_alive);
        let mut is_idle = false;
        let due = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) if client.phase == Phase::Head => {
                is_idle = client.http.is_clear();
                if is_idle { keep_alive } else { body }
            }
            Some(BalanceRecord::Client(client)) if client.phase == Phase::Exchange => {
                let is_done = client.exchange.as_ref().is_some_and(|exchange| exchange.is_complete);
                match (is_done, client.http.is_clear()) {
                    (_, false) => body,
                    (true, true) => EighthTick::NEVER,
                    // Only its body counts as progress of a request.
                    (false, true) => return,
                }
            }
            Some(BalanceRecord::Upstream(upstream)) if upstream.client.is_some() => {
                self.time.after(upstream.answer_timeout(timeouts))
            }
            _ => return,
        };
        self.records.set_deadline(id, due);
        if is_idle {
            self.note_idle(id);
        }
    }

    pub(super) fn pause<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let http = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) => &mut client.http,
            Some(BalanceRecord::Upstream(upstream)) => &mut upstream.http,
            _ => return,
        };
        if !http.paused {
            http.paused = true;
            driver.pause(id);
        }
    }

    pub(super) fn resume<D: Driver>(&mut self, driver: &mut D, id: ConnId) {
        let body = self.time.after(self.configuration.settings.timeouts.body);
        let (http, is_due) = match self.records.entry(id) {
            Some(BalanceRecord::Client(client)) if client.http.paused => {
                let is_due = client.exchange.as_ref().is_some_and(|exchange| !exchange.is_complete);
                if !is_due && client.held.len() > HIGH_WATER {
                    // It waits for the answer: each request that completes must not allow another
                    // read.
                    return;
                }
                // Held-back bytes come before new ones.
                if !client.held.is_empty() && is_due {
                    self.actions.push_back(ConnAction::Proceed(id));
                }
                (&mut client.http, is_due)
            }
            Some(BalanceRecord::Upstream(upstream)) if upstream.http.paused => {
                upstream.progress = Progress::default();
                (&mut upstream.http, true)
            }
            _ => return,
        };
        http.paused = false;
        if is_due {
            self.records.set_deadline(id, body);
        }
        driver.resume(id);
    }

    /// Takes the rest of an outbox, for a connection that becomes a tunnel.
    pub(super) fn take_outbox(http: &mut HttpSide) -> Option<Box<Batch>> {
        http.out.take_if(|out| !out.is_empty())
    }
}
