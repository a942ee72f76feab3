//! Connections of a build with TLS.

use std::io;
use std::sync::Arc;

use throng_io::Options;
use throng_tls::{CertificateFiles, ClientConfigs, ClientSettings, ConfigError, Tls, Trust};
pub use throng_tls::{TlsClient, TlsStream, is_certificate_required};

use super::{Below, TlsPlan, TlsTrust};

/// The generator's driver.
pub(crate) type Sockets = Tls<Below>;

/// Creates a driver whose connections have TLS if `tls` is given.
pub(crate) fn sockets(options: Options, tls: Option<&Arc<TlsClient>>) -> io::Result<Sockets> {
    let mut driver = Tls::new(Below::new(options)?);
    if let Some(tls) = tls {
        driver.secure_connects(Arc::clone(tls));
    }
    Ok(driver)
}

/// Returns the driver below TLS.
#[cfg(target_os = "linux")]
pub(crate) fn below(driver: &mut Sockets) -> &mut Below {
    driver.inner()
}

/// Reads the files of `plan`, for connections to `host`.
pub(crate) fn load(plan: &TlsPlan, host: &str) -> Result<Arc<TlsClient>, String> {
    let wrong = |error: ConfigError| error.to_string();
    let pair = plan.certificate.clone();
    let settings = ClientSettings {
        trust: match plan.trust.clone() {
            TlsTrust::System => Trust::System,
            TlsTrust::File(file) => Trust::File(file),
            TlsTrust::Anyone => Trust::Anyone,
        },
        certificate: pair.map(|(chain, key)| CertificateFiles { chain, key }),
        only_tls12: plan.only_tls12,
        resumes: plan.resumes,
        without_alpn: false,
    };
    let configs = ClientConfigs::load(settings).map_err(wrong)?;
    TlsClient::new(&configs, plan.name.as_deref().unwrap_or(host)).map_err(wrong)
}
