//! The client of an authority that issues a server's certificate, in builds that have it.

use throng_acme::AcmeSettings;
use throng_tls::{ConfigError, Managed};
#[cfg(feature = "acme")]
use {
    crate::error::{Error, Result},
    crate::events::{Events, ServerEvent},
    std::sync::Arc,
    throng_acme::{Acme, AcmeClient, AcmeEvent},
    throng_tls::TlsServer,
};

/// The authority's client before it is started, if there is an authority.
#[cfg(feature = "acme")]
#[derive(Clone, Debug, Default)]
pub(super) struct Issuer {
    acme: Option<Acme>,
    events: Events,
}

#[cfg(feature = "acme")]
impl Issuer {
    pub(super) fn open(settings: Option<AcmeSettings>) -> std::result::Result<Self, ConfigError> {
        let acme = settings.map(Acme::open).transpose()?;
        Ok(Self { acme, events: Events::default() })
    }

    pub(super) fn check(settings: Option<AcmeSettings>) -> std::result::Result<(), ConfigError> {
        settings.map_or(Ok(()), Acme::check_start)
    }

    pub(super) fn managed(&self) -> Option<Managed> {
        self.acme.as_ref().map(Acme::managed)
    }

    pub(super) fn report_to(&mut self, events: Events) {
        self.events = events;
    }

    pub(super) fn start(&self, server: Option<&Arc<TlsServer>>) -> Result<Option<AcmeClient>> {
        let Some((acme, server)) = self.acme.clone().zip(server) else { return Ok(None) };
        let events = self.events.clone();
        let report = move |event: &AcmeEvent<'_>| match event {
            AcmeEvent::Issued { names, expires, renewal } => {
                let (expires, renewal) = (*expires, *renewal);
                events.report(ServerEvent::CertificateIssued { names, expires, renewal });
            }
            AcmeEvent::Failed { reason, retry_in } => {
                events.report(ServerEvent::CertificateFailed { reason, retry_in: *retry_in });
            }
            AcmeEvent::Unwritten { reason, retry_in } => {
                events.report(ServerEvent::CertificateUnwritten { reason, retry_in: *retry_in });
            }
            _ => {}
        };
        let client = acme.start(Arc::clone(server), report);
        client.map(Some).map_err(Error::Shard)
    }
}

/// No client.
#[cfg(not(feature = "acme"))]
#[derive(Clone, Debug, Default)]
pub(super) struct Issuer(());

#[cfg(not(feature = "acme"))]
impl Issuer {
    #[expect(clippy::unnecessary_wraps, reason = "with the feature it can fail")]
    pub(super) fn open(_: Option<AcmeSettings>) -> Result<Self, ConfigError> {
        Ok(Self(()))
    }

    #[expect(clippy::unnecessary_wraps, reason = "with the feature it can fail")]
    pub(super) fn check(_: Option<AcmeSettings>) -> Result<(), ConfigError> {
        Ok(())
    }

    pub(super) fn report_to(&mut self, _: crate::events::Events) {}

    #[expect(clippy::unused_self, reason = "with the feature it has one")]
    pub(super) fn managed(&self) -> Option<Managed> {
        None
    }
}
