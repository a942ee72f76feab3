//! Session tickets of servers that share a file of keys.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{CertifiedKey, KeyPair};
use rustls::{ClientConfig, SupportedProtocolVersion};
use throng_testkit::TempFolder;
use throng_tls::{CertificateFiles, ClientAuth, TlsConfig, TlsServer};

use crate::support::{self, VERSIONS, resumes, temporary};

fn identity(name: &str) -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap()
}

/// Sets who can read and write a file, on Unix.
fn set_mode(file: &Path, mode: u32) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    #[cfg(not(unix))]
    let _ = (file, mode);
}

/// A folder with a certificate.
struct Folder(TempFolder);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Self(temporary(name));
        let made = identity("localhost");
        std::fs::write(folder.0.join("it.pem"), made.cert.pem()).unwrap();
        std::fs::write(folder.0.join("it.key"), made.signing_key.serialize_pem()).unwrap();
        folder
    }

    /// Writes a file that only its owner can read.
    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let file = self.0.join(name);
        std::fs::write(&file, bytes).unwrap();
        set_mode(&file, 0o600);
        file
    }

    /// Settings with a file of keys, and with clients that need a certificate of an authority.
    fn config(&self, ticket_keys: &Path, clients: Option<(&Path, bool)>) -> TlsConfig {
        let (chain, key) = (self.0.join("it.pem"), self.0.join("it.key"));
        let client_auth = clients.map(|(authorities, is_required)| ClientAuth {
            authorities: authorities.to_owned(),
            revoked: None,
            is_required,
        });
        TlsConfig {
            ticket_keys: Some(ticket_keys.to_owned()),
            client_auth,
            ..TlsConfig::new(vec![CertificateFiles { chain, key }])
        }
    }

    fn serve(&self, ticket_keys: &Path, clients: Option<(&Path, bool)>) -> Arc<TlsServer> {
        TlsServer::load(self.config(ticket_keys, clients)).unwrap()
    }
}

/// Keys of 80 bytes, each filled with a number.
fn keys(numbers: &[u8]) -> Vec<u8> {
    let key = |number: &u8| (0..80).map(|at: u8| at.wrapping_mul(*number)).collect::<Vec<_>>();
    numbers.iter().flat_map(key).collect()
}

/// A client of that version with a certificate, and with sessions of its own.
fn client(
    identity: &CertifiedKey<KeyPair>,
    version: &'static SupportedProtocolVersion,
) -> ClientConfig {
    support::with_certificate_for(identity, &[version])
}

#[test]
fn a_session_of_one_server_is_resumed_by_another() {
    let folder = Folder::new("shared");
    let file = folder.write("keys", &keys(&[1, 2]));
    let copy = folder.write("copy", &keys(&[1, 2]));
    let other = folder.write("other", &keys(&[3]));
    let [a, b, c] = [&file, &copy, &other].map(|file| folder.serve(file, None));
    for version in VERSIONS {
        let client = client(&identity("client"), version);
        assert_eq!(resumes(&a, &client), Ok(false));
        assert_eq!(resumes(&b, &client), Ok(true), "{version:?}");
        assert_eq!(resumes(&a, &client), Ok(true), "{version:?}");
        assert_eq!(resumes(&c, &client), Ok(false), "other keys");
    }
}

/// A client of a server without authentication must not be accepted by another server because of
/// its session.
#[test]
fn a_session_under_one_policy_is_not_resumed_under_another() {
    let folder = Folder::new("policies");
    let file = folder.write("keys", &keys(&[1]));
    let (known, also_known) = (identity("known"), identity("also-known"));
    let one = folder.write("one.pem", known.cert.pem().as_bytes());
    let two = folder.write("two.pem", (known.cert.pem() + &also_known.cert.pem()).as_bytes());
    let policies = [None, Some((one.as_path(), false)), Some((&one, true)), Some((&two, true))];
    let servers = policies.map(|clients| folder.serve(&file, clients));
    let twins = policies.map(|clients| folder.serve(&file, clients));
    for version in VERSIONS {
        for (from, server) in servers.iter().enumerate() {
            for (to, other) in twins.iter().enumerate() {
                let client = client(&known, version);
                assert_eq!(resumes(server, &client), Ok(false));
                assert_eq!(resumes(other, &client), Ok(from == to), "{version:?}: {from} {to}");
            }
        }
        // A session of the first server is useless without a certificate that the second accepts.
        let stranger = client(&identity("stranger"), version);
        assert_eq!(resumes(&servers[0], &stranger), Ok(false));
        assert!(resumes(&servers[2], &stranger).is_err());
    }
}

#[test]
fn keys_are_replaced_without_the_loss_of_a_session() {
    let folder = Folder::new("rotation");
    let [of_a, of_b] = ["a", "b"].map(|name| folder.write(name, &keys(&[1])));
    let [a, b] = [&of_a, &of_b].map(|file| folder.serve(file, None));
    let mut edits = 0;
    let mut renew = |server: &TlsServer, name: &str, numbers: &[u8]| {
        let file = folder.write(name, &keys(numbers));
        edits += 1;
        let later = SystemTime::now() + Duration::from_secs(2 * edits);
        std::fs::File::options().write(true).open(file).unwrap().set_modified(later).unwrap();
        let is_new = server.reload_if_changed().map_err(|error| error.to_string());
        assert_eq!(is_new, Ok(true));
    };
    let mut clients = VERSIONS.map(|version| client(&identity("client"), version));
    let mut each = |server: &TlsServer, is_resumed: bool| {
        for client in &mut clients {
            assert_eq!(resumes(server, client), Ok(is_resumed));
        }
    };
    each(&a, false);
    // Key rotation: first all servers can decrypt with the new key, then they encrypt with it.
    renew(&a, "a", &[1, 2]);
    each(&a, true);
    renew(&b, "b", &[1, 2]);
    each(&b, true);
    renew(&a, "a", &[2, 1]);
    each(&a, true);
    each(&b, true);
    renew(&b, "b", &[2, 1]);
    each(&b, true);
    renew(&a, "a", &[2]);
    each(&a, true);
    // A removed key decrypts nothing.
    renew(&a, "a", &[3]);
    each(&a, false);

    // An invalid file changes nothing, and neither does a missing one.
    each(&a, true);
    folder.write("a", b"short");
    assert!(a.reload().unwrap_err().to_string().contains("has text"));
    each(&a, true);
    std::fs::remove_file(&of_a).unwrap();
    assert!(a.reload().unwrap_err().to_string().contains("cannot be read"));
    each(&a, true);
}

#[test]
fn keys_of_a_file_come_and_go_with_the_setting() {
    let folder = Folder::new("setting");
    let file = folder.write("keys", &keys(&[1]));
    let with = folder.config(&file, None);
    let without = TlsConfig { ticket_keys: None, ..with.clone() };
    let (server, other) = (TlsServer::load(without.clone()).unwrap(), folder.serve(&file, None));
    let client = client(&identity("client"), VERSIONS[0]);
    let change = |config: &TlsConfig| server.install(server.prepare(config).unwrap());
    assert_eq!(resumes(&server, &client), Ok(false));
    change(&with);
    assert_eq!(resumes(&server, &client), Ok(false));
    assert_eq!(resumes(&other, &client), Ok(true));
    change(&without);
    assert_eq!(resumes(&server, &client), Ok(false), "the file's keys are gone");
    assert_eq!(resumes(&server, &client), Ok(true));
}

#[test]
fn each_mistake_names_the_file_and_the_remedy() {
    let folder = Folder::new("mistakes");
    let open = folder.write("open", &keys(&[1]));
    set_mode(&open, 0o644);
    let writable = folder.write("writable", &keys(&[1]));
    set_mode(&writable, 0o602);
    const OPEN_TO_ALL: [&str; 2] = ["every user can read or replace these keys", "chmod 600 "];
    let text = [b'A'; 107].as_slice();
    let recipe = "openssl rand -out ";
    for (file, words) in [
        (folder.0.join("missing"), &["cannot be read", "check the path", recipe][..]),
        (folder.write("empty", b""), &["has 0 bytes", "has 80", recipe]),
        (folder.write("nginx", &[7; 48]), &["has 48 bytes", "has 80", recipe]),
        (folder.write("cut", &keys(&[1, 2])[..150]), &["has 150 bytes", recipe]),
        (folder.write("haproxy", text), &["has text", "openssl base64 -d", recipe]),
        (folder.write("blank", &[keys(&[1]), vec![0; 80]].concat()), &["key 2 is one byte"]),
        (folder.write("many", &keys(&[1; 33])), &["more than 32 keys of 80 bytes"]),
        (open, &OPEN_TO_ALL),
        (writable, &OPEN_TO_ALL),
    ] {
        if words == OPEN_TO_ALL && !cfg!(unix) {
            continue;
        }
        let error = TlsServer::load(folder.config(&file, None)).unwrap_err().to_string();
        assert!(error.starts_with(&file.display().to_string()), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    // The maximum number of keys, for a file that the group can read.
    let most = folder.write("most", &keys(&[1; 32]));
    set_mode(&most, 0o640);
    folder.serve(&most, None);
}

/// The command in the error makes a valid file.
#[test]
fn the_remedy_for_missing_keys_is_one() {
    let folder = Folder::new("recipe");
    let file = folder.0.join("keys");
    let error = TlsServer::load(folder.config(&file, None)).unwrap_err().to_string();
    let command = error.split('`').nth(1).unwrap();
    match Command::new("openssl").arg("version").output() {
        Ok(_) => {}
        Err(error) if std::env::var_os("CI").is_some() => panic!("{error}"),
        Err(error) => return eprintln!("skipped: openssl: {error}"),
    }
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    assert!(output.status.success(), "{command}: {output:?}");
    folder.serve(&file, None);
}
