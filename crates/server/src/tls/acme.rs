//! The settings of certificates that an authority issues.

use std::path::PathBuf;

use throng_acme::{AcmeSettings, Challenge};
use throng_engine::SettingError;

use crate::error::{Error, Result};

/// A certificate that an authority issues and renews, without certificate files of your own: ACME
/// (RFC 8555). For [`Tls::acme`](super::Tls::acme).
///
/// The server asks Let's Encrypt, or the authority of [`directory`](Self::directory), for one
/// certificate with all domains. It renews it at the time that the authority suggests (RFC 9773),
/// otherwise after two thirds of its lifetime. A separate thread does that; open connections stay.
/// Until there is a certificate, clients that use TLS are refused with an alert. A failed attempt
/// is reported as
/// [`ServerEvent::CertificateFailed`](crate::server::ServerEvent::CertificateFailed), and repeated
/// after a minute, and then after twice the time up to six hours.
///
/// ```no_run
/// use throng::prelude::*;
/// use throng::tls::{Acme, Tls};
///
/// # fn main() -> throng::Result<()> {
/// let acme = Acme::new("/var/lib/chat/acme")
///     .domain("example.org")
///     .domain("www.example.org")
///     .email("admin@example.org")
///     .agree_tos(true);
/// Server::new(App::new()).tls(Tls::acme(acme)).bind("0.0.0.0:443")?.run()
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Acme {
    pub(super) settings: AcmeSettings,
}

/// The way in which an authority validates that a domain leads to this server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcmeChallenge {
    /// By a TLS handshake: the authority connects to port 443 of the domain (RFC 8737). The
    /// default.
    #[default]
    TlsAlpn01,
    /// By a request without TLS: the authority connects to port 80 of the domain (RFC 8555 section
    /// 8.3). The server must also listen there; all other requests are answered there as
    /// [`Tls::plain`](super::Tls::plain) sets.
    Http01,
}

impl Acme {
    /// Creates the settings. The folder keeps the account's key and the certificate over restarts,
    /// readable by its owner alone; it is created if it does not exist. Each authority has its own
    /// subfolder.
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { settings: AcmeSettings::new(dir.into()) }
    }

    /// Adds a domain of the certificate, at most 100; a wildcard cannot be validated.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.settings.domains.push(domain.into());
        self
    }

    /// Sets the address for mail of the authority, sent when the account is created. Default: none.
    pub fn email(mut self, email: impl Into<String>) -> Self {
        self.settings.email = Some(email.into());
        self
    }

    /// Sets the URL of the authority's directory. Default: the directory of Let's Encrypt.
    pub fn directory(mut self, url: impl Into<String>) -> Self {
        self.settings.directory = url.into();
        self
    }

    /// Trusts the authorities in this file (PEM) to certify the directory's server. Default: the
    /// authorities that the system trusts.
    pub fn ca(mut self, authorities: impl Into<PathBuf>) -> Self {
        self.settings.ca = Some(authorities.into());
        self
    }

    /// Sets how the authority validates the domains. Default [`AcmeChallenge::TlsAlpn01`].
    pub fn challenge(mut self, challenge: AcmeChallenge) -> Self {
        self.settings.challenge = match challenge {
            AcmeChallenge::TlsAlpn01 => Challenge::TlsAlpn01,
            AcmeChallenge::Http01 => Challenge::Http01,
        };
        self
    }

    /// Agrees to the authority's terms of service, without which it issues nothing; the terms of
    /// Let's Encrypt are at <https://letsencrypt.org/repository/>. Default: false, which makes
    /// [`Server::bind`](crate::Server::bind) fail.
    pub fn agree_tos(mut self, agrees: bool) -> Self {
        self.settings.agree_tos = agrees;
        self
    }

    /// Checks the settings, as [`Server::bind`](crate::Server::bind) does.
    ///
    /// # Errors
    /// Names the first invalid setting, such as `tls.acme.domains`.
    pub fn check(&self) -> Result<()> {
        self.settings.check().map_err(|error| {
            Error::Setting(SettingError::new(format!("tls.acme.{}", error.setting), error.remedy))
        })
    }
}
