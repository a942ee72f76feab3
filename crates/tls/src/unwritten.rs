//! An issued certificate whose file cannot be written yet.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::sign::CertifiedKey;

/// A certificate that is served from memory instead of its file, if there is one. The client of the
/// authority sets it, and readers of the files look here first.
#[derive(Default)]
pub struct Unwritten(RwLock<Option<Arc<CertifiedKey>>>);

impl Unwritten {
    pub(crate) fn certificate(&self) -> Option<Arc<CertifiedKey>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the certificate; `None` once its file has it.
    pub fn set(&self, certificate: Option<Arc<CertifiedKey>>) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificate;
    }
}

impl fmt::Debug for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Unwritten")
    }
}
