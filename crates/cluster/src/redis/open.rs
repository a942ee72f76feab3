//! The two connections to a server, and the checks before they are used.

use std::collections::HashMap;
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection};
use redis::{AsyncConnectionConfig, ErrorKind, PushInfo, RedisError, Value};

use super::StartError;
use super::endpoint::Endpoint;
use super::explain::{SENTINEL, TOO_OLD, explain, explain_cluster};
use super::names::Names;
use super::scripts::Scripts;
use super::signals::{Signal, Signals};

/// Time limit of each command, and of connecting.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// The connections to a server.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    pub(super) commands: MultiplexedConnection,
    pub(super) subscriptions: MultiplexedConnection,
    pub(super) scripts: Scripts,
    pub(super) connection: Connection,
}

/// The connection for commands, as the server knows it.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    id: String,
    /// With the id, the address identifies a connection even if the server counts from the start
    /// again.
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

/// Opens both connections to a server, which errors call `shown`. Messages from the server arrive
/// as signals.
pub(super) async fn open_subscribed(
    names: &Names,
    (server, shown): (&Endpoint, &str),
    before: Option<Connection>,
    signals: Signals,
) -> Result<Opened, StartError> {
    let probe = names.probe(signals.generation);
    let lost = signals.clone();
    // The connection for commands only signals its end.
    let on_lost = push_sender(move |_| lost.send(Signal::Lost));
    let on_push = push_sender(move |push| signals.send(Signal::Push(push)));
    let mut opened = open(names, (server, shown), before, on_lost, on_push).await?;
    let ways = [probe, names.control(None), names.control(Some(names.node))];
    let subscribed = opened.subscriptions.subscribe(&ways).await;
    subscribed.map_err(|error| explain(shown, &error))?;
    Ok(opened)
}

/// Opens both connections to a server, which errors call `shown`. Neither has a subscription.
pub(super) async fn open(
    names: &Names,
    (server, shown): (&Endpoint, &str),
    before: Option<Connection>,
    on_lost: impl AsyncPushSender,
    on_push: impl AsyncPushSender,
) -> Result<Opened, StartError> {
    let explain = if names.is_partition { explain_cluster } else { explain };
    let open = try_open(names, server, before, on_lost, on_push);
    match tokio::time::timeout(LIMIT, open).await {
        Ok(open) => open.map_err(|error| explain(shown, &error)),
        Err(_) => Err(StartError::new(format!(
            "cluster.url: no answer from {shown} within {LIMIT:?}; is it the address of a \
             Redis server, {}and does a firewall let the connection through?",
            server.hint()
        ))),
    }
}

async fn try_open(
    names: &Names,
    server: &Endpoint,
    before: Option<Connection>,
    on_lost: impl AsyncPushSender,
    on_push: impl AsyncPushSender,
) -> Result<Opened, RedisError> {
    let config = || AsyncConnectionConfig::new().set_response_timeout(Some(LIMIT));
    let commands = config().set_push_sender(on_lost);
    let mut commands = server.connect(LIMIT, commands).await?;
    check_mode(&mut commands, names.is_partition).await?;
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
    let scripts = Scripts::load(&mut commands, names).await?;
    let subscriptions = config().set_push_sender(on_push);
    let subscriptions = server.connect(LIMIT, subscriptions).await?;
    Ok(Opened { commands, subscriptions, scripts, connection })
}

/// Returns the sender that the library calls with each push.
pub(super) fn push_sender(
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> impl AsyncPushSender {
    move |push: PushInfo| {
        on_push(push);
        Ok::<_, ()>(())
    }
}

/// Checks that the mode of a server matches its URL.
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
    if field("mode") == "sentinel" {
        return Err((ErrorKind::Client, SENTINEL).into());
    }
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
