//! TLS: the tables `[tls]` and `[backend_tls]`.

use std::time::Duration;
use throng_io::PeerAddress;

use super::site_tls::OfSites;
use throng_acme::{AcmeSettings, Challenge};
use throng_config::listen::listen_addresses;
use throng_config::{AcmeValues, Draft, Record, TlsValues};
use throng_http::{HttpsPolicy, PlainHttp, strict_transport_security};
use throng_tls::{
    CertificateFiles, ClientAuth, ClientSettings, SuitePreference, TlsConfig, Trust, Version,
};

/// TLS of clients: `[tls]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSide {
    /// Addresses of clients with TLS: `listen`, besides the addresses without. Default: all
    /// addresses of [`Config::listen`](super::Config::listen), so that none is without TLS. A
    /// change needs a restart.
    pub listen: Vec<PeerAddress>,
    /// The certificates and versions: `cert` and `key`, each a file or a list of them, and
    /// `min_version`. Certificates of clients: `client_ca`, the authorities,
    /// `client_crl`, the lists of revoked certificates, and `client_auth`, `"required"` (the
    /// default with `client_ca`), `"optional"` or `"none"`. Keys of session tickets that several
    /// balancers share: `ticket_keys`.
    pub server: TlsConfig,
    /// A certificate that an authority issues and renews, with the feature `acme`: the table
    /// `[tls.acme]`. Default: none. A change needs a restart.
    pub acme: Option<AcmeSettings>,
    /// The answer to HTTP without TLS at these addresses: `plain`, `"refuse"` (the default),
    /// `"redirect"` or `"serve"`.
    pub plain: PlainHttp,
    /// The time for which browsers use TLS only: `hsts`, and whether it also applies to subdomains:
    /// `hsts_subdomains`. Default: Strict-Transport-Security is not sent.
    pub hsts: Option<(Duration, bool)>,
    /// Handshakes that may begin in a second, in all shards together; 0, the default: no limit. A
    /// change needs a restart.
    pub handshakes_per_second: u32,
}

impl ClientSide {
    /// Returns the configuration of a balancer without a table `[tls]` whose backends have
    /// connections passed through to them: everything else is served as without TLS.
    pub(super) fn without_certificate() -> Self {
        Self {
            listen: Vec::new(),
            server: TlsConfig::new(Vec::new()),
            acme: None,
            plain: PlainHttp::Serve,
            hsts: None,
            handshakes_per_second: 0,
        }
    }

    /// Returns whether the balancer has a certificate, so that it terminates TLS itself.
    pub(super) fn has_certificate(&self) -> bool {
        !self.server.certificates.is_empty() || self.acme.is_some()
    }

    /// Returns the rules of HTTP at these addresses.
    pub(crate) fn policy(&self) -> HttpsPolicy {
        HttpsPolicy {
            plain: self.plain,
            hsts: self.hsts.map(|(age, subdomains)| strict_transport_security(age, subdomains)),
            is_host_bound: self.server.client_auth.is_some(),
        }
    }
}

/// TLS to backends: `[backend_tls]`. If the table is there, connections to all backends are
/// secured, except to those with `tls = false`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSide {
    /// The authorities: `ca`, a file, or the system's authorities; none with `verify = false`. The
    /// balancer's own certificate: `cert` and `key`.
    pub settings: ClientSettings,
    /// The name that the certificates of backends have: `name`. Default: each backend's own name,
    /// otherwise its address.
    pub name: Option<String>,
}

/// Reads `[tls]`; `None` if there is no such table. If connections are passed through, no
/// certificate is needed.
pub(super) fn client_side(
    draft: &Draft,
    passes_through: bool,
    of_sites: OfSites,
) -> Option<ClientSide> {
    if !draft.values().has_section("tls") {
        return None;
    }
    let has_other = passes_through || of_sites.passes_through || of_sites.has_certificate;
    let values = TlsValues::from_draft(draft);
    let acme = values.acme.map(|mut values| {
        let is_new = |name: &String| !values.domains.contains(name);
        let more: Vec<_> = of_sites.domains.into_iter().filter(is_new).collect();
        values.domains.extend(more);
        acme(draft, values)
    });
    if values.certificates.is_empty() && acme.is_none() && !has_other {
        draft.wrong("tls", "it has no certificate: write cert and key, or [tls.acme]");
        return None;
    }
    let pairs = values.certificates.into_iter();
    let certificates = pairs.map(|(chain, key)| CertificateFiles { chain, key }).collect();
    let client_auth = values.clients.map(|clients| ClientAuth {
        authorities: clients.authorities,
        revoked: clients.revoked,
        is_required: clients.is_required,
    });
    let server = TlsConfig {
        min_version: if values.is_1_3_only { Version::Tls13 } else { Version::Tls12 },
        preference: match values.prefers_aes128 {
            true => SuitePreference::Aes128,
            false => SuitePreference::Client,
        },
        client_auth,
        ticket_keys: values.ticket_keys,
        ..TlsConfig::new(certificates)
    };
    Some(ClientSide {
        listen: listen_addresses(draft, "tls.listen"),
        server,
        acme,
        plain: draft.parse("tls.plain").unwrap_or_default(),
        hsts: values.hsts,
        handshakes_per_second: values.handshakes_per_second,
    })
}

/// Converts `[tls.acme]`.
fn acme(draft: &Draft, values: AcmeValues) -> AcmeSettings {
    if cfg!(not(feature = "acme")) {
        let remedy = "this program was built without ACME: build it with its feature acme";
        draft.wrong("tls.acme.domains", remedy);
    }
    let settings = AcmeSettings {
        domains: values.domains,
        email: values.email,
        directory: values.directory,
        ca: values.ca,
        challenge: if values.is_http_01 { Challenge::Http01 } else { Challenge::TlsAlpn01 },
        dir: values.dir,
        agree_tos: values.agree_tos,
    };
    if let Err(error) = settings.check() {
        draft.wrong(&format!("tls.acme.{}", error.setting), error.remedy);
    }
    settings
}

/// Reads the table `section` of TLS to backends; `None` if there is no such table.
pub(super) fn backend_side(record: &Record<'_>, section: &str) -> Option<BackendSide> {
    if !record.has_section(section) {
        return None;
    }
    let key = |name: &str| format!("{section}.{name}");
    let trust = match (record.get(&key("verify")), record.path(&key("ca"))) {
        (true, None) => Trust::System,
        (true, Some(file)) => Trust::File(file),
        (false, None) => Trust::Anyone,
        (false, Some(_)) => {
            let remedy = "it accepts any certificate: drop it, or drop ca";
            record.wrong_field(&key("verify"), remedy);
            Trust::System
        }
    };
    let certificate = match (record.path(&key("cert")), record.path(&key("key"))) {
        (None, None) => None,
        (Some(chain), Some(key)) => Some(CertificateFiles { chain, key }),
        _ => {
            record.wrong_field(section, "a client certificate needs both: write cert and key");
            None
        }
    };
    let settings =
        ClientSettings { trust, certificate, resumes: true, ..ClientSettings::default() };
    Some(BackendSide { settings, name: record.get(&key("name")) })
}
