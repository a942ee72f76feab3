//! The client of an authority, on a thread of its own.

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use instant_acme::{Account, AccountCredentials, CertificateIdentifier, Error, NewAccount};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use throng_tls::{
    Challenges, ClientConfigs, ClientSettings, ConfigError, Managed, TlsServer, Trust, Unwritten,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use zeroize::Zeroizing;

use crate::http::Http;
use crate::order::{Certified, Failure, order};
use crate::schedule::{LONGEST_WAIT, Validity, Window, hold_after, poll_after, random, wait_after};
use crate::settings::AcmeSettings;
use crate::store::{Issued, Store, account_text};

/// Time limit of an order, with the validation of all its domains.
const ORDER_LIMIT: Duration = Duration::from_secs(600);

/// Maximum sleep before the clock is read again, since someone may have set it.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// The shortest time between two certificates.
const BETWEEN_ORDERS: Duration = Duration::from_secs(3600);

/// The time between two checks for the outcome of another process's order.
const OTHERS_ORDER: Duration = Duration::from_secs(10);

/// The time until a certificate is served that was issued while the server's files could not be
/// read.
const UNTIL_SERVED: Duration = Duration::from_secs(60);

/// Maximum time between two attempts to write an issued certificate.
const UNTIL_WRITTEN: Duration = Duration::from_secs(600);

/// The time between two requests for renewal information while the authority offers no such
/// information or is unreachable.
const WITHOUT_INFORMATION: Duration = Duration::from_secs(6 * 3600);

/// A certificate to obtain from an authority: its settings and files, and the answers to
/// challenges.
#[derive(Clone)]
pub struct Acme {
    settings: AcmeSettings,
    store: Store,
    configs: Arc<ClientConfigs>,
    challenges: Arc<Challenges>,
    unwritten: Arc<Unwritten>,
}

/// The outcome of an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AcmeEvent<'a> {
    /// A certificate was issued, and is served.
    Issued {
        /// Its names.
        names: &'a [String],
        /// When it expires.
        expires: SystemTime,
        /// When it will be renewed.
        renewal: SystemTime,
    },
    /// No certificate was issued; the current certificate stays in use.
    Failed {
        /// The cause.
        reason: &'a str,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// An issued certificate could not be written. It is served, and is lost when the process ends.
    Unwritten {
        /// The cause.
        reason: &'a str,
        /// The time until the next attempt.
        retry_in: Duration,
    },
}

impl Acme {
    /// Does the same as [`Acme::open`], then removes all files and folders that it has created.
    ///
    /// # Errors
    /// As for [`Acme::open`].
    pub fn check_start(settings: AcmeSettings) -> Result<(), ConfigError> {
        client_configs(&settings)?;
        Store::check(&settings)
    }

    /// Opens the folder of the certificate.
    ///
    /// # Errors
    /// A setting is invalid, as for [`AcmeSettings::check`]; the folder is not writable for a
    /// reason other than a full disk; or the file of authorities is unusable.
    pub fn open(settings: AcmeSettings) -> Result<Self, ConfigError> {
        let configs = client_configs(&settings)?;
        let store = Store::open(&settings)?;
        let (challenges, unwritten) = Default::default();
        Ok(Self { settings, store, configs, challenges, unwritten })
    }

    /// Returns the certificate for [`TlsConfig::managed`](throng_tls::TlsConfig::managed).
    #[must_use]
    pub fn managed(&self) -> Managed {
        Managed {
            file: self.store.certificate.clone(),
            domains: self.settings.domains.clone(),
            challenges: Arc::clone(&self.challenges),
            unwritten: Arc::clone(&self.unwritten),
        }
    }

    /// Starts the client of the authority for the certificate of `server`, which already answers.
    /// Until the client is dropped, it orders the certificate if there is none for these domains,
    /// renews it, and reports each attempt.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        self,
        server: Arc<TlsServer>,
        report: impl Fn(&AcmeEvent<'_>) + Send + 'static,
    ) -> io::Result<AcmeClient> {
        self.start_with(server, Box::new(report))
    }

    /// Starts the client; not generic, so that it is compiled once.
    fn start_with(self, server: Arc<TlsServer>, report: OrderReport) -> io::Result<AcmeClient> {
        let signals = Arc::new(Signals::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let mut names: Vec<_> =
            self.settings.domains.iter().map(|name| name.to_ascii_lowercase()).collect();
        names.sort();
        names.dedup();
        let mut worker = Worker {
            http: Http::new(Arc::clone(&self.configs)),
            acme: self,
            names,
            server,
            report,
            account: None,
            unwritten_account: None,
            held: None,
            served: None,
            is_unreported: false,
            chosen: None,
            jitter: random(),
        };
        let heard = Arc::clone(&signals);
        let thread = thread::Builder::new().name("acme".to_owned()).spawn(move || {
            let mut pause = Duration::ZERO;
            while let Err(panic) = work(&runtime, &mut worker, &heard, pause) {
                pause = LONGEST_WAIT;
                worker.report_panic(&*panic, pause);
            }
            worker.keep_at_last();
            // A lookup of a host's name cannot be stopped.
            runtime.shutdown_background();
        })?;
        Ok(AcmeClient { signals, thread: Some(thread) })
    }
}

/// Checks the settings, and reads the authorities that certify the directory's server.
fn client_configs(settings: &AcmeSettings) -> Result<Arc<ClientConfigs>, ConfigError> {
    settings.check().map_err(|error| ConfigError::without_file(error.to_string()))?;
    let trust = settings.ca.clone().map_or(Trust::System, Trust::File);
    ClientConfigs::load(ClientSettings { trust, ..ClientSettings::default() })
}

/// Runs the client until it must stop. An error is the message of a panic.
fn work(
    runtime: &Runtime,
    worker: &mut Worker,
    heard: &Signals,
    pause: Duration,
) -> thread::Result<()> {
    catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            tokio::select! {
                () = worker.run(pause, &heard.check) => {}
                () = heard.stop.notified() => {}
            }
        });
    }))
}

impl fmt::Debug for Acme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Acme").field(&self.settings).finish()
    }
}

/// A running client of an authority. It ends when it is dropped.
#[derive(Debug)]
pub struct AcmeClient {
    signals: Arc<Signals>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Signals {
    check: Notify,
    stop: Notify,
}

impl AcmeClient {
    /// Checks at once whether the certificate must be ordered or renewed, ahead of the planned
    /// time.
    pub fn check_now(&self) {
        self.signals.check.notify_one();
    }
}

impl Drop for AcmeClient {
    fn drop(&mut self) {
        self.signals.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type OrderReport = Box<dyn Fn(&AcmeEvent<'_>) + Send>;

/// The client on its thread.
struct Worker {
    acme: Acme,
    http: Http,
    /// In lower case and in order.
    names: Vec<String>,
    server: Arc<TlsServer>,
    report: OrderReport,
    account: Option<Account>,
    /// A new account that is not yet written.
    unwritten_account: Option<Zeroizing<Vec<u8>>>,
    held: Option<Held>,
    /// The certificate that the server has last read.
    served: Option<CertificateDer<'static>>,
    /// Whether a certificate was issued but not yet reported.
    is_unreported: bool,
    /// The time that was picked in the last window.
    chosen: Option<(Window, SystemTime)>,
    /// The jitter of this process, for certificates without renewal information.
    jitter: f64,
}

/// An issued certificate that is not yet written and served.
struct Held {
    certified: Certified,
    key: Arc<CertifiedKey>,
    is_written: bool,
    /// Failed attempts to write the certificate.
    failures: u32,
    /// The time from the last attempt to the next. A full disk may soon have space again, and a
    /// retry costs the authority nothing.
    retry_in: Duration,
}

/// When to renew a certificate, and when to check that time again.
struct RenewalPlan {
    due: SystemTime,
    look: SystemTime,
}

impl Worker {
    /// Handles the certificate after a pause, then each time it is due or `check` requests it.
    async fn run(&mut self, pause: Duration, check: &Notify) {
        tokio::time::sleep(pause).await;
        let mut failures = 0_u32;
        loop {
            let next = match self.attend().await {
                Ok(next) => {
                    failures = 0;
                    next
                }
                Err(failure) => {
                    failures = failures.saturating_add(1);
                    let retry_after = self.http.take_retry_after();
                    let wait = wait_after(failures, random()).max(retry_after.unwrap_or_default());
                    // The attempt has answered requests that arrived during it: drop them.
                    tokio::select! {
                        biased;
                        () = check.notified() => {}
                        () = std::future::ready(()) => {}
                    }
                    self.report_failure(&failure.reason, wait);
                    let next = later(wait);
                    tokio::time::sleep(hold_after(failures, retry_after)).await;
                    next
                }
            };
            let held = self.held.as_ref().map(|held| later(held.retry_in));
            tokio::select! {
                () = sleep_until(held.map_or(next, |held| held.min(next))) => {}
                () = check.notified() => {}
            }
        }
    }

    fn report_failure(&mut self, reason: &str, retry_in: Duration) {
        self.account = None;
        self.server.count_order(false);
        (self.report)(&AcmeEvent::Failed { reason, retry_in });
    }

    fn report_panic(&mut self, panic: &(dyn Any + Send), retry_in: Duration) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref().copied()).unwrap_or("no message");
        let reason = format!(
            "the client of the authority has panicked ({text}): restart the server to try at once, \
             and report this bug of Throng"
        );
        self.report_failure(&reason, retry_in);
    }

    /// Writes a held certificate, and orders a certificate if one is due. Returns when to check
    /// again.
    async fn attend(&mut self) -> Result<SystemTime, Failure> {
        // The wait of an earlier attempt is over.
        self.http.take_retry_after();
        if self.held.is_some() {
            match self.acme.store.try_lock() {
                Ok(Some(lock)) => self.keep(&lock),
                Ok(None) => {}
                Err(error) => self.report_unwritten(&error),
            }
        }
        self.renew().await
    }

    /// Orders a certificate if one is due. Returns when to check again.
    async fn renew(&mut self) -> Result<SystemTime, Failure> {
        let current = self.current()?;
        if let Some(current) = &current {
            if !self.serve(current) {
                return Ok(SystemTime::now() + UNTIL_SERVED);
            }
            let plan = self.plan(current).await;
            if plan.due > SystemTime::now() {
                return Ok(self.report_issued(current, &plan));
            }
        }
        let Some(lock) = self.acme.store.try_lock()? else {
            return Ok(SystemTime::now() + OTHERS_ORDER);
        };
        if self.current()?.is_some_and(|found| self.served.as_ref() != Some(&found.certificate)) {
            // Another process has ordered the certificate.
            return Ok(SystemTime::now());
        }
        self.acme.store.try_room()?;
        let certified = self.order(current.as_ref()).await?;
        self.server.count_order(true);
        let key = Arc::new(certified.certified_key()?);
        let issued = key.cert.first().cloned().and_then(Issued::of);
        let Some(issued) = issued.filter(|issued| self.has_all(issued)) else {
            return Err("the certificate that was issued lacks domains of the order".into());
        };
        self.held =
            Some(Held { certified, key, is_written: false, failures: 0, retry_in: UNTIL_SERVED });
        self.is_unreported = true;
        self.keep(&lock);
        if !self.serve(&issued) {
            return Ok(SystemTime::now() + UNTIL_SERVED);
        }
        let plan = self.plan(&issued).await;
        Ok(self.report_issued(&issued, &plan))
    }

    /// Writes the held certificate and makes the server use it; until the write succeeds, the
    /// server uses the copy in memory. The caller has locked the folder.
    fn keep(&mut self, _lock: &File) {
        let Some(held) = &mut self.held else { return };
        if !held.is_written {
            let Certified { chain, key } = &held.certified;
            match self.acme.store.write_certificate(chain, key) {
                Ok(()) => held.is_written = true,
                Err(error) => self.report_unwritten(&error),
            }
        }
        let Some(held) = &self.held else { return };
        let unwritten = &self.acme.unwritten;
        if held.is_written {
            unwritten.set(None);
            if self.server.reload_issued() {
                self.served = held.key.cert.first().cloned();
                self.held = None;
                return;
            }
        }
        unwritten.set(Some(Arc::clone(&held.key)));
    }

    fn report_unwritten(&mut self, error: &ConfigError) {
        let Some(held) = &mut self.held else { return };
        held.failures = held.failures.saturating_add(1);
        held.retry_in = wait_after(held.failures, random()).min(UNTIL_WRITTEN);
        let (reason, retry_in) = (error.to_string(), held.retry_in);
        (self.report)(&AcmeEvent::Unwritten { reason: &reason, retry_in });
    }

    /// Tries once more to write a certificate that the process is about to lose.
    fn keep_at_last(&mut self) {
        if self.held.as_ref().is_some_and(|held| !held.is_written)
            && let Ok(Some(lock)) = self.acme.store.try_lock()
        {
            self.keep(&lock);
        }
    }

    /// Reports the certificate in use, unless that was done before. Returns when to check again.
    fn report_issued(&mut self, issued: &Issued, plan: &RenewalPlan) -> SystemTime {
        if !std::mem::take(&mut self.is_unreported) {
            return plan.look;
        }
        let earliest = SystemTime::now() + BETWEEN_ORDERS;
        let (names, expires) = (&self.names, issued.validity.until);
        (self.report)(&AcmeEvent::Issued { names, expires, renewal: plan.due.max(earliest) });
        plan.look.max(earliest)
    }

    /// Returns the certificate, if there is one with the domains.
    fn current(&self) -> Result<Option<Issued>, Failure> {
        let held = self.held.as_ref().and_then(|held| held.key.cert.first().cloned());
        if let Some(issued) = held.and_then(Issued::of) {
            return Ok(Some(issued));
        }
        Ok(self.acme.store.certificate()?.filter(|issued| self.has_all(issued)))
    }

    fn has_all(&self, issued: &Issued) -> bool {
        self.names.iter().all(|name| issued.names.contains(name))
    }

    /// Makes the server read a certificate, unless it has already read it. Returns false if another
    /// of the server's files has a mistake. This does not count as a failure of the authority; the
    /// watch of the files reports it.
    fn serve(&mut self, issued: &Issued) -> bool {
        if self.served.as_ref() != Some(&issued.certificate) {
            if !self.server.reload_issued() {
                return false;
            }
            self.served = Some(issued.certificate.clone());
        }
        true
    }

    /// Returns when to renew a certificate: at a time within the authority's window (RFC 9773), or
    /// by its age.
    async fn plan(&mut self, issued: &Issued) -> RenewalPlan {
        let now = SystemTime::now();
        let Validity { until, .. } = issued.validity;
        match self.window(issued).await {
            Ok((window, poll)) => {
                let chosen = self.chosen.filter(|(chosen, _)| *chosen == window);
                let (_, time) =
                    *self.chosen.insert(chosen.unwrap_or_else(|| (window, window.pick(random()))));
                let due = time.min(until);
                RenewalPlan { due, look: due.min(now + poll_after(poll)) }
            }
            Err(_) => {
                let due = issued.validity.renewal(self.jitter);
                RenewalPlan { due, look: due.min(now + WITHOUT_INFORMATION) }
            }
        }
    }

    /// Asks the authority when to renew a certificate, and when to ask again.
    async fn window(&mut self, issued: &Issued) -> Result<(Window, Duration), Failure> {
        // Only an order, which holds the folder's lock, creates an account.
        let account = match self.known_account().await? {
            Some(account) => account,
            None => return Err("there is no account".into()),
        };
        let id = CertificateIdentifier::try_from(&issued.certificate)?;
        let (info, poll) = account.renewal_info(&id).await.map_err(Failure::of)?;
        let window = info.suggested_window;
        let (start, end) = (window.start.into(), window.end.into());
        Ok((Window { start, end }, poll))
    }

    async fn order(&mut self, current: Option<&Issued>) -> Result<Certified, Failure> {
        match self.try_order(current).await {
            // The authority has lost the account.
            Err(failure) if failure.is("accountDoesNotExist") => {
                self.account = None;
                self.unwritten_account = None;
                self.acme.store.remove_account()?;
                self.try_order(current).await
            }
            outcome => outcome,
        }
    }

    async fn try_order(&mut self, current: Option<&Issued>) -> Result<Certified, Failure> {
        let account = self.account().await?;
        let Acme { settings, challenges, .. } = &self.acme;
        let replaced = current.map(|current| &current.certificate);
        let order = order(&account, &self.names, settings.challenge, challenges, replaced);
        match tokio::time::timeout(ORDER_LIMIT, order).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("not issued within {} s", ORDER_LIMIT.as_secs()).into()),
        }
    }

    /// Returns the account, if there is one.
    async fn known_account(&mut self) -> Result<Option<Account>, Failure> {
        if self.account.is_none()
            && let Some(credentials) = self.credentials()?
        {
            let builder = Account::builder_with_http(Box::new(self.http.clone()));
            let account = builder.from_credentials(credentials).await;
            self.account = Some(account.map_err(|error| self.explain(error))?);
        }
        Ok(self.account.clone())
    }

    /// Returns the key of the account, if there is one, including an account that could not be
    /// written.
    fn credentials(&self) -> Result<Option<AccountCredentials>, Failure> {
        match &self.unwritten_account {
            Some(text) => Ok(Some(serde_json::from_slice(text)?)),
            None => Ok(self.acme.store.account()?),
        }
    }

    /// Writes a new account, unless it is already written. The caller has locked the folder.
    fn keep_account(&mut self) -> Result<(), Failure> {
        if let Some(text) = &self.unwritten_account {
            self.acme.store.write_account(text)?;
            self.unwritten_account = None;
        }
        Ok(())
    }

    /// Returns the account, creating it if necessary. The caller has locked the folder, so only one
    /// of several processes creates the account.
    async fn account(&mut self) -> Result<Account, Failure> {
        self.keep_account()?;
        if let Some(account) = self.known_account().await? {
            return Ok(account);
        }
        let AcmeSettings { email, directory, agree_tos, .. } = &self.acme.settings;
        let builder = Account::builder_with_http(Box::new(self.http.clone()));
        let contact = email.as_ref().map(|email| format!("mailto:{email}"));
        let account = NewAccount {
            contact: &contact.as_slice().iter().map(String::as_str).collect::<Vec<_>>(),
            terms_of_service_agreed: *agree_tos,
            only_return_existing: false,
        };
        let created = builder.create(&account, directory.clone(), None).await;
        let (account, credentials) = created.map_err(|error| self.explain(error))?;
        self.unwritten_account = Some(account_text(&credentials)?);
        self.keep_account()?;
        self.account = Some(account.clone());
        Ok(account)
    }

    /// Names the setting that explains why the directory is unreachable.
    fn explain(&self, error: Error) -> Failure {
        let directory = &self.acme.settings.directory;
        let failure = Failure::of(error);
        if failure.kind.is_some() {
            return failure;
        }
        let hint = match self.acme.settings.ca {
            None => "; check tls.acme.directory, and tls.acme.ca if its authority is private",
            Some(_) => "; check tls.acme.directory and tls.acme.ca",
        };
        Failure {
            reason: format!("the directory {directory}: {}{hint}", failure.reason),
            ..failure
        }
    }
}

/// Returns the time after a wait.
fn later(wait: Duration) -> SystemTime {
    let now = SystemTime::now();
    now.checked_add(wait).unwrap_or(now + LONGEST_WAIT)
}

/// Sleeps until a time by the system's clock.
async fn sleep_until(time: SystemTime) {
    while let Ok(left) = time.duration_since(SystemTime::now())
        && !left.is_zero()
    {
        tokio::time::sleep(left.min(MAX_SLEEP)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use throng_testkit::TempFolder;
    use throng_tls::TlsConfig;

    use super::*;

    /// Returns settings with a directory at which no server listens, and their folder.
    fn settings(name: &str) -> (TempFolder, AcmeSettings) {
        let dir = TempFolder::new(&format!("acme-{name}"));
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        let ca = dir.write("ca.pem", made.cert.pem());
        let settings = AcmeSettings {
            domains: vec!["a.example".to_owned()],
            directory: "https://127.0.0.1:1/dir".to_owned(),
            ca: Some(ca),
            agree_tos: true,
            ..AcmeSettings::new(dir.to_path_buf())
        };
        (dir, settings)
    }

    #[test]
    fn settings_that_cannot_be_used_change_no_file() {
        let (_dir, settings) = settings("check");
        let settings = AcmeSettings { agree_tos: false, ..settings };
        let error = Acme::open(settings.clone()).unwrap_err().to_string();
        assert!(error.contains("agree_tos = true"), "{error}");
        assert!(!settings.folder().exists());
    }

    /// Returns a certificate for `name` and its key, in PEM.
    fn made(name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_certificate_that_another_file_keeps_from_being_served_is_no_failure_of_the_authority() {
        let (_dir, settings) = settings("served");
        let acme = Acme::open(settings.clone()).unwrap();
        let (chain, key) = (settings.dir.join("other.pem"), settings.dir.join("other.key"));
        let other = made("b.example");
        std::fs::write(&chain, &other.0).unwrap();
        std::fs::write(&key, &other.1).unwrap();
        let files = vec![throng_tls::CertificateFiles { chain: chain.clone(), key }];
        let managed = Some(acme.managed());
        let server = TlsServer::load(TlsConfig { managed, ..TlsConfig::new(files) }).unwrap();
        // The certificate was issued, and another file was damaged afterwards.
        let (own, own_key) = made("a.example");
        acme.store.write_certificate(&own, &own_key).unwrap();
        std::fs::write(&chain, "damaged").unwrap();
        let (reports, events) = mpsc::channel();
        let report = move |event: &AcmeEvent<'_>| reports.send(format!("{event:?}")).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut worker = Worker {
            http: Http::new(Arc::clone(&acme.configs)),
            acme,
            names: settings.domains.clone(),
            server: Arc::clone(&server),
            report: Box::new(report),
            account: None,
            unwritten_account: None,
            held: None,
            served: None,
            is_unreported: true,
            chosen: None,
            jitter: 0.5,
        };
        runtime.block_on(worker.attend()).unwrap();
        assert_eq!((server.orders().failed, events.try_iter().count()), (0, 0));
        // The watch of the files reports the mistake once, even if several checks find it.
        assert!(!server.reload_if_changed().unwrap(), "it may be half of a change");
        let error = server.reload_if_changed().unwrap_err().to_string();
        assert!(error.contains("other.pem"), "{error}");
        runtime.block_on(worker.attend()).unwrap();
        for _ in 0..3 {
            assert!(!server.reload_if_changed().unwrap());
        }
        std::fs::write(&chain, &other.0).unwrap();
        runtime.block_on(worker.attend()).unwrap();
        let reported: Vec<_> = events.try_iter().collect();
        assert!(reported.len() == 1 && reported[0].contains("a.example"), "{reported:?}");
        assert_eq!(server.certificates().len(), 2);
        // The request for renewal information does not hold the lock, so it creates no account.
        assert!(!settings.folder().join("account.json").exists());
    }

    #[test]
    fn a_panic_is_reported_and_the_thread_stays_until_it_is_stopped() {
        let (_dir, settings) = settings("panic");
        let acme = Acme::open(settings.clone()).unwrap();
        let managed = Some(acme.managed());
        let server = TlsServer::load(TlsConfig { managed, ..TlsConfig::new(Vec::new()) }).unwrap();
        let (reports, events) = mpsc::channel();
        let report = move |event: &AcmeEvent<'_>| {
            let AcmeEvent::Failed { reason, retry_in } = event else { return };
            reports.send(((*reason).to_owned(), *retry_in)).unwrap();
            assert!(reason.contains("has panicked"), "the panic of a test");
        };
        let client = acme.start(server, report).unwrap();
        let (reason, _) = events.recv().unwrap();
        assert!(reason.contains("the directory"), "{reason}");
        let (reason, retry_in) = events.recv().unwrap();
        assert!(reason.contains("(the panic of a test): restart the server"), "{reason}");
        assert_eq!(retry_in, LONGEST_WAIT);
        drop(client);
        assert!(events.recv().is_err());
    }
}
