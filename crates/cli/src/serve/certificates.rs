//! The certificates of `throng serve` while it runs.

#[cfg(feature = "tls")]
use std::time::SystemTime;

use throng::server::Running;

use crate::log::Log;
#[cfg(feature = "tls")]
use crate::{expiry::ExpiryWatch, log::events};

/// Reads renewed certificates again, and warns of those that expire.
#[derive(Default)]
pub(super) struct Certificates {
    #[cfg(feature = "tls")]
    expiry: ExpiryWatch,
}

impl Certificates {
    /// Checks the certificates and their files. Call it once a second.
    #[cfg(feature = "tls")]
    pub(super) fn look(&mut self, running: &Running, log: &Log) {
        let expires = |not_after: SystemTime| {
            let since_1970 = not_after.duration_since(SystemTime::UNIX_EPOCH);
            since_1970.map_or(0, |since| since.as_secs().cast_signed())
        };
        let certificates = running.certificates().into_iter();
        self.expiry.look(log, certificates.map(|it| (it.name, expires(it.not_after))));

        match running.reload_tls_if_changed() {
            Ok(true) => {
                self.expiry.reset();
                log.event(&events::CERTIFICATE_RELOADED, "", []);
            }
            Ok(false) => {}
            Err(error) => {
                let reason = error.to_string();
                log.event(&events::CERTIFICATE_FAILED, "", [("reason", reason.into())]);
            }
        }
    }

    /// Does nothing: a build without TLS has no certificates.
    #[cfg(not(feature = "tls"))]
    pub(super) fn look(&mut self, _running: &Running, _log: &Log) {}

    /// Warns of certificates that expire at the next look.
    pub(super) fn reset(&mut self) {
        #[cfg(feature = "tls")]
        self.expiry.reset();
    }
}
