//! The keys of a site for its TLS.

use std::time::Duration;

use throng_config::{Draft, Key, Kind, Record};
use throng_tls::{CertificateFiles, ClientAuth, Version};

use crate::site::{SiteConfig, SiteTls};

const FILES: Kind = Kind::List(&Kind::Path);

pub(super) const CERT: Key = Key::new(
    "cert",
    FILES,
    "",
    "its certificate, or several such as an EC and an RSA one, in PEM; clients get the one with \
     the name that they ask for (SNI)",
);
pub(super) const KEY: Key =
    Key::new("key", FILES, "", "private key of each certificate, in the same order");
pub(super) const ACME: Key =
    Key::new("acme", Kind::Switch, "false", "have its hosts certified by tls.acme");
pub(super) const MIN_VERSION: Key = Key::new(
    "min_version",
    Kind::Word(&["1.2", "1.3"]),
    "",
    "lowest TLS version; if not set, tls.min_version",
);
pub(super) const CLIENT_CA: Key = Key::new(
    "client_ca",
    Kind::Path,
    "",
    "authorities that certify its clients; if not set, tls.client_ca",
);
pub(super) const CLIENT_CRL: Key =
    Key::new("client_crl", Kind::Path, "", "lists of revoked certificates of its clients (CRLs)");
pub(super) const CLIENT_AUTH: Key = Key::new(
    "client_auth",
    Kind::Word(&["required", "optional", "none"]),
    "required",
    "whether a client without a certificate is refused; none = also with tls.client_ca, its \
     clients are not asked for one",
);

pub(super) const HSTS: Key =
    Key::new("hsts", Kind::DURATION, "", "as tls.hsts; if not set, that one");
pub(super) const HSTS_SUBDOMAINS: Key =
    Key::new("hsts_subdomains", Kind::Switch, "false", "as tls.hsts_subdomains, for its hsts");
pub(super) const PASSTHROUGH: Key = Key::new(
    "passthrough",
    Kind::Text("the name of a pool such as \"mesh\""),
    "",
    "pool whose backends end the TLS of clients that ask for its hosts (SNI): their connections \
     are passed through",
);

/// Reads the time for which browsers use TLS only, and whether it also counts for subdomains.
pub(super) fn hsts(record: &Record<'_>) -> Option<(Duration, bool)> {
    let max_age: Option<Duration> = record.get("hsts");
    let subdomains = record.get("hsts_subdomains");
    if max_age.is_none() && subdomains {
        record.wrong_field("hsts_subdomains", "it needs hsts, the time for which browsers do so");
    }
    if max_age.is_some_and(|max_age| max_age > Duration::ZERO && max_age.as_secs() == 0) {
        let remedy = "browsers count whole seconds: at least 1s, or 0s to make them forget";
        record.wrong_field("hsts", remedy);
    }
    max_age.map(|max_age| (max_age, subdomains))
}

/// Reads the TLS of a site.
pub(super) fn site_tls(record: &Record<'_>) -> SiteTls {
    let (chains, keys) = (record.paths("cert"), record.paths("key"));
    if chains.len() != keys.len() {
        let field = if chains.len() > keys.len() { "cert" } else { "key" };
        let remedy = format!(
            "each certificate needs its key: there are {} in cert and {} in key",
            chains.len(),
            keys.len()
        );
        record.wrong_field(field, remedy);
    }
    let pairs = chains.into_iter().zip(keys);
    let min_version: Option<String> = record.get("min_version");
    SiteTls {
        certificates: pairs.map(|(chain, key)| CertificateFiles { chain, key }).collect(),
        is_issued: record.get("acme"),
        min_version: min_version.map(|it| match it.as_str() {
            "1.3" => Version::Tls13,
            _ => Version::Tls12,
        }),
        client_auth: client_auth(record),
        passthrough: record.get("passthrough"),
    }
}

fn client_auth(record: &Record<'_>) -> Option<Option<ClientAuth>> {
    let (authorities, revoked) = (record.path("client_ca"), record.path("client_crl"));
    let word: String = record.get("client_auth");
    if word == "none" {
        return Some(None);
    }
    let Some(authorities) = authorities else {
        for (field, is_set) in
            [("client_crl", revoked.is_some()), ("client_auth", record.is_set("client_auth"))]
        {
            if is_set {
                record.wrong_field(field, "it needs client_ca, a file with the authorities");
            }
        }
        return None;
    };
    Some(Some(ClientAuth { authorities, revoked, is_required: word == "required" }))
}

/// The properties of the sites that `[tls]` depends on.
#[derive(Default)]
pub(super) struct OfSites {
    /// A site has connections passed through.
    pub(super) passes_through: bool,
    /// A site has a certificate.
    pub(super) has_certificate: bool,
    /// The hosts that an authority certifies.
    pub(super) domains: Vec<String>,
}

/// Collects it, and reports sites whose TLS cannot be as their keys say.
pub(super) fn of_sites(draft: &Draft, sites: &[SiteConfig]) -> OfSites {
    let mut of_sites = OfSites::default();
    let (has_tls, has_acme) = ["tls", "tls.acme"].map(|it| draft.values().has_section(it)).into();
    for (at, site) in sites.iter().enumerate() {
        let SiteTls { certificates, is_issued, min_version, client_auth, passthrough } = &site.tls;
        of_sites.has_certificate |= !certificates.is_empty();
        of_sites.passes_through |= passthrough.is_some();
        let is_set = !certificates.is_empty()
            || min_version.is_some()
            || client_auth.is_some()
            || site.policy.hsts.is_some();
        if is_set && !has_tls {
            let remedy = "clients have no TLS: add a table [tls], for example with listen = \
                          \"0.0.0.0:443\"";
            draft.wrong(&format!("sites[{at}]"), remedy);
        }
        if !is_issued {
            continue;
        }
        if !has_acme {
            draft.wrong(&format!("sites[{at}].acme"), "there is no authority: add [tls.acme]");
        }
        let is_name = |host: &&String| !host.contains('*');
        of_sites.domains.extend(site.hosts.iter().filter(is_name).cloned());
        if site.hosts.iter().any(|host| host.contains('*')) {
            let remedy = "an authority certifies no pattern without DNS: write its names, or cert \
                          and key";
            draft.wrong(&format!("sites[{at}].acme"), remedy);
        }
    }
    of_sites
}
