//! Assembly of shards from drivers, with the handles that reach them.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use throng_io::{Clock, Driver};
use throng_proto::SettingError;

use crate::admission::{Admission, TrustedProxies};
use crate::backpressure::{Classes, Rules};
use crate::configuration::Configuration;
use crate::configurator::Configurator;
use crate::conn::proxy_protocol::ProxyProtocol;
use crate::connections::Connections;
use crate::connections::memory::{MemoryAccount, ShardMemory};
use crate::context::Core;
use crate::context::clocks::Clocks;
use crate::context::mail::ShardMail;
use crate::limits::Limits;
use crate::pubsub::channels::Totals;
use crate::pubsub::history::Histories;
use crate::pubsub::presence::{PresenceRules, Presences};
use crate::pubsub::relay::Relay;
use crate::remote::handover::Handover;
use crate::remote::mailbox::{Inbox, Mailbox, mailbox};
use crate::remote::{MAILBOX_CAPACITY, MAILBOX_MARK, Remote, ShardInbox, ShardQueue, shard_queue};
use crate::route_options::RouteOptions;
use crate::samples::Samples;
use crate::service::Service;
use crate::shard::Shard;
use crate::stalls::{Watch, Watching};
use crate::start::EngineStart;
use crate::stats::Snapshot;

/// Maximum sockets in transit to another shard at a time; above this number a shard keeps the
/// sockets that it accepts.
const HANDOVER_CAPACITY: usize = 4096;

/// Result of [`build`].
pub struct Built<D: Driver, S: Service> {
    /// One shard per driver, in order; each runs on a thread of its own.
    pub shards: Vec<Shard<D, S>>,
    /// Handle that reaches all shards from any thread.
    pub remote: Remote,
    /// Counters of the shards, by shard number.
    pub snapshots: Arc<[Arc<Snapshot>]>,
    /// Subscribers of each channel, over all shards.
    pub totals: Arc<Totals>,
    /// Counts and caps of the process.
    pub admission: Arc<Admission>,
    /// Handle that changes limits and rules.
    pub configurator: Configurator,
}

/// Options of [`build`] besides the drivers.
#[derive(Clone, Debug, Default)]
pub struct BuildOptions {
    /// Limits and timeouts.
    pub limits: Limits,
    /// Rules for messages to slow receivers.
    pub classes: Classes,
    /// Channels with presence.
    pub presences: PresenceRules,
    /// Options by route number; routes beyond the end have the defaults.
    pub routes: Arc<[RouteOptions]>,
    /// The limit on connections in force; 0 = none.
    pub max_connections: usize,
    /// Connections that fit into a shard's own [descriptor table](throng_io::tables); `None`:
    /// shards share one table. Shards with their own tables do not hand over sockets, since the
    /// number of a descriptor names another file in another table.
    pub own_tables: Option<usize>,
    /// Settings of stall detection; `None`: nothing is measured, and the clock is read less often.
    pub watching: Option<Watching>,
    /// Replacement of [`MAILBOX_MARK`], for simulations.
    pub mailbox_mark: Option<usize>,
    /// Replacement of [`MAILBOX_CAPACITY`], for simulations.
    pub mailbox_capacity: Option<usize>,
    /// For simulations: replaces the maximum number of sockets in transit to a shard.
    pub handover_capacity: Option<usize>,
    /// Addresses of proxies; their connections have no cap by address.
    pub trusted_proxies: Option<TrustedProxies>,
    /// `Some`: accepted connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The broker that carries publications to other processes.
    pub relay: Option<Arc<dyn Relay>>,
    /// Seed of everything random (masks, the order of draining); `None` outside of simulations.
    pub seed: Option<u64>,
}

impl BuildOptions {
    /// Creates the histories, and subtracts their memory from the account.
    pub(crate) fn histories(&self, rules: &Rules, account: &mut MemoryAccount) -> Histories {
        let max_bytes = match rules.histories().is_empty() {
            true => 0,
            false => account.reserve(self.limits.max_history_memory),
        };
        Histories::new(rules.histories().clone(), max_bytes, crate::random::mix(self.seed()))
    }

    /// Creates the presence of all channels if any channel has it, and subtracts its memory from
    /// the account.
    pub(crate) fn presences(&self, account: &mut MemoryAccount) -> Option<Presences> {
        let rules = self.presences.clone();
        let mut max_bytes = || account.reserve(self.limits.max_presence_memory);
        (!rules.is_empty()).then(|| Presences::new(rules, max_bytes()))
    }

    /// Returns the number of connections for which a shard reserves address space. A page is
    /// touched when its first connection arrives.
    fn connections_of_a_shard(&self) -> usize {
        self.own_tables.unwrap_or(self.max_connections).clamp(1024, 1 << 20) + 1024
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| RandomState::new().hash_one(0u8))
    }
}

/// Derives a shard's seed from the server's.
pub(crate) fn shard_seed(seed: u64, shard: u64) -> u64 {
    crate::random::mix(seed.wrapping_add(shard))
}

/// State that all shards of a server share.
pub(crate) struct SharedParts {
    pub(crate) configuration: Configuration,
    pub(crate) totals: Arc<Totals>,
    pub(crate) account: Arc<MemoryAccount>,
    /// Histories and presence of all channels.
    pub(crate) stores: (Histories, Option<Presences>),
    pub(crate) admission: Arc<Admission>,
}

impl SharedParts {
    /// Creates the state for `parts` shards. `limits` admits connections; `options` sets the rest.
    ///
    /// # Errors
    /// Limits or classes contradict themselves.
    pub(crate) fn new(
        options: &BuildOptions,
        limits: &Limits,
        parts: usize,
    ) -> Result<Self, SettingError> {
        let configuration =
            Configuration::new(&options.limits, &options.classes, &options.routes, parts)?;
        let mut account = MemoryAccount::new(options.limits.max_memory);
        let histories = options.histories(&configuration.rules, &mut account);
        let presences = options.presences(&mut account);
        let admission = Admission::new(limits, options.max_connections, parts);
        Ok(Self {
            configuration,
            totals: Arc::new(Totals::with_relay(options.relay.clone())),
            account: Arc::new(account),
            stores: (histories, presences),
            admission: Arc::new(admission.with_trusted_proxies(options.trusted_proxies.clone())),
        })
    }
}

/// The queues of a shard, by which other shards and other threads reach it.
struct Queues<K> {
    queue: ShardQueue,
    inbox: ShardInbox,
    /// Sockets that other shards accepted for this shard.
    handovers: Inbox<Handover<K>>,
}

/// The queues of each shard, and the sending halves of the socket queues.
type AllQueues<K> = (Vec<Queues<K>>, Vec<Mailbox<Handover<K>>>);

/// Creates the queues of each shard. Where shards do not hand over sockets, no sending halves are
/// created.
fn create_queues<D: Driver>(drivers: &[D], options: &BuildOptions) -> AllQueues<D::Socket> {
    let mark = options.mailbox_mark.unwrap_or(MAILBOX_MARK);
    let capacity = options.mailbox_capacity.unwrap_or(MAILBOX_CAPACITY);
    let shares_table = options.own_tables.is_none();
    let handover_capacity = match shares_table {
        true => options.handover_capacity.unwrap_or(HANDOVER_CAPACITY),
        false => 0,
    };
    let (queues, mut senders): (Vec<_>, Vec<_>) = drivers
        .iter()
        .map(|driver| {
            let (queue, inbox) = shard_queue(capacity, mark, driver.waker());
            let (sender, handovers) = mailbox(handover_capacity, driver.waker());
            (Queues { queue, inbox, handovers }, sender)
        })
        .unzip();
    if !shares_table {
        senders.clear();
    }
    (queues, senders)
}

/// Builds one shard for each driver.
///
/// # Errors
/// Limits or classes contradict themselves.
pub fn build<D: Driver, S: Service>(
    drivers: Vec<D>,
    options: &BuildOptions,
    mut service: impl FnMut(usize, &Arc<Admission>, &Remote) -> S,
) -> Result<Built<D, S>, SettingError> {
    let parts = drivers.len();
    let SharedParts { configuration, totals, account, stores, admission } =
        SharedParts::new(options, &options.limits, parts)?;
    let (queues, neighbours) = create_queues(&drivers, options);
    let clock = drivers.first().map_or(Clock::System, Driver::clock);
    let senders = queues.iter().map(|queues| queues.queue.clone()).collect();
    let remote = Remote::new(senders, Arc::clone(&totals), clock, stores)
        .with_own_tables(options.own_tables.is_some());
    let snapshots: Arc<[Arc<Snapshot>]> =
        drivers.iter().map(|_| Arc::new(Snapshot::new(&configuration.rules))).collect();
    let (capacity, seed) = (options.connections_of_a_shard(), options.seed());
    let shards = drivers
        .into_iter()
        .zip(queues)
        .enumerate()
        .map(|(shard, (driver, Queues { queue, inbox, handovers }))| {
            let seed = shard_seed(seed, shard as u64);
            let snapshot = Arc::clone(&snapshots[shard]);
            let memory = ShardMemory::new(Arc::clone(&account), false, seed);
            let connections =
                Connections::new(&configuration, capacity, seed, driver.now(), memory);
            let (progress, load) = (Arc::clone(&snapshot.progress), Arc::clone(&snapshot.load));
            let watch = Watch::new(shard, options.watching.clone(), progress, load);
            let samples = Samples::new(Arc::clone(&snapshot.measured));
            let clocks = Clocks::new(driver.clock(), watch, samples);
            let (number, mail) = (shard as u16, ShardMail::new((queue, inbox)));
            Shard::new(EngineStart {
                core: Core::new(number, connections, &remote, mail, clocks),
                service: service(shard, &admission, &remote),
                admission: Arc::clone(&admission),
                handovers,
                neighbours: neighbours.clone(),
                snapshot,
                capacity,
                seed,
                proxy_protocol: options.proxy_protocol.clone(),
                buffered: None,
                driver,
            })
        })
        .collect();
    let configurator = Configurator {
        current: Arc::new(Mutex::new(Arc::new(configuration))),
        remote: remote.clone(),
        admission: Arc::clone(&admission),
        account,
        snapshots: Arc::clone(&snapshots),
        parts,
        is_threaded: false,
    };
    Ok(Built { shards, remote, snapshots, totals, admission, configurator })
}
