//! Redis Sentinel: finds the current master, and reports a new one.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{sleep, timeout};

use super::StartError;
use super::endpoint::Endpoint;
use super::explain::{explain_insecure, is_unknown_command};
use super::names::Names;
use super::open::{Connection, Opened, open_subscribed};
use super::signals::{Signal, Signals};

/// Time limit of a connection to a sentinel and of each command. After it, the node asks other
/// sentinels.
const ASK: Duration = Duration::from_secs(1);

/// The time after which a sentinel is asked again, and the time between attempts to find a
/// sentinel.
const ASK_AGAIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(1);

/// The channel on which a sentinel reports replaced masters.
const SWITCHED: &str = "+switch-master";

/// A sentinel.
#[derive(Clone)]
pub(super) struct Sentinel {
    pub(super) endpoint: Endpoint,
    /// Without the password.
    pub(super) shown: String,
}

/// The sentinels of a master.
#[derive(Clone)]
pub(super) struct Sentinels {
    pub(super) all: Vec<Sentinel>,
    /// The master's name at the sentinels.
    pub(super) master: String,
    /// User, password, database and TLS of the master, with a placeholder address.
    pub(super) server: Endpoint,
}

impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.all.iter().map(|sentinel| &*sentinel.shown).collect();
        write!(f, "the master {} of {}", self.master, all.join(", "))
    }
}

/// A sentinel that has answered, and reports when the master is replaced.
struct Asked {
    connection: MultiplexedConnection,
    pushes: UnboundedReceiver<PushInfo>,
    /// Host and port of the master.
    address: (String, u16),
}

/// A sentinel that did not name the master.
enum Failure {
    Unknown,
    Redis(RedisError),
    Silent,
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

/// The task that watches for another master; it ends with this.
#[derive(Debug)]
pub(super) struct Watch(tokio::task::AbortHandle);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Sentinels {
    /// Connects to the master that the first answering sentinel names. Returns the connections, the
    /// name of the server in errors, and the watch for another master.
    pub(super) async fn connect(
        &self,
        names: &Names,
        before: Option<Connection>,
        signals: Signals,
    ) -> Result<(Opened, String, Watch), StartError> {
        let (mut failures, mut tried, mut refused) = (Vec::new(), Vec::new(), None);
        for (at, sentinel) in self.all.iter().enumerate() {
            let asked = match self.ask(sentinel).await {
                Ok(asked) => asked,
                Err(failure) => {
                    failures.push((&*sentinel.shown, failure));
                    continue;
                }
            };
            // A sentinel may lag behind the others: the server that it names may not be a master.
            if tried.contains(&asked.address) {
                continue;
            }
            tried.push(asked.address.clone());
            let (host, port) = &asked.address;
            let shown = format!("{host}:{port}, the master of sentinel {}", sentinel.shown);
            let master = self.server.at(asked.address.clone());
            match open_subscribed(names, (&master, &shown), before.clone(), signals.clone()).await {
                Ok(opened) => {
                    let watch = self.clone().watch(at, asked, signals);
                    let watch = Watch(tokio::spawn(watch).abort_handle());
                    return Ok((opened, shown, watch));
                }
                Err(error) => drop(refused.get_or_insert(error)),
            }
        }
        Err(refused.unwrap_or_else(|| self.explain(&failures)))
    }

    /// Asks a sentinel for the master, and subscribes to changes.
    async fn ask(&self, sentinel: &Sentinel) -> Result<Asked, Failure> {
        let (sender, pushes) = unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(sender);
        let config = config.set_response_timeout(Some(ASK));
        let ask = async {
            let mut connection = sentinel.endpoint.connect(ASK, config).await?;
            // First, so that no change goes unnoticed.
            connection.subscribe(SWITCHED).await?;
            let address = self.address(&mut connection).await?.ok_or(Failure::Unknown)?;
            Ok(Asked { connection, pushes, address })
        };
        timeout(ASK, ask).await.unwrap_or(Err(Failure::Silent))
    }

    async fn address(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Option<(String, u16)>, RedisError> {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.master);
        command.query_async(connection).await
    }

    /// Waits until a sentinel names another master than `asked` has.
    async fn watch(self, mut at: usize, mut asked: Asked, signals: Signals) {
        let address = asked.address.clone();
        while asked.address == address && !self.is_switched(&mut asked).await {
            // The connection to this sentinel is lost.
            asked = loop {
                sleep(PAUSE).await;
                at = (at + 1) % self.all.len();
                if let Ok(asked) = self.ask(&self.all[at]).await {
                    break asked;
                }
            };
        }
        signals.send(Signal::Switched);
    }

    /// Returns true when the sentinel names another master, false when it does not answer.
    async fn is_switched(&self, asked: &mut Asked) -> bool {
        loop {
            match timeout(ASK_AGAIN, asked.pushes.recv()).await {
                Ok(None) => return false,
                Ok(Some(push)) if push.kind == PushKind::Disconnection => return false,
                // A master of any name was replaced; or it is time to ask.
                Ok(Some(_)) | Err(_) => {}
            }
            match self.address(&mut asked.connection).await {
                Ok(Some(address)) if address != asked.address => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }

    /// Returns why no sentinel has named the master, with a remedy.
    fn explain(&self, failures: &[(&str, Failure)]) -> StartError {
        let master = &self.master;
        let unknown = failures.iter().find(|(_, failure)| matches!(failure, Failure::Unknown));
        if let Some((shown, _)) = unknown {
            return StartError::new(format!(
                "cluster.url: the sentinel {shown} knows no master named {master:?}; write the \
                 name that `sentinel monitor` gives it in the configuration of the sentinels"
            ));
        }
        let insecure = failures.iter().find_map(|(shown, failure)| match failure {
            Failure::Redis(error) => explain_insecure(&format!("the sentinel {shown}"), error),
            _ => None,
        });
        if let Some(insecure) = insecure {
            return insecure;
        }
        let answered = failures.iter().find_map(|(shown, failure)| match failure {
            Failure::Redis(error) if error.kind() != ErrorKind::Io => Some((shown, error)),
            _ => None,
        });
        if let Some((shown, error)) = answered {
            let is_locked = matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
                || error.kind() == ErrorKind::AuthenticationFailed;
            let remedy = match error.kind() {
                _ if is_locked => {
                    "give the password of the sentinels in cluster.url, as in \
                     redis-sentinel://host/master?sentinel_password=PASSWORD, and a user as \
                     &sentinel_user=USER"
                }
                ErrorKind::Server(ServerErrorKind::NoPerm) => {
                    "give the user the rights that docs/cluster.md lists"
                }
                ErrorKind::RESP3NotSupported => "the cluster needs Redis 6.2 or later, or Valkey",
                _ if is_unknown_command(error) => {
                    "it is not a sentinel: write redis:// for a server that no sentinel watches, \
                     or the addresses of the sentinels, whose port is 26379 unless they have \
                     another"
                }
                _ => "is it a sentinel? Its port is 26379 unless it has another",
            };
            let message = format!("cluster.url: the sentinel {shown} answers: {error}; {remedy}");
            let is_lasting = is_locked
                || is_unknown_command(error)
                || matches!(
                    error.kind(),
                    ErrorKind::RESP3NotSupported | ErrorKind::Server(ServerErrorKind::NoPerm)
                );
            return if is_lasting {
                StartError::lasting(message)
            } else {
                StartError::new(message)
            };
        }
        let each = failures.iter().map(|(shown, failure)| match failure {
            Failure::Redis(error) => format!("{shown}: {error}"),
            Failure::Unknown | Failure::Silent => format!("{shown}: no answer in {ASK:?}"),
        });
        let each: Vec<_> = each.collect();
        StartError::new(format!(
            "cluster.url: no sentinel answers ({}); are these their addresses, {}and do they run?",
            each.join("; "),
            self.server.hint()
        ))
    }
}
