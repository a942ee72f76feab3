//! Failures of an HTTP run, by kind.

use serde::Serialize;

use crate::session_failures::SessionFailures;

/// Counts of failures, by kind. Any failure makes the verdict "not valid".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// Answers, within the measured time, with a status that was not expected.
    pub unexpected_status: u64,
    /// Answers that were not HTTP, or that followed no request.
    pub malformed: u64,
    /// Connections closed in the middle of an answer.
    pub cut_short: u64,
    /// Connections closed before any answer.
    pub unanswered: u64,
    /// Connections reset while an answer was awaited, or whose TLS session failed.
    pub resets: u64,
    /// Connections on which nothing came in time.
    pub timeouts: u64,
    /// Connections that could not be made.
    pub connects_failed: u64,
    /// Connections whose TLS session failed, by cause: a part of all these.
    pub tls_failures: SessionFailures,
    /// A description of the first error.
    pub first: Option<String>,
}

impl Errors {
    /// Returns the sum of all errors.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.kinds().iter().map(|(count, _)| count).sum()
    }

    /// Each kind with its label.
    pub(super) fn kinds(&self) -> [(u64, &'static str); 7] {
        [
            (self.unexpected_status, "unexpected statuses"),
            (self.malformed, "malformed answers"),
            (self.cut_short, "answers cut short"),
            (self.unanswered, "connections closed without an answer"),
            (self.resets, "connections reset"),
            (self.timeouts, "timeouts"),
            (self.connects_failed, "connects failed"),
        ]
    }

    /// Keeps the first description.
    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        if self.first.is_none() {
            self.first = Some(what());
        }
    }

    /// Adds the counts of another thread.
    pub(super) fn merge(&mut self, other: Self) {
        self.unexpected_status += other.unexpected_status;
        self.malformed += other.malformed;
        self.cut_short += other.cut_short;
        self.unanswered += other.unanswered;
        self.resets += other.resets;
        self.timeouts += other.timeouts;
        self.connects_failed += other.connects_failed;
        self.tls_failures.merge(other.tls_failures);
        if self.first.is_none() {
            self.first = other.first;
        }
    }
}

#[cfg(test)]
mod tests {
    use throng_io::SessionFailure;

    use super::*;

    #[test]
    fn every_kind_of_error_is_in_the_total_and_in_a_sum() {
        let mut tls_failures = SessionFailures::default();
        tls_failures.count(Some(SessionFailure::BadRecordMac));
        let one = Errors {
            unexpected_status: 1,
            malformed: 2,
            cut_short: 4,
            unanswered: 8,
            resets: 16,
            timeouts: 32,
            connects_failed: 64,
            tls_failures,
            first: Some("first".to_owned()),
        };
        let mut sum = Errors::default();
        sum.merge(one.clone());
        assert_eq!((sum.total(), &sum), (127, &one));
    }
}
