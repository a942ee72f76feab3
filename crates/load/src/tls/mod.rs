//! TLS of the generator's connections.

#[cfg(feature = "tls")]
mod secured;
#[cfg(all(feature = "tls", target_os = "linux"))]
pub(crate) use secured::below;
#[cfg(feature = "tls")]
pub(crate) use secured::{Sockets, load, sockets};
#[cfg(feature = "tls")]
pub use secured::{TlsClient, TlsStream, is_certificate_required};

#[cfg(not(feature = "tls"))]
mod absent;
#[cfg(not(feature = "tls"))]
pub use absent::TlsClient;
#[cfg(all(not(feature = "tls"), target_os = "linux"))]
pub(crate) use absent::below;
#[cfg(not(feature = "tls"))]
pub(crate) use absent::{Sockets, load, sockets};

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::Error;
use crate::target::Target;

#[cfg(target_os = "linux")]
type Below = throng_io::Epoll;
#[cfg(windows)]
type Below = throng_io::Iocp;
#[cfg(not(any(target_os = "linux", windows)))]
type Below = throng_io::Portable;

/// TLS settings for servers with `wss://` or `https://`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsPlan {
    /// The authorities whose certificates are accepted.
    pub trust: TlsTrust,
    /// The files of a client certificate, and of its private key (PEM). Default: none.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Whether TLS 1.3 is disabled. Default: false.
    pub only_tls12: bool,
    /// Whether clients resume sessions.
    pub resumes: bool,
    /// The requested server name (SNI), which the certificate must contain. Default: the host of
    /// the URL.
    pub name: Option<String>,
}

/// The authorities whose certificates a client accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TlsTrust {
    /// Authorities that the system trusts.
    #[default]
    System,
    /// Authorities in this file (PEM).
    File(PathBuf),
    /// Any certificate is accepted, without a check.
    Anyone,
}

impl TlsPlan {
    /// Reads the files for connections to `target`, if it uses TLS.
    ///
    /// # Errors
    /// [`Error::Usage`] if a file is unusable, the name is not valid, or this build has no TLS.
    pub fn load(&self, target: &Target) -> Result<Option<Arc<TlsClient>>, Error> {
        if target.is_secure() {
            return load(self, target.host()).map(Some).map_err(Error::Usage);
        }
        match *self == Self::default() {
            true => Ok(None),
            false => Err(Error::Usage(
                "settings of TLS need a URL that begins with wss:// or https://".to_owned(),
            )),
        }
    }
}
