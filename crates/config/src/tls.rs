//! The settings of TLS with clients, shared by `serve` and `balance`.

use std::path::PathBuf;
use std::time::Duration;

use crate::acme::{self, AcmeValues};
use crate::draft::Draft;
use crate::key::{Key, Kind, joined_keys};

/// The keys of TLS with clients.
#[rustfmt::skip]
pub const KEYS: [Key; 19] = joined_keys(&[
    &[
    Key::new("tls.cert", Kind::List(&Kind::Path), "",
        "certificate for https and wss, in PEM; empty = no TLS")
        .details("followed by those that lead to a root; of several, clients get the one with the \
                  name that they ask for (SNI)")
        .flag("--tls-cert", "FILE"),
    Key::new("tls.key", Kind::List(&Kind::Path), "",
        "private key of each certificate, in PEM and not encrypted, in the same order")
        .flag("--tls-key", "FILE"),
    Key::new("tls.min_version", Kind::Word(&["1.2", "1.3"]), "1.2",
        "lowest TLS version that is accepted: 1.2 or 1.3"),
    Key::new("tls.prefer", Kind::Word(&["client", "aes128"]), "client",
        "cipher suites: client = in the order of the client, aes128 = AES-128 first, whose \
         handshakes take a fifth less time"),
    Key::new("tls.client_ca", Kind::Path, "",
        "authorities that certify clients, in PEM; if set, clients are asked for a certificate"),
    Key::new("tls.client_crl", Kind::Path, "",
        "lists of revoked certificates of clients (CRLs) of all these authorities, in PEM"),
    Key::new("tls.client_auth", Kind::Word(&["required", "optional", "none"]), "required",
        "whether a client without a certificate is refused; none = clients are not asked for one"),
    Key::new("tls.ticket_keys", Kind::Path, "",
        "keys of session tickets that several servers share, 80 random bytes each; the first \
         encrypts, all decrypt; if not set, keys of this process"),
    Key::new("tls.hsts", Kind::DURATION, "",
        "time for which browsers remember to use TLS only, such as 1y \
         (Strict-Transport-Security); if not set, not sent; 0s = forget it"),
    Key::new("tls.hsts_subdomains", Kind::Switch, "false",
        "whether tls.hsts is for all subdomains, too"),
    Key::new("tls.plain", Kind::Word(&["refuse", "redirect", "serve"]), "refuse",
        "answer to HTTP without TLS: refuse = 400, redirect = 308 to https, serve = as without \
         TLS"),
    Key::new("tls.handshakes_per_second", Kind::COUNT, "0",
        "TLS handshakes of clients that may begin in a second; 0 = no limit").at_start(),
    ],
    &acme::KEYS,
]);

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

/// The values of the keys as written, except `tls.plain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsValues {
    /// Each chain with its private key.
    pub certificates: Vec<(PathBuf, PathBuf)>,
    /// The certificate that an authority issues.
    pub acme: Option<AcmeValues>,
    /// Whether TLS 1.2 is refused.
    pub is_1_3_only: bool,
    /// Whether the cipher suites with AES-128 come first.
    pub prefers_aes128: bool,
    /// Certificates of clients; `None` if the server does not ask clients for one.
    pub clients: Option<ClientCertificates>,
    /// The file with the keys of session tickets.
    pub ticket_keys: Option<PathBuf>,
    /// The time of Strict-Transport-Security, and whether it includes subdomains; `None` if the
    /// header is not sent.
    pub hsts: Option<(Duration, bool)>,
    /// Maximum handshakes that begin per second; 0 means no limit.
    pub handshakes_per_second: u32,
}

impl TlsValues {
    /// Reads the keys.
    #[must_use]
    pub fn from_draft(draft: &Draft) -> Self {
        let (chains, keys) = (draft.paths("tls.cert"), draft.paths("tls.key"));
        if chains.len() != keys.len() {
            let key = if chains.len() > keys.len() { "tls.cert" } else { "tls.key" };
            let remedy = format!(
                "tls.cert names {} files and tls.key {}: each certificate needs its private key, \
                 in the same order, for example --tls-cert a.pem,b.pem --tls-key a.key,b.key",
                chains.len(),
                keys.len()
            );
            draft.wrong(key, remedy);
        }
        let (acme, clients) = (AcmeValues::from_draft(draft), client_certificates(draft));
        if acme.as_ref().is_some_and(|acme| !acme.is_http_01)
            && clients.as_ref().is_some_and(|clients| clients.is_required)
        {
            let remedy = "tls.client_auth requires a certificate of every client, and authorities \
                          that validate by tls-alpn-01 have none: write \"http-01\"";
            draft.wrong("tls.acme.challenge", remedy);
        }
        Self {
            certificates: chains.into_iter().zip(keys).collect(),
            acme,
            is_1_3_only: draft.get::<String>("tls.min_version") == "1.3",
            prefers_aes128: draft.get::<String>("tls.prefer") == "aes128",
            clients,
            ticket_keys: draft.path("tls.ticket_keys"),
            hsts: hsts(draft),
            handshakes_per_second: draft.get("tls.handshakes_per_second"),
        }
    }
}

fn client_certificates(draft: &Draft) -> Option<ClientCertificates> {
    let (authorities, revoked) = (draft.path("tls.client_ca"), draft.path("tls.client_crl"));
    let policy = draft.get::<String>("tls.client_auth");
    if authorities.is_none() {
        let has_policy = policy != "none" && draft.values().is_set("tls.client_auth");
        for (key, is_set) in
            [("tls.client_crl", revoked.is_some()), ("tls.client_auth", has_policy)]
        {
            if is_set {
                draft.wrong(key, "it needs tls.client_ca, a file with the authorities");
            }
        }
    }
    let authorities = authorities.filter(|_| policy != "none")?;
    Some(ClientCertificates { authorities, revoked, is_required: policy == "required" })
}

fn hsts(draft: &Draft) -> Option<(Duration, bool)> {
    let max_age = draft.get::<Option<Duration>>("tls.hsts");
    let subdomains = draft.get("tls.hsts_subdomains");
    if max_age.is_none() && subdomains {
        draft.wrong("tls.hsts_subdomains", "it needs tls.hsts, the time for which browsers do so");
    }
    if max_age.is_some_and(|max_age| max_age > Duration::ZERO && max_age.as_secs() == 0) {
        draft.wrong(
            "tls.hsts",
            "browsers count whole seconds: at least 1s, or 0s to make them forget",
        );
    }
    max_age.map(|max_age| (max_age, subdomains))
}
