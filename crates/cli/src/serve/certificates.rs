//! The certificates of `throng serve` while it runs.

use throng::Running;

#[cfg(feature = "tls")]
use crate::{expiry::ExpiryWatch, say};

/// Reads renewed certificates again, and warns of those that expire.
#[derive(Default)]
pub(super) struct Certificates {
    #[cfg(feature = "tls")]
    expiry: ExpiryWatch,
}

impl Certificates {
    /// Looks at the certificates and their files. To be called once a second.
    #[cfg(feature = "tls")]
    pub(super) fn look(&mut self, running: &Running) {
        self.expiry.look(running.certificates());
        match running.reload_tls_if_changed() {
            Ok(true) => {
                self.expiry.reset();
                say::line("tls: the renewed certificate serves new connections");
            }
            Ok(false) => {}
            Err(error) => say::trouble(format_args!("{error}; the old certificate stays in use")),
        }
    }

    /// Does nothing: a build without TLS has no certificates.
    #[cfg(not(feature = "tls"))]
    pub(super) fn look(&mut self, _running: &Running) {}
}
