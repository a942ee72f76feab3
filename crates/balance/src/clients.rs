//! The TLS configuration of connections to backends.

use std::net::SocketAddr;
use std::sync::Arc;

use throng_tls::{ClientConfigs, ConfigError, TlsClient};

use crate::config::BackendSide;

/// What connections to backends are secured by.
#[derive(Clone, Debug)]
pub(crate) struct Clients {
    configs: Arc<ClientConfigs>,
    /// If all backends have one name.
    common: Option<Arc<TlsClient>>,
}

impl Clients {
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// A file cannot be used, or the name is none.
    pub(crate) fn load(side: BackendSide) -> Result<Self, ConfigError> {
        let configs = ClientConfigs::load(side.settings)?;
        let common = side.name.map(|name| TlsClient::new(&configs, &name)).transpose()?;
        Ok(Self { configs, common })
    }

    /// Returns the configuration for the backend at `address`.
    pub(crate) fn of(&self, address: SocketAddr) -> Arc<TlsClient> {
        match &self.common {
            Some(common) => Arc::clone(common),
            None => TlsClient::of_address(&self.configs, address.ip()),
        }
    }
}
