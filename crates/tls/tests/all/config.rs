//! Certificates and keys from files: errors with remedies, names, and reloading.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    CertifiedKey, IsCa, KeyIdMethod, KeyPair, RevokedCertParams, date_time_ymd,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection};
use throng_testkit::eventually;
use throng_tls::chain::MAX_INTERMEDIATES;
use throng_tls::config::{CertificateFiles, ClientAuth, TlsConfig};
use throng_tls::handshake::Secrets;
use throng_tls::{
    ClientConfigs, ClientSettings, SuitePreference, TlsClient, TlsServer, Trust, Version,
    is_certificate_required,
};

use crate::support::temporary;

pub(crate) fn identity(names: &[&str]) -> CertifiedKey<KeyPair> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    rcgen::generate_simple_self_signed(names).unwrap()
}

pub(crate) fn write(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Writes a certificate and its key.
pub(crate) fn files(dir: &Path, name: &str, names: &[&str]) -> CertificateFiles {
    let made = identity(names);
    CertificateFiles {
        chain: write(dir, &format!("{name}.pem"), &made.cert.pem()),
        key: write(dir, &format!("{name}.key"), &made.signing_key.serialize_pem()),
    }
}

pub(crate) fn load(certificates: Vec<CertificateFiles>) -> Result<Arc<TlsServer>, String> {
    let config = TlsConfig::new(certificates);
    TlsServer::load(config).map_err(|error| error.to_string())
}

/// A certificate of version 1, which has no extensions.
const VERSION_1: &str = "\
    MIHAMIGmAgEBMAoGCCqGSM49BAMCMAwxCjAIBgNVBAMMAWEwHhcNMjAwMTAxMDAwMDAwWh\
    cNNDgwMTAxMDAwMDAwWjAMMQowCAYDVQQDDAFhMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcD\
    QgAEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\
    AAAAAAAAAAAAAAAAAAADAKBggqhkjOPQQDAgMJAAAAAAAAAAAA";

/// A list of revoked certificates of version 1, and one of version 2 without extensions.
const LIST_1: &str = "\
    MFEwODAKBggqhkjOPQQDAjAMMQowCAYDVQQDDAFhFw0yMDAxMDEwMDAwMDBaFw00ODAxMD\
    EwMDAwMDBaMAoGCCqGSM49BAMCAwkAAAAAAAAAAAA=";
const BARE_LIST: &str = "\
    MFQwOwIBATAKBggqhkjOPQQDAjAMMQowCAYDVQQDDAFhFw0yMDAxMDEwMDAwMDBaFw00OD\
    AxMDEwMDAwMDBaMAoGCCqGSM49BAMCAwkAAAAAAAAAAAA=";

/// The beginnings of private keys that cannot be used.
const SECP256K1: &str = "MB8CAQAwEAYHKoZIzj0CAQYFK4EEAAoECAAAAAAAAAAA";
const ED448: &str = "MBQCAQAwBQYDK2VxBAgAAAAAAAAAAA==";

fn pem(label: &str, data: &str) -> String {
    format!("-----BEGIN {label}-----\n{data}\n-----END {label}-----\n")
}

#[test]
fn each_mistake_names_the_file_and_the_remedy() {
    let dir = temporary("mistakes");
    let good = files(&dir, "good", &["localhost"]);
    let other = files(&dir, "other", &["localhost"]);
    load(vec![good.clone()]).unwrap();
    let empty = write(&dir, "empty", "");
    let broken = "-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n";
    let broken = write(&dir, "broken", broken);
    let cut = write(&dir, "cut", "-----BEGIN CERTIFICATE-----\nAAAA\n");
    let start = write(&dir, "start", "-----BEGIN CERTIFICATE--\nAAAA\n");
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let locked = write(&dir, "locked", locked);
    let garbage = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let garbage = write(&dir, "garbage", garbage);
    let missing = dir.join("missing");
    let version_1 = write(&dir, "version-1", &pem("CERTIFICATE", VERSION_1));
    let [koblitz, ed448] = [("koblitz", SECP256K1), ("ed448", ED448)]
        .map(|(name, data)| write(&dir, name, &pem("PRIVATE KEY", data)));
    let text = std::fs::read_to_string(&good.chain).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(2);
    let shorter = write(&dir, "shorter", &lines.join("\n"));
    let archive = dir.join("archive");
    std::fs::write(&archive, [0x30, 0x82, 9, 1, 2, 1, 3, 0x30, 0x82, 8, 0xc7]).unwrap();
    for (chain, key, at_fault, words) in [
        (&missing, &good.key, &missing, &["cannot be read", "check the path"][..]),
        (&good.chain, &missing, &missing, &["cannot be read", "check the path"]),
        (&empty, &good.key, &empty, &["no certificate", "BEGIN CERTIFICATE"]),
        (&good.chain, &empty, &empty, &["no private key", "BEGIN PRIVATE KEY"]),
        (&good.key, &good.key, &good.key, &["no certificate", "swapped"]),
        (&good.chain, &good.chain, &good.chain, &["no private key", "swapped"]),
        (&cut, &good.key, &cut, &["line -----END CERTIFICATE----- is missing", "copy the file"]),
        (&start, &good.key, &start, &["\"-----BEGIN CERTIFICATE--\" is incomplete"]),
        (&broken, &good.key, &broken, &["not valid PEM", "copy the file again"]),
        (&good.chain, &locked, &locked, &["encrypted", "openssl pkey"]),
        (&good.chain, &garbage, &garbage, &["private key cannot be used"]),
        (&version_1, &good.key, &version_1, &["line 1", "of version 1", "subjectAltName"]),
        (&shorter, &good.key, &shorter, &["line 1", "is cut off", "copy the file again"]),
        (&good.chain, &koblitz, &koblitz, &["secp256k1", "usable are", "P-256, P-384 or P-521"]),
        (&good.chain, &ed448, &ed448, &["Ed448", "and Ed25519"]),
        (&archive, &good.key, &archive, &["PKCS#12", "-nokeys"]),
        (&good.chain, &archive, &archive, &["PKCS#12", "-nocerts"]),
        (&good.chain, &other.key, &other.key, &["not the key of", "good.pem", "first"]),
    ] {
        let files = CertificateFiles { chain: chain.clone(), key: key.clone() };
        let error = load(vec![files]).unwrap_err();
        assert!(error.starts_with(&at_fault.display().to_string()), "{error}");
        for word in words {
            assert!(error.contains(word), "{error}: no {word}");
        }
    }
    assert!(load(Vec::new()).unwrap_err().contains("needs a certificate"));
}

/// The command in the error for a missing certificate makes a valid one.
#[test]
fn the_remedy_for_a_missing_certificate_is_one() {
    let dir = temporary("recipe");
    let pair = CertificateFiles { chain: dir.join("it.pem"), key: dir.join("it.key") };
    let error = load(vec![pair.clone()]).unwrap_err();
    let (_, command) = error.split_once("for tests: ").unwrap();
    // The command would overwrite a key.
    let key = write(&dir, "a.key", "");
    let chain = dir.join("it.pem");
    assert!(!load(vec![CertificateFiles { chain, key }]).unwrap_err().contains("openssl"));
    let mut words = command.split(' ');
    let output = std::process::Command::new(words.next().unwrap()).args(words).output();
    match output {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(error) if std::env::var_os("CI").is_some() => panic!("{error}"),
        Err(error) => return eprintln!("skipped: openssl: {error}"),
    }
    let server = load(vec![pair]).unwrap();
    assert_eq!(server.certificates()[0].name, "localhost");
}

#[test]
fn the_certificate_is_chosen_by_the_name_that_the_client_asks_for() {
    let dir = temporary("names");
    let server = load(vec![
        files(&dir, "first", &["first.example"]),
        files(&dir, "second", &["second.example", "Mixed.Example"]),
        files(&dir, "wild", &["*.wild.example"]),
    ]);
    let server = server.unwrap();
    for (asked, expected) in [
        (Some("first.example"), "first"),
        (Some("second.example"), "second"),
        (Some("mixed.example"), "second"),
        (Some("a.wild.example"), "wild"),
        // A wildcard is one label, and a domain is not a subdomain of itself.
        (Some("a.b.wild.example"), "first"),
        (Some("wild.example"), "first"),
        (Some("unknown.example"), "first"),
        (None, "first"),
    ] {
        let chain = std::fs::read(dir.join(format!("{expected}.pem"))).unwrap();
        assert_eq!(
            crate::support::presented(&server, asked),
            crate::support::first_der(&chain),
            "{asked:?}"
        );
    }
}

#[test]
fn a_name_may_have_an_rsa_key_beside_an_ec_key() {
    use rustls::crypto::aws_lc_rs::cipher_suite::{
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 as WITH_EC,
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 as WITH_RSA,
    };
    let dir = temporary("rsa");
    let key = KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap();
    let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let rsa = CertificateFiles {
        chain: write(&dir, "rsa.pem", &params.self_signed(&key).unwrap().pem()),
        key: write(&dir, "rsa.key", &key.serialize_pem()),
    };
    let ec = files(&dir, "ec", &["localhost"]);
    let der =
        |files: &CertificateFiles| crate::support::first_der(&std::fs::read(&files.chain).unwrap());
    let presented = |server: &TlsServer, suite| crate::support::presented_for(server, suite);
    // The EC key is preferred in either order: it costs a tenth of the time.
    for both in [vec![rsa.clone(), ec.clone()], vec![ec.clone(), rsa.clone()]] {
        let server = load(both).unwrap();
        assert_eq!(crate::support::presented(&server, Some("localhost")), der(&ec));
        assert_eq!(presented(&server, WITH_EC), Ok(der(&ec)));
        assert_eq!(presented(&server, WITH_RSA), Ok(der(&rsa)));
    }
    let server = load(vec![rsa.clone()]).unwrap();
    assert_eq!(crate::support::presented(&server, Some("localhost")), der(&rsa), "TLS 1.3");
    assert_eq!(presented(&server, WITH_RSA), Ok(der(&rsa)));
    assert!(presented(&server, WITH_EC).is_err());
}

#[test]
fn changed_files_are_read_again_and_a_bad_pair_leaves_all_as_it_is() {
    let dir = temporary("reload");
    let pair = files(&dir, "it", &["localhost"]);
    let server = load(vec![pair.clone()]).unwrap();
    let presented = || crate::support::presented(&server, Some("localhost"));
    let read = || crate::support::first_der(&std::fs::read(&pair.chain).unwrap());
    assert!(!server.reload_if_changed().unwrap());
    let first = presented();
    assert_eq!(first, read());

    // A new certificate without its key: the old one stays, and the mistake is reported once, if it
    // stays.
    std::fs::write(&pair.chain, identity(&["localhost"]).cert.pem()).unwrap();
    later(&pair.chain, 1);
    assert!(!server.reload_if_changed().unwrap());
    assert!(server.reload_if_changed().unwrap_err().to_string().contains("not the key of"));
    assert!(!server.reload_if_changed().unwrap());
    assert_eq!(presented(), first);

    files(&dir, "it", &["localhost"]);
    later(&pair.chain, 2);
    assert!(server.reload_if_changed().unwrap());
    assert_ne!(presented(), first);
    assert_eq!(presented(), read());
}

/// The files of certbot: links in `live/` to numbered files in `archive/`. A renewal removes and
/// recreates each link, one after the other, so that for a moment a link is missing, and then only
/// the key is new.
#[cfg(unix)]
struct Certbot {
    live: PathBuf,
    archive: PathBuf,
}

#[cfg(unix)]
impl Certbot {
    /// In the order of certbot.
    const FILES: [&str; 4] = ["cert", "privkey", "chain", "fullchain"];

    fn new(dir: &Path) -> Self {
        let [live, archive] = ["live", "archive"].map(|name| dir.join(name).join("localhost"));
        for dir in [&live, &archive] {
            std::fs::create_dir_all(dir).unwrap();
        }
        let this = Self { live, archive };
        this.certify(1);
        for file in Self::FILES {
            this.link(file, 1);
        }
        this
    }

    /// Makes the files of a renewal, all with the same time and if possible the same length.
    fn certify(&self, number: u32) {
        let made = identity(&["localhost"]);
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        for file in Self::FILES {
            let text = if file == "privkey" { &key } else { &certificate };
            let path = write(&self.archive, &format!("{file}{number}.pem"), text);
            let file = std::fs::File::options().write(true).open(path).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        }
    }

    fn unlink(&self, file: &str) {
        std::fs::remove_file(self.live.join(format!("{file}.pem"))).unwrap();
    }

    fn link(&self, file: &str, number: u32) {
        let to = format!("../../archive/localhost/{file}{number}.pem");
        std::os::unix::fs::symlink(to, self.live.join(format!("{file}.pem"))).unwrap();
    }

    fn pair(&self) -> CertificateFiles {
        let [chain, key] = ["fullchain.pem", "privkey.pem"].map(|name| self.live.join(name));
        CertificateFiles { chain, key }
    }

    fn certificate(&self, number: u32) -> Vec<u8> {
        let file = self.archive.join(format!("fullchain{number}.pem"));
        crate::support::first_der(&std::fs::read(file).unwrap())
    }
}

#[cfg(unix)]
#[test]
fn a_renewal_by_certbot_is_followed_from_link_to_link() {
    let dir = temporary("certbot");
    let certbot = Certbot::new(&dir);
    let server = load(vec![certbot.pair()]).unwrap();
    let presented = || crate::support::presented(&server, Some("localhost"));
    // A renewal causes no mistake, checked at every moment at which our files change.
    for renewal in 2..5 {
        certbot.certify(renewal);
        for file in Certbot::FILES {
            certbot.unlink(file);
            let is_ours = matches!(file, "privkey" | "fullchain");
            if is_ours {
                assert!(!server.reload_if_changed().unwrap(), "{file}{renewal} is missing");
            }
            assert_eq!(presented(), certbot.certificate(renewal - 1));
            certbot.link(file, renewal);
            if is_ours {
                let is_complete = file == "fullchain";
                assert_eq!(server.reload_if_changed().unwrap(), is_complete, "{file}{renewal}");
            }
        }
        assert_eq!(presented(), certbot.certificate(renewal));
        assert!(!server.reload_if_changed().unwrap());
    }

    // A renewal that stops in the middle is a mistake: it is reported once, and completed later.
    certbot.certify(5);
    certbot.unlink("privkey");
    certbot.link("privkey", 5);
    assert!(!server.reload_if_changed().unwrap());
    let error = server.reload_if_changed().unwrap_err().to_string();
    assert!(error.contains("privkey.pem") && error.contains("not the key of"), "{error}");
    assert!(!server.reload_if_changed().unwrap());
    assert!(server.reload().is_err(), "who asks is answered");
    assert_eq!(presented(), certbot.certificate(4));
    certbot.unlink("fullchain");
    certbot.link("fullchain", 5);
    assert!(server.reload_if_changed().unwrap());
    assert_eq!(presented(), certbot.certificate(5));
}

/// Sets a file's time, since two writes may fall within the resolution of the file system.
pub(crate) fn later(file: &Path, minutes: u64) {
    let time = std::time::SystemTime::now() + std::time::Duration::from_secs(60 * minutes);
    std::fs::File::options().write(true).open(file).unwrap().set_modified(time).unwrap();
}

#[test]
fn the_lowest_version_is_a_setting() {
    let dir = temporary("versions");
    let pair = files(&dir, "it", &["localhost"]);
    for (min_version, accepts_12) in [(Version::Tls12, true), (Version::Tls13, false)] {
        let config = TlsConfig { min_version, ..TlsConfig::new(vec![pair.clone()]) };
        let server = TlsServer::load(config).unwrap();
        assert_eq!(crate::support::accepts_tls12(&server), accepts_12);
    }
}

#[test]
fn the_order_of_the_client_or_aes128_is_preferred() {
    use rustls::CipherSuite as Suite;
    let dir = temporary("suites");
    let pair = files(&dir, "it", &["localhost"]);
    for (preference, suites) in [
        (
            SuitePreference::Client,
            [Suite::TLS13_AES_256_GCM_SHA384, Suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384],
        ),
        (
            SuitePreference::Aes128,
            [Suite::TLS13_AES_128_GCM_SHA256, Suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256],
        ),
    ] {
        let config = TlsConfig { preference, ..TlsConfig::new(vec![pair.clone()]) };
        let server = TlsServer::load(config).unwrap();
        let agreed = [&rustls::version::TLS13, &rustls::version::TLS12];
        assert_eq!(agreed.map(|version| crate::support::agreed_suite(&server, version)), suites);
    }
}

#[test]
fn sessions_are_not_resumed_when_the_authorities_of_clients_have_changed() {
    let dir = temporary("authorities");
    let certificates = vec![files(&dir, "it", &["localhost"])];
    let (removed, kept) = (identity(&["removed"]), identity(&["kept"]));
    let both = [removed.cert.pem(), kept.cert.pem()].concat();
    for is_reload in [true, false] {
        let authorities = write(&dir, "authorities.pem", &both);
        let client_auth = Some(ClientAuth { authorities, revoked: None, is_required: true });
        let config = TlsConfig { client_auth, ..TlsConfig::new(certificates.clone()) };
        let server = TlsServer::load(config.clone()).unwrap();
        let read_again = || match is_reload {
            true => server.reload().unwrap(),
            false => server.install(server.prepare(&config).unwrap()),
        };
        let clients = [&removed, &kept].map(crate::support::with_certificate);
        for client in &clients {
            assert_eq!(crate::support::resumes(&server, client), Ok(false));
            assert_eq!(crate::support::resumes(&server, client), Ok(true));
        }
        read_again();
        for client in &clients {
            assert_eq!(crate::support::resumes(&server, client), Ok(true), "nothing has changed");
        }
        write(&dir, "authorities.pem", &kept.cert.pem());
        read_again();
        assert!(crate::support::resumes(&server, &clients[0]).is_err(), "reload: {is_reload}");
        assert_eq!(crate::support::resumes(&server, &clients[1]), Ok(false));
        assert_eq!(crate::support::resumes(&server, &clients[1]), Ok(true));
    }
}

/// An authority of clients that issues certificates and lists of revoked ones.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn certify(&self, serial: u64) -> CertifiedKey<KeyPair> {
        let mut params = CertificateParams::new(vec!["client".to_owned()]).unwrap();
        params.serial_number = Some(serial.into());
        let signing_key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&signing_key, &self.0).unwrap();
        CertifiedKey { cert, signing_key }
    }

    /// Returns a list with these serial numbers that is valid until `year`.
    fn revoke(&self, serials: &[u64], year: i32) -> String {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: (*serial).into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(year, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        params.signed_by(&self.0).unwrap().pem().unwrap()
    }
}

#[test]
fn revoked_certificates_of_clients_are_refused_as_soon_as_the_list_is_read() {
    let dir = temporary("revoked");
    let certificates = vec![files(&dir, "it", &["localhost"])];
    let authority = Authority::new();
    let clients = [1, 2].map(|serial| crate::support::with_certificate(&authority.certify(serial)));
    let authorities = write(&dir, "authority.pem", &authority.0.pem());
    let list = write(&dir, "list.pem", &authority.revoke(&[], 2100));
    let client_auth =
        Some(ClientAuth { authorities, revoked: Some(list.clone()), is_required: true });
    let config = TlsConfig { client_auth, ..TlsConfig::new(certificates) };
    let server = TlsServer::load(config).unwrap();
    for client in &clients {
        assert_eq!(crate::support::resumes(&server, client), Ok(false));
        assert_eq!(crate::support::resumes(&server, client), Ok(true));
    }
    let renew = |text: &str| {
        write(&dir, "list.pem", text);
        server.reload().map_err(|error| error.to_string())
    };
    renew(&authority.revoke(&[1], 2100)).unwrap();
    let error = crate::support::resumes(&server, &clients[0]).unwrap_err();
    assert!(error.contains("Revoked"), "{error}");
    assert_eq!(
        crate::support::resumes(&server, &clients[1]),
        Ok(false),
        "its session is not resumed"
    );
    assert_eq!(crate::support::resumes(&server, &clients[1]), Ok(true));

    // A list that cannot be used changes nothing.
    let garbage = "-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n";
    for (text, what) in [
        ("", "there is no list of revoked certificates"),
        (authority.0.pem().as_str(), "there is no list of revoked certificates"),
        (garbage, "this list of revoked certificates cannot be used"),
        (pem("X509 CRL", LIST_1).as_str(), "it is of version 1"),
        (pem("X509 CRL", BARE_LIST).as_str(), "it has no number"),
    ] {
        let error = renew(text).unwrap_err();
        assert!(error.starts_with(list.to_str().unwrap()) && error.contains(what), "{error}");
        assert!(crate::support::resumes(&server, &clients[0]).is_err());
        assert_eq!(crate::support::resumes(&server, &clients[1]), Ok(true));
    }

    // An expired list, or a list of another authority, gives no information on any certificate.
    for text in [authority.revoke(&[], 2021), Authority::new().revoke(&[], 2100)] {
        renew(&text).unwrap();
        assert!(crate::support::resumes(&server, &clients[1]).is_err());
    }
}

#[test]
fn a_changed_list_of_revoked_certificates_is_read_again() {
    let dir = temporary("changed-list");
    let certificates = vec![files(&dir, "it", &["localhost"])];
    let authority = Authority::new();
    let client = crate::support::with_certificate(&authority.certify(1));
    let authorities = write(&dir, "authority.pem", &authority.0.pem());
    let revoked = Some(write(&dir, "list.pem", &authority.revoke(&[], 2100)));
    let client_auth = Some(ClientAuth { authorities, revoked, is_required: true });
    let config = TlsConfig { client_auth, ..TlsConfig::new(certificates) };
    let server = TlsServer::load(config).unwrap();
    assert_eq!(server.reload_if_changed().map_err(|error| error.to_string()), Ok(false));
    assert_eq!(crate::support::resumes(&server, &client), Ok(false));
    let changed = write(&dir, "list.pem", &authority.revoke(&[1], 2100));
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(2);
    std::fs::File::options().write(true).open(changed).unwrap().set_modified(later).unwrap();
    assert_eq!(server.reload_if_changed().map_err(|error| error.to_string()), Ok(true));
    assert!(crate::support::resumes(&server, &client).is_err());
}

#[test]
fn long_chains_of_clients_are_refused() {
    let dir = temporary("chains");
    let certificates = vec![files(&dir, "it", &["localhost"])];
    let known = identity(&["known"]);
    let authorities = write(&dir, "authorities.pem", &known.cert.pem());
    let client_auth = Some(ClientAuth { authorities, revoked: None, is_required: false });
    let server =
        TlsServer::load(TlsConfig { client_auth, ..TlsConfig::new(certificates) }).unwrap();
    let others = vec![identity(&["other"]).cert.der().clone(); MAX_INTERMEDIATES + 1];
    let longest = crate::support::with_chain(&known, &others[1..]);
    assert_eq!(crate::support::resumes(&server, &longest), Ok(false));
    let error =
        crate::support::resumes(&server, &crate::support::with_chain(&known, &others)).unwrap_err();
    assert!(error.contains("ChainTooLong(6)"), "{error}");
}

#[test]
fn rfc8446_5_1_a_client_hello_with_other_records_inside_gets_an_alert() {
    let dir = temporary("interleaved");
    let server = load(vec![files(&dir, "it", &["localhost"])]).unwrap();
    let mut handshake = server.handshake().unwrap();
    // The first two bytes of a ClientHello, and application data.
    handshake.receive(&[22, 3, 1, 0, 2, 1, 0, 23, 3, 3, 0, 1, 0]).unwrap();
    let mut out = Vec::new();
    assert!(handshake.advance(&mut Secrets::default(), &mut out).is_err());
    assert_eq!(out, [21, 3, 3, 0, 2, 2, 10], "unexpected_message");
}

#[test]
fn long_chains_of_servers_are_refused() {
    let dir = temporary("server-chains");
    let it = identity(&["localhost"]);
    let trust = Trust::File(write(&dir, "it.pem", &it.cert.pem()));
    let configs = ClientConfigs::load(ClientSettings { trust, ..ClientSettings::default() });
    let client = TlsClient::new(&configs.unwrap(), "localhost").unwrap();
    let other = identity(&["other"]).cert.der().clone();
    for (others, is_accepted) in [(MAX_INTERMEDIATES, true), (MAX_INTERMEDIATES + 1, false)] {
        let chain = [vec![it.cert.der().clone()], vec![other.clone(); others]].concat();
        let key = PrivateKeyDer::try_from(it.signing_key.serialize_der()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = std::thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let mut connection = ServerConnection::new(Arc::new(config)).unwrap();
            let _ = connection.complete_io(&mut socket);
        });
        let outcome = client.handshake_on(socket).map(drop).map_err(|error| error.to_string());
        assert_eq!(outcome.is_ok(), is_accepted, "{outcome:?}");
        server.join().unwrap();
    }
}

/// In TLS 1.3 the demand follows the handshake: the client may write before it reads the alert, and
/// then finds the connection closed.
#[test]
fn a_client_without_a_certificate_learns_that_the_server_requires_one() {
    let dir = temporary("required");
    let authorities = write(&dir, "authority.pem", &Authority::new().0.pem());
    let client_auth = Some(ClientAuth { authorities, revoked: None, is_required: true });
    let certificates = vec![files(&dir, "it", &["localhost"])];
    let server =
        TlsServer::load(TlsConfig { client_auth, ..TlsConfig::new(certificates) }).unwrap();
    for only_tls12 in [false, true] {
        let settings =
            ClientSettings { trust: Trust::Anyone, only_tls12, ..ClientSettings::default() };
        let configs = ClientConfigs::load(settings).unwrap();
        let client = TlsClient::new(&configs, "localhost").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = Arc::clone(&server);
        let refused = std::thread::spawn(move || {
            let mut socket = listener.accept().unwrap().0;
            let mut handshake = server.handshake().unwrap();
            let (mut input, mut out) = ([0; 4096], Vec::new());
            loop {
                let count = socket.read(&mut input).unwrap();
                handshake.receive(&input[..count]).unwrap();
                let done = handshake.advance(&mut Secrets::default(), &mut out);
                socket.write_all(&std::mem::take(&mut out)).unwrap();
                if done.is_err() {
                    return;
                }
            }
        });
        let secured = client.handshake_on(socket);
        refused.join().unwrap();
        let error = match secured {
            Ok(mut stream) => {
                eventually("the connection is closed", || stream.write(b"x").is_err());
                stream.read(&mut [0]).unwrap_err()
            }
            Err(error) => error,
        };
        assert!(is_certificate_required(&error), "{only_tls12}: {error:?}");
    }
}

/// Each reader of PEM returns all blocks of its file, or an error with the line.
#[test]
fn no_file_loses_a_block_in_silence() {
    let dir = temporary("blocks");
    let pair = files(&dir, "it", &["localhost"]);
    let [one, two] = [&["a.example"], &["b.example"]].map(|names| identity(names).cert.pem());
    let glued = write(&dir, "glued", &format!("{}{two}", one.trim_end()));
    let unknown = write(&dir, "unknown", &format!("{one}{}", two.replace("CERT", "TRUSTED CERT")));
    let text = |file: &Path| std::fs::read_to_string(file).unwrap();
    let chain = write(&dir, "chain", &format!("{}{one}", text(&pair.chain).trim_end()));
    let keys = write(&dir, "keys", &(text(&pair.key) + &text(&pair.key)));
    let with_auth = |authorities: &Path, revoked: Option<&Path>| {
        let revoked = revoked.map(Path::to_owned);
        let auth = ClientAuth { authorities: authorities.to_owned(), revoked, is_required: true };
        let config = TlsConfig::new(vec![pair.clone()]);
        let loaded = TlsServer::load(TlsConfig { client_auth: Some(auth), ..config });
        loaded.map(drop).map_err(|error| error.to_string())
    };
    let trusting = |file: &Path| {
        let trust = Trust::File(file.to_owned());
        let loaded = ClientConfigs::load(ClientSettings { trust, ..ClientSettings::default() });
        loaded.map(drop).map_err(|error| error.to_string())
    };
    let served = |chain: &Path, key: &Path| {
        load(vec![CertificateFiles { chain: chain.into(), key: key.into() }]).map(drop)
    };
    let both = write(&dir, "both", &(text(&pair.chain) + &text(&pair.key)));
    served(&both, &both).unwrap();
    for (error, words) in [
        (with_auth(&glued, None), "put a line break before -----BEGIN"),
        (with_auth(&unknown, None), "TRUSTED CERTIFICATE is not read from a file of authorities"),
        (with_auth(&pair.chain, Some(&glued)), "put a line break before -----BEGIN"),
        (trusting(&glued), "put a line break before -----BEGIN"),
        (trusting(&both), "a private key is not needed here"),
        (served(&chain, &pair.key), "put a line break before -----BEGIN"),
        (served(&pair.chain, &keys), "a second private key"),
    ] {
        let error = error.unwrap_err();
        assert!(error.contains(words) && error.contains(": line "), "{error}: no {words}");
    }
    let marked = write(&dir, "marked", &format!("\u{feff}{one}\u{feff}{two}"));
    with_auth(&marked, None).unwrap();
    trusting(&marked).unwrap();
}

/// A pipe can be read only once, and servers read their files again.
#[cfg(unix)]
#[test]
fn a_pipe_is_refused_and_does_not_block() {
    let dir = temporary("pipes");
    let pair = files(&dir, "it", &["localhost"]);
    let pipe = dir.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for files in [
        CertificateFiles { chain: pipe.clone(), key: pair.key.clone() },
        CertificateFiles { chain: pair.chain.clone(), key: pipe.clone() },
    ] {
        let error = load(vec![files]).unwrap_err();
        assert!(error.contains("it is a pipe, and not a regular file"), "{error}");
        assert!(!error.contains("openssl req"), "it would overwrite the other one: {error}");
    }
    let config = TlsConfig { ticket_keys: Some(pipe), ..TlsConfig::new(vec![pair]) };
    let error = TlsServer::load(config).unwrap_err().to_string();
    assert!(error.contains("it is a pipe"), "{error}");
}
