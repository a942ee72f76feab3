//! The settings `tls.*` of `throng serve`.

use throng::tls::{Tls, TlsVersion};
use throng_config::{Draft, tls};

use super::acme;

/// Reads the settings; `None`: no TLS.
pub(super) fn read(draft: &Draft) -> Option<Tls> {
    let (chains, keys) = (draft.paths("tls.cert"), draft.paths("tls.key"));
    if chains.len() != keys.len() {
        let key = if chains.len() > keys.len() { "tls.cert" } else { "tls.key" };
        let remedy = format!(
            "tls.cert names {} files and tls.key {}: each certificate needs its private key, in \
             the same order, for example --tls-cert a.pem,b.pem --tls-key a.key,b.key",
            chains.len(),
            keys.len()
        );
        draft.wrong(key, remedy);
    }
    let min_version = match draft.get::<String>("tls.min_version").as_str() {
        "1.3" => TlsVersion::Tls13,
        _ => TlsVersion::Tls12,
    };
    let clients = tls::client_certificates(draft);
    let (ticket_keys, hsts) = (draft.path(tls::TICKET_KEYS.name), tls::hsts(draft));
    let mut pairs = chains.into_iter().zip(keys);
    let of_files = |(chain, key)| Tls::from_files(chain, key);
    let Some(tls) = acme::tls(draft, clients.as_ref()).or_else(|| pairs.next().map(of_files))
    else {
        // A server without TLS must not seem to authenticate its clients.
        for (key, is_set) in [
            (&tls::CLIENT_CA, clients.is_some()),
            (&tls::TICKET_KEYS, ticket_keys.is_some()),
            (&tls::HSTS, hsts.is_some()),
        ] {
            if is_set {
                draft.wrong(key.name, "it needs TLS: set tls.cert and tls.key, or tls.acme");
            }
        }
        return None;
    };
    let mut tls = tls
        .min_version(min_version)
        .prefer_aes128(draft.get::<String>("tls.prefer") == "aes128")
        .plain(draft.parse("tls.plain").unwrap_or_default())
        .max_handshakes_per_second(draft.get("tls.handshakes_per_second"));
    for (chain, key) in pairs {
        tls = tls.certificate(chain, key);
    }
    if let Some(clients) = clients {
        tls = tls.client_auth(clients.authorities, clients.is_required);
        if let Some(lists) = clients.revoked {
            tls = tls.client_crl(lists);
        }
    }
    if let Some(file) = ticket_keys {
        tls = tls.ticket_keys(file);
    }
    if let Some((max_age, subdomains)) = hsts {
        tls = tls.hsts(max_age, subdomains);
    }
    Some(tls)
}
