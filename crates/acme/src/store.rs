//! The files that outlive the process: the account, and the certificate with its private key. Only
//! the server's user can read them, and each is replaced as a whole.
//!
//! A full disk does not count as a mistake: unwritten data stays in memory, and is written once
//! there is space. So [`Store::open`] ignores a full disk, and an order first tests the space with
//! [`Store::try_room`].

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use instant_acme::AccountCredentials;
use rustls::pki_types::CertificateDer;
use throng_io::may_pass;
use throng_proto::pem::Wanted;
use throng_tls::{ConfigError, files};
use zeroize::Zeroizing;

use crate::schedule::Validity;
use crate::settings::AcmeSettings;

/// The folder of an authority.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    account: PathBuf,
    pub(crate) certificate: PathBuf,
    lock: PathBuf,
}

/// An issued certificate.
pub(crate) struct Issued {
    pub(crate) certificate: CertificateDer<'static>,
    /// The DNS names of the certificate, in lower case and in order.
    pub(crate) names: Vec<String>,
    pub(crate) validity: Validity,
}

/// Bytes that must be free before a certificate is ordered: a chain with its key takes some 5 KiB,
/// an account less than one.
const ROOM: usize = 32 * 1024;

impl Store {
    fn of(settings: &AcmeSettings) -> Self {
        let folder = settings.folder();
        Self {
            account: folder.join("account.json"),
            certificate: settings.certificate_file(),
            lock: folder.join("lock"),
        }
    }

    /// Opens the folder, creating it if necessary.
    pub(crate) fn open(settings: &AcmeSettings) -> Result<Self, ConfigError> {
        let store = Self::of(settings);
        let folder = settings.folder();
        let opened = make_folder(&folder).and_then(|()| store.open_lock());
        match opened.and_then(lock) {
            // Another process may be writing these files.
            Ok(None) => {}
            Ok(Some(_lock)) => {
                for file in [&store.account, &store.certificate] {
                    remove(&unfinished(file)).map_err(|error| not_written(file, &error))?;
                }
            }
            Err(error) if is_short_of_room(&error) => {}
            Err(error) => return Err(not_written(&folder, &error)),
        }
        Ok(store)
    }

    /// Opens the folder, then removes all that it has created: the check may run as another user,
    /// and the server could not write to files that root creates here.
    pub(crate) fn check(settings: &AcmeSettings) -> Result<(), ConfigError> {
        let _alone = alone();
        let folder = settings.folder();
        let is_missing = |path: &Path| matches!(files::exists(path), Ok(false));
        let made: Vec<&Path> = folder.ancestors().take_while(|path| is_missing(path)).collect();
        let has_lock = !is_missing(&folder.join("lock"));
        let opened = Self::open(settings);
        if let Ok(store) = &opened
            && !has_lock
            // If this fails, another process has started to use the lock.
            && let Ok(Some(_held)) = store.lock_now()
        {
            let _ = fs::remove_file(&store.lock);
        }
        for path in made {
            let _ = fs::remove_dir(path);
        }
        opened.map(drop)
    }

    /// Locks the folder, unless another process has locked it: of two processes that share the
    /// folder, one orders the certificate. Dropping the file releases the lock.
    pub(crate) fn try_lock(&self) -> Result<Option<File>, ConfigError> {
        let _alone = alone();
        self.lock_now()
    }

    fn lock_now(&self) -> Result<Option<File>, ConfigError> {
        // The folder does not exist yet if the disk was full at the start.
        let folder = self.lock.parent().map_or(Ok(()), make_folder);
        let locked = folder.and_then(|()| self.open_lock()).and_then(lock);
        locked.map_err(|error| not_written(&self.lock, &error))
    }

    /// Writes as many bytes as an account and a certificate may take, and removes them: an order
    /// counts against the authority's limits even if its certificate cannot be written.
    pub(crate) fn try_room(&self) -> Result<(), ConfigError> {
        let new = unfinished(&self.certificate);
        let written = write_new(&new, &[b' '; ROOM]);
        let removed = remove(&new);
        written.and(removed).map_err(|error| not_written(&self.certificate, &error))
    }

    fn open_lock(&self) -> io::Result<File> {
        // Opening a pipe waits for its reader.
        if fs::metadata(&self.lock).is_ok_and(|found| !found.is_file()) {
            let what = format!("{} is not a regular file; remove it", self.lock.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        private().create(true).open(&self.lock)
    }

    /// Returns the account, if there is one.
    pub(crate) fn account(&self) -> Result<Option<AccountCredentials>, ConfigError> {
        let unusable = |why: String| {
            let what = format!("{why}; remove the file to have a new account made");
            ConfigError::new(&self.account, what)
        };
        // An inaccessible file still exists, and has another remedy.
        if !files::exists(&self.account)? {
            return Ok(None);
        }
        let text = files::read(&self.account)?;
        let account = serde_json::from_slice(&text);
        account.map(Some).map_err(|error| unusable(format!("has no account: {error}")))
    }

    /// Writes an account: [`account_text`].
    pub(crate) fn write_account(&self, text: &[u8]) -> Result<(), ConfigError> {
        replace(&self.account, text).map_err(|error| not_written(&self.account, &error))
    }

    pub(crate) fn remove_account(&self) -> Result<(), ConfigError> {
        remove(&self.account).map_err(|error| not_written(&self.account, &error))
    }

    /// Returns the certificate, if there is a usable one. An inaccessible file is an error: its
    /// certificate may be valid, so ordering another is wasteful.
    pub(crate) fn certificate(&self) -> Result<Option<Issued>, ConfigError> {
        let file = &self.certificate;
        if !files::exists(file)? {
            return Ok(None);
        }
        let text = files::read(file)?;
        let usable = files::chain(file, &text, Wanted::Chain)
            .and_then(|chain| files::key(file, &text).map(|_| chain));
        let first = usable.ok().and_then(|chain| chain.certificates.into_iter().next());
        Ok(first.and_then(Issued::of))
    }

    /// Writes a certificate chain and the private key of its first certificate, both in PEM, into
    /// one file, so that they match at any moment.
    pub(crate) fn write_certificate(&self, chain: &str, key: &str) -> Result<(), ConfigError> {
        let text = Zeroizing::new(format!("{}\n{key}", chain.trim_end()));
        let written = replace(&self.certificate, text.as_bytes());
        written.map_err(|error| not_written(&self.certificate, &error))
    }
}

/// Returns an account in its written form.
pub(crate) fn account_text(account: &AccountCredentials) -> io::Result<Zeroizing<Vec<u8>>> {
    // Reserves the full capacity: a growing vector would leave copies of the key in freed memory.
    let mut text = Zeroizing::new(Vec::with_capacity(16 * 1024));
    serde_json::to_writer_pretty(&mut *text, account)?;
    Ok(text)
}

/// Returns whether the disk or a quota is full.
fn is_short_of_room(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn not_written(file: &Path, error: &io::Error) -> ConfigError {
    let remedy = match error.kind() {
        io::ErrorKind::StorageFull => "the disk is full: make room",
        io::ErrorKind::QuotaExceeded => "the quota of the server's user is used up: make room",
        io::ErrorKind::FileTooLarge => "raise the limit on the size of a file (ulimit -f)",
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            "let the server's user write there; the packaged units may write to /var/lib/throng \
             (StateDirectory=)"
        }
        io::ErrorKind::NotADirectory => "name a folder in tls.acme.dir",
        _ => "let the server's user write there",
    };
    let what = format!("cannot be written: {error}; {remedy}");
    ConfigError::new(file, what).passing_if(may_pass(error))
}

impl Issued {
    pub(crate) fn of(certificate: CertificateDer<'static>) -> Option<Self> {
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

/// Returns options to write a file that only its owner can read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Keeps checks of this process apart from the moment at which it takes the lock: a reload checks
/// its settings while the client of the authority works. Otherwise the client would find the lock
/// taken by the check, or its folder removed.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks a file, unless another process has locked it.
fn lock(file: File) -> io::Result<Option<File>> {
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Removes a file, if there is one.
fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Returns the temporary name of a file while it is written.
fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Replaces a file: readers find the old file or the new one, even after a crash.
fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let new = unfinished(file);
    let replaced = write_new(&new, content).and_then(|()| fs::rename(&new, file));
    if replaced.is_err() {
        // The file may contain a part of a private key.
        let _ = remove(&new);
    }
    replaced?;
    // The folder's entry must also reach the disk.
    match file.parent() {
        Some(folder) if cfg!(unix) => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}

/// Writes a new file. First removes a file that a crash left behind, perhaps with other
/// permissions.
fn write_new(new: &Path, content: &[u8]) -> io::Result<()> {
    remove(new)?;
    let mut written = private().create_new(true).open(new)?;
    written.write_all(content)?;
    written.sync_all()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use throng_testkit::TempFolder;

    use super::*;

    fn store(name: &str) -> (Store, TempFolder) {
        let dir = TempFolder::new(&format!("acme-{name}"));
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
    fn a_pipe_in_place_of_the_lock_is_an_error_and_is_not_waited_for() {
        let dir = TempFolder::new("acme-pipe");
        let settings = AcmeSettings::new(dir.to_path_buf());
        let lock = Store::of(&settings).lock;
        fs::create_dir_all(lock.parent().unwrap()).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&lock).status().unwrap().success());
        let error = Store::open(&settings).unwrap_err().to_string();
        assert!(error.contains("lock is not a regular file; remove it"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_what_is_kept() {
        let (store, _dir) = store("modes");
        store.write_certificate("chain", "key").unwrap();
        // A file that a crash left behind is never overwritten in place.
        let left = store.certificate.with_extension("pem.new");
        fs::write(&left, "left").unwrap();
        store.write_certificate("chain 2", "key 2").unwrap();
        assert_eq!(fs::read_to_string(&store.certificate).unwrap(), "chain 2\nkey 2");
        assert!(!left.exists());
        assert_eq!(mode(&store.certificate), 0o600);
        assert_eq!(mode(store.certificate.parent().unwrap()), 0o700);
        assert!(store.certificate().unwrap().is_none(), "it has no certificate");
    }

    #[test]
    fn a_certificate_is_known_by_its_names_and_its_time() {
        let (store, _dir) = store("issued");
        let key = rcgen::KeyPair::generate().unwrap();
        let names = ["www.A.example", "a.example"].map(str::to_owned);
        let mut params = rcgen::CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 1, 7);
        let made = params.self_signed(&key).unwrap();
        assert!(store.certificate().unwrap().is_none(), "there is no file");
        store.write_certificate(&made.pem(), &key.serialize_pem()).unwrap();
        let issued = store.certificate().unwrap().unwrap();
        assert_eq!(issued.names, ["a.example", "www.a.example"]);
        let length = issued.validity.until.duration_since(issued.validity.from).unwrap();
        assert_eq!(length, Duration::from_secs(6 * 24 * 3600));
    }

    #[test]
    fn the_check_changes_nothing_and_finds_what_the_opening_would() {
        let folder = TempFolder::new("acme-check");
        let dir = folder.join("dir");
        let settings = AcmeSettings::new(dir.join("deep"));
        Store::check(&settings).unwrap();
        assert!(!dir.exists());
        fs::write(&dir, "a file in place of a folder").unwrap();
        for result in [Store::check(&settings).err(), Store::open(&settings).err()] {
            let error = result.unwrap().to_string();
            assert!(error.contains("name a folder in tls.acme.dir"), "{error}");
        }
    }

    #[test]
    fn a_file_that_could_not_be_written_is_removed() {
        let (store, dir) = store("left");
        // A rename cannot replace a folder by a file.
        fs::create_dir(&store.certificate).unwrap();
        assert!(store.write_certificate("chain", "key").is_err());
        assert!(!unfinished(&store.certificate).exists());
        // The next opening removes files that a crash left behind.
        fs::write(unfinished(&store.account), "half a key").unwrap();
        Store::open(&AcmeSettings::new(dir.join("deep"))).unwrap();
        assert!(!unfinished(&store.account).exists());
    }

    #[cfg(unix)]
    #[test]
    fn a_certificate_that_cannot_be_read_is_not_missing() {
        let (store, _dir) = store("unreadable");
        // Root can read every file, but cannot read a folder as a file.
        fs::create_dir(&store.certificate).unwrap();
        let error = store.certificate().err().unwrap().to_string();
        assert!(error.contains("certificate.pem: cannot be read: it is a folder"), "{error}");
        fs::create_dir(&store.account).unwrap();
        assert!(store.account().err().unwrap().to_string().contains("cannot be read"));
    }

    #[test]
    fn one_process_at_a_time_orders() {
        let (store, _dir) = store("lock");
        let held = store.try_lock().unwrap();
        assert!(held.is_some());
        assert!(store.try_lock().unwrap().is_none());
        drop(held);
        assert!(store.try_lock().unwrap().is_some());
    }

    #[test]
    fn an_account_that_cannot_be_read_names_the_remedy() {
        let (store, _dir) = store("account");
        assert!(store.account().unwrap().is_none());
        fs::write(&store.account, "{}").unwrap();
        let error = store.account().err().unwrap().to_string();
        assert!(error.contains("account.json") && error.contains("remove the file"), "{error}");
    }

    #[test]
    fn a_check_of_a_reload_takes_neither_the_lock_nor_the_folder() {
        let (store, dir) = store("reload");
        let settings = AcmeSettings::new(dir.join("deep"));
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Relaxed) {
                    // The test removes the folder, so that a check may fail.
                    let _ = Store::check(&settings);
                    std::thread::yield_now();
                }
            });
            let found = (0..20).find_map(|_| {
                let locked = store.try_lock();
                let is_locked = matches!(locked, Ok(Some(_)));
                let _ = fs::remove_file(&store.lock);
                let _ = fs::remove_dir(store.lock.parent().unwrap());
                (!is_locked).then_some(locked)
            });
            ended.store(true, Relaxed);
            assert!(found.is_none(), "{found:?}");
        });
    }
}
