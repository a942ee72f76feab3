//! Counts of the errors in a run.

use serde::Serialize;

use crate::session_failures::SessionFailures;

/// Counts of failures, by kind. Any failure makes the verdict "not valid".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// Answers of the wrong length, kind or content, or out of order.
    pub wrong_answers: u64,
    /// Expected messages of a script, or answers to a fixed number of messages, that did not come
    /// in time.
    pub missing_answers: u64,
    /// Connections that ended while they were needed.
    pub connections_lost: u64,
    /// Connections that failed before they were open (connect mode; in other modes that ends the
    /// run).
    pub connects_failed: u64,
    /// Messages that could not be queued because the backlog was full.
    pub sends_refused: u64,
    /// Publishes that did not reach all subscribers in time.
    pub publishes_incomplete: u64,
    /// Connections whose TLS session failed, by cause: a part of the lost or failed ones.
    pub tls_failures: SessionFailures,
    /// A description of the first error.
    pub first: Option<String>,
}

impl Errors {
    /// Returns the sum of all errors.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.wrong_answers
            + self.missing_answers
            + self.connections_lost
            + self.connects_failed
            + self.sends_refused
            + self.publishes_incomplete
    }

    /// Counts answers that never came.
    pub(crate) fn note_missing(&mut self, count: u64) {
        self.missing_answers += count;
        if count > 0 {
            self.note(|| format!("{count} messages have no answer, and no more answers came"));
        }
    }

    /// Keeps the first description.
    pub fn note(&mut self, what: impl FnOnce() -> String) {
        if self.first.is_none() {
            self.first = Some(what());
        }
    }

    /// Adds the counts of another thread.
    pub fn merge(&mut self, other: Self) {
        self.wrong_answers += other.wrong_answers;
        self.missing_answers += other.missing_answers;
        self.connections_lost += other.connections_lost;
        self.connects_failed += other.connects_failed;
        self.sends_refused += other.sends_refused;
        self.publishes_incomplete += other.publishes_incomplete;
        self.tls_failures.merge(other.tls_failures);
        if self.first.is_none() {
            self.first = other.first;
        }
    }
}
