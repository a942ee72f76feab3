//! `throng serve` and certificates of clients: the answers to curl and OpenSSL with and without
//! one.

use std::path::Path;
use std::process::{Command, Stdio};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer, IsCa,
    KeyIdMethod, KeyPair, RevokedCertParams, date_time_ymd,
};
use throng_testkit::TempFolder;

use crate::support::{Served, throng};

/// A folder with the files of a server and of its clients.
struct Folder(TempFolder);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Self(TempFolder::new(&format!("client-certificates-{name}")));
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        folder.write("server.pem", &made.cert.pem());
        folder.write("server.key", &made.signing_key.serialize_pem());
        folder
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// Starts a server, with these settings besides its certificate.
    fn serve(&self, settings: &[String]) -> Served {
        let (chain, key) = (self.path("server.pem"), self.path("server.key"));
        let mut words = vec!["--listen", "127.0.0.1:0", "--tls-cert", &chain, "--tls-key", &key];
        words.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        Served::start(&words)
    }

    /// Returns the status that curl gets, with the certificate `name`; `Err` with its exit code if
    /// there was no answer.
    fn curl(&self, served: &Served, client: &[String], host: &str) -> Result<String, i32> {
        let port = served.addresses[0].port();
        let url = format!("https://localhost:{port}/");
        let (address, host) = (format!("localhost:{port}:127.0.0.1"), format!("Host: {host}"));
        let mut command = Command::new("curl");
        command.args(["-sS", "--cacert", &self.path("server.pem"), "--resolve", &address]);
        command.args(["-o", "/dev/null", "-w", "%{http_code}", "-H", &host, &url]).args(client);
        let output = command.output().unwrap();
        match output.status.code() {
            Some(0) => Ok(String::from_utf8(output.stdout).unwrap()),
            code => Err(code.unwrap()),
        }
    }

    /// Returns the arguments of curl for a certificate.
    fn with(&self, name: &str) -> Vec<String> {
        let (chain, key) = (format!("{name}.pem"), format!("{name}.key"));
        let [chain, key] = [chain, key].map(|name| self.path(&name));
        ["--cert", &chain, "--key", &key].map(str::to_owned).to_vec()
    }
}

fn is_installed(program: &str, argument: &str) -> bool {
    let output = Command::new(program).arg(argument).stdout(Stdio::null()).status();
    match output {
        Ok(_) => true,
        Err(error) if std::env::var_os("CI").is_some() => panic!("{program}: {error}"),
        Err(error) => {
            println!("skipped: {program}: {error}");
            false
        }
    }
}

/// An authority, whose files are `ca.pem` and the files of its clients.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new(folder: &Folder, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let made = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        folder.write(&format!("{name}.pem"), &made.pem());
        Self(made)
    }

    fn certify(&self, folder: &Folder, name: &str, serial: u64) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        folder.write(&format!("{name}.pem"), &certificate.pem());
        folder.write(&format!("{name}.key"), &key.serialize_pem());
    }

    fn revoke(&self, folder: &Folder, name: &str, serial: u64) {
        let revoked = RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: 1.into(),
            issuing_distribution_point: None,
            revoked_certs: vec![revoked],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        folder.write(name, &params.signed_by(&self.0).unwrap().pem().unwrap());
    }
}

#[test]
fn clients_are_asked_for_certificates_as_the_settings_say() {
    if !is_installed("curl", "--version") {
        return;
    }
    let folder = Folder::new("curl");
    let authority = Authority::new(&folder, "ca");
    authority.certify(&folder, "known", 1);
    authority.certify(&folder, "revoked", 2);
    authority.revoke(&folder, "list.pem", 2);
    Authority::new(&folder, "other-ca").certify(&folder, "stranger", 1);
    let set = |key: &str, value: &str| format!("tls.{key}={value}");
    let ca = || set("client_ca", &folder.path("ca.pem"));
    let crl = || set("client_crl", &folder.path("list.pem"));
    let auth = |mode: &str| set("client_auth", mode);
    let (none, known) = (Vec::new(), folder.with("known"));
    let (revoked, stranger) = (folder.with("revoked"), folder.with("stranger"));
    for (settings, accepted, refused) in [
        (vec![ca()], vec![&known, &revoked], vec![&none, &stranger]),
        (vec![ca(), auth("required"), crl()], vec![&known], vec![&none, &stranger, &revoked]),
        (vec![ca(), auth("optional"), crl()], vec![&known, &none], vec![&stranger, &revoked]),
        (vec![ca(), auth("none")], vec![&known, &none, &stranger], vec![]),
        (vec![], vec![&known, &none, &stranger], vec![]),
    ] {
        let served = folder.serve(&settings);
        for client in accepted {
            let status = folder.curl(&served, client, "localhost");
            assert_eq!(status.as_deref(), Ok("200"), "{settings:?} {client:?}");
        }
        for client in refused {
            let status = folder.curl(&served, client, "localhost");
            assert!(status.is_err(), "{settings:?} {client:?}: {status:?}");
        }
    }
    // RFC 9110 section 15.5.20: a host that the connection was not made to.
    let served = folder.serve(&[ca()]);
    let other = |client| folder.curl(&served, client, "other.example");
    assert_eq!(other(&known).as_deref(), Ok("421"));
}

#[test]
fn the_access_log_names_the_owner_of_a_client_certificate() {
    if !is_installed("curl", "--version") {
        return;
    }
    let folder = Folder::new("log");
    Authority::new(&folder, "ca").certify(&folder, "known", 1);
    let ca = format!("tls.client_ca={}", folder.path("ca.pem"));
    let (chain, key) = (folder.path("server.pem"), folder.path("server.key"));
    let mut command = throng();
    command.args(["serve", "--listen", "127.0.0.1:0", "--tls-cert", &chain, "--tls-key", &key]);
    command.args(["--log-access", "all", "--set", "tls.client_auth=optional", "--set", &ca]);
    let served = Served::spawn(command.stderr(Stdio::piped()));
    let mut known = folder.with("known");
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    known.extend(["-H".to_owned(), format!("traceparent: {trace}")]);
    for client in [&known, &Vec::new()] {
        assert_eq!(folder.curl(&served, client, "localhost").as_deref(), Ok("200"));
    }
    served.terminate();
    let (code, log) = served.end();
    assert_eq!(code, Some(0), "{log}");
    let events = log.lines().filter_map(|line| serde_json::from_str(line).ok());
    let requests: Vec<serde_json::Value> =
        events.filter(|event: &serde_json::Value| event["event"] == "request").collect();
    assert_eq!(requests.len(), 2, "{log}");
    assert_eq!(requests[0]["client_certificate"], "CN=rcgen self signed cert", "{log}");
    assert_eq!(requests[0]["traceparent"], trace, "{log}");
    assert_eq!(requests[1].get("client_certificate"), None, "{log}");
}

#[test]
fn files_of_client_authentication_that_are_wrong_are_named_at_start() {
    let folder = Folder::new("mistakes");
    Authority::new(&folder, "ca");
    let (chain, key) = (folder.path("server.pem"), folder.path("server.key"));
    let ca = format!("tls.client_ca={}", folder.path("ca.pem"));
    let keys = folder.path("ticket.keys");
    std::fs::write(Path::new(&keys), "short").unwrap();
    for (settings, words) in [
        (vec![format!("tls.client_ca={}", folder.path("no.pem"))], ["no.pem", "check the path"]),
        (
            vec![ca.clone(), format!("tls.client_crl={}", folder.path("ca.pem"))],
            ["ca.pem", "no list of revoked certificates"],
        ),
        (vec![format!("tls.ticket_keys={keys}")], ["ticket.keys", "chmod 600"]),
        (vec!["tls.client_auth=optional".to_owned()], ["tls.client_auth", "tls.client_ca"]),
    ] {
        let mut command = throng();
        command.args(["serve", "--listen", "127.0.0.1:0", "--tls-cert", &chain, "--tls-key", &key]);
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        // A missing file may exist at the next start.
        let expected = if words.contains(&"no.pem") { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(expected), "{errors}");
        assert!(words.iter().all(|word| errors.contains(word)), "{errors}");
    }
}
