//! Assembly of shards from drivers, with the handles that reach them.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex};

use throng_io::{Clock, Driver};

use crate::backpressure::{Classes, Rules};
use crate::configuration::Configuration;
use crate::configurator::Configurator;
use crate::conn::input_time::InputTime;
use crate::connections::Connections;
use crate::connections::memory::{MemoryAccount, ShardMemory};
use crate::context::Core;
use crate::context::locals::Locals;
use crate::context::recent::RecentJoins;
use crate::limits::Limits;
use crate::pubsub::channels::{Channels, Totals};
use crate::pubsub::history::Histories;
use crate::pubsub::presence::{PresenceRules, Presences};
use crate::pubsub::relay::Relay;
use crate::remote::mailbox::mailbox;
use crate::remote::{MAILBOX_CAPACITY, MAILBOX_MARK, Remote, shard_queue};
use crate::route_options::RouteOptions;
use crate::samples::Samples;
use crate::service::Service;
use crate::setting::SettingError;
use crate::shard::admission::{Admission, TrustedProxies};
use crate::shard::proxy::ProxyProtocol;
use crate::shard::{Parts, Shard};
use crate::stalls::{Watch, Watching};
use crate::stats::Snapshot;

/// Sockets that may be on their way to another shard at a time; beyond that a shard keeps what it
/// accepted.
const HANDOVER_CAPACITY: usize = 4096;

/// Result of [`build`].
pub struct Built<D: Driver, S: Service> {
    /// One shard per driver, in order; each runs on a thread of its own.
    pub shards: Vec<Shard<D, S>>,
    /// Handle that reaches all of them from any thread.
    pub remote: Remote,
    /// Their counters, by shard.
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
    /// Indexed by route; routes beyond have the defaults.
    pub routes: Arc<[RouteOptions]>,
    /// The limit on connections in force; 0 = none.
    pub max_connections: usize,
    /// Connections that a shard's own [descriptor table](throng_io::tables) holds; `None`: shards
    /// share one. With tables of their own they hand no sockets over, since a descriptor's number
    /// names another file elsewhere.
    pub own_tables: Option<usize>,
    /// Settings of stall detection; `None`: nothing is measured, and the clock is read less often.
    pub watching: Option<Watching>,
    /// Replacement of [`MAILBOX_MARK`], for simulations.
    pub mailbox_mark: Option<usize>,
    /// Replacement of [`MAILBOX_CAPACITY`], for simulations.
    pub mailbox_capacity: Option<usize>,
    /// Replacement of the number of connections that may be on their way to a shard, for
    /// simulations.
    pub handover_capacity: Option<usize>,
    /// Addresses of proxies, whose connections have no cap by address.
    pub trusted_proxies: Option<TrustedProxies>,
    /// `Some`: accepted connections begin with a PROXY header.
    pub proxy_protocol: Option<ProxyProtocol>,
    /// The broker that carries publications to other processes.
    pub relay: Option<Arc<dyn Relay>>,
    /// Seed of everything random (masks, the order of draining); `None` outside of simulations.
    pub seed: Option<u64>,
}

impl BuildOptions {
    /// Creates the histories, and takes their memory out of the account.
    pub(crate) fn histories(&self, rules: &Rules, account: &mut MemoryAccount) -> Histories {
        let max_bytes = match rules.histories().is_empty() {
            true => 0,
            false => account.reserve(self.limits.max_history_memory),
        };
        Histories::new(rules.histories().clone(), max_bytes, crate::random::mix(self.seed()))
    }

    /// Creates the presence of all channels, if any has it, and takes its memory out of the
    /// account.
    pub(crate) fn presences(&self, account: &mut MemoryAccount) -> Option<Presences> {
        let rules = self.presences.clone();
        let mut max_bytes = || account.reserve(self.limits.max_presence_memory);
        (!rules.is_empty()).then(|| Presences::new(rules, max_bytes()))
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or_else(|| RandomState::new().hash_one(0u8))
    }
}

/// Derives a shard's seed from the server's.
pub(crate) fn shard_seed(seed: u64, shard: u64) -> u64 {
    crate::random::mix(seed.wrapping_add(shard))
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
    let BuildOptions { limits, classes, routes, max_connections, .. } = options;
    let parts = drivers.len();
    let configuration = Configuration::new(limits, classes, routes, parts)?;
    let totals = Arc::new(Totals::with_relay(options.relay.clone()));
    let mut account = MemoryAccount::new(limits.max_memory);
    let histories = options.histories(&configuration.rules, &mut account);
    let presences = options.presences(&mut account);
    let account = Arc::new(account);
    let max_connections = *max_connections;
    let admission = Admission::new(limits, max_connections, drivers.len());
    let admission = Arc::new(admission.with_trusted_proxies(options.trusted_proxies.clone()));
    let (mut queues, mut inboxes, mut handover, mut handovers) = (vec![], vec![], vec![], vec![]);
    let mark = options.mailbox_mark.unwrap_or(MAILBOX_MARK);
    let capacity = options.mailbox_capacity.unwrap_or(MAILBOX_CAPACITY);
    for driver in &drivers {
        let (queue, inbox) = shard_queue(capacity, mark, driver.waker());
        queues.push(queue);
        inboxes.push(inbox);
        let capacity = options.handover_capacity.unwrap_or(HANDOVER_CAPACITY);
        let accepted = if options.own_tables.is_none() { capacity } else { 0 };
        let (sender, receiver) = mailbox(accepted, driver.waker());
        handovers.push(receiver);
        if options.own_tables.is_none() {
            handover.push(sender);
        }
    }
    let clock = drivers.first().map_or(Clock::System, Driver::clock);
    let remote = Remote::new(queues.clone(), Arc::clone(&totals), clock, (histories, presences))
        .with_own_tables(options.own_tables.is_some());
    // Address space only; a page is touched when its first connection comes.
    let of_a_shard = options.own_tables.unwrap_or(max_connections);
    let capacity = of_a_shard.clamp(1024, 1 << 20) + 1024;
    let snapshots: Arc<[Arc<Snapshot>]> =
        drivers.iter().map(|_| Arc::new(Snapshot::new(&configuration.rules))).collect();
    let seed = options.seed();
    let shards = drivers
        .into_iter()
        .zip(inboxes)
        .zip(handovers)
        .enumerate()
        .map(|(shard, ((driver, inbox), handovers))| {
            let seed = shard_seed(seed, shard as u64);
            let snapshot = &snapshots[shard];
            let (progress, load) = (Arc::clone(&snapshot.progress), Arc::clone(&snapshot.load));
            let mut channels = Channels::new(Arc::clone(&totals));
            channels.set_home(shard as u16);
            Shard::new(Parts {
                core: Core {
                    connections: Connections::new(
                        &configuration,
                        capacity,
                        seed,
                        driver.now(),
                        ShardMemory::new(Arc::clone(&account), false, seed),
                    ),
                    clock: driver.clock(),
                    input_time: InputTime::new(),
                    channels,
                    remote: remote.clone(),
                    shard,
                    watch: Watch::new(shard, options.watching.clone(), progress, load),
                    samples: Samples::new(Arc::clone(&snapshot.measured)),
                    homes: Vec::new(),
                    publisher: None,
                    crowded: Vec::new(),
                    commands: VecDeque::new(),
                    queue: queues[shard].clone(),
                    recent: RecentJoins::default(),
                    moves: Vec::new(),
                    locals: Locals::default(),
                },
                service: service(shard, &admission, &remote),
                admission: Arc::clone(&admission),
                inbox,
                handovers,
                neighbours: handover.clone(),
                snapshot: Arc::clone(&snapshots[shard]),
                capacity,
                seed,
                proxy_protocol: options.proxy_protocol.clone(),
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
