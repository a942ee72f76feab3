//! The TLS configuration of connections to backends.

use std::net::Ipv4Addr;
use std::sync::Arc;
use throng_io::PeerAddress;

use throng_tls::{ClientConfigs, ConfigError, TlsClient};

use crate::config::BackendSide;

/// The TLS configurations of connections to backends.
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
    /// A file cannot be used, or the name is not valid.
    pub(crate) fn load(side: BackendSide) -> Result<Self, ConfigError> {
        let configs = ClientConfigs::load(side.settings)?;
        let common = side.name.map(|name| TlsClient::new(&configs, &name)).transpose()?;
        Ok(Self { configs, common })
    }

    /// Reads the files again if they have changed, for later connections. Returns whether they
    /// have.
    ///
    /// # Errors
    /// A file cannot be used; the configuration stays as it is until a file changes again.
    pub(crate) fn reload_if_changed(&self) -> Result<bool, ConfigError> {
        self.configs.reload_if_changed()
    }

    /// Returns the configuration for the backend at `address`. Its certificate has the name `own`,
    /// if that is set; the backend was found by the name `found` with its port, if there is one.
    pub(crate) fn of(
        &self,
        address: PeerAddress,
        own: Option<&str>,
        found: Option<&str>,
    ) -> Arc<TlsClient> {
        // The check of the configuration lets no other names through.
        if let Some(own) = own.and_then(|name| TlsClient::new(&self.configs, name).ok()) {
            return own;
        }
        if let Some(common) = &self.common {
            return Arc::clone(common);
        }
        let (host, ip) = match address {
            PeerAddress::Ip(address) => {
                let host = found.and_then(|name| name.rsplit_once(':')).map(|(host, _)| host);
                (host, address.ip())
            }
            PeerAddress::Unix(_) => (Some("localhost"), Ipv4Addr::LOCALHOST.into()),
        };
        // An error is a name that no certificate can have: then no certificate has the address
        // either.
        host.and_then(|host| TlsClient::new(&self.configs, host.trim_end_matches('.')).ok())
            .unwrap_or_else(|| TlsClient::of_address(&self.configs, ip))
    }
}
