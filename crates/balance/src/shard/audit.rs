//! An audit of a shard, counted from its records and not from its metrics: for tests that check it
//! after each turn.

use throng_io::{ConnId, Driver};

use super::records::{BalanceRecord, ClientRecord, EighthTick, Phase, Tunnel, Upstream};
use super::{BalanceParts, Shard};

/// Bytes held for a connection, by kind: all buffers that a peer's data could fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// A client's input ahead of the answers, with the used part of its buffer.
    pub client_input: usize,
    /// The beginning of a client's next head, or trailers.
    pub client_head: usize,
    /// A request kept for another try.
    pub replay: usize,
    /// Data to be sent to a client.
    pub client_output: usize,
    /// Data to be sent to a backend.
    pub backend_output: usize,
    /// Data queued behind the send in flight to one side of a tunnel.
    pub tunnel: usize,
}

impl Holdings {
    /// Returns the maximum of each kind.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            client_input: self.client_input.max(other.client_input),
            client_head: self.client_head.max(other.client_head),
            replay: self.replay.max(other.replay),
            client_output: self.client_output.max(other.client_output),
            backend_output: self.backend_output.max(other.backend_output),
            tunnel: self.tunnel.max(other.tunnel),
        }
    }
}

/// The contents of a shard at this moment, and the first inconsistency in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Clients that speak HTTP.
    pub clients: usize,
    /// Connections to backends that speak HTTP, idle ones included.
    pub upstreams: usize,
    /// Idle ones among these.
    pub idle: usize,
    /// Sides of tunnels.
    pub sides: usize,
    /// Clients whose connection was closed, and whose last bytes are not sent yet.
    pub ending: usize,
    /// Tunnels that wait for a frame's end before the balancer's Close frame.
    pub closing: usize,
    /// Batches queued behind a send in flight.
    pub queued: usize,
    /// Requests that wait for a permit.
    pub waiting: usize,
    /// Total waiting clients that were examined.
    pub looked_at: u64,
    /// Total deadlines that sweeps examined.
    pub deadlines_looked_at: u64,
    /// The largest number of clients in one of the lists of those that may make room.
    pub listed: usize,
    /// Clients beyond the limits.
    pub beyond_limits: usize,
    /// Total clients that were beyond the limit of all and got an answer.
    pub refused: u64,
    /// A client that waits for nothing, or is gone, could make room.
    pub could_make_room: bool,
    /// Addresses by which clients are counted, of all shards.
    pub addresses: usize,
    /// Close jobs.
    pub close_jobs: usize,
    /// Actions that were not run.
    pub actions: usize,
    /// The maximum bytes that any one connection holds, of each kind. The driver holds the data of
    /// a send in flight.
    pub most: Holdings,
    /// Bytes of memory kept for the next batches.
    pub spare: usize,
    /// Clients to close because their backend is lost.
    pub orphans: usize,
    /// A broken rule between records, if there is one.
    pub broken: Option<(ConnId, &'static str)>,
}

/// The bytes that a record holds, and the rule that it breaks.
type Audited = (Holdings, Option<&'static str>);

impl<D: Driver> Shard<D> {
    /// Counts everything. Never called on the path of a byte.
    #[must_use]
    pub fn audit(&self) -> Audit {
        Auditor(&self.parts).audit()
    }
}

/// Reads all parts, and changes none.
struct Auditor<'a>(&'a BalanceParts);

impl Auditor<'_> {
    fn has_deadline(&self, id: ConnId) -> bool {
        self.0.records.deadline(id) != EighthTick::NEVER
    }

    fn audit(&self) -> Audit {
        let BalanceParts {
            records, time, clients, dispatch, idle, tunnels, actions, meters, ..
        } = self.0;
        let mut audit = Audit {
            idle: idle.len(),
            queued: tunnels.receivers().len(),
            waiting: dispatch.waiting().len(),
            looked_at: dispatch.waiting().looked_at(),
            deadlines_looked_at: time.looked_at(),
            listed: clients.listed(),
            beyond_limits: clients.beyond_limits(),
            refused: meters.metrics().refused_beyond,
            could_make_room: clients.could_make_room(records, time.tick()),
            addresses: clients.addresses(),
            close_jobs: tunnels.jobs(),
            actions: actions.len(),
            spare: actions.spare(),
            orphans: tunnels.orphans(),
            ..Audit::default()
        };
        for (id, record) in records.iter() {
            let (held, broken) = match record {
                BalanceRecord::Vacant => continue,
                BalanceRecord::Closing => {
                    audit.ending += 1;
                    continue;
                }
                BalanceRecord::Client(client) => {
                    audit.clients += 1;
                    self.audit_client(id, client)
                }
                BalanceRecord::Upstream(upstream) => {
                    audit.upstreams += 1;
                    self.audit_upstream(id, upstream)
                }
                BalanceRecord::Tunnel(tunnel) => {
                    audit.sides += 1;
                    let is_closing = tunnel.is_backend() && tunnel.is_cut_due();
                    audit.closing += usize::from(is_closing);
                    self.audit_side(id, tunnel)
                }
            };
            audit.most = audit.most.max(held);
            audit.broken = audit.broken.or(broken.map(|what| (id, what)));
        }
        let broken = self.broken_count(&audit).map(|what| (ConnId::new(0, 0, 0), what));
        audit.broken = audit.broken.or(broken);
        audit
    }

    fn audit_client(&self, id: ConnId, client: &ClientRecord) -> Audited {
        let is_endless = client.phase != Phase::Exchange && !self.has_deadline(id);
        let replay = client.exchange.as_ref().map_or(0, |exchange| exchange.replay_len());
        let held = Holdings {
            client_input: client.held.footprint(),
            client_head: client.decoder.buffered(),
            client_output: client.http.backlog(),
            replay,
            ..Holdings::default()
        };
        (held, is_endless.then_some("a client without a request that may stay for ever"))
    }

    fn is_deserted(&self, upstream: &Upstream) -> bool {
        let owner = upstream.owner().map(|owner| owner.client());
        owner.is_some_and(|client| {
            self.0.records.at(client.slot()).is_none_or(|(other, _)| other != client)
        })
    }

    fn audit_upstream(&self, id: ConnId, upstream: &Upstream) -> Audited {
        let is_wanted = upstream.client().is_none_or(|client_id| {
            let Some((other, BalanceRecord::Client(client))) = self.0.records.at(client_id.slot())
            else {
                return false;
            };
            let exchange = client.exchange.as_ref();
            other == client_id && exchange.is_some_and(|it| it.upstream() == Some(id))
        });
        let is_idle = upstream.client().is_none();
        let is_anothers = upstream
            .client()
            .zip(upstream.owner())
            .is_some_and(|(client_id, owner)| client_id != owner.client());
        let broken = if !is_wanted {
            Some("a backend's connection whose client does not know of it")
        } else if is_anothers {
            Some("a backend's connection that carried the body of another client")
        } else if is_idle && self.is_deserted(upstream) {
            Some("an idle connection that serves a client that has gone")
        } else if is_idle && !self.has_deadline(id) {
            Some("an idle connection that may stay for ever")
        } else if is_idle && upstream.http.has_finished() {
            Some("an idle connection whose backend has ended it")
        } else {
            None
        };
        (Holdings { backend_output: upstream.http.backlog(), ..Holdings::default() }, broken)
    }

    fn audit_side(&self, id: ConnId, tunnel: &Tunnel) -> Audited {
        let queue = self.0.tunnels.queued(id);
        let held = Holdings { tunnel: queue.unwrap_or_default(), ..Holdings::default() };
        if queue.is_some() && !tunnel.is_sending() {
            return (held, Some("bytes are queued, and nothing is in flight before them"));
        }
        if let Some(broken) = tunnel.broken_rule() {
            return (held, Some(broken));
        }
        let classes = &self.0.rules.configuration().classes;
        if tunnel.class() > 0 && classes.name(tunnel.class()).is_none() {
            return (held, Some("a tunnel has a class that no route has had"));
        }
        let is_alone = tunnel.peer() == id;
        let broken = match self.0.records.at(tunnel.peer().slot()) {
            Some((other, BalanceRecord::Tunnel(side))) if other == tunnel.peer() => {
                let is_in_flight = side.is_sending();
                if !is_alone && side.peer() != id {
                    Some("a tunnel's other side is another's")
                } else if tunnel.class() != side.class() {
                    Some("the sides of a tunnel have different classes")
                } else if tunnel.is_paused() && !is_in_flight {
                    Some("paused, and nothing is in flight that would end that")
                } else if !is_alone && is_in_flight && !tunnel.is_paused() {
                    Some("a send is in flight, and its source is read")
                } else if !tunnel.is_backend() && !self.has_deadline(id) {
                    Some("a tunnel that may be silent for ever")
                } else {
                    None
                }
            }
            _ => Some("a tunnel without its other side"),
        };
        (held, broken)
    }

    /// Returns a metric, or a queue, that does not follow from the records.
    fn broken_count(&self, audit: &Audit) -> Option<&'static str> {
        let is_client = |record: &BalanceRecord| match record {
            BalanceRecord::Tunnel(tunnel) => !tunnel.is_backend(),
            _ => false,
        };
        let tunnels = self.0.records.iter().filter(|(_, record)| is_client(record)).count();
        let is_tunnel = |id: &ConnId| match self.0.records.at(id.slot()) {
            Some((other, BalanceRecord::Tunnel(_))) => other == *id,
            _ => false,
        };
        if tunnels as u64 != self.0.meters.metrics().tunnels {
            Some("the metric of tunnels is not their number")
        } else if (tunnels + audit.clients + audit.ending) as u64
            != self.0.meters.metrics().connections
        {
            Some("the metric of connections is not their number")
        } else if !self.0.tunnels.limited().all(is_tunnel) {
            Some("a place in a limit of a tunnel that has ended")
        } else if !self.0.tunnels.metered().all(is_tunnel) {
            Some("a meter of a tunnel that has ended")
        } else if !self.0.tunnels.receivers().all(is_tunnel) {
            Some("bytes are queued without a receiver")
        } else {
            None
        }
    }
}
