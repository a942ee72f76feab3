//! Counts of the errors in a run, each kind declared once.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::merge::Merge;
use crate::session_failures::SessionFailures;
use crate::units::grouped;

/// The kinds of runs that report a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Messages,
    Requests,
    Any,
}

/// A kind of failure: the runs that report it, its key, its count, and its label.
type Kind = (Runs, &'static str, u64, &'static str);

macro_rules! failures {
    ($($(#[$doc:meta])* $field:ident: $runs:ident, $label:literal;)*) => {
        /// Counts of failures, by kind. Any failure makes the verdict "not valid". Reports of HTTP
        /// requests have other kinds than reports of WebSocket messages.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Errors {
            $($(#[$doc])* pub $field: u64,)*
            /// Connections whose TLS session failed, by cause. They are also counted in the other
            /// kinds.
            pub tls_failures: SessionFailures,
            /// A description of the first error.
            pub first: Option<String>,
            is_of_requests: bool,
        }

        impl Errors {
            fn all(&self) -> [Kind; [$($label),*].len()] {
                [$((Runs::$runs, stringify!($field), self.$field, $label)),*]
            }

            /// Adds the counts of another thread.
            pub fn merge(&mut self, other: Self) {
                $(self.$field += other.$field;)*
                self.tls_failures.merge(other.tls_failures);
                self.first = self.first.take().or(other.first);
                self.is_of_requests |= other.is_of_requests;
            }
        }
    };
}

failures! {
    /// Answers of the wrong length, kind or content, or out of order.
    wrong_answers: Messages, "wrong answers";
    /// Expected messages of a script, or answers to a fixed number of messages, that did not arrive
    /// in time.
    missing_answers: Messages, "missing answers";
    /// Connections that ended while they were needed.
    connections_lost: Messages, "connections lost";
    /// Answers within the measured time that had an unexpected status.
    unexpected_status: Requests, "unexpected statuses";
    /// Answers that were not HTTP, or that came without a request.
    malformed: Requests, "malformed answers";
    /// Connections closed in the middle of an answer.
    cut_short: Requests, "answers cut short";
    /// Connections closed before any answer.
    unanswered: Requests, "connections closed without an answer";
    /// Connections reset while an answer was awaited, or whose TLS session failed.
    resets: Requests, "connections reset";
    /// Connections on which nothing arrived in time.
    timeouts: Requests, "timeouts";
    /// Connections that failed before they were open, with one request per connection or in connect
    /// mode. In other modes such a failure ends the run.
    connects_failed: Any, "connects failed";
    /// Messages that could not be queued because the backlog was full.
    sends_refused: Messages, "sends refused (backlog full)";
    /// Publishes that did not reach all subscribers in time.
    publishes_incomplete: Messages, "publishes incomplete";
}

impl Errors {
    /// Creates zero counts for a run of HTTP requests.
    pub(crate) fn of_requests() -> Self {
        Self { is_of_requests: true, ..Self::default() }
    }

    /// Returns the kinds that this run reports.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let runs = if self.is_of_requests { Runs::Requests } else { Runs::Messages };
        self.all().into_iter().filter(move |kind| kind.0 == runs || kind.0 == Runs::Any)
    }

    /// Returns the sum of all errors.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.all().iter().map(|(_, _, count, _)| count).sum()
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

    /// Returns the errors as lines with labels: counts above 0, failures caused by TLS, and the
    /// first error.
    #[must_use]
    pub fn remarks(&self) -> Vec<(&'static str, String)> {
        let seen = self.kinds().filter(|(_, _, count, _)| *count > 0);
        let seen: Vec<String> =
            seen.map(|(_, _, count, what)| format!("{} {what}", grouped(count))).collect();
        if seen.is_empty() {
            return Vec::new();
        }
        let first = self.first.as_ref().map(|first| format!("first: {first}"));
        let more = [self.tls_failures.words(), first].into_iter().flatten();
        std::iter::once(("errors", seen.join(", "))).chain(more.map(|more| ("", more))).collect()
    }
}

impl Merge for Errors {
    fn merge(&mut self, other: Self) {
        Self::merge(self, other);
    }
}

impl Serialize for Errors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (_, key, count, _) in self.kinds() {
            map.serialize_entry(key, &count)?;
        }
        map.serialize_entry("tls_failures", &self.tls_failures)?;
        map.serialize_entry("first", &self.first)?;
        map.end()
    }
}
