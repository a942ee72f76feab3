//! The two connections to the server, and what must hold before they are used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, PushInfo, RedisError, ServerErrorKind, Value,
};
use tokio::sync::mpsc::UnboundedSender;

use super::address::Address;
use super::calls::{PUBLISH, READ, has_code};
use super::node::Event;
use super::sentinel::Watch;
use super::{Settings, StartError};

/// Time limit of each command, and of connecting.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

const PASSWORD: &str = "give the user and password of the server in cluster.url, as in \
                        redis://user:password@host or redis-sentinel://user:password@host/master";

const FULL: &str = "the server's memory is full: raise its maxmemory, or remove data that is not \
                    needed; docs/cluster.md says how much the cluster needs";

/// A server, or the sentinels that know it, and the names in use there.
#[derive(Clone)]
pub(super) struct Target {
    address: Address,
    /// Without the password.
    shown: String,
    pub(super) prefix: String,
    pub(super) node: u64,
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
    watch: Option<Arc<Watch>>,
}

impl Link {
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
    pub(super) async fn load(connection: &mut MultiplexedConnection) -> Result<Self, RedisError> {
        let mut sums = Vec::new();
        for script in [PUBLISH, READ] {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(script).to_owned();
            sums.push(load.query_async::<String>(connection).await?);
        }
        let (read, publish) = (sums.pop().unwrap_or_default(), sums.pop().unwrap_or_default());
        Ok(Self { publish, read })
    }
}

impl Target {
    /// Returns the servers of a URL.
    pub(super) fn all(settings: Settings) -> Result<Vec<Self>, StartError> {
        let Settings { url, prefix, node } = settings;
        let of = |(address, shown)| Self { address, shown, prefix: prefix.clone(), node };
        Ok(Address::parse_all(&url)?.into_iter().map(of).collect())
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

    /// Returns the channel on which this node's probes come back.
    pub(super) fn probe(&self) -> String {
        format!("{}.q.{:016x}", self.prefix, self.node)
    }

    /// Returns the channel on which a node gets commands; `None`: all nodes.
    pub(super) fn control(&self, node: Option<u64>) -> String {
        match node {
            Some(node) => format!("{}.c.{node:016x}", self.prefix),
            None => format!("{}.c", self.prefix),
        }
    }

    /// Connects. What the server delivers comes as events of this generation. `before` is the
    /// connection that this one replaces: if the server had not noticed its end, commands of it
    /// could be executed after those of the new one.
    pub(super) async fn link(
        &self,
        generation: u64,
        before: Option<Connection>,
        events: UnboundedSender<Event>,
    ) -> Result<Link, StartError> {
        match &self.address {
            Address::Server(client) => {
                self.link_to((client, &self.shown), generation, before, events).await
            }
            Address::Sentinels(sentinels) => sentinels.link(self, generation, before, events).await,
        }
    }

    /// Connects to a server, which errors call `shown`.
    pub(super) async fn link_to(
        &self,
        (client, shown): (&Client, &str),
        generation: u64,
        before: Option<Connection>,
        events: UnboundedSender<Event>,
    ) -> Result<Link, StartError> {
        let link = self.try_link((client, shown), generation, before, events);
        match tokio::time::timeout(LIMIT, link).await {
            Ok(link) => link.map_err(|error| StartError(Self::explain(shown, &error))),
            Err(_) => Err(StartError(format!(
                "cluster.url: no answer from {shown} within {LIMIT:?}; is it the address of a \
                 Redis server, and does a firewall let the connection through?"
            ))),
        }
    }

    async fn try_link(
        &self,
        (client, shown): (&Client, &str),
        generation: u64,
        before: Option<Connection>,
        events: UnboundedSender<Event>,
    ) -> Result<Link, RedisError> {
        let config = || {
            let config = AsyncConnectionConfig::new().set_connection_timeout(Some(LIMIT));
            config.set_response_timeout(Some(LIMIT))
        };
        let lost = events.clone();
        // That of the commands only says that it is gone.
        let on_lost = move |_: PushInfo| lost.send(Event::Lost(generation)).map_err(drop);
        let on_push =
            move |push: PushInfo| events.send(Event::Push(generation, push)).map_err(drop);
        let commands = config().set_push_sender(on_lost);
        let mut commands = client.get_multiplexed_async_connection_with_config(&commands).await?;
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
        let scripts = Scripts::load(&mut commands).await?;
        let subscriptions = config().set_push_sender(on_push);
        let mut subscriptions =
            client.get_multiplexed_async_connection_with_config(&subscriptions).await?;
        let ways = [self.probe(), self.control(None), self.control(Some(self.node))];
        subscriptions.subscribe(&ways).await?;
        let shown = shown.to_owned();
        Ok(Link { commands, subscriptions, scripts, connection, shown, watch: None })
    }

    /// Returns what is wrong and what helps, with the server's own words.
    pub(super) fn explain(shown: &str, error: &RedisError) -> String {
        let is_locked = matches!(error.code(), Some("NOAUTH" | "WRONGPASS"));
        let remedy = match error.kind() {
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
}
