//! Converts the settings `tls.acme.*` for the library.

use throng::tls::Tls;
use throng_config::{AcmeValues, Draft};

/// Returns TLS with the certificate of an authority.
#[cfg(feature = "acme")]
pub(super) fn tls(draft: &Draft, values: AcmeValues) -> Option<Tls> {
    use throng::Error;
    use throng::tls::{Acme, AcmeChallenge};

    let AcmeValues { domains, email, directory, ca, is_http_01, dir, agree_tos } = values;
    let acme = Acme::new(dir).directory(directory).agree_tos(agree_tos);
    let acme = domains.into_iter().fold(acme, Acme::domain);
    let acme = email.into_iter().fold(acme, Acme::email);
    let acme = ca.into_iter().fold(acme, Acme::ca);
    let acme = acme.challenge(match is_http_01 {
        true => AcmeChallenge::Http01,
        false => AcmeChallenge::TlsAlpn01,
    });
    if let Err(Error::Setting(error)) = acme.check() {
        draft.wrong(error.setting(), &error);
    }
    Some(Tls::acme(acme))
}

/// Refuses it: this build has no client of an authority.
#[cfg(not(feature = "acme"))]
pub(super) fn tls(draft: &Draft, _: AcmeValues) -> Option<Tls> {
    draft.wrong("tls.acme.domains", crate::NO_ACME);
    None
}
