//! Warnings about certificates that expire.

use std::time::{Duration, Instant, SystemTime};

use crate::log::{Log, events};

/// Time before a certificate's expiry from which on there are warnings.
const SOON: Duration = Duration::from_secs(14 * 24 * 3600);

/// Time between two warnings.
const AGAIN: Duration = Duration::from_secs(24 * 3600);

/// Warns once a day of certificates that have expired, or will soon.
#[derive(Default)]
pub(crate) struct ExpiryWatch {
    warned: Option<Instant>,
}

impl ExpiryWatch {
    /// Checks certificates: their names, and their expiry in seconds since 1970.
    pub(crate) fn look(
        &mut self,
        log: &Log,
        certificates: impl IntoIterator<Item = (String, i64)>,
    ) {
        if self.warned.is_some_and(|warned| warned.elapsed() < AGAIN) {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for (name, expires) in certificates {
            if let Some(warning) = warning(&name, expires, now.as_secs() as i64) {
                log.event(&events::CERTIFICATE_EXPIRES, warning, []);
                self.warned = Some(Instant::now());
            }
        }
    }

    /// Warns of new certificates immediately.
    pub(crate) fn reset(&mut self) {
        self.warned = None;
    }
}

fn warning(name: &str, expires: i64, now: i64) -> Option<String> {
    let left = expires - now;
    if left >= SOON.as_secs() as i64 {
        return None;
    }
    let what = match left {
        ..0 => "has expired, and clients refuse it".to_owned(),
        _ => format!("expires in {} days", left / (24 * 3600)),
    };
    Some(format!("the certificate of {name} {what}; renew its files, they are read again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_warned_of_before_they_expire_and_after() {
        let day = 24 * 3600;
        assert_eq!(warning("a.example", 100 * day, 86 * day), None);
        let text = warning("a.example", 100 * day, 96 * day).unwrap();
        assert!(text.contains("a.example expires in 4 days"), "{text}");
        let text = warning("a.example", 100 * day, 101 * day).unwrap();
        assert!(text.contains("a.example has expired"), "{text}");
    }
}
