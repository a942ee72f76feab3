//! Counts of handshakes and of sessions that fail.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use throng_io::TlsFailure;

use crate::alert::Alert;

/// The causes that failures are counted by.
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

    #[cfg(feature = "acme")]
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
    /// Complete ones with a key exchange and a certificate.
    pub full: u64,
    /// Complete ones that resumed an earlier session.
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

/// The causes that failures of sessions are counted by.
const SESSION_CAUSES: usize = SessionFailure::LABELS.len();

/// The reason why a session failed after its handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionFailure {
    /// The client ended its stream without close_notify, and before we ended ours. What it sent
    /// may be incomplete; many clients just end so.
    Truncated,
    /// The client ended the session with a fatal alert.
    PeerAlert,
    /// A record could not be opened: it was changed on its way, or is of another session.
    BadRecordMac,
    /// A record was longer than allowed.
    RecordOverflow,
    /// A record or a message came that the protocol forbids at this time, or too many that carry
    /// no data.
    UnexpectedMessage,
    /// A field of a message was out of range.
    IllegalParameter,
    /// A record or a message could not be decoded.
    DecodeError,
    /// An error of our own, or keys that have protected as much as they may.
    Internal,
}

impl SessionFailure {
    /// The label of each cause in metrics; [`SessionFailure::index`] is the place in it.
    pub const LABELS: [&str; 8] = [
        "truncated",
        "peer_alert",
        "bad_record_mac",
        "record_overflow",
        "unexpected_message",
        "illegal_parameter",
        "decode_error",
        "internal",
    ];

    /// Returns the place in [`SessionFailure::LABELS`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the failure that we answer with an alert.
    pub(crate) fn answered_with(alert: Alert) -> Self {
        match alert {
            Alert::BAD_RECORD_MAC => Self::BadRecordMac,
            Alert::RECORD_OVERFLOW => Self::RecordOverflow,
            Alert::UNEXPECTED_MESSAGE => Self::UnexpectedMessage,
            Alert::ILLEGAL_PARAMETER => Self::IllegalParameter,
            Alert::DECODE_ERROR => Self::DecodeError,
            _ => Self::Internal,
        }
    }
}

/// Certificates that were ordered from an authority (ACME) since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderStats {
    /// Certificates that it issued.
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
            let label = SessionFailure::LABELS[SessionFailure::answered_with(alert).index()];
            assert_eq!(throng_io::alert_name(alert.0), Some(label));
        }
        let internal = SessionFailure::answered_with(Alert::INTERNAL_ERROR);
        assert_eq!(SessionFailure::LABELS[internal.index()], "internal");
    }
}
