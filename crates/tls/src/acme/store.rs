//! The files that outlive the process: the account, and the certificate with its private key. Only
//! the server's user can read them, and each is replaced as a whole.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use instant_acme::AccountCredentials;
use rustls::pki_types::CertificateDer;
use zeroize::Zeroizing;

use super::schedule::Validity;
use super::settings::AcmeSettings;
use crate::config::{ConfigError, read_chain, read_key};

/// The folder of an authority.
#[derive(Clone, Debug)]
pub(super) struct Store {
    account: PathBuf,
    pub(super) certificate: PathBuf,
    lock: PathBuf,
}

/// A certificate that was issued.
pub(super) struct Issued {
    pub(super) certificate: CertificateDer<'static>,
    /// Its DNS names, in lower case and in order.
    pub(super) names: Vec<String>,
    pub(super) validity: Validity,
}

impl Store {
    /// Opens the folder, which is made if there is none.
    pub(super) fn open(settings: &AcmeSettings) -> Result<Self, ConfigError> {
        let folder = settings.folder();
        let store = Self {
            account: folder.join("account.json"),
            certificate: settings.certificate_file(),
            lock: folder.join("lock"),
        };
        let opened = make_folder(&folder).and_then(|()| store.open_lock());
        opened.map_err(|error| {
            let what = format!("cannot be written: {error}; let the server's user write there");
            ConfigError::new(&folder, what)
        })?;
        Ok(store)
    }

    /// Locks the folder, unless another process has done so: two that share it order one
    /// certificate. The lock ends with the file.
    pub(super) fn try_lock(&self) -> io::Result<Option<File>> {
        let file = self.open_lock()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn open_lock(&self) -> io::Result<File> {
        private().create(true).open(&self.lock)
    }

    /// Returns the account, if there is one.
    pub(super) fn account(&self) -> Result<Option<AccountCredentials>, ConfigError> {
        let wrong = |why: String| {
            let what = format!("{why}; remove the file to have a new account made");
            ConfigError::new(&self.account, what)
        };
        let text = match fs::read(&self.account) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(format!("cannot be read: {error}"))),
        };
        let account = serde_json::from_slice(&text);
        account.map(Some).map_err(|error| wrong(format!("has no account: {error}")))
    }

    pub(super) fn write_account(&self, account: &AccountCredentials) -> Result<(), ConfigError> {
        // With capacity for all of it: a vector that grows leaves its earlier memory as it is.
        let mut text = Zeroizing::new(Vec::with_capacity(16 * 1024));
        let made = serde_json::to_writer_pretty(&mut *text, account).map_err(io::Error::from);
        let written = made.and_then(|()| replace(&self.account, &text));
        written.map_err(|error| self.not_written(&self.account, &error))
    }

    pub(super) fn remove_account(&self) -> Result<(), ConfigError> {
        fs::remove_file(&self.account).map_err(|error| self.not_written(&self.account, &error))
    }

    /// Returns the certificate, if there is one that can be used.
    pub(super) fn certificate(&self) -> Option<Issued> {
        let chain = read_chain(&self.certificate).ok()?;
        read_key(&self.certificate).ok()?;
        Issued::of(chain.into_iter().next()?)
    }

    /// Writes a chain of certificates and the private key of the first, both in PEM, into one file:
    /// so there is no moment in which they do not fit.
    pub(super) fn write_certificate(&self, chain: &str, key: &str) -> Result<(), ConfigError> {
        let text = Zeroizing::new(format!("{}\n{key}", chain.trim_end()));
        let written = replace(&self.certificate, text.as_bytes());
        written.map_err(|error| self.not_written(&self.certificate, &error))
    }

    fn not_written(&self, file: &Path, error: &io::Error) -> ConfigError {
        let what = format!("cannot be written: {error}; let the server's user write there");
        ConfigError::new(file, what)
    }
}

impl Issued {
    pub(super) fn of(certificate: CertificateDer<'static>) -> Option<Self> {
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).ok()?;
        let at = |seconds: i64| {
            let seconds = u64::try_from(seconds).unwrap_or_default();
            SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
        };
        let validity = Validity {
            from: at(parsed.validity().not_before.timestamp()),
            until: at(parsed.validity().not_after.timestamp()),
        };
        let names = webpki::EndEntityCert::try_from(&certificate).ok()?;
        let names = names.valid_dns_names().map(str::to_ascii_lowercase);
        let mut names: Vec<String> = names.collect();
        names.sort();
        Some(Self { certificate, names, validity })
    }
}

fn make_folder(folder: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Options to write a file that only its owner can read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Replaces a file: readers find the old one or the new one, also after a crash.
fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    // One that a crash left behind may have other permissions.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut written = private().create_new(true).open(&new)?;
    written.write_all(content)?;
    written.sync_all()?;
    fs::rename(&new, file)?;
    // The folder's entry has to be on the disk as well.
    match file.parent() {
        Some(folder) if cfg!(unix) => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(name: &str) -> (Store, PathBuf) {
        let dir = std::env::temp_dir().join(format!("throng-acme-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let settings = AcmeSettings::new(dir.join("deep"));
        (Store::open(&settings).unwrap(), dir)
    }

    #[cfg(unix)]
    fn mode(path: &Path) -> u32 {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_what_is_kept() {
        let (store, dir) = store("modes");
        store.write_certificate("chain", "key").unwrap();
        // A file that a crash left behind is not written to.
        let left = store.certificate.with_extension("pem.new");
        fs::write(&left, "left").unwrap();
        store.write_certificate("chain 2", "key 2").unwrap();
        assert_eq!(fs::read_to_string(&store.certificate).unwrap(), "chain 2\nkey 2");
        assert!(!left.exists());
        assert_eq!(mode(&store.certificate), 0o600);
        assert_eq!(mode(store.certificate.parent().unwrap()), 0o700);
        assert!(store.certificate().is_none(), "it has no certificate");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_certificate_is_known_by_its_names_and_its_time() {
        let (store, dir) = store("issued");
        let key = rcgen::KeyPair::generate().unwrap();
        let names = ["www.A.example", "a.example"].map(str::to_owned);
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 7);
        let made = params.self_signed(&key).unwrap();
        assert!(store.certificate().is_none(), "there is no file");
        store.write_certificate(&made.pem(), &key.serialize_pem()).unwrap();
        let issued = store.certificate().unwrap();
        assert_eq!(issued.names, ["a.example", "www.a.example"]);
        let length = issued.validity.until.duration_since(issued.validity.from).unwrap();
        assert_eq!(length, Duration::from_secs(6 * 24 * 3600));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn one_process_at_a_time_orders() {
        let (store, dir) = store("lock");
        let held = store.try_lock().unwrap();
        assert!(held.is_some());
        assert!(store.try_lock().unwrap().is_none());
        drop(held);
        assert!(store.try_lock().unwrap().is_some());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_account_that_cannot_be_read_names_the_remedy() {
        let (store, dir) = store("account");
        assert!(store.account().unwrap().is_none());
        fs::write(&store.account, "{}").unwrap();
        let error = store.account().err().unwrap().to_string();
        assert!(error.contains("account.json") && error.contains("remove the file"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }
}
