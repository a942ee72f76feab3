//! Settings that change while a server runs.

use std::sync::{Arc, PoisonError, RwLock};

use throng_engine::Configurator;
use throng_http::Origins;
use throng_proto::http1;

/// Handles to settings that can change.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) configurator: Configurator,
    pub(crate) origins: LiveOrigins,
}

/// The allowed origins. Read once per upgrade.
#[derive(Clone, Debug)]
pub(crate) struct LiveOrigins(Arc<RwLock<Origins>>);

impl LiveOrigins {
    pub(crate) fn new(origins: Origins) -> Self {
        Self(Arc::new(RwLock::new(origins)))
    }

    pub(crate) fn replace(&self, origins: Origins) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = origins;
    }

    pub(crate) fn allow(&self, head: &http1::Request<'_>) -> bool {
        let origins = self.0.read().unwrap_or_else(PoisonError::into_inner);
        origins.allow(head.origins(), head.host())
    }
}
