//! The certificate that an authority issues (ACME), and the client of the authority in builds that
//! contain it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use throng_acme::{AcmeSettings, Challenge};
use throng_tls::{ConfigError, Managed, TlsServer};

/// The outcome of an attempt to obtain a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateEvent {
    /// A certificate was issued, and is in use.
    Issued {
        /// Its domains.
        names: Vec<String>,
        /// When it expires.
        expires: SystemTime,
        /// When it will be renewed.
        renewal: SystemTime,
    },
    /// No certificate was issued; the present one stays in use.
    Failed {
        /// The cause.
        reason: String,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// An issued certificate cannot be written. It is in use, and lost with the process.
    Unwritten {
        /// The cause.
        reason: String,
        /// The time until the next attempt.
        retry_in: Duration,
    },
}

/// Maximum events that are kept until they are taken.
#[cfg(feature = "acme")]
const MAX_EVENTS: usize = 64;

/// Events that were not taken yet.
#[derive(Clone, Debug, Default)]
struct Events(Arc<Mutex<VecDeque<CertificateEvent>>>);

impl Events {
    #[cfg(feature = "acme")]
    fn add(&self, event: CertificateEvent) {
        let mut events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() == MAX_EVENTS {
            events.pop_front();
        }
        events.push_back(event);
    }

    fn take(&self) -> Vec<CertificateEvent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

/// The certificate of an authority, if one issues it.
#[derive(Default)]
pub(crate) struct Issuer {
    managed: Option<Managed>,
    is_http_01: bool,
    events: Events,
    #[cfg(feature = "acme")]
    acme: Option<throng_acme::Acme>,
    #[cfg(feature = "acme")]
    client: Mutex<Option<throng_acme::AcmeClient>>,
}

impl Issuer {
    /// Opens the folder of the certificate.
    pub(crate) fn open(settings: Option<&AcmeSettings>) -> Result<Self, ConfigError> {
        let is_http_01 = settings.is_some_and(|settings| settings.challenge == Challenge::Http01);
        #[cfg(feature = "acme")]
        let acme = settings.cloned().map(throng_acme::Acme::open).transpose()?;
        Ok(Self {
            is_http_01,
            #[cfg(feature = "acme")]
            managed: acme.as_ref().map(throng_acme::Acme::managed),
            #[cfg(feature = "acme")]
            acme,
            ..Self::default()
        })
    }

    /// Does the same as [`open`](Self::open), then removes everything that it has created. The
    /// result has the certificate, but no client.
    pub(crate) fn check(settings: Option<&AcmeSettings>) -> Result<Self, ConfigError> {
        #[cfg(feature = "acme")]
        settings.cloned().map_or(Ok(()), throng_acme::Acme::check_start)?;
        let managed = settings.map(|settings| Managed {
            file: settings.certificate_file(),
            domains: settings.domains.clone(),
            challenges: Arc::default(),
            unwritten: Arc::default(),
        });
        Ok(Self { managed, ..Self::default() })
    }

    /// Returns the certificate for the configuration of TLS.
    pub(crate) fn managed(&self) -> Option<Managed> {
        self.managed.clone()
    }

    /// Returns whether the authority connects without TLS.
    pub(crate) fn is_http_01(&self) -> bool {
        self.is_http_01
    }

    /// Returns the events since the last call.
    pub(crate) fn take_events(&self) -> Vec<CertificateEvent> {
        self.events.take()
    }
}

#[cfg(feature = "acme")]
impl Issuer {
    /// Starts the client of the authority, if there is one.
    pub(crate) fn start(&self, server: Option<&Arc<TlsServer>>) -> std::io::Result<()> {
        use throng_acme::AcmeEvent;

        let Some((acme, server)) = self.acme.clone().zip(server) else { return Ok(()) };
        let events = self.events.clone();
        let report = move |event: &AcmeEvent<'_>| match event {
            AcmeEvent::Issued { names, expires, renewal } => {
                let (names, expires, renewal) = (names.to_vec(), *expires, *renewal);
                events.add(CertificateEvent::Issued { names, expires, renewal });
            }
            AcmeEvent::Failed { reason, retry_in } => {
                let (reason, retry_in) = ((*reason).to_owned(), *retry_in);
                events.add(CertificateEvent::Failed { reason, retry_in });
            }
            AcmeEvent::Unwritten { reason, retry_in } => {
                let (reason, retry_in) = ((*reason).to_owned(), *retry_in);
                events.add(CertificateEvent::Unwritten { reason, retry_in });
            }
            _ => {}
        };
        *self.client() = Some(acme.start(Arc::clone(server), report)?);
        Ok(())
    }

    /// Makes the client check the certificate now.
    pub(crate) fn check_now(&self) {
        if let Some(client) = &*self.client() {
            client.check_now();
        }
    }

    /// Ends the client.
    pub(crate) fn end(&self) {
        drop(self.client().take());
    }

    fn client(&self) -> std::sync::MutexGuard<'_, Option<throng_acme::AcmeClient>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(not(feature = "acme"))]
#[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "with the feature they act")]
impl Issuer {
    pub(crate) fn start(&self, _: Option<&Arc<TlsServer>>) -> std::io::Result<()> {
        Ok(())
    }

    pub(crate) fn check_now(&self) {}

    pub(crate) fn end(&self) {}
}
