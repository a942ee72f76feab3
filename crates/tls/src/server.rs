//! The configuration of TLS listeners, which can be replaced while they serve.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use std::time::SystemTime;

use rustls::ServerConfig;
use throng_carry::Secret;
use throng_io::TlsFailure;

use crate::config::{ConfigError, Loaded, Policy, ServedCertificate, Tickets, TlsConfig};
use crate::files;
use crate::handshake::{Failed, Handshake, prepare};
use crate::passthrough::Passthrough;
use crate::policies::Policies;
use crate::stats::{Counters, HandshakeStats, OrderStats, SessionStats};
use crate::watch::{self, Stamps, Watch};

/// The configuration for new handshakes of listeners. It can be replaced at any time; sessions and
/// handshakes in progress keep theirs.
pub struct TlsServer {
    current: RwLock<Current>,
    pub(crate) counters: Counters,
    served: RwLock<Vec<ServedCertificate>>,
    passthrough: RwLock<Arc<Passthrough>>,
    files: Option<Files>,
    accepts_plain: AtomicBool,
    on_failure: OnceLock<OnFailure>,
}

/// The configurations of new handshakes.
#[derive(Clone)]
struct Current {
    own: Arc<ServerConfig>,
    policies: Arc<Policies<Policy>>,
}

impl Current {
    fn of(own: ServerConfig, policies: Policies<Policy>) -> RwLock<Self> {
        RwLock::new(Self { own: prepared(own), policies: Arc::new(policies) })
    }
}

/// A callback for handshakes that failed.
type OnFailure = Box<dyn Fn(Option<IpAddr>, TlsFailure) + Send + Sync>;

/// A configuration that comes from files.
struct Files {
    config: Mutex<TlsConfig>,
    tickets: Mutex<Tickets>,
    watch: Watch,
}

impl TlsServer {
    /// Uses a configuration of rustls.
    #[must_use]
    pub fn new(config: ServerConfig) -> Arc<Self> {
        Arc::new(Self {
            current: Current::of(config, Policies::default()),
            counters: Counters::default(),
            served: RwLock::default(),
            passthrough: RwLock::default(),
            files: None,
            accepts_plain: AtomicBool::new(false),
            on_failure: OnceLock::new(),
        })
    }

    /// Reads the files of a configuration.
    ///
    /// # Errors
    /// A file cannot be read, has other contents than expected, or does not match the other file.
    pub fn load(config: TlsConfig) -> Result<Arc<Self>, ConfigError> {
        let watch = Watch::new(stamps(&config));
        let Loaded { server, served, tickets, passthrough, policies } =
            config.load((None, &Policies::default()), &[])?;
        let (current, served) = (Current::of(server, policies), RwLock::new(served));
        let (config, tickets) = (Mutex::new(config), Mutex::new(tickets));
        Ok(Arc::new(Self {
            current,
            counters: Counters::default(),
            served,
            passthrough: RwLock::new(Arc::new(passthrough)),
            files: Some(Files { config, tickets, watch }),
            accepts_plain: AtomicBool::new(false),
            on_failure: OnceLock::new(),
        }))
    }

    /// Reads the files again, for handshakes that begin from now on. Clients can still resume their
    /// sessions, unless the authorities of client certificates have changed, or the keys of their
    /// tickets were removed.
    ///
    /// # Errors
    /// As for [`TlsServer::load`], or a certificate that would replace a valid one has expired or
    /// is not valid yet. The configuration stays as it is.
    pub fn reload(&self) -> Result<(), ConfigError> {
        let Some(files) = &self.files else { return Ok(()) };
        let stamps = stamps(&files.config());
        files.watch.note(stamps.clone());
        self.read(files).inspect_err(|error| files.watch.note_until(stamps, error.until))
    }

    /// Reads the files again after a certificate was issued. Returns false if they cannot be used;
    /// [`TlsServer::reload_if_changed`] reports the mistake later.
    pub fn reload_issued(&self) -> bool {
        let Some(files) = &self.files else { return true };
        let stamps = stamps(&files.config());
        let is_read = self.read(files).is_ok();
        if is_read {
            files.watch.note(stamps);
        }
        is_read
    }

    fn read(&self, files: &Files) -> Result<(), ConfigError> {
        let config = files.config().clone();
        self.check_managed(&config)?;
        let earlier = lock(&files.tickets).clone();
        let Loaded { server, served, tickets, mut passthrough, policies } =
            config.load((Some(&earlier), &self.current().policies), &self.certificates())?;
        *lock(&files.tickets) = tickets;
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = served;
        // They may have been replaced since the files' settings were read.
        let mut current = self.passthrough();
        passthrough.keep_patterns(&current);
        *current = Arc::new(passthrough);
        drop(current);
        self.replace_all(server, policies);
        Ok(())
    }

    /// Checks that the managed certificate still exists, if it is served.
    fn check_managed(&self, config: &TlsConfig) -> Result<(), ConfigError> {
        let Some(managed) = &config.managed else { return Ok(()) };
        let is_served = self.certificates().iter().any(|served| served.file == managed.file);
        let unwritten = managed.unwritten.certificate();
        if !is_served || unwritten.is_some() || files::exists(&managed.file)? {
            return Ok(());
        }
        let what = "is missing; the certificate stays in use until a new one is issued";
        Err(ConfigError::new(&managed.file, what))
    }

    /// Returns the keys of session tickets that this process has drawn, for its successor: none if
    /// they come from a file.
    #[must_use]
    pub fn ticket_keys(&self) -> Secret {
        self.files.as_ref().map(|files| lock(&files.tickets).carried()).unwrap_or_default()
    }

    /// Uses the keys of a predecessor for session tickets, so that its clients resume their
    /// sessions. Tickets of a predecessor with another policy for client certificates are not
    /// accepted, and keys of a file are not replaced.
    pub fn take_ticket_keys(&self, keys: &[u8]) {
        if let Some(files) = &self.files {
            lock(&files.tickets).take_over(keys);
            self.current().policies.iter().for_each(|policy| policy.tickets.take_over(keys));
        }
    }

    /// Reads the files of another configuration, to be [installed](Self::install).
    ///
    /// # Errors
    /// As for [`TlsServer::reload`].
    pub fn prepare(&self, config: &TlsConfig) -> Result<Prepared, ConfigError> {
        self.check_managed(config)?;
        let earlier = self.files.as_ref().map(|files| lock(&files.tickets).clone());
        let stamps = stamps(config);
        let earlier = (earlier.as_ref(), &*self.current().policies);
        let loaded = config.load(earlier, &self.certificates())?;
        Ok(Prepared { loaded, config: config.clone(), stamps })
    }

    /// Uses a configuration for handshakes that begin from now on, and its files for reloads.
    pub fn install(&self, prepared: Prepared) {
        if let Some(files) = &self.files {
            *lock(&files.config) = prepared.config;
            files.watch.note(prepared.stamps);
            *lock(&files.tickets) = prepared.loaded.tickets;
        }
        let Loaded { server, served, passthrough, policies, .. } = prepared.loaded;
        *self.served.write().unwrap_or_else(PoisonError::into_inner) = served;
        *self.passthrough() = Arc::new(passthrough);
        self.replace_all(server, policies);
    }

    /// [Reloads](Self::reload) if a file has changed since the last read, or if a certificate that
    /// was refused because it was not valid yet is valid now. Returns whether new files are in use.
    /// Call it about once a second. The second call that finds a mistake reports it: the files of a
    /// certificate are replaced one after the other, so for a moment one is missing, or the key
    /// belongs to another certificate.
    ///
    /// # Errors
    /// As for [`TlsServer::reload`]; the configuration stays as it is until then.
    pub fn reload_if_changed(&self) -> Result<bool, ConfigError> {
        self.reload_if_changed_by(SystemTime::now())
    }

    fn reload_if_changed_by(&self, time: SystemTime) -> Result<bool, ConfigError> {
        let Some(files) = &self.files else { return Ok(false) };
        let now = stamps(&files.config());
        files.watch.read_if_changed(now, time, || self.read(files))
    }

    /// Replaces the configuration for handshakes that begin from now on.
    pub fn replace(&self, config: ServerConfig) {
        self.replace_all(config, Policies::default());
    }

    fn replace_all(&self, own: ServerConfig, policies: Policies<Policy>) {
        let next = Current { own: prepared(own), policies: Arc::new(policies) };
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = next;
    }

    fn current(&self) -> Current {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces [`TlsConfig::passthrough`], for connections whose ClientHello is not complete yet.
    /// Certificates stay as they are, and no file is read.
    pub fn pass_through(&self, patterns: &[Box<str>]) {
        // Done before taking the lock, which all ClientHellos wait for.
        let next = patterns.iter().cloned().collect();
        let mut current = self.passthrough();
        let Some(next) = current.with_patterns(next) else { return };
        *current = Arc::new(next);
        if let Some(files) = &self.files {
            files.config().passthrough = patterns.to_vec();
        }
    }

    fn passthrough(&self) -> RwLockWriteGuard<'_, Arc<Passthrough>> {
        self.passthrough.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the pattern of [`TlsConfig::passthrough`] for a whole ClientHello, and the name in
    /// it, if its connection is passed through.
    #[must_use]
    pub fn route(&self, hello: &[u8]) -> Option<(Box<str>, Option<Box<str>>)> {
        let current = self.passthrough.read().unwrap_or_else(PoisonError::into_inner);
        let passthrough = Arc::clone(&current);
        drop(current);
        passthrough.route(hello)
    }

    /// Sets whether a connection that does not begin with TLS is served without it. If not, which
    /// is the default, it is ended, with the reason if it begins like HTTP.
    pub fn accept_plain(&self, accepts: bool) {
        self.accepts_plain.store(accepts, Relaxed);
    }

    pub(crate) fn accepts_plain(&self) -> bool {
        self.accepts_plain.load(Relaxed)
    }

    /// Sets the callback for handshakes that fail, unless it was set before. It gets the client's
    /// address, or the first one of its IPv6 network (64 bits), and `None` for a Unix socket.
    pub fn on_failure(
        &self,
        callback: impl Fn(Option<IpAddr>, TlsFailure) + Send + Sync + 'static,
    ) {
        let _ = self.on_failure.set(Box::new(callback));
    }

    pub(crate) fn report_failure(&self, client: Option<IpAddr>, why: TlsFailure) {
        self.counters.count_failure(why);
        if let Some(callback) = self.on_failure.get() {
            callback(client, why);
        }
    }

    /// Returns the number of handshakes since the start, of all shards.
    #[must_use]
    pub fn stats(&self) -> HandshakeStats {
        self.counters.read()
    }

    /// Returns the number of sessions that failed after their handshake since the start, of all
    /// shards.
    #[must_use]
    pub fn session_stats(&self) -> SessionStats {
        self.counters.read_sessions()
    }

    /// Returns the number of certificates that were ordered since the start.
    #[must_use]
    pub fn orders(&self) -> OrderStats {
        self.counters.read_orders()
    }

    /// Counts a certificate that was ordered, as issued or as failed.
    pub fn count_order(&self, is_issued: bool) {
        self.counters.count_order(is_issued);
    }

    /// Returns the certificates that clients are shown, if they come from files.
    #[must_use]
    pub fn certificates(&self) -> Vec<ServedCertificate> {
        self.served.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a handshake by the server's own rules.
    ///
    /// # Errors
    /// The configuration is not usable.
    pub fn handshake(&self) -> Result<Handshake, Failed> {
        Handshake::new(self.current().own)
    }

    /// Begins a handshake by the rules for the name in a whole ClientHello, which is still to be
    /// received.
    ///
    /// # Errors
    /// The configuration is not usable.
    pub fn handshake_for(&self, hello: &[u8]) -> Result<Handshake, Failed> {
        let Current { own, policies } = self.current();
        match policies.of_hello(hello) {
            None => Handshake::new(own),
            Some(Policy { number, config, .. }) => {
                Ok(Handshake::new(Arc::clone(config))?.of_policy(*number))
            }
        }
    }
}

/// A configuration whose files were read.
pub struct Prepared {
    loaded: Loaded,
    config: TlsConfig,
    stamps: Stamps,
}

impl Prepared {
    /// Replaces [`TlsConfig::passthrough`].
    #[must_use]
    pub fn passing_through(mut self, patterns: Vec<Box<str>>) -> Self {
        let names = patterns.iter().cloned().collect();
        if let Some(next) = self.loaded.passthrough.with_patterns(names) {
            self.loaded.passthrough = next;
        }
        self.config.passthrough = patterns;
        self
    }
}

impl Files {
    fn config(&self) -> MutexGuard<'_, TlsConfig> {
        lock(&self.config)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prepared(mut config: ServerConfig) -> Arc<ServerConfig> {
    prepare(&mut config);
    Arc::new(config)
}

fn stamps(config: &TlsConfig) -> Stamps {
    let files = config.certificates.iter().flat_map(|files| [&files.chain, &files.key]);
    let of_policies = config.policies.iter().filter_map(|policy| policy.client_auth.as_ref());
    let clients = config.client_auth.iter().chain(of_policies);
    let files = files
        .chain(config.managed.iter().map(|managed| &managed.file))
        .chain(clients.flat_map(|auth| [Some(&auth.authorities), auth.revoked.as_ref()]).flatten())
        .chain(&config.ticket_keys);
    watch::stamps(files.map(PathBuf::as_path))
}

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsServer")
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::CertificateFiles;

    /// A server without a certificate.
    pub(crate) fn any() -> Arc<TlsServer> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(rustls::server::ResolvesServerCertUsingSni::new()));
        TlsServer::new(config)
    }

    #[test]
    fn a_certificate_that_is_not_valid_yet_is_looked_at_again_when_it_is() {
        let dir = throng_testkit::TempFolder::new("tls-due");
        let [chain, key] = ["it.pem", "it.key"].map(|name| dir.join(name));
        let write = |from: i32| {
            let made = rcgen::KeyPair::generate().unwrap();
            let names = vec!["localhost".to_owned()];
            let mut params = rcgen::CertificateParams::new(names).unwrap();
            params.not_before = rcgen::date_time_ymd(from, 1, 1);
            params.not_after = rcgen::date_time_ymd(from + 1000, 1, 1);
            std::fs::write(&chain, params.self_signed(&made).unwrap().pem()).unwrap();
            std::fs::write(&key, made.serialize_pem()).unwrap();
            let written = std::fs::File::options().write(true).open(&chain).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(from as u64);
            written.set_modified(time).unwrap();
        };
        write(2000);
        let files = CertificateFiles { chain: chain.clone(), key: key.clone() };
        let server = TlsServer::load(TlsConfig::new(vec![files])).unwrap();
        write(3000);
        let begins = SystemTime::UNIX_EPOCH + Duration::from_secs(32_503_680_000);
        let before = begins - Duration::from_secs(1);
        for by_hand in [false, true] {
            let error = match by_hand {
                true => server.reload().unwrap_err(),
                false => {
                    assert!(!server.reload_if_changed_by(before).unwrap());
                    server.reload_if_changed_by(before).unwrap_err()
                }
            };
            assert!(error.to_string().ends_with("which is valid, stays"), "{error}");
            for _ in 0..3 {
                assert!(!server.reload_if_changed_by(before).unwrap(), "it is said once");
            }
            // If read again, it is refused because of this machine's clock.
            assert!(!server.reload_if_changed_by(begins).unwrap());
            server.reload_if_changed_by(begins).unwrap_err();
        }
    }
}
