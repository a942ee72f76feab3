//! The connections to a master of a Redis Cluster, which all of its partitions share.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use tokio::sync::oneshot;

use super::StartError;
use super::endpoint::Endpoint;
use super::explain::explain_cluster;
use super::names::Names;
use super::open::{Connection, LIMIT, Opened, open, push_sender};
use super::signals::{Signal, Signals};

/// A server's host and port.
pub(super) type HostPort = (String, u16);

/// The connections to a master.
#[derive(Debug)]
pub(super) struct NodeShared {
    pub(super) opened: Opened,
    server: HostPort,
    routes: Arc<PushRoutes>,
    /// Whether a subscription has succeeded on this connection.
    is_tried: AtomicBool,
}

/// Reason for which a partition is not connected.
pub(super) enum Refusal {
    /// Another master has it.
    Moved(RedisError),
    Failed(StartError),
}

impl From<(&str, RedisError)> for Refusal {
    fn from((shown, error): (&str, RedisError)) -> Self {
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::Moved) => Self::Moved(error),
            _ => Self::Failed(explain_cluster(shown, &error)),
        }
    }
}

impl NodeShared {
    pub(super) async fn connect(
        endpoint: &Endpoint,
        server: HostPort,
        names: &Names,
        tags: &Arc<[String]>,
        before: Option<Connection>,
    ) -> Result<Self, StartError> {
        let routes = Arc::new(PushRoutes::new(names.prefix_of_tags(), tags));
        let (lost, pushed) = (Arc::clone(&routes), Arc::clone(&routes));
        let on_lost = push_sender(move |_| lost.close());
        let on_push = push_sender(move |push| pushed.push(push));
        let shown = format!("{}:{}", server.0, server.1);
        let opened = open(names, (endpoint, &shown), before, on_lost, on_push).await?;
        Ok(Self { opened, server, routes, is_tried: AtomicBool::new(false) })
    }

    /// Returns whether the connections can be used.
    pub(super) fn is_open(&self) -> bool {
        !self.routes.is_closed.load(Ordering::Relaxed)
    }

    /// Connects a partition, whose pushes come as signals from now on.
    pub(super) async fn join(
        self: &Arc<Self>,
        names: &Names,
        partition: u16,
        signals: Signals,
    ) -> Result<Membership, Refusal> {
        let generation = signals.generation;
        let shown = format!("{}:{}", self.server.0, self.server.1);
        let probe = names.probe(generation);
        // Answers to later subscriptions are not read. The first one shows whether the node has the
        // right, and the answer to a publication shows whether this master has the partition.
        if !self.is_tried.load(Ordering::Relaxed) {
            let mut subscriptions = self.opened.subscriptions.clone();
            let subscribe = redis::cmd("SSUBSCRIBE").arg(&probe).to_owned();
            subscribe
                .query_async::<()>(&mut subscriptions)
                .await
                .map_err(|error| (&*shown, error))?;
            self.is_tried.store(true, Ordering::Relaxed);
        }
        let mut commands = self.opened.commands.clone();
        let publish = redis::cmd(names.publish()).arg(&probe).arg("").to_owned();
        publish.query_async::<()>(&mut commands).await.map_err(|error| (&*shown, error))?;
        let confirmed = VecDeque::new();
        let route = PushRoute { signals, probe: probe.clone(), is_open: false, confirmed };
        self.routes.lock().insert(partition, route);
        if !self.is_open() {
            let closed = RedisError::from((ErrorKind::Io, "the connection was closed"));
            return Err((&*shown, closed).into());
        }
        let membership = Membership { shared: Arc::clone(self), partition, generation, probe };
        let controls = [names.control(None), names.control(Some(names.node))];
        membership.send("SSUBSCRIBE", &controls).await.map_err(|error| (&*shown, error))?;
        membership.confirmed().await.map_err(|error| (&*shown, error))?;
        Ok(membership)
    }
}

/// A partition's use of the connections to its master.
#[derive(Debug)]
pub(super) struct Membership {
    shared: Arc<NodeShared>,
    partition: u16,
    generation: u64,
    /// Subscribed to only by this generation of the partition.
    probe: String,
}

impl Membership {
    /// Sends a command about subscriptions without awaiting its answer. The library takes any push
    /// about subscriptions as the answer to the oldest command, even a push that the server sends
    /// because a slot has moved.
    pub(super) async fn send(&self, verb: &str, names: &[String]) -> Result<(), RedisError> {
        let mut subscriptions = self.shared.opened.subscriptions.clone();
        let mut command = redis::cmd(verb);
        command.arg(names).set_no_response(true);
        command.query_async(&mut subscriptions).await
    }

    /// Waits until the server has executed all earlier commands. It confirms in order, and repeats
    /// confirmations.
    pub(super) async fn confirmed(&self) -> Result<(), RedisError> {
        let (sender, confirmed) = oneshot::channel();
        match self.shared.routes.lock().get_mut(&self.partition) {
            Some(route) if route.signals.generation == self.generation => {
                route.confirmed.push_back(sender)
            }
            _ => return Err((ErrorKind::Io, "the connection was closed").into()),
        }
        self.send("SSUBSCRIBE", std::slice::from_ref(&self.probe)).await?;
        match tokio::time::timeout(LIMIT, confirmed).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err((ErrorKind::Io, "the connection was closed").into()),
            Err(_) => Err((ErrorKind::Io, "subscriptions are not confirmed").into()),
        }
    }

    /// Closes the connections: all partitions that share them must connect again.
    pub(super) fn close(&self) {
        self.shared.routes.close();
    }

    /// Returns the connections, which others share.
    pub(super) fn opened(&self) -> &Opened {
        &self.shared.opened
    }

    /// Returns the name of the server in errors.
    pub(super) fn shown(&self) -> String {
        let (host, port) = self.server();
        format!("{host}:{port}")
    }

    /// Returns the server.
    pub(super) fn server(&self) -> &HostPort {
        &self.shared.server
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let mut routes = self.shared.routes.lock();
        if routes
            .get(&self.partition)
            .is_some_and(|route| route.signals.generation == self.generation)
        {
            routes.remove(&self.partition);
        }
        drop(routes);
        // Channels that the server still has are subscribed again, or have moved with their slot.
        if self.shared.is_open() {
            let mut subscriptions = self.shared.opened.subscriptions.clone();
            let mut command = redis::cmd("SUNSUBSCRIBE");
            command.arg(&self.probe).set_no_response(true);
            // There is no runtime if the thread ends because of a panic.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                let unsubscribe =
                    async move { command.query_async::<()>(&mut subscriptions).await };
                runtime.spawn(unsubscribe);
            }
        }
    }
}

/// The routes of pushes to partitions.
#[derive(Debug)]
struct PushRoutes {
    /// The beginning of all names, before the tag.
    prefix: String,
    partitions: HashMap<String, u16>,
    all: Mutex<HashMap<u16, PushRoute>>,
    is_closed: AtomicBool,
}

/// The route of pushes to a partition.
#[derive(Debug)]
struct PushRoute {
    signals: Signals,
    probe: String,
    /// Whether the probe channel is subscribed: messages before that belong to an earlier
    /// generation.
    is_open: bool,
    /// Tasks that wait for the next confirmations of its probe.
    confirmed: VecDeque<oneshot::Sender<()>>,
}

impl PushRoutes {
    fn new(prefix: String, tags: &[String]) -> Self {
        let partitions = tags.iter().cloned().zip(0..).collect();
        Self { prefix, partitions, all: Mutex::default(), is_closed: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u16, PushRoute>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the partition of a name.
    fn partition_of(&self, name: &[u8]) -> Option<u16> {
        let rest = name.strip_prefix(self.prefix.as_bytes())?;
        let end = rest.iter().position(|byte| *byte == b'}')?;
        self.partitions.get(str::from_utf8(&rest[..end]).ok()?).copied()
    }

    fn push(&self, push: PushInfo) {
        if push.kind == PushKind::Disconnection {
            return self.close();
        }
        let Some(Value::BulkString(name)) = push.data.first() else { return };
        let Some(partition) = self.partition_of(name) else { return };
        let mut all = self.lock();
        let Some(route) = all.get_mut(&partition) else { return };
        if push.kind == PushKind::SSubscribe && *name == route.probe.as_bytes() {
            route.is_open = true;
            if let Some(confirmed) = route.confirmed.pop_front() {
                let _ = confirmed.send(());
            }
        } else if route.is_open {
            route.signals.send(Signal::Push(push));
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        for (_, route) in self.lock().drain() {
            route.signals.send(Signal::Lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn push(kind: PushKind, name: &str) -> PushInfo {
        PushInfo { kind, data: vec![Value::BulkString(name.as_bytes().to_vec())] }
    }

    #[test]
    fn pushes_go_to_their_partition_once_its_probe_is_confirmed() {
        let routes = PushRoutes::new("p.{".to_owned(), &["a".to_owned(), "b".to_owned()]);
        let (sender, received) = channel();
        let signals = Signals::new(3, move |signal| sender.send(signal).unwrap());
        let probe = "p.{b}.q.1".to_owned();
        let route = PushRoute { signals, probe, is_open: false, confirmed: VecDeque::new() };
        routes.lock().insert(1, route);
        routes.push(push(PushKind::SMessage, "p.{b}.m.early"));
        routes.push(push(PushKind::SSubscribe, "p.{b}.q.0"));
        assert!(received.try_recv().is_err());
        routes.push(push(PushKind::SSubscribe, "p.{b}.q.1"));
        for name in ["p.{a}.m.x", "p.{c}.m.x", "q.{b}.m.x", "p.{b", ""] {
            routes.push(push(PushKind::SMessage, name));
        }
        assert!(received.try_recv().is_err());
        routes.push(push(PushKind::SMessage, "p.{b}.m.x"));
        assert!(matches!(received.try_recv(), Ok(Signal::Push(_))));
        routes.push(push(PushKind::Disconnection, ""));
        assert!(matches!(received.try_recv(), Ok(Signal::Lost)));
        assert!(routes.lock().is_empty() && routes.is_closed.load(Ordering::Relaxed));
    }
}
