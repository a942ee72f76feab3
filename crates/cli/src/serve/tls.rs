//! The settings `tls.*` of `throng serve`.

use throng::tls::{Tls, TlsVersion};
use throng_config::{Draft, TlsValues};

use super::acme;

/// Reads the settings; `None`: no TLS.
pub(super) fn read(draft: &Draft) -> Option<Tls> {
    let values = TlsValues::from_draft(draft);
    let mut pairs = values.certificates.into_iter();
    let of_files = |(chain, key)| Tls::from_files(chain, key);
    let issued = values.acme.and_then(|values| acme::tls(draft, values));
    let Some(mut tls) = issued.or_else(|| pairs.next().map(of_files)) else {
        // A server without TLS must not seem to authenticate its clients.
        for (key, is_set) in [
            ("tls.client_ca", values.clients.is_some()),
            ("tls.ticket_keys", values.ticket_keys.is_some()),
            ("tls.hsts", values.hsts.is_some()),
        ] {
            if is_set {
                draft.wrong(key, "it needs TLS: set tls.cert and tls.key, or tls.acme");
            }
        }
        return None;
    };
    tls = tls
        .min_version(if values.is_1_3_only { TlsVersion::Tls13 } else { TlsVersion::Tls12 })
        .prefer_aes128(values.prefers_aes128)
        .plain(draft.parse("tls.plain").unwrap_or_default())
        .max_handshakes_per_second(values.handshakes_per_second);
    for (chain, key) in pairs {
        tls = tls.certificate(chain, key);
    }
    if let Some(clients) = values.clients {
        tls = tls.client_auth(clients.authorities, clients.is_required);
        if let Some(lists) = clients.revoked {
            tls = tls.client_crl(lists);
        }
    }
    if let Some(file) = values.ticket_keys {
        tls = tls.ticket_keys(file);
    }
    if let Some((max_age, subdomains)) = values.hsts {
        tls = tls.hsts(max_age, subdomains);
    }
    Some(tls)
}
