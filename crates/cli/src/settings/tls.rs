//! TLS: the settings `tls.*`.

use throng::{Tls, TlsVersion};

use super::Settings;

impl Settings {
    /// The settings `tls.*` as the library takes them; `None`: no TLS.
    pub(super) fn tls(&self) -> Result<Option<Tls>, String> {
        let min_version = self.parse("tls.min_version", |text| match text {
            "1.2" => Ok(TlsVersion::Tls12),
            "1.3" => Ok(TlsVersion::Tls13),
            _ => Err("write 1.2 or 1.3; older versions are not secure".to_owned()),
        })?;
        let [chains, keys] = ["tls.cert", "tls.key"].map(|key| {
            let files = self.values[key].0.split(',').map(str::trim);
            files.filter(|file| !file.is_empty()).collect::<Vec<_>>()
        });
        if chains.len() != keys.len() {
            return Err(format!(
                "tls.cert names {} files and tls.key {}; each certificate needs its private key, \
                 in the same order, for example --tls-cert a.pem,b.pem --tls-key a.key,b.key",
                chains.len(),
                keys.len()
            ));
        }
        let mut pairs = chains.into_iter().zip(keys);
        let Some((chain, key)) = pairs.next() else { return Ok(None) };
        let tls = Tls::from_files(chain, key).min_version(min_version);
        Ok(Some(pairs.fold(tls, |tls, (chain, key)| tls.certificate(chain, key))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[&str]) -> Result<Option<Tls>, String> {
        let mut settings = Settings::new();
        for pair in pairs {
            settings.set_pair(pair)?;
        }
        settings.checked().map(|checked| checked.tls)
    }

    #[test]
    fn there_is_no_tls_unless_it_is_asked_for() {
        assert!(with(&[]).unwrap().is_none());
        assert!(with(&["tls.cert= ", "tls.key=,"]).unwrap().is_none());
    }

    #[test]
    fn each_certificate_has_its_key_and_mistakes_name_the_remedy() {
        assert!(with(&["tls.cert=a.pem, b.pem", "tls.key=a.key,b.key"]).unwrap().is_some());
        for (pairs, words) in [
            (&["tls.cert=a.pem"][..], &["tls.cert", "tls.key 0", "needs its private key"][..]),
            (&["tls.key=a.key"], &["tls.cert names 0", "needs its private key"]),
            (&["tls.cert=a.pem,b.pem", "tls.key=a.key"], &["same order"]),
            (&["tls.min_version=1.1"], &["tls.min_version", "1.1", "1.2 or 1.3"]),
        ] {
            let error = with(pairs).unwrap_err();
            for word in words {
                assert!(error.contains(word), "{error}: no {word}");
            }
        }
    }
}
