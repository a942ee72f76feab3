//! Reloads on SIGHUP, by the admin API, and because of changed certificate files.

use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use throng_testkit::TempFolder;

use super::tls::{get_securely, write_certificate};
use crate::started::{Started, events};
use crate::support::{Answer, dial, exchange};

/// Sends `POST /reload` with these header fields besides its host.
fn post_with(admin: SocketAddr, fields: &str, body: &str) -> Answer {
    let host = if fields.contains("Host: ") { String::new() } else { format!("Host: {admin}\r\n") };
    let length = body.len();
    let head = format!("POST /reload HTTP/1.1\r\n{host}{fields}Content-Length: {length}\r\n");
    exchange(&mut dial(admin), format!("{head}\r\n{body}"))
}

/// Sends it as `curl --json` does.
fn post(admin: SocketAddr) -> (u16, Value) {
    let answer = post_with(admin, "Content-Type: application/json\r\n", "{}");
    (answer.status(), serde_json::from_str(answer.text()).unwrap())
}

/// A server with a certificate and an address for operators.
struct Secured {
    started: Started,
    address: SocketAddr,
    admin: SocketAddr,
    dir: TempFolder,
    chain: PathBuf,
    key: PathBuf,
    /// A copy of its present certificate.
    in_use: PathBuf,
}

impl Secured {
    fn start(name: &str) -> Self {
        let dir = TempFolder::new(name);
        let [chain, key, in_use] = ["it.pem", "it.key", "in_use.pem"].map(|name| dir.join(name));
        write_certificate(&chain, &key);
        std::fs::copy(&chain, &in_use).unwrap();
        let settings = format!(
            "listen = \"127.0.0.1:0\"\nshards = 1\nadmin.listen = \"127.0.0.1:0\"\n\
             tls.cert = {chain:?}\ntls.key = {key:?}\n"
        );
        let mut started = Started::start("serve", &settings);
        let address = started.address("listens on https://");
        let admin = started.address("metrics: http://");
        Self { started, address, admin, dir, chain, key, in_use }
    }

    /// Writes another certificate.
    fn renew(&self) {
        write_certificate(&self.chain, &self.key);
        std::fs::copy(&self.chain, &self.in_use).unwrap();
    }

    /// Checks that it presents the expected certificate.
    fn check(&self) {
        get_securely(self.address, &self.in_use).unwrap();
    }
}

#[test]
fn a_renewed_certificate_is_in_use_once_a_reload_has_ended() {
    let it = Secured::start("renewed");
    let old = std::fs::read(&it.in_use).unwrap();
    it.check();
    // The check each second may find some renewals before the reload does, but not all of them.
    let renewals = 1
        + (0..20)
            .position(|renewal| {
                it.renew();
                it.started.signal("HUP");
                let reloaded = it.started.logged("reloaded", renewal);
                assert!(events(&it.started.log, "certificate.reloaded").len() > renewal);
                it.check();
                reloaded["message"] == "certificates renewed"
            })
            .expect("no reload says that it has found renewed certificates");
    let other = it.dir.join("old.pem");
    std::fs::write(&other, old).unwrap();
    assert!(get_securely(it.address, &other).is_err(), "the old one is gone");

    it.renew();
    let (status, answer) = post(it.admin);
    assert_eq!(status, 200, "{answer}");
    assert_eq!((&answer["changed"], &answer["needs_restart"]), (&json!([]), &json!([])));
    let message = it.started.logged("reloaded", renewals)["message"].clone();
    assert_eq!(message == "certificates renewed", answer["certificates"] == true, "{message}");
    assert!(events(&it.started.log, "certificate.reloaded").len() > renewals);
    it.check();

    let (_, answer) = post(it.admin);
    assert_eq!(answer, json!({"certificates": false, "changed": [], "needs_restart": []}));
    assert_eq!(it.started.logged("reloaded", renewals + 1)["message"], "nothing changed");
}

#[test]
fn a_bad_certificate_changes_nothing_and_is_reported_with_its_place_and_reason() {
    let it = Secured::start("bad");
    let [chain, key] = [&it.chain, &it.key].map(|file| std::fs::read_to_string(file).unwrap());
    let after = 1 + chain.lines().count();
    let broken = format!("{chain}-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
    let other = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let expired = params.self_signed(&other.signing_key).unwrap().pem();
    let other_key = other.signing_key.serialize_pem();
    for (at, (chain, key, words)) in [
        (broken.as_str(), key.as_str(), &["it.pem: line ", &format!("{after}: ")][..]),
        (&chain, &other_key, &["it.key: this is not the key of the first", "it.pem"]),
        (&expired, &other_key, &["it.pem: line 1: ", "expired on Jan", "which is valid, stays"]),
        ("", &key, &["it.pem: ", "certificate"]),
    ]
    .into_iter()
    .enumerate()
    {
        let names_all = |reason: &Value| {
            let reason = reason.as_str().unwrap();
            words.iter().for_each(|word| assert!(reason.contains(word), "{reason}: no {word}"));
        };
        // A check may fall in between: the key comes first, and does not fit the chain of the last
        // case either. An unchanged file is not written.
        if std::fs::read_to_string(&it.key).unwrap() != *key {
            std::fs::write(&it.key, key).unwrap();
        }
        std::fs::write(&it.chain, chain).unwrap();
        let (status, answer) = post(it.admin);
        assert_eq!(status, 422, "{answer}");
        names_all(&answer["error"]);
        it.check();

        it.started.signal("HUP");
        // The answer may be lost, and the check of the files does not repeat the error: so the log
        // also has it.
        for failed in [2 * at, 2 * at + 1].map(|skip| it.started.logged("reload.failed", skip)) {
            assert_eq!(
                (&failed["level"], &failed["message"]),
                (&json!("error"), &json!("no setting was changed"))
            );
            names_all(&failed["reason"]);
        }

        let reported = events(&it.started.log, "certificate.failed").len();
        let file = File::options().write(true).open(&it.chain).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
        let failed = it.started.logged("certificate.failed", reported);
        assert_eq!(failed["level"], "error");
        names_all(&failed["reason"]);
        it.check();
    }
    assert!(events(&it.started.log, "reloaded").is_empty());
    assert!(events(&it.started.log, "certificate.reloaded").is_empty());
}

#[test]
fn a_reload_by_the_admin_server_reads_the_file_and_answers_with_what_it_did() {
    let base = "shards = 1\nadmin.listen = \"127.0.0.1:0\"\nlisten = \"127.0.0.1:0\"\n";
    let mut started = Started::start("serve", base);
    let admin = started.address("metrics: http://");
    started.configure(&format!("{base}max_message_size = 100\nshare_port = true\n"));
    let (status, answer) = post(admin);
    let expected = json!({
        "certificates": false,
        "changed": ["max_message_size"],
        "needs_restart": ["share_port"],
    });
    assert_eq!((status, answer), (200, expected));
    let message = started.logged("reloaded", 0)["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("changed max_message_size; share_port changed, "), "{message}");

    started.configure(&format!("{base}max_message_size = \"many\"\n"));
    let (status, answer) = post(admin);
    assert_eq!(status, 422);
    let reason = answer["error"].as_str().unwrap();
    let file = started.file.file_name().unwrap().to_str().unwrap();
    assert!(reason.contains(&format!("{file}:5:")) && reason.contains("\"many\""), "{reason}");
    assert_eq!(events(&started.log, "reloaded").len(), 1);

    // Settings of the next start, which would fail with them.
    let many = base.replace("shards = 1", "shards = 1024");
    let log = format!("log.file = {:?}\n", started.log);
    for (content, words) in [
        (format!("{base}log.file = \"/no/such/folder/it\"\n"), "log.file is /no/such/folder/it"),
        (format!("{many}{log}pin = \"cores\"\n"), "shards is 1024, but pin is cores"),
    ] {
        std::fs::write(&started.file, &content).unwrap();
        let (status, answer) = post(admin);
        let reason = answer["error"].to_string();
        assert!(status == 422 && reason.contains(words), "{content}: {status} {reason}");
    }
    assert_eq!(events(&started.log, "reloaded").len(), 1);

    // As for the balancer, no web page can request it.
    let json = "Content-Type: application/json\r\n";
    for (fields, body, status) in [
        (String::new(), "{}", 415),
        (format!("{json}Host: throng.example\r\n"), "{}", 403),
        (format!("{json}Origin: https://throng.example\r\n"), "{}", 403),
        (format!("{json}Sec-Fetch-Site: cross-site\r\n"), "{}", 403),
        (json.to_owned(), "{\"file\": 1}", 400),
        (json.to_owned(), "", 422),
    ] {
        let answer = post_with(admin, &fields, body);
        assert_eq!(answer.status(), status, "{fields}{body}: {}", answer.text());
    }

    started.configure(&format!("{base}drain.window = \"0s\"\n"));
    assert_eq!(post(admin).0, 200);
    started.signal("TERM");
    assert_eq!(started.exit(), Some(0));
}

#[test]
fn a_reload_needs_the_token_and_something_to_read() {
    let folder = TempFolder::new("reload-token");
    let token = folder.write("token", "a-token-of-the-test\n");
    let it = crate::support::operated::Operated::start(&[
        "--admin",
        "127.0.0.1:0",
        "--set",
        &format!("admin.token_file={}", token.display()),
    ]);
    assert_eq!(post(it.admin).0, 401);
    let fields = "Content-Type: application/json\r\nAuthorization: Bearer a-token-of-the-test\r\n";
    let answer = post_with(it.admin, fields, "{}");
    assert_eq!(answer.status(), 422, "{}", answer.text());
    assert!(answer.text().contains("--config FILE"), "{}", answer.text());
}
