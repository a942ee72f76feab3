//! The end of a response: what becomes of both connections.

use std::sync::atomic::Ordering::Relaxed;

use throng_engine::HeldInput;
use throng_io::{ConnId, Driver};
use throng_proto::http1::HeaderLines;

use super::records::{BalanceRecord, Phase};
use super::{ConnAction, BalanceParts};
use crate::forward::{self, Framing};

impl BalanceParts {
    /// Ends an answer whose body ends with its connection.
    pub(super) fn end_answer(&mut self, client_id: ConnId) {
        let BalanceRecord::Client(mut client) = self.records.take(client_id) else { return };
        if client.exchange.as_ref().is_some_and(|exchange| exchange.framing == Framing::Chunked) {
            self.write(&mut client.http, |out| {
                forward::write_last_chunk(out, HeaderLines::default());
            });
        }
        self.records.insert(client_id, BalanceRecord::Client(client));
        self.actions.push_back(ConnAction::Complete(client_id));
    }

    /// Completes an exchange: the backend's connection is free, and the client's continues or ends.
    pub(super) fn complete<D: Driver>(&mut self, driver: &mut D, client_id: ConnId) {
        let BalanceRecord::Client(mut client) = self.records.take(client_id) else { return };
        let Some(exchange) = client.exchange.take() else {
            return self.records.insert(client_id, BalanceRecord::Client(client));
        };
        if let Some(count) = &exchange.count {
            let requests = &count.backend().totals().requests;
            requests.fetch_add(1, Relaxed);
        }
        self.record_answer(&exchange);
        let upstream_id = exchange.upstream;
        let keeps = exchange.keep_alive && exchange.is_complete && client.may_ask_again();
        let is_complete = exchange.is_complete;
        client.has_sent_last = exchange.is_last && is_complete && client.held.is_empty();
        drop(exchange);
        if let Some(upstream_id) = upstream_id {
            self.release(driver, upstream_id, is_complete, keeps);
        }
        let timeouts = &self.configuration.settings.timeouts;
        if keeps && self.shutdown.is_none() {
            // The flush continues with it.
            client.phase = Phase::Head;
        } else {
            client.phase = Phase::Leaving;
            client.held = HeldInput::default();
            self.records.set_deadline(client_id, self.time.after(timeouts.body));
            if client.http.paused {
                client.http.paused = false;
                driver.resume(client_id);
            }
        }
        self.records.insert(client_id, BalanceRecord::Client(client));
        self.flush(driver, client_id);
    }

    /// Keeps a backend's connection for the next request, if it can carry one. `keeps`: the client
    /// may send another.
    fn release<D: Driver>(&mut self, driver: &mut D, id: ConnId, is_complete: bool, keeps: bool) {
        let settings = &self.configuration.settings;
        let deadline = self.time.after(settings.timeouts.keep_alive);
        let Some(upstream) = self.records.upstream(id) else { return };
        let is_clean = is_complete
            && upstream.decoder.is_between_responses()
            && upstream.http.is_clear()
            && !upstream.http.finished
            && !upstream.is_last
            && upstream.generation == upstream.backend.generation()
            && (keeps || upstream.owner.is_none());
        let owner = upstream.owner;
        upstream.client = None;
        if upstream.http.paused {
            upstream.http.paused = false;
            driver.resume(id);
        }
        let address = upstream.backend.address();
        let is_up = upstream.backend.state() == crate::State::Up;
        self.records.set_deadline(id, deadline);
        let surplus = match is_clean && is_up && self.shutdown.is_none() {
            true => self.pool.put(address, id, owner, settings.keep_alive),
            false => Some(id),
        };
        if let Some(surplus) = surplus {
            self.close(driver, surplus);
        }
    }
}
