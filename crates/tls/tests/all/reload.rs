//! Certificates that may not replace those in use, the order of chains, and the lines in errors.

use std::path::Path;

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair,
    date_time_ymd,
};
use throng_tls::config::{CertificateFiles, TlsConfig};
use throng_tls::{ClientConfigs, ClientSettings, Trust};

use crate::config::{files, identity, later, load, write};
use crate::support::temporary;

/// Writes a certificate of `names` for these years, and its key.
fn of_years(dir: &Path, name: &str, names: &[&str], (from, to): (i32, i32)) -> CertificateFiles {
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(to, 1, 1);
    CertificateFiles {
        chain: write(dir, &format!("{name}.pem"), &params.self_signed(&key).unwrap().pem()),
        key: write(dir, &format!("{name}.key"), &key.serialize_pem()),
    }
}

fn copy(from: &CertificateFiles, to: &CertificateFiles) {
    std::fs::copy(&from.chain, &to.chain).unwrap();
    std::fs::copy(&from.key, &to.key).unwrap();
}

const EXPIRED: (i32, i32) = (2000, 2001);
const TO_COME: (i32, i32) = (3000, 3001);

#[test]
fn a_certificate_in_use_is_not_replaced_by_one_that_is_not_valid() {
    let dir = temporary("bad-for-good");
    let pair = files(&dir, "it", &["localhost"]);
    let server = load(vec![pair.clone()]).unwrap();
    let presented = || crate::support::presented(&server, Some("localhost"));
    let good = presented();
    let expired = of_years(&dir, "expired", &["localhost"], EXPIRED);
    let to_come = of_years(&dir, "to_come", &["localhost"], TO_COME);
    for (at, (bad, why)) in [(&expired, "expired on Jan"), (&to_come, "is not valid before Jan")]
        .into_iter()
        .enumerate()
    {
        copy(bad, &pair);
        later(&pair.chain, 1 + at as u64);
        let error = server.reload().unwrap_err().to_string();
        for word in [why, "it.pem: line 1: ", "the one in use, which is valid, stays"] {
            assert!(error.contains(word), "{error}: no {word}");
        }
        later(&pair.chain, 10 + at as u64);
        assert!(!server.reload_if_changed().unwrap());
        assert_eq!(server.reload_if_changed().unwrap_err().to_string(), error);
        // The same certificate under the name of another file.
        let config = TlsConfig::new(vec![bad.clone()]);
        assert!(server.prepare(&config).is_err());
        assert_eq!(presented(), good);
    }

    // A certificate with another name, beside the good one, replaces nothing.
    let beside = of_years(&dir, "beside", &["other.example"], EXPIRED);
    files(&dir, "it", &["localhost"]);
    let config = TlsConfig::new(vec![pair.clone(), beside]);
    server.install(server.prepare(&config).unwrap());
    assert_ne!(presented(), good);
}

#[test]
fn a_certificate_that_is_not_valid_is_replaced_by_any() {
    let dir = temporary("bad-for-bad");
    let pair = of_years(&dir, "it", &["localhost"], EXPIRED);
    let server = load(vec![pair.clone()]).unwrap();
    let expired = of_years(&dir, "expired", &["localhost"], EXPIRED);
    copy(&expired, &pair);
    server.reload().unwrap();
    let der = crate::support::first_der(&std::fs::read(&expired.chain).unwrap());
    assert_eq!(crate::support::presented(&server, Some("localhost")), der);
}

/// Returns a root, an authority below it, and a server's certificate from that.
fn chain() -> ([Certificate; 3], KeyPair) {
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        params
    };
    let new_key = || KeyPair::generate().unwrap();
    let root = CertifiedIssuer::self_signed(authority("root"), new_key()).unwrap();
    let below = CertifiedIssuer::signed_by(authority("below"), new_key(), &root).unwrap();
    let key = new_key();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let own = params.signed_by(&key, &below).unwrap();
    let certificate = |issuer: &CertifiedIssuer<'_, KeyPair>| -> Certificate {
        AsRef::<Certificate>::as_ref(issuer).clone()
    };
    ([own, certificate(&below), certificate(&root)], key)
}

#[test]
fn rfc8446_4_4_2_each_certificate_of_a_chain_is_that_of_the_issuer_before_it() {
    let dir = temporary("order");
    let (chain, key) = chain();
    let key = write(&dir, "it.key", &key.serialize_pem());
    let texts = chain.map(|certificate| certificate.pem());
    let pair = |places: &[usize]| {
        let text: String = places.iter().map(|place| texts[*place].as_str()).collect();
        CertificateFiles { chain: write(&dir, "it.pem", &text), key: key.clone() }
    };
    // Also valid: a superfluous certificate, and an authority with two certificates.
    for right in [&[0][..], &[0, 1], &[0, 1, 2], &[0, 1, 0], &[0, 1, 1, 2]] {
        load(vec![pair(right)]).unwrap();
    }
    let server = load(vec![pair(&[0, 1])]).unwrap();
    let lines = texts.each_ref().map(|text| text.lines().count());
    for (wrong, line, words) in [
        (&[0, 2][..], 1 + lines[0], ["certificate, CN=root,", "whose issuer is CN=below;"]),
        (&[0, 2, 1], 1 + lines[0], ["certificate, CN=root,", "whose issuer is CN=below;"]),
        (&[0, 1, 0, 2], 1 + lines[0] + lines[1], ["did not issue", "whose issuer is CN=root;"]),
    ] {
        let files = pair(wrong);
        let errors = [
            load(vec![files.clone()]).unwrap_err(),
            server.reload().unwrap_err().to_string(),
            server.prepare(&TlsConfig::new(vec![files])).err().unwrap().to_string(),
        ];
        for error in errors {
            for word in [format!("it.pem: line {line}: ").as_str()].into_iter().chain(words) {
                assert!(error.contains(word), "{error}: no {word}");
            }
        }
    }
    // The server's own certificate is not the first.
    assert!(load(vec![pair(&[1, 0])]).unwrap_err().contains("is not the key of the first"));
}

#[test]
fn an_error_in_pem_names_the_line_at_which_its_block_begins() {
    let dir = temporary("lines");
    let good = identity(&["localhost"]);
    let text = good.cert.pem();
    let lines = text.lines().count();
    let key = write(&dir, "it.key", &good.signing_key.serialize_pem());
    let broken = "-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n";
    let no_certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (text, line) in [
        (format!("{text}{broken}"), 1 + lines),
        (format!("a comment\n\n{text}a comment\n{broken}{text}"), 4 + lines),
        (format!("{text}{}", text.replace("-----END CERTIFICATE-----", "")), 1 + lines),
        (format!("{text}-----BEGIN CERTIFICATE--\n"), 1 + lines),
        (format!("{text}\n{no_certificate}"), 2 + lines),
        (broken.to_owned(), 1),
    ] {
        let chain = write(&dir, "it.pem", &text);
        let error = load(vec![CertificateFiles { chain, key: key.clone() }]).unwrap_err();
        assert!(error.contains(&format!("it.pem: line {line}: ")), "{error}: not line {line}");
    }
}

#[test]
fn the_certificate_of_a_client_fits_its_key_and_both_are_read_again() {
    let dir = temporary("client");
    let (own, other) = (files(&dir, "own", &["one"]), files(&dir, "other", &["two"]));
    let settings = |certificate: CertificateFiles| ClientSettings {
        trust: Trust::File(own.chain.clone()),
        certificate: Some(certificate),
        ..ClientSettings::default()
    };
    let wrong = CertificateFiles { chain: own.chain.clone(), key: other.key.clone() };
    let error = ClientConfigs::load(settings(wrong)).err().unwrap().to_string();
    assert!(error.contains("other.key: this is not the key of the first"), "{error}");
    assert!(error.contains("own.pem"), "{error}");

    let configs = ClientConfigs::load(settings(own.clone())).unwrap();
    assert!(!configs.reload_if_changed().unwrap());
    std::fs::copy(&other.key, &own.key).unwrap();
    later(&own.key, 1);
    assert!(!configs.reload_if_changed().unwrap(), "it may be half of a renewal");
    let error = configs.reload_if_changed().unwrap_err().to_string();
    assert!(error.contains("own.key") && error.contains("own.pem"), "{error}");
    assert!(!configs.reload_if_changed().unwrap(), "it is said once");
    std::fs::copy(&other.chain, &own.chain).unwrap();
    later(&own.chain, 1);
    assert!(configs.reload_if_changed().unwrap());
}
