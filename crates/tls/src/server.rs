//! The configuration of a TLS listener.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::ServerConfig;

use crate::handshake::prepare;

/// The configuration that handshakes of a listener begin with. It can be replaced at any time;
/// sessions and handshakes in progress keep theirs.
pub struct TlsServer {
    config: RwLock<Arc<ServerConfig>>,
}

impl TlsServer {
    /// Takes over a configuration of rustls.
    #[must_use]
    pub fn new(config: ServerConfig) -> Arc<Self> {
        Arc::new(Self { config: RwLock::new(prepared(config)) })
    }

    /// Replaces the configuration for handshakes that begin from now on.
    pub fn replace(&self, config: ServerConfig) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = prepared(config);
    }

    /// Returns the configuration of today.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }
}

fn prepared(mut config: ServerConfig) -> Arc<ServerConfig> {
    prepare(&mut config);
    Arc::new(config)
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer")
    }
}
