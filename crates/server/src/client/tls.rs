//! TLS of clients.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use throng_proto::url::Url;
use throng_tls::{CertificateFiles, ClientConfigs, ClientSettings, ConfigError, TlsClient, Trust};

use super::Builder;
use super::error::Error;

/// The TLS of connections to servers with `wss://`.
#[derive(Clone, Debug, Default)]
pub(super) struct ClientTls {
    settings: ClientSettings,
    name: Option<String>,
    /// The files of the settings, read once.
    configs: OnceLock<Arc<ClientConfigs>>,
}

impl ClientTls {
    /// Returns the configuration of connections to the host of `url`.
    pub(super) fn client_for(&self, url: &Url) -> Result<Arc<TlsClient>, Error> {
        let wrong = |error: ConfigError| Error::setting("tls", error.to_string());
        let configs = match self.configs.get() {
            Some(configs) => configs,
            None => {
                let loaded = ClientConfigs::load(self.settings.clone()).map_err(wrong)?;
                self.configs.get_or_init(|| loaded)
            }
        };
        TlsClient::new(configs, self.name.as_deref().unwrap_or(url.host())).map_err(wrong)
    }

    fn change(&mut self, change: impl FnOnce(&mut ClientSettings)) {
        change(&mut self.settings);
        self.configs = OnceLock::new();
    }
}

impl Builder {
    /// Accepts certificates of the authorities in this file (PEM) only. Default: those that the
    /// system trusts.
    pub fn trust_file(mut self, authorities: impl Into<PathBuf>) -> Self {
        self.tls.change(|settings| settings.trust = Trust::File(authorities.into()));
        self
    }

    /// Accepts any certificate, without a check: for tests. An attacker between client and server
    /// can then read and change everything.
    pub fn trust_anyone(mut self) -> Self {
        self.tls.change(|settings| settings.trust = Trust::Anyone);
        self
    }

    /// Sets the name that the server's certificate must have and that is asked for (SNI). Default:
    /// the host of the URL.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.tls.name = Some(name.into());
        self
    }

    /// Sets the certificate chain and the private key (PEM) for servers that ask for one. Default:
    /// none.
    pub fn client_certificate(
        mut self,
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        let files = CertificateFiles { chain: chain.into(), key: key.into() };
        self.tls.change(|settings| settings.certificate = Some(files));
        self
    }
}
