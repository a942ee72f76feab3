//! The settings of TLS with clients, shared by `serve` and `balance`.

use std::path::PathBuf;
use std::time::Duration;

use crate::draft::Draft;
use crate::key::{Key, Kind};

/// The authorities of clients.
pub const CLIENT_CA: Key = Key::new(
    "tls.client_ca",
    Kind::Path,
    "",
    "authorities that certify clients, in PEM; if set, clients are asked for a certificate",
);

/// The lists of revoked certificates.
pub const CLIENT_CRL: Key = Key::new(
    "tls.client_crl",
    Kind::Path,
    "",
    "lists of revoked certificates of clients (CRLs) of all these authorities, in PEM",
);

/// Whether clients need a certificate.
pub const CLIENT_AUTH: Key = Key::new(
    "tls.client_auth",
    Kind::Word(&["required", "optional", "none"]),
    "required",
    "whether a client without a certificate is refused; none = clients are not asked for one",
);

/// The keys of session tickets.
pub const TICKET_KEYS: Key = Key::new(
    "tls.ticket_keys",
    Kind::Path,
    "",
    "keys of session tickets that several servers share, 80 random bytes each; the first \
     encrypts, all decrypt; if not set, keys of this process",
);

/// The time of Strict-Transport-Security.
pub const HSTS: Key = Key::new(
    "tls.hsts",
    Kind::DURATION,
    "",
    "time for which browsers remember to use TLS only, such as 1y (Strict-Transport-Security); \
     if not set, not sent; 0s = forget it",
);

/// Its directive for subdomains.
pub const HSTS_SUBDOMAINS: Key = Key::new(
    "tls.hsts_subdomains",
    Kind::Switch,
    "false",
    "whether tls.hsts is for all subdomains, too",
);

/// The settings for certificates of clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// The file of the authorities.
    pub authorities: PathBuf,
    /// The file of the lists of revoked certificates.
    pub revoked: Option<PathBuf>,
    /// Whether a client without a certificate is refused.
    pub is_required: bool,
}

/// Reads the settings for certificates of clients; `None` if clients are not asked for one.
#[must_use]
pub fn client_certificates(draft: &Draft) -> Option<ClientCertificates> {
    let (authorities, revoked) = (draft.path(CLIENT_CA.name), draft.path(CLIENT_CRL.name));
    let policy = draft.get::<String>(CLIENT_AUTH.name);
    if authorities.is_none() {
        let needs = |key: &Key, is_set: bool| {
            if is_set {
                draft.wrong(key.name, "it needs tls.client_ca, a file with the authorities");
            }
        };
        needs(&CLIENT_CRL, revoked.is_some());
        needs(&CLIENT_AUTH, policy != "none" && draft.values().is_set(CLIENT_AUTH.name));
    }
    let authorities = authorities.filter(|_| policy != "none")?;
    Some(ClientCertificates { authorities, revoked, is_required: policy == "required" })
}

/// Checks that an authority can validate the domains of `tls.acme`, although clients are asked for
/// certificates.
pub fn check_validation(draft: &Draft, clients: Option<&ClientCertificates>, is_http_01: bool) {
    if !is_http_01 && clients.is_some_and(|clients| clients.is_required) {
        let remedy = "tls.client_auth requires a certificate of every client, and authorities that \
                      validate by tls-alpn-01 have none: write \"http-01\"";
        draft.wrong("tls.acme.challenge", remedy);
    }
}

/// Reads the time of Strict-Transport-Security, and whether it is for subdomains; `None`: it is
/// not sent.
#[must_use]
pub fn hsts(draft: &Draft) -> Option<(Duration, bool)> {
    let max_age = draft.get::<Option<Duration>>(HSTS.name);
    let subdomains = draft.get(HSTS_SUBDOMAINS.name);
    if max_age.is_none() && subdomains {
        draft.wrong(HSTS_SUBDOMAINS.name, "it needs tls.hsts, the time for which browsers do so");
    }
    if max_age.is_some_and(|max_age| max_age > Duration::ZERO && max_age.as_secs() == 0) {
        draft.wrong(
            HSTS.name,
            "browsers count whole seconds: at least 1s, or 0s to make them forget",
        );
    }
    max_age.map(|max_age| (max_age, subdomains))
}
