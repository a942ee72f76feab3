//! TLS of the generator's connections.

use std::sync::Arc;

use throng_io::Options;
use throng_tls::{ClientConfigs, ClientSettings, Tls, TlsClient};

use crate::{Error, Target};

#[cfg(target_os = "linux")]
type Below = throng_io::Epoll;
#[cfg(not(target_os = "linux"))]
type Below = throng_io::Portable;

/// The generator's driver.
pub(crate) type Sockets = Tls<Below>;

/// Creates a driver whose connections have TLS if `tls` is given.
pub(crate) fn sockets(options: Options, tls: Option<&Arc<TlsClient>>) -> std::io::Result<Sockets> {
    let mut driver = Tls::new(Below::new(options)?);
    if let Some(tls) = tls {
        driver.secure_connects(Arc::clone(tls));
    }
    Ok(driver)
}

/// How servers with `wss://` or `https://` are connected to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPlan {
    /// The authorities that are trusted, and more. Default: the system's.
    pub client: ClientSettings,
    /// The name that is asked for (SNI) and that the certificate has to have. Default: the host of
    /// the URL.
    pub name: Option<String>,
}

impl TlsPlan {
    /// Reads what the connections to `target` need, if it has TLS.
    ///
    /// # Errors
    /// [`Error::Usage`]: a file cannot be used, or the name is none.
    pub(crate) fn load(&self, target: &Target) -> Result<Option<Arc<TlsClient>>, Error> {
        if !target.is_secure() {
            return match *self == Self::default() {
                true => Ok(None),
                false => Err(Error::Usage(
                    "settings of TLS need a URL that begins with wss:// or https://".to_owned(),
                )),
            };
        }
        let wrong = |error: throng_tls::ConfigError| Error::Usage(error.to_string());
        let configs = ClientConfigs::load(self.client.clone()).map_err(wrong)?;
        let name = self.name.as_deref().unwrap_or(target.host());
        TlsClient::new(&configs, name).map(Some).map_err(wrong)
    }
}
