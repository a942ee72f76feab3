//! The two connections to the server, and what must hold before they are used.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, PushInfo, RedisError, ServerErrorKind, Value,
};

use super::address::Address;
use super::calls::{PUBLISH, READ, has_code};
use super::masters::Masters;
use super::sentinel::Watch;
use super::shared::Membership;
use super::signals::{Signal, Signals};
use super::{Settings, StartError};
use crate::Verb;

/// Time limit of each command, and of connecting.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

const PASSWORD: &str = "give the user and password of the server in cluster.url, as in \
                        redis://user:password@host or redis-sentinel://user:password@host/master";

const FULL: &str = "the server's memory is full: raise its maxmemory, or remove data that is not \
                    needed; docs/cluster.md says how much the cluster needs";

const SHARDED: &str = "a Redis Cluster must have Redis 7.0 or later on all servers, or Valkey: \
                       earlier \
                       ones have no sharded pub/sub";

/// A server, the sentinels that know it, or the masters of a partition, and the names in use there.
#[derive(Clone)]
pub(super) struct Target {
    place: Place,
    /// Without the password.
    shown: String,
    pub(super) prefix: String,
    pub(super) node: u64,
}

#[derive(Clone)]
enum Place {
    Server(Address),
    Partition(u16, Arc<Masters>),
}

/// Without the password.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.shown)
    }
}

/// The connections.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) commands: MultiplexedConnection,
    pub(super) subscriptions: MultiplexedConnection,
    pub(super) scripts: Scripts,
    pub(super) connection: Connection,
    /// The name of the server in errors.
    pub(super) shown: String,
    /// That for another master, where there are sentinels.
    pub(super) watch: Option<Arc<Watch>>,
    /// Of a partition.
    pub(super) membership: Option<Arc<Membership>>,
}

impl Link {
    /// Subscribes to messages, or unsubscribes.
    pub(super) async fn subscribe(
        &mut self,
        verb: Verb,
        names: &[String],
    ) -> Result<(), RedisError> {
        match (verb, &self.membership) {
            (Verb::Subscribe, None) => self.subscriptions.subscribe(names).await,
            (Verb::Unsubscribe, None) => self.subscriptions.unsubscribe(names).await,
            (Verb::Subscribe, Some(membership)) => membership.send("SSUBSCRIBE", names).await,
            (Verb::Unsubscribe, Some(membership)) => membership.send("SUNSUBSCRIBE", names).await,
        }
    }

    /// Waits until the server has done so.
    pub(super) async fn confirmed(&self) -> Result<(), RedisError> {
        match &self.membership {
            Some(membership) => membership.confirmed().await,
            None => Ok(()),
        }
    }

    /// Gives up connections of which one is lost, or does not deliver: others that share them
    /// connect again, too.
    pub(super) fn close(&self) {
        if let Some(membership) = &self.membership {
            membership.close();
        }
    }

    pub(super) fn watched(mut self, watch: Watch) -> Self {
        self.watch = Some(Arc::new(watch));
        self
    }
}

/// The connection for commands, as the server knows it.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    id: String,
    /// With the id it is unique, also when the server has begun to count again.
    address: String,
}

impl Connection {
    fn read(info: &str) -> Self {
        let field = |name: &str| {
            let value = info.split_ascii_whitespace().find_map(|field| field.strip_prefix(name));
            value.unwrap_or_default().to_owned()
        };
        Self { id: field("id="), address: field("addr=") }
    }
}

/// The names by which the server knows the scripts.
#[derive(Clone, Debug)]
pub(super) struct Scripts {
    pub(super) publish: String,
    pub(super) read: String,
}

impl Scripts {
    pub(super) async fn load(
        connection: &mut MultiplexedConnection,
        target: &Target,
    ) -> Result<Self, RedisError> {
        let mut sums = Vec::new();
        for script in [PUBLISH, READ] {
            let script = target.script(script);
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(&*script).to_owned();
            sums.push(load.query_async::<String>(connection).await?);
        }
        let (read, publish) = (sums.pop().unwrap_or_default(), sums.pop().unwrap_or_default());
        Ok(Self { publish, read })
    }
}

impl Target {
    /// Returns the servers of a URL, or the partitions of a Redis Cluster.
    pub(super) fn all(settings: Settings) -> Result<Vec<Self>, StartError> {
        let Settings { url, prefix, node } = settings;
        let mut addresses = Address::parse_all(&url)?;
        if let [(Address::Cluster(_), _)] = &addresses[..]
            && let Some((Address::Cluster(masters), shown)) = addresses.pop()
        {
            if prefix.contains('{') {
                return Err(StartError(
                    "cluster.prefix must not have a { with a Redis Cluster, which has a tag of \
                     each \
                     partition between { and } in its names"
                        .to_owned(),
                ));
            }
            let of = |(partition, tag): (u16, &String)| Self {
                place: Place::Partition(partition, Arc::clone(&masters)),
                shown: shown.clone(),
                prefix: format!("{prefix}.{{{tag}}}"),
                node,
            };
            return Ok((0..).zip(masters.tags.iter()).map(of).collect());
        }
        let of = |(address, shown)| Self {
            place: Place::Server(address),
            shown,
            prefix: prefix.clone(),
            node,
        };
        Ok(addresses.into_iter().map(of).collect())
    }

    /// Returns the masters, if this is a partition.
    pub(super) fn masters(&self) -> Option<&Masters> {
        match &self.place {
            Place::Partition(_, masters) => Some(masters),
            Place::Server(_) => None,
        }
    }

    /// Returns the beginning of the names of all partitions, before the tag.
    pub(super) fn prefix_of_tags(&self) -> String {
        let end = self.prefix.find('{').map_or(self.prefix.len(), |at| at + 1);
        self.prefix[..end].to_owned()
    }

    /// Returns the command that publishes: that of a partition stays at its master.
    pub(super) fn publish(&self) -> &'static str {
        if self.masters().is_some() { "SPUBLISH" } else { "PUBLISH" }
    }

    /// Returns a script with that command.
    pub(super) fn script<'a>(&self, script: &'a str) -> Cow<'a, str> {
        match self.masters() {
            Some(_) => script.replace("'PUBLISH'", "'SPUBLISH'").into(),
            None => script.into(),
        }
    }

    /// Notes that another master has this partition, as an error says.
    pub(super) fn moved(&self, error: &RedisError, link: &Link) {
        if let (Place::Partition(partition, masters), Some(membership)) =
            (&self.place, &link.membership)
        {
            masters.moved(*partition, error, membership.server());
        }
    }

    /// Returns the name of the server in errors.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// Returns the name under which a channel's publications are delivered.
    pub(super) fn channel(&self, channel: &str) -> String {
        format!("{}.m.{channel}", self.prefix)
    }

    /// Returns the channel of such a name.
    pub(super) fn channel_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&*self.prefix)?.strip_prefix(".m.")
    }

    /// Returns the names of a channel's record and stream.
    pub(super) fn keys(&self, channel: &str) -> [String; 2] {
        [format!("{}.o.{channel}", self.prefix), format!("{}.s.{channel}", self.prefix)]
    }

    /// Returns the channel on which this node's probes come back. That of a partition is
    /// another one for each generation: its confirmation comes after all that is meant for earlier
    /// ones.
    pub(super) fn probe(&self, generation: u64) -> String {
        match self.masters() {
            Some(_) => format!("{}.q.{:016x}.{generation}", self.prefix, self.node),
            None => format!("{}.q.{:016x}", self.prefix, self.node),
        }
    }

    /// Returns the channel on which a node gets commands; `None`: all nodes.
    pub(super) fn control(&self, node: Option<u64>) -> String {
        match node {
            Some(node) => format!("{}.c.{node:016x}", self.prefix),
            None => format!("{}.c", self.prefix),
        }
    }

    /// Connects. What the server delivers comes as signals. `before` is the connection that this
    /// one replaces: if the server had not noticed its end, commands of it could be executed after
    /// those of the new one.
    pub(super) async fn link(
        &self,
        before: Option<Connection>,
        signals: Signals,
    ) -> Result<Link, StartError> {
        match &self.place {
            Place::Server(Address::Server(client)) => {
                self.link_to((client, &self.shown), before, signals).await
            }
            Place::Server(Address::Sentinels(sentinels)) => {
                sentinels.link(self, before, signals).await
            }
            Place::Partition(partition, masters) => masters.link(self, *partition, &signals).await,
            Place::Server(Address::Cluster(_)) => unreachable!("its partitions are targets"),
        }
    }

    /// Connects to a server, which errors call `shown`.
    pub(super) async fn link_to(
        &self,
        (client, shown): (&Client, &str),
        before: Option<Connection>,
        signals: Signals,
    ) -> Result<Link, StartError> {
        let probe = self.probe(signals.generation);
        let lost = signals.clone();
        // That of the commands only says that it is gone.
        let on_lost = push_sender(move |_| lost.send(Signal::Lost));
        let on_push = push_sender(move |push| signals.send(Signal::Push(push)));
        let open = self.open((client, shown), before, on_lost, on_push).await?;
        let Opened { commands, mut subscriptions, scripts, connection } = open;
        let ways = [probe, self.control(None), self.control(Some(self.node))];
        let subscribed = subscriptions.subscribe(&ways).await;
        subscribed.map_err(|error| StartError(Self::explain(shown, &error)))?;
        let shown = shown.to_owned();
        let (watch, membership) = (None, None);
        Ok(Link { commands, subscriptions, scripts, connection, shown, watch, membership })
    }

    /// Opens both connections to a server, which errors call `shown`.
    pub(super) async fn open(
        &self,
        (client, shown): (&Client, &str),
        before: Option<Connection>,
        on_lost: impl AsyncPushSender,
        on_push: impl AsyncPushSender,
    ) -> Result<Opened, StartError> {
        let explain = match self.masters() {
            Some(_) => Self::explain_cluster,
            None => Self::explain,
        };
        let open = self.try_open(client, before, on_lost, on_push);
        match tokio::time::timeout(LIMIT, open).await {
            Ok(open) => open.map_err(|error| StartError(explain(shown, &error))),
            Err(_) => Err(StartError(format!(
                "cluster.url: no answer from {shown} within {LIMIT:?}; is it the address of a \
                 Redis server, and does a firewall let the connection through?"
            ))),
        }
    }

    async fn try_open(
        &self,
        client: &Client,
        before: Option<Connection>,
        on_lost: impl AsyncPushSender,
        on_push: impl AsyncPushSender,
    ) -> Result<Opened, RedisError> {
        let config = || {
            let config = AsyncConnectionConfig::new().set_connection_timeout(Some(LIMIT));
            config.set_response_timeout(Some(LIMIT))
        };
        let commands = config().set_push_sender(on_lost);
        let mut commands = client.get_multiplexed_async_connection_with_config(&commands).await?;
        check_mode(&mut commands, self.masters().is_some()).await?;
        let role: Value = redis::cmd("ROLE").query_async(&mut commands).await?;
        let is_master = match &role {
            Value::Array(parts) => match parts.first() {
                Some(Value::BulkString(role)) => role == b"master",
                Some(Value::SimpleString(role)) => role == "master",
                _ => false,
            },
            _ => false,
        };
        if !is_master {
            return Err((ErrorKind::Client, "not a master").into());
        }
        if let Some(Connection { id, address }) = before {
            let mut kill = redis::cmd("CLIENT");
            kill.arg(&["KILL", "ID", &id, "ADDR", &address]);
            kill.query_async::<()>(&mut commands).await?;
        }
        let info: String = redis::cmd("CLIENT").arg("INFO").query_async(&mut commands).await?;
        let connection = Connection::read(&info);
        let scripts = Scripts::load(&mut commands, self).await?;
        let subscriptions = config().set_push_sender(on_push);
        let subscriptions =
            client.get_multiplexed_async_connection_with_config(&subscriptions).await?;
        Ok(Opened { commands, subscriptions, scripts, connection })
    }

    /// Returns what is wrong and what helps, with the server's own words.
    pub(super) fn explain(shown: &str, error: &RedisError) -> String {
        let is_locked = matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
        let remedy = match error.kind() {
            ErrorKind::InvalidClientConfig => {
                return format!(
                    "cluster.url: {shown} is in cluster mode; write redis-cluster://host:port, \
                     with \
                     one or more of the servers of the Redis Cluster"
                );
            }
            _ if is_locked => PASSWORD,
            _ if has_code(error, "OOM") => FULL,
            ErrorKind::AuthenticationFailed => PASSWORD,
            ErrorKind::RESP3NotSupported => "the cluster needs Redis 6.2 or later, or Valkey",
            ErrorKind::Client => {
                "cluster.url must be the address of the master: a replica takes no publications"
            }
            ErrorKind::Server(ServerErrorKind::NoPerm) => {
                "give the user the rights that docs/cluster.md lists"
            }
            ErrorKind::Server(ServerErrorKind::BusyLoading) => "the server reads its data; wait",
            ErrorKind::Io => "is it the address of a Redis server, and does it run?",
            _ => "the cluster needs Redis 6.2 or later, or Valkey; docs/cluster.md has the rights",
        };
        format!("cluster.url: {shown} answers: {error}; {remedy}")
    }

    /// Returns the same for a server of a Redis Cluster.
    pub(super) fn explain_cluster(shown: &str, error: &RedisError) -> String {
        match error.kind() {
            ErrorKind::InvalidClientConfig => format!(
                "cluster.url: {shown} is not in cluster mode; write redis://{shown} for a single \
                 server, or a list of such for independent ones"
            ),
            ErrorKind::Client if error.to_string().contains(TOO_OLD) => {
                format!("cluster.url: {shown} answers: {error}; {SHARDED}")
            }
            ErrorKind::Server(ServerErrorKind::ClusterDown) => format!(
                "cluster.url: {shown} answers: {error}; `redis-cli --cluster check {shown}` says \
                 what is wrong"
            ),
            _ => Self::explain(shown, error),
        }
    }
}

/// Connections that nothing is subscribed to by.
pub(super) struct Opened {
    pub(super) commands: MultiplexedConnection,
    pub(super) subscriptions: MultiplexedConnection,
    pub(super) scripts: Scripts,
    pub(super) connection: Connection,
}

/// Returns what the library calls with each push.
pub(super) fn push_sender(
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> impl AsyncPushSender {
    move |push: PushInfo| {
        on_push(push);
        Ok::<_, ()>(())
    }
}

/// The beginning of the error for a server without sharded pub/sub.
const TOO_OLD: &str = "version";

/// Compares the mode of a server with that of its URL.
pub(super) async fn check_mode(
    connection: &mut MultiplexedConnection,
    is_cluster: bool,
) -> Result<(), RedisError> {
    let hello: HashMap<String, Value> = redis::cmd("HELLO").query_async(connection).await?;
    let field = |name| match hello.get(name) {
        Some(Value::BulkString(text)) => String::from_utf8_lossy(text).into_owned(),
        Some(Value::SimpleString(text)) => text.clone(),
        _ => String::new(),
    };
    if (field("mode") == "cluster") != is_cluster {
        return Err((ErrorKind::InvalidClientConfig, "another mode").into());
    }
    let version = field("version");
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if is_cluster && major.is_some_and(|major| major < 7) {
        return Err((ErrorKind::Client, TOO_OLD, version).into());
    }
    Ok(())
}
