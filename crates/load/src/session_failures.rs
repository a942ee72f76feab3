//! TLS sessions that failed after their handshake, by cause.

use std::collections::BTreeMap;

use serde::Serialize;
use throng_io::{SessionFailure, alert_name};

use crate::units::grouped;

/// Counts of connections whose TLS session failed, by cause: `TLS alert: certificate_revoked` if
/// the server ended it with an alert; `TLS failure: bad_record_mac` and similar if its records were
/// invalid; `TLS failure: truncated` if its stream ended without close_notify.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct SessionFailures(BTreeMap<String, u64>);

impl SessionFailures {
    /// Counts a connection, if its session failed.
    pub(crate) fn count(&mut self, why: Option<SessionFailure>) {
        if let Some(why) = why {
            *self.0.entry(name(why)).or_default() += 1;
        }
    }

    /// Adds the counts of another thread.
    pub(crate) fn merge(&mut self, other: Self) {
        for (cause, count) in other.0 {
            *self.0.entry(cause).or_default() += count;
        }
    }

    /// Returns the causes as one line, if there are any.
    pub(crate) fn words(&self) -> Option<String> {
        let causes = self.0.iter().map(|(cause, count)| format!("{} {cause}", grouped(*count)));
        let causes: Vec<String> = causes.collect();
        (!causes.is_empty()).then(|| format!("of these {}", causes.join(", ")))
    }
}

/// Returns the name of a cause; for an alert its registered name, or its number.
fn name(why: SessionFailure) -> String {
    match why {
        SessionFailure::PeerAlert(alert) => match alert_name(alert) {
            Some(name) => format!("TLS alert: {name}"),
            None => format!("TLS alert: {alert}"),
        },
        why => format!("TLS failure: {}", SessionFailure::LABELS[why.index()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_counted_by_their_names_over_all_threads() {
        let (mut one, mut other) = (SessionFailures::default(), SessionFailures::default());
        assert_eq!(one.words(), None);
        one.count(Some(SessionFailure::PeerAlert(44)));
        one.count(None);
        for why in [
            SessionFailure::PeerAlert(44),
            SessionFailure::PeerAlert(200),
            SessionFailure::BadRecordMac,
            SessionFailure::Truncated,
        ] {
            other.count(Some(why));
        }
        one.merge(other);
        assert_eq!(
            one.words().unwrap(),
            "of these 1 TLS alert: 200, 2 TLS alert: certificate_revoked, \
             1 TLS failure: bad_record_mac, 1 TLS failure: truncated"
        );
        let json = serde_json::to_value(&one).unwrap();
        assert_eq!(json["TLS alert: certificate_revoked"], 2, "{json}");
    }
}
