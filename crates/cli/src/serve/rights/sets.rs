//! Sets of public keys that an issuer publishes (JWKS), fetched and renewed by a thread.

use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use throng_load::Target;
use throng_token::{Claims, KeySet, TokenError, Verifier};

use crate::failure::Failure;
use crate::http_client::{ClientResponse, converse};
use crate::log::{Log, events};

/// Time after which a set is fetched again.
const RENEWED_AFTER: Duration = Duration::from_secs(3600);
/// Time to the next try after a failure, doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Least time between two fetches that tokens with an unknown key ask for: strangers can send such
/// tokens at any rate.
const ASKED_AFTER: Duration = Duration::from_secs(10);
/// Time limit of a fetch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The URLs of sets, and what their tokens must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    pub(crate) urls: Vec<String>,
    /// Authorities of the issuers' servers; `None`: the system's.
    pub(crate) authorities: Option<PathBuf>,
    pub(crate) audience: Option<String>,
    pub(crate) issuer: Option<String>,
}

/// The keys of all sets. A set that cannot be fetched keeps its keys.
#[derive(Debug)]
pub(crate) struct Sets {
    sources: Sources,
    /// One for each set that was fetched.
    verifiers: RwLock<Arc<[Verifier]>>,
    /// Asks the thread to fetch.
    ask: SyncSender<()>,
    /// Taken by the thread.
    asked: Mutex<Option<Receiver<()>>>,
}

impl Sets {
    pub(crate) fn new(sources: Sources) -> Arc<Self> {
        let (ask, asked) = mpsc::sync_channel(1);
        Arc::new(Self {
            sources,
            verifiers: RwLock::default(),
            ask,
            asked: Mutex::new(Some(asked)),
        })
    }

    /// Returns whether the other sets have the same sources, so that these can stay.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        self.sources == other.sources
    }

    /// Verifies a token. An unknown key may be a new one, so the sets are fetched soon.
    pub(crate) fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        let verifiers = Arc::clone(&self.verifiers.read().unwrap_or_else(PoisonError::into_inner));
        let mut refusal = TokenError::UnknownKey;
        for verifier in &*verifiers {
            match verifier.verify(token) {
                Ok(claims) => return Ok(claims),
                Err(TokenError::UnknownKey) => {}
                Err(error) => refusal = error,
            }
        }
        if refusal == TokenError::UnknownKey {
            // It is asked already.
            let _ = self.ask.try_send(());
        }
        Err(refusal)
    }

    /// Starts the thread, unless it runs. It ends with the last use of the sets.
    pub(crate) fn start(self: &Arc<Self>, log: &Log) -> Result<(), Failure> {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(asked) = asked else { return Ok(()) };
        let (sets, log) = (Arc::downgrade(self), log.clone());
        let thread = std::thread::Builder::new().name("token keys".to_owned());
        let started = thread.spawn(move || renew(&sets, &asked, &log));
        started.map(drop).map_err(|error| Failure::runtime(error.to_string()))
    }

    fn use_keys<'s>(&self, sets: impl Iterator<Item = &'s KeySet>) {
        let Sources { audience, issuer, .. } = &self.sources;
        let of_one = |set: &KeySet| {
            let verifier = Verifier::new().keys(set.keys().to_vec());
            verifier.audience(audience.clone()).issuer(issuer.clone())
        };
        *self.verifiers.write().unwrap_or_else(PoisonError::into_inner) =
            sets.map(of_one).collect();
    }
}

/// Fetches sets again and again, until they are not in use.
fn renew(sets: &Weak<Sets>, asked: &Receiver<()>, log: &Log) {
    let mut known: Vec<Option<KeySet>> = Vec::new();
    let mut failures = 0;
    loop {
        let Some(in_use) = sets.upgrade() else { return };
        let Sources { urls, authorities, .. } = &in_use.sources;
        known.resize(urls.len(), None);
        let mut failed = false;
        for (url, known) in urls.iter().zip(&mut known) {
            match fetch(url, authorities.as_ref()) {
                Ok(set) => {
                    if known.as_ref().map(KeySet::ids) != Some(set.ids()) {
                        let keys = set.keys().len().into();
                        let fields = [("url", url.as_str().into()), ("keys", keys)];
                        log.event(&events::TOKEN_KEYS, "", fields);
                    }
                    *known = Some(set);
                }
                Err(why) => {
                    failed = true;
                    let fields = [("url", url.as_str().into()), ("reason", why.into())];
                    log.event(&events::TOKEN_KEYS_FAILED, "known keys stay in use", fields);
                }
            }
        }
        in_use.use_keys(known.iter().flatten());
        drop(in_use);
        failures = if failed { failures + 1 } else { 0 };
        let pause = FIRST_PAUSE.saturating_mul(1 << failures.clamp(1, 8)).min(LONGEST_PAUSE);
        if !wait(asked, if failed { pause } else { RENEWED_AFTER }) {
            return;
        }
    }
}

/// Waits for as long, or until a fetch is asked for; returns false once the sets are gone.
fn wait(asked: &Receiver<()>, time: Duration) -> bool {
    // What was asked before the fetch is answered by it.
    while asked.try_recv().is_ok() {}
    let began = Instant::now();
    match asked.recv_timeout(time) {
        Err(RecvTimeoutError::Disconnected) => false,
        Err(RecvTimeoutError::Timeout) => true,
        Ok(()) => {
            let until = began + ASKED_AFTER;
            loop {
                let left = until.saturating_duration_since(Instant::now());
                match asked.recv_timeout(left) {
                    Err(RecvTimeoutError::Disconnected) => return false,
                    Err(RecvTimeoutError::Timeout) => return true,
                    Ok(()) => {}
                }
            }
        }
    }
}

/// Checks a URL of a set.
///
/// # Errors
/// The remedy.
pub(crate) fn check_url(url: &str) -> Result<(), String> {
    let target = Target::parse_http(url).map_err(|error| error.to_string())?;
    let is_local = target.lookup_host().parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    match url.starts_with("https://") || is_local {
        true => Ok(()),
        // An attacker in between would sign.
        false => Err("write https:// unless it is a loopback address".to_owned()),
    }
}

/// Fetches a set. Follows no redirection, so that only a server of the settings has keys.
fn fetch(url: &str, authorities: Option<&PathBuf>) -> Result<KeySet, String> {
    let until = Instant::now() + TIMEOUT;
    let target = Target::parse_http(url).map_err(|error| error.to_string())?;
    let address = target.resolve().map_err(|error| error.to_string())?;
    let stream =
        TcpStream::connect_timeout(&address, TIMEOUT).map_err(|error| error.to_string())?;
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nAccept: application/json\r\nConnection: close\r\n\r\n",
        target.resource("/"),
        target.host_header()
    );
    let answer = ask(stream, &target, authorities, request.as_bytes(), until)?;
    match answer.status {
        200 => KeySet::parse(&answer.body),
        status => Err(format!("the answer has the status {status}")),
    }
}

#[cfg(feature = "tls")]
fn ask(
    stream: TcpStream,
    target: &Target,
    authorities: Option<&PathBuf>,
    request: &[u8],
    until: Instant,
) -> Result<ClientResponse, String> {
    use throng_load::{TlsPlan, TlsTrust};

    let trust = authorities.map_or(TlsTrust::System, |file| TlsTrust::File(file.clone()));
    let plan = TlsPlan { trust, ..TlsPlan::default() };
    let client = plan.load(target).map_err(|error| error.to_string())?;
    let Some(client) = client else {
        return converse(stream, request, until).map_err(|error| error.why);
    };
    let limited = stream.set_read_timeout(Some(TIMEOUT));
    let limited = limited.and_then(|()| stream.set_write_timeout(Some(TIMEOUT)));
    let secured = limited.and_then(|()| client.handshake_on(stream));
    let stream = secured.map_err(|error| format!("its TLS handshake failed: {error}"))?;
    converse(stream, request, until).map_err(|error| error.why)
}

#[cfg(not(feature = "tls"))]
fn ask(
    stream: TcpStream,
    target: &Target,
    _: Option<&PathBuf>,
    request: &[u8],
    until: Instant,
) -> Result<ClientResponse, String> {
    match target.is_secure() {
        true => Err(crate::NO_TLS.to_owned()),
        false => converse(stream, request, until).map_err(|error| error.why),
    }
}
