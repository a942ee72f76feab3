//! Counts of handshakes, and of failed sessions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use throng_io::{SessionFailure, TlsFailure};

use crate::alert::Alert;

/// The causes by which failures are counted.
const CAUSES: usize = TlsFailure::LABELS.len();

/// The handshakes of a server, counted by all its shards.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    full: AtomicU64,
    resumed: AtomicU64,
    failed: [AtomicU64; CAUSES],
    sessions_failed: [AtomicU64; SESSION_CAUSES],
    issued: AtomicU64,
    orders_failed: AtomicU64,
}

impl Counters {
    pub(crate) fn count_success(&self, is_resumed: bool) {
        let counter = if is_resumed { &self.resumed } else { &self.full };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn count_failure(&self, why: TlsFailure) {
        self.failed[why.index()].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_session_failure(&self, why: SessionFailure) {
        self.sessions_failed[why.index()].fetch_add(1, Relaxed);
    }

    pub(crate) fn count_order(&self, is_issued: bool) {
        let counter = if is_issued { &self.issued } else { &self.orders_failed };
        counter.fetch_add(1, Relaxed);
    }

    pub(crate) fn read_orders(&self) -> OrderStats {
        OrderStats { issued: self.issued.load(Relaxed), failed: self.orders_failed.load(Relaxed) }
    }

    pub(crate) fn read(&self) -> HandshakeStats {
        HandshakeStats {
            full: self.full.load(Relaxed),
            resumed: self.resumed.load(Relaxed),
            failed: std::array::from_fn(|at| self.failed[at].load(Relaxed)),
        }
    }

    pub(crate) fn read_sessions(&self) -> SessionStats {
        SessionStats { failed: std::array::from_fn(|at| self.sessions_failed[at].load(Relaxed)) }
    }
}

/// Handshakes since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandshakeStats {
    /// Complete handshakes with a key exchange and a certificate.
    pub full: u64,
    /// Complete handshakes that resumed an earlier session.
    pub resumed: u64,
    /// Handshakes that failed, by the causes of [`TlsFailure::LABELS`].
    pub failed: [u64; CAUSES],
}

/// Sessions of clients since the start, after their handshakes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Sessions that failed, by the causes of [`SessionFailure::LABELS`].
    pub failed: [u64; SESSION_CAUSES],
}

/// The number of causes by which failed sessions are counted.
const SESSION_CAUSES: usize = SessionFailure::LABELS.len();

/// Returns the failure for which we send an alert.
pub(crate) fn answered_with(alert: Alert) -> SessionFailure {
    match alert {
        Alert::BAD_RECORD_MAC => SessionFailure::BadRecordMac,
        Alert::RECORD_OVERFLOW => SessionFailure::RecordOverflow,
        Alert::UNEXPECTED_MESSAGE => SessionFailure::UnexpectedMessage,
        Alert::ILLEGAL_PARAMETER => SessionFailure::IllegalParameter,
        Alert::DECODE_ERROR => SessionFailure::DecodeError,
        _ => SessionFailure::Internal,
    }
}

/// Certificates that were ordered from an authority (ACME) since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderStats {
    /// Certificates that the authority issued.
    pub issued: u64,
    /// Attempts that failed.
    pub failed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_failure_has_the_label_of_its_alert() {
        for alert in [
            Alert::BAD_RECORD_MAC,
            Alert::RECORD_OVERFLOW,
            Alert::UNEXPECTED_MESSAGE,
            Alert::ILLEGAL_PARAMETER,
            Alert::DECODE_ERROR,
        ] {
            let label = SessionFailure::LABELS[answered_with(alert).index()];
            assert_eq!(throng_io::alert_name(alert.0), Some(label));
        }
        let internal = answered_with(Alert::INTERNAL_ERROR);
        assert_eq!(SessionFailure::LABELS[internal.index()], "internal");
    }
}
