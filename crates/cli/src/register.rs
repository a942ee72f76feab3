//! `throng serve --register`: a backend that registers with balancers, and unregisters when it
//! ends.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::json;
use throng_config::{Listen, Token};

use crate::failure::Failure;
use crate::http_client::{Client, ClientResponse, JsonBody as _};
use crate::log::{Log, events};
use crate::terminal;

/// Time limit of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A balancer that is away must not delay the end of this process.
const FINAL_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between the first two tries while a balancer is away; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The flags.
#[derive(clap::Args)]
pub(crate) struct Flags {
    /// Be a backend of the balancer whose admin API is at this address; may be repeated
    ///
    /// It learns as well when this server goes.
    #[arg(long, value_name = "URL")]
    register: Vec<String>,
    /// The balancer's token for backends is in this file
    #[arg(long, value_name = "FILE", requires = "register", hide_short_help = true)]
    register_token_file: Option<PathBuf>,
    /// Share of this server, compared with the other backends: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 1, requires = "register",
          hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..=1000))]
    register_weight: u32,
    /// Where the balancer finds this server [default: the address of --listen, or where that
    /// is all addresses, this machine's on the way to the balancer]
    #[arg(long, value_name = "ADDRESS:PORT", requires = "register", hide_short_help = true)]
    register_address: Option<SocketAddr>,
}

/// The order to end without a message to the balancer.
struct Quietly;

/// The registrations of a server, each on a separate thread.
pub(crate) struct Registrations {
    threads: Vec<(mpsc::Sender<Quietly>, JoinHandle<()>)>,
}

impl Flags {
    /// Returns the balancers, before the server listens on these values of `listen`, and warnings.
    pub(crate) fn checked(
        &self,
        listen: &[String],
    ) -> Result<(Vec<Client>, Option<String>), Failure> {
        if self.register.is_empty() {
            return Ok((Vec::new(), None));
        }
        let is_unix = |listen: &String| matches!(Listen::parse(listen), Listen::Unix(_));
        if self.register_address.is_none() && listen.iter().all(is_unix) {
            return Err(no_address());
        }
        let Some(file) = &self.register_token_file else {
            return Err(Failure::usage(
                "--register needs --register-token-file: the file with the token of the \
                 balancer's [register] token_file",
            ));
        };
        let (token, warning) = read(file, "--register-token-file")?;
        let client = |text: &String| {
            let client = Client::parse(text).map_err(|why| format!("--register {text}: {why}"))?;
            Ok(client.with_token(Some(token.clone())))
        };
        let clients = self.register.iter().map(client).collect::<Result<_, String>>();
        Ok((clients.map_err(Failure::usage)?, warning))
    }

    /// Returns whether any balancer is named.
    pub(crate) fn is_given(&self) -> bool {
        !self.register.is_empty()
    }

    /// Returns the settings whose defaults differ, because of `--register`: the clients of a
    /// registered server ask for the name of the balancer, and come from anywhere.
    pub(crate) fn defaults(&self) -> &'static [(&'static str, &'static str)] {
        if self.is_given() { &[("allowed_hosts", "*"), ("open", "false")] } else { &[] }
    }

    /// Begins to register the server at `listening`.
    pub(crate) fn begin(
        &self,
        balancers: Vec<Client>,
        listening: SocketAddr,
        log: &Log,
    ) -> Result<Registrations, Failure> {
        if self.is_given() && self.register_address.is_none() && listening.port() == 0 {
            return Err(no_address());
        }
        let mut threads = Vec::new();
        for balancer in balancers {
            let (stop, stopped) = mpsc::channel();
            let backend = Backend {
                balancer,
                address: self.register_address.unwrap_or(listening),
                weight: self.register_weight,
                log: log.clone(),
            };
            let thread = thread::Builder::new()
                .name("register".to_owned())
                .spawn(move || backend.run(&stopped))
                .map_err(|error| Failure::runtime(format!("cannot start a thread: {error}")))?;
            threads.push((stop, thread));
        }
        Ok(Registrations { threads })
    }
}

impl Registrations {
    /// Ends the registrations, so that the balancers send no more clients here.
    pub(crate) fn end(self) {
        // Signals all of them before it waits for the first.
        let threads: Vec<_> = self.threads.into_iter().map(|(_stop, thread)| thread).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Leaves the registrations to a successor, which renews them.
    pub(crate) fn leave_to_successor(self) {
        for (stop, _) in self.threads {
            let _ = stop.send(Quietly);
        }
    }
}

fn no_address() -> Failure {
    let remedy = "Unix sockets have no address: add --register-address, or listen on one";
    Failure::usage(format!("--register has nothing to name: {remedy}"))
}

/// Returns the token in the first line of `file`, as a server reads its own token, and prints a
/// warning if all users can read the file.
pub(crate) fn read_token(file: &Path, flag: &str) -> Result<String, Failure> {
    let (token, warning) = read(file, flag)?;
    warning.iter().for_each(terminal::error_line);
    Ok(token)
}

fn read(file: &Path, flag: &str) -> Result<(String, Option<String>), Failure> {
    let (token, warning) = Token::read(file)
        .map_err(|error| Failure::of_start(format!("{error} ({flag})"), error.may_pass()))?;
    Ok((token.as_str().to_owned(), warning))
}

/// One backend at one balancer.
struct Backend {
    balancer: Client,
    address: SocketAddr,
    weight: u32,
    log: Log,
}

/// The outcome of registering or renewing.
enum Attempt {
    /// Registered for this time.
    Holds(Duration),
    /// Nothing has changed.
    Renewed,
    /// The balancer does not know this backend, or has forgotten it.
    Forgotten,
    /// The balancer is reachable and refuses it.
    Refused(String),
    Away(String),
}

impl Backend {
    /// Runs until the other end of `stopped` is gone.
    fn run(mut self, stopped: &mpsc::Receiver<Quietly>) {
        let (mut registered, mut logged_failure) = (false, None::<String>);
        let (mut pause, mut interval) = (FIRST_PAUSE, FIRST_PAUSE);
        loop {
            let wait = match self.try_once(registered) {
                Attempt::Holds(time_to_live) => {
                    interval = time_to_live / 3;
                    let again = if logged_failure.is_some() { " again" } else { "" };
                    let message = format_args!(
                        "registered{again}, renewed every {:.1} s",
                        interval.as_secs_f64()
                    );
                    let fields = [
                        ("balancer", self.balancer.to_string().into()),
                        ("address", self.address.into()),
                        ("weight", self.weight.into()),
                    ];
                    self.log.event(&events::REGISTERED, message, fields);
                    (registered, logged_failure, pause) = (true, None, FIRST_PAUSE);
                    interval
                }
                Attempt::Renewed => interval,
                Attempt::Forgotten => {
                    registered = false;
                    logged_failure.get_or_insert_default();
                    Duration::ZERO
                }
                failed @ (Attempt::Refused(_) | Attempt::Away(_)) => {
                    let failure = match failed {
                        Attempt::Refused(why) => format!("refuses this backend: {why}"),
                        Attempt::Away(why) => format!("is away: {why}"),
                        _ => String::new(),
                    };
                    // Once for each kind of failure: a balancer may be away for hours.
                    if logged_failure.as_ref() != Some(&failure) {
                        let what = "still trying, and serving meanwhile";
                        self.failed(what, &format!("the balancer {failure}"));
                        logged_failure = Some(failure);
                    }
                    // Its registration may have ended since, or it may be another process.
                    registered = false;
                    let wait = jittered(pause);
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    wait
                }
            };
            match stopped.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(Quietly) => return,
            }
        }
        self.leave(registered);
    }

    /// Ends the registration.
    fn leave(&self, registered: bool) {
        match self.balancer.request("DELETE", &self.path(), None, FINAL_TIMEOUT) {
            Ok(answer) if answer.is_success() => {
                let fields = [("balancer", self.balancer.to_string().into())];
                self.log.event(&events::DEREGISTERED, "", fields);
            }
            // The balancer does not know this backend, so there is nothing to do.
            Ok(answer) if answer.status == 404 => {}
            Ok(ClientResponse { status, .. }) => {
                self.failed("the balancer did not end the registration", &status.to_string());
            }
            Err(why) if registered => {
                self.failed(
                    "the balancer did not learn that this backend leaves",
                    &why.to_string(),
                );
            }
            Err(_) => {}
        }
    }

    fn failed(&self, what: &str, reason: &str) {
        let fields = [("balancer", self.balancer.to_string().into()), ("reason", reason.into())];
        self.log.event(&events::REGISTER_FAILED, what, fields);
    }

    /// Returns its path at the admin API; an IPv6 address has brackets, which a path must not have
    /// (RFC 3986 section 3.3).
    fn path(&self) -> String {
        let address = self.address.to_string().replace('[', "%5B").replace(']', "%5D");
        format!("/register/{address}")
    }

    fn try_once(&mut self, registered: bool) -> Attempt {
        if self.address.ip().is_unspecified() {
            match self.balancer.own_address() {
                Ok(own) => self.address.set_ip(own),
                Err(why) => return Attempt::Away(why),
            }
        }
        let asked = match registered {
            true => {
                let path = format!("{}/heartbeat", self.path());
                self.balancer.request("POST", &path, Some(&json!({})), TIMEOUT)
            }
            false => {
                let body = json!({ "address": self.address.to_string(), "weight": self.weight });
                self.balancer.request("POST", "/register", Some(&body), TIMEOUT)
            }
        };
        match asked {
            Ok(answer) if registered && answer.is_success() => Attempt::Renewed,
            Ok(answer) if answer.is_success() => match answer.json()["ttl_seconds"].as_f64() {
                Some(seconds) if (0.001..1e6).contains(&seconds) => {
                    Attempt::Holds(Duration::from_secs_f64(seconds))
                }
                _ => Attempt::Refused(
                    "its answer has no ttl_seconds; is it the admin API?".to_owned(),
                ),
            },
            Ok(answer) if registered && answer.status == 404 => Attempt::Forgotten,
            Ok(answer) => Attempt::Refused(format!("{} {}", answer.status, answer.reason())),
            Err(why) => Attempt::Away(why),
        }
    }
}

/// Returns a time between half of `pause` and the whole: backends that lost their balancer together
/// must not come back together.
fn jittered(pause: Duration) -> Duration {
    let chance = RandomState::new().hash_one(std::process::id()) as u32;
    pause / 2 + pause.mul_f64(f64::from(chance) / f64::from(u32::MAX) / 2.0)
}
