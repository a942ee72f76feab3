//! TLS of clients.

use std::sync::{Arc, OnceLock};

use throng_proto::url::Url;
use throng_tls::{ClientConfigs, ClientSettings, ConfigError, TlsClient};

use crate::error::ClientError;

/// The TLS settings of connections to `wss://` servers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientTls {
    settings: ClientSettings,
    pub(crate) name: Option<String>,
    /// The contents of the configured files, read once.
    configs: OnceLock<Arc<ClientConfigs>>,
}

impl ClientTls {
    /// Returns the configuration for connections to the host of `url`.
    pub(crate) fn client_for(&self, url: &Url) -> Result<Arc<TlsClient>, ClientError> {
        let wrong = |error: ConfigError| ClientError::setting("tls", error.to_string());
        let configs = match self.configs.get() {
            Some(configs) => configs,
            None => {
                let loaded = ClientConfigs::load(self.settings.clone()).map_err(wrong)?;
                self.configs.get_or_init(|| loaded)
            }
        };
        TlsClient::new(configs, self.name.as_deref().unwrap_or(url.host())).map_err(wrong)
    }

    /// Changes the settings; the files will be read again.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut ClientSettings)) {
        change(&mut self.settings);
        self.configs = OnceLock::new();
    }
}
