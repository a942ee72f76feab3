//! Redis Cluster: the masters of its partitions, and the connections to each.
//!
//! A partition is one slot. It asks for its master when it connects: at its first use, after a
//! move, and after the loss of its master. A `MOVED` answer also names the master.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ErrorKind, RedisError, Value};
use tokio::time::timeout;

use super::StartError;
use super::endpoint::Endpoint;
use super::explain::explain_cluster;
use super::names::Names;
use super::open::{Connection, check_mode};
use super::shared::{HostPort, Membership, NodeShared, Refusal};
use super::signals::Signals;
use super::tls::Insecure;
use crate::partition::{PARTITIONS, slot, tags};

/// Time limit of a question about the masters. After it, the node asks other servers.
const ASK: Duration = Duration::from_secs(1);

/// The time for which an answer, or a failure to connect, serves all partitions that need it.
const FRESH: Duration = Duration::from_millis(100);

/// Maximum redirections to another master in one attempt to connect.
const REDIRECTIONS: usize = 5;

/// The masters of a Redis Cluster.
pub(super) struct Masters {
    /// The configured servers, to ask at the start.
    seeds: Vec<HostPort>,
    /// User, password and TLS of all servers, with a placeholder address.
    like: Endpoint,
    /// Tags of the partitions.
    pub(super) tags: Arc<[String]>,
    slots: Vec<u16>,
    state: Mutex<MasterWatch>,
    /// Locked by the task that asks about the masters.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct MasterWatch {
    /// By partition.
    owners: Vec<Option<HostPort>>,
    /// Partitions whose owner a server has named since the last question: no new question is
    /// needed.
    named: HashSet<u16>,
    /// All servers, and the index of the next one to ask.
    servers: Vec<HostPort>,
    next: usize,
    asked: Option<Instant>,
    masters: HashMap<HostPort, Arc<Master>>,
}

impl MasterWatch {
    /// Removes masters that have left the cluster and are not connected.
    fn forget_others(&mut self) {
        let Self { servers, masters, .. } = self;
        masters.retain(|server, master| {
            let is_in_use =
                || Arc::strong_count(master) > 1 || lock(&master.shared).strong_count() > 0;
            servers.contains(server) || is_in_use()
        });
    }
}

/// A master that the node is connected to.
#[derive(Default)]
struct Master {
    shared: Mutex<Weak<NodeShared>>,
    /// Locked by the task that connects.
    attempts: tokio::sync::Mutex<Attempts>,
}

/// The outcome of attempts to connect to a master.
#[derive(Default)]
struct Attempts {
    /// The last connection for commands.
    last: Option<Connection>,
    failed: Option<(Instant, StartError)>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Masters {
    pub(super) fn new(seeds: Vec<HostPort>, like: Endpoint) -> Self {
        let tags: Arc<[String]> = tags().into();
        let slots = tags.iter().map(|tag| slot(tag.as_bytes())).collect();
        let owners = vec![None; usize::from(PARTITIONS)];
        let state = Mutex::new(MasterWatch { owners, ..MasterWatch::default() });
        Self { seeds, like, tags, slots, state, asking: tokio::sync::Mutex::default() }
    }

    /// Connects a partition to its master.
    pub(super) async fn join(
        &self,
        names: &Names,
        partition: u16,
        signals: &Signals,
    ) -> Result<Membership, StartError> {
        for _ in 0..REDIRECTIONS {
            let master = self.master_of(partition).await?;
            let shared = self.connect(&master, names).await?;
            match shared.join(names, partition, signals.clone()).await {
                Ok(membership) => return Ok(membership),
                Err(Refusal::Moved(error)) => self.moved(partition, &error, &master),
                Err(Refusal::Failed(error)) => return Err(error),
            }
        }
        let slot = self.slots[usize::from(partition)];
        Err(StartError::new(format!(
            "cluster.url: servers name each other as the master of slot {slot}"
        )))
    }

    /// Records a server's answer that another server has a partition.
    pub(super) fn moved(&self, partition: u16, error: &RedisError, from: &HostPort) {
        let Some((address, _)) = error.redirect_node() else { return };
        let Some((host, port)) = address.rsplit_once(':') else { return };
        let Ok(port) = port.parse() else { return };
        // The server has no name for the other one, which has the same host.
        let host = if matches!(host, "" | "?") { &from.0 } else { host };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let mut state = lock(&self.state);
        state.owners[usize::from(partition)] = Some((host, port));
        state.named.insert(partition);
    }

    /// Returns the masters in order, each with one of its partitions.
    pub(super) async fn all(&self) -> Result<Vec<u16>, StartError> {
        self.master_of(0).await?;
        let owners = lock(&self.state).owners.clone();
        let mut known = HashSet::new();
        let mut first = Vec::new();
        for (partition, owner) in owners.iter().enumerate() {
            let Some(owner) = owner else { return Err(self.unserved(partition)) };
            if known.insert(owner) {
                first.push(partition as u16);
            }
        }
        Ok(first)
    }

    fn unserved(&self, partition: usize) -> StartError {
        let slot = self.slots[partition];
        StartError::new(format!(
            "cluster.url: no server of the Redis Cluster has slot {slot}; `redis-cli --cluster \
             check HOST:PORT` says what is wrong"
        ))
    }

    /// Returns the master of a partition, as the servers know it now.
    async fn master_of(&self, partition: u16) -> Result<HostPort, StartError> {
        let at = usize::from(partition);
        let _asking = self.asking.lock().await;
        let (is_known, candidates) = {
            let mut state = lock(&self.state);
            let is_fresh = state.asked.is_some_and(|asked| asked.elapsed() < FRESH);
            let is_known = state.named.remove(&partition) || is_fresh;
            (is_known && state.owners[at].is_some(), self.candidates(&mut state))
        };
        if !is_known {
            self.ask(at, candidates).await?;
        }
        lock(&self.state).owners[at].clone().ok_or_else(|| self.unserved(at))
    }

    /// Returns the servers to ask, in turn; connected servers come first.
    fn candidates(
        &self,
        state: &mut MasterWatch,
    ) -> Vec<(HostPort, Option<MultiplexedConnection>)> {
        let mut all: Vec<HostPort> = state.servers.clone();
        if !all.is_empty() {
            state.next = (state.next + 1) % all.len();
            all.rotate_left(state.next);
        }
        all.extend(self.seeds.iter().filter(|seed| !state.servers.contains(seed)).cloned());
        let connected = |server: &HostPort| {
            let shared = lock(&state.masters.get(server)?.shared).upgrade()?;
            shared.is_open().then(|| shared.opened.commands.clone())
        };
        let mut all: Vec<_> = all.into_iter().map(|one| (connected(&one), one)).collect();
        all.sort_by_key(|(connection, _)| connection.is_none());
        all.into_iter().map(|(connection, server)| (server, connection)).collect()
    }

    /// Asks until a server knows the master of a partition.
    async fn ask(
        &self,
        partition: usize,
        candidates: Vec<(HostPort, Option<MultiplexedConnection>)>,
    ) -> Result<(), StartError> {
        let (mut failures, mut refused) = (Vec::new(), None);
        for (server, connection) in candidates {
            let shown = format!("{}:{}", server.0, server.1);
            let map = match timeout(ASK, self.ask_one(&server, connection)).await {
                Ok(Ok(map)) => map,
                Ok(Err(error)) => {
                    if error.kind() != ErrorKind::Io || Insecure::of(&error).is_some() {
                        let explained = || explain_cluster(&shown, &error);
                        refused.get_or_insert_with(explained);
                    }
                    failures.push(format!("{shown}: {error}"));
                    continue;
                }
                Err(_) => {
                    failures.push(format!("{shown}: no answer in {ASK:?}"));
                    continue;
                }
            };
            let owners: Vec<_> = self.slots.iter().map(|slot| map.owner(*slot)).collect();
            if owners[partition].is_none() {
                // The server may have been removed from the cluster.
                failures.push(format!("{shown} knows no master of the slot"));
                continue;
            }
            let mut state = lock(&self.state);
            (state.owners, state.servers) = (owners, map.servers());
            (state.asked, state.named) = (Some(Instant::now()), HashSet::new());
            state.forget_others();
            return Ok(());
        }
        let unknown = || {
            StartError::new(format!(
                "cluster.url: no server of the Redis Cluster says which master has slot {} ({}); \
                 are \
             these their addresses, {}and do they run?",
                self.slots[partition],
                failures.join("; "),
                self.like.hint()
            ))
        };
        Err(refused.unwrap_or_else(unknown))
    }

    async fn ask_one(
        &self,
        server: &HostPort,
        connection: Option<MultiplexedConnection>,
    ) -> Result<SlotMap, RedisError> {
        let mut connection = match connection {
            Some(connection) => connection,
            None => {
                let server = self.like.at(server.clone());
                let mut connection = server.connect(ASK, AsyncConnectionConfig::new()).await?;
                check_mode(&mut connection, true).await?;
                connection
            }
        };
        let slots: Value = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await?;
        Ok(SlotMap::read(slots, &server.0))
    }

    /// Returns the connections to a master, which all of its partitions share.
    async fn connect(&self, to: &HostPort, names: &Names) -> Result<Arc<NodeShared>, StartError> {
        let began = Instant::now();
        let master = Arc::clone(lock(&self.state).masters.entry(to.clone()).or_default());
        let mut attempts = master.attempts.lock().await;
        let shared = lock(&master.shared).upgrade();
        if let Some(shared) = shared.filter(|shared| shared.is_open()) {
            return Ok(shared);
        }
        if let Some((at, error)) = &attempts.failed
            && (*at > began || at.elapsed() < FRESH)
        {
            return Err(error.clone());
        }
        let server = self.like.at(to.clone());
        match NodeShared::connect(&server, to.clone(), names, &self.tags, attempts.last.clone())
            .await
        {
            Ok(shared) => {
                let shared = Arc::new(shared);
                *lock(&master.shared) = Arc::downgrade(&shared);
                let last = Some(shared.opened.connection.clone());
                *attempts = Attempts { last, failed: None };
                Ok(shared)
            }
            Err(error) => {
                attempts.failed = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }
}

/// The answer to `CLUSTER SLOTS`.
#[derive(Debug, Default, PartialEq, Eq)]
struct SlotMap {
    /// First and last slot, and the servers that have them, the master first.
    ranges: Vec<(u16, u16, Vec<HostPort>)>,
}

impl SlotMap {
    /// Reads it; `asked` is the host of the server that has answered.
    fn read(value: Value, asked: &str) -> Self {
        let Value::Array(ranges) = value else { return Self::default() };
        let server = |value: &Value| {
            let Value::Array(fields) = value else { return None };
            let host = match fields.first()? {
                Value::BulkString(host) => str::from_utf8(host).ok()?,
                Value::SimpleString(host) => host,
                // The server does not know its own address.
                _ => "",
            };
            let host = if matches!(host, "" | "?") { asked } else { host };
            Some((host.to_owned(), u16::try_from(number(fields.get(1)?)?).ok()?))
        };
        let range = |value: Value| {
            let Value::Array(fields) = value else { return None };
            let (first, rest) = fields.split_first()?;
            let (last, servers) = rest.split_first()?;
            let servers = servers.iter().map(server).collect::<Option<Vec<_>>>()?;
            let slot = |value| u16::try_from(number(value)?).ok();
            Some((slot(first)?, slot(last)?, servers))
        };
        Self { ranges: ranges.into_iter().filter_map(range).collect() }
    }

    fn owner(&self, slot: u16) -> Option<HostPort> {
        let range = self.ranges.iter().find(|(first, last, _)| (*first..=*last).contains(&slot));
        range?.2.first().cloned()
    }

    fn servers(&self) -> Vec<HostPort> {
        let mut all: Vec<_> = self.ranges.iter().flat_map(|range| &range.2).cloned().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_that_have_left_the_cluster_are_forgotten() {
        let server = |port| ("10.0.0.1".to_owned(), port);
        let mut state =
            MasterWatch { servers: vec![server(1), server(2)], ..MasterWatch::default() };
        state.masters.extend((1..5).map(|port| (server(port), Arc::default())));
        let connects = Arc::clone(&state.masters[&server(4)]);
        state.forget_others();
        let mut left: Vec<_> = state.masters.keys().map(|(_, port)| *port).collect();
        left.sort_unstable();
        assert_eq!(left, [1, 2, 4], "a task connects to the last one");
        drop(connects);
        state.forget_others();
        assert_eq!(state.masters.len(), 2);
    }

    #[test]
    fn a_map_of_slots_has_masters_and_replicas_and_hosts_that_are_not_known() {
        let server = |host: Value, port| {
            Value::Array(vec![host, Value::Int(port), Value::BulkString(b"id".to_vec())])
        };
        let host = |host: &str| Value::BulkString(host.as_bytes().to_vec());
        let range = |first, last, servers: &[Value]| {
            Value::Array([&[Value::Int(first), Value::Int(last)], servers].concat())
        };
        let map = Value::Array(vec![
            range(0, 99, &[server(host("10.0.0.2"), 1), server(host("10.0.0.3"), 2)]),
            range(100, 100, &[server(Value::Nil, 3)]),
            range(101, 16_383, &[server(host(""), 4)]),
            range(0, 1, &[Value::Nil]),
            Value::Int(1),
        ]);
        let map = SlotMap::read(map, "10.0.0.1");
        let owner = |slot| map.owner(slot).map(|(host, port)| format!("{host}:{port}"));
        for (slot, expected) in
            [(0, "10.0.0.2:1"), (99, "10.0.0.2:1"), (100, "10.0.0.1:3"), (16_383, "10.0.0.1:4")]
        {
            assert_eq!(owner(slot).as_deref(), Some(expected));
        }
        assert_eq!(map.servers().len(), 4);
        assert_eq!(SlotMap::read(Value::Nil, "a"), SlotMap::default());
        assert_eq!(SlotMap::default().owner(1), None);
    }
}
